package sim

import (
	"context"
	"sync"
)

// pool is a FIFO queue for slots and tokens of one rank. The head waits for both,
// and no other request overtakes it.
type pool struct {
	mu      sync.Mutex
	slots   int // free; negative capacity means no bound
	tokens  int
	bounded bool
	queue   []*claimant
}

type claimant struct {
	slots, tokens int
	ready         chan struct{}
}

// newPool makes a pool of that many slots (0: no bound) and tokens.
func newPool(slots, tokens int) *pool {
	return &pool{slots: slots, tokens: tokens, bounded: slots > 0}
}

func (p *pool) fitsLocked(slots, tokens int) bool {
	return (!p.bounded || p.slots >= slots) && p.tokens >= tokens
}

func (p *pool) takeLocked(slots, tokens int) {
	p.slots -= slots
	p.tokens -= tokens
}

// acquire waits for a slot and tokens. A nil error must be paired with release.
func (p *pool) acquire(ctx context.Context, tokens int) error { return p.take(ctx, 1, tokens) }

// take waits for slots and tokens. A nil error must be paired with giveBack.
func (p *pool) take(ctx context.Context, slots, tokens int) error {
	p.mu.Lock()
	if len(p.queue) == 0 && p.fitsLocked(slots, tokens) {
		p.takeLocked(slots, tokens)
		p.mu.Unlock()
		return nil
	}
	c := &claimant{slots, tokens, make(chan struct{})}
	p.queue = append(p.queue, c)
	p.mu.Unlock()
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.queue {
		if x == c {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			p.grantLocked()
			return context.Cause(ctx)
		}
	}
	// Granted between the end of ctx and the lock: give it back.
	p.slots += slots
	p.tokens += tokens
	p.grantLocked()
	return context.Cause(ctx)
}

// release gives a slot and tokens back.
func (p *pool) release(tokens int) { p.giveBack(1, tokens) }

func (p *pool) giveBack(slots, tokens int) {
	p.mu.Lock()
	p.slots += slots
	p.tokens += tokens
	p.grantLocked()
	p.mu.Unlock()
}

func (p *pool) grantLocked() {
	for len(p.queue) > 0 && p.fitsLocked(p.queue[0].slots, p.queue[0].tokens) {
		c := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.takeLocked(c.slots, c.tokens)
		close(c.ready)
	}
}
