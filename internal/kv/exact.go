package kv

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/kv/events"
)

// Exact follows the events of one engine's rank: it makes keys of the token ids that they
// tell, under Scopes of FormTokens. It is the Sink of one stream; other methods are safe for
// concurrent use.
//
// The engine's own hashes only say which block is meant by a removal or as a parent. Blocks
// of one KV cache group with full attention count, and of the tier that prefill uses.
type Exact struct {
	x     *Index
	rank  *Rank
	model string
	live  atomic.Bool
	size  atomic.Int64
	// misses: since it was empty, blocks were told of which the ones before are not known.
	misses atomic.Bool

	mu sync.Mutex // before Rank.mu
	// guarded by mu
	dropped  bool
	grouped  bool // group is known
	group    int
	aside    aside
	lost     bool     // something is not aside any more, and its parents have not come
	contents []uint64 // of the blocks of one event
	scratch  []byte
}

var _ events.Sink = (*Exact)(nil)

// NewExact adds a rank to x whose blocks are those of an engine that serves a base model,
// by the name that Model returns: events do not name it, and the Scope of prompts must. Of Blocks
// it may hold an eighth more: engines may tell of removals after what they made room for.
func NewExact(x *Index, s RankSpec, model string) *Exact {
	s.byHash = true
	return &Exact{x: x, rank: x.Add(s), model: model}
}

// Rank returns the rank that holds the blocks.
func (e *Exact) Rank() *Rank { return e.rank }

// Model returns what the base model is called: the Model of Scopes whose keys can match.
func (e *Exact) Model() string { return e.model }

// Drop removes the rank from the index. What is told after that is ignored.
func (e *Exact) Drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropped = true
	e.live.Store(false)
	e.x.used.Add(-e.aside.clear())
	e.x.Drop(e.rank)
}

// BlockSize returns how many tokens a block has: the Size of Scopes whose keys can match.
// Zero: not known yet.
func (e *Exact) BlockSize() int { return int(e.size.Load()) }

// Live tells whether what is held can be relied on.
func (e *Exact) Live() bool { return e.live.Load() }

// Misses tells whether the engine holds more than was told here: it stores blocks after others
// that are not known, as those of before the stream began are. All prompts that begin with
// these stay unknown for as long as the engine has them.
func (e *Exact) Misses() bool { return e.misses.Load() }

// State is of events.Sink.
func (e *Exact) State(s events.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live.Store(s == events.Live && !e.dropped)
}

// Cleared is of events.Sink.
func (e *Exact) Cleared() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clearLocked()
}

func (e *Exact) clearLocked() {
	e.grouped = false
	e.misses.Store(false)
	e.lost = false
	e.x.used.Add(-e.aside.clear())
	e.x.Clear(e.rank)
}

// Removed is of events.Sink. Each block counts for itself, whether those beside it are known
// or not.
func (e *Exact) Removed(r *events.Removed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.dropped:
		return
	case !events.InGPU(r.Medium):
		e.x.counts.unused[unusedTier].Add(uint64(len(r.Hashes)))
		return
	case e.grouped && r.Group != e.group:
		e.x.counts.unused[unusedGroup].Add(uint64(len(r.Hashes)))
		return
	}
	for hashes := range slices.Chunk(r.Hashes, lockedBlocks) {
		e.removeLocked(hashes)
	}
}

// lockedBlocks is for how many blocks a rank's lock is held.
const lockedBlocks = 512

func (e *Exact) removeLocked(hashes []uint64) {
	e.rank.mu.Lock()
	defer e.rank.mu.Unlock()
	s := step{x: e.x, r: e.rank}
	for i, h := range hashes {
		if i%warmed == 0 {
			next := hashes[i:min(i+warmed, len(hashes))]
			s.warmHashes(next)
			for _, h := range next {
				if at := e.rank.set.find(h); at != 0 {
					s.warmth += e.x.table.warm(e.rank.set.key(at))
				}
			}
		}
		known := s.remove(h)
		freed := e.aside.remove(h)
		e.x.used.Add(-freed)
		if !known && freed == 0 {
			e.x.counts.unused[unusedUnknown].Add(1)
		}
	}
	s.end()
}

// fullAttention tells whether blocks of a KV cache group of a kind are there from a prompt's
// beginning on: those of others are of a window of it, or of a state.
func fullAttention(kind string) bool {
	return kind == "" || strings.Contains(kind, "full") || strings.Contains(kind, "mla")
}

// Stored is of events.Sink.
func (e *Exact) Stored(s *events.Stored) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(s.Hashes)
	unused := &e.x.counts.unused
	switch {
	case e.dropped || n == 0:
		return
	case !events.InGPU(s.Medium):
		unused[unusedTier].Add(uint64(n))
		return
	case !fullAttention(s.Kind) || e.grouped && s.Group != e.group:
		unused[unusedGroup].Add(uint64(n))
		return
	case s.HasParent && slices.Contains(s.Hashes, s.Parent):
		unused[unusedParent].Add(uint64(n))
		return
	}
	if s.BlockSize > 0 {
		n = min(n, len(s.Tokens)/s.BlockSize)
	} else {
		n = 0
	}
	unused[unusedTokens].Add(uint64(len(s.Hashes) - n))
	if n == 0 {
		return
	}
	if was := e.size.Swap(int64(s.BlockSize)); was != 0 && was != int64(s.BlockSize) {
		e.clearLocked() // another configuration: all it held is of no use to it
	}
	e.grouped, e.group = true, s.Group

	sec := secrets.Load()
	salt := e.readBlocks(sec, s, n)
	root := Key(0)
	if !s.HasParent {
		root = sec.root(Scope{Model: e.model, Adapter: s.Adapter, Salt: salt, Form: FormTokens, Size: s.BlockSize})
	}
	e.store(sec, run{parent: s.Parent, hasParent: s.HasParent, root: root, hashes: s.Hashes[:n], contents: e.contents})
	e.adopt(sec)
	e.misses.Store(e.lost || len(e.aside.runs) > 0)
	if cap(e.contents) > keepBlocks {
		e.contents = nil
	}
}

