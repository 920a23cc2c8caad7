package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// member is this process's own requests: with a keeper it sends what they ask and takes
// what is decided, without one it decides on its share, or refuses.
type member struct{ m *Machine }

func (b *member) start(m *Machine) { b.m = m }

// promised tells that a new epoch is obeyed from now on: a session begins with a report.
func (b *member) promised() {}

// tick does what time brings: ends of waits, the patience without a keeper, what was lost
// too long ago.
func (b *member) tick() {}

func (b *member) next() admission.Instant { return never }

// envelope takes an envelope of the keeper of the promised epoch.
func (b *member) envelope(*peer, *Envelope) {}

// receive takes an item of this process's own keeper.
func (b *member) receive(*Item) {}

func (b *member) arrive(uint64, uint32, *admission.Request) {}

func (b *member) step(uint64, uint32, admission.StepOp, int64) {}

func (b *member) move(uint64, uint32, []string) {}

func (b *member) refresh(uint64, uint32, *[2]admission.RequestHint) {}

func (b *member) observe(Observation) {}

func (b *member) configure(uint64, admission.Settings) {}

func (b *member) stopArrivals() {}

func (b *member) drainWithin(time.Duration) {}

func (b *member) refuseWaiters() {}

// isStandby tells whether this member is told of all holds by the keeper of the promised
// epoch; it stands first.
func (b *member) isStandby() bool { return false }

// stats is the state of the core by which this member decides alone, if it does.
func (b *member) stats() (s admission.Stats, ok bool) { return s, false }

// shares are the own shares of ranks, most at most.
func (b *member) shares(most int) []ShareView { return nil }
