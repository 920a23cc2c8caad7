package admission

const (
	// assumedBlockSize counts the blocks of ranks that did not tell the size
	// of theirs.
	assumedBlockSize = 16
	// assumedMaxRequests is how many requests a rank of unknown capacity has
	// room for when the options do not say.
	assumedMaxRequests = 64
	// maxAmount bounds every amount of one request, so that no sum overflows.
	maxAmount = 1 << 40
)

func (r *Rank) ownSlots() bool { return r.role == RolePrefill && r.bounds.PrefillSlots > 0 }

// slotLimit is how many requests may be in prefill on a prefill rank; zero or less: any
// number.
func (l *Limits) slotLimit(r *Rank) int {
	if n := r.bounds.PrefillSlots; n > 0 {
		return n
	}
	return l.PrefillSlots
}

// full tells whether r has reached a limit of its own, or of its prefill slots, with
// slots and calls more than it has.
func (l *Limits) full(r *Rank, slots int, calls int64) bool {
	if r.role == RolePrefill {
		if n := l.slotLimit(r); n > 0 && r.slots+slots >= n {
			return true
		}
	}
	return r.bounds.Running > 0 && r.load()+calls >= r.bounds.Running
}

func (r *Rank) blockSize() int64 {
	if r.capacity.BlockSize > 0 {
		return r.capacity.BlockSize
	}
	return assumedBlockSize
}

// blockSize is one size of KV blocks and the ranks that have it. Fleets have one
// or two; each takes one more comparison when decode ranks are sought.
type blockSize struct {
	tokens  int64
	members bitmap
	n       int
	need    uint32 // memory: blocks of the request that is being placed, encoded
}

// blockSizes are those that some rank has, or had.
type blockSizes []blockSize

// only is the tokens of a block where they are the same on all ranks, else 0.
func (x blockSizes) only() (tokens int64) {
	for i := range x {
		switch {
		case x[i].n == 0:
		case tokens != 0:
			return 0
		default:
			tokens = x[i].tokens
		}
	}
	return tokens
}

func (x *blockSizes) join(r *Rank, words int) {
	at := -1
	for i := range *x {
		switch s := &(*x)[i]; {
		case s.tokens == r.blockSize():
			at = i
		case s.n == 0 && at < 0:
			at = i
		}
	}
	if at < 0 {
		at = len(*x)
		*x = append(*x, blockSize{members: make(bitmap, words)})
	}
	s := &(*x)[at]
	s.tokens = r.blockSize()
	s.members.set(r.index)
	s.n++
	r.sizeID = at
}

func (x blockSizes) leave(r *Rank) {
	s := &x[r.sizeID]
	s.members.clear(r.index)
	s.n--
}

// domain interns a pairing group and topology domain, the pairing of requests
// that require both ranks in one domain. A domain without ranks is used again.
func (ix *rankIndex) domain(key domainKey) int {
	free := -1
	for i, k := range ix.domainKeys {
		switch {
		case k == key:
			return i
		case free < 0 && ix.domains[i].empty():
			free = i
		}
	}
	if free < 0 {
		free = len(ix.domainKeys)
		ix.domainKeys = append(ix.domainKeys, domainKey{})
		ix.domains = append(ix.domains, make(bitmap, ix.words))
	}
	ix.domainKeys[free] = key
	return free
}

type domainKey struct{ group, topology string }
