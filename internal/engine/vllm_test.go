package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-router/sluice/internal/openai"
)

func prefillBody(t *testing.T, route openai.Route, body string) map[string]any {
	t.Helper()
	_, legs, err := planned(t, VLLM{}, route, body, testRank{connector: ConnectorNIXL}, testRank{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return legs[0]
}

// nixlWish is what a prefill engine with NIXL is asked for.
var nixlWish = map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil}

func wantPrefill(extra map[string]any) map[string]any {
	want := map[string]any{"max_tokens": 1.0, "kv_transfer_params": nixlWish}
	for k, v := range extra {
		want[k] = v
	}
	return want
}

// A body without max_tokens must reach decode without it; only prefill is capped
// (vllm-project/production-stack#747).
func TestOnlyPrefillIsCapped(t *testing.T) {
	for _, body := range []string{`{}`, `{"max_tokens":500}`, `{"max_tokens":null}`} {
		if d := cmp.Diff(wantPrefill(nil), prefillBody(t, openai.RouteChatCompletions, body)); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
		_, legs, _ := planned(t, VLLM{}, openai.RouteChatCompletions, body, testRank{connector: ConnectorNIXL}, testRank{}, []byte(`{"a":1}`))
		var want map[string]any
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatal(err)
		}
		want["kv_transfer_params"] = map[string]any{"a": 1.0}
		if d := cmp.Diff(want, legs[1]); d != "" {
			t.Errorf("%s for decode (-want +got):\n%s", body, d)
		}
	}
}

