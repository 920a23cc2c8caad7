package sim

import (
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// Connector is a kind of KV connector between vLLM engines.
type Connector string

// The connectors. All but the last two of them need kv_transfer_params.
const (
	NoConnector Connector = "none"
	// NIXL pulls: prefill answers where its blocks are, then decode reads them.
	NIXL Connector = "nixl"
	// NIXLPush pushes: both legs run at once and meet by their X-Request-Id.
	NIXLPush Connector = "nixl-push"
	// Mooncake runs both legs at once, which meet by transfer_id; decode is told
	// the prefill's bootstrap address and engine id.
	Mooncake Connector = "mooncake"
	// MoRIIO pulls as NIXL does, and wants a transfer_id on both legs too.
	MoRIIO Connector = "moriio"
	// LMCache and SharedStorage have a store that prefill writes and decode reads,
	// without any field for it in the requests.
	LMCache       Connector = "lmcache"
	SharedStorage Connector = "shared-storage"
)

// Connectors lists all connectors.
var Connectors = []Connector{NoConnector, NIXL, NIXLPush, Mooncake, MoRIIO, LMCache, SharedStorage}

// shared reports whether the connector uses a shared store of prefixes.
func (c Connector) shared() bool { return c == LMCache || c == SharedStorage }

// The kinds of Violation of vLLM workers.
const (
	// KVIncomplete: the kv_transfer_params of a decode leg lack a field. Without
	// remote_block_ids the engine crashes at once; without another field it waits
	// for ever, and crashes when the client disconnects.
	KVIncomplete = "kv-incomplete"
	// KVUnknownEngine: a decode leg names an engine that never existed.
	KVUnknownEngine = "kv-unknown-engine"
	// KVForeign: a decode leg names KV of another prompt, or blocks that are not
	// the named request's.
	KVForeign = "kv-foreign"
	// KVExpired: a decode leg came after the lease of the KV it names.
	KVExpired = "kv-expired"
	// KVTwice: KV was asked for a second time, or a transfer id used again.
	KVTwice = "kv-twice"
	// KVTooLong: a decode prompt has more tokens than were prefilled, which makes
	// the worker crash.
	KVTooLong = "kv-too-long"
	// KVConnector: the legs of a pair use different connectors.
	KVConnector = "kv-connector"
	// KVRole: a kv_producer was told to take KV.
	KVRole = "kv-role"
	// KVPrefill: a prefill leg that leaves KV for a decode streams, asks for more
	// than one token, or has several prompts or samples, although the answer names
	// the KV of one only.
	KVPrefill = "kv-prefill"
)

// engineRef is one rank of one vLLM process as its peers see it.
type engineRef struct {
	// Immutable.
	id     string
	base   string // of all ranks of the process
	host   string
	port   int
	rank   int
	worker *Worker
	life   *lifetime
	lost   chan struct{} // closed when the process ends
}

// state is the state of a hand-off.
type state int

const (
	awaited state = iota // decode waits for it, or prefill still computes
	live                 // the blocks are held for the decode
	used                 // a decode has taken them, or is about to
	expired              // the lease ran out
)

// handoff is KV that a prefill leaves for one decode.
type handoff struct {
	key   string
	ready chan struct{} // closed once it is live

	// Guarded by exchange.mu.
	from   *engineRef // nil until the prefill leg is here
	state  state
	wanted bool // a decode waits for it
	prompt prompt
	blocks []int
	held   int // KV tokens at the prefill
	timer  *time.Timer
	source string // the prefill's request id
}

// The exchange remembers this many hand-offs that are finished, engines that have
// ended and blocks of the shared stores.
const (
	maxFinished = 1 << 16
	maxPast     = 1 << 12
	maxStored   = 1 << 18
)

// exchange replaces the network between vLLM's connectors: it knows the engines,
// the KV that waits for a decode, and the shared stores.
type exchange struct {
	mu        sync.Mutex
	engines   map[string]*engineRef // by engine id
	byAddress map[string]*engineRef // by host:port of the side channel
	past      map[string]struct{}   // ids of engines that have ended
	handoffs  map[string]*handoff
	finished  []*handoff // used and expired, oldest first
	store     [2]map[storeKey]struct{}
	ports     int
}

type storeKey struct {
	connector Connector
	block     uint64
}

func newExchange() *exchange {
	return &exchange{engines: make(map[string]*engineRef), byAddress: make(map[string]*engineRef),
		past: make(map[string]struct{}), handoffs: make(map[string]*handoff),
		store: [2]map[storeKey]struct{}{make(map[storeKey]struct{}), nil}}
}

// newUUID makes an engine's id, a new one at each start.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// register makes a process's ranks known under new ids.
func (x *exchange) register(w *Worker, l *lifetime) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.sidePort == 0 {
		if w.sidePort = w.opt.SideChannelPort; w.sidePort == 0 {
			w.sidePort = 15600 + x.ports
			x.ports += w.opt.DPSize
		}
	}
	base := newUUID()
	for rank := range w.opt.DPSize {
		e := &engineRef{id: base, base: base, host: canonicalHost(w.opt.SideChannelHost), port: w.sidePort + rank, rank: rank,
			worker: w, life: l, lost: make(chan struct{})}
		if w.opt.DPSize > 1 || w.opt.FirstRank > 0 {
			e.id += "_dp" + strconv.Itoa(rank+w.opt.FirstRank)
		}
		l.engines = append(l.engines, e)
		l.blocks = append(l.blocks, &blocks{})
		x.engines[e.id] = e
		x.byAddress[hostPort(e.host, e.port)] = e
	}
}

