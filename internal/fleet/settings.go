package fleet

import (
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// workerSettings are what a worker's settings in force are made of. Guarded by Fleet.mu.
type workerSettings struct {
	declared WorkerSpec // by its owner, checked
	overlay  overlay    // what requests changed of a worker that a source owns
}

// inForce are the settings with the overlay. One that does not go with what is declared
// now, such as a connector of another engine, has no effect.
func (s *workerSettings) inForce(dialects *engine.Registry) *WorkerSpec {
	spec := s.overlay.over(s.declared)
	if checked, _, err := checkSpec(spec, dialects); err == nil {
		return &checked
	}
	return &s.declared
}

// overlay is what requests changed of a worker beside what its source declares. It is
// dropped with the worker.
type overlay struct {
	values WorkerSpec
	fields []string // of values, sorted
	labels map[string]string
}

// over returns spec with the overlay's values.
func (o *overlay) over(spec WorkerSpec) WorkerSpec {
	for _, name := range o.fields {
		patchable[name](&spec, &o.values)
	}
	if len(o.labels) > 0 {
		spec.Labels = maps.Clone(spec.Labels)
		if spec.Labels == nil {
			spec.Labels = map[string]string{}
		}
		maps.Copy(spec.Labels, o.labels)
	}
	return spec
}

// names are the settings that differ from what is declared, sorted.
func (o *overlay) names() []string {
	names := slices.Clone(o.fields)
	for _, k := range slices.Sorted(maps.Keys(o.labels)) {
		names = append(names, "labels."+k)
	}
	return names
}

// with returns the overlay with a patch on top. What the patch takes back is again as
// declared.
func (o *overlay) with(p *Patch) overlay {
	next := overlay{values: o.values, fields: slices.Clone(o.fields), labels: maps.Clone(o.labels)}
	for _, name := range p.Set {
		patchable[name](&next.values, &p.Values)
		if !slices.Contains(next.fields, name) {
			next.fields = append(next.fields, name)
		}
	}
	slices.Sort(next.fields)
	next.fields = slices.DeleteFunc(next.fields, func(name string) bool { return slices.Contains(p.Unset, name) })
	if p.UnsetAllLabels {
		next.labels = nil
	}
	if next.labels == nil && len(p.Values.Labels) > 0 {
		next.labels = map[string]string{}
	}
	maps.Copy(next.labels, p.Values.Labels)
	for _, k := range p.UnsetLabels {
		delete(next.labels, k)
	}
	return next
}

// setInPlaceLocked gives old other settings, or another owner, without a new
// registration of its ranks, so that its requests stay counted there. It returns nil
// where that is not possible, and whether anything changed.
func (f *Fleet) setInPlaceLocked(old *Worker, source string, set workerSettings, now admission.Instant, changes *[]admission.Change) (w *Worker, changed bool) {
	was, is := old.spec.Load(), set.inForce(f.opts.Dialects)
	same := equalSpecs(was, is)
	if !same && !sameEngine(was, is) {
		return nil, false
	}
	if !same || !equalSpecs(&old.declared, &set.declared) || old.source != source {
		f.noteOrderLocked(old.url)
	}
	if !equalSpecs(&old.declared, &set.declared) || old.source != source {
		f.noteRegistrationsLocked(source)
		f.noteRegistrationsLocked(old.source)
	}
	old.takeOver(source)
	old.workerSettings = set
	if same {
		return old, false
	}
	old.spec.Store(is)
	old.replaced = true
	f.generation++
	old.generation.Store(f.generation)
	old.updateState(old.Facts())
	if was.KVConnector != is.KVConnector || was.BootstrapPort != is.BootstrapPort || was.Labels[labelConnector] != is.Labels[labelConnector] {
		// What pairs it may be in, and how its transfers go, begins anew.
		old.factsReadAt = now.Add(-factsInterval)
		old.transfers.forget()
		f.liftQuarantineLocked(old, changes)
		f.forgetPairsLocked(old.Ranks())
		f.sched.set(old.event, now)
	}
	f.streams.followLocked(old)
	return old, true
}

// sameEngine reports whether two settings of one worker are of one engine, reached in one
// way, that does the same work.
func sameEngine(a, b *WorkerSpec) bool {
	return a.Type.Role() == b.Type.Role() && a.ModelID == b.ModelID && a.Backend == b.Backend &&
		a.Labels[labelBackend] == b.Labels[labelBackend] && a.DPSize == b.DPSize && sameTransport(a, b)
}
