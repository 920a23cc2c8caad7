package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Errors of requests about one worker.
var (
	// ErrUnknownWorker: no worker has that name.
	ErrUnknownWorker = errors.New("there is no such worker")
	// ErrLeaving: the worker is being removed.
	ErrLeaving = errors.New("the worker is being removed")
)

// Patch changes some settings of a worker. The names are those of the worker's JSON.
type Patch struct {
	// Set are the settings to take from Values. Labels are not among them.
	Values WorkerSpec
	Set    []string
	// Unset are settings to take back: what the worker's source declares holds again,
	// and there is none for a worker that was registered by request.
	Unset []string
	// Labels of Values are added to those that there are. UnsetLabels are taken back,
	// UnsetAllLabels all of them before.
	UnsetLabels    []string
	UnsetAllLabels bool
}

// patchable are the settings that a patch may have, beside labels.
var patchable = map[string]func(to, from *WorkerSpec){
	"priority":                      func(to, from *WorkerSpec) { to.Priority = from.Priority },
	"prefill_max_inflight_requests": func(to, from *WorkerSpec) { to.PrefillMaxInflight = from.PrefillMaxInflight },
	"max_running_requests":          func(to, from *WorkerSpec) { to.MaxRunningRequests = from.MaxRunningRequests },
	"max_num_batched_tokens":        func(to, from *WorkerSpec) { to.MaxNumBatchedTokens = from.MaxNumBatchedTokens },
	"total_kv_blocks":               func(to, from *WorkerSpec) { to.TotalKVBlocks = from.TotalKVBlocks },
	"block_size":                    func(to, from *WorkerSpec) { to.BlockSize = from.BlockSize },
	"kv_connector":                  func(to, from *WorkerSpec) { to.KVConnector = from.KVConnector },
	"topology_domain":               func(to, from *WorkerSpec) { to.TopologyDomain = from.TopologyDomain },
	"adapters":                      func(to, from *WorkerSpec) { to.Adapters = from.Adapters },
	fieldAPIKey:                     func(to, from *WorkerSpec) { to.APIKey = from.APIKey },
}

// fieldAPIKey can be patched for workers that were registered by request only: another
// key means another endpoint, which belongs to what a source declares.
const fieldAPIKey = "api_key"

// over returns spec with the patch.
func (p *Patch) over(spec WorkerSpec) WorkerSpec {
	for _, name := range p.Set {
		patchable[name](&spec, &p.Values)
	}
	for _, name := range p.Unset {
		patchable[name](&spec, &WorkerSpec{})
	}
	labels := maps.Clone(spec.Labels)
	if labels == nil || p.UnsetAllLabels {
		labels = map[string]string{}
	}
	maps.Copy(labels, p.Values.Labels)
	for _, k := range p.UnsetLabels {
		delete(labels, k)
	}
	if spec.Labels = labels; len(labels) == 0 {
		spec.Labels = nil
	}
	return spec
}

// Patch changes some settings of a worker and returns when that is in force. The worker
// of a source stays the source's: the patch lies on top of what that declares, whatever
// it declares later, and ends with the worker. The registration of a worker that was
// registered by request is changed itself. The error is ErrUnknownWorker, ErrLeaving, a
// *SpecError or that of Add.
func (f *Fleet) Patch(ctx context.Context, name string, p *Patch, by ...any) (*Worker, error) {
	for {
		w, err := f.patchOnce(ctx, name, p, by)
		if !errors.Is(err, errChanged) {
			return w, err
		}
	}
}

// errChanged: a worker was changed by another request meanwhile.
var errChanged = errors.New("the worker was changed meanwhile")

