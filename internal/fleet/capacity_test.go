package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/dialects"
)

func TestCapacity(t *testing.T) {
	type c = admission.Capacity
	all := func(batched, blocks, size, running int64) c {
		return c{MaxBatchedTokens: batched, KVBlocks: blocks, BlockSize: size, MaxRunning: running}
	}
	type want struct {
		dp int
		c
	}
	for _, tc := range []struct {
		name       string
		info, load string
		set        c
		want       []want
	}{
		{"nothing", `{}`, "", c{}, []want{{-1, c{}}, {0, c{}}}},
		{"server_info alone", `{"chunked_prefill_size":8192,"max_prefill_tokens":16384,"page_size":64,"max_running_requests":48,"scheduler_info":{"max_total_num_tokens":64100}}`, "",
			c{}, []want{{-1, all(8192, 1001, 64, 48)}}},
		{"no chunks", `{"chunked_prefill_size":-1,"max_prefill_tokens":16384}`, "", c{}, []want{{-1, c{MaxBatchedTokens: 16384}}}},
		{"loads know better", `{"page_size":1,"max_running_requests":null,"scheduler_info":{"max_total_num_tokens":5}}`,
			`{"loads":[{"dp_rank":0,"max_total_num_tokens":1000,"max_running_requests":32}]}`, c{}, []want{{-1, all(0, 1000, 1, 32)}}},
		{"ranks of their own", `{"dp_size":2,"chunked_prefill_size":4096,"page_size":16}`,
			`{"loads":[{"dp_rank":1,"max_total_num_tokens":3200,"max_running_requests":20},{"dp_rank":0,"max_total_num_tokens":1600,"max_running_requests":10}]}`,
			c{}, []want{{0, all(4096, 100, 16, 10)}, {1, all(4096, 200, 16, 20)}, {-1, all(8192, 300, 16, 30)}}},
		{"states of ranks", `{"dp_size":2,"page_size":16,"internal_states":[{"token_capacity":160,"effective_max_running_requests_per_dp":4},{"memory_usage":{"token_capacity":320},"effective_max_running_requests_per_dp":5}]}`,
			"", c{}, []want{{0, all(0, 10, 16, 4)}, {1, all(0, 20, 16, 5)}, {-1, all(0, 30, 16, 9)}}},
		{"shared out", `{"dp_size":4,"enable_dp_attention":true,"max_running_requests":64}`, "", c{}, []want{{0, c{MaxRunning: 16}}, {-1, c{MaxRunning: 64}}}},
		{"each its own", `{"dp_size":4,"max_running_requests":64}`, "", c{}, []want{{0, c{MaxRunning: 64}}, {-1, c{MaxRunning: 256}}}},
		{"a rank that tells nothing", `{"dp_size":2,"page_size":16}`, `{"loads":[{"dp_rank":0,"max_total_num_tokens":160,"max_running_requests":4}]}`,
			c{}, []want{{0, all(0, 10, 16, 4)}, {1, c{BlockSize: 16}}, {-1, c{BlockSize: 16}}}},
		{"no page size", `{"scheduler_info":{"max_total_num_tokens":1600}}`, "", c{}, []want{{-1, c{KVBlocks: 100, BlockSize: 16}}}},
		{"all set", `{"chunked_prefill_size":8192,"page_size":64,"max_running_requests":48,"scheduler_info":{"max_total_num_tokens":64000}}`, "",
			all(1, 2, 3, 4), []want{{-1, all(1, 2, 3, 4)}, {0, all(1, 2, 3, 4)}}},
		{"the block size set", `{"page_size":1,"scheduler_info":{"max_total_num_tokens":64000}}`, "", c{BlockSize: 32}, []want{{-1, c{KVBlocks: 2000, BlockSize: 32}}}},
		{"the blocks set", `{"page_size":8}`, "", c{KVBlocks: 7}, []want{{-1, c{KVBlocks: 7, BlockSize: 8}}}},
		{"odd", `{"page_size":"16","chunked_prefill_size":1.5,"internal_states":[7,null,{"dp_rank":-1},{"dp_rank":99999,"token_capacity":3}]}`, "", c{}, []want{{-1, c{}}}},
		{"too much", `{"dp_size":1024,"chunked_prefill_size":9007199254740992,"page_size":1,"max_running_requests":9007199254740992,"scheduler_info":{"max_total_num_tokens":9007199254740992}}`,
			"", c{}, []want{{0, all(1<<40, 1<<40, 1, 1<<40)}, {-1, all(1<<50, 1<<50, 1, 1<<50)}}},
	} {
		f := factsOf(map[string]string{"/server_info": tc.info})
		if tc.load != "" {
			l, err := engine.SGLang{}.ReadLoads([]byte(tc.load))
			if err != nil {
				t.Fatal(tc.name, err)
			}
			f.loads = l.Capacities
		}
		for _, w := range tc.want {
			if got := f.capacity(w.dp, tc.set); got != w.c {
				t.Errorf("%s, rank %d: %+v, want %+v", tc.name, w.dp, got, w.c)
			}
		}
	}
}

