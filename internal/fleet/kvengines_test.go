package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/sim"
)

// cacheRig is a worker whose engine publishes events, followed over the wire.
type cacheRig struct {
	*testing.T
	f       *Fleet
	engine  *sim.Worker
	w       *Worker
	prompts int
}

func newCacheRig(t *testing.T, o sim.WorkerOptions) *cacheRig {
	o.HealthDelay = -1
	o.CacheReport = true
	s := simFleet(t, sim.Options{Regular: 1, Worker: o})
	f := live(t, settings{Health: quick, DPAware: true, config: func(c *config.Config) { c.KV.EventsSilent = 200 * time.Millisecond }})
	c := &cacheRig{T: t, f: f, engine: s.Regular(0)}
	c.w = mustAdd(t, f, WorkerSpec{URL: c.engine.URL()})
	ready(t, c.w)
	c.exact()
	return c
}

// exact waits until all ranks are.
func (c *cacheRig) exact() {
	c.Helper()
	until(c.T, "all ranks are exact", func() bool {
		for _, r := range c.w.Ranks() {
			if r.Exact() == nil {
				return false
			}
		}
		return len(c.w.Ranks()) > 0
	})
}

// prompt sends the engine a prompt that it has not seen.
func (c *cacheRig) prompt() {
	c.Helper()
	c.prompts++
	body := fmt.Sprintf(`{"model":"sim-model","max_tokens":2,"prompt":"%d %s"}`, c.prompts, strings.Repeat("words of a prompt ", 40))
	resp, err := http.Post(c.engine.URL()+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		c.Fatalf("status %d", resp.StatusCode)
	}
}

// sent has the index believe that all ranks hold chainOf because they were sent it.
func (c *cacheRig) sent() {
	for _, r := range c.w.Ranks() {
		c.f.opts.Index.Store(r.Approx(), chainOf)
	}
}

func (c *cacheRig) believed() int {
	return len(c.f.opts.Index.Match(chainOf, kv.Group(c.w.role), nil, nil))
}

// stream is the stream of the first rank.
func (c *cacheRig) stream() events.Snapshot {
	if s := c.w.Ranks()[0].caches.stream.Load(); s != nil {
		return s.stream.Snapshot()
	}
	return events.Snapshot{}
}

var simEngines = map[string]sim.WorkerOptions{
	"vllm":      {Backend: sim.VLLM, KVEvents: &sim.KVEvents{}},
	"sglang":    {KVEvents: &sim.KVEvents{}},
	"no replay": {Backend: sim.VLLM, KVEvents: &sim.KVEvents{ReplayPort: -1}},
}

// TestEventsOfAnEngine shows that the events of engines are found and followed, and that what
// an engine was sent is forgotten once it has emptied its cache: with the next events, or,
// where the process ended, when the fleet finds that out.
func TestEventsOfAnEngine(t *testing.T) {
	for name, o := range simEngines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCacheRig(t, o)
			c.prompt()
			until(t, "its events come", func() bool { return c.stream().Batches > 0 })
			c.sent()
			c.prompt()
			until(t, "further events come", func() bool { return c.stream().Batches > 1 })
			if c.believed() != 1 || c.stream().Clears > 0 {
				t.Fatal("an engine that goes on was emptied")
			}

			c.engine.ClearCache()
			c.prompt() // events leave with a step
			until(t, "a cleared cache is known to be empty", func() bool { return c.believed() == 0 })
			if c.w.Ranks()[0].Exact() == nil {
				t.Error("a clear degraded the stream")
			}

			c.sent()
			c.engine.RestartCache()
			c.prompt()
			until(t, "a restart of the scheduler is found", func() bool { return c.believed() == 0 })

			c.exact()
			c.sent()
			c.engine.Kill()
			if err := c.engine.Restart(); err != nil {
				t.Fatal(err)
			}
			until(t, "another process is found", func() bool { return c.believed() == 0 })
			ready(t, c.w)
			c.exact()
			before := c.stream().Batches
			c.prompt()
			until(t, "its events come", func() bool { return c.stream().Batches > before })
		})
	}
}

// TestEventsOfDataParallelRanks shows that each rank has a stream of its own.
func TestEventsOfDataParallelRanks(t *testing.T) {
	for name, o := range simEngines {
		o.DPSize = 3
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCacheRig(t, o)
			if n := len(c.w.Ranks()); n != 3 {
				t.Fatalf("%d ranks", n)
			}
			endpoints := map[string]bool{}
			for i, r := range c.w.Ranks() {
				s := r.caches.stream.Load()
				endpoints[s.source.Endpoint] = true
				if want := c.engine.KVEndpoint(i); s.source.Endpoint != want {
					t.Errorf("rank %d is followed at %s, want %s", i, s.source.Endpoint, want)
				}
			}
			if len(endpoints) != 3 {
				t.Errorf("endpoints %v", endpoints)
			}
		})
	}
}

// TestMissedEvents shows that events which were dropped are asked for again, and that where
// the engine does not repeat them the rank is not believed to hold what they may have removed.
func TestMissedEvents(t *testing.T) {
	for name, o := range simEngines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCacheRig(t, o)
			c.prompt()
			until(t, "its events come", func() bool { return c.stream().Batches == 1 })
			if err := c.engine.AddKVLie(sim.KVLie{Kind: "drop", Count: 2}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				c.prompt()
			}
			until(t, "the gap is dealt with", func() bool {
				n := c.stream()
				return n.Gaps == 1 && n.Batches >= 2 && (n.Unfilled == 1 || n.Batches == 4)
			})
			if lost, repeats := c.stream().Unfilled == 1, o.KVEvents.ReplayPort >= 0; lost == repeats {
				t.Errorf("lost %t, though the engine repeats them: %t", lost, repeats)
			}
			c.exact()
		})
	}
}

// TestSilentEvents shows that an engine whose events stop, while it computes prompts, is
// known by what it was sent, keeps its requests, and is believed again when they go on.
func TestSilentEvents(t *testing.T) {
	c := newCacheRig(t, simEngines["vllm"])
	r := c.w.Ranks()[0]
	c.prompt()
	until(t, "its events come", func() bool { return c.stream().Batches > 0 })
	if err := c.engine.AddKVLie(sim.KVLie{Kind: "silent"}); err != nil {
		t.Fatal(err)
	}
	r.NoteComputed(time.Now(), 1000, 100)
	until(t, "a silent stream is found", func() bool { return r.Exact() == nil })
	if i := c.w.Info(); i.Status != StatusReady || i.Ranks[0].KVCache.Feed != feedDegraded || i.Ranks[0].KVCache.Degraded.Why == "" {
		t.Errorf("%s, %+v", i.Status, i.Ranks[0].KVCache)
	}
	c.engine.ClearKVLies()
	until(t, "it is believed again", func() bool {
		c.prompt()
		return r.Exact() != nil
	})
}
