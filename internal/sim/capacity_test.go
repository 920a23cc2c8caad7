package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Both KV pools can fill up, and the information routes and metrics show it.
func TestFullKVPoolsAreReported(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{KVTokens: 1000, PageSize: 64, MaxRunning: 8}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	const whole = 15 * 64 // 1000 tokens in whole pages of 64
	for _, w := range []*Worker{p, d} {
		if r := w.Ranks()[0]; r.KVCapacity != whole || r.Pages() != 15 {
			t.Errorf("%s: %+v", w.ID(), r)
		}
	}
	read := func(w *Worker) map[string]any {
		var v struct{ Loads []map[string]any }
		if err := json.Unmarshal([]byte(get(ctx, c, w.URL()+"/v1/loads").body), &v); err != nil {
			t.Fatal(err)
		}
		return v.Loads[0]
	}
	// Long outputs fill decode: 3 tokens of prompt and 400 of output are 7 pages.
	d.SetTiming(Timing{DecodeStep: time.Hour})
	gone, leave := context.WithCancel(ctx)
	body := func() string { return strings.Replace(pd(p, room(), ""), `"max_tokens":3`, `"max_tokens":400`, 1) }
	done := make(chan reply, 8)
	for range 3 {
		b := body()
		go func() { post(gone, c, p.URL()+chatPath, b); done <- reply{} }()
		go func() { done <- post(gone, c, d.URL()+chatPath, b) }()
	}
	if err := d.Wait(ctx, func(s Stats) bool { return s.Decoding == 2 && s.Prealloc == 1 && s.KVTokens == 14*64 }); err != nil {
		t.Fatal(err)
	}
	l := read(d)
	if l["num_used_tokens"] != 896.0 || l["max_total_num_tokens"] != 960.0 || math.Abs(l["token_usage"].(float64)-896.0/960) > 1e-9 ||
		l["num_running_reqs"] != 2.0 || l["disaggregation"].(map[string]any)["decode_prealloc_queue_reqs"] != 1.0 {
		t.Errorf("loads %v", l)
	}
	m := get(ctx, c, d.URL()+"/metrics").body
	for _, want := range []string{"kv_available_tokens", "kv_used_tokens", "max_total_num_tokens"} {
		value := map[string]string{"kv_available_tokens": "64", "kv_used_tokens": "896", "max_total_num_tokens": "960"}[want]
		if !strings.Contains(m, `tp_rank="0"} `+value+"\n# TYPE") {
			t.Errorf("metrics lack %s %s in %s", want, value, m)
		}
	}
	if err := p.Wait(ctx, func(s Stats) bool { return s.Bootstrap == 1 }); err != nil {
		t.Fatal(err)
	}
	leave()
	for range 6 {
		<-done
	}
	for _, w := range []*Worker{p, d} {
		if err := w.Wait(ctx, func(s Stats) bool { return s.Inflight == 0 && s.KVTokens == 0 }); err != nil {
			t.Error(err)
		}
	}
	if r := d.Ranks()[0]; r.PeakKVTokens != 896 || d.Stats().PeakKVTokens != 896 {
		t.Errorf("peak: %+v", r)
	}
	d.ResetLog()
	if r := d.Ranks()[0]; r.PeakKVTokens != 0 {
		t.Errorf("peak after the reset: %+v", r)
	}

	// A test can fill prefill's pool with HoldKV: the prompt then waits for memory.
	d.SetTiming(Timing{})
	free, err := p.HoldKV(ctx, 0, 950)
	if err != nil {
		t.Fatal(err)
	}
	if l := read(p); l["num_used_tokens"] != 960.0 || l["token_usage"] != 1.0 {
		t.Errorf("loads %v", l)
	}
	b := pd(p, room(), "")
	go func() { done <- post(ctx, c, p.URL()+chatPath, b) }()
	go func() { done <- post(ctx, c, d.URL()+chatPath, b) }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Queued == 1 }); err != nil {
		t.Fatal(err)
	}
	if l := read(p); l["num_waiting_reqs"] != 1.0 || l["num_waiting_uncached_tokens"] == 0.0 {
		t.Errorf("loads %v", l)
	}
	free()
	free()
	for range 2 {
		if r := <-done; r.status != 200 {
			t.Errorf("%+v", r)
		}
	}
	if s := p.Stats(); s.KVTokens != 0 {
		t.Errorf("%+v", s)
	}
	wantViolations(t, f)
}