// unregister forgets a process and the KV it held.
func (x *exchange) unregister(l *lifetime) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range l.engines {
		close(e.lost)
		delete(x.engines, e.id)
		if len(x.past) > maxPast {
			clear(x.past)
		}
		x.past[e.id] = struct{}{}
		address := hostPort(e.host, e.port)
		if x.byAddress[address] == e {
			delete(x.byAddress, address)
		}
	}
	if l.engines == nil {
		return
	}
	for k, h := range x.handoffs {
		if h.from != nil && h.from.life == l {
			if h.timer != nil {
				h.timer.Stop()
			}
			delete(x.handoffs, k)
		}
	}
}

// find returns the engine of that id if it is at that address, else nil. was reports
// whether an engine of that id is or was there.
func (x *exchange) find(id, host string, port int) (e *engineRef, was bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e = x.engines[id]; e != nil && x.byAddress[hostPort(canonicalHost(host), port)] == e {
		return e, true
	}
	_, was = x.past[id]
	return nil, was
}

// byID returns the engine of that id at any address.
func (x *exchange) byID(id string) (e *engineRef, was bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, was = x.past[id]
	return x.engines[id], was
}

// byBootstrap returns the worker whose bootstrap server has that address, nil if
// there is none.
func (x *exchange) byBootstrap(host string, port int) *Worker {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.engines {
		if e.worker.opt.Connector == Mooncake && e.worker.BootstrapPort() == port && e.worker.bootstrapHost() == canonicalHost(host) {
			return e.worker
		}
	}
	return nil
}

// expect adds a leg to the hand-off of that key, which is made if there is none.
// twice reports that the hand-off has such a leg already.
func (x *exchange) expect(key string, from *engineRef) (h *handoff, twice bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h = x.handoffs[key]
	if h == nil {
		h = &handoff{key: key, ready: make(chan struct{})}
		x.handoffs[key] = h
	}
	if from != nil {
		twice = h.from != nil
		if !twice {
			h.from = from
		}
		return h, twice
	}
	twice = h.wanted || h.state == used
	h.wanted = true
	return h, twice
}

// leave removes a leg that waited, or that failed before its end.
func (x *exchange) leave(h *handoff, prefill bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.state != awaited {
		return
	}
	if prefill || h.from == nil {
		if x.handoffs[h.key] == h {
			delete(x.handoffs, h.key)
		}
	}
}

