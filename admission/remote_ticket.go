package admission

// The steps of a ticket that a Remote decides about. What the gate has booked of it on its
// own ranks is kept in line first; the Remote is told what has changed, each thing once.

// tell tells the Remote of a step of t that changed something. The gate's lock is held, and
// given back.
func (rg *remoteGate) tell(t *Ticket, changed bool, op StepOp, amount int64) {
	x := t.extra
	attempt := uint32(0)
	if changed {
		attempt = x.attempt
	}
	rg.gate.mu.Unlock()
	if changed {
		rg.Step(x.number, attempt, op, amount)
	}
}

func (rg *remoteGate) startDecode(t *Ticket) {
	rg.gate.mu.Lock()
	starts := t.holdsDecode && !t.decodeActive
	if starts {
		rg.gate.core.StartDecode(t)
	}
	rg.tell(t, starts, StepStartDecode, 0)
}

func (rg *remoteGate) firstToken(t *Ticket) {
	rg.gate.mu.Lock()
	rg.gate.core.endTokens(t)
	first := t.state == stateGranted && !t.extra.first
	t.extra.first = t.extra.first || first
	rg.tell(t, first, StepFirstToken, 0)
}

func (rg *remoteGate) grow(t *Ticket, blocks int64) {
	rg.gate.mu.Lock()
	grows := t.holdsDecode && blocks > 0
	if grows {
		rg.gate.core.growDecode(t, blocks)
		t.extra.grown += min(blocks, maxAmount)
	}
	rg.tell(t, grows, StepGrow, t.extra.grown)
}

func (rg *remoteGate) endPrefill(t *Ticket) {
	rg.gate.mu.Lock()
	rg.tell(t, rg.gate.core.dropPrefill(t), StepEndPrefill, 0)
}

func (rg *remoteGate) endDecode(t *Ticket) {
	rg.gate.mu.Lock()
	rg.tell(t, rg.gate.core.dropAnswer(t), StepEndDecode, 0)
}

func (rg *remoteGate) release(t *Ticket) {
	rg.gate.mu.Lock()
	rg.gate.core.dropPrefill(t)
	rg.gate.core.dropAnswer(t)
	granted := t.state == stateGranted
	if granted {
		t.state = stateIdle
		delete(rg.tickets, t.extra.number)
	}
	rg.tell(t, granted, StepRelease, 0)
}

// forget tells that t does not come again.
func (rg *remoteGate) forget(t *Ticket) {
	rg.gate.mu.Lock()
	rg.tell(t, true, StepForget, 0)
}

// moveDecode is [Ticket.MoveDecode].
func (rg *remoteGate) moveDecode(t *Ticket, exclude []*Rank) bool {
	c := rg.gate.core
	rg.gate.mu.Lock()
	may := t.state == stateGranted && t.holdsDecode && t.Prefill != nil
	number, attempt := t.extra.number, t.extra.attempt
	rg.gate.mu.Unlock()
	var avoid []string
	for _, r := range exclude {
		avoid = append(avoid, r.id)
	}
	for range maxUnusable {
		if !may {
			return false
		}
		id, ok := rg.Move(number, attempt, avoid)
		if !ok {
			return false
		}
		rg.gate.mu.Lock()
		may = t.state == stateGranted && t.holdsDecode && t.extra.attempt == attempt
		next := registered(&c.rankIndex, id, RoleDecode)
		usable := next != nil && t.Target.pairs(t.Prefill, next)
		if may && usable {
			c.dropDecode(t)
			c.bookings++
			c.bookDecode(t, next)
			t.extra.grown = 0
		}
		rg.gate.mu.Unlock()
		if may && usable {
			return true
		}
		avoid = append(avoid, id)
	}
	return false
}
