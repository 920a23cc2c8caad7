package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// target is what is loaded: a router, or the engines themselves.
type target struct {
	name string
	// proc is the router's process, nil for the engines themselves.
	proc *process
	// more are further routers of the target.
	more []*process
	// caller makes client i's way of asking.
	caller func(i int, s shape, deadline time.Time) caller
}

// caller sends one request after the other. It belongs to one goroutine.
type caller interface {
	// call returns the times from the request to the first byte of the body
	// and to its end.
	call() (first, total time.Duration, err error)
	close()
}

// routerCaller asks a router.
type routerCaller struct {
	addr     string
	wire     []byte
	deadline time.Time
	conn     *conn
	answer   answer
}

func routerTarget(name, addr string, proc *process) target {
	return target{name: name, proc: proc, caller: func(i int, s shape, deadline time.Time) caller {
		return &routerCaller{addr: addr, wire: s.of(i).wire(addr, ""), deadline: deadline, answer: answer{want: s.want()}}
	}}
}

func (c *routerCaller) call() (first, total time.Duration, err error) {
	if c.conn == nil {
		if c.conn, err = dial(c.addr, c.deadline); err != nil {
			return 0, 0, err
		}
	}
	start := time.Now()
	err = c.conn.send(c.wire)
	var at time.Time
	if err == nil {
		at, err = c.conn.receive(&c.answer)
	}
	total = time.Since(start)
	if err != nil {
		// Which request of a connection failed tells much about why.
		err = fmt.Errorf("%w (after %d good answers on this connection, %v into this one)", err, c.conn.answers, total)
	}
	c.conn.answers++
	if err != nil || c.conn.closing {
		c.close()
	}
	return at.Sub(start), total, err
}

func (c *routerCaller) close() {
	if c.conn != nil {
		c.conn.c.Close()
		c.conn = nil
	}
}

// pairCaller asks a prefill and a decode worker as a router would: both at
// once, and it is the decode worker's answer that counts.
type pairCaller struct {
	legs   [2]routerCaller // prefill, decode
	room   [2]int          // where the room stands in each leg's wire
	digits [roomDigits]byte
}

func directTarget(f *simFleet) target {
	if len(f.prefill) == 0 {
		return target{name: direct, caller: func(i int, s shape, deadline time.Time) caller {
			addr := f.regular[i%len(f.regular)].addr
			return &routerCaller{addr: addr, wire: s.of(i).wire(addr, ""), deadline: deadline, answer: answer{want: s.want()}}
		}}
	}
	return target{name: direct, caller: func(i int, s shape, deadline time.Time) caller {
		p, d := f.prefill[i%len(f.prefill)], f.decode[i%len(f.decode)]
		host, _, _ := net.SplitHostPort(p.addr)
		c := &pairCaller{}
		for k, w := range []worker{p, d} {
			leg := routerCaller{addr: w.addr, deadline: deadline, answer: answer{want: s.want()}}
			leg.wire, c.room[k] = s.of(i).wirePair(w.addr, host, p.bootstrapPort)
			c.legs[k] = leg
		}
		c.legs[0].answer.want = want{any: true}
		return c
	}}
}

func (c *pairCaller) call() (first, total time.Duration, err error) {
	room := strconv.AppendUint(c.digits[:0], 1e18+rand.Uint64N(8e18), 10)
	for k := range c.legs {
		leg := &c.legs[k]
		copy(leg.wire[c.room[k]:], room)
		if leg.conn == nil {
			if leg.conn, err = dial(leg.addr, leg.deadline); err != nil {
				c.close()
				return 0, 0, err
			}
		}
	}
	start := time.Now()
	err = c.legs[0].conn.send(c.legs[0].wire)
	if err == nil {
		err = c.legs[1].conn.send(c.legs[1].wire)
	}
	var at time.Time
	if err == nil {
		at, err = c.legs[1].conn.receive(&c.legs[1].answer)
	}
	total = time.Since(start)
	if err == nil {
		_, err = c.legs[0].conn.receive(&c.legs[0].answer)
	}
	if err != nil || c.legs[0].conn.closing || c.legs[1].conn.closing {
		c.close()
	}
	return at.Sub(start), total, err
}

func (c *pairCaller) close() {
	for k := range c.legs {
		c.legs[k].close()
	}
}

// load is how a target is loaded.
type load struct {
	shape   shape
	clients int
	// rate is requests a second of all clients together; 0 asks again at once.
	rate         float64
	warm, window time.Duration
}

