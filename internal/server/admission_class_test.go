package server

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/sim"
)

// The class of a request is that of its header: a class by its name, a family by
// the size of the prompt, and the default family for names that do not exist.
func TestClassOfARequest(t *testing.T) {
	cs := &admission.Classes{Root: &admission.Profile{
		DefaultFamily: "standard", Buckets: []admission.Bucket{{Name: "short"}, {MinTokens: 100, Name: "long"}},
		Classes: []admission.Class{
			{Name: "standard-short", Family: "standard", Bucket: "short", Quantum: 1}, {Name: "standard-long", Family: "standard", Bucket: "long", Quantum: 1},
			{Name: "batch-short", Family: "batch", Bucket: "short", Quantum: 1}, {Name: "batch-long", Family: "batch", Bucket: "long", Quantum: 1},
			{Name: "urgent", Quantum: 1},
		},
	}}
	r := startClasses(t, cs, nil)
	const old, own = classify.HeaderClass, classify.HeaderClassAlias
	unknown := 0
	for _, tc := range []struct {
		tokens  int
		headers []string
		want    string
		unknown bool
	}{
		{99, nil, "standard-short", false},
		{100, nil, "standard-long", false},
		{99, []string{own, "batch"}, "batch-short", false},
		{500, []string{old, "batch"}, "batch-long", false},
		{500, []string{old, "urgent"}, "urgent", false},
		{500, []string{old, "urgent", own, "urgent"}, "urgent", false},
		{10, []string{own, "nobody-knows-it"}, "standard-short", true},
		{100, []string{own, "not a name\x80"}, "standard-long", true},
		{10, []string{own, "batch-long"}, "standard-short", true}, // a cell of the matrix is reached by its family
	} {
		series := fmt.Sprintf("sluice_admission_received_total{class=%q}", tc.want)
		before := r.metric(series)
		if a := r.do("POST", completions, promptOf(tc.tokens, ""), tc.headers...); a.status != 200 {
			t.Errorf("%v: status %d: %s", tc.headers, a.status, a.body)
		}
		if got := r.metric(series) - before; got != 1 {
			t.Errorf("%d tokens, headers %q: %v requests in class %s, want 1", tc.tokens, tc.headers, got, tc.want)
		}
		if tc.unknown {
			unknown++
		}
	}
	if got := r.admission().Unknown; got != uint64(unknown) {
		t.Errorf("%d unknown names, want %d", got, unknown)
	}
	if page := r.metricsPage(); strings.Contains(page, "nobody") || strings.Contains(page, "not a name") {
		t.Error("what a client named stands in the metrics")
	}
	if a := r.do("POST", completions, promptOf(1, ""), own, "batch", old, "urgent"); a.status != 400 {
		t.Errorf("two classes: status %d: %s", a.status, a.body)
	}
}

