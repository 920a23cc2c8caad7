package server

import (
	"slices"
	"testing"

	"github.com/sluice-router/sluice/internal/dispatch"
)

// TestHeldUpRequestsAreReported keeps away a queue of the strict order in which a request that
// must have one worker stands before others whose worker is idle, and nothing says
// so.
func TestHeldUpRequestsAreReported(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode = 2, 1
		s.limits.PrefillSlots = 1
	})
	pin := []string{dispatch.HeaderTargetWorker, r.sim.Prefill(0).URL()}
	r.block(r.sim.Prefill(0), 10, pin...)
	r.waitFor("a place taken", func() bool {
		return slices.ContainsFunc(r.admission().Ranks, func(k rankDoc) bool { return k.Slots == 1 })
	})
	r.fly(promptOf(10, ""), pin...)
	r.waitDepth("default", 1)
	if h := r.class("default").HeldUp; h != nil {
		t.Errorf("a head alone holds up %+v", *h)
	}
	r.fly(promptOf(10, ""))
	r.fly(promptOf(10, ""))
	r.waitDepth("default", 3)
	r.waitFor("the time of it", func() bool { h := r.class("default").HeldUp; return h != nil && h.ForMS > 0 })
	if h := r.class("default").HeldUp; h.Requests != 2 || h.Remedy != "--queue-order lanes" {
		t.Errorf("held up: %+v", *h)
	}
}