// factsOf are those of an engine with these answers and no others.
func factsOf(answers map[string]string) *Facts {
	ask := func(_ context.Context, q engine.Question) (int, []byte, error) {
		if a, ok := answers[q.Path]; ok {
			return 200, []byte(a), nil
		}
		return 404, nil, nil
	}
	return &Facts{Facts: *dialects.All().Speaking("http").ReadFacts(context.Background(), ask, nil)}
}

// gateRank is what the gate knows of a rank.
func (b *testbed) gateRank(id string) admission.RankStats {
	b.t.Helper()
	for _, r := range b.gate.Stats().Ranks {
		if r.ID == id {
			return r
		}
	}
	b.t.Errorf("the gate has no rank %s", id)
	return admission.RankStats{}
}

// New facts reach the gate without a new registration: holds stay on the rank.
func TestNewCapacityKeepsHolds(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		first := serves("m")
		first.PageSize, first.MaxTotalTokens = 16, 1600
		b.prober.says(urlA, first)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		held := b.acquire("m")
		if held == nil {
			t.Fatal("no grant")
		}
		rank := w.Ranks()[0].adm
		next := serves("m")
		next.PageSize, next.MaxTotalTokens = 16, 3200
		next.Adapters = []ModelInfo{{ID: "lora", Parent: "m"}}
		b.prober.says(urlA, next)
		b.pass(2 * factsInterval)
		if w.Ranks()[0].adm != rank {
			t.Error("the rank was registered anew")
		}
		s := b.gateRank(urlA)
		if s.Capacity != (admission.Capacity{KVBlocks: 200, BlockSize: 16}) || s.ActiveDecode != 1 {
			t.Errorf("at the gate: %+v", s)
		}
		target := b.gate.Resolve(admission.TargetSpec{Model: "m", Adapter: "lora"})
		if target == nil {
			t.Fatal("no target for the adapter")
		}
		tk := &admission.Ticket{Target: target}
		if err := b.gate.Acquire(t.Context(), tk); err != nil {
			t.Errorf("the adapter's request: %v", err)
		}
		tk.Release()
		held.Release()
		if n := w.Info().Load; n != 0 {
			t.Errorf("load %d", n)
		}
	})
}

// A failure of /v1/loads, which an engine has while it is busy, takes no capacity
// away.
func TestLostLoadsKeepCapacity(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, &Facts{Facts: engine.Facts{PageSize: 16}})
		b.prober.loaded(urlA, &loads{Loads: engine.Loads{Capacities: []engine.RankCapacity{{KVTokens: 1600, MaxRunning: 8}}, Ranks: []RankLoad{{Running: 3}}}})
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		want := admission.Capacity{KVBlocks: 100, BlockSize: 16, MaxRunning: 8}
		if s := b.gateRank(urlA); s.Capacity != want {
			t.Errorf("at the gate: %+v", s.Capacity)
		}
		b.pass(time.Minute)
		if r := w.Info().Ranks[0].Reported; r == nil || r.Running != 3 || r.AgeSeconds > 10 {
			t.Errorf("reported %+v", r)
		}
		b.prober.loaded(urlA, nil)
		b.pass(2 * factsInterval)
		if s := b.gateRank(urlA); s.Capacity != want {
			t.Errorf("at the gate without loads: %+v", s.Capacity)
		}
		if r := w.Info().Ranks[0].Reported; r == nil || r.AgeSeconds < 2*factsInterval.Seconds()-15 {
			t.Errorf("reported %+v", r)
		}
		w = b.add(WorkerSpec{URL: urlA, Labels: map[string]string{"a": "b"}})
		synctest.Wait()
		if s := b.gateRank(urlA); s.Capacity != want {
			t.Errorf("at the gate, replaced: %+v", s.Capacity)
		}
		if _, _, ok := w.Ranks()[0].Reported(); !ok {
			t.Error("the load is lost with the replacement")
		}
	})
}

