package sim

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Outcome is how a request ended, seen from the worker.
type Outcome string

// The outcomes. A request still running has none.
const (
	// Complete: the whole answer, of whatever status, was written.
	Complete Outcome = "complete"
	// ClientGone: the client closed or reset before the end.
	ClientGone Outcome = "client-gone"
	// Killed: the worker was killed.
	Killed Outcome = "killed"
	// Faulted: a fault ended the connection.
	Faulted Outcome = "fault"
)

// Request is an entry of a worker's log. Times that have not come are zero.
type Request struct {
	Seq        int64       `json:"seq"` // 1 for a worker's first
	Worker     string      `json:"worker"`
	Method     string      `json:"method"`
	Path       string      `json:"path"` // as sent, with query and base path
	Proto      string      `json:"proto"`
	RemoteAddr string      `json:"remote_addr"`
	Header     http.Header `json:"header"` // shared, do not change; Host is in it
	// Body is the raw body, cut at WorkerOptions.LogBodyBytes; nil once it was
	// dropped for newer ones.
	Body     []byte `json:"body,omitempty"`
	BodySize int    `json:"body_size"`

	RID         string  `json:"rid,omitempty"`
	Stream      bool    `json:"stream"`
	Rooms       []int64 `json:"rooms,omitempty"` // one per sequence
	Host        string  `json:"bootstrap_host,omitempty"`
	Port        int     `json:"bootstrap_port"` // -1: null or absent
	Rank        int     `json:"rank"`           // that served the first sequence, -1: none
	PrefillRank int     `json:"disagg_prefill_dp_rank"`
	Prompt      int     `json:"prompt_tokens"`
	// RequestID is a vLLM worker's id of the request, External how many of its
	// prompt tokens came over the connector.
	RequestID string `json:"request_id,omitempty"`
	External  int    `json:"external_tokens"`
	Cached    int    `json:"cached_tokens"` // of all prompts, as the answer tells

	Arrived     time.Time `json:"arrived"`
	BodyRead    time.Time `json:"body_read"`
	HeadersSent time.Time `json:"headers_sent"`
	FirstByte   time.Time `json:"first_byte"` // of the body, after the headers
	Ended       time.Time `json:"ended"`

	Status  int     `json:"status"`         // 0: none was sent; of a gRPC call the HTTP status that is nearest to Code
	Code    string  `json:"code,omitempty"` // of a gRPC call: "OK", "InvalidArgument"
	Events  int     `json:"events"`         // SSE events written, messages of a gRPC call
	Bytes   int64   `json:"bytes"`          // of the body
	Outcome Outcome `json:"outcome"`
	Fault   string  `json:"fault,omitempty"` // the fault that applied
	Error   string  `json:"error,omitempty"` // what the engine failed with
}

// Room is the first sequence's room, 0 without one.
func (r *Request) Room() int64 {
	if len(r.Rooms) == 0 {
		return 0
	}
	return r.Rooms[0]
}

// maxKeptBodies bounds the bodies kept per worker and log, in bytes.
const maxKeptBodies = 64 << 20

// ring keeps the last requests and a bounded amount of their bodies.
type ring struct {
	limit  int
	list   []*Request // oldest first from at, once full
	at     int
	bodies []*Request // with a kept body, oldest first
	kept   int
}

func (g *ring) add(r *Request) {
	if g.limit <= 0 {
		return
	}
	if len(g.list) < g.limit {
		g.list = append(g.list, r)
		return
	}
	g.list[g.at] = r
	g.at = (g.at + 1) % g.limit
}

func (g *ring) keep(r *Request, body []byte) {
	r.Body = body
	g.bodies = append(g.bodies, r)
	g.kept += len(body)
	for (g.kept > maxKeptBodies || len(g.bodies) > g.limit) && len(g.bodies) > 1 {
		old := g.bodies[0]
		g.kept -= len(old.Body)
		old.Body = nil
		g.bodies[0] = nil
		g.bodies = g.bodies[1:]
	}
}

func (g *ring) all() []Request {
	out := make([]Request, 0, len(g.list))
	for i := range g.list {
		r := *g.list[(g.at+i)%len(g.list)]
		r.Rooms = slices.Clone(r.Rooms)
		out = append(out, r)
	}
	return out
}

// phase is where a sequence is in the engine.
type phase int

const (
	none         phase = iota
	bootstrap          // prefill: waits for decode
	queued             // waits for the GPU (prefill) or memory (regular)
	prefilling         // computes the prompt
	transferring       // prefill: sends KV
	prealloc           // decode: waits for memory and a slot
	receiving          // decode: waits for prefill and the transfer
	decoding           // produces tokens
	phases
)