// A class that never queues is refused by a full pool, the decode pool like the
// prefill pool, and the answer tells which class, which bound and when to come
// again; with status 529 where that is asked for.
func TestNeverQueuesIsRefusedByBothPools(t *testing.T) {
	for _, overload := range []int{429, 529} {
		r := startClasses(t, classes(
			admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5), PrefillBusyTokens: ptr(int64(50))},
			admission.Class{Name: "never", DecodeBusyFrac: ptr(0.5), PrefillBusyTokens: ptr(int64(50)), RequestLimitPerWorker: ptr(0.0)},
			admission.Class{Name: "prefill-only", PrefillBusyTokens: ptr(int64(50)), RequestLimitPerWorker: ptr(0.0)},
		), func(s *setup) { s.cfg.Admission.OverloadStatus = overload })
		if c := r.class("never"); !c.Never || r.class("normal").Never {
			t.Errorf("never_queues of %+v", c)
		}
		check := func(resource string) {
			t.Helper()
			a := r.do("POST", completions, promptOf(200, ""), class("never")...)
			v := a.refusal(t, overload, "policy_class_queue_full")
			if e := v.Error.Admission; e.Resource != resource || e.Class != "never" || e.Gate != "prefill" || e.QueueDepth != 0 {
				t.Errorf("admission %+v, want %s", e, resource)
			}
			if d := v.Error.Details; d == nil || d.PolicyClass != "never" || d.LimitKind != "requests" || d.Limit != 0 || d.Current != 0 {
				t.Errorf("details %+v", d)
			}
		}
		full := r.block(r.sim.Decode(0), 400) // 40 of 50 blocks
		check("decode_blocks")
		if a := r.do("POST", completions, promptOf(200, ""), class("prefill-only")...); a.status != 200 {
			t.Errorf("a class without a decode fraction looks at decode: status %d: %s", a.status, a.body)
		}
		full.leave()
		r.waitFor("room", func() bool { return r.rank("decode").ActiveBlocks+r.rank("decode").PendingBlocks == 0 })
		if a := r.do("POST", completions, promptOf(200, ""), class("never")...); a.status != 200 {
			t.Errorf("with room: status %d: %s", a.status, a.body)
		}
		full = r.block(r.sim.Prefill(0), 51)
		check("prefill_tokens")
		full.leave()
		for name, want := range map[string]float64{
			`sluice_admission_rejections_total{class="never",reason="policy_class_queue_full"}`:  2,
			`sluice_admission_rejections_total{class="normal",reason="policy_class_queue_full"}`: 0,
		} {
			if got := r.metric(name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
}

// A class's limits bound what waits in it, and its answer says which one did; the
// request that crosses a limit still enters.
func TestClassLimits(t *testing.T) {
	gate := ptr(int64(0)) // busy with any token in prefill
	r := startClasses(t, classes(
		admission.Class{Name: "normal", PrefillBusyTokens: gate},
		admission.Class{Name: "two", PrefillBusyTokens: gate, RequestLimitPerWorker: ptr(2.0)},
		admission.Class{Name: "tokens", PrefillBusyTokens: gate, RawTokenLimitPerWorker: ptr(100.0)},
	), nil)
	full := r.block(r.sim.Prefill(0), 10)
	var waiting []*flight
	for i := range 2 {
		waiting = append(waiting, r.fly(promptOf(60, ""), class("two")...))
		r.waitDepth("two", i+1)
		waiting = append(waiting, r.fly(promptOf(60, ""), class("tokens")...))
		r.waitDepth("tokens", i+1)
	}
	for name, want := range map[string][3]any{"two": {"requests", int64(2), int64(2)}, "tokens": {"raw_isl_tokens", int64(120), int64(100)}} {
		a := r.do("POST", completions, promptOf(1, ""), class(name)...)
		v := a.refusal(t, 429, "policy_class_queue_full")
		if d := v.Error.Details; d == nil || d.PolicyClass != name || d.LimitKind != want[0] || d.Current != want[1] || d.Limit != want[2] {
			t.Errorf("class %s: details %+v, want %v", name, d, want)
		}
		if e := v.Error.Admission; e.QueueDepth != 2 || e.Class != name {
			t.Errorf("class %s: admission %+v", name, e)
		}
	}
	if c := r.class("tokens"); c.RawTokens != 120 || c.Depth != 2 || c.HeadMS > c.OldestMS {
		t.Errorf("class %+v", c)
	}
	full.leave()
	for _, f := range waiting {
		f.good(t)
	}
}

// A wait ends with the class's longest one, or with the client's, which the
// configuration bounds from both sides.
func TestDeadlinesOnTheWire(t *testing.T) {
	gate := ptr(int64(0))
	r := startClasses(t, classes(
		admission.Class{Name: "normal", PrefillBusyTokens: gate},
		admission.Class{Name: "brief", PrefillBusyTokens: gate, MaxWait: 60 * time.Millisecond},
	), func(s *setup) {
		s.cfg.Admission.ClientQueueMin, s.cfg.Admission.ClientQueueMax = 40*time.Millisecond, 80*time.Millisecond
	})
	full := r.block(r.sim.Prefill(0), 10)
	const own = classify.HeaderMaxQueue
	for _, tc := range []struct {
		name    string
		headers []string
		atLeast int
		limit   string
	}{
		{"class", class("brief"), 60, "60ms"},
		{"client", []string{own, "50"}, 50, "50ms"},
		{"client, bounded below", []string{own, "0"}, 40, "40ms"},
		{"client, bounded above", []string{own, "86400000"}, 80, "80ms"},
		{"the earlier counts", append(class("brief"), own, "45"), 45, "45ms"},
	} {
		a := r.do("POST", completions, promptOf(1, ""), tc.headers...)
		v := a.refusal(t, 429, "queue_deadline_exceeded")
		ms, err := strconv.Atoi(a.header.Get(dispatch.HeaderQueueMS))
		if err != nil || ms < tc.atLeast || !strings.Contains(v.Error.Message, tc.limit) {
			t.Errorf("%s: waited %s ms, want at least %d: %s", tc.name, a.header.Get(dispatch.HeaderQueueMS), tc.atLeast, a.body)
		}
		if v.Error.Admission.Resource != "prefill_tokens" {
			t.Errorf("%s: %+v", tc.name, v.Error.Admission)
		}
	}
	for _, bad := range []string{"-1", "soon", "1.5", "99999999999"} {
		if a := r.do("POST", completions, promptOf(1, ""), own, bad); a.status != 400 {
			t.Errorf("%s: %q: status %d", own, bad, a.status)
		}
	}
	full.leave()
}

// While decode is full nobody's prefill is begun: the request waits in front of
// prefill, the document says for which rank and how far it is from having room,
// and the blocks that come free start it.
func TestDecodeFullWaitsInFrontOfPrefill(t *testing.T) {
	r := startClasses(t, classes(admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5)}), nil)
	full := r.block(r.sim.Decode(0), 400)
	seen := r.sim.Prefill(0).Stats().Requests
	f := r.fly(promptOf(200, ""))
	r.waitDepth("normal", 1)
	c := r.class("normal")
	if c.ClosedBy != "decode_blocks" || c.Fenced || len(c.Short) != 1 {
		t.Fatalf("class %+v", c)
	}
	// 40 blocks are booked, 20 are needed, 50 are allowed.
	if s := c.Short[0]; s.Rank != r.sim.Decode(0).URL() || s.Role != "decode" || s.Resource != "decode_blocks" || s.Short != 10 || s.Of != 50 && s.Of != 100 {
		t.Errorf("short of %+v", s)
	}
	doc := r.admission()
	if doc.Waiting != 1 || doc.Queues[0].ClosedBy != "decode_blocks" || doc.WaitingBytes == 0 {
		t.Errorf("document %+v", doc)
	}
	if d := r.rank("decode"); d.ActiveBlocks+d.PendingBlocks != 40 || d.Capacity.KVBlocks != kvBlocks || d.Capacity.BlockSize != blockTokens {
		t.Errorf("rank %+v", d)
	}
	if n := r.sim.Prefill(0).Stats().Requests; n != seen {
		t.Errorf("prefill got %d requests while decode is full", n-seen)
	}
	full.leave()
	f.good(t)
	if v := r.metric(`sluice_admission_closed_seconds_total{resource="decode_blocks"}`); v <= 0 {
		t.Errorf("it was closed for %v s", v)
	}
	if _, told := r.admission().ClosedMS["decode_blocks"]; !told {
		t.Error("GET /admission does not tell how long it was closed")
	}
}

