package kv

// Match appends to out the ranks of a group that hold the most first blocks of a chain, at
// most MaxHolders, the one that holds most first. Only ranks for which mayUse is true count;
// nil is all. It allocates nothing if out has room. mayUse must not call the index.
//
// No rank is credited with more blocks than it holds from the first one on without a gap, as
// far as that can be said of something that changes meanwhile. Which of several ranks come
// that hold equally much changes from call to call.
func (x *Index) Match(keys []Key, g Group, mayUse func(*Rank) bool, out []Holder) []Holder {
	turn := x.lookups.Add(1)
	if len(keys) == 0 {
		return out
	}
	m := search{x: x, keys: keys, group: g, mayUse: mayUse, turn: uint32(turn)}
	for i := 0; i < len(keys); i += i + 1 { // where deepest looks first
		m.warmth += x.table.warm(Key(number(keys[i])))
	}
	from := len(out)
	// In all ranks but uneven ones, who holds a block holds those before it: the deeper, the
	// fewer. So the deepest block that anybody holds is found by doubling and halving, and
	// then the next one above it that others hold.
	for m.found < MaxHolders && m.deepest() {
		for _, r := range m.best[:m.bests] {
			out = append(out, Holder{r.Rank, m.depth + 1})
			m.ids[m.found] = r.id
			m.found++
		}
	}
	if x.uneven.Load() > 0 {
		out = m.uneven(out, from)
	}
	if len(out) > from {
		x.counts.found.Add(1)
	}
	return out
}

// search is one Match.
type search struct {
	x      *Index
	keys   []Key
	group  Group
	mayUse func(*Rank) bool
	turn   uint32

	// known and fit are whether a rank may be found, by its number, as far as it was asked.
	known, fit [searchRanks / 64]uint64

	warmth uint64 // keeps reads for their effect from being left out

	found int
	ids   [MaxHolders]uint16

	// The probes so far: how many ranks hold which block, whoever they are.
	probes  int
	at      [maxProbes]int32
	holders [maxProbes]uint16

	// What the last probe that found someone found.
	depth int
	bests int
	best  [MaxHolders]candidate
}

type candidate struct {
	*Rank
	id uint16
}

const (
	// searchRanks is up to which number ranks are asked once in a search.
	searchRanks = 4096
	maxProbes   = 128
)