// readBlocks sets e.contents to the hashes of what n blocks hold, and returns the cache salt.
func (e *Exact) readBlocks(sec *secret, s *events.Stored, n int) (salt string) {
	salt = s.Salt
	e.contents = e.contents[:0]
	for i := range n {
		e.scratch = e.scratch[:0]
		for _, t := range s.Tokens[i*s.BlockSize : (i+1)*s.BlockSize] {
			e.scratch = binary.LittleEndian.AppendUint32(e.scratch, t)
		}
		c := sec.block(e.scratch)
		if i < len(s.Extra) {
			extra := s.Extra[i]
			if len(extra) > 0 && s.Adapter != "" && extra[0] == s.Adapter {
				extra = extra[1:]
			}
			// A salt is told with a prompt's first block, after what images there are.
			if i == 0 && !s.HasParent && len(extra) > 0 && (salt == "" || salt == extra[len(extra)-1]) {
				salt, extra = extra[len(extra)-1], extra[:len(extra)-1]
			}
			for _, part := range extra {
				c = uint64(sec.next(Key(c), sec.block([]byte(part))))
			}
		}
		e.contents = append(e.contents, c)
	}
	return salt
}

// keepBlocks is how many blocks there is memory for from event to event.
const keepBlocks = 1 << 14

// run is consecutive blocks of a prompt: after a block, or from its root on.
type run struct {
	parent    uint64
	hasParent bool
	root      Key
	hashes    []uint64
	contents  []uint64
}

// store stores a run; it is kept aside if its parent is not known.
func (e *Exact) store(sec *secret, r run) {
	for len(r.hashes) > 0 {
		n := min(len(r.hashes), lockedBlocks)
		part := r
		part.hashes, part.contents = r.hashes[:n], r.contents[:n]
		switch e.storePart(sec, part) {
		case partUnknown:
			e.keepAside(r)
			return
		case partFull:
			return
		case partReused:
			e.x.counts.unused[unusedReused].Add(uint64(len(r.hashes)))
			e.clearLocked()
			return
		}
		r.parent, r.hasParent = r.hashes[n-1], true
		r.hashes, r.contents = r.hashes[n:], r.contents[n:]
	}
}

type partResult int

const (
	partStored  partResult = iota
	partUnknown            // its parent is not known
	partFull               // there is no room for all of it
	partReused             // a hash stood for another block, so it is not known what any does
)

func (e *Exact) storePart(sec *secret, r run) partResult {
	most, reserved := e.x.reserve(len(r.hashes), entryCost+hashCost)
	defer func() {
		e.x.used.Add(-reserved)
		e.x.sweep(sweepWith + 4*most)
	}()
	e.rank.mu.Lock()
	defer e.rank.mu.Unlock()
	s := step{x: e.x, r: e.rank}
	defer s.end()
	if most == 0 || !s.seated() {
		return partFull
	}
	set := &e.rank.set
	at, k := uint32(0), r.root
	if r.hasParent {
		if at = set.find(r.parent); at == 0 {
			return partUnknown
		}
		k = set.keys[at]
	}
	// The keys are made first, for the memory of several blocks is fetched together.
	var keys [lockedBlocks]Key
	for i := range most {
		k = Key(number(sec.next(k, r.contents[i])))
		keys[i] = k
	}
	newer, added := uint32(0), 0
	defer func() { e.x.counts.stored.Add(uint64(added)) }()
	for i, h := range r.hashes[:most] {
		if k = keys[i]; i%warmed == 0 {
			end := min(i+warmed, most)
			s.warmHashes(r.hashes[i:end])
			s.warmKeys(keys[i:end])
		}
		was := set.find(h)
		if was != 0 && set.keys[was] != k {
			if slices.Contains(r.hashes[:i], h) {
				return partFull // twice in one event: it means nothing
			}
			return partReused
		}
		next, isNew := s.put(was, h, k, at, newer)
		if next == 0 {
			return partFull
		}
		if isNew {
			added++
		}
		at, newer = next, next
	}
	if most < len(r.hashes) {
		return partFull
	}
	return partStored
}

// keepAside keeps a run until its parent comes.
func (e *Exact) keepAside(r run) {
	limit := e.x.opts.MaxBytes
	if limit > 0 && e.x.used.Load() >= limit || len(r.hashes) > asideBlocks {
		e.x.counts.unused[unusedParent].Add(uint64(len(r.hashes)))
		e.lost = true
		return
	}
	bytes, lost := e.aside.add(r)
	e.lost = e.lost || lost > 0
	e.x.used.Add(bytes)
	e.x.counts.unused[unusedParent].Add(uint64(lost))
}

// adopt stores the runs that are aside and whose parents have come.
func (e *Exact) adopt(sec *secret) {
	for len(e.aside.runs) > 0 {
		e.rank.mu.Lock()
		r, bytes, ok := e.aside.take(&e.rank.set)
		e.rank.mu.Unlock()
		if !ok {
			return
		}
		e.x.used.Add(-bytes)
		e.store(sec, r)
	}
}
