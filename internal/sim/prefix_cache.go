package sim

import (
	"bytes"
	"sync"
)

// prefixCache holds the KV blocks that one rank has computed or received and could
// reuse for a prompt that begins alike. It is an exact LRU: a block over the capacity
// evicts the one that was used longest ago. Of the blocks of a prompt the last counts
// as used before the first, so that a chain loses its tail first and never its root.
type prefixCache struct {
	// Immutable.
	capacity int       // blocks
	size     int       // tokens of a block
	events   *eventLog // nil: nobody is told

	mu     sync.Mutex // guards the fields below
	blocks map[uint64]*cachedBlock
	ends   cachedBlock // of the list: next is the least recently used, prev the most
}

type cachedBlock struct {
	key        uint64
	prev, next *cachedBlock
}

// cacheScope says whose prompts share blocks, and what events tell about them.
type cacheScope struct {
	adapter   string // of LoRA
	adapterID int    // from 1
	salt      string
	session   string // the tag of the request, in events only
	full      bool   // the events tell the whole prompt, cached blocks too
}

func newPrefixCache(capacity, size int, events *eventLog) *prefixCache {
	c := &prefixCache{capacity: capacity, size: size, events: events}
	c.resetLocked()
	return c
}

func (c *prefixCache) resetLocked() {
	c.blocks = make(map[uint64]*cachedBlock)
	c.ends.prev, c.ends.next = &c.ends, &c.ends
}

func (b *cachedBlock) unlink() {
	b.prev.next, b.next.prev = b.next, b.prev
}

// touchLocked makes a block the most recently used one.
func (c *prefixCache) touchLocked(b *cachedBlock) {
	b.prev, b.next = c.ends.prev, &c.ends
	b.prev.next, c.ends.prev = b, b
}

// match returns how many tokens of a prompt are cached, in whole blocks, and counts
// as a use of them. The last token is always computed: its output is the first
// output token.
func (c *prefixCache) match(p *prompt, scope *cacheScope) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for most := (p.tokens - 1) / c.size; n < min(most, len(p.blocks)) && c.blocks[p.blocks[n]] != nil; {
		n++
	}
	c.useLocked(p.blocks[:n])
	if scope.full && n > 0 && c.events != nil {
		c.events.stored(p, 0, n, c.size, scope)
	}
	return n * c.size
}

// useLocked counts as a use of those of a chain's blocks that are cached, the first of
// them last.
func (c *prefixCache) useLocked(keys []uint64) {
	for i := len(keys) - 1; i >= 0; i-- {
		if b := c.blocks[keys[i]]; b != nil {
			b.unlink()
			c.touchLocked(b)
		}
	}
}

// store puts the blocks of a prompt into the cache, as many as it can hold.
func (c *prefixCache) store(p *prompt, scope *cacheScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := p.blocks[:min(len(p.blocks), c.capacity)]
	missing := 0
	for i := len(keys) - 1; i >= 0; i-- { // what is there must not be evicted for the rest
		if b := c.blocks[keys[i]]; b != nil {
			b.unlink()
			c.touchLocked(b)
		} else {
			missing++
		}
	}
	if missing == 0 {
		return
	}
	for len(c.blocks)+missing > c.capacity {
		b := c.ends.next
		b.unlink()
		delete(c.blocks, b.key)
		if c.events != nil {
			c.events.removed(b.key)
		}
	}
	from := -1 // of a run of new blocks
	for i, k := range keys {
		if c.blocks[k] == nil {
			b := &cachedBlock{key: k}
			c.blocks[k] = b
			c.touchLocked(b)
			if from < 0 {
				from = i
			}
			continue
		}
		if from >= 0 && c.events != nil {
			c.events.stored(p, from, i, c.size, scope)
		}
		from = -1
	}
	if from >= 0 && c.events != nil {
		c.events.stored(p, from, len(keys), c.size, scope)
	}
	c.useLocked(keys)
}

// clear forgets everything. That it did is told with the next request's step.
func (c *prefixCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetLocked()
	if c.events != nil {
		c.events.cleared()
	}
}

