package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/grpcchannel"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// ErrClosed is returned when a worker is added to a fleet that was closed.
var ErrClosed = errors.New("the fleet is closed")

// Fleet is the registry of workers; see the package comment. All methods are
// safe for concurrent use.
type Fleet struct {
	// immutable
	gate  *admission.Gate
	clock admission.Clock
	opts  Options
	cfg   *config.Config
	// transport has the defaults for the workers' endpoints; its URL is not used.
	transport upstream.Config
	log       *slog.Logger
	prober    prober
	streams   *cacheStreams
	sched     *schedule
	limiter   checkLimiter
	askers    checkLimiter // probes of schedulers
	readers   checkLimiter // readings of the load
	ctx       context.Context
	cancel    context.CancelFunc

	// atomic
	names           atomic.Pointer[modelTable]
	lastRediscovery atomic.Int64 // instant of the last RediscoverModels
	anyRouteFailed  atomic.Bool  // see RoutesFail
	anyFailed       atomic.Bool  // a rank was ever charged: from then on successes are timed

	mu sync.Mutex
	// guarded by mu
	workers    []*Worker // in the order of registration; a replaced one keeps its place
	aliases    config.ModelAliases
	firstAdded admission.Instant // when the first worker was registered
	firstInUse admission.Instant // when the first rank became a candidate
	startRanks map[string]bool   // ids of those that did soon after; nil before the first
	byID       map[string]*Worker
	byURL      map[string]*Worker
	retired    map[*Worker]struct{} // replaced, with an endpoint of their own that still has requests
	heldOut    map[string]heldOut   // by URL: removed by request while a source declares them
	generation uint64
	rand       *rand.Rand
	closed     bool
	others     *event // the pass over all workers that was put off; see applySoonLocked
	othersDue  bool   // it is scheduled

	hasTokens bool               // some worker is reached by gRPC or takes token ids
	kinds     map[string]*Worker // of the pass over workers that runs; see kindsLocked

	quarantine quarantine

	texts *texts // immutable

	member *membership // of a cluster, or nil; set before there are workers

	// registrations has a value after a change of what Registrations returns.
	registrations chan struct{}
}

// New makes a fleet without workers for a gate without ranks. The fleet is the
// only one that changes the gate's ranks. Close it.
func New(gate *admission.Gate, o Options, clock admission.Clock) *Fleet {
	f := newFleet(gate, o, clock, nil)
	f.prober = &httpProber{cfg: &f.cfg.Health}
	f.start()
	return f
}

