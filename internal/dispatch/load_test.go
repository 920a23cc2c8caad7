package dispatch

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// load is what the gate has booked on a worker.
func (r *rig) load(w *sim.Worker) int {
	s := r.of(w)
	return s.PrefillLegs + s.PendingDecode + s.ActiveDecode
}

// Each client that left before the engine's headers leaked one count for good;
// a worker that was started anew then looked idle and took all traffic.
func TestAbortsLeakNoLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 2}, policy: "power_of_two",
		config: func(c *config.Config) { c.Fleet.WorkerWarmup = 0 }})
	a, b := r.sim.Regular(0), r.sim.Regular(1)
	a.SetFault(sim.Fault{Delay: forever})
	b.SetFault(sim.Fault{Delay: forever})
	var leaves []context.CancelFunc
	for range 100 {
		_, leave := r.begin("/v1/chat/completions", chatBody(""))
		leaves = append(leaves, leave)
	}
	r.until("all are at an engine", func() bool { return a.Stats().Inflight+b.Stats().Inflight == 100 })
	if la, lb := r.load(a), r.load(b); la+lb != 100 || la < 40 || lb < 40 {
		t.Errorf("loads %d and %d while 100 run", la, lb)
	}
	for _, leave := range leaves {
		leave()
	}
	r.settled()
	a.ClearFaults()
	b.ClearFaults()

	b.Kill()
	r.fleet.Remove(b.URL())
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, created, err := r.fleet.Add(context.Background(), fleet.WorkerSpec{URL: b.URL(), Type: config.WorkerRegular}); err != nil || !created {
		t.Fatal(created, err)
	}
	r.ready()
	hold := sim.Timing{FirstToken: 50 * time.Millisecond}
	a.SetTiming(hold)
	b.SetTiming(hold)
	before := len(a.Requests())
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			if got := r.chat(""); got.status != 200 {
				t.Errorf("%d %s %v", got.status, got.body, got.err)
			}
		})
	}
	wg.Wait()
	if n := len(a.Requests()) - before; n < 15 || n > 45 {
		t.Errorf("%d of 60 went to the worker that was not restarted", n)
	}
	r.settled()
}

// The health checker set the load of workers to zero while requests ran.
func TestHealthChecksLeaveLoadAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 2, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}},
		health: config.Health{Interval: 10 * time.Millisecond, Timeout: 2 * time.Second}, policy: "power_of_two"})
	a, b := r.sim.Regular(0), r.sim.Regular(1)
	var parked []*stream
	for range 20 {
		s := r.open("/v1/chat/completions", bodyFor("", 100, streamed), HeaderTargetWorker, a.URL())
		s.event()
		parked = append(parked, s)
	}
	seen := a.Stats().Probes
	r.until("15 health checks", func() bool {
		if n := r.load(a); n != 20 {
			t.Fatalf("the load is %d while 20 run", n)
		}
		return a.Stats().Probes >= seen+15
	})
	for range 10 {
		s := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
		s.event()
		parked = append(parked, s)
	}
	if la, lb := r.load(a), r.load(b); la != 20 || lb != 10 {
		t.Errorf("loads %d and %d, want 20 and 10", la, lb)
	}
	for _, s := range parked {
		s.leave()
	}
	r.settled()
}

// Load was let go when the headers came, and some failures gave it back twice.
func TestLoadLastsToTheLastByte(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 2, breaker: config.CircuitBreaker{Disabled: true},
		sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}}))
	p, d := r.sim.Prefill(0), r.sim.Decode(0)
	s := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	s.event()
	r.until("prefill is over", func() bool { return r.load(p) == 0 })
	if s := r.of(d); s.ActiveDecode != 1 || s.PendingDecode != 0 {
		t.Errorf("while it streams: %+v", s)
	}
	// One token takes no step: the engine goes on as slowly as it does for the stream.
	one := strings.Replace(chatBody(streamed), `"max_tokens":3`, `"max_tokens":1`, 1)
	for _, w := range []*sim.Worker{p, d} {
		for _, f := range []sim.Fault{
			{Status: 500}, {Status: 503}, {Do: sim.Reset, At: sim.AtBody}, {Do: sim.Reset, At: sim.AtEvent, After: 1}, {Kind: sim.Garbage},
		} {
			w.SetFault(f)
			r.do(context.Background(), "/v1/chat/completions", one)
			r.until("its own load is gone, the other's is not", func() bool {
				if n := r.load(d); n < 1 {
					t.Fatalf("the stream's own load is gone: %d", n)
				}
				return r.load(p) == 0 && r.load(d) == 1
			})
		}
		w.ClearFaults()
	}
	s.leave()
	r.settled()
}

// A worker that is removed and registered again at the same address is another:
// requests of the old one end on the old one.
func TestNewGenerationAtTheSameAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}})
	w := r.sim.Regular(0)
	old := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	old.event()
	was := r.worker(w).Generation()
	r.fleet.Remove(w.URL())
	if _, _, err := r.fleet.Add(context.Background(), fleet.WorkerSpec{URL: w.URL(), Type: config.WorkerRegular}); err != nil {
		t.Fatal(err)
	}
	r.ready()
	if now := r.worker(w).Generation(); now == was {
		t.Errorf("the generation is still %d", now)
	}
	if n := r.load(w); n != 0 {
		t.Errorf("the new one starts with a load of %d", n)
	}
	next := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	next.event()
	old.leave()
	r.waitRecord(0)
	if n := r.load(w); n != 1 {
		t.Errorf("the end of the old one's request left a load of %d, want 1", n)
	}
	next.leave()
	r.settled()
}