// A burst cannot overshoot: what is booked for requests that are still in
// prefill counts like what decodes already.
func TestBurstDoesNotOvershootDecode(t *testing.T) {
	r := startClasses(t, classes(admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5)}), func(s *setup) {
		s.sim.Worker.Timing = sim.Timing{PrefillTime: 5 * time.Millisecond, DecodeStep: time.Millisecond}
	})
	var all []*flight
	for range 64 {
		all = append(all, r.fly(promptOf(95, ""))) // 10 blocks with its one token
	}
	for _, f := range all {
		f.good(t)
	}
	if peak := r.sim.Decode(0).Stats().PeakKVTokens; peak == 0 || peak > kvBlocks*blockTokens/2 {
		t.Errorf("at most %d tokens of KV were held, of %d that the class may", peak, kvBlocks*blockTokens/2)
	}
}

// Two classes that both wait share by their quanta.
func TestShareUnderBacklog(t *testing.T) {
	gate := ptr(int64(0))
	r := startClasses(t, classes(
		admission.Class{Name: "gold", Quantum: 512, PrefillBusyTokens: gate},
		admission.Class{Name: "bronze", Quantum: 128, PrefillBusyTokens: gate},
	), nil)
	full := r.block(r.sim.Prefill(0), 10)
	var all []*flight
	for _, name := range []string{"bronze", "gold"} {
		for i := range 50 {
			all = append(all, r.fly(promptOf(64, ""), append(class(name), "X-Request-Id", fmt.Sprintf("%s-%d", name, i))...))
		}
		r.waitDepth(name, 50)
	}
	r.sim.Prefill(0).ResetLog()
	full.leave()
	for _, f := range all {
		f.good(t)
	}
	got := map[string]int{}
	for _, q := range r.sim.Prefill(0).Requests()[:50] {
		name, _, _ := strings.Cut(q.Header.Get("X-Request-Id"), "-")
		got[name]++
	}
	if got["gold"] < 38 || got["gold"] > 42 {
		t.Errorf("of the first 50 to start, %v; want 40 of gold", got)
	}
}