// max_completion_tokens wins over max_tokens: both must be capped, or prefill
// generates the whole answer (llm-d/llm-d-router#403).
func TestBothSpellingsAreCapped(t *testing.T) {
	got := prefillBody(t, openai.RouteChatCompletions, `{"max_completion_tokens":500}`)
	if d := cmp.Diff(wantPrefill(map[string]any{"max_completion_tokens": 1.0}), got); d != "" {
		t.Error(d)
	}
	got = prefillBody(t, openai.RouteResponses, `{"max_output_tokens":500,"input":"x"}`)
	want := map[string]any{"max_output_tokens": 1.0, "input": "x", "kv_transfer_params": nixlWish}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A prefill that streams answers with events and without kv_transfer_params; with
// stream options but no stream it is refused (vllm-project/production-stack#971).
func TestPrefillDoesNotStream(t *testing.T) {
	got := prefillBody(t, openai.RouteCompletions, `{"stream":true,"stream_options":{"include_usage":true},"min_tokens":5,"prompt":"x"}`)
	if d := cmp.Diff(wantPrefill(map[string]any{"stream": false, "prompt": "x"}), got); d != "" {
		t.Error(d)
	}
}

func TestVLLMHandOff(t *testing.T) {
	legs := &vllmLegs{connector: connectorNamed(ConnectorNIXL)}
	params, err := legs.HandOff([]byte(`{"id":"x","kv_transfer_params":{"remote_host":"10.0.0.1", "n":9007199254740993},"choices":[]}`))
	if err != nil || string(params) != `{"remote_host":"10.0.0.1", "n":9007199254740993}` {
		t.Errorf("%s %v", params, err)
	}
	for body, want := range map[string]error{
		`{"id":"x"}`:                                    ErrNoHandOff,
		`{"kv_transfer_params":null}`:                   ErrNoHandOff,
		`not json`:                                      ErrNoHandOff,
		`{"kv_transfer_params":[]}`:                     ErrBadHandOff,
		`{"kv_transfer_params":{}}`:                     ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":""}}`:     ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":null}}`:   ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":"h"},"x"`: ErrNoHandOff,
	} {
		if _, err := legs.HandOff([]byte(body)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

// Each connector has a shape, and what its legs are told.
func TestVLLMConnectors(t *testing.T) {
	peer := &PushPeer{EngineID: "e", Host: "h", Port: 5, TPSize: 1, PPSize: 1}
	known := testRank{host: "h", port: 8998, peer: peer}
	moriio := maps.Clone(nixlWish)
	moriio["transfer_id"] = "tx-new"
	for _, c := range []struct {
		connector       string
		rank            testRank
		shape           Shape
		id              string
		prefill, decode any // kv_transfer_params; decode is handed {"a":1} where prefill goes first
	}{
		{ConnectorNIXL, known, PrefillFirst, "req", nixlWish, map[string]any{"a": 1.0}},
		{ConnectorUnknown, known, PrefillFirst, "req", nixlWish, map[string]any{"a": 1.0}},
		{ConnectorMoRIIO, known, PrefillFirst, "req", moriio, map[string]any{"a": 1.0}},
		{ConnectorLMCache, known, PrefillFirst, "req", nil, nil},
		{ConnectorShared, known, PrefillFirst, "req", nil, nil},
		{ConnectorNone, known, DecodeAlone, "req", nil, nil},
		{ConnectorMooncake, testRank{host: "h", port: 8998, peer: &MooncakePeer{EngineIDs: []string{"e"}}}, Together, "req",
			map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-new"},
			map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "remote_bootstrap_addr": "http://h:8998", "remote_engine_id": "e", "transfer_id": "xfer-new"}},
		{ConnectorNIXLPush, known, Together, "req-new", nixlWish,
			map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "remote_engine_id": "e", "remote_host": "h", "remote_port": 5.0,
				"tp_size": 1.0, "pp_size": 1.0, "remote_request_id": "cmpl-req-new"}},
		{ConnectorNIXLPush, testRank{}, DecodeAlone, "req", nixlWish, nil},
	} {
		c.rank.connector = c.connector
		var handOff []byte
		if c.shape == PrefillFirst && c.decode != nil {
			handOff = []byte(`{"a":1}`)
		}
		plan, legs, err := planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x"}`, c.rank, testRank{}, handOff)
		if err != nil || plan.Shape != c.shape || plan.RequestID != c.id || c.shape == DecodeAlone && plan.Why != AloneNoConnector {
			t.Errorf("%s: %v %+v", c.connector, err, plan)
		}
		if d := cmp.Diff([2]any{c.prefill, c.decode}, [2]any{legs[0]["kv_transfer_params"], legs[1]["kv_transfer_params"]}); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.connector, d)
		}
		// Blocks of several sequences are not handed over.
		plan, _, err = planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x","n":2}`, c.rank, testRank{}, nil)
		if err != nil || plan.Shape != DecodeAlone || plan.Why != AloneSamples {
			t.Errorf("%s, two samples: %v %+v", c.connector, err, plan)
		}
	}
	if _, _, err := planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x"}`, testRank{connector: ConnectorMooncake}, testRank{}, nil); err == nil {
		t.Error("a pair of Mooncake was planned without the id of the prefill engine")
	}
}

