package fleet

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Status is where a worker is in its life.
type Status string

// The statuses. A removed worker without requests is in no list.
const (
	StatusPending   Status = "pending"   // never seen healthy
	StatusReady     Status = "ready"     // gets requests
	StatusUnhealthy Status = "unhealthy" // was ready, fails its checks
	StatusNotReady  Status = "not_ready" // would be ready, but its source says that it must not be chosen
	StatusDrained   Status = "drained"   // would be ready, but was drained by request
	StatusDraining  Status = "draining"  // removed, its requests are not over
)

// Causes of the end of a worker's Alive context.
var (
	ErrDead    = errors.New("the worker is dead: it does not answer any more")
	ErrRemoved = errors.New("the worker was removed, and the time for its requests is over")
)

// Worker is one registration of one engine. All methods are safe for concurrent
// use.
type Worker struct {
	// What every request reads comes first: in large fleets each worker's cache lines
	// are cold.

	// immutable
	fleet    *Fleet
	endpoint *upstream.Endpoint

	// atomic
	state    atomic.Pointer[workerState] // replaced with Fleet.mu held
	liveness atomic.Pointer[liveness]
	watched  atomic.Bool // watchEvent is set, because the worker has legs

	// immutable
	id     string
	url    string // canonical
	role   admission.Role
	base   workerurl.URL
	ctx    context.Context // ends when nothing may be asked of it any more
	cancel context.CancelFunc
	event  *event // the next check, or the next look at its drain

	watchEvent *event        // the next look at the progress of its legs
	loadEvent  *event        // the next reading of its load
	reportEnd  *event        // when the last reading counts no more
	textEvent  *event        // when its text is read again, or its self-check was waited for
	askNow     chan struct{} // of one: a rank became suspect while the worker is being asked

	// atomic
	generation atomic.Uint64
	spec       atomic.Pointer[WorkerSpec]  // the settings in force; replaced with Fleet.mu held, never changed
	ranks      atomic.Pointer[[]*Rank]     // replaced with Fleet.mu held, never changed
	lastCheck  atomic.Int64                // instant of the last finished check
	loads      atomic.Pointer[loads]       // the last answer about its load
	peer       atomic.Pointer[engine.Peer] // see Rank.Peer
	transfers  transferCheck
	meter      meter

	// owned by the check that runs
	connectorProbes   int // times it was asked for its connector
	connectorProbedAt admission.Instant
	lostNow           int64 // Endpoint.Lost when the facts are read

	// guarded by Fleet.mu
	// inheritedConnector is the connector of a decode worker for which none is set: that of
	// the prefill workers of its model.
	inheritedConnector string
	health             healthState
	progress           bool // bytes came between the last check and the one that runs
	declaration             // what its source says of its life
	workerSettings          // what spec is made of
	drained            bool // by request: it gets nothing new and stays registered
	draining           bool
	drainSince         admission.Instant
	drainUntil         admission.Instant // when it is removed although requests are left
	drainHard          bool              // those that are left then are ended
	leaving            bool              // it drains because its source says so, which can take that back
	replaced           bool              // there was another registration of its URL before
	removed            bool              // in no list, asked nothing
	addedAt            admission.Instant
	models             []string          // of its ranks at the gate
	modelUnknown       bool              // it has reported no model
	modelProblem       string            // why it gets no requests because of its model or role
	inGate             bool              // its ranks are registered there
	oldRanks           []*admission.Rank // earlier registrations of its ranks that may have holds
	factsReadAt        admission.Instant // when they were last read whole
	lostBefore         int64             // Endpoint.Lost then
	checking           bool
	kvSources          kvEventSources
	text               workerText
	applied            bool              // applyOthersLocked leaves it out; false outside of it
	maybeReplaced      bool              // it seems to be another engine than its facts are of
	readsLoad          bool              // its load is being read
	loadAskedAt        admission.Instant // when that began last
	loadLost           bool              // its engine has a route for it, but has not answered for long
	otherIdentity      bool              // its source says that it is one: what a running check reads may be the former's
	factsAttempts      int               // times its facts were read and did not suffice for work
	pairingNotes       []string          // what keeps it from being paired, for the operator

	// The progress of its legs; see wedge_watch.go.
	asking   bool              // its scheduler is being probed
	question int               // number of the question that is asked next, of the dialect's SchedulerQuestions
	lookAt   admission.Instant // the last look; 0: it had none to look at
	looks    uint64
	looked   []*Rank // the ranks of the last look
	heirOf   []*Rank // of the registration that it replaces, until it has ranks itself
}