// held is the number of blocks in the cache.
func (c *prefixCache) held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.blocks)
}

// growth follows the output of a sequence, whose tokens are cached too: the next turn
// of a conversation begins with them. The text is tokenized as the next prompt will
// be, so its tokens are not those that the engine counts.
type growth struct {
	cache  *prefixCache
	scope  *cacheScope
	hasher *hasher
	carry  []byte // text that does not fill a token yet
	text   func(b []byte, k int) []byte
	token  func(k int) uint32 // instead of text
	stored int                // blocks
}

// add takes output token k.
func (g *growth) add(k int) {
	if g.token != nil {
		g.hasher.add(int64(g.token(k)))
	} else {
		g.carry = g.text(g.carry, k)
		n := pieces(g.carry, g.hasher.add)
		g.carry = g.carry[:copy(g.carry, g.carry[n:])]
	}
	if len(g.hasher.blocks) > g.stored {
		g.stored = len(g.hasher.blocks)
		g.cache.store(&g.hasher.prompt, g.scope)
		g.cache.events.step()
	}
}

// cachedPrompt is a sequence's prompt on its way through the engine and into its rank's
// prefix cache.
type cachedPrompt struct {
	w        *Worker
	l        *lifetime
	s        *sequence
	external int // tokens that came from elsewhere
}

// cache is the rank's, nil if there is none or the prompt has no tokens that it knows.
func (p cachedPrompt) cache() *prefixCache {
	if p.l.caches == nil || p.s.content == nil {
		return nil
	}
	return p.l.caches[p.s.rank]
}

// size looks the prompt up when it begins to compute, and returns how many of its
// tokens are to be computed.
func (p cachedPrompt) size() int {
	s, found := p.s, 0
	if c := p.cache(); c != nil {
		found = min(c.match(s.content, s.scope), s.prompt-1)
		s.cached = max(s.cached, found)
		p.w.note(func() {
			hit := max(0, found-p.external)
			r := &p.w.counts[s.rank]
			r.queried += s.prompt
			r.hit += hit
			p.w.stats.CachedTokens += int64(hit)
		})
	}
	if s.content != nil {
		s.created = max(0, len(s.content.blocks)*p.w.opt.CacheBlock-max(p.external, found))
	}
	return s.prompt - max(p.external, found)
}

// planned caches the prompt: who is scheduled from now on finds it.
func (p cachedPrompt) planned() {
	if c := p.cache(); c != nil {
		c.store(p.s.content, p.s.scope)
	}
}

// computed ends the step, with which events leave. From now on the output is cached.
func (p cachedPrompt) computed() {
	c, s := p.cache(), p.s
	if c == nil {
		return
	}
	c.events.step()
	if s.content.grow != nil && (s.text != nil || s.token != nil) && s.out > 1 {
		h := s.content.grow.fork()
		s.growth = &growth{cache: c, scope: s.scope, hasher: h, carry: bytes.Clone(s.content.carry), text: s.text, token: s.token, stored: len(h.blocks)}
	}
}

// received caches a prompt that came as a whole from another engine.
func (p cachedPrompt) received() {
	p.planned()
	p.computed()
}

// freeBlocks counts as a use of what a sequence had in the cache: while it ran its
// blocks were in use, and they are free from now on.
func (w *Worker) freeBlocks(l *lifetime, s *sequence) {
	c := cachedPrompt{w, l, s, 0}.cache()
	if c == nil {
		return
	}
	keys := s.content.blocks
	if s.growth != nil {
		keys = s.growth.hasher.blocks
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.useLocked(keys)
}

// ClearCache empties the prefix caches of all ranks, as /reset_prefix_cache and
// /flush_cache do, whatever runs.
func (w *Worker) ClearCache() {
	if l := w.current.Load(); l != nil {
		for _, c := range l.caches {
			c.clear()
		}
	}
}

// CachedBlocks is how many blocks a rank's prefix cache holds.
func (w *Worker) CachedBlocks(rank int) int {
	if l := w.current.Load(); l != nil && rank < len(l.caches) {
		return l.caches[rank].held()
	}
	return 0
}
