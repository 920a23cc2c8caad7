package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Worker is one simulated engine.
type Worker struct {
	// Immutable.
	id     string
	role   Role
	fleet  *Fleet
	opt    WorkerOptions
	gate   gate            // shut while frozen
	core   gate            // shut after Terminate: the engine has ended, its server has not
	sched  gate            // shut while wedged
	off    map[string]bool // disabled paths
	routes map[string]http.HandlerFunc
	runs   map[string]api // the routes that run the engine
	plain  map[string]plainRoute

	// Atomic.
	port, bootPort atomic.Int64
	eventPorts     []atomic.Int64 // by rank, of KV events and their replays
	replayPorts    []atomic.Int64
	timing         atomic.Pointer[Timing]
	current        atomic.Pointer[lifetime] // nil while down
	lastProgress   atomic.Int64             // when the scheduler last made progress, Unix ns
	started        atomic.Int64
	nextRank       atomic.Uint64
	generated      atomic.Int64                       // output tokens so far
	steps          atomic.Int64                       // of the scheduler
	lastReport     atomic.Pointer[schedStats]         // while wedged: what the scheduler last reported
	cancelStop     atomic.Pointer[context.CancelFunc] // ends a Stop that still waits

	lifeMu sync.Mutex // held around start, kill and stop
	// reserved gives back the ports that are kept for the worker; guarded by lifeMu
	reserved []func()

	sidePort int // of the first rank's side channel, 0 before the first start; guarded by exchange.mu

	mu     sync.Mutex // guards the fields below
	counts []rankCounts
	stats  Stats
	log    ring
	probes ring
	change chan struct{}
	faults []*Fault
	lies   []*KVLie
	rids   map[string]context.CancelCauseFunc
	seq    int64
}

// lifetime is a worker's process between a start and its end.
type lifetime struct {
	ctx        context.Context
	cancel     context.CancelCauseFunc
	srv        front
	boot       *http.Server
	serving    sync.WaitGroup // Serve loops
	handlers   sync.WaitGroup
	memory     []*pool // per rank: running slots and KV tokens
	compute    []*pool // per rank: prefills at once
	batches    []*batcher
	publishers []*publisher   // per rank, nil without KV events
	caches     []*prefixCache // per rank, nil without
	blocks     []*blocks      // per rank: ids of the blocks handed on, vLLM only
	engines    []*engineRef   // per rank, vLLM only
	hub        *eventHub      // of gRPC workers
	kvOnce     sync.Once      // see forgetKV
	engineDead atomic.Bool    // gRPC only: the server has outlived its engine

	mu       sync.Mutex // guards the fields below
	ended    bool
	conns    map[*conn]struct{}
	listener net.Listener // nil while refusing
	booked   []int        // per rank: KV tokens that no running request holds
}

func (l *lifetime) add(c *conn) bool {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return false
	}
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	c.w.mu.Lock()
	c.w.stats.Accepted++
	c.w.stats.Conns++
	c.w.notifyLocked()
	c.w.mu.Unlock()
	return true
}

func (l *lifetime) remove(c *conn) {
	l.mu.Lock()
	_, ok := l.conns[c]
	delete(l.conns, c)
	l.mu.Unlock()
	if ok {
		c.w.mu.Lock()
		c.w.stats.Conns--
		c.w.notifyLocked()
		c.w.mu.Unlock()
	}
}

// enter admits a handler unless the process is ending.
func (l *lifetime) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.handlers.Add(1)
	return true
}

// ID is the worker's name in logs and the admin API: its role and number.
func (w *Worker) ID() string { return w.id }

// Role is what the worker does.
func (w *Worker) Role() Role { return w.role }

// Options are the worker's, with defaults filled in.
func (w *Worker) Options() WorkerOptions { return w.opt }

// URL is the base URL, with the base path, without a trailing slash.
func (w *Worker) URL() string {
	scheme := "http"
	if w.opt.GRPC {
		scheme = "grpc"
	}
	if w.opt.TLS != nil {
		scheme += "s"
	}
	return scheme + "://" + w.Addr() + w.opt.BasePath
}

// Addr is the listener's host:port.
func (w *Worker) Addr() string {
	return net.JoinHostPort(w.opt.Host, strconv.FormatInt(w.port.Load(), 10))
}

// Backend is the engine the worker plays.
func (w *Worker) Backend() Backend { return w.opt.Backend }

// hasBootstrap reports whether the worker has a bootstrap port: SGLang's prefill
// workers, and vLLM's with Mooncake.
func (w *Worker) hasBootstrap() bool {
	return w.role == Prefill && (w.opt.Backend == SGLang || w.opt.Connector == Mooncake)
}

// BootstrapPort is a prefill worker's bootstrap port, 0 where there is none.
func (w *Worker) BootstrapPort() int { return int(w.bootPort.Load()) }

