package admission

import (
	"slices"
)

// defaultClass is the one class of models that have no configured ones.
const defaultClass = "default"

// class is a configured class as the gate uses it.
type class struct {
	Class
	index   int
	profile *profile
	quantum int64
	// gates by index in the core; -1: none
	prefillThreshold, blockThreshold int
	ratio                            float64 // of busy ranks; 0: all of them
	never                            bool    // it does not queue
}

// profile is the classes of one model or of all that have none of their own.
type profile struct {
	name     string // of the model; empty: the root's
	classes  []*class
	named    map[string]*class   // explicit classes
	families map[string][]*class // by bucket
	buckets  []Bucket
	fallback []*class // the default family's
}

// compile prepares a checked configuration; nil gives the synthetic class. What
// a checked one cannot contain is made harmless, not reported.
func compile(name string, p *Profile) *profile {
	if p == nil || len(p.Classes) == 0 {
		p = &Profile{Classes: []Class{{Name: defaultClass, Quantum: 1}}}
	}
	out := &profile{name: name, buckets: p.Buckets, named: map[string]*class{}, families: map[string][]*class{}}
	for i, cfg := range p.Classes {
		cl := &class{Class: cfg, index: i, profile: out, quantum: min(max(cfg.Quantum, 1), maxAmount), prefillThreshold: -1, blockThreshold: -1}
		if cfg.BusyWorkerRatio != nil {
			cl.ratio = *cfg.BusyWorkerRatio
		}
		for _, limit := range []*float64{cfg.RequestLimitPerWorker, cfg.RawTokenLimitPerWorker, cfg.CachedTokenLimitPerWorker} {
			cl.never = cl.never || limit != nil && *limit <= 0
		}
		out.classes = append(out.classes, cl)
		if cfg.Family == "" {
			out.named[cfg.Name] = cl
			continue
		}
		at := slices.IndexFunc(p.Buckets, func(b Bucket) bool { return b.Name == cfg.Bucket })
		if at < 0 {
			continue
		}
		row := out.families[cfg.Family]
		if row == nil {
			row = make([]*class, len(p.Buckets))
			out.families[cfg.Family] = row
		}
		row[at] = cl
	}
	for _, row := range out.families {
		for i := range row {
			if row[i] == nil {
				row[i] = out.classes[0]
			}
		}
	}
	out.fallback = out.families[p.DefaultFamily]
	return out
}

// find returns the class for the name a request came with and its uncached
// prompt tokens. known is false when the name means nothing here.
func (p *profile) find(name string, uncached int64) (cl *class, known bool) {
	known = true
	row := p.fallback
	if name != "" {
		if cl := p.named[name]; cl != nil {
			return cl, true
		}
		if row = p.families[name]; row == nil {
			row, known = p.fallback, false
		}
	}
	if row == nil {
		return p.classes[0], known
	}
	at := 0
	for i, b := range p.buckets {
		if b.MinTokens <= uncached {
			at = i
		}
	}
	return row[at], known
}

// byName returns the class of that name, or nil.
func (p *profile) byName(name string) *class {
	for _, cl := range p.classes {
		if cl.Name == name {
			return cl
		}
	}
	return nil
}

// setClasses puts a configuration in force; the queues and the thresholds of ranks are
// the caller's to rebuild.
func (qs *queues) setClasses(cs *Classes) {
	qs.classes = cs
	qs.laned = qs.mode == QueueLanes || qs.mode == QueueAuto && cs != nil
	if cs == nil {
		cs = &Classes{}
	}
	qs.root = compile("", cs.Root)
	qs.profiles = []*profile{qs.root}
	names := make([]string, 0, len(cs.Models))
	for name := range cs.Models {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		qs.profiles = append(qs.profiles, compile(name, cs.Models[name]))
	}
	qs.needsTokens, qs.needsBlocks = false, false
	for _, p := range qs.profiles {
		for _, cl := range p.classes {
			qs.needsTokens = qs.needsTokens || cl.PrefillBusyFrac != nil
			qs.needsBlocks = qs.needsBlocks || cl.DecodeBusyFrac != nil
		}
	}
}

func (qs *queues) profileOf(model string) *profile {
	for _, p := range qs.profiles[1:] {
		if p.name == model {
			return p
		}
	}
	return qs.root
}

// classify gives t its class, once, or again when the one it has is gone or was read anew.
// Its weight stays that of its first arrival. The deadline that orders it follows the class:
// a waiter without one would be behind all who come to a class that gives them one.
func (qs *queues) classify(t *Ticket) {
	p := t.Target.model.queues.profile
	if t.class != nil && t.class.profile == p {
		return
	}
	first := t.class == nil
	if first {
		t.weight = t.uncached()
	} else if cl := p.byName(t.class.Name); cl != nil { // of a configuration before this
		t.class = cl
		t.order()
		return
	}
	cl, known := p.find(t.Class, t.weight)
	t.class = cl
	if first && !known {
		qs.unknownClass++
	}
	t.order()
}

// order gives t its place in its class.
func (t *Ticket) order() {
	t.orderBy = never
	if t.ClassDeadline != 0 {
		t.orderBy = t.ClassDeadline
	}
	if t.class.MaxWait > 0 {
		t.orderBy = min(t.orderBy, t.arrival.Add(t.class.MaxWait))
	}
	t.place()
}

// cost is what serving t from the queue takes from the deficit of its class. A
// retry is not charged again.
func (t *Ticket) cost() int64 {
	if t.Retry {
		return 0
	}
	return max(t.weight, 1)
}
