package dispatch

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Defaults of Options.
const (
	// DefaultPrefillGrace is how long a prefill leg may stay open once decode is
	// over, by the admission contract.
	DefaultPrefillGrace = 5 * time.Second
	// DefaultVerdictWait is how long the report of a broken hand-off waits for
	// the other leg to say why.
	DefaultVerdictWait = 50 * time.Millisecond
	// DefaultMaxErrorBody bounds an engine's error body that is passed on.
	DefaultMaxErrorBody = 1 << 20
	// DefaultMaxBufferedAnswer is how much of a plain answer is collected before
	// the client gets its first byte, so that one that breaks off can still be
	// told as an error.
	DefaultMaxBufferedAnswer = 1 << 20
	// DefaultMaxLogprobBody bounds the prefill answer that is kept for its
	// logprobs.
	DefaultMaxLogprobBody = 64 << 20
)

// Options are what a dispatcher is told of the configuration.
type Options struct {
	// Disaggregated: requests run as a prefill and a decode leg.
	Disaggregated bool
	// PrefillSlots: the gate bounds requests in prefill; refusals then carry the
	// codes of that bound. SetPrefillSlots changes it.
	PrefillSlots bool
	// RequestTimeout bounds a request from its arrival to its last byte. Zero:
	// no bound.
	RequestTimeout time.Duration
	// Limits bound each leg; Total is not used.
	Limits upstream.Limits
	// KeepAlive is how long an event stream may be silent before it gets a
	// comment. Zero: none.
	KeepAlive time.Duration
	// RefuseTools refuses tools that SGLang's pairs cannot be told of; else they are
	// left out, with a note.
	RefuseTools bool
	// ClientWriteTimeout is how long one write to a client may take.
	ClientWriteTimeout time.Duration
	// PassAuthorization hands the client's key to engines: sluice asks for none
	// itself and has none for them.
	PassAuthorization bool
	Retry             RetryOptions

	// FailWithoutHandOff ends a request whose prefill handed nothing over;
	// otherwise decode computes the prompt again, which is counted.
	FailWithoutHandOff bool
	// HandOffMaxAge is how old what prefill handed over may be when decode is
	// sent. Zero: DefaultHandOffMaxAge.
	HandOffMaxAge time.Duration

	// Classify says which class a request is of and how long it may wait.
	Classify classify.Options
	// TrackOutput books KV blocks as answers grow, ReserveTokens so many output
	// tokens of each leg beforehand.
	TrackOutput   bool
	ReserveTokens int64
	// ReserveAuto reserves, instead of ReserveTokens, what the answers of the
	// model are expected to have, at most max_tokens and ReserveCap. What an
	// answer has beyond that is booked as it grows, whatever TrackOutput says.
	ReserveAuto bool
	ReserveCap  int64
	// Topology is what the two ranks of a pair have to do with each other's
	// KV-transfer domain, TopologyWeight what a preference counts for.
	Topology       admission.Topology
	TopologyWeight int
	// Bypass lets requests skip the prefill workers.
	Bypass BypassOptions
	// OverloadStatus is the status of refusals by class limits, deadlines and
	// reject thresholds. Zero: 429.
	OverloadStatus int

	PrefillGrace      time.Duration
	VerdictWait       time.Duration
	MaxErrorBody      int
	MaxBufferedAnswer int
	MaxLogprobBody    int
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.PrefillGrace, DefaultPrefillGrace)
	def(&o.VerdictWait, DefaultVerdictWait)
	def(&o.HandOffMaxAge, DefaultHandOffMaxAge)
	size := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	size(&o.MaxErrorBody, DefaultMaxErrorBody)
	size(&o.MaxBufferedAnswer, DefaultMaxBufferedAnswer)
	size(&o.MaxLogprobBody, DefaultMaxLogprobBody)
}

// Dispatcher runs requests. It is safe for concurrent use.
type Dispatcher struct {
	// immutable
	opts    Options
	gate    *admission.Gate
	clock   admission.Clock
	fleet   *fleet.Fleet
	log     *slog.Logger
	metrics *Metrics
	rooms   *engine.Rooms
	budget  *retryBudget
	// estimator counts prompts' tokens. It is the only one of its gate.
	estimator *tokens.Estimator
	// outputs learns how long answers are, for ReserveAuto.
	outputs *tokens.OutputLearner
	// routes are those that workers turned out not to have.
	routes *routeMemory

	// limits has the total times of requests, graces the times of prefill legs that
	// outlive their decode.
	limits, graces deadlines

	prefillSlots atomic.Bool // see Options.PrefillSlots

	// running counts goroutines, for Wait. It is only added to while a handler
	// runs.
	running sync.WaitGroup
}

// New makes a dispatcher.
func New(gate *admission.Gate, clock admission.Clock, f *fleet.Fleet, o Options, m *Metrics, log *slog.Logger) *Dispatcher {
	o.setDefaults()
	d := &Dispatcher{
		opts: o, gate: gate, clock: clock, fleet: f, log: log, metrics: m,
		rooms: engine.NewRooms(), budget: newRetryBudget(),
		estimator: tokens.NewEstimator(0, m.tokenMetrics), outputs: tokens.NewOutputLearner(0), routes: newRouteMemory(clock),
		limits: deadlines{cause: errRequestTimeout}, graces: deadlines{cause: errDecodeOver},
	}
	d.prefillSlots.Store(o.PrefillSlots)
	return d
}

