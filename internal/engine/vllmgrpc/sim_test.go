package vllmgrpc

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/grpcchannel"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/upstream"
)

// pairSim is a simulated pair of engines and one that runs requests whole.
type pairSim struct {
	fleet                  *sim.Fleet
	prefill, decode, whole *upstream.Endpoint
	model                  *textmodel.Model
	rank                   rank
}

func startSim(t *testing.T) *pairSim {
	t.Helper()
	f, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM, GRPC: true, TransferTimeout: 50 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	to := func(w *sim.Worker) *upstream.Endpoint {
		ep, err := upstream.NewEndpoint(upstream.Config{URL: "grpc://" + w.Addr(), OpenChannel: grpcchannel.Open})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ep.Close)
		return ep
	}
	s := &pairSim{fleet: f, prefill: to(f.Prefill(0)), decode: to(f.Decode(0)), whole: to(f.Regular(0))}
	facts := all().Speaking("grpc").ReadFacts(t.Context(), ask(s.prefill), nil)
	if facts.Backend != "vllm-grpc" || len(facts.Warnings) != 0 {
		t.Fatalf("the facts are %+v", facts)
	}
	s.rank = rank{connector: facts.Connector}
	archive, digest, err := Dialect{}.Bundle(t.Context(), s.prefill, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	if s.model, err = textmodel.FromZip(archive, digest); err != nil {
		t.Fatal(err)
	}
	return s
}

