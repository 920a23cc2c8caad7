package admission

import (
	"math"
	"time"
)

// lackFor names what the head of the queue waits for, for one who waits behind
// it.
func (q *classQueue) lackFor(own Resource) Resource {
	if own == ResourceTurn && q.closed.by != ResourceNone {
		return q.closed.by
	}
	return own
}

// timeLeft is what remains of the wait that the limits allow, over all waits.
func (qs *queues) timeLeft(t *Ticket) time.Duration {
	if qs.limits.QueueTimeout <= 0 {
		return math.MaxInt64
	}
	return qs.limits.QueueTimeout - t.waited
}

// noWorkerWait is how long t may wait without a candidate.
func (qs *queues) noWorkerWait(t *Ticket) time.Duration {
	return qs.limits.NoWorkerWait - min(max(t.NoWorkerWaited, 0), qs.limits.NoWorkerWait)
}

func (qs *queues) enqueue(now Instant, t *Ticket, pair bool) {
	t.state, t.wasQueue = stateQueued, true
	t.queuedAt, t.hintsAt = now, now
	qs.setBounds(now, t, pair)
	t.setWake()
	t.queuedRaw = min(max(t.PromptTokens, 0), maxAmount)
	t.queuedCached = min(max(t.CachedTokens, 0), t.queuedRaw)
	qs.enter(now, t, pair)
}

// setBounds works out when the wait of t ends, but for the deadlines of its class and its own.
// pair: it has a candidate, or a pair.
func (qs *queues) setBounds(now Instant, t *Ticket, pair bool) {
	t.limitAt, t.lostAt = never, never
	if left := qs.timeLeft(t); left != math.MaxInt64 {
		t.limitAt = now.Add(left)
	}
	if !pair {
		t.lostAt = now.Add(qs.noWorkerWait(t))
	}
}

// enter puts t into every list of waiters. pair: it has a candidate, or a pair.
func (qs *queues) enter(now Instant, t *Ticket, pair bool) {
	qs.insert(now, t)
	qs.deadlines.Push(byDeadline{t})
	t.Target.waiters.add(t)
	if t.mask == nil {
		t.Target.paired = pair
	}
	qs.waitingBy[t.Target.shape]++
	qs.waitingSize += t.size()
	if qs.waiting++; qs.waiting == 1 {
		qs.nextRecheck = now.Add(recheckEvery)
	}
}

// bound is when the wait of t must end.
func (t *Ticket) bound() Instant {
	end := min(t.limitAt, t.lostAt, t.classAt)
	if t.Deadline != 0 {
		end = min(end, t.Deadline)
	}
	return end
}

// setWake has t woken when its wait must end.
func (t *Ticket) setWake() { t.wakeAt = t.bound() }

// dequeue takes a waiter out of every list. The caller decides it. It tells
// whether others may start because of that.
func (qs *queues) dequeue(now Instant, t *Ticket) bool {
	others := qs.extract(now, t)
	qs.deadlines.Remove(int(t.deadlinePos))
	t.Target.waiters.remove(t)
	t.waited += now.Sub(t.queuedAt)
	t.state = stateIdle
	qs.waitingBy[t.Target.shape]--
	qs.waitingSize -= t.size()
	if qs.waiting--; qs.waiting == 0 {
		qs.nextRecheck, qs.nextRefresh = never, never
	}
	return others
}