// SetPrefillSlots tells whether the gate bounds requests in prefill, after its
// limits were changed.
func (d *Dispatcher) SetPrefillSlots(on bool) { d.prefillSlots.Store(on) }

// Wait returns when no prefill leg outlives its handler any more, or with ctx's
// error. No handler may be running.
func (d *Dispatcher) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { d.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call is one client request that was read and peeked at.
type Call struct {
	Route openai.Route
	// Method is the client's. Empty: POST.
	Method string
	// Path is the engine's path and query.
	Path string
	// Pattern names the path without what varies in it, where it is not Path
	// without the query.
	Pattern string
	// Passing: the request runs whole on one worker of any role, and passes with
	// its answer as it is.
	Passing bool
	// Form: the body is a form and goes with the client's Content-Type; NoBody:
	// there is none. Otherwise it is JSON.
	Form, NoBody bool
	// Header is the client's.
	Header http.Header
	// Peeked is the request's body. It must stay unchanged until Free is called.
	Peeked *openai.Peeked
	// Free is called once, when neither a leg nor another attempt can need the
	// body any more: often while the answer is still under way, sometimes after
	// Serve has returned. It may be nil.
	Free func()
	// Reserve takes memory for a further copy of the body into account, until Free is
	// called; its error tells that there is too little. It may be nil.
	Reserve func(bytes int) *openai.Error
	// Files counts the connections that the request opens to engines. It may be nil.
	Files Files
	// Memory counts answers that are collected before they are passed on. It may be
	// nil.
	Memory Memory
	// ID is the request's id: given back, sent to the engines and logged.
	ID string
	// Arrived is when the request's head was read.
	Arrived time.Time
	// Record is filled in by Serve.
	Record Record
}

// Files counts the files of this process, so that none is opened that others need.
type Files interface {
	// TakeFiles counts n connections before they are opened, until GiveFiles. It is
	// false, and counts none, if there are not enough files.
	TakeFiles(n int) bool
	GiveFiles(n int)
}

// Memory counts memory that a request holds, in bytes.
type Memory interface {
	// ReserveMemory counts n bytes until ReleaseMemory. It is false, and counts none,
	// if there is no room.
	ReserveMemory(n int) bool
	ReleaseMemory(n int)
}

// Record is what the access log and the metrics tell of a request.
type Record struct {
	Model string
	// PrefillRank and DecodeRank are the URLs of the last attempt's ranks,
	// PrefillName and DecodeName what clients are told of them; "@rank" follows each
	// for one data-parallel rank.
	PrefillRank, DecodeRank string
	PrefillName, DecodeName string
	Attempts                int
	// Class is the policy class, empty of what never came to the gate. Resource is
	// what it waited for or was refused for.
	Class, Resource string
	// Queued is the time at the gate, over all attempts.
	Queued time.Duration
	// TTFT is the time from arrival to the first output token, or to the end of an
	// answer that does not stream; 0 if there was none.
	TTFT time.Duration
	// TPOT is the time per output token of a stream after its first; 0 if it had less
	// than two.
	TPOT time.Duration
	// Prefill is the length of the prefill leg that succeeded, if it was over
	// before the answer was.
	Prefill time.Duration
	// Status is what the client was sent, 499 if it left before.
	Status int
	// Reason is one of a closed set of words.
	Reason string
	// Code is the code that the client was told, where that is another word.
	Code string
	// Note tells what of the request was left out; empty if nothing was.
	Note string
	// Err is for the log only.
	Err   error
	Usage openai.Usage
	Bytes int64
}

// ranks tells on which ranks the last attempt runs; nil: there is none of that kind.
func (r *Record) ranks(prefill, decode *fleet.Rank) {
	r.PrefillRank, r.PrefillName, r.DecodeRank, r.DecodeName = "", "", "", ""
	if prefill != nil {
		r.PrefillRank, r.PrefillName = prefill.ID(), prefill.Name()
	}
	if decode != nil {
		r.DecodeRank, r.DecodeName = decode.ID(), decode.Name()
	}
}

// StatusClientGone is recorded for a client that left before it got a status.
// It is never sent.
const StatusClientGone = 499

// Serve runs one request and writes the answer to w, whatever becomes of it. It
// panics with http.ErrAbortHandler when an answer that has begun cannot be
// finished, so that the client sees that it is broken; call.Record is whole then
// too.
func (d *Dispatcher) Serve(w http.ResponseWriter, r *http.Request, call *Call) {
	x := &exchange{d: d, call: call, w: w, pair: d.opts.Disaggregated && !call.Passing}
	x.refs.Store(1)
	x.bodyRefs.Store(1)
	d.metrics.begin(call.Route)
	defer d.metrics.end(call.Route)
	defer x.leave()
	x.ctx.begin(r.Context())
	if d.opts.RequestTimeout > 0 {
		x.ctx.endBy(&d.limits, call.Arrived.Add(d.opts.RequestTimeout))
	}
	x.run()
	if x.abort {
		panic(http.ErrAbortHandler)
	}
}
