package admission

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

	ranks      []*Rank // by index
	indexes    int     // indexes handed out so far
	indexCap   int
	words      int // of each bitmap
	freeIndex  []int
	generation uint64             // the highest so far
	named      map[string][]*Rank // by what a pin may say: id and worker

	groupNames  []string
	groups      []bitmap // members by group id, over all pools
	domainKeys  []domainKey
	domains     []bitmap // members by pairing group and topology domain
	sizes       []blockSize
	quarantines []quarantinedPair

	fewRanks [maxParks]*Rank // memory

	pinned map[targetKey]*Target
	idle   []*Target // interned targets without users, the oldest first

	prefillThresholds []*prefillThreshold
	blockThresholds   []*blockThreshold
	assumedMax        int
	reject            RejectThresholds
	rejecting         bool
	over              bitmap // ranks over a reject threshold
	overTurns         uint64 // how often a rank came to be over one

}

// quarantinedPair is a pair of ranks that is not granted, though both work with others.
type quarantinedPair struct{ prefill, decode *Rank }