func TestMissingCapacityIsTold(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB, urlC)
		p := b.add(WorkerSpec{URL: urlA, Type: config.WorkerPrefill})
		d := b.add(WorkerSpec{URL: urlB, Type: config.WorkerDecode})
		synctest.Wait()
		if i := p.Info(); !slices.Equal(i.MissingCapacity, []string{"max_num_batched_tokens"}) || len(i.Warnings) > 0 {
			t.Errorf("prefill: %q, %q", i.MissingCapacity, i.Warnings)
		}
		if i := d.Info(); !slices.Equal(i.MissingCapacity, []string{"total_kv_blocks"}) || len(i.Warnings) > 0 {
			t.Errorf("decode: %q, %q", i.MissingCapacity, i.Warnings)
		}
		half := 0.5
		b.gate.SetClasses(&admission.Classes{Root: &admission.Profile{DefaultFamily: "f", Buckets: []admission.Bucket{{Name: "b"}},
			Classes: []admission.Class{{Name: "c", Family: "f", Bucket: "b", Quantum: 1, DecodeBusyFrac: &half}}}})
		if got := d.Info().Warnings; len(got) != 1 || !strings.Contains(got[0], "total_kv_blocks") {
			t.Errorf("warnings of decode %q", got)
		}
		if got := p.Info().Warnings; len(got) > 0 {
			t.Errorf("warnings of prefill %q", got)
		}
		metrics := func(prefill, decode int) {
			t.Helper()
			want := fmt.Sprintf(`
# HELP sluice_ranks_missing_capacity Registered ranks with an unknown capacity that classes need; their number of requests is used instead.
# TYPE sluice_ranks_missing_capacity gauge
sluice_ranks_missing_capacity{capacity="max_num_batched_tokens",role="prefill"} %d
sluice_ranks_missing_capacity{capacity="max_num_batched_tokens",role="regular"} 0
sluice_ranks_missing_capacity{capacity="total_kv_blocks",role="decode"} %d
sluice_ranks_missing_capacity{capacity="total_kv_blocks",role="regular"} 0
`, prefill, decode)
			if err := testutil.CollectAndCompare(NewCollector(b.Fleet), strings.NewReader(want), "sluice_ranks_missing_capacity"); err != nil {
				t.Error(err)
			}
		}
		metrics(1, 1)
		d = b.add(WorkerSpec{URL: urlB, Type: config.WorkerDecode, TotalKVBlocks: 9, BlockSize: 16})
		synctest.Wait()
		if i := d.Info(); len(i.MissingCapacity) > 0 || len(i.Warnings) > 0 || i.Ranks[0].TotalKVBlocks != 9 {
			t.Errorf("decode: %+v", i)
		}
		metrics(1, 0)
	})
}

