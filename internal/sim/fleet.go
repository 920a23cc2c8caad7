package sim

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// Fleet is a set of workers that can hand KV to each other.
type Fleet struct {
	// Immutable.
	opt    Options
	broker *broker
	kv     *exchange
	admin  *http.Server
	// adminURL is "" without admin API.
	adminURL string
	adminEnd sync.WaitGroup

	closed  atomic.Bool
	crashes sync.WaitGroup // workers that a request makes crash

	mu      sync.Mutex // guards the fields below
	workers []*Worker
	numbers map[Role]int
	total   int
	ranks   int // of workers with KV events
}

// Start starts a fleet. On error nothing is left running.
func Start(opt Options) (*Fleet, error) {
	f := &Fleet{opt: opt, broker: newBroker(), kv: newExchange(), numbers: make(map[Role]int)}
	for _, g := range []struct {
		role Role
		n    int
	}{{Prefill, opt.Prefill}, {Decode, opt.Decode}, {Regular, opt.Regular}} {
		for range g.n {
			if _, err := f.Add(g.role); err != nil {
				f.Close()
				return nil, err
			}
		}
	}
	if opt.AdminAddr != "" {
		if err := f.startAdmin(opt.AdminAddr); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Add starts one more worker, set up by the fleet's options.
func (f *Fleet) Add(role Role) (*Worker, error) {
	if role != Prefill && role != Decode && role != Regular {
		return nil, fmt.Errorf("cannot simulate a worker of role %q: want prefill, decode or regular", role)
	}
	f.mu.Lock()
	n, i := f.total, f.numbers[role]
	f.total++
	f.numbers[role]++
	f.mu.Unlock()
	if f.closed.Load() {
		return nil, fmt.Errorf("cannot add a %s worker: the fleet is closed", role)
	}
	o := f.opt.Worker
	def(&o.Host, f.opt.Host)
	if f.opt.Each != nil {
		f.opt.Each(role, i, &o)
	}
	o = o.withDefaults(role)
	if err := o.validate(); err != nil {
		return nil, err
	}
	w := newWorker(f, role, i, o)
	if k := o.KVEvents; k != nil && !o.GRPC {
		f.mu.Lock()
		first := f.ranks
		f.ranks += o.DPSize
		f.mu.Unlock()
		w.eventPorts = eventPortsOf(o.Host, k.Port, first, o.DPSize)
		w.replayPorts = eventPortsOf(o.Host, max(k.ReplayPort, 0), first, o.DPSize)
	}
	switch {
	case o.Port != 0:
		w.port.Store(int64(o.Port))
	case f.opt.Port != 0:
		w.port.Store(int64(f.opt.Port + n))
	}
	if w.hasBootstrap() {
		switch {
		case o.BootstrapPort != 0:
			w.bootPort.Store(int64(o.BootstrapPort))
		case f.opt.BootstrapPort != 0:
			w.bootPort.Store(int64(f.opt.BootstrapPort + i))
		case o.NoBootstrapServer:
			w.bootPort.Store(int64(8998 + i))
		}
	}
	w.lifeMu.Lock()
	err := w.start()
	w.lifeMu.Unlock()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.workers = append(f.workers, w)
	f.mu.Unlock()
	if f.closed.Load() {
		w.Kill()
	}
	return w, nil
}

// Workers are all workers in the order they were added.
func (f *Fleet) Workers() []*Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.workers)
}

// Worker finds one by id, nil if there is none.
func (f *Fleet) Worker(id string) *Worker {
	for _, w := range f.Workers() {
		if w.id == id {
			return w
		}
	}
	return nil
}

func (f *Fleet) nth(role Role, i int) *Worker {
	w := f.Worker(fmt.Sprintf("%s-%d", role, i))
	if w == nil {
		panic(fmt.Sprintf("BUG: the simulated fleet has no worker %s-%d", role, i))
	}
	return w
}

// Prefill is the i-th prefill worker; it panics if there is none.
func (f *Fleet) Prefill(i int) *Worker { return f.nth(Prefill, i) }

// Decode is the i-th decode worker; it panics if there is none.
func (f *Fleet) Decode(i int) *Worker { return f.nth(Decode, i) }

// Regular is the i-th aggregated worker; it panics if there is none.
func (f *Fleet) Regular(i int) *Worker { return f.nth(Regular, i) }

// Violations returns the first thousand violations; Violated counts all.
func (f *Fleet) Violations() []Violation {
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	return slices.Clone(f.broker.violations)
}

// Violated is how many violations there were since the last reset.
func (f *Fleet) Violated() int64 {
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	return f.broker.violated
}

// ResetViolations forgets them.
func (f *Fleet) ResetViolations() {
	f.broker.mu.Lock()
	f.broker.violations, f.broker.violated = nil, 0
	f.broker.mu.Unlock()
}

// OpenRooms is the number of rooms in which a leg waits or a transfer runs.
func (f *Fleet) OpenRooms() int { return f.broker.open() }

// Close kills all workers and ends the admin API. It returns when everything
// the fleet started has ended; calling it again does nothing.
func (f *Fleet) Close() {
	f.closed.Store(true)
	f.broker.close()
	f.stopAdmin()
	var wg sync.WaitGroup
	for _, w := range f.Workers() {
		wg.Go(w.Kill)
	}
	wg.Wait()
	f.crashes.Wait()
	for _, w := range f.Workers() {
		w.giveBackPorts()
	}
}
