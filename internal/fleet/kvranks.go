package fleet

import (
	"cmp"
	"sync/atomic"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/kv"
)

// cacheRanks are what the index of KV caches knows a rank by: one rank there for what the
// router sent it, which is always kept, and one for what its engine tells in events, while
// that can be relied on.
type cacheRanks struct {
	approx *kv.Rank                 // immutable; nil without an index
	bound  int64                    // blocks that approx holds at most, 0: not known; guarded by Fleet.mu
	exact  atomic.Pointer[kv.Exact] // nil: no live stream of events

	stream      atomic.Pointer[rankStream] // replaced with Fleet.mu held; nil: none
	tellsCached atomic.Bool                // its engine reports cached tokens
	whyNone     string                     // why there is no stream; guarded by Fleet.mu

	// registered is the rank's present registration at the gate, nil when it has none. It is
	// replaced with Fleet.mu held.
	registered atomic.Pointer[admission.Rank]
}

// Approx returns the rank by which the index keeps the prompts that this one was sent. It is
// never nil while the fleet has an index; once the rank is gone, what is stored there is
// ignored.
func (r *Rank) Approx() *kv.Rank { return r.caches.approx }

// Exact returns the rank by which the index keeps the blocks that the engine's events name;
// nil while there are no events to rely on.
func (r *Rank) Exact() *kv.Rank {
	if e := r.caches.exact.Load(); e != nil {
		return e.Rank()
	}
	return nil
}

// ExactMisses reports whether the engine holds more than Exact, whose events began after it:
// then what it was sent counts beside. It takes no lock.
func (r *Rank) ExactMisses() bool {
	e := r.caches.exact.Load()
	return e != nil && e.Misses()
}

// ExactScope is what the keys of Exact are made with, beside what a request brings.
type ExactScope struct {
	Model string // one of the names that the engine serves its model by
	Block int    // tokens of a block; 0 while that is not known
}

// ExactScope returns that of Exact; the zero value while there are no events to rely on.
func (r *Rank) ExactScope() ExactScope {
	if e := r.caches.exact.Load(); e != nil {
		return ExactScope{e.Model(), e.BlockSize()}
	}
	return ExactScope{}
}

// Admission returns the rank's present registration at the gate; nil when it has none. It
// takes no lock.
func (r *Rank) Admission() *admission.Rank { return r.caches.registered.Load() }

// addToIndex makes the rank known to the index, if the fleet has one.
func (r *Rank) addToIndex() {
	if x := r.worker.fleet.opts.Index; x != nil {
		r.caches.approx = x.Add(kv.RankSpec{Group: kv.Group(r.worker.role), Data: r})
	}
}

// dropFromIndexLocked takes ranks that are gone for good out of the index.
func (f *Fleet) dropFromIndexLocked(ranks []*Rank) {
	if f.opts.Index == nil {
		return
	}
	for _, r := range ranks {
		f.streams.stopLocked(r)
		f.opts.Index.Drop(r.caches.approx)
	}
}

// startTokensPerByte is assumed of models of which nothing is learned yet.
const startTokensPerByte = 0.25

// boundCachesLocked tells the index how much the worker's ranks hold at most: what is known
// of their KV caches, in bytes of prompts. It follows the capacities, and what is learned of
// the model, of which small changes are left out.
func (f *Fleet) boundCachesLocked(w *Worker) {
	x := f.opts.Index
	if x == nil {
		return
	}
	perByte := 0.0
	for _, r := range w.Ranks() {
		c := r.Capacity()
		if s := r.caches.stream.Load(); s != nil && s.blocks != c.KVBlocks {
			s.blocks = c.KVBlocks
			x.SetBlocks(s.exact.Rank(), int(c.KVBlocks))
		}
		cached := c.KVBlocks * cmp.Or(c.BlockSize, unitBlock)
		if cached > 0 && perByte == 0 {
			perByte = f.tokensPerByte(w)
		}
		bound := int64(0)
		if cached > 0 {
			bound = int64(min(max(float64(cached)/perByte/kv.BlockBytes, 1), maxCapacity))
		}
		if was := r.caches.bound; (was == 0) != (bound == 0) || max(bound-was, was-bound) > was/16 {
			r.caches.bound = bound
			x.SetBlocks(r.caches.approx, int(bound))
		}
	}
}

// tokensPerByte is how many tokens of w's model a byte of a prompt is.
func (f *Fleet) tokensPerByte(w *Worker) float64 {
	learned := 0.0
	if f.opts.TokensPerByte != nil && len(w.models) > 0 {
		learned = f.opts.TokensPerByte(w.models[0])
	}
	if !(learned > 0) {
		return startTokensPerByte
	}
	return learned
}

// emptyCachesLocked has the index forget what the worker's ranks held: its engine is another
// process now, or is dead.
func (f *Fleet) emptyCachesLocked(w *Worker, why string) {
	if f.opts.Index == nil {
		return
	}
	f.streams.forgetLocked(w, why)
	for _, r := range w.Ranks() {
		f.opts.Index.Clear(r.caches.approx)
		r.caches.tellsCached.Store(false)
	}
}