func (f *Fleet) patchOnce(ctx context.Context, name string, p *Patch, by []any) (*Worker, error) {
	for _, field := range slices.Concat(p.Set, p.Unset) {
		if patchable[field] == nil {
			return nil, &SpecError{field, errors.New("it cannot be changed by a patch")}
		}
	}
	f.mu.Lock()
	w := f.lookupLocked(name)
	switch {
	case w == nil:
		f.mu.Unlock()
		return nil, ErrUnknownWorker
	case w.draining:
		f.mu.Unlock()
		return w, ErrLeaving
	case w.source == SourceRequests:
		was := w.declared
		f.mu.Unlock()
		still := func() bool {
			now := f.byURL[was.URL]
			return now != nil && !now.draining && now.source == SourceRequests && equalSpecs(&now.declared, &was)
		}
		w, _, err := f.add(ctx, SourceRequests, p.over(was), still, by)
		return w, err
	}
	defer f.mu.Unlock()
	if slices.Contains(p.Set, fieldAPIKey) || slices.Contains(p.Unset, fieldAPIKey) {
		return w, &SpecError{fieldAPIKey, fmt.Errorf("it belongs to what %s declares; change it there", w.source)}
	}
	set := workerSettings{declared: w.declared, overlay: w.overlay.with(p)}
	if _, _, err := checkSpec(set.overlay.over(set.declared), f.opts.Dialects); err != nil {
		return w, err
	}
	was := w.spec.Load()
	if is := set.inForce(f.opts.Dialects); !sameEngine(was, is) {
		return w, &SpecError{"labels", fmt.Errorf("the label %q says which engine it is, and belongs to what %s declares; change it there", labelBackend, w.source)}
	}
	f.setOverlayLocked(w, set.overlay, by)
	return w, nil
}

// setOverlayLocked puts in force what was changed of a worker that a source owns.
func (f *Fleet) setOverlayLocked(w *Worker, o overlay, by []any) {
	var changes []admission.Change
	if _, changed := f.setInPlaceLocked(w, w.source, workerSettings{declared: w.declared, overlay: o}, f.clock.Now(), &changes); changed {
		news := f.applyAllLocked(w, &changes)
		f.gate.Apply(changes...)
		f.log.With(by...).Info("worker's settings changed", "worker", w.url, "id", w.id, "source", w.source, "patched", w.overlay.names())
		f.logPairing(news)
	}
}

// SetDrained drains a worker by request, or ends that: it gets no new requests, finishes
// those it has, stays registered and is checked, whatever its source declares
// meanwhile. Ended, it is a candidate again at once if it is healthy. The error is
// ErrUnknownWorker or ErrLeaving.
func (f *Fleet) SetDrained(name string, drained bool, by ...any) (*Worker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.lookupLocked(name)
	switch {
	case w == nil:
		return nil, ErrUnknownWorker
	case w.draining:
		return w, ErrLeaving
	}
	f.setDrainedLocked(w, drained, by)
	return w, nil
}

func (f *Fleet) setDrainedLocked(w *Worker, drained bool, by []any) {
	if w.drained == drained {
		return
	}
	w.drained = drained
	f.noteOrderLocked(w.url)
	f.noteRegistrationsLocked(w.source)
	var changes []admission.Change
	f.applyStatesLocked(w, &changes)
	if drained {
		f.halfOpenLastLocked(f.clock.Now(), &changes)
	}
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	log := f.log.With(by...)
	if drained {
		log.Info("worker was drained by request: it gets no new requests and stays registered", "worker", w.url, "id", w.id, "requests", f.requestsLocked(w))
	} else {
		log.Info("worker is no longer drained", "worker", w.url, "id", w.id)
	}
}

// Registration is a worker that was registered by request, as it was last set.
type Registration struct {
	config.Worker
	// Drained: by request; see SetDrained.
	Drained bool
}

// Registrations are the workers of SourceRequests as they were last set, without those
// that are being removed or were registered at another member of the cluster, in the order
// of their registration.
func (f *Fleet) Registrations() []Registration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Registration
	for _, w := range f.workers {
		if w.source == SourceRequests && !w.draining && !w.elsewhere {
			all = append(all, Registration{w.declared, w.drained})
		}
	}
	return all
}

// RegistrationsChanged has a value after each change of what Registrations returns,
// several in one. It is for one reader.
func (f *Fleet) RegistrationsChanged() <-chan struct{} { return f.registrations }

// AddRegistration is Add of a worker that was registered before.
func (f *Fleet) AddRegistration(ctx context.Context, r Registration) error {
	if m := f.member; m != nil {
		if base, err := workerurl.Parse(r.URL); err == nil {
			f.mu.Lock()
			m.restored[base.String()] = true
			f.mu.Unlock()
		}
	}
	w, _, err := f.Add(ctx, r.Worker)
	if err == nil && r.Drained {
		_, err = f.SetDrained(w.ID(), true)
	}
	return err
}

// noteRegistrationsLocked tells of a change to a worker of the source.
func (f *Fleet) noteRegistrationsLocked(source string) {
	if source != SourceRequests {
		return
	}
	select {
	case f.registrations <- struct{}{}:
	default:
	}
}
