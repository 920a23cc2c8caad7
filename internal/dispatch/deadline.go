package dispatch

import (
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// deadlines ends contexts that outlast their time, all with the same cause. It is
// meant for times that are equally long, and long against what they bound: they
// are due in the order in which they are set, nearly, and mostly never. So the one
// that is due next is the first of a list, and one timer, which is hardly ever
// moved, serves them all.
type deadlines struct {
	cause error // immutable

	mu sync.Mutex
	// guarded by mu
	waiting list.List[*deadline] // by time
	timer   *time.Timer
	// rings is when the timer does: never later than the first is due. Zero: it
	// is not set.
	rings mono.Instant
}

// deadline is the time of one context, inside of what it belongs to. Its fields are
// guarded by mu of the list that it is for.
type deadline struct {
	ctx   *legContext
	at    mono.Instant
	node  list.Node[*deadline]
	alone *time.Timer // its own, if it never was in the list
}

// maxSteps is how far from its end a place in the list is looked for. Who was
// given its time long ago, such as a request whose body was long under way, gets a
// timer instead.
const maxSteps = 32

// add makes ctx end at a time. d must not have been added before.
func (l *deadlines) add(d *deadline, ctx *legContext, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.ctx, d.at, d.node.Value = ctx, mono.Of(at), d
	before := l.waiting.Last()
	for steps := 0; before != nil && before.Value.at > d.at; steps++ {
		if steps == maxSteps {
			d.alone = time.AfterFunc(d.at.Until(), func() { ctx.end(l.cause) })
			return
		}
		before = before.Prev()
	}
	if before != nil {
		l.waiting.InsertAfter(&d.node, before)
	} else {
		l.waiting.PushFront(&d.node)
	}
	if l.rings == 0 || d.at < l.rings {
		l.ringLocked(d.at)
	}
}

// remove takes a deadline back. It may be called any number of times, also if none
// was added; the context may end once more if it is due at this instant.
func (l *deadlines) remove(d *deadline) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.Remove(&d.node)
	if d.alone != nil {
		d.alone.Stop()
	}
}

// ringLocked sets the timer.
func (l *deadlines) ringLocked(at mono.Instant) {
	l.rings = at
	if l.timer == nil {
		l.timer = time.AfterFunc(at.Until(), l.ring)
		return
	}
	l.timer.Reset(at.Until())
}

// ring ends what is due.
func (l *deadlines) ring() {
	for ctx := l.popDue(); ctx != nil; ctx = l.popDue() {
		ctx.end(l.cause)
	}
}

// popDue takes the first off the list if it is due, and sets the timer if not.
func (l *deadlines) popDue() *legContext {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.waiting.First()
	switch {
	case n == nil:
		l.rings = 0
		return nil
	case n.Value.at.Until() > 0:
		l.ringLocked(n.Value.at)
		return nil
	}
	l.waiting.Remove(n)
	return n.Value.ctx
}
