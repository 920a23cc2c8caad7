package admission

import (
	"math"
	"slices"
)

// A waiter whose best holder has no room may decline other ranks, but not for longer than
// AffinityWait in all. Its clock runs only while it really declines something. So a class
// knows which of its waiters do: those that its last look found with room that they leave.
// Each event that gives or takes room of theirs is followed by another look.

// declineWithin is in how many times AffinityWait of waiting a waiter may decline ranks:
// where others take all that it declines its clock stands, and its holder may be one that
// hangs.
const declineWithin = 10

// waits tells whether t, which arrives and for which ranks were chosen, declines them. It does
// so only where it may wait.
func (a *affinity) waits(now Instant, t *Ticket, q *classQueue) bool {
	c := a.core
	if q.class.never || c.noWaits || c.drainEnd != never || c.waiting >= c.limits.QueueSize ||
		c.limits.MaxWaitingBytes > 0 && c.waitingSize+t.size() > c.limits.MaxWaitingBytes {
		return false
	}
	if kind, _, _ := q.limit(t); kind != LimitNone {
		return false
	}
	c.setBounds(now, t, true)
	t.classAt, t.classLimit = t.classWait(now)
	return a.patience(now, t) > now
}

// patience is until when t, for which ranks were chosen, declines them if it has room all the
// time; not after now: it does not.
func (a *affinity) patience(now Instant, t *Ticket) Instant {
	wait := a.core.limits.AffinityWait
	c := &t.choice
	if wait <= 0 || c.Why != ChosenByRoom || c.Best < t.PromptTokens-c.Best {
		return 0
	}
	begun := now
	if t.declining() {
		begun = t.declinesAt
	}
	waited := t.waited
	if t.state == stateQueued {
		waited += now.Sub(t.queuedAt)
	}
	end := min(begun.Add(wait-t.declined), now.Add(declineWithin*min(wait, math.MaxInt64/declineWithin)-waited))
	if bound := t.bound(); bound != never {
		end = min(end, bound-Instant(wait))
	}
	return end
}

// nowDecline notes that a.decline are the waiters of q that decline what there is, and no
// others: their clocks run, and they are looked at again when these have run out.
func (a *affinity) nowDecline(now Instant, q *classQueue) {
	for _, t := range a.decline {
		t.declines = true
	}
	for i := len(q.declining) - 1; i >= 0; i-- {
		if t := q.declining[i]; !t.declines {
			a.core.endDecline(now, t)
		}
	}
	for _, t := range a.decline {
		t.declines = false
		if !t.declining() {
			t.declinesAt = max(now, 1)
			q.declining = append(q.declining, t)
		}
		if end := a.patience(now, t); t.wakeAt != end {
			t.wakeAt = end
			a.core.deadlines.Fix(int(t.deadlinePos))
		}
	}
}

// declining tells whether t, which waits, declines what there is.
func (t *Ticket) declining() bool { return t.declinesAt != 0 }

// endDecline stops the clock of t. REQUIRES: t is declining, and in the heap of deadlines.
func (qs *queues) endDecline(now Instant, t *Ticket) {
	q := t.lane.queue
	i := slices.Index(q.declining, t)
	q.declining = slices.Delete(q.declining, i, i+1)
	t.stopClock(now)
	t.setWake()
	qs.deadlines.Fix(int(t.deadlinePos))
}

// stopClock counts the time for which t has declined ranks since it began to.
func (t *Ticket) stopClock(now Instant) {
	t.declined += now.Sub(t.declinesAt)
	t.declinesAt = 0
}