// vLLM is told by a header which of its ranks runs a leg; by the body it is not.
func TestVLLMRanks(t *testing.T) {
	ids := &MooncakePeer{EngineIDs: []string{"e_dp0", "e_dp1", "", "e_dp3"}}
	push := &PushPeer{EngineID: "e_dp5", Host: "h", Port: 5601, TPSize: 1, PPSize: 1}
	push.OfSeveral(4, 4) // the four ranks of this server are numbers 4 to 7 of the model
	if push.Rank != 1 || push.Ranks != 4 {
		t.Fatalf("rank %d of %d, want 1 of 4", push.Rank, push.Ranks)
	}
	at := func(dp, size int, connector string, peer Peer) testRank {
		return testRank{dp: dp, dpSize: size, host: "h", port: 8998, connector: connector, peer: peer}
	}
	for _, c := range []struct {
		name            string
		prefill, decode testRank
		ranks           [2]int
		id              string // of the prefill engine, as decode is told
		port            float64
	}{
		{"nixl", at(3, 4, ConnectorNIXL, nil), at(1, 2, "", nil), [2]int{3, 1}, "", 0},
		{"scheduled as a whole", at(-1, 1, ConnectorNIXL, nil), at(-1, 1, "", nil), [2]int{-1, -1}, "", 0},
		{"one side only", at(-1, 1, ConnectorNIXL, nil), at(1, 2, "", nil), [2]int{-1, 1}, "", 0},
		{"mooncake", at(3, 4, ConnectorMooncake, ids), at(0, 2, "", nil), [2]int{3, 0}, "e_dp3", 0},
		{"push, the rank that was asked", at(1, 4, ConnectorNIXLPush, push), at(0, 2, "", nil), [2]int{1, 0}, "e_dp5", 5601},
		{"push, another rank", at(3, 4, ConnectorNIXLPush, push), at(0, 2, "", nil), [2]int{3, 0}, "e_dp7", 5603},
	} {
		plan, legs, err := planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x"}`, c.prefill, c.decode, nil)
		if err != nil || plan.RankHeader != "X-Data-Parallel-Rank" || [2]int{plan.PrefillRank, plan.DecodeRank} != c.ranks {
			t.Errorf("%s: %v %+v", c.name, err, plan)
		}
		for _, leg := range legs {
			if leg["routed_dp_rank"] != nil {
				t.Errorf("%s: the body names a rank: %v", c.name, leg)
			}
		}
		params, _ := legs[1]["kv_transfer_params"].(map[string]any)
		if c.id != "" && params["remote_engine_id"] != c.id || c.port != 0 && params["remote_port"] != c.port {
			t.Errorf("%s: decode is told %v", c.name, params)
		}
	}
	// A worker that is scheduled as a whole would choose a rank by itself, and decode
	// must know which before.
	used := map[int]int{}
	for range 200 {
		plan, legs, err := planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x"}`, at(-1, 1, ConnectorMooncake, ids), at(-1, 1, "", nil), nil)
		params, _ := legs[1]["kv_transfer_params"].(map[string]any)
		if err != nil || plan.PrefillRank < 0 || params["remote_engine_id"] != ids.EngineIDs[plan.PrefillRank] || plan.DecodeRank != -1 {
			t.Fatalf("%v %+v %v", err, plan, params)
		}
		used[plan.PrefillRank]++
		plan, legs, err = planned(t, VLLM{}, openai.RouteCompletions, `{"prompt":"x"}`, at(-1, 1, ConnectorNIXLPush, push), at(-1, 1, "", nil), nil)
		params, _ = legs[1]["kv_transfer_params"].(map[string]any)
		if want := fmt.Sprintf("e_dp%d", plan.PrefillRank+4); err != nil || params["remote_engine_id"] != want {
			t.Fatalf("%v %+v %v", err, plan, params)
		}
	}
	if len(used) != 3 {
		t.Errorf("ranks used: %v", used)
	}
}

// A server that has a part of a model's ranks reports them by their numbers among all;
// the header that names a rank counts this server's alone.
func TestVLLMRanksOfOneNodeOfSeveral(t *testing.T) {
	l, err := VLLM{}.ReadLoads([]byte(`vllm:num_requests_running{engine="5"} 3
vllm:num_requests_running{engine="4"} 1
vllm:kv_cache_usage_perc{engine="5"} 0.5
vllm:cache_config_info{engine="4",block_size="16",num_gpu_blocks="10"} 1
vllm:cache_config_info{engine="5",block_size="16",num_gpu_blocks="20"} 1
`))
	if err != nil {
		t.Fatal(err)
	}
	if want := []RankCapacity{{KVTokens: 160}, {KVTokens: 320}}; l.FirstRank != 4 || !slices.Equal(l.Capacities, want) {
		t.Errorf("first %d, %+v, want 4 and %+v", l.FirstRank, l.Capacities, want)
	}
	if len(l.Ranks) != 2 || l.Ranks[0].Running != 1 || l.Ranks[1].Running != 3 || l.Ranks[1].UsedTokens != 160 {
		t.Errorf("loads %+v", l.Ranks)
	}
}
