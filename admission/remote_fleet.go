package admission

// What a Remote is told of the ranks and the settings of its gate, and what it is asked of
// the whole.

// apply is [Gate.Apply].
func (rg *remoteGate) apply(changes []Change) {
	rg.telling.Lock()
	defer rg.telling.Unlock()
	var told []FleetChange
	rg.gate.step(func(now Instant, out *[]*Ticket) {
		rg.gate.core.Apply(now, changes, out)
		if !onlyReports(changes) {
			rg.gate.publish()
		}
		told = written(changes)
	})
	rg.Observe(told)
}

// written writes fleet changes down, after they were applied.
func written(changes []Change) []FleetChange {
	all := make([]FleetChange, 0, len(changes))
	for i := range changes {
		ch := &changes[i]
		x := FleetChange{Op: ch.Op, Rank: ch.Rank.ref(), State: ch.State, Attributes: ch.Attributes, Report: ch.Report, Aside: ch.Aside}
		if ch.Op == AddRank {
			spec := specOf(ch.Rank)
			x.Add = &spec
		}
		if ch.Other != nil {
			x.Other = ch.Other.ref()
		}
		all = append(all, x)
	}
	return all
}

// configure puts settings in force by a step of the core, and tells of it.
func (rg *remoteGate) configure(op StepOp, f func(now Instant, out *[]*Ticket)) {
	rg.telling.Lock()
	defer rg.telling.Unlock()
	var s Settings
	rg.gate.step(func(now Instant, out *[]*Ticket) {
		f(now, out)
		s = settingsOf(rg.gate.core)
	})
	rg.Configure(op, s)
}

// configured puts settings in force by a step of the core; a Remote is told.
func configured(g *Gate, op StepOp, f func(now Instant, out *[]*Ticket)) {
	if g.remote != nil {
		g.remote.configure(op, f)
		return
	}
	g.step(f)
}

// stats is what gauges show of a gate with a Remote.
func (rg *remoteGate) stats() Stats {
	if s := rg.Stats(); s != nil {
		return *s
	}
	s := local(rg.gate, (*Core).Stats)
	for i := range s.Ranks {
		r := &s.Ranks[i]
		r.PrefillSlots, r.PrefillLegs, r.PendingDecode, r.ActiveDecode = 0, 0, 0, 0
		r.PrefillTokens, r.PendingBlocks, r.ActiveBlocks = 0, 0, 0
	}
	return s
}

// snapshot is what is known of the whole, else of this gate's own requests.
func (rg *remoteGate) snapshot() Stats {
	if s := rg.Snapshot(); s != nil {
		return *s
	}
	s := local(rg.gate, (*Core).Snapshot)
	s.Waiting = rg.gate.Waiting()
	return s
}

// local describes the core of the gate.
func local(g *Gate, describe func(*Core, Instant) Stats) Stats {
	now := g.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	return describe(g.core, max(now, g.last))
}
