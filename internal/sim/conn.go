package sim

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// gate pauses a whole worker, as SIGSTOP pauses a process.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil while open; closed by open
}

func (g *gate) shut() {
	g.mu.Lock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
	g.mu.Unlock()
}

func (g *gate) open() {
	g.mu.Lock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
	g.mu.Unlock()
}

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed != nil
}

// wait returns when the gate is open or done is closed.
func (g *gate) wait(done <-chan struct{}) {
	g.mu.Lock()
	ch := g.closed
	g.mu.Unlock()
	if ch == nil {
		return
	}
	select {
	case <-ch:
	case <-done:
	}
}

// listener accepts conns and applies the faults that take effect before a request
// is read.
type listener struct {
	net.Listener
	w    *Worker
	life *lifetime
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, w: l.w, life: l.life, gone: make(chan struct{})}
		f := l.w.pickFault(func(f *Fault) bool { return f.AcceptDelay > 0 || (f.Do != "" && f.At == AtAccept) })
		if f != nil {
			if f.AcceptDelay > 0 {
				c.readyAt = time.Now().Add(f.AcceptDelay)
			}
			if f.At == AtAccept {
				switch f.Do {
				case Reset:
					c.reset()
					continue
				case Close, End:
					_ = raw.Close()
					continue
				case Freeze:
					c.hung = true
				}
			}
		}
		if !l.life.add(c) {
			_ = raw.Close()
			continue
		}
		return c, nil
	}
}

// conn is a connection that can be frozen, slowed and reset.
type conn struct {
	net.Conn
	w    *Worker
	life *lifetime
	gone chan struct{} // closed by Close
	once sync.Once

	// Immutable after Accept.
	readyAt time.Time
	hung    bool

	// Atomic: how writes are cut up (see Fault.WriteSize).
	writeSize, writePause atomic.Int64
}

func (c *conn) hold() {
	if c.hung {
		<-c.gone
	}
	if !c.readyAt.IsZero() {
		if d := time.Until(c.readyAt); d > 0 {
			c.pause(d)
		}
	}
	c.w.gate.wait(c.gone)
}

func (c *conn) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.gone:
	}
}

// Read blocks while the worker is frozen.
func (c *conn) Read(p []byte) (int, error) {
	c.hold()
	n, err := c.Conn.Read(p)
	c.w.gate.wait(c.gone)
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	c.hold()
	size := int(c.writeSize.Load())
	if size <= 0 {
		return c.Conn.Write(p)
	}
	pause := time.Duration(c.writePause.Load())
	done := 0
	for done < len(p) {
		n, err := c.Conn.Write(p[done:min(done+size, len(p))])
		done += n
		if err != nil {
			return done, err
		}
		if pause > 0 && done < len(p) {
			c.pause(pause)
		}
	}
	return done, nil
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.gone) })
	c.life.remove(c)
	return c.Conn.Close()
}

// reset closes with RST, dropping what is buffered.
func (c *conn) reset() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

type connKey struct{}

// connOf is the connection a request came on, below TLS.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}
