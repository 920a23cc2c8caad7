package admission

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// checkIndexes compares every index of the core with a recount that walks all
// ranks and all waiters, and returns the first difference.
func checkIndexes(c *Core) error {
	if err := checkRanks(c); err != nil {
		return err
	}
	if err := checkPriorities(c); err != nil {
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
	if err := checkThresholds(c); err != nil {
		return err
	}
	return checkWaiters(c)
}

func checkRanks(c *Core) error {
	var live []*Rank
	if c.vetoed.count() != c.vetoedN {
		return fmt.Errorf("%d ranks are counted as vetoed, want %d", c.vetoedN, c.vetoed.count())
	}
	for i, r := range c.ranks {
		if r == nil {
			if i < c.indexes && !slices.Contains(c.freeIndex, i) {
				return fmt.Errorf("index %d is neither used nor free", i)
			}
			if i < c.indexes && c.vetoed.has(i) {
				return fmt.Errorf("the free index %d is vetoed", i)
			}
			continue
		}
		if c.vetoed.has(i) != r.vetoed {
			return fmt.Errorf("rank %s: in the set of vetoed ranks %t, want %t", r.id, c.vetoed.has(i), r.vetoed)
		}
		live = append(live, r)
		s := r.state
		cand := s.Healthy && !s.Draining && s.Breaker != BreakerOpen && !r.bounds.Share.None
		room := cand && !(s.Breaker == BreakerHalfOpen && r.probes >= plainCount(r, s.Probes)) && !r.vetoed &&
			!(r.role == RolePrefill && c.limits.slotLimit(r) > 0 && r.slots >= c.limits.slotLimit(r)) &&
			!(r.bounds.Running > 0 && r.load() >= r.bounds.Running) && !r.over
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

// checkWarmUp compares the ranks of a pool that warm up, and the levels of its priorities,
// with a recount.
func checkWarmUp(c *Core, p *pool) error {
	n := 0
	levels := map[int]level{}
	for i, r := range c.ranks {
		warms := r != nil && slices.Contains(r.pools, p) && r.cand && r.state.share() > 0
		if r != nil && slices.Contains(r.pools, p) {
			v := levels[r.priority]
			v.priority = r.priority
			v.members++
			v.cand += b2i(r.cand)
			if warms {
				n++
				v.warm++
				v.shares += int64(r.state.Share)
			}
			levels[r.priority] = v
		}
		if has := p.warmUp.members != nil && p.warmUp.members.has(i); has != warms {
			return fmt.Errorf("index %d warms up: %t, want %t", i, has, warms)
		}
	}
	if p.warmUp.n != n || len(p.levels) != len(levels) {
		return fmt.Errorf("%d ranks warm up in %d levels, want %d in %d", p.warmUp.n, len(p.levels), n, len(levels))
	}
	for i, v := range p.levels {
		if v.turn = 0; v != levels[v.priority] || i > 0 && v.priority >= p.levels[i-1].priority {
			return fmt.Errorf("level %d is %+v, want %+v", i, v, levels[v.priority])
		}
	}
	return nil
}

// checkPriorities compares the ranks by priority with a recount.
func checkPriorities(c *Core) error {
	ranks, own := 0, 0
	for k, x := range c.priorities {
		if x.n == 0 || k > 0 && c.priorities[k-1].priority <= x.priority {
			return fmt.Errorf("priority %d: %d ranks, or out of order", x.priority, x.n)
		}
		for i, r := range c.ranks {
			if x.members.has(i) != (r != nil && r.priority == x.priority) {
				return fmt.Errorf("priority %d: index %d", x.priority, i)
			}
		}
		ranks += x.n
	}
	for _, r := range c.ranks {
		if r != nil {
			ranks--
			own += b2i(r.ownSlots())
		}
	}
	if ranks != 0 || own != c.ownSlots {
		return fmt.Errorf("priorities have %d ranks too many; %d have slots of their own, want %d", ranks, c.ownSlots, own)
	}
	return nil
}

func checkPool(c *Core, p *pool) error {
	cands, rooms, groups, overs := 0, 0, 0, 0
	total := int64(0)
	var sum PoolLoad
	workers := map[string]int{}
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
		if want := min(r.amount(p.measure), maxLoad); p.load.load(i) != want {
			return fmt.Errorf("rank %s: load %d, want %d", r.id, p.load.load(i), want)
		}
		total += min(r.amount(p.measure), maxLoad)
		sum.add(r.holds())
		sum.BatchedTokens += r.capacity.MaxBatchedTokens
		sum.KVBlocks += r.capacity.KVBlocks
		sum.Ranks++
		workers[r.workerName()]++
		if r.cand && r.over {
			overs++
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
	if p.load.total != total {
		return fmt.Errorf("load of all %d, want %d", p.load.total, total)
	}
	if err := checkWarmUp(c, p); err != nil {
		return err
	}
	if p.sum != sum || p.overN != overs || !maps.Equal(p.workers, workers) {
		return fmt.Errorf("sums %+v want %+v, overloaded %d want %d, workers %v want %v", p.sum, sum, p.overN, overs, p.workers, workers)
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
		for k, x := range t.prefer[l].each {
			for i, r := range c.ranks {
				v, ok := "", false
				if r != nil && r.role == t.role(l) {
					v, ok = r.labels[x.Key]
				}
				if x.have.has(i) != (ok && v == x.Value) {
					return fmt.Errorf("preference %d: index %d: %t", k, i, x.have.has(i))
				}
			}
		}
		if t.pins[l] == "" && t.spec.Allowed[l] == nil && t.spec.Require[l] == nil && t.spec.Adapter == "" {
			continue
		}
		for i, r := range c.ranks {
			want := r != nil && r.role == t.role(l) && specAdmits(&t.spec, l, r)
			if t.bits[l].has(i) != want {
				return fmt.Errorf("index %d: %t", i, !want)
			}
		}
	}
	if t.refs < 0 || c.pinned[t.key] != t || slices.Contains(c.idle, t) != (t.refs == 0) {
		return fmt.Errorf("%d references", t.refs)
	}
	return nil
}

// specAdmits tells whether a rank of the right role may be what a leg runs on.
func specAdmits(s *TargetSpec, l Leg, r *Rank) bool {
	named := func(n string) bool {
		byNumber := strings.HasPrefix(n, "@") && (strings.HasSuffix(r.id, n) || n == "@0" && !strings.Contains(r.id, "@"))
		return n == r.id || n == r.worker || byNumber
	}
	if s.Pins[l] != "" && !named(s.Pins[l]) || s.Allowed[l] != nil && !slices.ContainsFunc(s.Allowed[l], named) {
		return false
	}
	for _, x := range s.Require[l] {
		if v, ok := r.labels[x.Key]; !ok || v != x.Value {
			return false
		}
	}
	return s.Adapter == "" || slices.Contains(r.adapters, s.Adapter)
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
	used := map[*modelGroup]bool{}
	for a, m := range c.models {
		used[m.modelGroup] = true
		for b, o := range c.models {
			if (m.modelGroup == o.modelGroup) != reach[a][b] {
				return fmt.Errorf("models %q and %q: same family %t, want %t", a, b, m.modelGroup == o.modelGroup, reach[a][b])
			}
		}
	}
	if len(used) != len(c.modelGroups) {
		return fmt.Errorf("%d families, want %d", len(c.modelGroups), len(used))
	}
	for _, f := range c.modelGroups {
		if !used[f] {
			return fmt.Errorf("a family without models")
		}
		for _, p := range f.profiles {
			for _, q := range p.classes {
				open := q.n == 0 || c.limits.lookahead() > 1 && !q.first().blocked() // the first declines what there is
				if (q.closed.by == ResourceNone) != open || q.n == 0 && q.deficit != 0 {
					return fmt.Errorf("a queue of %d is closed by %s, deficit %d", q.n, q.closed.by, q.deficit)
				}
			}
		}
	}
	if len(c.modelsByName) != len(c.models) || !slices.IsSortedFunc(c.modelsByName, func(a, b *model) int {
		if a.name < b.name {
			return -1
		}
		return 1
	}) {
		return fmt.Errorf("the models are not ordered")
	}
	return nil
}

// checkAffinity checks what late binding and the renewal of hints keep of a class.
func checkAffinity(c *Core, q *classQueue) error {
	ready, matchers := 0, 0
	for _, l := range q.all.All() {
		ready += b2i(!l.blocked())
		inOrder := make([]*Ticket, 0, l.waiters.Len())
		for _, w := range l.waiters.All() {
			inOrder = append(inOrder, w.Ticket)
			matchers += b2i(w.Matcher != nil)
		}
		slices.SortFunc(inOrder, func(a, b *Ticket) int {
			if a.ahead(b) {
				return -1
			}
			return 1
		})
		if len(l.front) > len(inOrder) || !slices.Equal(l.front, inOrder[:len(l.front)]) {
			return fmt.Errorf("the front of a lane of class %s, of %d, is not the first of %d waiters", q.class.Name, len(l.front), len(inOrder))
		}
	}
	if ready != q.ready.Len() || matchers != q.refresh.matchers {
		return fmt.Errorf("class %s: %d lanes are not blocked, want %d; %d waiters have matchers, want %d", q.class.Name, q.ready.Len(), ready, q.refresh.matchers, matchers)
	}
	if a := &c.affinity; len(a.walk.at)+len(a.blocked)+len(a.looked)+len(a.willing) > 0 {
		return fmt.Errorf("a look has not ended")
	}
	return nil
}

func checkWaiters(c *Core) error {
	waiting, by, lanes, parks := 0, [numShapes]int{}, 0, 0
	bytes, matchers := int64(0), 0
	first := never
	for _, f := range c.modelGroups {
		inFamily := 0
		for _, p := range f.profiles {
			inProfile := 0
			for _, q := range p.classes {
				n, raw, cached := 0, int64(0), int64(0)
				for i, x := range q.all.All() {
					l := x.lane
					if l.target != nil {
						lanes++
					}
					if l.widePos < 0 {
						parks += l.parksN
					}
					if err := checkLane(q, i, l); err != nil {
						return err
					}
					for i, w := range l.waiters.All() {
						t := w.Ticket
						n++
						raw += t.queuedRaw
						cached += t.queuedCached
						bytes += t.Bytes
						by[t.Target.shape]++
						first = min(first, t.wakeAt)
						if t.modelGroup() != f || t.lane != l || int(t.queuePos) != i || t.queue() != q || l.target != nil && l.target != t.Target || l.mask != t.mask {
							return fmt.Errorf("a waiter is not where it should be")
						}
						if err := checkWaiter(c, t); err != nil {
							return err
						}
					}
				}
				if err := checkAffinity(c, q); err != nil {
					return err
				}
				matchers += q.refresh.matchers
				if q.ready.Len() != 0 && c.limits.lookahead() == 1 {
					return fmt.Errorf("%d heads of class %s were left to be looked at", q.ready.Len(), q.class.Name)
				}
				if q.n != n || q.raw != raw || q.cached != cached {
					return fmt.Errorf("class %s: %d waiters with %d and %d tokens, want %d, %d, %d", q.class.Name, q.n, q.raw, q.cached, n, raw, cached)
				}
				inProfile += n
			}
			if p.waiting != inProfile {
				return fmt.Errorf("%d waiters in a profile, want %d", p.waiting, inProfile)
			}
			inFamily += inProfile
		}
		if o := f.fence.owner; f.waiting != inFamily || o != nil && (o.state != stateQueued || o.modelGroup() != f) {
			return fmt.Errorf("%d waiters in a family, want %d, or a fence without its owner", f.waiting, inFamily)
		}
		waiting += inFamily
	}
	for _, r := range c.ranks {
		if r != nil {
			parks -= len(r.parked)
		}
	}
	if parks != 0 {
		return fmt.Errorf("%d lanes are parked at no rank", parks)
	}
	if c.waiting != waiting || c.deadlines.Len() != waiting || c.waitingBy != by || c.waitingSize != bytes || c.lanes != lanes {
		return fmt.Errorf("%d waiters, %d deadlines, %v by shape, %d bytes, %d lanes, want %d, %v, %d, %d",
			c.waiting, c.deadlines.Len(), c.waitingBy, c.waitingSize, c.lanes, waiting, by, bytes, lanes)
	}
	if c.deadlines.next() != first || (c.nextRecheck == never) != (waiting == 0) || c.NextDeadline() != min(first, c.nextRecheck, c.nextRefresh) || c.matchers != matchers || waiting == 0 && c.nextRefresh != never {
		return fmt.Errorf("next deadline %d (recheck %d), want %d with %d waiters", c.deadlines.next(), c.nextRecheck, first, waiting)
	}
	return nil
}

func checkLane(q *classQueue, i int, l *lane) error {
	if l.queue != q || l.waiters.Len() == 0 || l.classPos != i || l.readyPos >= 0 && q.ready.All()[l.readyPos].lane != l {
		return fmt.Errorf("a lane is not where it should be")
	}
	if blocked := l.readyPos < 0; blocked != (l.widePos >= 0 || l.parksN > 0) || l.widePos >= 0 && (q.wide[l.widePos] != l || l.parksN > 0) {
		return fmt.Errorf("a lane is blocked: %t, and in the wrong place for that", blocked)
	}
	for k, x := range l.parks[:l.parksN] {
		if x.rank.parked[x.pos] != (parkedLane{l, k}) {
			return fmt.Errorf("a lane is not parked where it should be")
		}
	}
	if l.head().ahead(q.all.All()[max(i-1, 0)/2].head()) {
		return fmt.Errorf("the lanes are no heap")
	}
	for i, w := range l.waiters.All() {
		if w.Before(l.waiters.All()[max(i-1, 0)/2]) {
			return fmt.Errorf("the queue is no heap")
		}
	}
	return nil
}

func checkWaiter(c *Core, t *Ticket) error {
	if t.state != stateQueued || c.deadlines.All()[t.deadlinePos].Ticket != t {
		return fmt.Errorf("a waiter is not where it should be")
	}
	if t.holdsPrefill || t.holdsDecode || t.tokens != 0 || t.heldBlocks != 0 {
		return fmt.Errorf("a waiter holds something")
	}
	if p := t.deadlinePos; (byDeadline{t}).Before(c.deadlines.All()[max(p-1, 0)/2]) {
		return fmt.Errorf("the deadlines are no heap")
	}
	want := min(t.limitAt, t.lostAt, t.classAt)
	if t.Deadline != 0 {
		want = min(want, t.Deadline)
	}
	if t.declining() {
		wait := c.limits.AffinityWait
		end := min(t.declinesAt.Add(wait-t.declined), t.queuedAt.Add(declineWithin*wait-t.waited))
		if want != never {
			end = min(end, want-Instant(wait))
		}
		want = end
	}
	if slices.Contains(t.lane.queue.declining, t) != t.declining() {
		return fmt.Errorf("a waiter declines ranks: %t, and its class does not know", t.declining())
	}
	if t.wakeAt != want || hasCandidate(t) != (t.lostAt == never) {
		return fmt.Errorf("a waiter wakes at %d, want %d; paired %t, lost at %d", t.wakeAt, want, t.Target.paired, t.lostAt)
	}
	for w := t.Target.waiters.first; w != nil; w = w.next {
		if w == t {
			return nil
		}
	}
	return fmt.Errorf("a waiter is not in its target's list")
}

// checkThresholds compares the sets of the classes' thresholds with the holds.
func checkThresholds(c *Core) error {
	for i, r := range c.ranks {
		if r == nil {
			continue
		}
		over := false
		if v := c.reject.ActivePrefillTokens; v != nil {
			over = over || float64(r.tokens) > plainPart(r, float64(*v))
		}
		if v := c.reject.ActivePrefillTokensFrac; v != nil && r.capacity.MaxBatchedTokens > 0 {
			over = over || float64(r.tokens) > plainPart(r, *v*float64(r.capacity.MaxBatchedTokens)+1e-6)
		}
		if v := c.reject.ActiveDecodeBlocks; v != nil && r.capacity.KVBlocks > 0 && r.role != RolePrefill {
			over = over || float64(r.blocksPending+r.blocksActive) > plainPart(r, *v*float64(r.capacity.KVBlocks)+1e-6)
		}
		if r.over != over || c.over.has(i) != over {
			return fmt.Errorf("rank %s: over a reject threshold %t, want %t", r.id, r.over, over)
		}
		for _, g := range c.prefillThresholds {
			if g.ok.has(i) != plainNotBusy(c, r, g.tokens, g.frac) {
				return fmt.Errorf("rank %s: not busy %t", r.id, g.ok.has(i))
			}
		}
		if r.role == RolePrefill {
			continue
		}
		for _, g := range c.blockThresholds {
			for _, need := range []int64{0, 1, 2, 3, 5, 8, 13, 40, 1000, 1 << 40} {
				got := g.atLeast(i>>6, g.encodeNeed(need), 1<<(i&63)) != 0
				one := make(bitmap, c.words)
				one.set(i)
				if n := g.among(one, one, g.encodeNeed(need)); (n == 1) != got || one.has(i) != got {
					return fmt.Errorf("rank %s: %d blocks fit: %t alone, not in a set", r.id, need, got)
				}
				if want := plainFits(c, r, g.frac, need); got != want {
					return fmt.Errorf("rank %s: %d blocks fit under %g: %t, want %t", r.id, need, g.frac, got, want)
				}
			}
		}
	}
	for _, s := range c.sizes {
		for i, r := range c.ranks {
			if s.members.has(i) != (r != nil && s.n > 0 && r.blockSize() == s.tokens) {
				return fmt.Errorf("index %d: wrong in block size %d", i, s.tokens)
			}
		}
	}
	for k, set := range c.domains {
		for i, r := range c.ranks {
			if set.has(i) != (r != nil && c.domainKeys[k] == domainKey{r.group, r.topology}) {
				return fmt.Errorf("index %d: wrong in domain %v", i, c.domainKeys[k])
			}
		}
	}
	return nil
}

// assumedRoom tells whether a rank of unknown capacity has room.
func assumedRoom(c *Core, r *Rank) bool {
	most := int64(64)
	if c.assumedMax > 0 {
		most = int64(c.assumedMax)
	}
	if r.capacity.MaxRunning > 0 {
		most = r.capacity.MaxRunning
	}
	most = int64(plainCount(r, int(most)))
	if r.role == RolePrefill {
		return int64(r.prefill) < most
	}
	return int64(r.pending+r.active) < most
}

func plainNotBusy(c *Core, r *Rank, tokens *int64, frac *float64) bool {
	if tokens != nil && float64(r.tokens) > plainPart(r, float64(*tokens)) {
		return false
	}
	switch {
	case frac == nil:
	case r.capacity.MaxBatchedTokens == 0:
		return assumedRoom(c, r)
	case float64(r.tokens) > plainPart(r, *frac*float64(r.capacity.MaxBatchedTokens)+1e-6):
		return false
	}
	return true
}

func plainFits(c *Core, r *Rank, frac float64, need int64) bool {
	switch {
	case r.pending+r.active == 0 && r.unbooked+r.blocksActive == 0 && !r.bounds.Share.NotFirst:
		return true
	case r.capacity.KVBlocks == 0:
		return assumedRoom(c, r)
	}
	return float64(r.blocksPending+r.blocksActive+r.unbooked+need) <= plainPart(r, frac*float64(r.capacity.KVBlocks)+1e-6)
}

// plainPart is the share of an amount of r, and plainCount that of a number of requests.
func plainPart(r *Rank, limit float64) float64 {
	if n := r.bounds.Share.Parts; n > 1 {
		return math.Floor(math.Floor(limit) / float64(n))
	}
	return limit
}

func plainCount(r *Rank, limit int) int {
	n := r.bounds.Share.Parts
	switch {
	case n <= 1:
		return limit
	case !r.bounds.Share.NotFirst && limit%n > 0:
		return limit/n + 1
	}
	return limit / n
}
