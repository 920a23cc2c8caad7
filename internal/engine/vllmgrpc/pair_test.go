package vllmgrpc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/openai"
)

// rank is a rank of a pair.
type rank struct {
	connector string
	peer      engine.Peer
}

func (rank) DPRank() int                    { return -1 }
func (rank) DPSize() int                    { return 1 }
func (rank) Bootstrap() (string, int, bool) { return "10.0.0.1", 8998, true }
func (r rank) Connector() string            { return r.connector }
func (r rank) Peer() engine.Peer            { return r.peer }

// pair plans a pair for the body, with n samples of each of its prompts.
func pair(t testing.TB, prefill rank, body string) (engine.Plan, error) {
	t.Helper()
	p, err := openai.Peek(openai.RouteCompletions, []byte(body), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	ids := 0
	return Dialect{}.Plan(&engine.Pair{
		Request: p, RequestID: "req", Attempt: 1, Prefill: prefill, Decode: rank{},
		NewID: func() string { ids++; return fmt.Sprint("id", ids) },
	})
}

// legs are calls of both legs of a plan.
func legs(plan engine.Plan, prompts [][]uint32, samples int) (prefill, decode *engine.Request) {
	leg := func(leg engine.Leg) *engine.Request {
		return request(func(r *engine.Request) {
			r.Leg, r.Legs, r.ID = leg, plan.Legs, plan.RequestID
			r.Generate.Prompts, r.Generate.Samples = prompts, samples
			r.Generate.Sampling.Stop, r.Generate.Sampling.MinTokens, r.Generate.Sampling.Logprobs = []string{"z"}, 5, 0
			r.Generate.Sampling.StopIDs = []uint32{9}
		})
	}
	prefill, decode = leg(engine.LegPrefill), leg(engine.LegDecode)
	decode.Generate.Sampling.Logprobs = -1
	return prefill, decode
}

func handedOver(n int) string {
	return fmt.Sprintf(`{"do_remote_prefill": true,"remote_block_ids":[[%d]],"remote_engine_id":"e","remote_host":"h","remote_port":5600,"tp_size":1}`, n)
}

// The hand-off of one sequence, verbatim; the prefill is asked for one token whatever the
// client asked for, and nothing but its limit may end it.
func TestPairOverNIXL(t *testing.T) {
	plan, err := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0,1,2]}`)
	if err != nil || plan.Shape != engine.PrefillFirst {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	prefill, decode := legs(plan, [][]uint32{{0, 1, 2}}, 1)
	p := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		c := complete(0, "length", 0)
		c.GetComplete().KvTransferParamsJson = proto.String(handedOver(1))
		return s.Send(c)
	}}
	got := callAndRead(t.Context(), p.start(t), prefill)
	if got.err != nil || got.status != 200 || got.prompt != 3 {
		t.Fatalf("prefill: %+v", got)
	}
	if u, ok := openai.ReadUsage([]byte(got.raw)); !ok || u.CachedTokens != 1 {
		t.Errorf("the prefill's usage is %+v", u)
	}
	asked := p.requests()[0]
	sp := asked.SamplingParams
	if sp.GetMaxTokens() != 1 || sp.MinTokens != 0 || len(sp.Stop) != 0 || len(sp.StopTokenIds) != 0 || !sp.IgnoreEos || sp.Logprobs != nil || sp.N != 1 || asked.Stream {
		t.Errorf("the prefill was asked %v", sp)
	}
	if k := asked.GetKvTransferParamsJson(); !strings.Contains(k, `"do_remote_decode":true`) {
		t.Errorf("the prefill's kv_transfer_params are %s", k)
	}
	decode.HandOff, err = plan.Legs.HandOff([]byte(got.raw))
	if err != nil || string(decode.HandOff) != handedOver(1) {
		t.Fatalf("the hand-off is %s, %v", decode.HandOff, err)
	}
	d := &mock{generate: answer(complete(0, "length", 3))}
	if got := callAndRead(t.Context(), d.start(t), decode); got.text[0] != "d" {
		t.Errorf("decode: %+v", got)
	}
	if got := callAndRead(t.Context(), d.start(t), decode); !strings.Contains(got.raw, `"id":"cmpl-req"`) {
		t.Errorf("the client's answer is called otherwise than the request: %s", got.raw)
	}
	told := d.requests()[0]
	if told.GetKvTransferParamsJson() != handedOver(1) || told.RequestId != asked.RequestId || told.SamplingParams.GetMaxTokens() != 100 {
		t.Errorf("decode was asked %v", told)
	}
}

// Blocks can be fetched once: each sample of each prompt has a prefill and a decode of its own.
func TestPairForSeveralSequences(t *testing.T) {
	plan, err := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[[0],[1]],"n":3}`)
	if err != nil || plan.Shape != engine.PrefillFirst {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	prompts := [][]uint32{{0}, {1}}
	prefill, decode := legs(plan, prompts, 3)
	id := func(r *vllmpb.GenerateRequest) string { return r.RequestId }
	p := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		c := complete(0, "length", 0)
		if !strings.HasSuffix(r.RequestId, "-4") { // of the fifth sequence there is nothing to hand over
			c.GetComplete().KvTransferParamsJson = proto.String(strings.Replace(handedOver(int(r.GetTokenized().InputIds[0])), `"e"`, `"`+id(r)+`"`, 1))
		}
		return s.Send(c)
	}}
	got := callAndRead(t.Context(), p.start(t), prefill)
	if got.err != nil || got.status != 200 {
		t.Fatalf("prefill: %+v", got)
	}
	if u, ok := openai.ReadUsage([]byte(got.raw)); !ok || u.CachedTokens != 2 || got.prompt != 6 { // of each prompt once
		t.Errorf("the prefill's usage is %+v, %d tokens", u, got.prompt)
	}
	if decode.HandOff, err = plan.Legs.HandOff([]byte(got.raw)); !errors.Is(err, engine.ErrNoHandOff) {
		t.Fatalf("that one sequence has nothing is told as %v", err)
	}
	d := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		k := r.GetKvTransferParamsJson()
		if want := fmt.Sprintf("[[%d]]", r.GetTokenized().InputIds[0]); k != "" && !(strings.Contains(k, want) && strings.Contains(k, `"`+id(r)+`"`)) {
			return errors.New("another sequence's blocks")
		}
		if (k == "") != strings.HasSuffix(id(r), "-4") || r.SamplingParams.N != 1 {
			return errors.New("what is handed over of which sequence")
		}
		return s.Send(complete(0, "length", r.GetTokenized().InputIds[0]))
	}}
	got = callAndRead(t.Context(), d.start(t), decode)
	want := map[int]string{0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
	if got.err != nil || got.status != 200 || fmt.Sprint(got.text) != fmt.Sprint(want) {
		t.Errorf("decode: %+v", got)
	}
	ids := func(m *mock) (list []string) {
		for _, r := range m.requests() {
			list = append(list, r.RequestId)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	if a, b := ids(p), ids(d); len(a) != 6 || !slices.Equal(a, b) {
		t.Errorf("the ids are %q and %q", a, b)
	}
	// The first sample of each prompt was computed before the others.
	for i, r := range p.requests()[:2] {
		if strings.HasSuffix(r.RequestId, "-1") || strings.HasSuffix(r.RequestId, "-2") {
			t.Errorf("prefill %d is of %q", i, r.RequestId)
		}
	}
}

func TestDecodeComputesItselfWhatCannotBeHandedOver(t *testing.T) {
	for body, why := range map[string]engine.Alone{
		`{"prompt":[0],"n":65}`:              engine.AloneSamples,
		`{"prompt":[0],"prompt_logprobs":0}`: engine.AloneSamples,
	} {
		plan, err := pair(t, rank{connector: engine.ConnectorNIXL}, body)
		if err != nil || plan.Shape != engine.DecodeAlone || plan.Why != why {
			t.Errorf("%s: the plan is %+v, %v", body, plan, err)
		}
		_, decode := legs(plan, [][]uint32{{0}}, 2)
		d := &mock{generate: answer(complete(1, "length", 0), complete(0, "length", 0))}
		if got := callAndRead(t.Context(), d.start(t), decode); got.err != nil || len(got.text) != 2 {
			t.Errorf("%s: %+v", body, got)
		}
		if r := d.requests(); len(r) != 1 || r[0].SamplingParams.N != 2 || r[0].KvTransferParamsJson != nil {
			t.Errorf("%s: decode was asked %v", body, r)
		}
	}
	if plan, _ := pair(t, rank{connector: engine.ConnectorNone}, `{"prompt":[0]}`); plan.Shape != engine.DecodeAlone || plan.Why != engine.AloneNoConnector {
		t.Errorf("without a connector the plan is %+v", plan)
	}
}

// With what is not whole a decode engine hangs, or ends.
func TestHandOffIsCheckedBeforeItGoesOn(t *testing.T) {
	plan, _ := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0]}`)
	for params, want := range map[string]error{
		handedOver(1):             nil,
		"null":                    engine.ErrNoHandOff,
		"[]":                      engine.ErrBadHandOff, // the engine's own: it is asked for one
		"[null]":                  engine.ErrBadHandOff,
		"[" + handedOver(1) + "]": engine.ErrBadHandOff,
		`"x"`:                     engine.ErrBadHandOff,
		"1":                       engine.ErrBadHandOff,
		"{}":                      engine.ErrBadHandOff,
		strings.Replace(handedOver(1), `"h"`, `""`, 1):                   engine.ErrBadHandOff,
		strings.Replace(handedOver(1), `"h"`, `7`, 1):                    engine.ErrBadHandOff,
		strings.Replace(handedOver(1), `"remote_engine_id":"e",`, "", 1): engine.ErrBadHandOff,
		strings.Replace(handedOver(1), `5600`, `"5600"`, 1):              engine.ErrBadHandOff,
		strings.Replace(handedOver(1), `[[1]]`, `null`, 1):               engine.ErrBadHandOff,
	} {
		got, err := plan.Legs.HandOff([]byte(`{"kv_transfer_params":` + params + `}`))
		if !errors.Is(err, want) || want == nil && string(got) != params {
			t.Errorf("%s: got %s, %v; want %v", params, got, err, want)
		}
	}
	two, _ := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0],"n":2}`)
	for params, want := range map[string]error{
		"[null,null]": engine.ErrNoHandOff,
		"[1,2]":       engine.ErrBadHandOff,
		"[[],[]]":     engine.ErrBadHandOff,
		"[" + handedOver(1) + "," + handedOver(2) + "]":                                    nil,
		"[" + handedOver(1) + "," + strings.Replace(handedOver(2), `"h"`, `null`, 1) + "]": engine.ErrBadHandOff,
		"[" + handedOver(1) + ",null]":                                                     engine.ErrNoHandOff, // and that of one
	} {
		got, err := two.Legs.HandOff([]byte(`{"kv_transfer_params":` + params + `}`))
		if some := strings.Contains(params, `"h"`) && want != engine.ErrBadHandOff; !errors.Is(err, want) || some && string(got) != params {
			t.Errorf("two: %s: got %s, %v; want %v", params, got, err, want)
		}
	}
	if _, err := plan.Legs.HandOff([]byte(`{}`)); !errors.Is(err, engine.ErrNoHandOff) {
		t.Errorf("without any: %v", err)
	}
	// Neither an object nor nothing: it must not spoil the answer that it is put into, nor be
	// taken for what several sequences hand over.
	for bad, want := range map[string]error{
		"{": engine.ErrBadHandOff, "nonsense": engine.ErrBadHandOff, "}": engine.ErrBadHandOff, "[]": engine.ErrBadHandOff,
		"[" + handedOver(1) + "]": engine.ErrBadHandOff, "[null]": engine.ErrBadHandOff, "null": engine.ErrNoHandOff, "": engine.ErrNoHandOff,
	} {
		m := &mock{generate: func(_ *vllmpb.GenerateRequest, s sender) error {
			c := complete(0, "length", 0)
			c.GetComplete().KvTransferParamsJson = proto.String(bad)
			return s.Send(c)
		}}
		prefill, _ := legs(plan, [][]uint32{{0}}, 1)
		got := callAndRead(t.Context(), m.start(t), prefill)
		if _, err := plan.Legs.HandOff([]byte(got.raw)); !errors.Is(err, want) || got.err != nil {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

// A decode that could not fetch the blocks is nobody's failure but the link's.
func TestDecodeThatCouldNotFetch(t *testing.T) {
	plan, _ := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0]}`)
	for _, handOff := range []bool{true, false} {
		for _, stream := range []bool{true, false} {
			m := &mock{generate: answer(complete(0, "error"))}
			_, decode := legs(plan, [][]uint32{{0}}, 1)
			if decode.Generate.Stream = stream; handOff {
				decode.HandOff = []byte(handedOver(1))
			}
			got := callAndRead(t.Context(), m.start(t), decode)
			if got.status != 500 || (Dialect{}).TransferFailure(got.status, []byte(got.raw)) != handOff {
				t.Errorf("handed over %t: %+v", handOff, got)
			}
		}
	}
}

// Where the engines move the cache by themselves a prompt is prefilled once, whatever the samples.
func TestPrefillOfEnginesThatMoveTheCacheThemselves(t *testing.T) {
	plan, err := pair(t, rank{connector: engine.ConnectorLMCache}, `{"prompt":[[0],[1]],"n":3}`)
	if err != nil || plan.Shape != engine.PrefillFirst {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	prefill, decode := legs(plan, [][]uint32{{0}, {1}}, 3)
	p := &mock{generate: answer(complete(0, "length", 0))}
	got := callAndRead(t.Context(), p.start(t), prefill)
	if got.status != 200 || len(p.requests()) != 2 || got.prompt != 6 {
		t.Errorf("%d prefills: %+v", len(p.requests()), got)
	}
	if decode.HandOff, err = plan.Legs.HandOff([]byte(got.raw)); err != nil || decode.HandOff != nil {
		t.Errorf("the hand-off is %s, %v", decode.HandOff, err)
	}
	d := &mock{generate: answer(complete(0, "length", 0), complete(1, "length", 0), complete(2, "length", 0))}
	if got := callAndRead(t.Context(), d.start(t), decode); len(got.text) != 6 || len(d.requests()) != 2 {
		t.Errorf("%d decodes: %+v", len(d.requests()), got)
	}
}

// Of several hand-offs the first may be too old when the last is there.
func TestOldHandOffsAreLeftOut(t *testing.T) {
	now := time.Now()
	p := prefilled{params: [][]byte{[]byte(handedOver(1)), []byte(handedOver(2))}, at: []time.Time{now.Add(-maxHandOffAge - time.Second), now}}
	if got, _ := openai.RawField(p.json(), "kv_transfer_params"); string(got) != "[null,"+handedOver(2)+"]" {
		t.Errorf("handed over: %s", got)
	}
	p.params, p.at = p.params[:1], p.at[:1] // one alone is as old as its answer
	if got, _ := openai.RawField(p.json(), "kv_transfer_params"); string(got) != handedOver(1) {
		t.Errorf("handed over: %s", got)
	}
}

func TestPrefillThatFails(t *testing.T) {
	plan, _ := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0]}`)
	prefill, _ := legs(plan, [][]uint32{{0}}, 1)
	for _, reason := range []string{"error", "abort"} {
		m := &mock{generate: answer(complete(0, reason))}
		if got := callAndRead(t.Context(), m.start(t), prefill); got.status != 500 {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	for name, list := range map[string][]*vllmpb.GenerateResponse{
		"no end": nil, "two ends": {complete(0, "length", 0), complete(0, "length", 0)}, "another sequence": {complete(1, "length", 0)}, "a chunk": {chunk(0, 0)},
	} {
		m := &mock{generate: answer(list...)}
		if got := callAndRead(t.Context(), m.start(t), prefill); !got.malformed() {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Mooncake's legs are sent together and told one transfer id a sequence.
func TestPairOverMooncake(t *testing.T) {
	plan, err := pair(t, rank{engine.ConnectorMooncake, &engine.MooncakePeer{EngineIDs: []string{"eng"}}}, `{"prompt":[0],"n":2}`)
	if err != nil || plan.Shape != engine.Together {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	prefill, decode := legs(plan, [][]uint32{{0}}, 2)
	p, d := &mock{generate: answer(complete(0, "length", 0))}, &mock{generate: answer(complete(0, "length", 0))}
	if got := callAndRead(t.Context(), p.start(t), prefill); got.status != 200 {
		t.Fatalf("prefill: %+v", got)
	}
	if got := callAndRead(t.Context(), d.start(t), decode); got.status != 200 {
		t.Fatalf("decode: %+v", got)
	}
	transfers := func(m *mock) (list []string) {
		for _, r := range m.requests() {
			id, ok := openai.RawField([]byte(r.GetKvTransferParamsJson()), "transfer_id")
			if !ok {
				t.Fatalf("no transfer id in %s", r.GetKvTransferParamsJson())
			}
			list = append(list, string(id))
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	if a, b := transfers(p), transfers(d); len(a) != 2 || !slices.Equal(a, b) {
		t.Errorf("the transfer ids are %q and %q", a, b)
	}
	if k := d.requests()[0].GetKvTransferParamsJson(); !strings.Contains(k, `"remote_engine_id":"eng"`) || !strings.Contains(k, `"remote_bootstrap_addr":"http://10.0.0.1:8998"`) {
		t.Errorf("decode's params are %s", k)
	}
}

// What a prefill says is looked at as closely as what a decode says, and its call is cancelled.
func TestPrefillsThatBreakTheRules(t *testing.T) {
	for name, list := range map[string][]*vllmpb.GenerateResponse{
		"ends twice":               {complete(0, "length", 0), complete(0, "length", 0)},
		"no end":                   nil,
		"sequence not asked for":   {complete(1, "length", 0)},
		"id beyond the vocabulary": {complete(0, "length", vocabulary)},
		"more than asked for":      {complete(0, "length", 0, 0)},
		"chunk":                    {chunk(0, 0)},
		"no reason":                {complete(0, "", 0)},
		"endless reason":           {complete(0, strings.Repeat("a", 65), 0)},
		"empty message":            {{}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, _ := pair(t, rank{connector: engine.ConnectorNIXL}, `{"prompt":[0]}`)
			prefill, _ := legs(plan, [][]uint32{{0}}, 1)
			ended := make(chan struct{})
			m := &mock{generate: func(_ *vllmpb.GenerateRequest, s sender) error {
				defer close(ended)
				if err := send(s, list...); err != nil || list == nil {
					return err
				}
				<-s.Context().Done()
				return nil
			}}
			if got := callAndRead(t.Context(), m.start(t), prefill); !got.malformed() {
				t.Errorf("got %+v", got)
			}
			soon(t, ended, "the end of the call")
		})
	}
}
