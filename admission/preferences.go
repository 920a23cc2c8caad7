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

// preferPrefill keeps the prefill ranks of the best pairs: labels of both ranks and the
// domain they share count together.
func (ch *chooser) preferPrefill(t *Target, s *candidates) {
	p, d := s.sets[PrefillLeg].set, s.sets[DecodeLeg].set
	pp, pd := &t.prefer[PrefillLeg], &t.prefer[DecodeLeg]
	most := -1
	clear(ch.spare)
	consider := func(groups []bitmap, extra int) {
		for _, g := range groups {
			bestP, ok := pp.best(p, g)
			if !ok {
				continue
			}
			bestD, ok := pd.best(d, g)
			if !ok {
				continue
			}
			sum := bestP.weight + bestD.weight + extra
			if sum < most {
				continue
			}
			if sum > most {
				most = sum
				clear(ch.spare)
			}
			pp.keep(ch.spare, p, g, bestP.weight)
		}
	}
	consider(ch.index.groupsOf(t), 0)
	if t.topology == TopologyPreferred {
		consider(ch.index.domains, t.topologyWeight())
	}
	ch.keepSpare(s, PrefillLeg)
}

// preferDecode keeps, of the ranks that may follow pr, the best for that. pr may have
// been removed since; then its domain counts for nothing.
func (ch *chooser) preferDecode(t *Target, s *candidates, pr *Rank) {
	set := s.sets[DecodeLeg].set
	pd := &t.prefer[DecodeLeg]
	best, _ := pd.best(set, nil)
	clear(ch.spare)
	if t.topology == TopologyPreferred && pr != nil && pr.present {
		domain := ch.index.domains[pr.domainID]
		if near, ok := pd.best(set, domain); ok && near.weight+t.topologyWeight() >= best.weight {
			pd.keep(ch.spare, set, domain, near.weight)
			if near.weight+t.topologyWeight() > best.weight {
				ch.keepSpare(s, DecodeLeg)
				return
			}
		}
	}
	pd.keep(ch.spare, set, nil, best.weight)
	ch.keepSpare(s, DecodeLeg)
}

// preferSingle keeps the best ranks for a request that needs one.
func (ch *chooser) preferSingle(t *Target, s *candidates) { ch.preferDecode(t, s, nil) }

// keepSpare makes the candidates of a leg those in the spare set.
func (ch *chooser) keepSpare(s *candidates, l Leg) {
	ch.own[l].copyFrom(ch.spare)
	*s.of(l) = rankSet{set: ch.own[l], n: -1}
}
