package grpcchannel

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	// streamsPerConn is how many calls a connection carries before another is opened. One
	// connection has one reader and one writer.
	streamsPerConn = 100
	maxConns       = 8
	// spareIdle is how long a connection beyond the first is kept without a call.
	spareIdle = 30 * time.Second
)

// Channel implements [upstream.Channel].
type Channel struct {
	// immutable
	cfg        upstream.ChannelConfig
	perConn    int // calls, see streamsPerConn
	maxMessage int // bytes

	mu sync.Mutex
	// guarded by mu
	conns  []*conn
	active int
	reap   *time.Timer // nil or not running while there is nothing to reap
	closed bool
}

// Open makes a channel. It does not connect.
func Open(cfg upstream.ChannelConfig) (upstream.Channel, error) {
	return &Channel{cfg: cfg, perConn: streamsPerConn, maxMessage: maxMessage}, nil
}

// take returns a connection for one call, which must be given back.
func (c *Channel) take() (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &upstream.Error{Op: upstream.OpDial, Kind: upstream.KindShutdown, Addr: c.cfg.Addr, Err: net.ErrClosed}
	}
	var least *conn
	for _, k := range c.conns {
		if k.calls < c.perConn {
			least = k
			break
		}
		if least == nil || k.calls < least.calls {
			least = k
		}
	}
	if least == nil || least.calls >= c.perConn && len(c.conns) < maxConns {
		k, err := newConn(c)
		if err != nil {
			return nil, &upstream.Error{Op: upstream.OpDial, Kind: upstream.KindOther, Addr: c.cfg.Addr, Err: err}
		}
		c.conns = append(c.conns, k)
		least = k
	}
	least.calls++
	c.active++
	return least, nil
}

// give ends a call on k.
func (c *Channel) give(k *conn) {
	c.mu.Lock()
	k.calls--
	c.active--
	drop := k.calls == 0 && (k.retired || c.closed)
	switch {
	case drop:
		c.forgetLocked(k)
	case k.calls == 0:
		k.idleSince = time.Now()
		if len(c.conns) > 1 {
			c.armLocked(spareIdle)
		}
	}
	c.mu.Unlock()
	if drop {
		k.close()
	}
}

// retire keeps new calls from k, whose dial has failed, and closes it when it carries none.
func (c *Channel) retire(k *conn) {
	c.mu.Lock()
	drop := !k.retired && k.calls == 0
	k.retired = true
	c.forgetLocked(k)
	c.mu.Unlock()
	if drop {
		k.close()
	}
}

func (c *Channel) forgetLocked(k *conn) {
	for i := range c.conns {
		if c.conns[i] == k {
			c.conns = append(c.conns[:i], c.conns[i+1:]...)
			return
		}
	}
}

func (c *Channel) armLocked(d time.Duration) {
	if c.reap == nil {
		c.reap = time.AfterFunc(d, c.reapSpare)
	} else {
		c.reap.Reset(d)
	}
}

// reapSpare closes the connections beyond the first that have carried no call for long.
func (c *Channel) reapSpare() {
	c.mu.Lock()
	var old []*conn
	again := false
	for i := len(c.conns) - 1; i >= 0 && len(c.conns) > 1; i-- {
		k := c.conns[i]
		switch {
		case k.calls > 0:
		case time.Since(k.idleSince) >= spareIdle:
			old = append(old, k)
			c.forgetLocked(k)
		default:
			again = true
		}
	}
	if again && !c.closed {
		c.armLocked(spareIdle)
	}
	c.mu.Unlock()
	for _, k := range old {
		k.close()
	}
}

// CloseIdle implements upstream.Channel.
func (c *Channel) CloseIdle() { c.closeIdle(false) }

// Close implements upstream.Channel.
func (c *Channel) Close() { c.closeIdle(true) }

func (c *Channel) closeIdle(final bool) {
	c.mu.Lock()
	c.closed = c.closed || final
	if c.closed && c.reap != nil {
		c.reap.Stop()
	}
	var idle, rest []*conn
	for _, k := range c.conns {
		if k.calls == 0 {
			idle = append(idle, k)
		} else {
			rest = append(rest, k)
		}
	}
	c.conns = rest
	c.mu.Unlock()
	for _, k := range idle {
		k.close()
	}
}

// Idle implements upstream.Channel.
func (c *Channel) Idle() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.conns {
		if k.calls == 0 && k.open() {
			n++
		}
	}
	return n
}

// Active implements upstream.Channel.
func (c *Channel) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active
}

var (
	unaryDesc  = &grpc.StreamDesc{}
	streamDesc = &grpc.StreamDesc{ServerStreams: true}
)

// Invoke implements upstream.Channel.
func (c *Channel) Invoke(ctx context.Context, method string, msg []byte, o upstream.CallOptions) ([]byte, error) {
	s, err := c.start(ctx, unaryDesc, method, msg, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	p, err := s.Next()
	if err != nil {
		return nil, err // an answer without a message is an error already
	}
	return append(make([]byte, 0, len(p)), p...), nil
}

// Stream implements upstream.Channel.
func (c *Channel) Stream(ctx context.Context, method string, msg []byte, o upstream.CallOptions) (upstream.MessageStream, error) {
	s, err := c.start(ctx, streamDesc, method, msg, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}
