package fleet

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv/events"
)

// An engine that pushes its events tells its load with them, and need not be asked for it.
func TestPushedLoad(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		set := monitored
		set.DPAware = ranks > 1
		inBubble(t, set, func(b *testbed) {
			s := b.fakeStreams()
			b.prober.mu.Lock()
			b.prober.events = map[string]kvEventSources{urlA: {asked: true, told: true, list: pushedSources(urlA, ranks)}}
			b.prober.mu.Unlock()
			all := make([]RankLoad, ranks)
			all[0] = RankLoad{Running: 1}
			w := b.monitoredWorker(WorkerSpec{}, reading(all...))
			b.pass(time.Second)
			o := s.last().opts
			if o.Subscribe == nil || o.Load == nil {
				t.Fatalf("the stream's options are %+v", o)
			}
			if rank := map[bool]int{true: events.AnyRank, false: ranks - 1}[ranks == 1]; o.Rank != rank {
				t.Errorf("of %d ranks the last one's stream is of rank %d", ranks, o.Rank)
			}
			push := func(running int64, age time.Duration) {
				o.Load(&events.Load{Running: running, Waiting: 1, UsedTokens: 160, Usage: 0.1, WaitingTokens: -1, Age: age})
			}
			if push(7, 0); ranks > 1 {
				if l, _, _ := w.Ranks()[0].Reported(); l.Running == 7 {
					t.Error("the load of an engine of several ranks was taken for one's")
				}
				return
			}
			if l, at, ok := w.Ranks()[0].Reported(); !ok || l != (RankLoad{Running: 7, Waiting: 1, UsedTokens: 160, Usage: 0.1}) || at != b.clock.Now() {
				t.Errorf("the load is %+v", l)
			}
			if s := b.gateRank(urlA); s.Reported.Requests != 8 {
				t.Errorf("the gate has %+v", s.Reported)
			}
			push(8, 0) // at once: not taken over
			if l, _, _ := w.Ranks()[0].Reported(); l.Running != 7 {
				t.Errorf("the load is %+v", l)
			}
			for range 10 { // as long as it is pushed the engine is not asked
				b.pass(500 * time.Millisecond)
				push(9, 0)
				if l, _, _ := w.Ranks()[0].Reported(); l.Running == 1 {
					t.Error("the engine was asked for its load")
				}
			}
			push(5, time.Minute) // of long ago
			if l, _, _ := w.Ranks()[0].Reported(); l.Running != 9 {
				t.Errorf("the load is %+v", l)
			}
			b.pass(3 * time.Second) // no more pushed: it is asked
			if l, _, _ := w.Ranks()[0].Reported(); l.Running != 1 {
				t.Errorf("the load is %+v", l)
			}
		})
	}
}

func TestEngineThatPushesIsNotAskedWhereItPublishes(t *testing.T) {
	list := pushedSources("grpc://a:1", 0)
	if len(list) != 1 || !list[0].Pushed || list[0].Endpoint != "grpc://a:1" {
		t.Errorf("the sources are %+v", list)
	}
	if n := len(pushedSources("grpc://a:1", engine.MaxDPSize)); n != engine.MaxDPSize {
		t.Errorf("%d sources of %d ranks", n, engine.MaxDPSize)
	}
}