// ID returns the worker's id: "w" and the first ten hexadecimal digits of the
// SHA-256 of its canonical URL (more where two URLs share them).
func (w *Worker) ID() string { return w.id }

// URL returns the worker's canonical URL.
func (w *Worker) URL() string { return w.url }

// Role returns what the worker is registered for.
func (w *Worker) Role() admission.Role { return w.role }

// Spec returns the worker's settings in force, its URL in canonical form.
// Its map and slice must not be changed.
func (w *Worker) Spec() WorkerSpec { return *w.spec.Load() }

// Endpoint carries requests to the worker.
func (w *Worker) Endpoint() *upstream.Endpoint { return w.endpoint }

// Generation counts registrations of the whole fleet, and engines that took
// another's place at their address; a later one is larger.
func (w *Worker) Generation() uint64 { return w.generation.Load() }

// Facts returns what the worker said about itself; never nil, empty until it
// was asked.
func (w *Worker) Facts() *Facts { return w.state.Load().facts }

// Ranks returns the worker's ranks in order. The slice must not be changed.
func (w *Worker) Ranks() []*Rank { return *w.ranks.Load() }

// Bootstrap returns what a decode worker needs to find this prefill worker: the
// URL's host (IPv6 in brackets, without a zone, which means something here
// only) and the port of its bootstrap server. ok is false when null is to be
// sent for the port.
func (w *Worker) Bootstrap() (host string, port int, ok bool) {
	k := w.state.Load()
	return k.host, int(k.port), k.hasPort
}

// bootstrapAddr returns the base URL of the worker's bootstrap server, as decode is
// told it. It speaks plain HTTP. Empty when there is none.
func (w *Worker) bootstrapAddr() string {
	host, port, ok := w.Bootstrap()
	if !ok {
		return ""
	}
	return "http://" + net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
}

// Alive returns a context that ends when the worker is found dead, with cause ErrDead,
// or when its requests are ended because it was removed, with cause ErrRemoved. A worker
// that comes back has a new one.
func (w *Worker) Alive() context.Context { return w.liveness.Load().ctx }

// NoteProgress records that bytes of an answer came from the worker. It costs a read
// of a shared cache line, and is to be called for every piece.
func (w *Worker) NoteProgress() {
	if l := w.liveness.Load(); !l.progressed.Load() {
		l.progressed.Store(true)
	}
}

// Rank is what is scheduled: a worker, or one data-parallel rank of it. It is
// the Data of its admission.Rank. All methods are safe for concurrent use.
type Rank struct {
	// immutable
	worker  *Worker
	dp, dps int // dp is -1 for a whole worker
	id      string
	name    string
	breaker breaker
	routes  routeBreakers // of requests that pass through, by route

	lastFailure atomic.Pointer[legFailure]
	advanced    atomic.Bool // bytes of an answer came since it was last looked at
	wedged      atomic.Bool // as in hangStatus; changed with Fleet.mu held
	caches      cacheRanks

	// guarded by Fleet.mu
	adm      *admission.Rank // its present registration at the gate, or a spare one
	state    admission.RankState
	facts    admission.RankAttributes // as the gate has them
	event    *event                   // the end of its open breaker
	warmth   warmth
	hang     hangStatus           // what is known of its progress
	reported admission.RankReport // as the gate has it

	pace pace // guarded by the mu of the liveness of its legs
	// guarded by Fleet.quarantine.mu
	partners partners
	failing  []*pair // those in which it has failed since it last succeeded with any partner
}

