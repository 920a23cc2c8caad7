package admission

import (
	"slices"
)

func (r *Rank) setFacts(f RankFacts) {
	f = f.clone()
	r.models, r.group, r.topology = f.Models, f.PairGroup, f.Topology
	r.labels, r.adapters, r.capacity = f.Labels, f.Adapters, f.Capacity
}

func (c *Core) addRank(r *Rank) {
	if r.present {
		panic("BUG: rank " + r.id + " added twice")
	}
	if len(c.freeIndex) > 0 {
		r.index = c.freeIndex[len(c.freeIndex)-1]
		c.freeIndex = c.freeIndex[:len(c.freeIndex)-1]
	} else {
		r.index = c.indexes
		c.indexes++
		c.growIndexes()
	}
	r.present = true
	c.ranks[r.index] = r
	c.named[r.id] = append(c.named[r.id], r)
	if r.worker != "" && r.worker != r.id {
		c.named[r.worker] = append(c.named[r.worker], r)
	}
	if r.state.Breaker == BreakerHalfOpen {
		r.epoch++
	}
	c.enrol(r)
}

// enrol enters a rank with an index into what its facts make it part of.
func (c *Core) enrol(r *Rank) {
	r.groupID = c.group(r.group)
	r.domainID = c.domain(domainKey{r.group, r.topology})
	c.groups[r.groupID].set(r.index)
	c.domains[r.domainID].set(r.index)
	c.joinSize(r)
	c.widen(r)
	r.pools = nil
	r.counted = PoolLoad{}
	names := r.models
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		p := c.model(name).pools[r.role]
		if p.members.has(r.index) {
			continue
		}
		p.members.set(r.index)
		p.sum.Ranks++
		p.workers[r.workerName()]++
		p.model.ranks++
		if p.groupSize[r.groupID]++; p.groupSize[r.groupID] == 1 {
			p.groupsN++
			p.load.join(r.groupID, c.indexCap)
		}
		r.pools = append(r.pools, p)
		p.policy.RankAdded(r.index, r.id)
		if p.passing != nil {
			p.passing.RankAdded(r.index, r.id)
		}
	}
	for _, t := range c.pinned {
		t.matchRank(r, true)
	}
	c.refresh(r, 0)
}

func (r *Rank) workerName() string {
	if r.worker != "" {
		return r.worker
	}
	return r.id
}

// strike takes a rank out of all that enrol entered it into. It must not be a
// candidate any more.
func (c *Core) strike(r *Rank) {
	for _, p := range r.pools {
		p.members.clear(r.index)
		p.sum.Ranks--
		p.sum.move(&r.counted, &PoolLoad{})
		if w := r.workerName(); p.workers[w] == 1 {
			delete(p.workers, w)
		} else {
			p.workers[w]--
		}
		p.model.ranks--
		if p.groupSize[r.groupID]--; p.groupSize[r.groupID] == 0 {
			p.groupsN--
			p.load.leave(r.groupID)
		}
		p.policy.RankRemoved(r.index)
		if p.passing != nil {
			p.passing.RankRemoved(r.index)
		}
	}
	for _, t := range c.pinned {
		t.matchRank(r, false)
	}
	c.groups[r.groupID].clear(r.index)
	c.domains[r.domainID].clear(r.index)
	c.leaveSize(r)
}

func (c *Core) removeRank(r *Rank) {
	if !r.present {
		return
	}
	r.present = false
	c.refresh(r, 0)
	c.strike(r)
	c.unbarAll(r)
	c.unname(r.id, r)
	c.unname(r.worker, r)
	c.ranks[r.index] = nil
	c.freeIndex = append(c.freeIndex, r.index)
	r.index = -1
}

// setFacts gives a registered rank new facts, in place, so that its holds stay.
func (c *Core) setFacts(r *Rank, f RankFacts) {
	r.present = false
	c.refresh(r, 0)
	c.strike(r)
	r.setFacts(f)
	r.present = true
	c.enrol(r)
}

func (c *Core) unname(name string, r *Rank) {
	left := slices.DeleteFunc(c.named[name], func(o *Rank) bool { return o == r })
	if len(left) == 0 {
		delete(c.named, name)
	} else {
		c.named[name] = left
	}
}

func (p *pool) grow(words, indexes, groups int) {
	p.members = p.members.grow(words)
	p.cand = p.cand.grow(words)
	p.room = p.room.grow(words)
	for len(p.roomIn)*roomBlock < words {
		p.roomIn = append(p.roomIn, 0)
	}
	if p.load.leaves > 0 {
		p.load.grow(indexes)
	}
	for len(p.groupCand) < groups {
		p.groupCand = append(p.groupCand, 0)
		p.groupSize = append(p.groupSize, 0)
	}
}

func (c *Core) growIndexes() {
	if c.indexes <= c.indexCap {
		return
	}
	c.indexCap = max(64, 2*c.indexCap)
	c.words = c.indexCap / 64
	ranks := make([]*Rank, c.indexCap)
	copy(ranks, c.ranks)
	c.ranks = ranks
	for i := range c.groups {
		c.groups[i] = c.groups[i].grow(c.words)
	}
	for i := range c.domains {
		c.domains[i] = c.domains[i].grow(c.words)
	}
	for i := range c.sizes {
		c.sizes[i].members = c.sizes[i].members.grow(c.words)
	}
	for _, g := range c.prefillGates {
		g.ok = g.ok.grow(c.words)
	}
	for _, g := range c.blockGates {
		g.grow(c.words)
	}
	c.over = c.over.grow(c.words)
	c.scratchP = c.scratchP.grow(c.words)
	c.scratchD = c.scratchD.grow(c.words)
	c.scratchU = c.scratchU.grow(c.words)
	for _, m := range c.models {
		for _, p := range m.pools {
			p.grow(c.words, c.indexCap, len(c.groupNames))
		}
	}
	for _, t := range c.pinned {
		t.grow(c.words)
	}
}

// group interns a pairing group.
func (c *Core) group(name string) int {
	for i, n := range c.groupNames {
		if n == name {
			return i
		}
	}
	c.groupNames = append(c.groupNames, name)
	c.groups = append(c.groups, make(bitmap, c.words))
	for _, m := range c.models {
		for _, p := range m.pools {
			p.grow(c.words, c.indexCap, len(c.groupNames))
		}
	}
	return len(c.groupNames) - 1
}
