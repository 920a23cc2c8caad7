package nethttp

import (
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/http1"
	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// Server serves connections. Make one with New.
type Server struct {
	*http1.Server // settings only: it is never started
	http          http.Server

	// atomic
	leaving  atomic.Int64 // evicted connections that have not ended yet
	refusing atomic.Int32 // connections that are being refused with 503
	heads    atomic.Int64 // connections that have sent their first head, ever
	// silentUntil: until then, new connections are assumed to never send a request. A
	// mono.Instant.
	silentUntil atomic.Int64

	mu sync.Mutex
	// guarded by mu
	closed bool
	conns  map[*conn]struct{}
	empty  chan struct{} // closed when conns is empty after Shutdown began; nil before
	// newcomers have never sent a whole head, in the order of their accept. others wait
	// for their client, roughly in the order of their last progress.
	newcomers, others list.List[*conn]
}

// cutGrace is how long handlers may take after their connections were cut.
const cutGrace = 5 * time.Second

// readSlack is what net/http adds to MaxHeaderBytes, in bytes.
const readSlack = 4 << 10

type connKey struct{}

// New returns a server with the settings of an http1.Server, which itself is not used.
func New(settings *http1.Server) *Server {
	s := &Server{Server: settings, conns: map[*conn]struct{}{}}
	s.http = http.Server{
		Handler:                      http.HandlerFunc(s.handle),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            settings.HeaderTimeout,
		IdleTimeout:                  settings.IdleTimeout,
		MaxHeaderBytes:               max(settings.MaxHeaderBytes-readSlack, 1),
		Protocols:                    new(http.Protocols),
		ErrorLog:                     log.New(reporter(settings.Report), "", 0),
		BaseContext:                  func(net.Listener) context.Context { return settings.Base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*conn))
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateIdle:
				c.(*conn).becomeIdle()
			case http.StateClosed:
				s.forget(c.(*conn))
			}
		},
	}
	s.http.Protocols.SetHTTP1(true)
	return s
}

// reporter passes net/http's log lines on.
type reporter func(what string, err any)

func (r reporter) Write(line []byte) (int, error) {
	r("net/http", strings.TrimSpace(string(line)))
	return len(line), nil
}

// Serve accepts connections until Shutdown, and then returns http.ErrServerClosed.
func (s *Server) Serve(l *net.TCPListener) error {
	stop := context.AfterFunc(s.Base, func() {
		for _, c := range s.all() {
			if c.inBody.Load() {
				_ = c.sock.SetReadDeadline(past) // a closed connection has no reads
			}
		}
	})
	defer stop()
	return s.http.Serve(&listener{l, s})
}

// listener accepts for net/http, whose own loop would end at temporary errors.
type listener struct {
	*net.TCPListener
	srv *Server
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	s := l.srv
	var pause time.Duration
	for {
		sock, err := l.AcceptTCP()
		if err == nil {
			pause = 0
			if c := s.accept(sock); c != nil {
				return c, nil
			}
			continue
		}
		if http1.ListenerBroken(err) {
			return nil, err
		}
		if http1.OutOfFiles(err) && s.closeOne(anyAge, anyAge, nil) {
			time.Sleep(time.Millisecond) // its goroutine closes it
			continue
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.Report("cannot accept a connection", err)
		time.Sleep(pause)
	}
}

// accept registers a connection. It returns nil if there is no room for it.
func (s *Server) accept(sock *net.TCPConn) *conn {
	c := &conn{srv: s, sock: sock, fresh: true}
	now := mono.Now()
	c.since.Store(int64(now))
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = sock.Close()
		return nil
	}
	s.conns[c] = struct{}{}
	s.listLocked(c, &s.newcomers, now)
	s.mu.Unlock()
	if s.Accepted != nil {
		s.Accepted(sock)
	}
	switch {
	case s.makeRoom(c):
		return c
	case s.refusing.Add(1) > maxRefusing:
		s.refusing.Add(-1)
		_ = sock.Close()
		s.forget(c)
	default:
		go func() {
			c.refuse(http1.TooManyConnections())
			_ = sock.Close()
			s.refusing.Add(-1)
			s.forget(c)
		}()
	}
	return nil
}

// forget removes a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	s.unlistLocked(c)
	s.mu.Unlock()
	c.holdHead(0)
	if s.Closed != nil {
		s.Closed(c.sock) // before Shutdown may return
	}
	if c.evicted.Load() {
		s.leaving.Add(-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
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

// Drain closes idle connections, and lets the others end with their current request. New
// connections are still accepted.
func (s *Server) Drain() { s.http.SetKeepAlivesEnabled(false) }

// Shutdown stops accepting, closes the connections without a request, and waits until
// the others have ended or ctx does; then it cuts those that are left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
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
	// http.Server.Shutdown closes the port and idle connections. Its context has ended:
	// it would wait by polling, also for new connections.
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.http.Shutdown(now)
	for _, c := range s.all() {
		if !c.begun.Load() && !c.answering.Load() {
			_ = c.sock.Close()
		}
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
	}
	for _, c := range s.all() {
		c.cut()
	}
	select {
	case <-over:
	case <-time.After(cutGrace):
	}
	return ctx.Err()
}
