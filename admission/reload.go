package admission

import (
	"reflect"
	"slices"
)

// Reload puts settings in force, in one step. Classes and thresholds that are those
// of the last reload stay as they are: thresholds may have been set by other means
// since.
func (c *Core) Reload(now Instant, s Settings, out *[]*Ticket) {
	old := c.loaded
	c.loaded = s
	c.SetLimits(now, s.Limits, out)
	if !reflect.DeepEqual(s.Classes, old.Classes) {
		c.SetClasses(now, s.Classes, out)
	}
	if !reflect.DeepEqual(s.Reject, old.Reject) {
		c.SetRejectThresholds(now, s.Reject, out)
	}
}

// SetLimits changes the bounds. Waiters keep their place and their end; a
// lowered slot limit closes the gate until holds are under it, and a new queue
// size binds new arrivals.
func (c *Core) SetLimits(now Instant, l Limits, out *[]*Ticket) {
	c.limits = shareLimits(&c.queues, l)
	for _, f := range c.modelGroups {
		f.fenceAt = 0
		if l.StarvationGuard <= 0 && f.fence.owner != nil {
			c.endFence(f)
		}
	}
	c.refreshAll(now, out)
}

// SetRejectThresholds changes the router-wide reject thresholds.
func (c *Core) SetRejectThresholds(now Instant, h RejectThresholds, out *[]*Ticket) {
	c.setReject(h)
	c.refreshAll(now, out)
}

// refreshAll looks at every rank and every head again.
func (c *Core) refreshAll(now Instant, out *[]*Ticket) {
	for _, r := range c.ranks {
		if r != nil {
			c.judgeReport(r)
			c.refresh(r, 0)
		}
	}
	for _, f := range c.modelGroups {
		if f.waiting > 0 {
			c.wake(f, nil)
			c.drain(now, f, out)
		}
	}
}

// SetClasses changes the policy classes, whole. Waiters keep arrival, cost and
// the end of their wait; those of a class that is gone are resolved again from what is stored
// with them. New queue limits bind new arrivals only. Deficits stay with classes
// of the same name.
func (c *Core) SetClasses(now Instant, cs *Classes, out *[]*Ticket) {
	type waiters struct {
		f   *modelGroup
		all []*Ticket
	}
	var all []waiters
	deficits := map[*modelGroup]map[string]int64{}
	fences := map[*modelGroup]fence{}
	for _, f := range c.modelGroups {
		w := waiters{f, f.inOrder()}
		d := map[string]int64{}
		for _, p := range f.profiles {
			for _, q := range p.classes {
				if q.n > 0 {
					d[p.profile.name+" "+q.class.Name] = q.deficit
				}
			}
		}
		deficits[f] = d
		fences[f], f.fence = f.fence, fence{} // waiters leave and come back at once
		for _, t := range w.all {
			c.extract(now, t)
		}
		all = append(all, w)
	}
	c.setClasses(cs)
	c.setThresholds(c.profiles)
	for _, f := range c.modelGroups {
		f.profiles = nil
	}
	for _, m := range c.modelsByName {
		c.join(m, m.modelGroup)
	}
	for _, w := range all {
		for _, t := range w.all {
			c.classify(t)
			c.insert(now, t)
		}
		w.f.fence, w.f.fenceAt = fences[w.f], 0
		c.chooser.moveFence(w.f)
		for _, p := range w.f.profiles {
			for _, q := range p.classes {
				if q.n > 0 {
					q.deficit = deficits[w.f][p.profile.name+" "+q.class.Name]
				}
			}
		}
	}
	c.refreshAll(now, out)
}

// Classes returns the names of the classes in force, sorted, each once.
func (qs *queues) Classes() []string {
	var names []string
	for _, p := range qs.profiles {
		for _, cl := range p.classes {
			names = append(names, cl.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
