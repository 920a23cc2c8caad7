package http1

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Server serves connections. Its fields must not change after Serve was called.
type Server struct {
	// Handler answers requests.
	Handler http.Handler
	// Refuse answers malformed requests; the connection is closed afterwards. It must
	// set neither Content-Length nor Connection.
	Refuse func(w http.ResponseWriter, p *Problem)
	// Base is the parent of all contexts. When it ends, reads of bodies end with
	// os.ErrDeadlineExceeded.
	Base context.Context
	// HeaderTimeout is how long a head may take from its first byte, or a new
	// connection's from its accept. IdleTimeout closes connections that wait for a
	// request. WriteTimeout is how long a write may take where the handler sets no
	// deadline. All must be positive.
	HeaderTimeout, IdleTimeout, WriteTimeout time.Duration
	// MaxHeaderBytes bounds a request's head.
	MaxHeaderBytes int
	// Accepted, if not nil, is called with each new connection, Closed with each
	// that ends.
	Accepted, Closed func(*net.TCPConn)
	// Crowded and Full, if not nil, are called after each accept. If Crowded returns
	// true, a connection that has waited for its client for a second is evicted, see
	// CloseIdle. If there is none and Full returns true, the connection that has waited
	// longest is evicted, after a moment in which new connections may send their
	// requests. If none waits, the new connection is refused with 503. Evicted, if not
	// nil, is called for each evicted connection.
	Crowded, Full func() bool
	Evicted       func()
	// Reserve and Release, if not nil, count the memory in bytes of heads that are
	// longer than a few KiB, until their request is over. A head for which Reserve
	// returns false is refused with 503.
	Reserve func(bytes int) bool
	Release func(bytes int)
	// Report is called with errors of accepting and panics of handlers.
	Report func(what string, err any)

	// plain: Linux-only means are not used, for tests of the portable ones.
	plain bool
	// draining: connections are closed after their current answer.
	draining  atomic.Bool
	watch     watcher
	refusing  atomic.Int32  // connections that are being refused with TooManyConnections
	newcomers newcomerStats // of the goroutine that accepts
	// silentUntil: until then, new connections are assumed to never send a request. A
	// mono.Instant.
	silentUntil atomic.Int64
	waiting     waiting

	mu sync.Mutex
	// guarded by mu
	listener net.Listener
	closed   bool
	conns    map[*conn]struct{}
	empty    chan struct{} // closed when conns is empty after Shutdown began; nil before
}

// cutGrace is how long handlers may take after their connections were cut.
const cutGrace = 5 * time.Second

// Problem is why a client's bytes are not a valid request, or why it is not served.
type Problem struct {
	Status  int
	Message string // for the client
	// Connections: there are too many connections. (Other problems with status 503 are
	// those of NoMemoryForHead.) Unasked: the connection has not sent a whole head.
	Connections, Unasked bool
}

// ErrClientGone is the cause of contexts that end because the client disconnected.
var ErrClientGone = errors.New("the client closed its connection")

// errConnClosed is the cause of contexts of connections that this server closed.
var errConnClosed = errors.New("the connection is closed")

// Serve accepts connections until Shutdown or Close, and then returns
// http.ErrServerClosed.
func (s *Server) Serve(l *net.TCPListener) error {
	if err := s.begin(l); err != nil {
		return err
	}
	var pause time.Duration
	for {
		sock, err := l.AcceptTCP()
		if err == nil {
			pause = 0
			s.serveConn(sock)
			continue
		}
		if s.isClosed() {
			return http.ErrServerClosed
		}
		if ListenerBroken(err) {
			return err
		}
		if OutOfFiles(err) {
			if ok, _ := s.closeOne(minAges{}, nil); ok {
				time.Sleep(time.Millisecond) // its goroutine closes it
				continue
			}
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.Report("cannot accept a connection", err)
		time.Sleep(pause)
	}
}

// ListenerBroken reports whether nothing can be accepted any more after err. All other
// errors are temporary: no file or memory was free, or the error is that of one
// connection.
func ListenerBroken(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSOCK)
}

func (s *Server) begin(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = l.Close() // nothing came through it
		return http.ErrServerClosed
	}
	s.listener, s.conns = l, map[*conn]struct{}{}
	return s.watch.start()
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// serveConn registers a connection and starts its goroutine.
func (s *Server) serveConn(sock *net.TCPConn) {
	c, err := newConn(s, sock)
	if err != nil {
		s.Report("cannot use a connection", err)
		_ = sock.Close()
		return
	}
	c.follow(s.Base) // first of all: from the list on, it may be cut
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.ctx.close()
		_ = sock.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if s.Accepted != nil {
		s.Accepted(sock)
	}
	s.watch.add(c)
	s.waiting.add(c)
	if !s.makeRoom(c) {
		c.closeIf(stateNew)
	}
	go c.serve()
}

// forget removes a connection that has ended.
func (s *Server) forget(c *conn) {
	s.watch.remove(c)
	s.waiting.remove(c)
	if s.Closed != nil {
		s.Closed(c.sock) // before Shutdown may return
	}
	if c.evicted() {
		s.waiting.leaving.Add(-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Drain closes idle connections, and lets the others end with their current request. New
// connections are still accepted.
func (s *Server) Drain() {
	s.draining.Store(true)
	for _, c := range s.all() {
		c.closeIf(stateIdle)
	}
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// Shutdown stops accepting, closes the connections without a request, and waits until
// the others have ended or ctx does; then it cuts those that are left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.mu.Lock()
	s.closed = true
	l := s.listener
	over := s.empty // of a concurrent Shutdown
	if over == nil {
		over = make(chan struct{})
		if len(s.conns) == 0 {
			close(over)
		} else {
			s.empty = over
		}
	}
	s.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	for _, c := range s.all() {
		_ = c.closeIf(stateIdle)
		_ = c.closeIf(stateNew)
	}
	var err error
	select {
	case <-over:
	case <-ctx.Done():
		err = ctx.Err()
		for _, c := range s.all() {
			c.cut()
		}
		select {
		case <-over:
		case <-time.After(cutGrace):
		}
	}
	s.watch.stop()
	return err
}