// Slots and classes at once: a request needs both.
func TestBothDesignsTogether(t *testing.T) {
	r := startClasses(t, classes(
		admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5)},
		admission.Class{Name: "plain"},
		admission.Class{Name: "never", RequestLimitPerWorker: ptr(0.0)},
		admission.Class{Name: "one", RequestLimitPerWorker: ptr(1.0)},
	), func(s *setup) {
		s.limits = admission.Limits{PrefillSlots: 1, QueueSize: 3, QueueTimeout: time.Minute}
	})
	full := r.block(r.sim.Prefill(0), 10)
	a := r.do("POST", completions, promptOf(1, ""), class("never")...)
	if v := a.refusal(t, 429, "policy_class_queue_full"); v.Error.Admission.Resource != "prefill_slot" {
		t.Errorf("admission %+v", v.Error.Admission)
	}
	first := r.fly(promptOf(1, ""), class("plain")...)
	r.waitDepth("plain", 1)
	if c := r.class("plain"); c.ClosedBy != "prefill_slot" {
		t.Errorf("class %+v", c)
	}
	second := r.fly(promptOf(1, ""), class("one")...)
	r.waitDepth("one", 1)
	third := r.fly(promptOf(1, ""), class("normal")...)
	r.waitDepth("normal", 1)
	// The class's limit is looked at before the router's.
	r.do("POST", completions, promptOf(1, ""), class("one")...).refusal(t, 429, "policy_class_queue_full")
	v := r.do("POST", completions, promptOf(1, ""), class("normal")...).refusal(t, 429, "pd_prefill_queue_full")
	if v.Error.Admission.QueueDepth != 3 || v.Error.Details != nil {
		t.Errorf("%+v", v.Error)
	}
	full.leave()
	for _, f := range []*flight{first, second, third} {
		f.good(t)
	}
	// The slot is free and decode is full.
	full = r.block(r.sim.Decode(0), 400)
	f := r.fly(promptOf(200, ""), class("normal")...)
	r.waitDepth("normal", 1)
	if c := r.class("normal"); c.ClosedBy != "decode_blocks" {
		t.Errorf("class %+v", c)
	}
	full.leave()
	f.good(t)
}

