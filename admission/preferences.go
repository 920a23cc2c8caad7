package admission

import (
	"cmp"
	"slices"
)

// Preference makes ranks with a label the better choice.
type Preference struct {
	Label
	// Weight is how much it counts, more than zero, up to a million.
	Weight int
}

// maxPreferences bounds the labels that one leg prefers.
const maxPreferences = 4

// preferences are the labels a leg of a target prefers, and the ranks that have
// them.
type preferences struct {
	each []preference
	// subsets of each by falling weight, as bits; the last is the empty one
	subsets []subset
}

type preference struct {
	Preference
	have bitmap
}

type subset struct {
	labels uint8
	weight int
}

func newPreferences(all []Preference) (p preferences) {
	for _, x := range all {
		if x.Weight > 0 && len(p.each) < maxPreferences {
			x.Weight = min(x.Weight, 1e6)
			p.each = append(p.each, preference{Preference: x})
		}
	}
	for labels := range uint8(1) << len(p.each) {
		s := subset{labels: labels}
		for i, x := range p.each {
			if labels>>i&1 != 0 {
				s.weight += x.Weight
			}
		}
		p.subsets = append(p.subsets, s)
	}
	slices.SortStableFunc(p.subsets, func(a, b subset) int { return cmp.Compare(b.weight, a.weight) })
	return p
}

func (p *preferences) put(r *Rank, present bool) {
	for i := range p.each {
		x := &p.each[i]
		v, ok := r.labels[x.Key]
		x.have.put(r.index, present && ok && v == x.Value)
	}
}

func (p *preferences) grow(words int) {
	for i := range p.each {
		p.each[i].have = p.each[i].have.grow(words)
	}
}

// word returns the members of a subset in word w.
func (p *preferences) word(s subset, w int) uint64 {
	m := ^uint64(0)
	for i := range p.each {
		if s.labels>>i&1 != 0 {
			m &= p.each[i].have[w]
		}
	}
	return m
}

// best returns the heaviest subset that a member of set and group has; ok is
// false when they share none. group nil is all.
func (p *preferences) best(set, group bitmap) (s subset, ok bool) {
	for _, s := range p.subsets {
		for w, word := range set {
			if group != nil {
				word &= group[w]
			}
			if word&p.word(s, w) != 0 {
				return s, true
			}
		}
	}
	return subset{}, false
}

// keep adds to dst the members of set and group that are in a subset of that weight,
// the heaviest that best found. Several subsets may weigh the same.
func (p *preferences) keep(dst, set, group bitmap, weight int) {
	for _, s := range p.subsets {
		if s.weight != weight {
			continue
		}
		for w, word := range set {
			if group != nil {
				word &= group[w]
			}
			dst[w] |= word & p.word(s, w)
		}
	}
}

// topologyWeight is what a shared domain counts for t.
func (t *Target) topologyWeight() int {
	if t.topology != TopologyPreferred {
		return 0
	}
	return min(max(t.spec.TopologyWeight, 1), 1e6)
}
