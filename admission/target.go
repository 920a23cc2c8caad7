package admission

import (
	"slices"
	"strconv"
	"strings"
)

// Target is what a request may be placed on: a model, a shape, and the ranks
// that its pins, labels, adapter and allowed sets leave. Targets are resolved
// before the request arrives, so that the gate compares no strings while it
// decides; their members follow fleet events.
type Target struct {
	// immutable
	model    *model
	shape    Shape
	key      targetKey // of targets that are not free
	pins     [numLegs]string
	spec     TargetSpec
	free     bool  // any rank of the model, in any pair
	gate     *Gate // of targets that are not free and that a gate resolved
	topology Topology
	prefers  bool

	// guarded by the gate's lock
	refs    int // of targets that are not free: tickets that use it
	bits    [numLegs]bitmap
	prefer  [numLegs]preferences
	waiters waiterList
	paired  bool // had a candidate (pair) at the last fleet event
}

type targetKey struct {
	model *model
	shape Shape
	pins  [numLegs]string
	rest  string
}

// Label is one label of a rank.
type Label struct{ Key, Value string }

// Topology is what a request wants of the KV-transfer domains of its two ranks.
type Topology uint8

// The wishes. Ranks without a domain are in one together.
const (
	TopologyAny Topology = iota
	TopologyPreferred
	TopologyRequired
)

// TargetSpec names a target.
type TargetSpec struct {
	Model string
	Shape Shape
	// Pins name the rank or worker each leg must run on: a rank id, or a
	// worker. The empty string leaves the choice free. A request that needs one
	// rank takes DecodeLeg's pin, and so for what follows.
	Pins [numLegs]string
	// Allowed are the ranks or workers each leg may run on, named as pins are.
	// Nil allows all.
	Allowed [numLegs][]string
	// Require are labels that the rank of each leg must have.
	Require [numLegs][]Label
	// Prefer are labels that make a rank the better choice, among those with
	// room. At most the first four of a leg count.
	Prefer [numLegs][]Preference
	// Adapter is a LoRA adapter that both ranks must have. Empty: none.
	Adapter string
	// Topology is about both ranks together; TopologyWeight is what sharing a
	// domain counts for when it is preferred, among the weights of Prefer.
	// Zero counts as one.
	Topology       Topology
	TopologyWeight int
}

// free tells whether a spec leaves everything to the gate.
func (s *TargetSpec) free() bool {
	if s.Adapter != "" || s.Topology != TopologyAny {
		return false
	}
	for l := range numLegs {
		if s.Pins[l] != "" || s.Allowed[l] != nil || len(s.Require[l]) > 0 || len(s.Prefer[l]) > 0 {
			return false
		}
	}
	return true
}

// pinsOnly tells whether a spec says no more than pins; such targets are made by
// clients and are not kept.
func (s *TargetSpec) pinsOnly() bool {
	bare := *s
	bare.Pins = [numLegs]string{}
	return bare.free()
}

// rest spells out what a spec says beside model, shape and pins.
func (s *TargetSpec) rest() string {
	if s.pinsOnly() {
		return ""
	}
	var b []byte
	word := func(w string) { b = append(strconv.AppendInt(b, int64(len(w)), 10), ':'); b = append(b, w...) }
	for l := range numLegs {
		if s.Allowed[l] != nil {
			b = append(b, 'a')
			for _, n := range s.Allowed[l] {
				word(n)
			}
		}
		b = append(b, 'r')
		for _, n := range s.Require[l] {
			word(n.Key)
			word(n.Value)
		}
		b = append(b, 'p')
		for _, n := range s.Prefer[l] {
			word(n.Key)
			word(n.Value)
			b = strconv.AppendInt(b, int64(n.Weight), 10)
		}
	}
	word(s.Adapter)
	b = strconv.AppendInt(append(b, 't', '0'+byte(s.Topology), ' '), int64(s.TopologyWeight), 10)
	return string(b)
}

// clone makes s independent of the caller's slices.
func (s TargetSpec) clone() TargetSpec {
	for l := range numLegs {
		s.Allowed[l] = slices.Clone(s.Allowed[l])
		s.Require[l] = slices.Clone(s.Require[l])
		s.Prefer[l] = slices.Clone(s.Prefer[l])
	}
	return s
}

// Model returns the name of the target's pool.
func (t *Target) Model() string { return t.model.name }

// Shape returns the shape of the target.
func (t *Target) Shape() Shape { return t.shape }

func (t *Target) role(l Leg) Role {
	switch {
	case t.shape == Aggregated:
		return RoleRegular
	case t.shape == Disaggregated && l == PrefillLeg, t.shape == onPrefillOnly:
		return RolePrefill
	}
	return RoleDecode
}

// matches tells whether a pin names the rank. A pin on a worker allows all its
// ranks; a pin "worker@k" allows one.
func matches(pin string, r *Rank) bool {
	return pin == r.id || pin == r.worker
}

// narrows tells whether the target has a set of its own for a leg.
func (t *Target) narrows(l Leg) bool {
	return t.pins[l] != "" || t.spec.Allowed[l] != nil || len(t.spec.Require[l]) > 0 || t.spec.Adapter != ""
}

