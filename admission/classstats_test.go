package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What an operator asks: who waits, for what, how much of it lacks where, and
// how long it will take.
func TestSnapshotTellsWhy(t *testing.T) {
	c := NewCore(Options{
		Limits: Limits{QueueSize: 10, StarvationGuard: 5 * time.Second},
		Classes: &Classes{Root: &Profile{Classes: []Class{
			{Name: "big", Quantum: 1, DecodeBusyFrac: new(0.8)}, {Name: "small", Quantum: 7, PrefillBusyFrac: new(0.5)},
		}}},
	})
	var out []*Ticket
	p := NewRank(RankSpec{ID: "p", Role: RolePrefill, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{MaxBatchedTokens: 1000}})
	d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 100, BlockSize: 10}})
	c.Apply(0, []Change{{Op: AddRank, Rank: p}, {Op: AddRank, Rank: d}}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	send := func(now Instant, class string, prompt, cached int64) *Ticket {
		k := &Ticket{Target: target, Class: class, PromptTokens: prompt, CachedTokens: cached, Bytes: 3}
		c.Arrive(now, k, &out)
		return k
	}
	const second = Instant(time.Second)
	first := send(second, "big", 600, 0)
	send(2*second, "big", 300, 10)
	send(3*second, "small", 10, 4)
	s := c.Snapshot(10 * second)
	big, small := s.Queues[0].Classes[0], s.Queues[0].Classes[1]
	if big.Depth != 1 || big.RawTokens != 300 || big.CachedTokens != 10 || big.HeadWait != 8*time.Second || big.Lanes != 1 ||
		big.ClosedBy != ResourceDecodeBlocks || big.EstimatedWait != 20*time.Second || big.Fenced {
		t.Errorf("big: %+v", big)
	}
	if want := []RankShortage{{"d", RoleDecode, Shortage{Resource: ResourceDecodeBlocks, Short: 10, Of: 100}}}; !slices.Equal(big.Short, want) {
		t.Errorf("big lacks %+v, want %+v", big.Short, want)
	}
	if want := []RankShortage{{"p", RolePrefill, Shortage{Resource: ResourcePrefillTokens, Short: 100, Of: 1000}}}; !slices.Equal(small.Short, want) {
		t.Errorf("small lacks %+v, want %+v", small.Short, want)
	}
	if small.ClosedBy != ResourcePrefillTokens || s.Queues[0].ClosedBy != ResourceDecodeBlocks || s.WaitingBytes != 6 {
		t.Errorf("small: %+v", small)
	}
	if r := s.Ranks[1]; r.PendingBlocks != 60 || r.ActiveBlocks != 0 || r.Capacity.KVBlocks != 100 || s.Ranks[0].PrefillTokens != 600 {
		t.Errorf("ranks: %+v", s.Ranks)
	}
	// small is served, and so big is fenced for.
	c.FirstToken(11*second, first, &out)
	c.Advance(12*second, &out)
	s = c.Stats(13 * second)
	if x := s.Queues[0].Fence; x == nil || *x != (FenceStats{Class: "big", Waited: 11 * time.Second, Prefill: "p", Decode: "d"}) {
		t.Errorf("fence: %+v", x)
	}
	if !s.Queues[0].Classes[0].Fenced || !s.Ranks[1].Fenced || s.Fences != 1 || s.Queues[0].Classes[0].Short != nil {
		t.Errorf("%+v", s)
	}
}

// Series of each class are there once it is configured, and unknown names from
// clients make none.
func TestMetricsByClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		g := NewGate(Options{Limits: Limits{QueueSize: 10}, Classes: &Classes{Root: &Profile{
			DefaultFamily: "f", Buckets: []Bucket{{0, "all"}},
			Classes: []Class{
				{Name: "gold", Quantum: 1, RequestLimitPerWorker: new(0.0), PrefillBusyTokens: new(int64(0))},
				{Name: "f-all", Family: "f", Bucket: "all", Quantum: 1, DecodeBusyFrac: new(0.5)},
			},
		}}}, NewSystemClock(), m)
		defer g.Close()
		m.Watch(g)
		p, d := rank("p", RolePrefill, "m"), rank("d", RoleDecode, "m")
		g.Apply(Change{Op: AddRank, Rank: p}, Change{Op: AddRank, Rank: d})
		send := func(class string) *Ticket {
			k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: 32, Class: class}
			_ = g.Acquire(context.Background(), k)
			return k
		}
		a, b, c := send("gold"), send("gold"), send("evil{")
		text := exposition(t, reg)
		for _, want := range []string{
			`sluice_admission_received_total{class="gold"} 2`,
			`sluice_admission_dispatches_total{class="gold"} 1`,
			`sluice_admission_dispatches_total{class="f-all"} 1`,
			`sluice_admission_rejections_total{class="gold",reason="policy_class_queue_full"} 1`,
			`sluice_admission_backpressure_total{class="gold",limit="requests"} 1`,
			`sluice_admission_prefill_tokens{rank="p"} 64`,
			`sluice_admission_decode_blocks{rank="d",state="pending"} 4`,
			`sluice_admission_missing_capacity{capacity="kv_blocks",rank="d"} 1`,
			`sluice_admission_unknown_classes_total 1`,
			`sluice_admission_deficit_tokens{class="f-all"} 0`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no %s", want)
			}
		}
		if strings.Contains(text, "evil") {
			t.Error("a client's name is a label")
		}
		for _, k := range []*Ticket{a, b, c} {
			k.Close()
		}
		wantIdle(t, g, p, d)
	})
}

