package admission

import "slices"

// Apply makes fleet changes take effect together. Waiters that are left without
// a candidate are ended, those for whom there is room now are granted.
func (c *Core) Apply(now Instant, changes []Change, out *[]*Ticket) {
	c.tick(now)
	structure := false
	for _, ch := range changes {
		switch ch.Op {
		case AddRank:
			structure = structure || len(ch.Rank.models) > 1
			c.addRank(ch.Rank)
		case RemoveRank:
			structure = structure || len(ch.Rank.models) > 1
			c.removeRank(ch.Rank)
		case SetState:
			if ch.Rank.present {
				c.setState(ch.Rank, ch.State)
			}
		case SetFacts:
			if ch.Rank.present {
				structure = structure || len(ch.Rank.models) > 1 || len(ch.Facts.Models) > 1
				c.setFacts(ch.Rank, ch.Facts)
			}
		case BarPair:
			c.quarantine(ch.Rank, ch.Other)
		case UnbarPair:
			c.endQuarantine(ch.Rank, ch.Other)
		}
	}
	c.chooser.grow()
	c.restructure(now, &c.rankIndex, structure)
	for _, m := range c.modelsByName {
		for _, t := range m.targets {
			c.recheckTarget(now, t)
		}
	}
	for _, t := range c.pinned {
		c.recheckTarget(now, t)
	}
	c.refuseUnservable(now, NoWorkers, ResourceWorker, out)
	c.dropUnusedModels()
	for _, f := range c.families {
		c.moveFence(f)
		c.wake(f, nil)
		c.drain(now, f, out)
	}
}

// recheckTarget finds the waiters of a target that has no candidate any more,
// for refuseUnservable, or starts the time they still have.
func (c *Core) recheckTarget(now Instant, t *Target) {
	if t.waiters.first == nil {
		return
	}
	pair := c.chooser.servable(t)
	if pair == t.paired && (pair || c.limits.NoWorkerWait > 0) {
		return
	}
	t.paired = pair
	for w := t.waiters.first; w != nil; w = w.next {
		switch {
		case pair:
			w.lostAt = never
			w.setWake()
			c.deadlines.fix(w)
		case c.limits.NoWorkerWait > 0:
			w.lostAt = now.Add(c.noWorkerWait(w))
			w.setWake()
			c.deadlines.fix(w)
		default:
			c.unservable = append(c.unservable, w)
		}
	}
}

// refuseUnservable ends the waiters in c.unservable, the oldest first.
func (c *Core) refuseUnservable(now Instant, why Reason, lack Resource, out *[]*Ticket) {
	slices.SortFunc(c.unservable, (*Ticket).compare)
	for i, t := range c.unservable {
		c.dequeue(now, t)
		c.refuse(now, t, why, lack, 0, out)
		c.unservable[i] = nil
	}
	c.unservable = c.unservable[:0]
}

// requeue finds a target anew whose model had lost all ranks. The class stays: a
// request that is under way has the one it was granted with.
func (c *Core) requeue(now Instant, t *Ticket) {
	old := t.Target
	t.Target = c.intern(c.model(old.model.name), old.spec.withShape(old.shape))
	if !old.free {
		if t.Target.gate == nil {
			t.Target.gate = old.gate
		}
		c.unref(old)
	}
	c.restructure(now, &c.rankIndex, false)
}

func (s TargetSpec) withShape(shape Shape) TargetSpec {
	s.Shape = shape
	return s
}

// dropUnusedModels forgets models that no rank serves and nobody waits for.
func (c *Core) dropUnusedModels() {
	for name, m := range c.models {
		if m.ranks > 0 {
			continue
		}
		waits := false
		for _, t := range m.targets {
			waits = waits || t.waiters.first != nil
		}
		for _, t := range c.pinned {
			waits = waits || t.model == m
		}
		if waits {
			continue
		}
		m.dead = true
		c.idle = slices.DeleteFunc(c.idle, func(t *Target) bool {
			if t.model == m {
				delete(c.pinned, t.key)
			}
			return t.model == m
		})
		delete(c.models, name)
		c.modelsByName = slices.DeleteFunc(c.modelsByName, func(o *model) bool { return o == m })
		shared := false
		for _, o := range c.models {
			shared = shared || o.family == m.family
		}
		if !shared {
			c.families = slices.DeleteFunc(c.families, func(f *family) bool { return f == m.family })
		}
	}
}

// ChangeOp is what a [Change] does.
type ChangeOp uint8

// Change is one fleet event.
type Change struct {
	Op    ChangeOp
	Rank  *Rank
	State RankState // for SetState
	Facts RankFacts // for SetFacts
	Other *Rank     // for BarPair and UnbarPair
}

// The changes. Those of one Apply take effect together: a worker is replaced by
// removing its old ranks and adding the new ones in one call.
const (
	AddRank ChangeOp = iota
	RemoveRank
	SetState
	// SetFacts replaces what is known of a rank: models, pairing, labels,
	// adapters, capacity. Its holds stay.
	SetFacts
	// BarPair keeps the pair of the prefill rank Rank and the decode rank Other
	// from new grants while another pair is left to a request: both work with
	// others, but not together. UnbarPair ends that, and so does the removal of
	// one of them. At most 64 pairs are quarantined, the oldest is forgotten first.
	BarPair
	UnbarPair
)