// admits tells whether rank r, of the right role, may be what leg l runs on.
func (t *Target) admits(l Leg, r *Rank) bool {
	s := &t.spec
	if t.pins[l] != "" && !matches(t.pins[l], r) {
		return false
	}
	if s.Allowed[l] != nil && !slices.ContainsFunc(s.Allowed[l], func(n string) bool { return matches(n, r) }) {
		return false
	}
	for _, want := range s.Require[l] {
		if v, ok := r.labels[want.Key]; !ok || v != want.Value {
			return false
		}
	}
	return s.Adapter == "" || slices.Contains(r.adapters, s.Adapter)
}

// matchRank keeps the target's sets in line with a rank that came, changed or
// goes.
func (t *Target) matchRank(r *Rank, present bool) {
	for l := range numLegs {
		if t.role(l) != r.role {
			continue
		}
		if t.narrows(l) {
			t.bits[l].put(r.index, present && t.admits(l, r))
		}
		t.prefer[l].put(r, present)
	}
}

func (t *Target) grow(words int) {
	for l := range numLegs {
		if t.narrows(l) {
			t.bits[l] = t.bits[l].grow(words)
		}
		t.prefer[l].grow(words)
	}
}

// maxIdleTargets bounds the targets that are kept though nobody uses them: those
// that labels, adapters and allowed sets make come again with every request.
const maxIdleTargets = 256

// resolve finds the target of a spec; nil when no rank serves the model. A
// target that is not free must be given back with unref.
func (c *Core) resolve(s TargetSpec) *Target {
	m := c.modelOf(s.Model)
	if m == nil {
		return nil
	}
	return c.intern(m, s)
}

func (c *Core) intern(m *model, s TargetSpec) *Target {
	if s.free() {
		return m.targets[s.Shape]
	}
	key := targetKey{model: m, shape: s.Shape, pins: s.Pins, rest: s.rest()}
	t := c.pinned[key]
	if t == nil {
		t = &Target{model: m, shape: s.Shape, pins: s.Pins, key: key, spec: s.clone(), topology: s.Topology}
		if t.shape != Disaggregated {
			t.topology = TopologyAny
		}
		for l := range numLegs {
			t.prefer[l] = newPreferences(s.Prefer[l])
			t.prefers = t.prefers || len(t.prefer[l].each) > 0
		}
		t.prefers = t.prefers || t.topology == TopologyPreferred
		t.grow(c.words)
		for _, r := range c.suspects(t) {
			if r != nil {
				t.matchRank(r, true)
			}
		}
		c.pinned[key] = t
	}
	if t.refs == 0 && key.rest != "" {
		c.idle = slices.DeleteFunc(c.idle, func(o *Target) bool { return o == t })
	}
	t.refs++
	return t
}

// suspects are the ranks that a new target may match: for one that has only pins
// those they name.
func (c *Core) suspects(t *Target) []*Rank {
	if t.key.rest != "" {
		return c.ranks
	}
	return append(slices.Clone(c.named[t.pins[PrefillLeg]]), c.named[t.pins[DecodeLeg]]...)
}

func (c *Core) unref(t *Target) {
	if t.free {
		return
	}
	if t.refs--; t.refs > 0 {
		return
	}
	if t.key.rest == "" || t.model.dead {
		delete(c.pinned, t.key)
		return
	}
	if c.idle = append(c.idle, t); len(c.idle) > maxIdleTargets {
		delete(c.pinned, c.idle[0].key)
		c.idle = slices.Delete(c.idle, 0, 1)
	}
}

// hasPair tells whether some candidate (disaggregated: some allowed pair of
// candidates) exists for t, room or not.
func (c *Core) hasPair(t *Target) bool {
	m := t.model
	if t.shape != Disaggregated {
		p := m.pools[t.role(DecodeLeg)]
		if t.bits[DecodeLeg] == nil {
			return p.candN > 0
		}
		return p.cand.intersects(t.bits[DecodeLeg])
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.candN == 0 || d.candN == 0 {
		return false
	}
	if t.free {
		for g, n := range p.groupCand {
			if n > 0 && d.groupCand[g] > 0 {
				return true
			}
		}
		return false
	}
	return c.narrow(t, nil, p.cand, d.cand, 0)
}

// legSet says on which legs a ticket's exclusions hold, and whether barred
// pairs do.
type legSet uint8

const (
	onPrefill legSet = 1 << PrefillLeg
	onDecode  legSet = 1 << DecodeLeg
	onPairs   legSet = 1 << numLegs
)

// groupsOf returns the sets of ranks that may be paired with each other for t.
func (c *Core) groupsOf(t *Target) []bitmap {
	if t.topology == TopologyRequired {
		return c.domains
	}
	return c.groups
}

// narrow leaves in scratchP and scratchD what of the sets p and d is eligible
// for t, without the ranks of x on the legs of avoid, and of scratchP only
// ranks that may be paired with one in scratchD. It tells whether a pair is
// left.
func (c *Core) narrow(t *Target, x *Exclusions, p, d bitmap, avoid legSet) bool {
	c.scratchP.copyFrom(p)
	c.scratchD.copyFrom(d)
	return c.restrict(t, x, avoid)
}

// restrict is narrow for what the scratch sets have.
func (c *Core) restrict(t *Target, x *Exclusions, avoid legSet) bool {
	sp, sd := c.scratchP, c.scratchD
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
	if t.topology == TopologyRequired || !t.model.soleGroup() {
		for _, g := range c.groupsOf(t) {
			if !g.intersects(sd) {
				sp.andNot(g)
			}
		}
	}
	if avoid&onPairs != 0 {
		c.dropBarred(t)
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
