package admission

func (ix *rankIndex) addRank(r *Rank) {
	if r.present {
		panic("BUG: rank " + r.id + " added twice")
	}
	if len(ix.freeIndex) > 0 {
		r.index = ix.freeIndex[len(ix.freeIndex)-1]
		ix.freeIndex = ix.freeIndex[:len(ix.freeIndex)-1]
	} else {
		r.index = ix.indexes
		ix.indexes++
		ix.growIndexes()
	}
	if r.generation == 0 {
		r.generation = ix.generation + 1
	}
	ix.generation = max(ix.generation, r.generation)
	r.present = true
	ix.ranks[r.index] = r
	ix.named.add(r)
	if r.state.Breaker == BreakerHalfOpen {
		r.epoch++
	}
	ix.countVeto(r, r.vetoed)
	ix.indexRank(r)
}

// indexRank enters a rank with an index into what its attributes make it part of.
func (ix *rankIndex) indexRank(r *Rank) {
	r.groupID = ix.group(r.group)
	r.domainID = ix.domain(domainKey{r.group, r.topology})
	ix.groups[r.groupID].set(r.index)
	ix.domains[r.domainID].set(r.index)
	r.facts.Store(&rankFacts{models: r.models, labels: r.labels, adapters: r.adapters, group: r.groupID, domain: r.domainID})
	ix.sizes.join(r, ix.words)
	ix.priorities.join(r, ix.words)
	ix.ownSlots += b2i(r.ownSlots())
	ix.growBlockThresholds(r)
	r.pools = nil
	r.counted = rankLoad{}
	names := r.models
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		p := ix.model(name).pools[r.role]
		if p.members.has(r.index) {
			continue
		}
		p.members.set(r.index)
		p.sum.Ranks++
		p.sum.BatchedTokens += r.capacity.MaxBatchedTokens
		p.sum.KVBlocks += r.capacity.KVBlocks
		p.workers[r.workerName()]++
		p.model.ranks++
		p.shareless += b2i(r.bounds.Share.None)
		if p.groupSize[r.groupID]++; p.groupSize[r.groupID] == 1 {
			p.groupsN++
			p.load.join(r.groupID, ix.indexCap)
		}
		r.pools = append(r.pools, p)
		p.joinLevel(r.priority)
		p.policy.RankAdded(r.index, r.id)
		if p.passing != nil {
			p.passing.RankAdded(r.index, r.id)
		}
	}
	for _, t := range ix.pinned {
		t.matchRank(r, true)
	}
	ix.refresh(r, 0)
}

func (r *Rank) workerName() string {
	if r.worker != "" {
		return r.worker
	}
	return r.id
}

// unindexRank takes a rank out of all that indexRank entered it into. It must not be a
// candidate any more.
func (ix *rankIndex) unindexRank(r *Rank) {
	for _, p := range r.pools {
		p.members.clear(r.index)
		p.leaveLevel(r.priority)
		p.sum.Ranks--
		p.sum.BatchedTokens -= r.capacity.MaxBatchedTokens
		p.sum.KVBlocks -= r.capacity.KVBlocks
		p.sum.add(rankLoad{}.minus(r.counted))
		if w := r.workerName(); p.workers[w] == 1 {
			delete(p.workers, w)
		} else {
			p.workers[w]--
		}
		p.model.ranks--
		p.shareless -= b2i(r.bounds.Share.None)
		p.load.forget(r.index)
		if p.groupSize[r.groupID]--; p.groupSize[r.groupID] == 0 {
			p.groupsN--
			p.load.leave(r.groupID)
		}
		p.policy.RankRemoved(r.index)
		if p.passing != nil {
			p.passing.RankRemoved(r.index)
		}
	}
	for _, t := range ix.pinned {
		t.matchRank(r, false)
	}
	ix.groups[r.groupID].clear(r.index)
	ix.domains[r.domainID].clear(r.index)
	ix.sizes.leave(r)
	ix.priorities.leave(r)
	ix.ownSlots -= b2i(r.ownSlots())
}

func (ix *rankIndex) removeRank(r *Rank) {
	if !r.present {
		return
	}
	setAside(ix, r, Aside{})
	r.present = false
	r.facts.Store(nil)
	ix.refresh(r, 0)
	ix.countVeto(r, false)
	ix.unindexRank(r)
	ix.quarantines.endAll(r)
	ix.named.remove(r)
	ix.ranks[r.index] = nil
	ix.freeIndex = append(ix.freeIndex, r.index)
	r.index = -1
}

// setAttributes gives a registered rank new attributes, in place, so that its holds stay.
func (ix *rankIndex) setAttributes(r *Rank, f RankAttributes) {
	r.present = false
	ix.refresh(r, 0)
	ix.unindexRank(r)
	size := r.blockSize()
	r.setAttributes(f)
	if r.blockSize() != size {
		r.unbooked = 0 // counted in other blocks; the next report tells
	}
	r.present = true
	ix.indexRank(r)
}

func (p *pool) grow(words, indexes, groups int) {
	p.members = p.members.grow(words)
	p.cand = p.cand.grow(words)
	p.room = p.room.grow(words)
	p.warmUp.grow(words)
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

func (ix *rankIndex) growIndexes() {
	if ix.indexes <= ix.indexCap {
		return
	}
	ix.indexCap = max(64, 2*ix.indexCap)
	ix.words = ix.indexCap / 64
	ranks := make([]*Rank, ix.indexCap)
	copy(ranks, ix.ranks)
	ix.ranks = ranks
	for i := range ix.groups {
		ix.groups[i] = ix.groups[i].grow(ix.words)
	}
	for i := range ix.domains {
		ix.domains[i] = ix.domains[i].grow(ix.words)
	}
	for i := range ix.priorities {
		ix.priorities[i].members = ix.priorities[i].members.grow(ix.words)
	}
	for i := range ix.sizes {
		ix.sizes[i].members = ix.sizes[i].members.grow(ix.words)
	}
	for _, g := range ix.prefillThresholds {
		g.ok = g.ok.grow(ix.words)
	}
	for _, g := range ix.blockThresholds {
		g.grow(ix.words)
	}
	ix.over = ix.over.grow(ix.words)
	ix.vetoed = ix.vetoed.grow(ix.words)
	for _, m := range ix.models {
		for _, p := range m.pools {
			p.grow(ix.words, ix.indexCap, len(ix.groupNames))
		}
	}
	for _, t := range ix.pinned {
		t.grow(ix.words)
	}
}

// group interns a pairing group.
func (ix *rankIndex) group(name string) int {
	for i, n := range ix.groupNames {
		if n == name {
			return i
		}
	}
	ix.groupNames = append(ix.groupNames, name)
	ix.groups = append(ix.groups, make(bitmap, ix.words))
	for _, m := range ix.models {
		for _, p := range m.pools {
			p.grow(ix.words, ix.indexCap, len(ix.groupNames))
		}
	}
	return len(ix.groupNames) - 1
}
