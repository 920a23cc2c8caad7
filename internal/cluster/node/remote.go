package node

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// Node is the Remote of its gate.
var _ admission.Remote = (*Node)(nil)

// Arrive implements admission.Remote.
func (n *Node) Arrive(number uint64, attempt uint32, r *admission.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		n.o.Gate.Decide(number, attempt, &admission.RemoteDecision{}) // for want of a refusal: the gate is unavailable
		return
	}
	now := n.clock.Now()
	n.traceArrival(now, number, attempt)
	n.m.Arrive(now, number, attempt, r)
	n.handOnLocked()
}

// Step implements admission.Remote.
func (n *Node) Step(number uint64, attempt uint32, op admission.StepOp, amount int64) {
	n.step(func(now admission.Instant) {
		n.traceStep(now, number, attempt, op)
		n.m.Step(now, number, attempt, op, amount)
	})
}

type moveKey struct {
	number  uint64
	attempt uint32
}

// moveLimit is how long a move may take at most; the machine answers before that.
const moveLimit = 300 * time.Millisecond

// Move implements admission.Remote.
func (n *Node) Move(number uint64, attempt uint32, exclude []string) (decode string, ok bool) {
	ch, key := make(chan cluster.Moved, 1), moveKey{number, attempt}
	n.step(func(now admission.Instant) {
		n.moves[key] = ch
		n.m.Move(now, number, attempt, exclude)
	})
	limit := time.NewTimer(moveLimit)
	defer limit.Stop()
	select {
	case m := <-ch:
		return m.Decode, m.Granted
	case <-limit.C:
	case <-n.ctx.Done():
	}
	n.mu.Lock()
	delete(n.moves, key)
	n.mu.Unlock()
	select {
	case m := <-ch: // it came in between
		return m.Decode, m.Granted
	default:
		return "", false
	}
}

// Refresh implements admission.Remote.
func (n *Node) Refresh(number uint64, attempt uint32, hints *[2]admission.RequestHint) {
	n.step(func(now admission.Instant) { n.m.Refresh(now, number, attempt, hints) })
}

// SetGeneration is that of the configuration that is put in force next.
func (n *Node) SetGeneration(generation uint64) { n.generation.Store(generation) }

// Configure implements admission.Remote.
func (n *Node) Configure(_ admission.StepOp, s admission.Settings) {
	n.step(func(now admission.Instant) { n.m.Configure(now, n.generation.Load(), s) })
}

// StopArrivals implements admission.Remote.
func (n *Node) StopArrivals() { n.step(func(now admission.Instant) { n.m.StopArrivals(now) }) }

// DrainWithin implements admission.Remote.
func (n *Node) DrainWithin(d time.Duration) (refused int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return 0
	}
	n.refused = 0
	n.m.DrainWithin(n.clock.Now(), d)
	n.handOnLocked()
	return n.refused
}

// RefuseWaiters implements admission.Remote.
func (n *Node) RefuseWaiters() { n.step(func(now admission.Instant) { n.m.RefuseWaiters(now) }) }

// Declare tells the other members of workers that were registered or removed by hand here,
// or that a source of this process declares.
func (n *Node) Declare(d []cluster.Document) {
	n.step(func(now admission.Instant) { n.m.Declare(now, d) })
}
