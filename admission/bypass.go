package admission

// reconsider asks a bypass-shaped waiter that came to the head of its lane once
// whether it still wants to prefill where it decodes. It tells whether the
// waiter went to another lane.
func (c *Core) reconsider(now Instant, t *Ticket) bool {
	if t.Target.shape != Bypass || t.reconsidered {
		return false
	}
	t.reconsidered = true
	if t.Bypass == nil || t.Instead == nil || t.Instead.model != t.Target.model || t.Instead.shape == Bypass || !c.chooser.servable(t.Instead, t.mask) {
		return false
	}
	m := t.Target.model
	if t.Bypass.Allows(m.pools[RolePrefill].loads(), m.pools[RoleDecode].loads()) {
		return false
	}
	q := t.lane.queue
	deficit, since, granted := q.deficit, q.pace.since, q.pace.grantedThen
	c.extract(now, t)
	t.Target.waiters.remove(t)
	c.waitingBy[t.Target.shape]--
	t.Target, t.Instead = t.Instead, t.Target
	c.waitingBy[t.Target.shape]++
	t.Target.waiters.add(t)
	t.Target.paired = true
	t.lostAt = never
	t.setWake()
	c.deadlines.Fix(int(t.deadlinePos))
	c.insert(now, t)
	// It changed its lane, not its class: the queue was not empty in between.
	q.deficit, q.pace.since, q.pace.grantedThen = deficit, since, granted
	return true
}
