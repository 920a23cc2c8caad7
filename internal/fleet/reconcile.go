package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// SourceRequests is the source of workers that were registered by request.
const SourceRequests = "requests"

// Declared is one worker as a source declares it: its settings, and what the source
// knows of its life. The zero values of the latter say that it may get requests.
type Declared struct {
	config.Worker

	// Identity tells apart engines that follow each other at one address, such as a
	// pod's UID. Another one than before means another engine: nothing that was known of
	// the former is kept. Empty when the source cannot tell.
	Identity string
	// NotReady is why the worker must not be chosen for now, for the operator. It stays
	// registered with all that is known of it.
	NotReady string
	// Leaving: the worker gets no new requests and is removed when those it has are over,
	// at LeaveBy at the latest, or within the usual drain timeout where that is zero.
	Leaving bool
	LeaveBy time.Time
	// Origin is how an operator finds it at the source: "pod default/prefill-0", or a file
	// and a line.
	Origin string
}

// Declare returns workers as a source declares them that knows only their settings.
func Declare(workers []config.Worker) []Declared {
	declared := make([]Declared, len(workers))
	for i, w := range workers {
		declared[i].Worker = w
	}
	return declared
}

// declaration is what a worker's source says beside its settings. Guarded by Fleet.mu.
type declaration struct {
	source    string // who brought it; see Reconcile
	alsoOf    string // another source that declares it too, since it was brought by source
	elsewhere bool   // of SourceRequests: it was registered at another member of the cluster
	identity  string
	notReady  string
	origin    string
}

// takeOver makes source the owner. What the former one said of its life is void then.
func (d *declaration) takeOver(source string) {
	if d.source != source {
		*d = declaration{source: source, alsoOf: d.source}
	}
}

// heldOut is a worker that was removed by request while a source declared it.
type heldOut struct{ source, identity string }

// HeldOut returns the URLs of the workers that a source declares and that are kept out,
// because they were removed by request, in order.
func (f *Fleet) HeldOut(source string) (urls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for url, h := range f.heldOut {
		if h.source == source {
			urls = append(urls, url)
		}
	}
	slices.Sort(urls)
	return urls
}

// Owned is the number of registered workers that a source owns.
func (f *Fleet) Owned(source string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.source == source && (!w.draining || w.leaving) {
			n++
		}
	}
	return n
}

// holdOutLocked keeps the source that declares w from bringing it back.
func (f *Fleet) holdOutLocked(w *Worker) {
	source := w.source
	if source == SourceRequests {
		source = w.alsoOf
	}
	if source != "" && source != SourceRequests {
		f.heldOut[w.url] = heldOut{source, w.identity}
	}
}

