package sim

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// KVEvents describes the publishers of a worker's KV events, one for each rank: what its
// prefix cache stores and removes, over ZeroMQ.
type KVEvents struct {
	// Port is where the first rank of the fleet's first worker with events publishes;
	// the other ranks, and then the other workers, follow. 0 takes free ports, for the
	// ranks of a worker in a row.
	Port int
	// ReplayPort is where that rank repeats what was missed; the others follow. 0 takes
	// free ports; negative: nothing is repeated.
	ReplayPort int
	// Topic is the first frame of each batch.
	Topic string
	// Form is how the events are written. Default the backend's newest but for SGLang,
	// whose maps are too new for most consumers: EventMap and EventSGLang.
	Form EventForm
	// HashBytes writes hashes as 32 bytes instead of numbers.
	HashBytes bool
	// Buffer is how many batches are kept to be repeated. Default 10000; they are
	// bounded by 64 MiB too.
	Buffer int
	// HWM is how many batches may wait for one slow subscriber; further ones are
	// dropped for it. Default 100000; they are bounded by 64 MiB too.
	HWM int
}

// withDefaults returns k with every zero field that has a default filled in.
func (k *KVEvents) withDefaults(b Backend) *KVEvents {
	if k == nil {
		return nil
	}
	e := *k
	def(&e.Form, map[Backend]EventForm{VLLM: EventMap, SGLang: EventSGLang}[b])
	def(&e.Buffer, 10000)
	def(&e.HWM, 100000)
	return &e
}

func (k *KVEvents) validate() error {
	switch {
	case k == nil:
		return nil
	case !slices.Contains(EventForms, k.Form):
		return fmt.Errorf("cannot simulate KV events of form %q: want one of %v", k.Form, EventForms)
	case k.Port < 0 || k.Port > 65535 || k.ReplayPort > 65535 || k.Buffer < 0 || k.HWM < 0:
		return fmt.Errorf("cannot simulate KV events at ports %d and %d with %d and %d batches: want ports and positive numbers", k.Port, k.ReplayPort, k.Buffer, k.HWM)
	}
	return nil
}

// eventLog collects a rank's events until its next step, with which they leave.
type eventLog struct {
	pub batches

	mu      sync.Mutex // guards the fields below; held while a batch is published
	pending []kvEvent
}

// batches are where a rank's events go.
type batches interface {
	publish([]kvEvent)
	rewind() // numbers batches from 0 again
}

// stored tells of the blocks from..to of a prompt.
func (e *eventLog) stored(p *prompt, from, to, size int, scope *cacheScope) {
	x := kvEvent{kind: blockStored, hashes: p.blocks[from:to], ids: p.ids[from*size : to*size], size: size, scope: scope}
	if from > 0 {
		x.parent, x.hasParent = p.blocks[from-1], true
	}
	e.add(x)
}

// removed tells that a block was evicted.
func (e *eventLog) removed(key uint64) { e.add(kvEvent{kind: blockRemoved, hashes: []uint64{key}}) }

// cleared tells that the cache was emptied.
func (e *eventLog) cleared() { e.add(kvEvent{kind: allBlocksCleared}) }

func (e *eventLog) add(x kvEvent) {
	e.mu.Lock()
	e.pending = append(e.pending, x)
	e.mu.Unlock()
}

// step sends what has collected.
func (e *eventLog) step() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pending) > 0 {
		e.pub.publish(e.pending)
		e.pending = nil
	}
}

// forget drops what has collected, and begins the sequence again.
func (e *eventLog) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending = nil
	e.pub.rewind()
}

// RestartCache does what the restart of an engine does to its cache: all ranks' caches
// are empty, nothing says so, and their events are numbered from 0 again, with the same
// hashes for the same tokens. Connections stay, as behind a proxy.
func (w *Worker) RestartCache() {
	l := w.current.Load()
	if l == nil {
		return
	}
	for _, c := range l.caches {
		c.mu.Lock()
		c.resetLocked()
		if c.events != nil {
			c.events.forget()
		}
		c.mu.Unlock()
	}
}