func newRank(w *Worker, dp, dps int) *Rank {
	r := &Rank{worker: w, dp: dp, dps: dps, id: w.url, name: w.id, breaker: breaker{opts: &w.fleet.cfg.CircuitBreaker, closed: w.fleet.clock.Now()}}
	if dp >= 0 {
		r.id += "@" + strconv.Itoa(dp)
		r.name += "@" + strconv.Itoa(dp)
	}
	r.addToIndex()
	return r
}

// Worker returns the rank's worker.
func (r *Rank) Worker() *Worker { return r.worker }

// ID returns the worker's URL, with "@rank" for one data-parallel rank.
func (r *Rank) ID() string { return r.id }

// Name returns the worker's id, with "@rank" for one data-parallel rank: what
// clients may see, since it holds no address.
func (r *Rank) Name() string { return r.name }

// DPRank returns the data-parallel rank, or -1 when the worker is scheduled as
// a whole.
func (r *Rank) DPRank() int { return r.dp }

// DPSize returns the number of data-parallel ranks that the worker is scheduled
// by; 1 when it is scheduled as a whole.
func (r *Rank) DPSize() int { return r.dps }

// Endpoint carries requests to the rank's worker.
func (r *Rank) Endpoint() *upstream.Endpoint { return r.worker.endpoint }

// Bootstrap is Worker.Bootstrap.
func (r *Rank) Bootstrap() (host string, port int, ok bool) { return r.worker.Bootstrap() }

// Alive is Worker.Alive.
func (r *Rank) Alive() context.Context { return r.worker.Alive() }

// NoteProgress is Worker.NoteProgress for bytes that may be of the engine's front alone,
// such as a comment that keeps a stream open.
func (r *Rank) NoteProgress() { r.worker.NoteProgress() }

// NoteAdvance is NoteProgress for bytes of the answer itself: the rank's scheduler runs.
// It costs two reads of shared cache lines.
func (r *Rank) NoteAdvance() {
	r.worker.NoteProgress()
	if !r.advanced.Load() {
		r.advanced.Store(true)
	}
}

// ReportSuccess records a successful leg at the rank's breaker.
func (r *Rank) ReportSuccess() {
	if f := r.worker.fleet; f.anyFailed.Load() {
		r.breaker.good.Store(int64(f.clock.Now()))
	}
	if r.breaker.success(r.worker.fleet.clock.Now) {
		r.worker.fleet.breakerChanged(r)
	}
}

// ReportFailure records at the rank's breaker that a leg failed by the engine's
// fault, as far as can be known. The caller leaves out what proves nothing: faults
// of the client, 429 and overload answers, legs that were cancelled, requests that
// failed in the same way elsewhere. It charges a rank once for a request. key is what
// binds the request to others (a session, a routing key), 0 for nothing.
func (r *Rank) ReportFailure(c Charge, key uint64) {
	f := r.worker.fleet
	f.anyFailed.Store(true)
	if now := f.clock.Now(); r.breaker.failure(now, c, key) {
		f.tripBreaker(r, now)
	}
}

// legFailure is how a leg failed by the engine's doing.
type legFailure struct {
	at           admission.Instant
	what, detail string
}

// NoteFailure keeps how a leg failed by the engine's doing, whether the breaker is
// charged for it or not. what is shown to all who may see the fleet; detail is for the
// log, and may have the engine's own words.
func (r *Rank) NoteFailure(what, detail string) {
	r.lastFailure.Store(&legFailure{r.worker.fleet.clock.Now(), what, detail})
}

// CheckSoon schedules a check of the worker, because it may have changed: as after an
// engine's 404 for a model that it should serve. Many calls cause one check a second.
func (r *Rank) CheckSoon() { r.worker.checkSoon() }

func (w *Worker) checkSoon() {
	now := w.fleet.clock.Now()
	w.fleet.sched.advance(w.event, max(now, admission.Instant(w.lastCheck.Load()).Add(checkSoonPause)))
}
