package dispatch

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// Whoever removes a worker and bounds the time for its requests gets them ended then:
// one that the client has seen nothing of runs elsewhere, a stream that has begun ends
// visibly, and nobody is blamed.
func TestRemovedWorkerEndsItsRequestsInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 3, breaker: firstFault,
		sim: sim.Options{Regular: 2, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}})
	victim, other := r.sim.Regular(0), r.sim.Regular(1)
	if _, err := r.fleet.SetDrained(other.URL(), true); err != nil {
		t.Fatal(err)
	}
	s := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	s.event()
	victim.SetTiming(sim.Timing{FirstToken: forever, DecodeStep: forever}) // the stream may be about to look how long its next step is
	unstarted, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.working(victim, 2)
	other.SetTiming(sim.Timing{})
	if _, err := r.fleet.SetDrained(other.URL(), false); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.fleet.RemoveWithin(victim.URL(), 0); !ok {
		t.Fatal("it is not there")
	}
	if a := <-unstarted; a.status != 200 || a.err != nil {
		t.Errorf("the request without an answer: %d %s %v", a.status, a.body, a.err)
	}
	all, err := s.rest()
	if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `data: {"error"`) || !strings.Contains(all, "was removed") {
		t.Errorf("the stream: %v %q", err, all)
	}
	if _, ok := r.fleet.Get(victim.URL()); ok {
		t.Error("the worker is still there")
	}
	if b := r.worker(other).Info().Breaker; b != "closed" {
		t.Errorf("the other worker's breaker is %s", b)
	}
	r.settled()
}
