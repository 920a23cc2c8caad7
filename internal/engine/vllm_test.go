package engine

import (
	"encoding/json"
	"errors"
	"maps"
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
