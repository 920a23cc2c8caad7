package admission

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	number   uint64 // no other target of the gate has it

	// partners are the pairing groups, or with TopologyRequired the domains, of the ranks
	// that may run each leg; see MayUse. Each set is replaced, never changed.
	partners [numLegs]atomic.Pointer[bitmap]

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
	// Pins name the rank or worker each leg must run on: a rank id, a worker, or
	// "@k", the data-parallel rank k of any worker. The empty string leaves the choice free. A request that needs one
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

// pairs tells whether d may follow p for t.
func (t *Target) pairs(p, d *Rank) bool {
	return p.group == d.group && (t.topology != TopologyRequired || p.topology == d.topology)
}

// matches tells whether a pin names the rank. A pin on a worker allows all its
// ranks; a pin "worker@k" allows one, and "@k" the one of that number of each worker.
func matches(pin string, r *Rank) bool {
	return pin == r.id || pin == r.worker || pin == r.number
}

// narrows tells whether the target has a set of its own for a leg.
func (t *Target) narrows(l Leg) bool {
	return t.pins[l] != "" || t.spec.Allowed[l] != nil || len(t.spec.Require[l]) > 0 || t.spec.Adapter != ""
}

// admits tells whether rank r, of the right role, may be what leg l runs on.
func (t *Target) admits(l Leg, r *Rank) bool {
	return t.names(l, r) && t.accepts(l, r.labels, r.adapters)
}

// accepts tells whether a rank of these labels and adapters has what the target requires of
// leg l.
func (t *Target) accepts(l Leg, labels map[string]string, adapters []string) bool {
	s := &t.spec
	for _, want := range s.Require[l] {
		if v, ok := labels[want.Key]; !ok || v != want.Value {
			return false
		}
	}
	return s.Adapter == "" || slices.Contains(adapters, s.Adapter)
}

// names tells whether leg l may run on r by the pin and the allowed set of the target.
func (t *Target) names(l Leg, r *Rank) bool {
	if t.pins[l] != "" && !matches(t.pins[l], r) {
		return false
	}
	allowed := t.spec.Allowed[l]
	return allowed == nil || slices.ContainsFunc(allowed, func(n string) bool { return matches(n, r) })
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

// Resolve finds the target of a spec; nil when no rank serves the model. One that says
// more than model and shape is kept for as long as the gate, or until unref.
func (ix *rankIndex) Resolve(s TargetSpec) *Target {
	m := ix.modelOf(s.Model)
	if m == nil {
		return nil
	}
	return ix.intern(m, s)
}

func (ix *rankIndex) intern(m *model, s TargetSpec) *Target {
	if s.free() {
		return m.targets[s.Shape]
	}
	key := targetKey{model: m, shape: s.Shape, pins: s.Pins, rest: s.rest()}
	t := ix.pinned[key]
	if t == nil {
		t = &Target{model: m, shape: s.Shape, pins: s.Pins, key: key, spec: s.clone(), topology: s.Topology, number: nextTarget(ix)}
		if t.shape != Disaggregated {
			t.topology = TopologyAny
		}
		for l := range numLegs {
			t.prefer[l] = newPreferences(s.Prefer[l])
			t.prefers = t.prefers || len(t.prefer[l].each) > 0
		}
		t.prefers = t.prefers || t.topology == TopologyPreferred
		t.grow(ix.words)
		for _, r := range ix.suspects(t) {
			if r != nil {
				t.matchRank(r, true)
			}
		}
		ix.pinned[key] = t
		publishPartners(ix, t)
	}
	if t.refs == 0 && key.rest != "" {
		ix.idle = slices.DeleteFunc(ix.idle, func(o *Target) bool { return o == t })
	}
	t.refs++
	return t
}

// suspects are the ranks that a new target may match: for one that has only pins
// those they name. By their numbers alone ranks are not found.
func (ix *rankIndex) suspects(t *Target) []*Rank {
	if t.key.rest != "" || strings.HasPrefix(t.pins[PrefillLeg], "@") || strings.HasPrefix(t.pins[DecodeLeg], "@") {
		return ix.ranks
	}
	return append(slices.Clone(ix.named[t.pins[PrefillLeg]]), ix.named[t.pins[DecodeLeg]]...)
}

func (ix *rankIndex) unref(t *Target) {
	if t.free {
		return
	}
	if t.refs--; t.refs > 0 {
		return
	}
	if t.key.rest == "" || t.model.dead {
		delete(ix.pinned, t.key)
		return
	}
	if ix.idle = append(ix.idle, t); len(ix.idle) > maxIdleTargets {
		delete(ix.pinned, ix.idle[0].key)
		ix.idle = slices.Delete(ix.idle, 0, 1)
	}
}

// groupsOf returns the sets of ranks that may be paired with each other for t.
func (ix *rankIndex) groupsOf(t *Target) []bitmap {
	if t.topology == TopologyRequired {
		return ix.domains
	}
	return ix.groups
}

// few returns the ranks that may be what leg l of t runs on, a candidate or not, if they
// are maxParks at most; else none. The memory is used again by the next call.
func (ix *rankIndex) few(t *Target, l Leg) []*Rank {
	if l == numLegs || t.bits[l] == nil {
		return nil
	}
	members := t.model.pools[t.role(l)].members
	few := ix.fewRanks[:0]
	for w, word := range t.bits[l] {
		for word &= members[w]; word != 0; word &= word - 1 {
			if len(few) == maxParks {
				return nil
			}
			few = append(few, ix.ranks[w<<6+bits.TrailingZeros64(word)])
		}
	}
	return few
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

// modelOf is the model that requests for a name go to: where nobody serves it that
// of ranks whose model is not known; nil where there are none.
func (ix *rankIndex) modelOf(name string) *model {
	m := ix.models[name]
	if m == nil || m.ranks == 0 {
		m = ix.models[""]
	}
	if m == nil || m.ranks == 0 {
		return nil
	}
	return m
}