// result is what one window showed.
type result struct {
	requests int
	errors   int
	firstErr error
	window   time.Duration
	cpu      time.Duration // of the router's process
	// first and total are the sorted times of each request of the window.
	first, total []time.Duration
}

func (r *result) perSecond() float64 { return float64(r.requests) / r.window.Seconds() }

// cpuPerRequest is in microseconds.
func (r *result) cpuPerRequest() float64 {
	return float64(r.cpu) / float64(time.Microsecond) / float64(max(1, r.requests))
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// maxFailures ends a client: a router that answers so is not worth a figure.
const maxFailures = 20

// client is one loop of a load.
type client struct {
	first, total []time.Duration
	failures     int
	firstErr     error
}

// run loads a target and measures the window.
func (l load) run(ctx context.Context, t target) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	deadline := time.Now().Add(l.warm + l.window + 30*time.Second)
	clients := make([]client, l.clients)
	var measuring, stopped atomic.Bool
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { clients[i].loop(ctx, l, t.caller(i, l.shape, deadline), i, &measuring, &stopped) })
	}
	finish := func() { stopped.Store(true); wg.Wait() }
	if err := sleep(ctx, l.warm); err != nil {
		finish()
		return nil, err
	}
	before, err := t.cpu()
	start := time.Now()
	measuring.Store(true)
	if err == nil {
		err = sleep(ctx, l.window)
	}
	measuring.Store(false)
	r := &result{window: time.Since(start)}
	after, cpuErr := t.cpu()
	cancel()
	finish()
	if err = errors.Join(err, cpuErr); err != nil {
		return nil, err
	}
	r.cpu = after - before
	for i := range clients {
		c := &clients[i]
		r.requests += len(c.total)
		r.errors += c.failures
		if r.firstErr == nil {
			r.firstErr = c.firstErr
		}
		r.first, r.total = append(r.first, c.first...), append(r.total, c.total...)
	}
	slices.Sort(r.first)
	slices.Sort(r.total)
	return r, nil
}

func (t target) cpu() (time.Duration, error) {
	if t.proc == nil {
		return 0, nil
	}
	var sum time.Duration
	for _, p := range append([]*process{t.proc}, t.more...) {
		d, err := processCPU(p.pid)
		if err != nil {
			return 0, fmt.Errorf("cannot read the CPU time of %s: %w", t.name, err)
		}
		sum += d
	}
	return sum, nil
}

func (c *client) loop(ctx context.Context, l load, call caller, i int, measuring, stopped *atomic.Bool) {
	defer call.close()
	var next time.Time
	var every time.Duration
	if l.rate > 0 {
		every = time.Duration(float64(l.clients) / l.rate * float64(time.Second))
		next = time.Now().Add(every * time.Duration(i) / time.Duration(l.clients))
	}
	for !stopped.Load() {
		if every > 0 {
			if sleep(ctx, time.Until(next)) != nil {
				return
			}
			// A late client does not catch up: it would turn a slow router's
			// queue into a burst.
			next = next.Add(every)
			if now := time.Now(); next.Before(now) {
				next = now
			}
		}
		first, total, err := call.call()
		if err != nil {
			c.failures++
			if c.firstErr == nil {
				c.firstErr = err
			}
			if c.failures == maxFailures {
				return
			}
			continue
		}
		if measuring.Load() {
			c.first, c.total = append(c.first, first), append(c.total, total)
		}
	}
}

// sleep waits for d, or returns why not.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// openStreams opens n streams at addr, reads the first bytes of each and leaves
// them open. What it returns is closed by the caller, also after an error.
func openStreams(addr string, s shape, n int) ([]net.Conn, error) {
	var (
		mu   sync.Mutex
		open []net.Conn
		errs error
		wg   sync.WaitGroup
		next atomic.Int64
	)
	wire, deadline := s.wire(addr, ""), time.Now().Add(60*time.Second)
	for range 32 {
		wg.Go(func() {
			buf := make([]byte, readBuffer)
			for next.Add(1) <= int64(n) {
				c, err := dial(addr, deadline)
				if err == nil {
					c.buf = buf
					if err = c.send(wire); err == nil {
						err = c.receiveFirst(&answer{})
					}
				}
				mu.Lock()
				if c != nil {
					open = append(open, c.c)
				}
				if err != nil {
					errs = err
					next.Store(int64(n))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if errs != nil {
		return open, fmt.Errorf("cannot open %d streams: %w", n, errs)
	}
	return open, nil
}
