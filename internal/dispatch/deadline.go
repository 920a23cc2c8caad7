package dispatch

import (
	"sync"
	"time"

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
	first, last *deadline // by time
	timer       *time.Timer
	// rings is when the timer does: never later than the first is due. Zero: it
	// is not set.
	rings mono.Instant
}

// deadline is the time of one context, inside of what it belongs to. Its fields are
// guarded by mu of the list that it is for.
type deadline struct {
	ctx        *legContext // nil: it is not in the list
	at         mono.Instant
	prev, next *deadline
	alone      *time.Timer // its own, if it never was in the list
}

// maxSteps is how far from its end a place in the list is looked for. Who was
// given its time long ago, such as a request whose body was long under way, gets a
// timer instead.
const maxSteps = 32

// add makes ctx end at a time. d must not have been added before.
func (l *deadlines) add(d *deadline, ctx *legContext, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.at = mono.Of(at)
	before := l.last
	for steps := 0; before != nil && before.at > d.at; steps++ {
		if steps == maxSteps {
			d.alone = time.AfterFunc(d.at.Until(), func() { ctx.end(l.cause) })
			return
		}
		before = before.prev
	}
	d.ctx, d.prev = ctx, before
	if before != nil {
		d.next, before.next = before.next, d
	} else {
		d.next, l.first = l.first, d
	}
	if d.next != nil {
		d.next.prev = d
	} else {
		l.last = d
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
	if d.ctx != nil {
		l.unlinkLocked(d)
	}
	if d.alone != nil {
		d.alone.Stop()
	}
}

func (l *deadlines) unlinkLocked(d *deadline) {
	d.ctx = nil
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		l.first = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		l.last = d.prev
	}
	d.prev, d.next = nil, nil
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
	d := l.first
	switch {
	case d == nil:
		l.rings = 0
		return nil
	case d.at.Until() > 0:
		l.ringLocked(d.at)
		return nil
	}
	ctx := d.ctx
	l.unlinkLocked(d)
	return ctx
}
