package admission

// BypassRule tells by what the pools hold whether a request may be prefilled where it
// decodes, although prefill and decode are apart.
type BypassRule struct {
	// Short: the request may, however little prefill has to do.
	Short bool
	// PrefillBusy: it may when the prefill tokens of the prefill pool are more than this
	// part of the MaxBatchedTokens of its ranks; nil: that is no reason.
	PrefillBusy *float64
	// DecodeBusy: it may not when the KV blocks booked in the decode pool, with Blocks
	// for the request, are more than this part of all, or these are not known; nil: it
	// does not matter.
	DecodeBusy *float64
	Blocks     int64
}

// Allows tells whether the request may now, by what the pools hold.
func (b *BypassRule) Allows(prefill, decode PoolLoad) bool {
	if most := b.DecodeBusy; most != nil && (decode.KVBlocks == 0 || float64(decode.Blocks+b.Blocks) > *most*float64(decode.KVBlocks)) {
		return false
	}
	return b.Short || b.PrefillBusy != nil && prefill.BatchedTokens > 0 &&
		float64(prefill.PrefillTokens) > *b.PrefillBusy*float64(prefill.BatchedTokens)
}

// reconsider asks a bypass-shaped waiter that came to the head of its lane once
// whether it still wants to prefill where it decodes. It tells whether the
// waiter went to another lane.
func (c *Core) reconsider(now Instant, t *Ticket) bool {
	if t.Target.shape != Bypass || t.reconsidered {
		return false
	}
	t.reconsidered = true
	if t.Bypass == nil || t.Instead == nil || t.Instead.model != t.Target.model || t.Instead.shape == Bypass || !c.chooser.servable(t.Instead) {
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
	c.deadlines.Fix(t.deadlinePos)
	c.insert(now, t)
	// It changed its lane, not its class: the queue was not empty in between.
	q.deficit, q.pace.since, q.pace.grantedThen = deficit, since, granted
	return true
}
