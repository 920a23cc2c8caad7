package sim

import (
	"context"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// front is what listens for a worker: *http.Server, or a grpcFront.
type front interface {
	Serve(net.Listener) error
	ServeTLS(ln net.Listener, certFile, keyFile string) error
	Close() error
	Shutdown(context.Context) error
}

// grpcFront listens for a worker that speaks gRPC. Connections reach one server after
// another: GoAway makes a new one, while the old one lets its calls end.
type grpcFront struct {
	// Immutable.
	w      *Worker
	l      *lifetime
	health *health.Server

	mu        sync.Mutex // guards the fields below
	current   *grpcServer
	servers   []*grpcServer // that were made and not stopped
	listeners map[net.Listener]struct{}
	closed    bool
}

// grpcServer is a server with the connections that it is to serve.
type grpcServer struct {
	*grpc.Server
	conns   handedOver
	serving chan struct{} // closed when Serve has returned
	left    chan struct{} // closed when it has ended gracefully; nil before it begins to; guarded by grpcFront.mu
}

// handedOver is a listener whose connections were accepted elsewhere.
type handedOver struct {
	addr net.Addr
	c    chan net.Conn
	once *sync.Once
	done chan struct{}
}

func (h handedOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.c:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}
func (h handedOver) Close() error   { h.once.Do(func() { close(h.done) }); return nil }
func (h handedOver) Addr() net.Addr { return h.addr }

func newGRPCFront(w *Worker, l *lifetime) *grpcFront {
	f := &grpcFront{w: w, l: l, health: health.NewServer(), listeners: make(map[net.Listener]struct{})}
	f.setServing(true)
	return f
}

// setServing tells grpc.health how the engine is.
func (f *grpcFront) setServing(ok bool) {
	status := healthpb.HealthCheckResponse_SERVING
	if !ok {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	f.health.SetServingStatus("", status)
	f.health.SetServingStatus(vllmpb.VllmEngine_ServiceDesc.ServiceName, status)
}

// serverLocked is the server that new connections go to.
func (f *grpcFront) serverLocked(addr net.Addr) *grpcServer {
	if f.current != nil {
		return f.current
	}
	o := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32), grpc.WaitForHandlers(true),
		// A client that pings more often is told GOAWAY too_many_pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: f.w.opt.PingInterval}),
	}
	if c := f.w.opt.TLS; c != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(c.Clone())))
	}
	s := &grpcServer{Server: grpc.NewServer(o...), serving: make(chan struct{}),
		conns: handedOver{addr: addr, c: make(chan net.Conn), once: new(sync.Once), done: make(chan struct{})}}
	vllmpb.RegisterVllmEngineServer(s, &vllmService{w: f.w, l: f.l})
	healthpb.RegisterHealthServer(s, f.health)
	reflection.Register(s)
	go func() {
		defer close(s.serving)
		_ = s.Serve(s.conns)
	}()
	f.current = s
	f.servers = append(f.servers, s)
	return s
}

// Serve hands the connections of ln to the servers until ln is closed.
func (f *grpcFront) Serve(ln net.Listener) error {
	f.mu.Lock()
	f.listeners[ln] = struct{}{}
	if f.closed {
		_ = ln.Close()
	}
	f.mu.Unlock()
	for {
		c, err := ln.Accept()
		if err != nil {
			f.mu.Lock()
			delete(f.listeners, ln)
			f.mu.Unlock()
			return err
		}
		f.mu.Lock()
		var s *grpcServer
		if !f.closed {
			s = f.serverLocked(ln.Addr())
		}
		f.mu.Unlock()
		if s == nil {
			_ = c.Close()
			continue
		}
		select {
		case s.conns.c <- c:
		case <-s.conns.done:
			_ = c.Close()
		}
	}
}

// ServeTLS is Serve: the servers have the certificates.
func (f *grpcFront) ServeTLS(ln net.Listener, _, _ string) error { return f.Serve(ln) }

// goAway sends GOAWAY on all connections. Calls that run go on to their end; new
// connections are served.
func (f *grpcFront) goAway() {
	f.mu.Lock()
	old := f.current
	f.current = nil
	f.leaveLocked(old)
	f.mu.Unlock()
}

func (f *grpcFront) leaveLocked(s *grpcServer) {
	if s == nil || f.closed {
		return
	}
	left := make(chan struct{})
	s.left = left
	go func() {
		defer close(left)
		s.GracefulStop()
	}()
}

// Shutdown refuses connections and lets calls end. Where ctx ends first, they go on until
// Close.
func (f *grpcFront) Shutdown(ctx context.Context) error {
	f.mu.Lock()
	for ln := range f.listeners {
		_ = ln.Close()
	}
	f.health.Shutdown()
	old := f.current
	f.current = nil
	f.leaveLocked(old)
	servers := slices.Clone(f.servers)
	f.mu.Unlock()
	for _, s := range servers {
		select {
		case <-s.left:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close ends everything. It returns when all calls have.
func (f *grpcFront) Close() error {
	f.mu.Lock()
	f.closed = true
	for ln := range f.listeners {
		_ = ln.Close()
	}
	servers := f.servers
	f.servers, f.current = nil, nil
	f.mu.Unlock()
	for _, s := range servers {
		s.Stop()
		_ = s.conns.Close()
		<-s.serving
		if s.left != nil {
			<-s.left
		}
	}
	return nil
}

// GoAway makes a gRPC worker send GOAWAY on all its connections, as a server does that
// bounds their age: calls go on to their end, and new ones need another connection.
func (w *Worker) GoAway() {
	if l := w.current.Load(); l != nil {
		if f, ok := l.srv.(*grpcFront); ok {
			f.goAway()
		}
	}
}

// EndEngine ends the engine of a gRPC worker as a crash does: what runs fails, the server
// goes on and tells that the engine is not alive, until Restart.
func (w *Worker) EndEngine() {
	if l := w.current.Load(); l != nil {
		w.crash(l)
	}
}

// endEngine is the part of a crash that a server survives.
func (w *Worker) endEngine(l *lifetime) {
	if f, ok := l.srv.(*grpcFront); ok {
		f.setServing(false)
	}
	l.forgetKV(w)
}

// forgetKV ends the process's part in hand-offs, once.
func (l *lifetime) forgetKV(w *Worker) {
	l.kvOnce.Do(func() { w.fleet.kv.unregister(l) })
}

// defaultPingInterval is the least time between a client's keep-alive pings that servers
// take without being told otherwise.
const defaultPingInterval = 5 * time.Minute
