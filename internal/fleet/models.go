package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// modelTable maps the names that requests use to pools. Immutable; replaced when a
// worker is added or removed, or reports something new.
type modelTable struct {
	// pool maps every name a request may use to a pool of the gate: a base
	// model's name to itself; a model's path, and a LoRA adapter, to the base
	// model of the worker that has it.
	pool map[string]string
	// aliases are the configured names of models, by what stands for them.
	aliases config.ModelAliases
	// adapters are the names in pool that are LoRA adapters.
	adapters map[string]bool
	// soleModel is the only model, when soles is 1.
	soleModel  string
	modelCount int
	// pendingUntil are workers that may yet turn out to serve anything, with the time
	// until which that is expected.
	pendingUntil []admission.Instant
	// undecided is until when some worker that has named no model so far may name
	// one with its first checks. Zero: there is none.
	undecided admission.Instant
	list      []ModelInfo
}

// Pool returns the name of the gate's pool that serves a model, adapter or
// alias. An unknown name is returned as it is; the gate then has no
// pool for it, or the one of workers whose model is unknown.
func (f *Fleet) Pool(model string) string {
	pool, _ := f.Resolve(model)
	return pool
}

// Resolve is Pool; adapter is the LoRA adapter that is asked for, or empty. An
// adapter may be named alone or, as SGLang takes it, behind its base model and a
// colon.
func (f *Fleet) Resolve(model string) (pool, adapter string) {
	t := f.names.Load()
	if target, ok := t.aliases[model]; ok {
		model = target
	}
	if p, ok := t.pool[model]; ok {
		if t.adapters[model] {
			adapter = model
		}
		return p, adapter
	}
	if base, name, ok := strings.Cut(model, ":"); ok && t.adapters[name] {
		if p, ok := t.pool[base]; ok && !t.adapters[base] {
			return p, name
		}
	}
	return model, ""
}

// Alias returns the model that a configured alias stands for, by the name that engines
// know; ok is false for other names.
func (f *Fleet) Alias(name string) (model string, ok bool) {
	model, ok = f.names.Load().aliases[name]
	return model, ok
}

// SetAliases puts the aliases of a new configuration in force.
func (f *Fleet) SetAliases(a config.ModelAliases) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aliases = a
	f.publishModelsLocked()
}

// SolePool returns the pool of requests that name no model, if n, the number of
// models served, is 1.
func (f *Fleet) SolePool() (pool string, n int) {
	t := f.names.Load()
	return t.soleModel, t.modelCount
}

// Expecting reports whether workers are registered that have not been seen yet and
// may turn out to serve a model that nobody else serves: for some minutes after
// their registration, and as long as no model is known at all.
func (f *Fleet) Expecting() bool {
	t := f.names.Load()
	if len(t.pendingUntil) == 0 {
		return false
	}
	if t.modelCount == 0 {
		return true
	}
	now := f.clock.Now()
	return slices.ContainsFunc(t.pendingUntil, func(until admission.Instant) bool { return now < until })
}

// Undecided reports whether it is open which model a request means that names none, or
// one that no worker lists: several workers were registered together, and one of them
// has named no model yet but may with its first checks. It is over once that worker
// had the time to fail as many checks as make one unhealthy, so that a worker that is
// down refuses nobody for long. A worker that comes later changes nothing before it
// has named its model: a fleet that grows keeps serving.
func (f *Fleet) Undecided() bool {
	until := f.names.Load().undecided
	return until != 0 && f.clock.Now() < until
}

// Listed reports whether a worker lists the model, adapter or alias.
func (f *Fleet) Listed(model string) bool {
	t := f.names.Load()
	pool, adapter := f.Resolve(model)
	if _, ok := t.pool[pool]; ok {
		return true
	}
	return adapter != ""
}

// Models returns what the workers serve, base models and adapters, each once, in
// the order of registration. It does not depend on health.
func (f *Fleet) Models() []ModelInfo { return f.names.Load().list }

