package admission

// preview chooses for several waiters of one target and class without finding the same ranks
// anew for each: most requests are free to run anywhere, so that they differ only in their KV
// blocks and their hints. It chooses the rank that prefills; who is taken is given his decode
// rank by complete.
type preview struct {
	chooser *chooser

	// what was found last; target is nil when it does not hold any more
	target *Target
	class  *class
	s      candidates
	fits   int64 // the most blocks that are known to fit on some decode rank
}

// choose is chooser.choose, but that it may leave the decode rank to complete.
func (v *preview) choose(t *Ticket) Resource {
	if !v.finds(t) {
		v.target = nil // the memory of the sets is used again
		return v.chooser.choose(t)
	}
	l := v.s.gating()
	best := holding{}
	if t.Hints[l].Holders[0].Rank != nil {
		best = v.chooser.bestHolding(t, l, v.s.of(l).set)
	}
	t.Prefill, t.Decode = nil, nil
	r := v.chooser.ask(&v.s, l, &t.Hints[l], -1)
	if l == PrefillLeg {
		t.Prefill = r
	} else {
		t.Decode = r
	}
	best.explain(t, l, r)
	return ResourceNone
}

// complete chooses the decode rank of t, if that was left out.
func (v *preview) complete(t *Ticket) {
	if t.Decode != nil {
		return
	}
	v.target = nil
	var s candidates
	if v.chooser.find(t, &s) != ResourceNone {
		panic("BUG: a waiter with room has none any more")
	}
	t.Decode = v.chooser.ask(&s, DecodeLeg, &t.Hints[DecodeLeg], -1)
}

// finds leaves in v.s the ranks that could prefill t now. It tells whether there are any, and
// room for its decode leg: as far as it can tell without choosing in full.
func (v *preview) finds(t *Ticket) bool {
	f, target, cl := &v.chooser.filter, t.Target, t.class
	if !f.unrestricted(t) || target.prefers {
		return false
	}
	d := target.model.pools[target.role(DecodeLeg)]
	p, l := d, DecodeLeg
	if target.shape == Disaggregated {
		p, l = target.model.pools[RolePrefill], PrefillLeg
	}
	blocks := cl.blockThreshold >= 0
	if p.roomN == 0 || d.roomN == 0 || f.index.ranked(p) || blocks && l == DecodeLeg {
		return false
	}
	if v.target != target || v.class != cl {
		v.s = candidates{}
		if l == PrefillLeg {
			v.s.pools[PrefillLeg], v.s.sets[PrefillLeg] = p, rankSet{set: p.room, n: p.roomN}
		}
		v.s.pools[DecodeLeg], v.s.sets[DecodeLeg] = d, rankSet{set: d.room, n: d.roomN}
		v.target, v.class, v.fits = target, cl, -1
		if i := cl.prefillThreshold; i >= 0 && !f.and(&v.s, l, f.index.prefillThresholds[i].ok) {
			return false
		}
	}
	if !blocks {
		return true
	}
	size := f.index.sizes.only()
	if size == 0 {
		return false
	}
	need := t.blocks(size)
	if need > v.fits {
		decode := v.s // of which the decode leg alone is looked at
		if !f.fitting(t, &decode, cl.blockThreshold) {
			return false
		}
		v.fits = need
	}
	return true
}