// request is one for the text, of 24 tokens.
func (s *pairSim) request(t *testing.T, text string, edit func(*engine.Request)) *engine.Request {
	ids, err := s.model.Encode(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return request(func(r *engine.Request) {
		g := r.Generate
		g.Prompts, g.Tokenizer, g.Vocab, g.EOS, g.Context = [][]uint32{ids}, s.model.Tokenizer(), s.model.VocabSize(), s.model.EOS(), s.model.Context()
		g.Stream, g.Sampling.MaxTokens = true, 24
		if edit != nil {
			edit(r)
		}
	})
}

// legs run a request as a pair; change may change what is handed over.
func (s *pairSim) legs(t *testing.T, text string, edit func(*engine.Request), change func([]byte) []byte) (prefill, decode read) {
	t.Helper()
	p, d := s.request(t, text, edit), s.request(t, text, edit)
	body := fmt.Sprintf(`{"prompt":[1],"n":%d}`, p.Generate.Samples)
	plan, err := pair(t, s.rank, body)
	if err != nil || plan.Shape != engine.PrefillFirst {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	for _, r := range []*engine.Request{p, d} {
		r.Legs, r.ID = plan.Legs, plan.RequestID
	}
	p.Leg, d.Leg = engine.LegPrefill, engine.LegDecode
	if prefill = callAndRead(t.Context(), s.prefill, p); prefill.err != nil || prefill.status != 200 {
		return prefill, read{}
	}
	if d.HandOff, err = plan.Legs.HandOff([]byte(prefill.raw)); err != nil {
		t.Fatalf("%v in %s", err, prefill.raw)
	}
	if change != nil {
		d.HandOff = change(d.HandOff)
	}
	return prefill, callAndRead(t.Context(), s.decode, d)
}

const prompt = "the quick brown fox jumps over the lazy dog and runs away from the hounds of the hunt in the woods "

func TestPairOfSimulatedEnginesGivesTheSameText(t *testing.T) {
	s := startSim(t)
	whole := callAndRead(t.Context(), s.whole, s.request(t, prompt, nil))
	if whole.err != nil || len(whole.text[0]) == 0 || whole.finish[0] == "" {
		t.Fatalf("whole: %+v", whole)
	}
	_, got := s.legs(t, prompt, nil, nil)
	if got.err != nil || got.text[0] != whole.text[0] || got.finish[0] != whole.finish[0] {
		t.Errorf("the pair's text is %q, %q, %v; want %q", got.text[0], got.finish[0], got.errors, whole.text[0])
	}
	if n := s.fleet.Violated(); n != 0 {
		t.Errorf("the engines saw %d violations: %+v", n, s.fleet.Violations())
	}
	// Several samples.
	two := func(r *engine.Request) { r.Generate.Samples = 2 }
	if _, got := s.legs(t, prompt, two, nil); got.err != nil || len(got.text) != 2 || got.finish[1] == "" {
		t.Errorf("two samples: %+v", got)
	}
	if n := s.fleet.Violated(); n != 0 {
		t.Errorf("with two samples the engines saw %+v", s.fleet.Violations())
	}
}

// Blocks of an engine that is none any more: status OK, and no token.
func TestSimulatedDecodeThatCannotFetch(t *testing.T) {
	s := startSim(t)
	_, got := s.legs(t, prompt, nil, func(b []byte) []byte {
		f := strings.Index(string(b), `"remote_engine_id"`)
		end := f + len(`"remote_engine_id"`) + strings.IndexAny(string(b[f+len(`"remote_engine_id"`):]), ",}")
		return slices.Concat(b[:f], []byte(`"remote_engine_id":"other"`), b[end:])
	})
	if got.status != 500 || !(Dialect{}).TransferFailure(got.status, []byte(got.raw)) {
		t.Errorf("got %+v", got)
	}
}

func TestSimulatedEngineIsReadOverAndOver(t *testing.T) {
	s := startSim(t)
	d := Dialect{}
	w := s.fleet.Prefill(0)
	facts := all().Speaking("grpc").ReadFacts(t.Context(), ask(s.prefill), nil)
	if d.Changed(t.Context(), ask(s.prefill), facts) {
		t.Error("it changed without a change")
	}
	for _, path := range []string{d.HealthPath(""), d.AlivePath()} {
		if status, body, err := ask(s.prefill)(t.Context(), engine.Question{Path: path}); err != nil || status != 200 || d.ReadHealth(path, body) != nil {
			t.Errorf("%s: %d, %v, %v", path, status, err, d.ReadHealth(path, body))
		}
	}
	if status, body, err := ask(s.prefill)(t.Context(), engine.Question{Path: d.LoadsPath()}); err != nil || status != 200 {
		t.Errorf("load: %d, %v", status, err)
	} else if l, err := d.ReadLoads(body); err != nil || len(l.Ranks) != 1 {
		t.Errorf("load: %+v, %v", l, err)
	}
	ids, err := d.Tokenize(t.Context(), s.prefill, "the quick fox")
	want, _ := s.model.Encode(t.Context(), "the quick fox")
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("the engine tokenises as %v, %v; want %v", ids, err, want)
	}
	w.EndEngine()
	for _, path := range []string{d.HealthPath(""), d.AlivePath()} {
		if status, body, err := ask(s.prefill)(t.Context(), engine.Question{Path: path}); err != nil || status == 200 && d.ReadHealth(path, body) == nil {
			t.Errorf("%s of a process whose engine is dead: %d, %v", path, status, err)
		}
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for !d.Changed(t.Context(), ask(s.prefill), facts) {
		if time.Now().After(deadline) {
			t.Fatal("another engine at the address is no change")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestSimulatedEngineThatDiesInTheMiddle(t *testing.T) {
	s := startSim(t)
	s.fleet.Regular(0).SetTiming(sim.Timing{DecodeStep: 5 * time.Millisecond})
	resp, err := Dialect{}.Call(t.Context(), s.whole, s.request(t, prompt, func(r *engine.Request) { r.Generate.Sampling.MaxTokens = 2000 }))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Next(); err != nil {
		t.Fatal(err)
	}
	s.fleet.Regular(0).Kill()
	for err == nil {
		_, err = resp.Body.Next()
	}
	if err == io.EOF || !upstream.EngineFault(err) {
		t.Errorf("the error is %v", err)
	}
}

func TestLeavingFreesASimulatedEngine(t *testing.T) {
	s := startSim(t)
	s.fleet.Regular(0).SetTiming(sim.Timing{DecodeStep: 5 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := Dialect{}.Call(ctx, s.whole, s.request(t, prompt, func(r *engine.Request) { r.Generate.Sampling.MaxTokens = 2000 }))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	wait, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := s.fleet.Regular(0).WaitIdle(wait); err != nil {
		t.Errorf("the engine still works: %v", err)
	}
}
