package admission

// Wait is what is known of a waiting ticket.
type Wait struct {
	Place Place
	// Ends is when the wait ends if the ticket is not decided before, 0: never; then it is
	// refused with the Reason and the Limit.
	Ends   Instant
	Reason Reason
	Kind   LimitKind
	Limit  int64
	Class  string
	Lacked Resource
	// PrefillSlots is as in [Refusal].
	PrefillSlots bool
}

// Wait tells of a ticket that waits, suspended or not.
func (p *Port) Wait(ticket uint64) (w Wait, waits bool) {
	t := p.tickets[ticket]
	if t == nil || t.state != stateQueued && t.state != stateSuspended {
		return w, false
	}
	c := p.core
	w = Wait{
		Place: Place{t.epoch, t.seq}, Class: t.ClassName(), Lacked: t.lacked,
		PrefillSlots: c.limits.PrefillSlots > 0 || c.ownSlots > 0,
	}
	end := t.bound()
	if end == never {
		return w, true
	}
	w.Ends = end
	switch end { // what ends first names the reason
	case t.lostAt:
		w.Reason = NoWorkers
		if t.Target.lacksShare() {
			w.Reason = GateUnavailable
		}
	case t.Deadline:
		w.Reason, w.Kind, w.Limit = DeadlineExceeded, LimitClientWait, t.patience()
	case t.classAt:
		w.Reason, w.Kind, w.Limit = DeadlineExceeded, LimitClassWait, t.classLimit
	default:
		w.Reason, w.Limit = QueueTimeout, int64(t.limitAt.Sub(t.queuedAt)+t.waited)
	}
	if t.Retry {
		w.Reason = RetryRefused
	}
	return w, true
}