// Where one worker runs whole requests, both fractions are judged on it.
func TestAggregatedTakesBothFractions(t *testing.T) {
	r := startClasses(t, classes(
		admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5), PrefillBusyFrac: ptr(0.1)}, // of 1000 tokens, of 100 blocks
		admission.Class{Name: "never", DecodeBusyFrac: ptr(0.5), RequestLimitPerWorker: ptr(0.0)},
	), func(s *setup) { s.sim.Regular = 1 })
	w := r.sim.Regular(0)
	full := r.block(w, 101)
	f := r.fly(promptOf(10, ""))
	r.waitDepth("normal", 1)
	if c := r.class("normal"); c.ClosedBy != "prefill_tokens" || len(c.Short) != 1 || c.Short[0].Role != "regular" {
		t.Errorf("class %+v", c)
	}
	full.leave()
	f.good(t)

	full = r.block(w, 450)
	v := r.do("POST", completions, promptOf(100, ""), class("never")...).refusal(t, 429, "policy_class_queue_full")
	if e := v.Error.Admission; e.Resource != "decode_blocks" || e.Gate != "regular" {
		t.Errorf("admission %+v", e)
	}
	full.leave()
}

// Output that is reserved is booked with the grant; output that is tracked is
// booked as it comes.
func TestOutputBlocksAreReported(t *testing.T) {
	r := startClasses(t, classes(admission.Class{Name: "normal"}), func(s *setup) {
		s.cfg.Admission.ReserveOutputTokens = 50
		s.cfg.Admission.TrackOutputBlocks = true
		s.sim.Worker.Timing = sim.Timing{DecodeStep: time.Millisecond}
	})
	full := r.block(r.sim.Prefill(0), 100)
	if d := r.rank("decode"); d.ActiveBlocks+d.PendingBlocks != 15 {
		t.Errorf("%d blocks for 100 tokens and 50 in reserve, want 15", d.ActiveBlocks+d.PendingBlocks)
	}
	full.leave()
	r.waitFor("nothing held", func() bool { return r.rank("decode").ActiveBlocks+r.rank("decode").PendingBlocks == 0 })

	body := strings.Replace(promptOf(100, `,"stream":true`), `"max_tokens":1,`, `"max_tokens":800,`, 1)
	f := r.fly(body)
	r.waitFor("blocks of output", func() bool { return r.rank("decode").ActiveBlocks >= 20 })
	f.leave()
	r.waitFor("nothing held", func() bool { return r.rank("decode").ActiveBlocks+r.rank("decode").PendingBlocks == 0 })
}

// What an answer has beyond what was reserved by itself is booked as it comes, though
// output is not tracked.
func TestOutputBeyondAnAutomaticReservationIsBooked(t *testing.T) {
	r := startClasses(t, classes(admission.Class{Name: "normal"}), func(s *setup) {
		s.cfg.Admission.ReserveOutputTokens, s.cfg.Admission.ReserveOutputCap = config.ReserveAuto, 50
		s.sim.Worker.Timing = sim.Timing{DecodeStep: 10 * time.Millisecond}
	})
	booked := func() int64 { return r.rank("decode").ActiveBlocks + r.rank("decode").PendingBlocks }
	body := strings.Replace(promptOf(100, `,"stream":true`), `"max_tokens":1,`, `"max_tokens":800,`, 1)
	f := r.fly(body)
	r.waitFor("the reservation", func() bool { return booked() >= 15 })
	r.waitFor("blocks beyond it", func() bool { return booked() >= 20 })
	f.leave()
	r.waitFor("nothing held", func() bool { return booked() == 0 })
}

// A rank whose capacity nobody knows is said to be one, and has room for a bounded
// number of requests.
func TestMissingCapacityIsReported(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Worker.Disable = []string{"/server_info", "/get_server_info", "/v1/loads"} })
	r.gate.SetClasses(classes(admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5), PrefillBusyFrac: ptr(0.5)}))
	if a := r.do("POST", completions, promptOf(10, "")); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	for role, want := range map[string]string{"prefill": "max_num_batched_tokens", "decode": "total_kv_blocks"} {
		if k := r.rank(role); len(k.Missing) != 1 || k.Missing[0] != want {
			t.Errorf("%s rank misses %v, want %s", role, k.Missing, want)
		}
	}
	if a := r.do("GET", "/workers", ""); !strings.Contains(a.body, `"missing_capacity":["total_kv_blocks"]`) || !strings.Contains(a.body, `"missing_capacity":["max_num_batched_tokens"]`) {
		t.Errorf("workers %s", a.body)
	}
}