// startEvents starts the publishers of all ranks. lifeMu is held.
func (w *Worker) startEvents(l *lifetime) error {
	k := w.opt.KVEvents
	if w.opt.GRPC {
		l.hub = newEventHub(w)
		for rank, c := range l.caches {
			c.events = &eventLog{pub: hubRank{l.hub, rank}}
		}
		return nil
	}
	if k == nil || !w.caches() {
		return nil
	}
	for rank, c := range l.caches {
		p := &publisher{w: w, rank: rank, opt: k, encoder: encoder{k.Form, k.HashBytes}, done: make(chan struct{})}
		l.publishers = append(l.publishers, p)
		c.events = &eventLog{pub: p}
		ln, err := w.listen(&w.eventPorts[rank])
		if err == nil {
			p.serve(ln, p.subscriber)
			if k.ReplayPort >= 0 {
				if ln, err = w.listen(&w.replayPorts[rank]); err == nil {
					p.serve(ln, p.replays)
				}
			}
		}
		if err != nil {
			l.endEvents()
			return fmt.Errorf("cannot start the KV events of simulated worker %s: %w", w.id, err)
		}
	}
	return nil
}

// endEvents ends the publishers.
func (l *lifetime) endEvents() {
	for _, p := range l.publishers {
		p.close()
	}
}

// eventPortsOf makes the ports of a worker's ranks, of which the first follows n others.
// Free ports, for which base is 0, are in a row too.
func eventPortsOf(host string, base, n, ranks int) []atomic.Int64 {
	ports := make([]atomic.Int64, ranks)
	first := base + n
	if base == 0 {
		if first = 0; ranks > 1 {
			first = freeRow(host, ranks)
		}
	}
	for r := range ports {
		if first != 0 {
			ports[r].Store(int64(first + r))
		}
	}
	return ports
}

// freeRow finds that many free ports in a row. Another process may take them before they
// are used.
func freeRow(host string, n int) int {
	for range 50 {
		var row []net.Listener
		base := 0
		for len(row) < n {
			port := base + len(row)
			if base == 0 {
				port = 0
			}
			ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				break
			}
			if base == 0 {
				base = ln.Addr().(*net.TCPAddr).Port
			}
			row = append(row, ln)
		}
		for _, ln := range row {
			_ = ln.Close()
		}
		if len(row) == n {
			return base
		}
	}
	return 0
}

// KVEndpoint is where a rank publishes its events, KVReplayEndpoint where it repeats
// them: "tcp://host:port", "" where there is none.
func (w *Worker) KVEndpoint(rank int) string { return w.endpoint(w.opt.Host, w.eventPorts, rank) }

// KVReplayEndpoint is where a rank repeats the batches that a subscriber has missed.
func (w *Worker) KVReplayEndpoint(rank int) string {
	if k := w.opt.KVEvents; k == nil || k.ReplayPort < 0 {
		return ""
	}
	return w.endpoint(w.opt.Host, w.replayPorts, rank)
}

func (w *Worker) endpoint(host string, ports []atomic.Int64, rank int) string {
	if w.opt.KVEvents == nil || w.opt.GRPC || !w.caches() || rank < 0 || rank >= len(ports) {
		return ""
	}
	return "tcp://" + hostPort(host, int(ports[rank].Load()))
}

// publishes reports whether the worker has KV events.
func (w *Worker) publishes() bool { return w.opt.KVEvents != nil && w.caches() }

// eventsConfig is the configuration of a rank's publisher as the engines show it.
func (w *Worker) eventsConfig(rank int) object {
	k := w.opt.KVEvents
	o := object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": w.endpoint("*", w.eventPorts, rank),
		"replay_endpoint": nil, "buffer_steps": k.Buffer, "hwm": k.HWM, "max_queue_size": 100000, "topic": k.Topic}
	if k.ReplayPort >= 0 {
		o["replay_endpoint"] = w.endpoint("*", w.replayPorts, rank)
	}
	return o
}

// eventSources is vLLM's /kv_event_sources: the publishers by rank.
func (w *Worker) eventSources() object {
	sources := object{}
	if w.publishes() {
		for rank := range w.opt.DPSize {
			sources[strconv.Itoa(w.opt.FirstRank+rank)] = w.eventsConfig(rank)
		}
	}
	return sources
}