type rankCounts struct {
	n                         [phases]int
	tokens                    [phases]int // prompt tokens of those sequences
	used                      int         // KV tokens held
	peak                      int         // the most of them
	busy                      time.Duration
	done                      int // prompt tokens computed
	uncomputed                int // of prompts that are being computed
	batches, external, pulled int
	queried, hit              int // prompt tokens looked up in the prefix cache, and found
}

// hitRate is the share of prompt tokens that were cached.
func (c rankCounts) hitRate() float64 { return float64(c.hit) / float64(max(1, c.queried)) }

// Stats are a worker's counters. The groups named Peak are the highest values
// since the start or ResetStats. All ranks together.
type Stats struct {
	Requests  int `json:"requests"`  // generation requests that arrived
	Ended     int `json:"ended"`     // of those, ended and complete in the log
	Inflight  int `json:"inflight"`  // of those, not ended
	Completed int `json:"completed"` // by Outcome
	Gone      int `json:"client_gone"`
	Killed    int `json:"killed"`
	Faulted   int `json:"faulted"`
	Failed    int `json:"failed"` // answered with a status of 400 or more, or an error event
	Probes    int `json:"probes"` // all other requests

	// Sequences by phase.
	Bootstrap    int `json:"bootstrap"`
	Queued       int `json:"queued"`
	Prefilling   int `json:"prefilling"`
	Transferring int `json:"transferring"`
	Prealloc     int `json:"prealloc"`
	Receiving    int `json:"receiving"`
	Decoding     int `json:"decoding"`

	PeakInflight   int `json:"peak_inflight"`
	PeakPrefilling int `json:"peak_prefilling"`
	PeakDecoding   int `json:"peak_decoding"`
	PeakKVTokens   int `json:"peak_kv_tokens"`

	KVTokens     int   `json:"kv_tokens"`     // held now, in whole pages
	PromptTokens int64 `json:"prompt_tokens"` // computed here
	CachedTokens int64 `json:"cached_tokens"` // of prompts, found in the prefix cache
	OutputTokens int64 `json:"output_tokens"`

	// vLLM only. ExternalTokens are prompt tokens whose KV came over the
	// connector; Handed counts prefills that left KV for a decode, Pulled the
	// decodes that took such KV, Expired the prefills whose KV no decode took,
	// TransferFailed the decodes whose KV did not come, Alone the requests that
	// should have left or taken KV by their kv_transfer_params and could not.
	ExternalTokens int64 `json:"external_tokens"`
	Handed         int   `json:"handed"`
	Pulled         int   `json:"pulled"`
	Expired        int   `json:"expired"`
	TransferFailed int   `json:"transfer_failed"`
	Alone          int   `json:"alone"`

	// Subscribers follow the KV events now; KVBatches were numbered.
	Subscribers int   `json:"kv_subscribers"`
	KVBatches   int64 `json:"kv_batches"`

	Accepted int `json:"accepted"` // connections
	Conns    int `json:"conns"`    // open ones

	phases [phases]int
}

func (w *Worker) notifyLocked() {
	if w.change != nil {
		close(w.change)
		w.change = nil
	}
}

func (w *Worker) statsLocked() Stats {
	s := w.stats
	s.Bootstrap, s.Queued, s.Prefilling = s.phases[bootstrap], s.phases[queued], s.phases[prefilling]
	s.Transferring, s.Prealloc, s.Receiving = s.phases[transferring], s.phases[prealloc], s.phases[receiving]
	s.Decoding = s.phases[decoding]
	return s
}

// Stats are the counters now.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statsLocked()
}

// Wait returns nil as soon as cond is true, or an error with the counters if ctx
// ends first. cond is called under a lock, at each change.
func (w *Worker) Wait(ctx context.Context, cond func(Stats) bool) error {
	for {
		w.mu.Lock()
		s := w.statsLocked()
		if cond(s) {
			w.mu.Unlock()
			return nil
		}
		if w.change == nil {
			w.change = make(chan struct{})
		}
		change := w.change
		w.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("simulated worker %s did not reach the awaited state (%+v): %w", w.id, s, ctx.Err())
		}
	}
}

// WaitInflight waits until at least n requests are in flight.
func (w *Worker) WaitInflight(ctx context.Context, n int) error {
	return w.Wait(ctx, func(s Stats) bool { return s.Inflight >= n })
}

