package dispatch

import (
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// generous decides for a gate: everybody gets the first rank of each role at once.
type generous struct {
	gate *admission.Gate

	mu      sync.Mutex
	ranks   map[admission.Role]string
	granted []uint64
	ended   int // prefill legs
}

func (g *generous) Observe(changes []admission.FleetChange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range changes {
		if add := changes[i].Add; add != nil && g.ranks[add.Role] == "" {
			g.ranks[add.Role] = add.ID
		}
	}
}

func (g *generous) Arrive(number uint64, attempt uint32, r *admission.Request) {
	g.mu.Lock()
	d := admission.RemoteDecision{Granted: true, Prefill: g.ranks[admission.RolePrefill], Decode: g.ranks[admission.RoleDecode], Class: "default"}
	g.granted = append(g.granted, number)
	g.mu.Unlock()
	g.gate.Decide(number, attempt, &d)
}

func (g *generous) Step(_ uint64, _ uint32, op admission.StepOp, _ int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if op == admission.StepEndPrefill || op == admission.StepRelease {
		g.ended++
	}
}

func (g *generous) Move(uint64, uint32, []string) (string, bool)      { return "", false }
func (g *generous) Refresh(uint64, uint32, *[2]admission.RequestHint) {}
func (g *generous) Configure(admission.StepOp, admission.Settings)    {}
func (g *generous) StopArrivals()                                     {}
func (g *generous) DrainWithin(time.Duration) int                     { return 0 }
func (g *generous) RefuseWaiters()                                    {}
func (g *generous) Stats() *admission.Stats                           { return nil }
func (g *generous) Snapshot() *admission.Stats                        { return nil }
func (g *generous) PoolLoad(string, admission.Role) (admission.PoolLoad, bool) {
	return admission.PoolLoad{}, false
}

// A member of a cluster that hears nothing of the others any more gives prefill slots back
// before they are given to others: the legs are ended, both engines are told, and the
// client gets gate_unavailable. No engine is blamed.
func TestRevokedPrefillEnds(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			remote := &generous{ranks: map[admission.Role]string{}}
			o := pd(rigOptions{retries: 3, breaker: firstFault, config: func(c *config.Config) { c.Cluster.URL = "etcd://a:1" }})
			o.sim.Worker = sim.WorkerOptions{Backend: backend, Timing: sim.Timing{PrefillTime: 2 * patience}}
			if backend == sim.VLLM {
				// Nothing is to be asked of an engine that takes so long.
				o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.KVConnector = "nixl" }
			}
			o.gate = func(g *admission.Gate) { remote.gate = g; g.SetRemote(remote) }
			r := newRig(t, o)
			done := make(chan answer, 1)
			go func() { done <- r.chat("") }()
			prefill := r.sim.Prefill(0)
			r.until("the prefill to run", func() bool { return prefill.Stats().Inflight == 1 })
			remote.mu.Lock()
			number := remote.granted[0]
			remote.mu.Unlock()
			r.gate.Revoke(number)
			a := <-done
			if a.status != 503 || a.header.Get("X-Smg-Error-Code") != "gate_unavailable" || a.header.Get("Retry-After") != "1" {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
			r.until("the engines to be told", func() bool { return prefill.Stats().Inflight == 0 && r.sim.Decode(0).Stats().Inflight == 0 })
			for _, s := range r.gate.Stats().Ranks {
				if s.State.Breaker != admission.BreakerClosed {
					t.Errorf("%s is blamed: %v", s.ID, s.State.Breaker)
				}
			}
			remote.mu.Lock()
			defer remote.mu.Unlock()
			if remote.ended == 0 || len(remote.granted) != 1 {
				t.Errorf("%d ends were told, %d attempts made", remote.ended, len(remote.granted))
			}
		})
	}
}