// deepest finds the deepest block that somebody holds who is not found yet.
func (m *search) deepest() bool {
	lo, hi := -1, len(m.keys)
	if m.probes == 0 {
		if !m.probe(0) {
			return false
		}
		lo = 0
		for step := 1; lo+step < hi; step *= 2 {
			if !m.probe(lo + step) {
				hi = lo + step
				break
			}
			lo += step
		}
	} else {
		hi = m.depth
		for lo < 0 {
			at := -1
			for i := range m.probes {
				switch p := int(m.at[i]); {
				case p >= hi:
				case int(m.holders[i]) <= m.found: // those who hold more, too
					hi = p
				default:
					at = max(at, p)
				}
			}
			if at >= hi { // a probe before lowered hi
				continue
			}
			if at < 0 {
				return false
			}
			if m.probe(at) {
				lo = at
			} else {
				hi = at
			}
		}
	}
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; m.probe(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return true
}

// probe looks for ranks that hold a block and are not found yet, and remembers them if there
// are any.
func (m *search) probe(depth int) bool {
	k := Key(number(m.keys[depth]))
	s, h := m.x.table.place(k)
	var got [MaxHolders]candidate
	for try := 0; ; try++ {
		if try == maxTries {
			s.mu.Lock()
		}
		holders, v, seq := s.readIf(k, h, try == maxTries)
		n, count := 0, holderCount(holders)
		start := 0
		if count > 1 {
			start = int(m.turn % uint32(count))
		}
		for i := range count {
			if i += start; i >= count {
				i -= count
			}
			id := v.holder(holders, i)
			if r := m.usable(id); r != nil {
				got[n] = candidate{r, id}
				if n++; n == MaxHolders-m.found {
					break
				}
			}
		}
		if try == maxTries {
			s.mu.Unlock()
		} else if count > inlineHolders && s.seq.Load() != seq {
			continue // the list may have changed meanwhile
		}
		if m.probes < maxProbes {
			m.at[m.probes], m.holders[m.probes] = int32(depth), uint16(min(count, 1<<16-1))
			m.probes++
		}
		if n == 0 {
			return false
		}
		m.depth, m.bests, m.best = depth, n, got
		return true
	}
}

// maxTries is how often a list is read that changes meanwhile, before writers are held up.
const maxTries = 4

// readIf is read, but for the holder of the shard's lock.
func (s *shard) readIf(k Key, h uint64, locked bool) (holders uint64, v *view, seq uint32) {
	if !locked {
		return s.read(k, h)
	}
	v = s.view.Load()
	return v.lookUp(k, h), v, s.seq.Load()
}

// usable returns the rank of a number if it may be found and is not found yet, else nil.
func (m *search) usable(id uint16) *Rank {
	for _, f := range m.ids[:m.found] {
		if f == id {
			return nil
		}
	}
	if id >= searchRanks {
		if r := m.x.seats.rank(id); m.ask(r) {
			return r
		}
		return nil
	}
	word, bit := &m.known[id/64], uint64(1)<<(id%64)
	if *word&bit != 0 && m.fit[id/64]&bit == 0 {
		return nil
	}
	r := m.x.seats.rank(id)
	if *word&bit != 0 {
		return r
	}
	*word |= bit
	if !m.ask(r) {
		return nil
	}
	m.fit[id/64] |= bit
	return r
}

// ask tells whether a rank may be found.
func (m *search) ask(r *Rank) bool {
	return r != nil && r.group == m.group && r.uneven.Load() == 0 && (m.mayUse == nil || m.mayUse(r))
}

const (
	// maxUneven is how many uneven ranks a Match looks at, unevenDepth how many of a chain's
	// first blocks it looks at for them: each costs a probe.
	maxUneven   = 8
	unevenDepth = 1024
)

// uneven adds what ranks hold whose blocks may lack some before them: for those each block
// is looked up.
func (m *search) uneven(out []Holder, from int) []Holder {
	var left [maxUneven]candidate
	n := m.unevenHolders(&left)
	for depth := 1; n > 0; depth++ {
		kept := 0
		for _, r := range left[:n] {
			if depth < min(len(m.keys), unevenDepth) && m.holds(depth, r.id) {
				left[kept] = r
				kept++
				continue
			}
			at := len(out)
			for at > from && out[at-1].Blocks < depth {
				at--
			}
			if at == from+MaxHolders {
				continue
			}
			if len(out) < from+MaxHolders {
				out = append(out, Holder{})
			}
			copy(out[at+1:], out[at:])
			out[at] = Holder{r.Rank, depth}
		}
		n = kept
	}
	return out
}

// unevenHolders finds the uneven ranks that hold the first block.
func (m *search) unevenHolders(out *[maxUneven]candidate) (n int) {
	k := Key(number(m.keys[0]))
	s, h := m.x.table.place(k)
	holders, v, _ := s.read(k, h)
	for i := 0; i < holderCount(holders) && n < maxUneven; i++ {
		id := v.holder(holders, i)
		r := m.x.seats.rank(id)
		if r != nil && r.group == m.group && r.uneven.Load() > 0 && (m.mayUse == nil || m.mayUse(r)) && m.holds(0, id) {
			out[n] = candidate{r, id}
			n++
		}
	}
	return n
}

// holds tells whether a rank holds a block.
func (m *search) holds(depth int, id uint16) bool {
	k := Key(number(m.keys[depth]))
	s, h := m.x.table.place(k)
	for range maxTries {
		holders, v, seq := s.read(k, h)
		has := v.index(holders, id) >= 0
		if s.seq.Load() == seq {
			return has
		}
	}
	return false
}