// Model returns what is known of a model, an adapter, or another name that requests
// may give either by; ID is then the name asked for and Root the model that it
// stands for.
func (f *Fleet) Model(name string) (ModelInfo, bool) {
	t := f.names.Load()
	listed := func(id string) (ModelInfo, bool) {
		i := slices.IndexFunc(t.list, func(m ModelInfo) bool { return m.ID == id })
		if i < 0 {
			return ModelInfo{}, false
		}
		return t.list[i], true
	}
	if m, ok := listed(name); ok {
		return m, true
	}
	if target, ok := t.aliases[name]; ok {
		m, ok := f.Model(target)
		m.Root, m.ID = cmp.Or(m.Root, m.ID), name
		return m, ok
	}
	pool, adapter := f.Resolve(name)
	if adapter != "" {
		pool = adapter
	}
	m, ok := listed(pool)
	if ok {
		m.Root, m.ID = m.ID, name
	}
	return m, ok
}

// anyNamedLocked reports whether some worker is known to serve a model by its name.
func (f *Fleet) anyNamedLocked() bool {
	return slices.ContainsFunc(f.workers, func(w *Worker) bool { return !w.draining && len(w.ownNames()) > 0 })
}

// modelProblemLocked says why w gets no requests because of its model; empty if it
// does. A worker of an unknown model does not fit every model. alone: no worker
// reports what it serves.
func (w *Worker) modelProblemLocked(alone bool) string {
	facts := w.Facts()
	if w.modelUnknown {
		if alone || !w.health.everHealthy {
			return ""
		}
		return "it does not report which model it serves, while others do: it gets no requests; set model_id"
	}
	id := w.setModel()
	if id == "" || len(facts.Models) == 0 || !w.dialectBy(facts).RefusesUnlisted() {
		return ""
	}
	is := func(m ModelInfo) bool { return m.ID == id }
	if slices.ContainsFunc(facts.Models, is) || slices.ContainsFunc(facts.Adapters, is) {
		return ""
	}
	return fmt.Sprintf("its model_id is %q, which the engine does not serve; it lists %q: it gets no requests. Set one of these, or start it with --served-model-name", id, facts.Models[0].ID)
}

// roleProblem says why w gets no requests because of its role; empty if it does. An
// engine that was started for one half of the requests never answers the other half, nor
// whole requests: they would wait for a peer until they time out.
func (w *Worker) roleProblem() string {
	mode := w.Facts().Mode
	if mode == w.role.String() || mode != admission.RolePrefill.String() && mode != admission.RoleDecode.String() {
		return ""
	}
	return fmt.Sprintf("it is registered as %s, but reports disaggregation_mode %q: it gets no requests", w.role, mode)
}

// setModel is the model that the operator named for w, empty for none.
func (w *Worker) setModel() string { return cmp.Or(w.spec.Load().ModelID, w.fleet.cfg.Fleet.ModelID) }

// ownNames are the pools a worker says it belongs to, none if it says nothing.
func (w *Worker) ownNames() []string {
	if id := w.setModel(); id != "" {
		return []string{id}
	}
	return w.Facts().Names()
}

// adapters are the LoRA adapters of the worker's ranks: those it was registered
// with and those that it reports.
func (w *Worker) adapters() []string {
	told := w.Facts().Adapters
	if len(told) == 0 {
		return w.spec.Load().Adapters
	}
	all := slices.Clone(w.spec.Load().Adapters)
	for _, a := range told {
		all = append(all, a.ID)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), config.MaxAdapters)]
}