// offer makes a hand-off live, with a lease. It returns false if the decode has come
// and ended already.
func (x *exchange) offer(h *handoff, from *engineRef, p prompt, ids []int, held int, source string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.state != awaited || x.handoffs[h.key] != h {
		return false
	}
	h.from, h.prompt, h.blocks, h.held, h.source, h.state = from, p, ids, held, source, live
	h.timer = time.AfterFunc(from.worker.opt.Lease, func() { x.expire(h) })
	close(h.ready)
	return true
}

// expire ends the lease of a hand-off that no decode has claimed.
func (x *exchange) expire(h *handoff) {
	x.mu.Lock()
	if h.state != live || x.handoffs[h.key] != h {
		x.mu.Unlock()
		return
	}
	h.state = expired
	x.finishLocked(h)
	x.mu.Unlock()
	h.from.worker.note(func() { h.from.worker.stats.Expired++ })
	h.free()
}

// claim finds a hand-off and takes it, which ends its lease: the decode's
// heartbeats keep the blocks from now on. The state is the one found.
func (x *exchange) claim(key string) (h *handoff, found state) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h = x.handoffs[key]
	if h == nil || h.state == awaited {
		return nil, awaited
	}
	return h, x.takeLocked(h)
}

// take is claim for a hand-off at hand.
func (x *exchange) take(h *handoff) state {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.takeLocked(h)
}

func (x *exchange) takeLocked(h *handoff) state {
	found := h.state
	if found == live {
		h.state = used
		h.timer.Stop()
		x.finishLocked(h)
	}
	return found
}

// finishLocked remembers a finished hand-off for a while, so that its second use is
// recognised.
func (x *exchange) finishLocked(h *handoff) {
	x.finished = append(x.finished, h)
	if len(x.finished) > maxFinished {
		old := x.finished[0]
		x.finished[0] = nil
		x.finished = x.finished[1:]
		if x.handoffs[old.key] == old {
			delete(x.handoffs, old.key)
		}
	}
}

// free gives the prefill its memory back. To be called once, after the state
// has left live.
func (h *handoff) free() {
	l, rank := h.from.life, h.from.rank
	if l.book(h.from.worker, rank, -h.held) {
		l.blocks[rank].put(h.blocks)
		l.memory[rank].giveBack(0, h.held)
	}
}

// keep puts a prompt's blocks into a shared store; match counts how many leading
// blocks of a prompt the store has.
func (x *exchange) keep(c Connector, ids []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range ids {
		if len(x.store[0]) >= maxStored/2 {
			x.store[0], x.store[1] = make(map[storeKey]struct{}), x.store[0]
		}
		x.store[0][storeKey{c, id}] = struct{}{}
	}
}

func (x *exchange) match(c Connector, ids []uint64) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, id := range ids {
		k := storeKey{c, id}
		_, recent := x.store[0][k]
		_, older := x.store[1][k]
		if !recent && !older {
			return i
		}
	}
	return len(ids)
}

// waiting is the number of hand-offs that are live or awaited.
func (x *exchange) waiting() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, h := range x.handoffs {
		if h.state == awaited || h.state == live {
			n++
		}
	}
	return n
}

// blocks hands out block ids, the most recently returned first, as an engine that
// reuses memory does. The memory itself is counted by the pool.
type blocks struct {
	mu   sync.Mutex
	free []int
	last int
}

func (b *blocks) take(n int) []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]int, 0, n)
	for len(out) < n {
		if k := len(b.free); k > 0 {
			out = append(out, b.free[k-1])
			b.free = b.free[:k-1]
			continue
		}
		b.last++ // block 0 is reserved by the engine
		out = append(out, b.last)
	}
	return out
}

func (b *blocks) put(ids []int) {
	b.mu.Lock()
	b.free = append(b.free, ids...)
	b.mu.Unlock()
}

// splitAddr reads "http://host:port" or "host:port".
func splitAddr(s string) (host string, port int, ok bool) {
	for _, p := range []string{"http://", "https://", "tcp://"} {
		if len(s) > len(p) && s[:len(p)] == p {
			s = s[len(p):]
		}
	}
	for len(s) > 0 && s[len(s)-1] == '/' {
		s = s[:len(s)-1]
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	return host, port, err == nil
}
