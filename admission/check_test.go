package admission

import (
	"fmt"
	"slices"
)

// checkIndexes compares every index of the core with a recount that walks all
// ranks and all waiters, and returns the first difference.
func checkIndexes(c *Core) error {
	if err := checkRanks(c); err != nil {
		return err
	}
	for name, m := range c.models {
		for _, p := range m.pools {
			if err := checkPool(c, p); err != nil {
				return fmt.Errorf("pool %q of %s: %w", name, p.role, err)
			}
		}
	}
	for _, t := range c.pinned {
		if err := checkPinned(c, t); err != nil {
			return fmt.Errorf("target pinned to %q: %w", t.pins, err)
		}
	}
	if err := checkFamilies(c); err != nil {
		return err
	}
	return checkWaiters(c)
}

func checkRanks(c *Core) error {
	var live []*Rank
	for i, r := range c.ranks {
		if r == nil {
			if i < c.indexes && !slices.Contains(c.freeIndex, i) {
				return fmt.Errorf("index %d is neither used nor free", i)
			}
			continue
		}
		live = append(live, r)
		s := r.state
		cand := s.Healthy && !s.Draining && s.Breaker != BreakerOpen
		room := cand && !(s.Breaker == BreakerHalfOpen && r.probes >= s.Probes) &&
			!(r.role == RolePrefill && c.limits.PrefillSlots > 0 && r.slots >= c.limits.PrefillSlots)
		if r.index != i || !r.present || r.cand != cand || r.room != room {
			return fmt.Errorf("rank %s: index %d of %d, present %t, candidate %t want %t, room %t want %t",
				r.id, r.index, i, r.present, r.cand, cand, r.room, room)
		}
		for g, set := range c.groups {
			if set.has(i) != (c.groupNames[g] == r.group) {
				return fmt.Errorf("rank %s: wrong in group %q", r.id, c.groupNames[g])
			}
		}
		for _, name := range []string{r.id, r.worker} {
			if name != "" && !slices.Contains(c.named[name], r) {
				return fmt.Errorf("rank %s is not found by %q", r.id, name)
			}
		}
	}
	for name, rs := range c.named {
		if len(rs) == 0 {
			return fmt.Errorf("an empty entry for %q", name)
		}
		for _, r := range rs {
			if !slices.Contains(live, r) {
				return fmt.Errorf("a removed rank is found by %q", name)
			}
		}
	}
	for _, set := range c.groups {
		for i := range len(set) << 6 {
			if set.has(i) && c.ranks[i] == nil {
				return fmt.Errorf("a group has the free index %d", i)
			}
		}
	}
	return nil
}

func checkPool(c *Core, p *pool) error {
	cands, rooms, groups := 0, 0, 0
	size, cand := make([]int, len(c.groupNames)), make([]int, len(c.groupNames))
	best := make([]*Rank, len(c.groupNames))
	for i, r := range c.ranks {
		serves := r != nil && r.role == p.role &&
			(slices.Contains(r.models, p.model.name) || len(r.models) == 0 && p.model.name == "")
		if p.members.has(i) != serves || p.cand.has(i) != (serves && r.cand) || p.room.has(i) != (serves && r.room) {
			return fmt.Errorf("index %d: member %t want %t, candidate %t, room %t", i, p.members.has(i), serves, p.cand.has(i), p.room.has(i))
		}
		if !serves {
			continue
		}
		if !slices.Contains(r.pools, p) {
			return fmt.Errorf("rank %s does not know its pool", r.id)
		}
		if size[r.groupID]++; size[r.groupID] == 1 {
			groups++
		}
		if p.load.load(i) != r.load() {
			return fmt.Errorf("rank %s: load %d, want %d", r.id, p.load.load(i), r.load())
		}
		if r.cand {
			cands++
			cand[r.groupID]++
		}
		if r.room {
			rooms++
			if b := best[r.groupID]; b == nil || p.load.keys[i] < p.load.keys[b.index] {
				best[r.groupID] = r
			}
		}
	}
	if p.candN != cands || p.roomN != rooms || p.groupsN != groups || !slices.Equal(p.groupSize, size) || !slices.Equal(p.groupCand, cand) {
		return fmt.Errorf("candidates %d want %d, with room %d want %d, groups %d want %d, sizes %v want %v, candidates by group %v want %v",
			p.candN, cands, p.roomN, rooms, p.groupsN, groups, p.groupSize, size, p.groupCand, cand)
	}
	for i := range p.roomN {
		if p.nthRoom(i) != p.room.nth(i) {
			return fmt.Errorf("rank %d with room is index %d, want %d", i, p.nthRoom(i), p.room.nth(i))
		}
	}
	var least *Rank
	for g, b := range best {
		if size[g] == 0 {
			if g < len(p.load.wins) && p.load.wins[g] != nil {
				return fmt.Errorf("a tree for group %d without members", g)
			}
			continue
		}
		root := p.load.wins[g][1]
		if (b == nil) != (root < 0) || b != nil && p.load.keys[root] != p.load.keys[b.index] {
			return fmt.Errorf("the root of group %d is %d", g, root)
		}
		if b != nil && (least == nil || p.load.keys[b.index] < p.load.keys[least.index]) {
			least = b
		}
	}
	if least != nil {
		// n is lied about, so that the trees are asked even in a small pool.
		if got := p.load.min(p.room, fewRanks+1, -1, p.groups); p.load.keys[got] != p.load.keys[least.index] {
			return fmt.Errorf("Min by the trees is %d, want %d", got, least.index)
		}
		if got := p.load.min(p.room, p.roomN, -1, p.groups); p.load.keys[got] != p.load.keys[least.index] {
			return fmt.Errorf("Min is %d, want %d", got, least.index)
		}
	}
	return nil
}