// A request that needs more pages than the pool has is refused at once.
func TestRequestLargerThanThePoolIsRefused(t *testing.T) {
	for _, backend := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend, KVTokens: 128, PageSize: 64}})
		c, ctx := client(t), testContext(t)
		for n, want := range map[int]int{100: 200, 126: 400} {
			body := fmt.Sprintf(`{"model":"sim-model","prompt":"abcdefgh","max_tokens":%d}`, n)
			if r := post(ctx, c, f.Regular(0).URL()+"/v1/completions", body); r.status != want {
				t.Errorf("%s, %d tokens: %+v", backend, n, r)
			}
		}
	}
}

func TestHoldKVTakesAndGivesBackMemory(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{DPSize: 2, KVTokens: 100}})
	ctx := testContext(t)
	w := f.Regular(0)
	for _, x := range [][2]int{{2, 1}, {-1, 1}, {0, 101}, {0, -1}} {
		if _, err := w.HoldKV(ctx, x[0], x[1]); err == nil {
			t.Errorf("held %d at rank %d", x[1], x[0])
		}
	}
	if _, err := w.HoldKV(ctx, 1, 80); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := w.HoldKV(short, 1, 30); err == nil {
		t.Error("held more than there is")
	}
	waits := make(chan error, 1)
	go func() { _, err := w.HoldKV(ctx, 1, 30); waits <- err }()
	free, err := w.HoldKV(ctx, 0, 30)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.Ranks(); r[0].KVTokens != 30 || r[1].KVTokens != 80 {
		t.Errorf("%+v", r)
	}
	w.Kill()
	if err := <-waits; err == nil {
		t.Error("held memory of a dead worker")
	}
	free()
	if s := w.Stats(); s.KVTokens != 0 {
		t.Errorf("%+v", s)
	}
}

// Short prompts share a batch, a long one takes several, in order of arrival.
func TestPromptsAreComputedInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Worker{opt: WorkerOptions{ChunkedPrefillSize: 100}.withDefaults(Prefill), counts: make([]rankCounts, 1)}
		w.opt.ChunkedPrefillSize = 100
		w.SetTiming(Timing{PrefillStep: time.Second, PrefillRate: 100})
		ctx, cancel := context.WithCancel(context.Background())
		b := newBatcher()
		ended := make(chan struct{})
		began := time.Now()
		type result struct {
			name  string
			after time.Duration
			err   error
		}
		results := make(chan result, 10)
		add := func(ctx context.Context, name string, tokens tokens) {
			go func() {
				s := &sequence{prompt: int(tokens)}
				_, err := w.join(ctx, b, s, tokens)
				w.move(s, none)
				results <- result{name, time.Since(began), err}
			}()
			synctest.Wait() // in this order
		}
		add(ctx, "a", 30)
		add(ctx, "b", 50)
		add(ctx, "long", 150)
		leaving, leave := context.WithCancel(ctx)
		add(leaving, "leaver", 1000)
		add(ctx, "c", 10)
		leave()
		synctest.Wait()
		go func() { w.runBatches(ctx, b, 0); close(ended) }()
		// The batches: a, b and 20 of the long one; 100 of it; its last 30 and c.
		for _, want := range []result{{"leaver", 0, context.Canceled}, {"a", 2 * time.Second, nil}, {"b", 2 * time.Second, nil},
			{"long", 5400 * time.Millisecond, nil}, {"c", 5400 * time.Millisecond, nil}} {
			got := <-results
			if got.after != want.after || got.err != want.err || (got.name != want.name && want.after == 0) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		if n := w.Ranks()[0].PrefillBatches; n != 3 {
			t.Errorf("%d batches", n)
		}
		cancel()
		<-ended
	})
}

// Batches run in a whole fleet, and decode steps get slower with the KV that is held.
func TestBatchesAndCrowdedDecodeInAFleet(t *testing.T) {
	for _, backend := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend, ChunkedPrefillSize: 16,
			Timing: Timing{PrefillStep: time.Microsecond, DecodePerKTokens: time.Microsecond}}})
		c, ctx := client(t), testContext(t)
		body := fmt.Sprintf(`{"model":"sim-model","prompt":%q,"max_tokens":2}`, strings.Repeat("word", 100))
		if r := post(ctx, c, f.Regular(0).URL()+"/v1/completions", body); r.status != 200 {
			t.Errorf("%+v", r)
		}
		if r := f.Regular(0).Ranks()[0]; r.PrefillBatches != 7 || r.KVTokens != 0 {
			t.Errorf("%s: %+v", backend, r)
		}
		if err := f.Regular(0).Restart(); err != nil {
			t.Fatal(err)
		}
	}
	if d := (Timing{DecodeStep: 6, DecodePerRequest: 2, DecodePerKTokens: 10}).step(3, 2500); d != 6+6+25 {
		t.Errorf("a step takes %d", d)
	}
}
