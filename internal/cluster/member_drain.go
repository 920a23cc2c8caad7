package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// drained is how far a process that stops has come.
type drained struct {
	arrivals, waits bool
	end             admission.Instant // when waits end; 0: no such time
}

func (d *drained) next() admission.Instant {
	if d.end == 0 || d.waits {
		return never
	}
	return d.end
}

// stopArrivals refuses new requests from now on; retries may come.
func (b *member) stopArrivals() { b.drained.arrivals = true }

// drainWithin tells that waits end in d. Who would start later is not known here: all wait
// until then.
func (b *member) drainWithin(d time.Duration) {
	b.drained.end = max(b.m.now.Add(d), 1)
	b.alonePort(admission.Step{Op: admission.StepDrainWithin, Within: d})
	b.endDrain()
}

func (b *member) endDrain() {
	if b.drained.next() <= b.m.now {
		b.refuseWaiters()
	}
}

// refuseWaiters ends every wait; from now on nobody may wait.
func (b *member) refuseWaiters() {
	b.drained.waits = true
	for _, t := range b.waits.all() {
		b.cancel(t, b.refusal(t, admission.Draining))
	}
}
