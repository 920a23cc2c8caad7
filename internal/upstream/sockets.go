package upstream

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/mono"
)

// Sockets counts the connections of all endpoints whose Config has it, and closes those
// that are kept warm where files run short. The zero value is ready for use.
//
// Nothing is done here per request: connections count from dial to close, and a pool is
// looked at only when the oldest connection of all is searched. So pools lie in a heap
// by what was their oldest connection when they were last looked at, and one that turns
// out to be empty is taken off until it gets a connection again.
//
// Lock order: mu, then a pool's.
type Sockets struct {
	open    atomic.Int64
	opening atomic.Pointer[func()]

	mu sync.Mutex
	// guarded by mu
	pools heap.Heap[*pool]
	nets  map[lender]struct{}
}

// Open is how many connections are open now or being opened.
func (s *Sockets) Open() int64 { return s.open.Load() }

// BeforeDial has f called before each dial, when the new connection counts already.
func (s *Sockets) BeforeDial(f func()) { s.opening.Store(&f) }

// CloseIdle closes up to n connections that carry no request, those first that have
// been unused for longest, and returns how many. net/http's client and gRPC's can only
// close all idle connections to an engine, so with them these may be more than n.
func (s *Sockets) CloseIdle(n int) (closed int) {
	for closed < n {
		c := s.oldest()
		if c == nil {
			break
		}
		c.closeIdle()
		closed++
	}
	if closed < n {
		closed += s.closeIdleNet(n - closed)
	}
	return closed
}

// lender is an endpoint's connections as a client has them that is not this package's own.
type lender interface {
	idle() int // connections that carry no request
	closeIdle()
	opened() int64 // all connections
}

// closeIdleNet closes idle connections of such clients until they are n.
func (s *Sockets) closeIdleNet(n int) (closed int) {
	var idle []lender
	s.mu.Lock()
	for t := range s.nets {
		if t.idle() > 0 {
			idle = append(idle, t)
		}
	}
	s.mu.Unlock()
	for _, t := range idle {
		if closed >= n {
			break
		}
		before := t.opened()
		t.closeIdle()
		closed += max(int(before-t.opened()), 0)
	}
	return closed
}

// addNet takes in another client, dropNet forgets it.
func (s *Sockets) addNet(t lender) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nets == nil {
		s.nets = map[lender]struct{}{}
	}
	s.nets[t] = struct{}{}
}

func (s *Sockets) dropNet(t lender) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nets, t)
}

// oldest takes the connection that has been unused for longest out of its pool.
func (s *Sockets) oldest() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.pools.Len() > 0 {
		p := s.pools.First()
		c, key := p.takeOldest(p.key)
		switch {
		case c != nil:
			return c
		case key == 0:
			s.pools.Pop()
		default:
			p.key = key
			s.pools.Fix(0)
		}
	}
	return nil
}

// list adds a pool that has got a connection.
func (s *Sockets) list(p *pool, key mono.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.key = key
	s.pools.Push(p)
}

// dialing counts a connection that is about to be dialed. All methods for counting can
// be called without Sockets.
func (s *Sockets) dialing() {
	if s == nil {
		return
	}
	s.open.Add(1)
	if f := s.opening.Load(); f != nil {
		(*f)()
	}
}

// closed counts a connection that was closed.
func (s *Sockets) closed() {
	if s != nil {
		s.open.Add(-1)
	}
}

// Before and SetIndex are of heap.Element; both require Sockets.mu.
func (p *pool) Before(o *pool) bool { return p.key < o.key }
func (p *pool) SetIndex(i int)      { p.place = i }

// unlist removes a pool that gets no connections any more.
func (s *Sockets) unlist(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A pool that was never listed has the place 0 too.
	if i := p.place; i >= 0 && i < s.pools.Len() && s.pools.All()[i] == p {
		s.pools.Remove(i)
	}
}

// countedConn is a connection of another client.
type countedConn struct {
	net.Conn
	sockets *Sockets
	open    *atomic.Int64 // of its client
	over    atomic.Bool
}

func (c *countedConn) Close() error {
	if !c.over.Swap(true) {
		c.sockets.closed()
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// count makes a dial whose connections are counted, in open too.
func (s *Sockets) count(dial func(context.Context, string, string) (net.Conn, error), open *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.dialing()
		c, err := dial(ctx, network, addr)
		if err != nil {
			s.closed()
			return nil, err
		}
		open.Add(1)
		return &countedConn{Conn: c, sockets: s, open: open}, nil
	}
}