func checkPinned(c *Core, t *Target) error {
	for l := range numLegs {
		if t.pins[l] == "" {
			continue
		}
		for i, r := range c.ranks {
			want := r != nil && r.role == t.role(l) && (r.id == t.pins[l] || r.worker == t.pins[l])
			if t.bits[l].has(i) != want {
				return fmt.Errorf("index %d: %t", i, !want)
			}
		}
	}
	if t.refs <= 0 || c.pinned[t.key] != t {
		return fmt.Errorf("%d references", t.refs)
	}
	return nil
}

// checkFamilies finds which models share a rank by walking from each model.
func checkFamilies(c *Core) error {
	reach := map[string]map[string]bool{}
	for name := range c.models {
		seen := map[string]bool{name: true}
		for grown := true; grown; {
			grown = false
			for _, r := range c.ranks {
				if r == nil || !slices.ContainsFunc(r.models, func(m string) bool { return seen[m] }) {
					continue
				}
				for _, m := range r.models {
					if !seen[m] {
						seen[m], grown = true, true
					}
				}
			}
		}
		reach[name] = seen
	}
	used := map[*family]bool{}
	for a, m := range c.models {
		used[m.family] = true
		for b, o := range c.models {
			if (m.family == o.family) != reach[a][b] {
				return fmt.Errorf("models %q and %q: same family %t, want %t", a, b, m.family == o.family, reach[a][b])
			}
		}
	}
	if len(used) != len(c.families) {
		return fmt.Errorf("%d families, want %d", len(c.families), len(used))
	}
	for _, f := range c.families {
		if !used[f] {
			return fmt.Errorf("a family without models")
		}
		if (f.closed.by == ResourceNone) != (f.queue.len() == 0) {
			return fmt.Errorf("a queue of %d is closed by %s", f.queue.len(), f.closed.by)
		}
	}
	if len(c.ordered) != len(c.models) || !slices.IsSortedFunc(c.ordered, func(a, b *model) int {
		if a.name < b.name {
			return -1
		}
		return 1
	}) {
		return fmt.Errorf("the models are not ordered")
	}
	return nil
}

func checkWaiters(c *Core) error {
	waiting, by := 0, [numShapes]int{}
	first := never
	for _, f := range c.families {
		for i, t := range f.queue.h {
			waiting++
			by[t.Target.shape]++
			first = min(first, t.wakeAt)
			if t.state != stateQueued || t.family != f || t.Target.model.family != f || t.queuePos != i || c.deadlines.h[t.deadlinePos] != t {
				return fmt.Errorf("a waiter is not where it should be")
			}
			if t.holdsPrefill || t.holdsDecode {
				return fmt.Errorf("a waiter holds something")
			}
			if t.before(f.queue.h[max(i-1, 0)/2]) {
				return fmt.Errorf("the queue is no heap")
			}
			if p := t.deadlinePos; c.deadlines.sooner(t, c.deadlines.h[max(p-1, 0)/2]) {
				return fmt.Errorf("the deadlines are no heap")
			}
			want := min(t.limitAt, t.lostAt)
			if t.Deadline != 0 {
				want = min(want, t.Deadline)
			}
			if t.wakeAt != want || t.Target.paired != (t.lostAt == never) {
				return fmt.Errorf("a waiter wakes at %d, want %d; paired %t, lost at %d", t.wakeAt, want, t.Target.paired, t.lostAt)
			}
			listed := false
			for w := t.Target.waiters.first; w != nil; w = w.next {
				listed = listed || w == t
			}
			if !listed {
				return fmt.Errorf("a waiter is not in its target's list")
			}
		}
	}
	if c.waiting != waiting || len(c.deadlines.h) != waiting || c.waitingBy != by {
		return fmt.Errorf("%d waiters, %d deadlines, %v by shape, want %d, %v", c.waiting, len(c.deadlines.h), c.waitingBy, waiting, by)
	}
	if c.deadlines.next() != first || (c.nextRecheck == never) != (waiting == 0) || c.NextDeadline() != min(first, c.nextRecheck) {
		return fmt.Errorf("next deadline %d (recheck %d), want %d with %d waiters", c.deadlines.next(), c.nextRecheck, first, waiting)
	}
	return nil
}