// Many at once, with everything changing: nobody is forgotten, every hold ends.
func TestClassesUnderConcurrency(t *testing.T) {
	cs := func(frac float64) *Classes {
		return &Classes{Root: &Profile{
			DefaultFamily: "f", Buckets: []Bucket{{0, "lo"}, {100, "hi"}},
			Classes: []Class{
				{Name: "lo", Family: "f", Bucket: "lo", Quantum: 100, DecodeBusyFrac: &frac, PrefillBusyFrac: new(1.0)},
				{Name: "hi", Family: "f", Bucket: "hi", Quantum: 400, DecodeBusyFrac: new(1.0)},
			},
		}}
	}
	g := NewGate(Options{
		Limits:  Limits{PrefillSlots: 3, QueueSize: 1000, QueueTimeout: time.Minute, StarvationGuard: time.Millisecond},
		Classes: cs(0.5), NewPolicy: newLeast,
	}, NewSystemClock(), nil)
	defer g.Close()
	var ranks []*Rank
	for i := range 4 {
		for _, role := range []Role{RolePrefill, RoleDecode} {
			r := NewRank(RankSpec{
				ID: fmt.Sprint(role, i), Worker: fmt.Sprint(role, i), Role: role, Models: []string{"m"}, Topology: fmt.Sprint(i % 2), State: RankState{Healthy: true},
				Capacity: Capacity{MaxBatchedTokens: 500, KVBlocks: 50, BlockSize: 16},
			})
			ranks = append(ranks, r)
			g.Apply(Change{Op: AddRank, Rank: r})
		}
	}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 200 {
				spec := TargetSpec{Model: "m", Shape: Disaggregated}
				if n%3 == 0 {
					spec.Topology = TopologyRequired
				}
				if n%7 == 0 {
					spec.Shape = Bypass
				}
				k := &Ticket{Target: g.Resolve(spec), PromptTokens: int64(1 + (n*i*37)%600)}
				if err := g.Acquire(t.Context(), k); err != nil {
					t.Errorf("refused: %v", err)
				} else {
					k.StartDecode()
					k.FirstToken()
					k.Grow(1)
					k.EndPrefill()
					if n%5 == 0 {
						k.MoveDecode(ranks[n%8])
					}
				}
				k.Close()
			}
		})
	}
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			g.SetClasses(cs([]float64{0.5, 0.9}[n%2]))
			g.Apply(Change{Op: QuarantinePair, Rank: ranks[0], Other: ranks[1+n%4*2]})
			g.Apply(Change{Op: EndQuarantine, Rank: ranks[0], Other: ranks[1+n%4*2]})
			g.Apply(Change{Op: SetAttributes, Rank: ranks[n%8], Attributes: RankAttributes{
				Models: []string{"m"}, Topology: fmt.Sprint(n % 8 / 2 % 2), Capacity: Capacity{MaxBatchedTokens: 500, KVBlocks: int64(40 + n%20), BlockSize: 16},
			}})
			g.Snapshot()
		}
	})
	all.Wait()
	close(stop)
	chaos.Wait()
	for _, r := range ranks {
		if s := g.RankStats(r); !r.idle() {
			t.Errorf("%s holds %+v", r.id, s)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := checkIndexes(g.core); err != nil || g.core.waiting != 0 || g.core.missed != 0 {
		t.Errorf("%d wait, %d events missed; %v", g.core.waiting, g.core.missed, err)
	}
}