// Reconcile makes the workers of one source those of specs: new ones are added,
// changed ones replaced in place, and those that the source had brought before and
// does not name any more are removed as by Remove. What they say of a worker's life is
// put in force with that, and all takes effect at the gate in one step.
//
// A source owns what it brought and nothing else: a worker that another source brought,
// or an operator registered, stays as it is. What was removed by request stays out; see
// Remove.
//
// Specs that cannot be registered are left out, and so are those of workers that have
// another owner and the second of two with one URL; the others are put in force, and the
// error joins one for each that was left out. It says the URL and not the place in specs.
func (f *Fleet) Reconcile(ctx context.Context, source string, specs []Declared) error {
	r := reconciliation{f: f, source: source, named: make(map[string]bool, len(specs))}
	for i := range specs {
		r.check(&specs[i])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// The endpoints are made without the lock, under which the registry may change.
	for r.missEndpointsLocked() {
		f.mu.Unlock()
		r.makeEndpoints(ctx)
		f.mu.Lock()
	}
	if err := ctx.Err(); err != nil || f.closed {
		for _, d := range r.declared {
			d.closeEndpoint()
		}
		return cmp.Or(err, ErrClosed)
	}
	r.putInForceLocked(f.clock.Now())
	return errors.Join(r.errs...)
}

// Check returns an error for each worker that could not be registered, as Reconcile would
// find it, without registering any. It reads certificate files.
func (f *Fleet) Check(specs []WorkerSpec) error {
	var errs []error
	for i := range specs {
		spec, _, err := checkSpec(specs[i], f.opts.Dialects)
		if err == nil {
			f.mu.Lock()
			same := !f.needsEndpointLocked(&spec)
			f.mu.Unlock()
			if same {
				continue
			}
			var ep *upstream.Endpoint
			if ep, err = endpointOf(&spec, f.transport); err == nil {
				ep.Close()
				continue
			}
		}
		errs = append(errs, fmt.Errorf("worker %s: %w", specs[i].URL, err))
	}
	return errors.Join(errs...)
}

// reconciliation is one call of Reconcile.
type reconciliation struct {
	f        *Fleet
	source   string
	declared []*declared
	named    map[string]bool // URLs that the source declares, in whatever state
	errs     []error
}

// declared is one worker of a reconciliation.
type declared struct {
	Declared
	base     workerurl.URL
	endpoint *upstream.Endpoint // nil: that of the worker that has the URL now
	refused  bool
}

func (d *declared) closeEndpoint() {
	if d.endpoint != nil {
		d.endpoint.Close()
		d.endpoint = nil
	}
}

func (r *reconciliation) refuse(url string, err error) {
	r.errs = append(r.errs, fmt.Errorf("worker %s: %w", url, err))
}

// check takes one worker over whose settings can be registered.
func (r *reconciliation) check(d *Declared) {
	spec, base, err := checkSpec(d.Worker, r.f.opts.Dialects)
	if err != nil {
		r.refuse(d.URL, err)
		// A spec that is refused now is no order to remove what it brought before.
		if old, ok := r.f.Get(d.URL); ok {
			r.named[old.url] = true
		}
		return
	}
	if r.named[spec.URL] {
		r.refuse(spec.URL, errDeclaredTwice)
		return
	}
	r.named[spec.URL] = true
	one := &declared{Declared: *d, base: base}
	one.Worker = spec
	r.declared = append(r.declared, one)
}

var errDeclaredTwice = errors.New("it is declared twice; the first is used")

// missEndpointsLocked reports whether some worker still needs an endpoint of its own.
func (r *reconciliation) missEndpointsLocked() bool {
	if r.f.closed {
		return false
	}
	for _, d := range r.declared {
		if r.lacksEndpointLocked(d) {
			return true
		}
	}
	return false
}

func (r *reconciliation) lacksEndpointLocked(d *declared) bool {
	if d.endpoint != nil || d.refused || d.Leaving {
		return false
	}
	if old := r.f.byURL[d.URL]; old != nil && old.leaving && old.draining && sameTransport(old.spec.Load(), &d.Worker) {
		return !old.sameIdentity(d.Identity)
	}
	return r.f.needsEndpointLocked(&d.Worker)
}

// makeEndpoints makes those that are missing. It reads certificate files.
func (r *reconciliation) makeEndpoints(ctx context.Context) {
	r.f.mu.Lock()
	var missing []*declared
	for _, d := range r.declared {
		if r.lacksEndpointLocked(d) {
			missing = append(missing, d)
		}
	}
	r.f.mu.Unlock()
	for _, d := range missing {
		var err error
		if err = ctx.Err(); err == nil {
			d.endpoint, err = endpointOf(&d.Worker, r.f.transport)
		}
		if err != nil {
			d.refused = true
			r.refuse(d.URL, err)
		}
	}
}

// putInForceLocked brings registry and gate in line with what is declared.
func (r *reconciliation) putInForceLocked(now admission.Instant) {
	f := r.f
	var changes []admission.Change
	var changed, registered, leaving, gone, closeIdle, flipped []*Worker
	for _, d := range r.declared {
		if d.refused {
			continue
		}
		h, ok := f.heldOut[d.URL]
		if ok && h.source == SourceCluster && r.source != SourceCluster {
			h.source = r.source // a source of this router declares it now
			f.heldOut[d.URL] = h
		}
		if ok && (h.source == r.source || r.source == SourceCluster) {
			if h.identity == d.Identity {
				d.closeEndpoint()
				continue
			}
			delete(f.heldOut, d.URL)
			f.noteOrderLocked(d.URL)
		} else if !ok && f.holdOutElsewhereLocked(r.source, d.URL, d.Identity) {
			d.closeEndpoint()
			continue
		}
		old := f.byURL[d.URL]
		if d.Leaving {
			if old != nil && old.source == r.source && (!old.draining || old.leaving) {
				if !old.draining {
					leaving = append(leaving, old)
				}
				by := d.LeaveBy
				if !old.sameIdentity(d.Identity) {
					by = time.Now() // the engine that was known there is gone, and the one after it leaves
				}
				r.describeLocked(old, d)
				f.setLeavingLocked(old, now, by)
			}
			continue
		}
		stays := old != nil && old.source == r.source && old.leaving && old.draining && old.sameIdentity(d.Identity)
		if stays {
			// Its source took its leaving back.
			old.draining, old.leaving = false, false
			f.sched.set(old.event, now)
		}
		w, created, err := f.placeLocked(r.source, d.Worker, d.base, d.endpoint, &changes)
		if err != nil {
			r.refuse(d.URL, err)
			d.closeEndpoint()
			continue
		}
		if w.endpoint != d.endpoint {
			d.closeEndpoint()
		}
		if created {
			registered = append(registered, w)
		}
		ready := w.notReady == ""
		if !w.sameIdentity(d.Identity) {
			f.identityChangedLocked(w, now, &changes)
			closeIdle = append(closeIdle, w)
			created = true
		}
		r.describeLocked(w, d)
		switch {
		case created || stays:
			changed = append(changed, w)
		case ready != (w.notReady == ""):
			f.applyStatesLocked(w, &changes)
			if w.notReady == "" && !w.health.healthy {
				// An engine that was loading answers now.
				w.health.attempts = 0
				f.sched.advance(w.event, now)
			}
			flipped = append(flipped, w)
		}
	}
	for _, w := range f.workers {
		if w.source == r.source && (!w.draining || w.leaving) && !r.named[w.url] {
			gone = append(gone, w)
		}
		if w.alsoOf == r.source && !r.named[w.url] {
			w.alsoOf = ""
		}
	}
	for url, h := range f.heldOut {
		if h.source == r.source && !r.named[url] {
			delete(f.heldOut, url)
			f.noteOrderLocked(url)
		}
	}
	r.applyLocked(now, changed, leaving, changes)
	for _, w := range closeIdle {
		w.endpoint.CloseIdle()
	}
	r.log(registered, func(w *Worker) { f.logRegistered(w, nil) })
	log := f.log.With("source", r.source)
	r.log(flipped, func(w *Worker) {
		log.Info("worker's source changed whether it may be chosen", "worker", w.url, "id", w.id, "not_ready", w.notReady)
	})
	r.log(closeIdle, func(w *Worker) {
		log.Info("worker is another engine now, as its source says: its facts are read again", "worker", w.url, "id", w.id)
	})
	f.logDrains("worker is leaving, as its source says: it gets no new requests, and those it has are waited for", leaving, []any{"source", r.source})
	f.drainAllLocked(leaving, now)
	f.tellDeclaredLocked(r.source, r.declared)
	f.droppedLocked(r.source, gone, now)
	f.removeAllLocked(gone, []any{"source", r.source})
}

// log logs what happened to workers, of many only their number.
func (r *reconciliation) log(ws []*Worker, one func(*Worker)) {
	for _, w := range ws[:min(len(ws), maxLogged)] {
		one(w)
	}
	if more := len(ws) - maxLogged; more > 0 {
		r.f.log.Info("more workers as the last one", "workers", more, "source", r.source)
	}
}

// applyLocked passes all that has changed to the gate in one step.
func (r *reconciliation) applyLocked(now admission.Instant, changed, leaving []*Worker, changes []admission.Change) {
	f := r.f
	var news []pairingNews
	if all := slices.Concat(changed, leaving); len(all) > 0 {
		news = f.applyAllOfLocked(all, &changes)
	}
	if len(changes) > 0 {
		f.halfOpenLastLocked(now, &changes)
		f.gate.Apply(changes...)
	}
	f.logPairing(news)
}

// describeLocked takes over what the source says of w beside its settings.
func (r *reconciliation) describeLocked(w *Worker, d *declared) {
	w.notReady, w.origin = text.Clip(d.NotReady, maxNameLen), text.Clip(d.Origin, maxNameLen)
	if d.Identity != "" {
		w.identity = d.Identity
	}
}

// sameIdentity reports whether the engine that the source means is the one that w stands
// for, as far as its source can tell.
func (w *Worker) sameIdentity(identity string) bool {
	return identity == "" || w.identity == "" || w.identity == identity
}

// setLeavingLocked has w drain until by, or for the usual time where that is zero.
// After by its engine is no more, so requests that are left then are ended.
func (f *Fleet) setLeavingLocked(w *Worker, now admission.Instant, by time.Time) {
	f.beginDrainLocked(w, now)
	w.leaving = true
	if !by.IsZero() {
		w.drainUntil, w.drainHard = now.Add(max(0, time.Until(by))), true
	}
}

// identityChangedLocked drops all that was known of the engine that was at w's address
// before. The new one keeps its place among the candidates until its first check, which
// is due at once; requests that ran on the former one end.
func (f *Fleet) identityChangedLocked(w *Worker, now admission.Instant, changes *[]admission.Change) {
	f.engineReplacedLocked(w, now, changes)
	ready := w.health.healthy
	w.health = healthState{everHealthy: ready, healthy: ready}
	w.loads.Store(nil)
	f.dropReportsLocked(w, changes)
	w.peer.Store(nil)
	w.factsReadAt, w.factsAttempts = now.Add(-factsInterval), 0
	w.maybeReplaced, w.otherIdentity = true, true
	w.liveness.Swap(newLiveness()).end(ErrDead)
	f.sched.set(w.event, now)
}

// otherOwnerError is returned for a worker that another source brought.
type otherOwnerError struct{ owner string }

func (e *otherOwnerError) Error() string {
	return fmt.Sprintf("it is already registered by %s, which keeps it", e.owner)
}

// Fails reports whether a worker gets no requests because its checks fail or it was never
// seen healthy, or whether there is no such worker. url is canonical.
func (f *Fleet) Fails(url string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.byURL[url]
	return w == nil || !w.health.healthy
}

// Awaited returns those of urls, workers of a source that are about to go, that serve a
// model in a role for which no other worker is ready, while a worker of the source that was
// not seen yet may turn out to serve it.
func (f *Fleet) Awaited(source string, urls []string) (list []string) {
	type service struct {
		role  admission.Role
		model string
	}
	going := make(map[string]bool, len(urls))
	for _, u := range urls {
		going[u] = true
	}
	ready, coming := map[service]bool{}, map[service]bool{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if going[w.url] || w.draining || w.drained || w.notReady != "" {
			continue
		}
		switch {
		case w.statusLocked() == StatusReady:
			for _, m := range w.pools() {
				ready[service{w.role, m}] = true
			}
		case w.source == source && w.statusLocked() == StatusPending && w.modelProblem == "":
			names := w.ownNames()
			for _, m := range names {
				coming[service{w.role, m}] = true
			}
			if len(names) == 0 {
				coming[service{w.role, ""}] = true // it may serve anything
			}
		}
	}
	for _, u := range urls {
		w := f.byURL[u]
		if w == nil || w.statusLocked() != StatusReady {
			continue
		}
		for _, m := range w.pools() {
			of := service{w.role, m}
			if !ready[of] && (coming[of] || coming[service{w.role, ""}]) {
				list = append(list, u)
				break
			}
		}
	}
	return list
}
