package admission

import (
	"strconv"
	"strings"
)

// Target is what a request may be placed on: a model, a shape, and the ranks it
// is pinned to. Targets are resolved before the request arrives, so that the
// gate compares no strings while it decides; their members follow fleet events.
type Target struct {
	// immutable
	model *model
	shape Shape
	key   targetKey // of pinned targets
	pins  [numLegs]string
	gate  *Gate // of pinned targets that a gate resolved

	// guarded by the gate's lock
	refs    int // of pinned targets: tickets that use it
	bits    [numLegs]bitmap
	waiters waiterList
	paired  bool // had a candidate (pair) at the last fleet event
}

type targetKey struct {
	model *model
	shape Shape
	pins  [numLegs]string
}

// TargetSpec names a target.
type TargetSpec struct {
	Model string
	Shape Shape
	// Pins name the rank or worker each leg must run on: a rank id, or a
	// worker. The empty string leaves the choice free. An aggregated request
	// takes DecodeLeg's pin.
	Pins [numLegs]string
}

func (t *Target) pinnedAny() bool { return t.pins[PrefillLeg] != "" || t.pins[DecodeLeg] != "" }

// Model returns the name of the target's pool.
func (t *Target) Model() string { return t.model.name }

// Shape returns the shape of the target.
func (t *Target) Shape() Shape { return t.shape }

func (t *Target) role(l Leg) Role {
	switch {
	case t.shape == Aggregated:
		return RoleRegular
	case l == PrefillLeg:
		return RolePrefill
	}
	return RoleDecode
}

// matches tells whether a pin names the rank. A pin on a worker allows all its
// ranks; a pin "worker@k" allows one.
func matches(pin string, r *Rank) bool {
	return pin == r.id || pin == r.worker
}

func (t *Target) matchRank(r *Rank, present bool) {
	for l := range numLegs {
		if t.pins[l] != "" && t.role(l) == r.role && matches(t.pins[l], r) {
			t.bits[l].put(r.index, present)
		}
	}
}

func (t *Target) grow(words int) {
	for l := range numLegs {
		if t.pins[l] != "" {
			t.bits[l] = t.bits[l].grow(words)
		}
	}
}

// resolve finds the target of a spec; nil when no rank serves the model. A
// pinned target must be given back with unref.
func (c *Core) resolve(s TargetSpec) *Target {
	m := c.models[s.Model]
	if m == nil || m.ranks == 0 {
		if m = c.models[""]; m == nil || m.ranks == 0 {
			return nil
		}
	}
	if s.Pins[PrefillLeg] == "" && s.Pins[DecodeLeg] == "" {
		return m.targets[s.Shape]
	}
	key := targetKey{model: m, shape: s.Shape, pins: s.Pins}
	t := c.pinned[key]
	if t == nil {
		t = &Target{model: m, shape: s.Shape, pins: s.Pins, key: key}
		t.grow(c.words)
		for l := range numLegs {
			for _, r := range c.named[t.pins[l]] {
				t.matchRank(r, true)
			}
		}
		c.pinned[key] = t
	}
	t.refs++
	return t
}

func (c *Core) unref(t *Target) {
	if !t.pinnedAny() {
		return
	}
	if t.refs--; t.refs == 0 {
		delete(c.pinned, t.key)
	}
}

// hasPair tells whether some candidate (disaggregated: some allowed pair of
// candidates) exists for t, room or not.
func (c *Core) hasPair(t *Target) bool {
	m := t.model
	if t.shape == Aggregated {
		p := m.pools[RoleRegular]
		if t.pins[DecodeLeg] == "" {
			return p.candN > 0
		}
		return p.cand.intersects(t.bits[DecodeLeg])
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.candN == 0 || d.candN == 0 {
		return false
	}
	if !t.pinnedAny() {
		for g, n := range p.groupCand {
			if n > 0 && d.groupCand[g] > 0 {
				return true
			}
		}
		return false
	}
	return c.narrow(t, nil, p.cand, d.cand, 0)
}

// legSet says on which legs a ticket's exclusions hold.
type legSet uint8

const (
	onPrefill legSet = 1 << PrefillLeg
	onDecode  legSet = 1 << DecodeLeg
)

// narrow leaves in scratchP and scratchD what of the sets p and d is eligible
// for t, without the ranks of x on the legs of avoid, and of scratchP only
// ranks that may be paired with one in scratchD. It tells whether a pair is
// left.
func (c *Core) narrow(t *Target, x *Exclusions, p, d bitmap, avoid legSet) bool {
	sp, sd := c.scratchP, c.scratchD
	sp.copyFrom(p)
	sd.copyFrom(d)
	if pin := t.bits[PrefillLeg]; pin != nil {
		sp.and(pin)
	}
	if pin := t.bits[DecodeLeg]; pin != nil {
		sd.and(pin)
	}
	if avoid&onPrefill != 0 {
		x.drop(PrefillLeg, sp)
	}
	if avoid&onDecode != 0 {
		x.drop(DecodeLeg, sd)
	}
	if !t.model.soleGroup() {
		for _, g := range c.groups {
			if !g.intersects(sd) {
				sp.andNot(g)
			}
		}
	}
	return !sp.empty() && !sd.empty()
}

// Exclusions are the ranks a retry avoids while others are left, by leg.
type Exclusions [numLegs][]*Rank

// Add excludes r from leg l. At most 16 ranks a leg are remembered; the oldest
// is forgotten first.
func (x *Exclusions) Add(l Leg, r *Rank) {
	for _, e := range x[l] {
		if e == r {
			return
		}
	}
	if len(x[l]) == 16 {
		x[l] = append(x[l][:0], x[l][1:]...)
	}
	x[l] = append(x[l], r)
}

func (x *Exclusions) empty() bool { return len(x[PrefillLeg]) == 0 && len(x[DecodeLeg]) == 0 }

func (x *Exclusions) drop(l Leg, b bitmap) {
	for _, r := range x[l] {
		if r.index >= 0 {
			b.clear(r.index)
		}
	}
}

// SplitRankID takes "url@3" apart. ok is false when s has no rank number.
func SplitRankID(s string) (worker string, rank int, ok bool) {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s, 0, false
	}
	n, err := strconv.ParseUint(s[at+1:], 10, 16)
	if err != nil {
		return s, 0, false
	}
	return s[:at], int(n), true
}