// What an operator says of a worker reaches the gate, is part of its settings,
// and is shown.
func TestSettingsReachTheGate(t *testing.T) {
	inBubble(t, settings{ModelID: "m", DPAware: true}, func(b *testbed) {
		b.prober.set(well, urlA)
		spec := WorkerSpec{
			URL: urlA, DPSize: 2, Labels: map[string]string{"tier": "gold"}, TopologyDomain: "rack-1",
			Adapters: []string{"z", "a", "z"}, MaxNumBatchedTokens: 8192, TotalKVBlocks: 100, BlockSize: 16, MaxRunningRequests: 4,
		}
		w := b.add(spec)
		synctest.Wait()
		for _, id := range []string{urlA + "@0", urlA + "@1"} {
			if s := b.gateRank(id); s.Topology != "rack-1" || s.Capacity != capacityOf(&spec) {
				t.Errorf("%s at the gate: %+v", id, s)
			}
		}
		grant := func(s admission.TargetSpec) bool {
			s.Model = "m"
			target := b.gate.Resolve(s)
			if target == nil {
				return false
			}
			tk := &admission.Ticket{Target: target}
			defer tk.Release()
			return b.gate.Acquire(t.Context(), tk) == nil
		}
		required := func(v string) (s admission.TargetSpec) {
			s.Require[admission.DecodeLeg] = []admission.Label{{Key: "tier", Value: v}}
			return s
		}
		if !grant(required("gold")) || grant(required("silver")) || !grant(admission.TargetSpec{Adapter: "z"}) || grant(admission.TargetSpec{Adapter: "y"}) {
			t.Error("labels or adapters do not hold at the gate")
		}
		if pool, adapter := b.Resolve("a"); pool != "m" || adapter != "a" {
			t.Errorf("pool %q, adapter %q", pool, adapter)
		}
		if pool, adapter := b.Resolve("m"); pool != "m" || adapter != "" {
			t.Errorf("pool %q, adapter %q", pool, adapter)
		}
		for _, unknown := range []string{"m:b", "x:a", "a:z", ":a", "a:", ":"} {
			if pool, adapter := b.Resolve(unknown); pool != unknown || adapter != "" {
				t.Errorf("%q: pool %q, adapter %q", unknown, pool, adapter)
			}
		}
		doc, err := json.Marshal(w.Info())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{`"topology_domain":"rack-1"`, `"adapters":["a","z"]`, `"max_num_batched_tokens":8192,"total_kv_blocks":100,"block_size":16,"max_running_requests":4`} {
			if !strings.Contains(string(doc), part) {
				t.Errorf("%s is not in %s", part, doc)
			}
		}

		same := spec
		same.Adapters = []string{"a", "z"}
		if _, created, err := b.Add(t.Context(), same); created || err != nil {
			t.Errorf("the same settings: created %t, %v", created, err)
		}
		for i, change := range []func(*WorkerSpec){
			func(s *WorkerSpec) { s.TopologyDomain = "rack-2" },
			func(s *WorkerSpec) { s.Adapters = nil },
			func(s *WorkerSpec) { s.MaxRunningRequests = 5 },
		} {
			other := spec
			change(&other)
			if _, created, err := b.Add(t.Context(), other); !created || err != nil {
				t.Errorf("change %d: created %t, %v", i, created, err)
			}
		}
	})
}

func TestWrongSettingsAreRefused(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		for field, spec := range map[string]WorkerSpec{
			"topology_domain":        {TopologyDomain: "a\nb"},
			"adapters":               {Adapters: []string{"ok", ""}},
			"max_num_batched_tokens": {MaxNumBatchedTokens: -1},
			"total_kv_blocks":        {TotalKVBlocks: maxCapacity + 1},
			"block_size":             {BlockSize: maxBlockSize + 1},
			"max_running_requests":   {MaxRunningRequests: -9},
			"priority":               {Priority: new(1001)},

			"prefill_max_inflight_requests": {PrefillMaxInflight: 1}, // it is no prefill worker
		} {
			spec.URL = urlA
			_, _, err := b.Add(t.Context(), spec)
			var wrong *SpecError
			if !errors.As(err, &wrong) || wrong.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		if _, _, err := b.Add(t.Context(), WorkerSpec{URL: urlA, Adapters: make([]string, config.MaxAdapters+1)}); err == nil {
			t.Error("any number of adapters is taken")
		}
	})
}

// A slow or broken /v1/loads holds nothing up and takes nobody out of service.
func TestLoadsRouteMayMisbehave(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, answer := range map[string]http.HandlerFunc{
		"silent": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		},
		"503":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"404":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		"html": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/v1/loads":
					answer(w, r)
				case "/server_info":
					_, _ = w.Write([]byte(`{"page_size":16,"scheduler_info":{"max_total_num_tokens":160}}`))
				}
			})
			f := live(t, settings{Health: quick, ModelID: "m"})
			w := mustAdd(t, f, WorkerSpec{URL: s.URL})
			ready(t, w)
			if c := w.Ranks()[0].Capacity(); c.KVBlocks != 10 {
				t.Errorf("capacity %+v", c)
			}
			if missing := slices.Contains(w.Info().MissingRoutes, "/v1/loads"); missing != (name == "404" || name == "html") {
				t.Errorf("missing routes %q", w.Info().MissingRoutes)
			}
			if _, _, ok := w.Ranks()[0].Reported(); ok {
				t.Error("a load was made up")
			}
		})
	}
}
