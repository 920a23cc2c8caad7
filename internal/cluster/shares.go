package cluster

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// A member that has heard no keeper for its patience may decide alone, on its share of
// every limit. The shares of all members of a list never exceed a limit in sum:
//
//   - of a whole number L (slots, calls, places in a queue) each of n members has L/n
//     rounded down, and one more if it is among the first L mod n in the order of the rank,
//   - of an amount (tokens, blocks) each has 1/n,
//   - that a request always fits on an idle rank is so for the first in the order only.
//
// The order of a rank is by rendezvous, so that a change of the list moves few shares. While
// a new list is proposed and not all have agreed, a member has the smaller of its two shares;
// who is not in one of the lists has none.

// rankShare is what a member on its own may book of one rank, over all its requests.
type rankShare struct {
	None  bool  // nothing: the rank is no candidate
	Slots int64 // requests in prefill; -1: any number
	Calls int64 // calls booked; -1: any number
	Parts int   // amounts are one of so many parts
	First bool  // a request fits on the idle rank, whatever it needs
}

// any tells whether there are shares at all.
func (s *Shares) any() bool { return s.Committed != nil || s.Proposed != nil }

// parts is into how many parts bounds of the whole gate are divided for who; 0: who has none.
func (s *Shares) parts(who Incarnation) (n int) {
	for _, list := range s.lists() {
		if !slices.Contains(list, who) {
			return 0
		}
		n = max(n, len(list))
	}
	return n
}

// lists are those in force.
func (s *Shares) lists() (lists [][]Incarnation) {
	for _, list := range [...][]Incarnation{s.Committed, s.Proposed} {
		if list != nil {
			lists = append(lists, list)
		}
	}
	return lists
}

// bound is the share of who of a whole number that bounds the gate, by its name.
func (s *Shares) bound(limit int64, name string, who Incarnation) int64 {
	least := limit
	lists := s.lists()
	if len(lists) == 0 {
		return 0
	}
	for _, list := range lists {
		n, _ := shareOf(limit, name, list, who)
		least = min(least, n)
	}
	return least
}

// settings are those by which a member on its own decides; nil: there are none. Shares of
// prefill slots are taken by both.
func (s *Shares) settings() *admission.Settings {
	if s.ProposedSettings != nil {
		return s.ProposedSettings
	}
	return s.CommittedSettings
}

// rank is the share of who of a rank.
func (s *Shares) rank(spec *admission.RankSpec, who Incarnation) rankShare {
	x := rankShare{Slots: -1, Calls: -1, First: true, Parts: s.parts(who)}
	if x.Parts == 0 {
		return rankShare{None: true}
	}
	least := func(to *int64, limit int64, list []Incarnation) {
		if limit <= 0 {
			return
		}
		if n, _ := shareOf(limit, spec.ID, list, who); *to < 0 || n < *to {
			*to = n
		}
	}
	for _, list := range s.lists() {
		for _, set := range [...]*admission.Settings{s.CommittedSettings, s.ProposedSettings} {
			if set != nil && spec.Role == admission.RolePrefill {
				least(&x.Slots, int64(slotLimit(spec, set)), list)
			}
		}
		least(&x.Calls, spec.Limits.Running, list)
		if _, first := shareOf(0, spec.ID, list, who); !first {
			x.First = false
		}
	}
	if x.Slots == 0 || x.Calls == 0 {
		return rankShare{None: true}
	}
	return x
}

// slotLimit is how many requests may be in prefill on a rank; zero or less: any number.
func slotLimit(spec *admission.RankSpec, s *admission.Settings) int {
	if n := spec.Limits.PrefillSlots; n > 0 {
		return n
	}
	return s.Limits.PrefillSlots
}

// shareOf is how much of limit a member of a list has by the order of name, and whether it
// is the first there.
func shareOf(limit int64, name string, list []Incarnation, who Incarnation) (share int64, first bool) {
	own, before, there := weight(name, who), int64(0), false
	for _, m := range list {
		if m == who {
			there = true
			continue
		}
		if w := weight(name, m); w > own || w == own && m > who {
			before++
		}
	}
	if !there {
		return 0, false
	}
	n := int64(len(list))
	share = limit / n
	if before < limit%n {
		share++
	}
	return share, before == 0
}

// weight orders the members of a rank. It is the same in every build: FNV-1a, mixed.
func weight(name string, m Incarnation) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= uint64(m)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