// bootstrapHost is the canonical bootstrap_host of this worker.
func (w *Worker) bootstrapHost() string {
	host := w.opt.Host
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	return canonicalHost(host)
}

// SetTiming changes the speed of what starts from now on. PrefillParallel is
// fixed at start.
func (w *Worker) SetTiming(t Timing) {
	def(&t.OutputTokens, 16)
	w.timing.Store(&t)
}

// Timing is the current speed.
func (w *Worker) Timing() Timing { return *w.timing.Load() }

// listen binds *port of the worker's host, a free one that it keeps for itself to the end
// of the fleet when that is 0. lifeMu is held.
func (w *Worker) listen(port *atomic.Int64) (net.Listener, error) {
	if port.Load() == 0 {
		n, release, err := reserve(w.opt.Host)
		if err != nil {
			return nil, err
		}
		w.reserved = append(w.reserved, release)
		port.Store(int64(n))
	}
	ln, err := listen(w.opt.Host, int(port.Load()))
	if err == nil {
		port.Store(int64(ln.Addr().(*net.TCPAddr).Port))
	}
	return ln, err
}

// listen binds host:port. It retries for a second if the port is still in use.
func listen(host string, port int) (net.Listener, error) {
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	for try := 0; ; try++ {
		ln, err := net.Listen("tcp", addr)
		if err == nil || port == 0 || try == 40 {
			return ln, err
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// start brings the process up. lifeMu is held.
func (w *Worker) start() error {
	ln, err := w.listen(&w.port)
	if err != nil {
		return fmt.Errorf("cannot start simulated worker %s: %w", w.id, err)
	}
	l := &lifetime{conns: make(map[*conn]struct{}), booked: make([]int, w.opt.DPSize)}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	for range w.opt.DPSize {
		slots := w.opt.MaxRunning
		if w.role == Prefill && w.opt.Backend == SGLang {
			slots = 0
		}
		l.memory = append(l.memory, newPool(slots, w.opt.KVTokens))
		l.compute = append(l.compute, newPool(w.Timing().parallel(), 0))
		if w.caches() {
			l.caches = append(l.caches, newPrefixCache(w.opt.CacheBlocks, w.opt.CacheBlock, nil))
		}
	}
	if err := w.startEvents(l); err != nil {
		_ = ln.Close()
		l.cancel(errKilled)
		return err
	}
	if w.hasBootstrap() && !w.opt.NoBootstrapServer {
		bln, err := w.listen(&w.bootPort)
		if err != nil {
			_ = ln.Close()
			l.endEvents()
			l.cancel(errKilled)
			return fmt.Errorf("cannot start bootstrap server of simulated worker %s: %w", w.id, err)
		}
		l.boot = &http.Server{Handler: w.bootstrapHandler(), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
		l.serving.Go(func() { _ = l.boot.Serve(bln) })
	}
	if w.opt.GRPC {
		l.srv = newGRPCFront(w, l)
	} else {
		l.srv = w.httpFront(l)
	}
	now := time.Now().UnixNano()
	w.started.Store(now)
	w.lastProgress.Store(now)
	w.gate.open()
	w.core.open()
	w.Unwedge()
	if w.Timing().PrefillStep > 0 {
		for rank := range w.opt.DPSize {
			b := newBatcher()
			l.batches = append(l.batches, b)
			l.serving.Go(func() { w.runBatches(l.ctx, b, rank) })
		}
	}
	if w.opt.Backend == VLLM {
		w.fleet.kv.register(w, l)
	}
	w.current.Store(l)
	if w.role == Prefill && w.opt.Backend == SGLang {
		w.fleet.broker.claim(w.bootstrapHost(), w.BootstrapPort())
	}
	w.admit(l, ln)
	return nil
}

// httpFront is the server of a worker that speaks HTTP.
func (w *Worker) httpFront(l *lifetime) *http.Server {
	idle := w.opt.IdleTimeout
	if idle < 0 {
		idle = 0
	}
	var h http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serve(l, rw, r) })
	if w.opt.Wrap != nil {
		h = w.opt.Wrap(w, h)
	}
	srv := &http.Server{
		Handler:     h,
		ErrorLog:    log.New(io.Discard, "", 0),
		IdleTimeout: idle,
		BaseContext: func(net.Listener) context.Context { return l.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	if idle == 0 {
		srv.IdleTimeout = 24 * time.Hour
	}
	var p http.Protocols
	p.SetHTTP1(true)
	if w.opt.HTTP2 {
		p.SetHTTP2(true)
		p.SetUnencryptedHTTP2(true)
	}
	srv.Protocols = &p
	if w.opt.TLS != nil {
		srv.TLSConfig = w.opt.TLS.Clone()
	}
	return srv
}

// admit serves the connections of ln.
func (w *Worker) admit(l *lifetime, ln net.Listener) {
	wrapped := &listener{Listener: ln, w: w, life: l}
	l.mu.Lock()
	l.listener = ln
	l.mu.Unlock()
	l.serving.Go(func() {
		if w.opt.TLS == nil {
			_ = l.srv.Serve(wrapped)
			return
		}
		_ = l.srv.ServeTLS(wrapped, "", "")
	})
}

// Refuse closes the port to new connections; those that are open go on.
func (w *Worker) Refuse() {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	if l := w.current.Load(); l != nil {
		l.mu.Lock()
		ln := l.listener
		l.listener = nil
		l.mu.Unlock()
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// Admit opens the port again after Refuse.
func (w *Worker) Admit() error {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	l := w.current.Load()
	if l == nil {
		return fmt.Errorf("cannot open simulated worker %s: it is not running", w.id)
	}
	l.mu.Lock()
	open := l.listener != nil
	l.mu.Unlock()
	if open {
		return nil
	}
	ln, err := w.listen(&w.port)
	if err != nil {
		return fmt.Errorf("cannot open simulated worker %s: %w", w.id, err)
	}
	w.admit(l, ln)
	return nil
}

// end stops the process. lifeMu is held.
func (w *Worker) end(l *lifetime) {
	l.mu.Lock()
	l.ended = true
	conns := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	l.cancel(errKilled)
	for _, c := range conns {
		c.reset()
	}
	_ = l.srv.Close()
	if l.boot != nil {
		_ = l.boot.Close()
	}
	l.endEvents()
	l.serving.Wait()
	l.handlers.Wait()
	w.gate.open()
	w.core.open()
	w.Unwedge()
	l.forgetKV(w)
	l.unbook(w)
	if w.role == Prefill && w.opt.Backend == SGLang {
		w.fleet.broker.unclaim(w.bootstrapHost(), w.BootstrapPort())
	}
	w.current.Store(nil)
}

// Terminate ends the engine as SIGTERM ends a vLLM server that has streams
// open: the port refuses, idle connections are closed, and running requests stay
// open and silent until their client disconnects or the worker is killed or restarted.
func (w *Worker) Terminate() {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	l := w.current.Load()
	if l == nil {
		return
	}
	w.core.shut()
	l.endEvents()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.srv.Shutdown(now) // closes the port and idle connections, waits for nothing
}

// crash ends the process on behalf of one of its requests: all running requests fail,
// then the port refuses. A gRPC server outlives its engine.
func (w *Worker) crash(l *lifetime) {
	l.engineDead.Store(true) // before the requests fail, so that none begins behind them
	w.mu.Lock()
	for _, cancel := range w.rids {
		cancel(errEngineDead)
	}
	w.mu.Unlock()
	if w.opt.GRPC {
		w.endEngine(l)
		return
	}
	w.fleet.crashes.Go(func() {
		w.lifeMu.Lock()
		defer w.lifeMu.Unlock()
		if w.current.Load() != l {
			return
		}
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		defer cancel()
		_ = l.srv.Shutdown(ctx)
		w.end(l)
	})
}

// giveBackPorts ends what listen has reserved. The fleet is closed.
func (w *Worker) giveBackPorts() {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	for _, release := range w.reserved {
		release()
	}
	w.reserved = nil
}

// Running reports whether the process is up, frozen or not.
func (w *Worker) Running() bool { return w.current.Load() != nil }

// Kill ends the process as SIGKILL would: connections are reset, requests end
// without an answer, the port refuses. It returns when everything has ended.
func (w *Worker) Kill() {
	if cancel := w.cancelStop.Load(); cancel != nil {
		(*cancel)()
	}
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	if l := w.current.Load(); l != nil {
		w.end(l)
	}
}

// Stop ends the process gracefully: the port refuses at once, running requests
// finish, idle connections are closed. When ctx ends or Kill is called first,
// the rest is killed and an error returned.
func (w *Worker) Stop(ctx context.Context) error {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	l := w.current.Load()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.cancelStop.Store(&cancel)
	err := l.srv.Shutdown(ctx)
	w.cancelStop.Store(nil)
	w.end(l)
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot stop simulated worker %s gracefully: %w", w.id, err)
	}
	return nil
}

// Restart starts the worker again on its port with an empty engine, killing it
// first if it runs. Faults, timing and log stay.
func (w *Worker) Restart() error {
	w.lifeMu.Lock()
	defer w.lifeMu.Unlock()
	if l := w.current.Load(); l != nil {
		w.end(l)
	}
	if w.fleet.closed.Load() {
		return fmt.Errorf("cannot restart simulated worker %s: the fleet is closed", w.id)
	}
	return w.start()
}

// Freeze stops the process as SIGSTOP would: connections are accepted, nothing
// is read, computed or written, and disconnects of clients are not noticed.
func (w *Worker) Freeze() { w.gate.shut() }

// Thaw lets a frozen process go on.
func (w *Worker) Thaw() { w.gate.open() }