// WaitIdle waits until no request is in flight.
func (w *Worker) WaitIdle(ctx context.Context) error {
	return w.Wait(ctx, func(s Stats) bool { return s.Inflight == 0 })
}

// WaitRequests waits until n requests have arrived since the start.
func (w *Worker) WaitRequests(ctx context.Context, n int) error {
	return w.Wait(ctx, func(s Stats) bool { return s.Requests >= n })
}

// WaitEnded waits until n requests have ended since the start.
func (w *Worker) WaitEnded(ctx context.Context, n int) error {
	return w.Wait(ctx, func(s Stats) bool { return s.Ended >= n })
}

// Requests is the log of POST requests to generation and unknown routes, oldest
// first, running ones included.
func (w *Worker) Requests() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.all()
}

// Probes is the log of all other requests: health, information, admin.
func (w *Worker) Probes() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.probes.all()
}

// ResetLog empties both logs and resets the peaks and the counters of ended
// requests; requests in flight stay counted.
func (w *Worker) ResetLog() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log, w.probes = ring{limit: w.log.limit}, ring{limit: w.probes.limit}
	s := w.stats
	w.stats = Stats{Requests: s.Inflight, Inflight: s.Inflight, PeakInflight: s.Inflight,
		PeakPrefilling: s.phases[prefilling], PeakDecoding: s.phases[decoding],
		Subscribers: s.Subscribers, KVTokens: s.KVTokens, PeakKVTokens: s.KVTokens, Accepted: s.Conns, Conns: s.Conns, phases: s.phases}
	for i := range w.counts {
		w.counts[i].peak = w.counts[i].used
	}
	w.notifyLocked()
}

// begin opens the log entry of a request.
func (w *Worker) begin(r *http.Request, probe bool) *Request {
	e := &Request{Worker: w.id, Method: r.Method, Path: r.URL.RequestURI(), Proto: r.Proto,
		RemoteAddr: r.RemoteAddr, Header: r.Header, Arrived: time.Now(), Port: -1, Rank: -1, PrefillRank: -1}
	if r.Header.Get("Host") == "" {
		r.Header.Set("Host", r.Host)
	}
	w.enter(e, probe)
	return e
}

// enter puts a request into the log.
func (w *Worker) enter(e *Request, probe bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	e.Seq = w.seq
	if probe {
		w.stats.Probes++
		w.probes.add(e)
		return
	}
	w.log.add(e)
	w.stats.Requests++
	w.stats.Inflight++
	w.stats.PeakInflight = max(w.stats.PeakInflight, w.stats.Inflight)
	w.notifyLocked()
}

// note changes an entry under the lock.
func (w *Worker) note(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
}

// finish closes the entry.
func (w *Worker) finish(e *Request, probe bool, how Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Outcome, e.Ended = how, time.Now()
	if probe {
		return
	}
	s := &w.stats
	s.Inflight--
	s.Ended++
	switch how {
	case Complete:
		s.Completed++
	case ClientGone:
		s.Gone++
	case Killed:
		s.Killed++
	case Faulted:
		s.Faulted++
	}
	if e.Status >= 400 || e.Error != "" {
		s.Failed++
	}
	w.notifyLocked()
}

// move takes a sequence to another phase.
func (w *Worker) move(s *sequence, to phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.counts[s.rank]
	if s.phase != none {
		c.n[s.phase]--
		c.tokens[s.phase] -= s.prompt
		w.stats.phases[s.phase]--
	}
	s.phase = to
	if to != none {
		c.n[to]++
		c.tokens[to] += s.prompt
		w.stats.phases[to]++
	}
	switch to {
	case prefilling:
		w.stats.PeakPrefilling = max(w.stats.PeakPrefilling, w.stats.phases[prefilling])
	case decoding:
		w.stats.PeakDecoding = max(w.stats.PeakDecoding, w.stats.phases[decoding])
	}
	w.notifyLocked()
}

// hold books KV tokens (negative: gives back).
func (w *Worker) hold(rank, tokens int) {
	w.mu.Lock()
	c := &w.counts[rank]
	c.used += tokens
	c.peak = max(c.peak, c.used)
	w.stats.KVTokens += tokens
	w.stats.PeakKVTokens = max(w.stats.PeakKVTokens, w.stats.KVTokens)
	w.notifyLocked()
	w.mu.Unlock()
}

// running is the number of sequences a rank decodes, and the KV tokens it holds.
func (w *Worker) running(rank int) (sequences, held int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[rank].n[decoding], w.counts[rank].used
}
