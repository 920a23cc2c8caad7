package admission

import "time"

// In strict order the head of a class's queue blocks all behind it, also those
// that need other ranks and could start at once. That is the order's promise, and
// what it costs is told: how many are held up so, and for how long.

// heldUpLooks is at how many waiters of a queue one count looks at most.
const heldUpLooks = 256

// heldUp counts the waiters of q that could start now if their head, which is
// blocked, did not stand in front of them, and that would not with [QueueLanes]:
// those that need other ranks than the head. It stops at most. Each is judged for
// itself: the room there is may be enough for fewer.
func (ch *chooser) heldUp(q *classQueue, most int) int {
	l := q.first()
	if l == nil || l.since == 0 || l.waiters.Len() < 2 {
		return 0
	}
	n, head := 0, l.head()
	for _, w := range l.waiters.All()[1:min(l.waiters.Len(), heldUpLooks+1)] {
		t := w.Ticket
		if n == most {
			break
		}
		if (t.Target != head.Target || !t.Exclude.equal(&head.Exclude)) && ch.hasRoom(t) {
			n++
		}
	}
	return n
}

// noteHeldUp keeps the time since which heads of f hold up others. It is called
// once a second, so that the time may be up to a second too short.
func (ch *chooser) noteHeldUp(now Instant, f *modelGroup) {
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		for _, q := range p.classes {
			switch l := q.first(); {
			case l == nil:
			case ch.heldUp(q, 1) == 0:
				l.heldUp = 0
			case l.heldUp == 0:
				l.heldUp = max(now, 1)
			}
		}
	}
}

// heldUpStats is what ClassStats tells of q.
func (ch *chooser) heldUpStats(now Instant, q *classQueue) (n int, since time.Duration) {
	if n = ch.heldUp(q, heldUpLooks); n > 0 {
		if l := q.first(); l.heldUp != 0 {
			since = now.Sub(l.heldUp)
		}
	}
	return n, since
}
