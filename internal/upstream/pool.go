package upstream

import (
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
)

// pool keeps an endpoint's unused connections warm. The one used last is used
// next, so the surplus of a burst ages at the bottom and goes. One timer, running
// only while something is kept, closes what has aged; no connection has a
// goroutine of its own.
type pool struct {
	// immutable
	max     int
	limit   time.Duration // how long one is kept
	sockets *Sockets      // or nil

	mu     sync.Mutex
	conns  []*conn     // guarded by mu; in the order of their return
	timer  *time.Timer // guarded by mu
	armed  bool        // guarded by mu: the timer runs
	closed bool        // guarded by mu
	listed bool        // guarded by mu: sockets knows of it, or is about to

	// guarded by sockets.mu
	key   mono.Instant
	place int // in sockets.pools
}

func (p *pool) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// pop returns the connection used last, or nil.
func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	if n == 0 {
		return nil
	}
	c := p.conns[n-1]
	p.conns[n-1] = nil
	p.conns = p.conns[:n-1]
	return c
}

// put keeps c, whose last answer ended cleanly and was read whole by then, or closes
// it if there is no room.
func (p *pool) put(c *conn, then mono.Instant) {
	c.in.Drop()
	c.idleSince = then
	p.mu.Lock()
	kept := !p.closed && len(p.conns) < p.max
	list := kept && !p.listed && p.sockets != nil
	if kept {
		p.listed = true
		p.conns = append(p.conns, c)
		if !p.armed {
			p.armLocked(p.limit)
		}
	}
	p.mu.Unlock()
	switch {
	case !kept:
		c.closeIdle()
	case list:
		p.sockets.list(p, then)
	}
}

// takeOldest takes out the connection that has been unused for longest, if it has been
// since the time since. Else it returns when its oldest one came back, or zero if there
// is none, and then the pool is to be listed again when it gets one.
func (p *pool) takeOldest(since mono.Instant) (*conn, mono.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		p.listed = false
		return nil, 0
	}
	c := p.conns[0]
	if c.idleSince != since {
		return nil, c.idleSince
	}
	n := copy(p.conns, p.conns[1:])
	p.conns[n] = nil
	p.conns = p.conns[:n]
	return c, since
}

func (p *pool) armLocked(d time.Duration) {
	p.armed = true
	if p.timer == nil {
		p.timer = time.AfterFunc(d, p.reap)
	} else {
		p.timer.Reset(d)
	}
}

// reap closes what has not been used for the idle limit.
func (p *pool) reap() {
	p.mu.Lock()
	now := mono.Now()
	i := 0
	for i < len(p.conns) && now.Sub(p.conns[i].idleSince) >= p.limit {
		i++
	}
	old := append([]*conn(nil), p.conns[:i]...)
	n := copy(p.conns, p.conns[i:])
	clear(p.conns[n:])
	p.conns = p.conns[:n]
	p.armed = false
	if n > 0 {
		p.armLocked(p.limit - now.Sub(p.conns[0].idleSince))
	}
	p.mu.Unlock()
	for _, c := range old {
		c.closeIdle()
	}
}

// drain closes all unused connections, and with final all that come back later.
func (p *pool) drain(final bool) {
	p.mu.Lock()
	all := p.conns
	p.conns = nil
	p.closed = p.closed || final
	if p.timer != nil {
		p.timer.Stop()
	}
	p.armed = false
	p.mu.Unlock()
	if final && p.sockets != nil {
		p.sockets.unlist(p)
	}
	for _, c := range all {
		c.closeIdle()
	}
}
