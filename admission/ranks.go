package admission

import (
	"cmp"
	"slices"
)

// rankIndex is what is known of the ranks, arranged for choosing: which may be what a
// request runs on, which have room, and which keep to the thresholds of a class. It
// also has the pools of the models, and the targets that requests have resolved. It
// knows no waiter.
type rankIndex struct {
	limits    *Limits
	newPolicy PolicyFactory

	models       map[string]*model
	modelsByName []*model // the same, sorted: every step is deterministic
	structure    int      // counts changes of models

	ranks      []*Rank        // by index
	priorities priorityLevels // of the ranks, by falling priority
	indexes    int            // indexes handed out so far
	indexCap   int
	words      int // of each bitmap
	freeIndex  []int
	generation uint64    // the highest so far
	named      rankNames // by what a pin may say: id and worker

	groupNames  []string
	groups      []bitmap // members by group id, over all pools
	domainKeys  []domainKey
	domains     []bitmap // members by pairing group and topology domain
	sizes       blockSizes
	quarantines quarantines
	ownSlots    int // prefill ranks with slots of their own

	fewRanks [maxParks]*Rank // memory

	masks  []*mask
	loaded *loadChanges // nil: nobody asks which ranks' holds have changed

	pinned  map[targetKey]*Target
	targets uint64    // made so far
	idle    []*Target // interned targets without users, the oldest first

	prefillThresholds []*prefillThreshold
	blockThresholds   []*blockThreshold
	assumedMax        int
	reject            RejectThresholds
	rejecting         bool
	over              bitmap // ranks over a reject threshold
	overTurns         uint64 // how often a rank came to be over one
	vetoed            bitmap // ranks without room because of their reports
	vetoedN           int
}

// ranked tells whether some ranks of a pool may go before others.
func (ix *rankIndex) ranked(p *pool) bool { return len(ix.priorities) > 1 || p.warmUp.n > 0 }

func nextTarget(ix *rankIndex) uint64 {
	ix.targets++
	return ix.targets
}

// model returns the pools of a name, making them when they are new.
func (ix *rankIndex) model(name string) *model {
	if m := ix.models[name]; m != nil {
		return m
	}
	m := &model{name: name}
	for role := range numRoles {
		p := &pool{model: m, role: role, policy: ix.newPolicy(name, role), groups: &ix.groups, workers: map[string]int{}}
		p.measure = measureOf(p.policy)
		p.grow(ix.words, ix.indexCap, len(ix.groupNames))
		m.pools[role] = p
	}
	for s := range onPrefillOnly + 1 {
		m.targets[s] = &Target{model: m, shape: s, free: true, number: nextTarget(ix)}
	}
	ix.models[name] = m
	at, _ := slices.BinarySearchFunc(ix.modelsByName, name, func(m *model, n string) int { return cmp.Compare(m.name, n) })
	ix.modelsByName = slices.Insert(ix.modelsByName, at, m)
	ix.structure++
	return m
}