func newFleet(gate *admission.Gate, o Options, clock admission.Clock, p prober) *Fleet {
	o.complete()
	cfg := o.Config
	f := &Fleet{
		gate: gate, clock: clock, opts: o, cfg: cfg, log: o.Log, prober: p, sched: newSchedule(clock),
		limiter: checkLimiter{max: o.maxProbes}, askers: checkLimiter{max: 2 * o.maxProbes}, readers: checkLimiter{max: o.maxProbes},
		transport: upstream.Config{
			APIKey: cfg.Auth.WorkerAPIKey.Reveal(), IdleTimeout: cfg.Timeouts.WorkerIdle, ConnectTimeout: cfg.Timeouts.Connect,
			Sockets: o.Sockets, NetHTTP: cfg.Server.HTTPStack == config.HTTPStackNet, OpenChannel: grpcchannel.Open,
		},
		byID: map[string]*Worker{}, byURL: map[string]*Worker{}, retired: map[*Worker]struct{}{}, heldOut: map[string]heldOut{}, registrations: make(chan struct{}, 1),
		texts: newTexts(),
		rand:  rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	f.others = newEvent(f.applyOthers)
	f.aliases = cfg.Fleet.ModelAliases
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.streams = newCacheStreams(f)
	f.publishModelsLocked()
	return f
}

func (f *Fleet) start() {
	go f.sched.loop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loadPathsLocked()
}

// Close ends all checks and closes the connections that are not in use. The
// gate's ranks stay as they are.
func (f *Fleet) Close() {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.closed = true
	workers := slices.AppendSeq(slices.Clone(f.workers), maps.Keys(f.retired))
	f.mu.Unlock()
	f.cancel()
	if f.member != nil {
		f.member.close()
	}
	f.sched.close()
	f.limiter.close()
	f.askers.close()
	f.readers.close()
	f.texts.reads.close()
	f.texts.checks.close()
	for _, w := range workers {
		w.cancel()
		w.endpoint.Close()
	}
	f.streams.close()
}

// Add registers a worker and returns at once; the worker may be down. The same
// URL with the same settings is the same worker: created is false. Other settings take
// its place in one step; see placeLocked. The error is a *SpecError, ErrClosed or ctx's.
//
// The worker belongs to SourceRequests then, even if another source had added it.
// by is who ordered it, as keys and values for the log.
func (f *Fleet) Add(ctx context.Context, spec WorkerSpec, by ...any) (w *Worker, created bool, err error) {
	return f.add(ctx, SourceRequests, spec, nil, by)
}

// add is Add for a source. The error may be an *otherOwnerError too, or errChanged:
// still, if it is not nil, says under Fleet.mu whether what spec was made of still holds.
func (f *Fleet) add(ctx context.Context, source string, spec WorkerSpec, still func() bool, by []any) (w *Worker, created bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	spec, base, err := checkSpec(spec, f.opts.Dialects)
	if err != nil {
		return nil, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var ep *upstream.Endpoint
	if ep, err = f.endpointForLocked(&spec); err != nil {
		return nil, false, err
	}
	if still != nil && !still() {
		if ep != nil {
			ep.Close()
		}
		return nil, false, errChanged
	}
	w, created, err = f.addLocked(source, spec, base, ep, by)
	if ep != nil && (w == nil || w.endpoint != ep) {
		ep.Close()
	}
	if err == nil && source == SourceRequests && still == nil && w.elsewhere {
		w.elsewhere = false
		f.noteRegistrationsLocked(source)
	}
	return w, created, err
}

// endpointForLocked makes an endpoint for a checked spec; nil: it can use that of the worker
// that has its URL now. The lock is given back for a time, because certificate files are read.
func (f *Fleet) endpointForLocked(spec *WorkerSpec) (*upstream.Endpoint, error) {
	if !f.needsEndpointLocked(spec) {
		return nil, nil
	}
	f.mu.Unlock()
	defer f.mu.Lock()
	return endpointOf(spec, f.transport)
}

// needsEndpointLocked reports whether a checked spec cannot use the endpoint of the
// worker that has its URL now.
func (f *Fleet) needsEndpointLocked(spec *WorkerSpec) bool {
	old := f.byURL[spec.URL]
	return old == nil || old.draining || !sameTransport(old.spec.Load(), spec)
}

// addLocked registers spec and puts that in force. ep is a new endpoint for it, nil to
// use the one of the worker that has the URL now.
func (f *Fleet) addLocked(source string, spec WorkerSpec, base workerurl.URL, ep *upstream.Endpoint, by []any) (*Worker, bool, error) {
	var changes []admission.Change
	w, created, err := f.placeLocked(source, spec, base, ep, &changes)
	if !created {
		return w, false, err
	}
	news := f.applyAllLocked(w, &changes)
	f.gate.Apply(changes...)
	f.logRegistered(w, by)
	f.logPairing(news)
	return w, true, nil
}

// placeLocked puts a worker into the registry. Where its URL is registered already, with
// other settings, there is no moment without it: it keeps its place, its health and what
// is known about it. What requests it has stays counted on its ranks as well, unless it
// plays another role, serves another model or is reached in another way, or as another
// kind of engine: then it is another Worker, and the ranks of the former one are taken
// out of the gate. The caller puts what changed in force with applyAllLocked.
func (f *Fleet) placeLocked(source string, spec WorkerSpec, base workerurl.URL, ep *upstream.Endpoint, changes *[]admission.Change) (*Worker, bool, error) {
	if f.closed {
		return nil, false, ErrClosed
	}
	old := f.byURL[spec.URL]
	if old != nil && !old.draining && source != SourceRequests && old.source != source && old.source != SourceCluster {
		old.alsoOf = source
		return nil, false, &otherOwnerError{old.source}
	}
	if source == SourceRequests {
		delete(f.heldOut, spec.URL)
	}
	now := f.clock.Now()
	set := workerSettings{declared: spec}
	if old != nil && !old.draining {
		if source != SourceRequests {
			set.overlay = old.overlay // a request that registers it says all of its settings
		}
		if w, changed := f.setInPlaceLocked(old, source, set, now, changes); w != nil {
			return w, changed, nil
		}
	}
	drained := false
	if source != SourceRequests && (old == nil || old.draining) {
		set.overlay, drained = f.changedElsewhereLocked(spec.URL)
	}
	f.noteRegistrationsLocked(source)
	f.noteOrderLocked(spec.URL)
	f.generation++
	w := &Worker{fleet: f, declaration: declaration{source: source}, workerSettings: set, url: spec.URL, role: spec.Type.Role(), base: base, endpoint: ep, addedAt: now, askNow: make(chan struct{}, 1)}
	w.drained = drained
	w.spec.Store(set.inForce(f.opts.Dialects))
	w.generation.Store(f.generation)
	w.ctx, w.cancel = context.WithCancel(f.ctx)
	w.event = newEvent(func(now admission.Instant) { f.due(w, now) })
	w.watchEvent = newEvent(func(now admission.Instant) { f.watchDue(w, now) })
	w.loadEvent = newEvent(func(now admission.Instant) { f.loadTimeDue(w, now) })
	w.reportEnd = newEvent(func(now admission.Instant) { f.reportEnds(w, now) })
	w.textEvent = newEvent(func(now admission.Instant) { f.textDue(w, now) })
	w.updateState(noFacts)
	w.ranks.Store(new([]*Rank))
	if old == nil {
		w.id = f.newIDLocked(spec.URL)
		if len(f.workers) == 0 {
			f.firstAdded = now
		}
		f.workers = append(f.workers, w)
	} else {
		w.id, w.replaced = old.id, true
		f.workers[slices.Index(f.workers, old)] = w
		f.unregisterLocked(old, changes)
		if !old.draining {
			w.declaration = old.declaration
			w.takeOver(source)
			w.drained = old.drained
			w.updateState(old.Facts())
			w.loads.Store(old.loads.Load())
			w.peer.Store(old.peer.Load())
			w.health = old.health
			w.factsReadAt = now.Add(-factsInterval) // to be read again with the first check
			if sameTransport(old.spec.Load(), &spec) {
				w.endpoint = old.endpoint
			}
			w.oldRanks = slices.Clone(old.oldRanks)
			w.heirOf = old.Ranks()
			w.liveness.Store(old.liveness.Load())
		}
		f.stopLocked(old)
		if w.endpoint != old.endpoint {
			f.closeWhenIdleLocked(old)
		}
	}
	if w.liveness.Load() == nil {
		w.liveness.Store(newLiveness())
	}
	if f.cfg.Health.Disabled {
		w.health.everHealthy, w.health.healthy = true, true
	}
	f.hasTokens = f.hasTokens || w.base.GRPC() || w.takesTokens()
	w.endpoint.OnLost(w.checkSoon)
	f.byID[w.id], f.byURL[spec.URL] = w, w
	f.sched.set(w.event, now)
	if f.cfg.Health.LoadMonitor > 0 {
		f.sched.set(w.loadEvent, now.Add(f.jitterLocked(f.loadPause())))
		if l := w.loads.Load(); l != nil {
			f.sched.set(w.reportEnd, l.at.Add(reportCounts*f.cfg.Health.LoadMonitor))
		}
	}
	return w, true, nil
}

// logRegistered logs that w is in force. by is who ordered it.
func (f *Fleet) logRegistered(w *Worker, by []any) {
	log := f.log.With(by...)
	if w.origin != "" {
		log = log.With("origin", w.origin)
	}
	log.Info("worker registered", "worker", w.url, "id", w.id, "type", w.role.String(), "replaced", w.replaced, "source", w.source)
}

// newIDLocked makes the id of a URL.
func (f *Fleet) newIDLocked(url string) string {
	sum := sha256.Sum256([]byte(url))
	digits := hex.EncodeToString(sum[:])
	for n := 10; n < len(digits); n++ {
		if id := "w" + digits[:n]; f.byID[id] == nil {
			return id
		}
	}
	return "w" + digits
}

// Remove takes a worker out of service: it gets no new work from now on, is
// not checked any more, and leaves the registry when its requests have ended or
// after Options.drainTimeout. name is an id or a URL. ok is false when there is no
// such worker. Repeated calls do nothing. by is who ordered it, as keys and values for
// the log.
//
// A worker that a source declares is held out then: the source does not bring it back
// before it has declared it no more, or another engine at its address, or Add was
// called for it.
func (f *Fleet) Remove(name string, by ...any) (w *Worker, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w = f.lookupLocked(name)
	if w == nil {
		return nil, false
	}
	f.removeLocked(w, by)
	return w, true
}

// RemoveWithin is Remove with a bound of its own: requests that the worker still has
// after that time are ended, as if it had died, but it is not blamed. 0: at once. A
// worker that is being removed gets the new bound.
func (f *Fleet) RemoveWithin(name string, within time.Duration, by ...any) (w *Worker, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w = f.lookupLocked(name)
	if w == nil {
		return nil, false
	}
	f.removeLocked(w, by)
	if !w.removed {
		now := f.clock.Now()
		w.drainUntil, w.drainHard = now.Add(max(within, 0)), true
		f.drainAllLocked([]*Worker{w}, now)
	}
	return w, true
}

func (f *Fleet) removeLocked(w *Worker, by []any) {
	f.holdOutLocked(w)
	f.noteOrderLocked(w.url)
	f.lookElsewhereLocked()
	if w.draining && !w.leaving {
		return
	}
	f.noteRegistrationsLocked(w.source)
	f.removeAllLocked([]*Worker{w}, by)
}

// removeAllLocked begins the removal of workers.
func (f *Fleet) removeAllLocked(ws []*Worker, by []any) {
	if len(ws) == 0 {
		return
	}
	now := f.clock.Now()
	for _, w := range ws {
		w.leaving = false
		f.beginDrainLocked(w, now)
		w.cancel()
		f.noteOrderLocked(w.url)
	}
	var changes []admission.Change
	news := f.applyAllOfLocked(ws, &changes)
	f.halfOpenLastLocked(now, &changes)
	f.gate.Apply(changes...)
	f.logPairing(news)
	f.logDrains("worker is being removed: it gets no new requests, and those it has are waited for", ws, by)
	f.drainAllLocked(ws, now)
}

// beginDrainLocked has w get no new requests. Its bound in time is the usual one, unless
// the caller sets another.
func (f *Fleet) beginDrainLocked(w *Worker, now admission.Instant) {
	if !w.draining {
		w.draining, w.drainSince = true, now
	}
	w.drainUntil, w.drainHard = w.drainSince.Add(f.opts.drainTimeout), false
}

// logDrains logs the beginning of the drain of workers, of many only their number.
func (f *Fleet) logDrains(text string, ws []*Worker, by []any) {
	log := f.log.With(by...)
	for _, w := range ws[:min(len(ws), maxLogged)] {
		log.Info(text, "worker", w.url, "id", w.id, "requests", f.requestsLocked(w))
	}
	if more := len(ws) - maxLogged; more > 0 {
		log.Info("more workers as the last one", "workers", more)
	}
}

// maxLogged bounds the lines about single workers for one event that concerns many.
const maxLogged = 20

// drainAllLocked takes those of ws out of the registry whose requests have ended, or
// that have waited for them long enough, and schedules the next look at the others.
func (f *Fleet) drainAllLocked(ws []*Worker, now admission.Instant) {
	var over []*Worker
	for _, w := range ws {
		f.pruneOldRanksLocked(w)
		if (len(w.oldRanks) > 0 || f.requestsLocked(w) > 0) && now < w.drainUntil {
			// The pause grows with the time already waited: 10 ms to half a second.
			pause := min(max(now.Sub(w.drainSince)/4, 10*time.Millisecond), 500*time.Millisecond)
			f.sched.set(w.event, min(now.Add(pause), w.drainUntil))
			continue
		}
		over = append(over, w)
	}
	if len(over) == 0 {
		return
	}
	left := make([]int, len(over))
	var changes []admission.Change
	for i, w := range over {
		left[i] = f.requestsLocked(w)
		f.unregisterLocked(w, &changes)
		f.stopLocked(w)
		delete(f.byID, w.id)
		delete(f.byURL, w.url)
	}
	f.workers = slices.DeleteFunc(f.workers, func(o *Worker) bool { return o.removed })
	f.logPairing(f.applySoonLocked(nil, &changes))
	f.gate.Apply(changes...)
	for i, w := range over {
		if w.drainHard && left[i] > 0 {
			w.liveness.Load().end(ErrRemoved)
		}
		w.endpoint.Close()
		if i < maxLogged {
			f.log.Info("worker was removed", "worker", w.url, "id", w.id, "drained", now.Sub(w.drainSince).Round(time.Millisecond), "requests", left[i])
		}
	}
	if more := len(over) - maxLogged; more > 0 {
		f.log.Info("more workers were removed", "workers", more)
	}
}

// stopLocked ends everything that is going on for w itself.
func (f *Fleet) stopLocked(w *Worker) {
	w.removed = true
	w.cancel()
	w.dropTextLocked()
	f.sched.drop(w.textEvent)
	f.forgetPairsLocked(w.Ranks())
	f.dropFromIndexLocked(w.Ranks())
	for _, e := range [...]*event{w.event, w.loadEvent, w.reportEnd} {
		f.sched.drop(e)
	}
	for _, r := range w.Ranks() {
		f.sched.drop(r.event)
		f.sched.drop(r.warmth.event)
	}
}

// closeWhenIdleLocked closes the endpoint of a worker that was replaced, when the
// requests it still has are over.
func (f *Fleet) closeWhenIdleLocked(w *Worker) {
	deadline := f.clock.Now().Add(f.opts.drainTimeout)
	f.retired[w] = struct{}{}
	var e *event
	look := func(now admission.Instant) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pruneOldRanksLocked(w)
		if len(w.oldRanks) == 0 || now >= deadline {
			w.endpoint.Close()
			delete(f.retired, w)
			return
		}
		f.sched.set(e, now.Add(500*time.Millisecond))
	}
	e = newEvent(look)
	f.sched.set(e, f.clock.Now())
}

// lookupLocked finds a worker by id or URL in any spelling.
func (f *Fleet) lookupLocked(name string) *Worker {
	if w := f.byID[name]; w != nil {
		return w
	}
	if len(name) > workerurl.MaxLen {
		return nil
	}
	if w := f.byURL[name]; w != nil {
		return w
	}
	base, err := workerurl.ParseLoose(name)
	if err != nil {
		return nil
	}
	return f.byURL[base.String()]
}

// Names reports whether name, an id or a URL, is that of the worker at a URL, registered
// or not.
func (f *Fleet) Names(name, url string) bool {
	base, err := workerurl.Parse(url)
	if err != nil {
		return true // which whoever registers it is told
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.lookupLocked(name); w != nil {
		return w.url == base.String()
	}
	if name == f.newIDLocked(base.String()) {
		return f.byURL[base.String()] == nil
	}
	given, err := workerurl.ParseLoose(name)
	return err == nil && given.String() == base.String()
}

// Get finds a worker by its id or URL.
func (f *Fleet) Get(name string) (*Worker, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.lookupLocked(name)
	return w, w != nil
}

// List returns the workers in the order of registration, draining ones included.
func (f *Fleet) List() []*Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.workers)
}

// Ready reports whether requests can be served: there is a candidate rank; in a
// fleet that splits requests, one for prefill and one for decode.
func (f *Fleet) Ready(pd bool) bool {
	if pd {
		return f.gate.Servable(admission.Disaggregated)
	}
	return f.gate.Servable(admission.Aggregated)
}

// HealthInterval is how often a worker is checked, and so what a client that
// found none may wait.
func (f *Fleet) HealthInterval() time.Duration { return f.cfg.Health.Interval }
