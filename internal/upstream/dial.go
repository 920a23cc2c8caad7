package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/wire"
)

// dialer connects with the endpoint's limits. Names are looked up at each dial, so
// a moved engine is found at its new address; both address families are tried.
func (e *Endpoint) dialer() *net.Dialer {
	d := &net.Dialer{}
	if e.cfg.ConnectTimeout > 0 {
		d.Timeout = e.cfg.ConnectTimeout
	}
	if dead := e.cfg.DeadPeerTimeout; dead > 0 {
		// A silent connection is probed soon enough that a vanished machine is
		// noticed within about dead.
		d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: dead / 2, Interval: dead / 6, Count: 3}
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { setUserTimeout(int(fd), dead) })
		}
	}
	return d
}

// connect dials and, for https, shakes hands, all within the connect limit and
// what is left of the total one.
func (o *own) connect(ctx context.Context, start mono.Instant, total time.Duration) (*conn, *Error) {
	e := o.ep
	e.n.dials.Add(1)
	limit, value := "", time.Duration(0)
	var until mono.Instant
	if e.cfg.ConnectTimeout > 0 {
		limit, value, until = LimitConnect, e.cfg.ConnectTimeout, mono.Now().Add(e.cfg.ConnectTimeout)
	}
	if total > 0 && (limit == "" || start.Add(total) < until) {
		limit, value, until = LimitTotal, total, start.Add(total)
	}
	dctx := ctx
	if limit != "" {
		var cancel context.CancelFunc
		dctx, cancel = context.WithDeadline(ctx, until.Time())
		defer cancel()
	}
	// A dial needs more stack than all the rest. On a goroutine of its own it does
	// not double the stack that the caller then keeps for a long silent answer.
	var (
		op   = OpDial
		c    *conn
		err  error
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		c, err = o.open(dctx, &op)
	}()
	<-done
	if err == nil {
		return c, nil
	}
	out := &Error{Op: op, Kind: KindOther, Addr: e.addr, Err: err}
	classify(out, err)
	switch {
	case ctx.Err() != nil:
		_ = canceled(ctx, out)
	case out.Kind == KindTimeout && limit != "" && !errors.Is(err, syscall.ETIMEDOUT):
		out.Limit, out.LimitValue = limit, value
	case op == OpTLS && out.Kind == KindOther:
		out.Kind = KindTLS
	}
	return nil, out
}

func (o *own) open(ctx context.Context, op *Op) (*conn, error) {
	sockets := o.ep.cfg.Sockets
	sockets.dialing()
	sock, err := o.dial(ctx, "tcp", o.ep.addr)
	if err != nil {
		sockets.closed()
		return nil, err
	}
	raw := rawConn(sock)
	if o.tls == nil {
		c := newConn(sock, sock, raw)
		c.sockets = sockets
		return c, nil
	}
	*op = OpTLS
	w := &underTLS{Conn: sock, raw: raw}
	w.fn = w.try
	tc := tls.Client(w, o.tls)
	c := newConn(tc, sock, raw)
	w.c, c.sockets = c, sockets
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = sock.Close()
		c.countOut()
		return nil, err
	}
	w.ready.Store(true)
	return c, nil
}

// rawConn gives access to the socket of a connection that is nothing but one.
func rawConn(c net.Conn) syscall.RawConn {
	if !wire.RawIO {
		return nil
	}
	var raw syscall.RawConn
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	return raw
}
