package admission

// RankLoad is what is booked on a rank.
type RankLoad struct {
	Slots, PrefillLegs, Pending, Active int
	Tokens, PendingBlocks, ActiveBlocks int64
	// Candidate and Room are as in RankStats.
	Candidate, Room bool
}

func (r *Rank) loadNow() RankLoad {
	return RankLoad{
		Slots: r.slots, PrefillLegs: r.prefill, Pending: r.pending, Active: r.active,
		Tokens: r.tokens, PendingBlocks: r.blocksPending, ActiveBlocks: r.blocksActive,
		Candidate: r.cand, Room: r.room,
	}
}

// loadChanges are the ranks whose loads have changed since somebody asked last.
type loadChanges struct{ ranks []*Rank }

func (x *loadChanges) note(r *Rank) {
	if !r.changed {
		r.changed = true
		x.ranks = append(x.ranks, r)
	}
}

// EachLoad calls do for each registered rank whose load may have changed since the last call,
// with what is booked on it now; the first time for all. It is for one caller.
func (p *Port) EachLoad(do func(RankRef, RankLoad)) {
	ix := &p.core.rankIndex
	if ix.loaded == nil {
		ix.loaded = &loadChanges{}
		for _, r := range ix.ranks {
			if r != nil {
				ix.loaded.note(r)
			}
		}
	}
	for i, r := range ix.loaded.ranks {
		r.changed = false
		if r.present {
			do(r.ref(), r.loadNow())
		}
		ix.loaded.ranks[i] = nil
	}
	ix.loaded.ranks = ix.loaded.ranks[:0]
}

// Load is what is booked on a rank; false: it is not registered.
func (p *Port) Load(ref RankRef) (RankLoad, bool) {
	r := p.ranks[ref]
	if r == nil || !r.present {
		return RankLoad{}, false
	}
	return r.loadNow(), true
}

// PoolLoad is what the ranks of a pool hold together; the zero value when no rank serves the
// model.
func (p *Port) PoolLoad(model string, role Role) PoolLoad {
	if m := p.core.models[model]; m != nil {
		return m.pools[role].loads()
	}
	return PoolLoad{}
}

// Stats describes the core's state; see [Core.Stats].
func (p *Port) Stats(now Instant) Stats { return p.core.Stats(now) }

// Snapshot is Stats with what the heads lack; see [Core.Snapshot].
func (p *Port) Snapshot(now Instant) Stats { return p.core.Snapshot(now) }

// Settings are those in force.
func (p *Port) Settings() Settings { return settingsOf(p.core) }
