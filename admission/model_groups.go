package admission

import "slices"

// restructure finds the model groups anew when models came or went or a rank
// serves several of them; waiters keep their place.
func (qs *queues) restructure(now Instant, ix *rankIndex, shared bool) {
	if ix.structure == 0 && !shared {
		return
	}
	ix.structure = 0
	models := ix.modelsByName
	first := firstOfShared(models, ix.ranks)
	used := map[*modelGroup]bool{}
	for _, m := range models {
		if first[m] == m {
			if m.modelGroup == nil || used[m.modelGroup] { // new, or split off a shared one
				m.modelGroup = &modelGroup{fenceAt: never}
			}
			used[m.modelGroup] = true
		}
	}
	waiters := qs.takeOut(now, func(t *Ticket) bool { return first[t.Target.model].modelGroup != t.modelGroup() })
	qs.modelGroups = qs.modelGroups[:0:0]
	for _, m := range models {
		if first[m] == m {
			qs.modelGroups = append(qs.modelGroups, m.modelGroup)
		}
	}
	for _, m := range models {
		if f := first[m].modelGroup; m.queues == nil || m.modelGroup != f || !slices.Contains(f.profiles, m.queues) {
			qs.join(m, f)
		}
	}
	for _, t := range waiters {
		qs.insert(now, t)
	}
	for _, f := range qs.modelGroups {
		f.profiles = slices.DeleteFunc(f.profiles, func(p *profileQueue) bool {
			return !slices.ContainsFunc(models, func(m *model) bool { return m.queues == p })
		})
	}
}

// firstOfShared returns, for each model, the first by name of those that share ranks
// with it, directly or by way of others. models are sorted.
func firstOfShared(models []*model, ranks []*Rank) map[*model]*model {
	first := make(map[*model]*model, len(models))
	for _, m := range models {
		first[m] = m
	}
	for changed := true; changed; {
		changed = false
		for _, r := range ranks {
			if r == nil || len(r.pools) < 2 {
				continue
			}
			least := first[r.pools[0].model]
			for _, p := range r.pools[1:] {
				if o := first[p.model]; o.name < least.name {
					least = o
				}
			}
			for _, p := range r.pools {
				if first[p.model] != least {
					first[p.model], changed = least, true
				}
			}
		}
	}
	return first
}

// takeOut takes the waiters for which leaves holds out of their queues, and returns them
// by their first arrival.
func (qs *queues) takeOut(now Instant, leaves func(*Ticket) bool) []*Ticket {
	var all []*Ticket
	for _, f := range qs.modelGroups {
		f.eachWaiter(func(t *Ticket) {
			if leaves(t) {
				all = append(all, t)
			}
		})
	}
	slices.SortFunc(all, (*Ticket).compare)
	for _, t := range all {
		qs.extract(now, t)
	}
	return all
}

// fence keeps a large request from starving: one rank, or one pair, is kept for
// the head of a queue that was blocked for the guard time while others were
// granted. Others may use it only as far as the owner would still have room
// afterwards, so that what runs there drains until the owner fits.
//
// A model group has at most one. It is never taken from its owner: it ends when the
// owner is granted or leaves, and moves when its ranks are lost.
type fence struct {
	owner           *Ticket
	prefill, decode *Rank // nil: none that could serve at present
}