// publishModelsLocked rebuilds the table of names.
func (f *Fleet) publishModelsLocked() {
	t := &modelTable{pool: map[string]string{}, adapters: map[string]bool{}, aliases: f.aliases}
	primary := map[string]bool{}
	listed := map[string]bool{}
	list := func(m ModelInfo) {
		if !listed[m.ID] {
			listed[m.ID] = true
			t.list = append(t.list, m)
		}
	}
	for _, w := range f.workers {
		if w.modelProblem != "" {
			continue
		}
		for _, name := range w.ownNames() {
			t.pool[name] = name
		}
	}
	staying := 0
	for _, w := range f.workers {
		if !w.draining {
			staying++
		}
	}
	// The time that checks of a worker take to find that it does not answer.
	firstChecks := time.Duration(f.cfg.Health.FailureThreshold) * (f.cfg.Health.Interval + f.cfg.Health.Timeout)
	for _, w := range f.workers {
		silent := len(w.ownNames()) == 0 && (!w.health.everHealthy || w.Facts().Incomplete)
		together := w.addedAt.Sub(f.firstAdded) <= firstChecks
		if silent && together && staying > 1 && !w.draining {
			t.undecided = max(t.undecided, w.addedAt.Add(firstChecks))
		}
		if w.modelProblem != "" {
			continue
		}
		own, facts := w.ownNames(), w.Facts()
		if !w.draining && !facts.read && len(own) == 0 && !w.health.everHealthy {
			t.pendingUntil = append(t.pendingUntil, w.addedAt.Add(maxModelWait))
		}
		if len(own) == 0 {
			if w.inGate && !w.draining && len(w.models) == 0 {
				primary[""] = true
			}
			own = w.models
			if len(own) == 0 {
				own = []string{""}
			}
		} else if !w.draining {
			primary[own[0]] = true
		}
		for _, name := range own {
			if name == "" {
				continue
			}
			info := ModelInfo{ID: name}
			for _, m := range facts.Models {
				if m.ID == name || len(facts.Models) == 1 {
					info = m
					info.ID = name
				}
			}
			list(info)
		}
		alias := func(name, pool string) {
			if _, taken := t.pool[name]; !taken && name != "" {
				t.pool[name] = pool
			}
		}
		if w.setModel() == "" { // a name that the operator set is the only one
			for _, m := range facts.Models {
				alias(m.ID, own[0])
			}
			alias(facts.ServedName, own[0])
			alias(facts.ModelPath, own[0])
		}
		adapter := func(a ModelInfo) {
			base := own[0]
			if slices.Contains(own, a.Parent) {
				base = a.Parent
			}
			if _, taken := t.pool[a.ID]; !taken {
				t.adapters[a.ID] = true
			}
			alias(a.ID, base)
			list(a)
		}
		for _, a := range facts.Adapters {
			adapter(a)
		}
		for _, a := range w.spec.Load().Adapters {
			adapter(ModelInfo{ID: a, Root: a, Parent: own[0]})
		}
	}
	f.listAliasesLocked(t)
	t.modelCount = len(primary)
	for name := range primary {
		t.soleModel = name
	}
	f.names.Store(t)
	f.publishTextsLocked()
}

// listAliasesLocked adds the aliases of models that are listed to the list.
func (f *Fleet) listAliasesLocked(t *modelTable) {
	if len(f.aliases) == 0 {
		return
	}
	// A name that is an alias is that alias's, whoever lists a model of that name.
	t.list = slices.DeleteFunc(t.list, func(m ModelInfo) bool { _, ok := f.aliases[m.ID]; return ok })
	models := map[string]ModelInfo{}
	for _, m := range t.list {
		models[m.ID] = m
	}
	for _, alias := range slices.Sorted(maps.Keys(f.aliases)) {
		target := f.aliases[alias]
		m, ok := models[target]
		if !ok {
			if m, ok = models[t.pool[target]]; !ok {
				continue
			}
		}
		m.ID, m.Root = alias, target
		t.list = append(t.list, m)
	}
}

// ResolvePin finds the worker that a client asked for by name: a worker's place
// among those of the role in the order of registration, its URL, its id, or one
// of the latter with "@rank". The pin is what the gate takes; models are the
// pools that the worker belongs to, [""] when that is not known.
func (f *Fleet) ResolvePin(want string, role admission.Role) (pin string, models []string, ok bool) {
	if len(want) > workerurl.MaxLen {
		return "", nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name, dp, hasDP := admission.SplitRankID(want)
	w := f.lookupLocked(name)
	if w == nil {
		if name != want { // the "@" may be part of something else
			return "", nil, false
		}
		if w = f.nthOfRoleLocked(want, role); w == nil {
			return "", nil, false
		}
	}
	if w.role != role {
		return "", nil, false
	}
	pin = w.url
	if hasDP {
		ranks := w.Ranks()
		if dp >= len(ranks) {
			return "", nil, false
		}
		pin = ranks[dp].id
	}
	models = w.models
	if len(models) == 0 {
		models = []string{""}
	}
	return pin, models, true
}

// nthOfRoleLocked returns the n-th worker of a role, for a decimal n.
func (f *Fleet) nthOfRoleLocked(s string, role admission.Role) *Worker {
	n := 0
	if s == "" || len(s) > 6 || strings.Trim(s, "0123456789") != "" {
		return nil
	}
	for _, c := range s {
		n = n*10 + int(c-'0')
	}
	for _, w := range f.workers {
		if w.role != role {
			continue
		}
		if n == 0 {
			return w
		}
		n--
	}
	return nil
}
