package admission

import "time"

// FenceStats is what is kept for a request that would starve otherwise.
type FenceStats struct {
	Class string
	// Waited is how long the owner has waited in all.
	Waited time.Duration
	// Prefill and Decode are the fenced ranks; empty: none could serve.
	Prefill, Decode string
}

// ClassStats is the state of one class in one model group.
type ClassStats struct {
	// Profile is the model whose own classes these are; empty: the root's.
	Profile string
	Class   string
	Depth   int
	// Lanes are the queues within the class.
	Lanes int
	// RawTokens and CachedTokens are prompt tokens that wait.
	RawTokens, CachedTokens int64
	// OldestWait is the longest wait among its waiters, HeadWait that of the
	// one to be served next, over all waits of each.
	OldestWait, HeadWait time.Duration
	// Deficit is what the round robin owes the class, in uncached tokens.
	Deficit int64
	// ClosedBy is why the head does not start; ResourceNone: nobody waits.
	ClosedBy Resource
	// Short is what the head lacks on the ranks where it lacks least: on a
	// prefill and a decode rank, or on the one rank it needs.
	Short []RankShortage
	// Fenced: a fence is kept for the head, or for another of the class.
	Fenced bool
	// HeldUp is how many of the waiters could start now but for a blocked head that
	// needs other ranks than they do, in strict order; of 256 that are looked at.
	// HeldUpFor is for how long the head has held up anybody, by looks a second
	// apart. Snapshot tells both.
	HeldUp    int
	HeldUpFor time.Duration
	// EstimatedWait is how long a new arrival would wait at the pace of the class;
	// zero when the pace is not known or nobody waits.
	EstimatedWait time.Duration
	// Never: the class does not queue.
	Never bool
}

// RankShortage is what a request lacks on a rank.
type RankShortage struct {
	Rank string
	Role Role
	Shortage
}

// queue describes a model group's queue and adds the time it is closed by now to the whole.
func (rp *report) queue(f *modelGroup) QueueStats {
	s := QueueStats{Depth: f.waiting}
	for _, m := range rp.core.modelsByName {
		if m.modelGroup == f {
			s.Models = append(s.Models, m.name)
		}
	}
	if x := &f.fence; x.owner != nil {
		s.Fence = &FenceStats{Class: x.owner.class.Name, Waited: x.owner.waited + rp.now.Sub(x.owner.queuedAt)}
		if x.prefill != nil {
			s.Fence.Prefill = x.prefill.id
		}
		if x.decode != nil {
			s.Fence.Decode = x.decode.id
		}
	}
	for _, p := range f.profiles {
		for _, q := range p.classes {
			k := rp.class(q)
			if q.closed.by != ResourceNone {
				rp.ClosedFor[q.closed.by] += rp.now.Sub(q.closed.since)
				rp.ClosedByClass[k.Class][q.closed.by] += rp.now.Sub(q.closed.since)
				if s.ClosedBy == ResourceNone {
					s.ClosedBy = q.closed.by
				}
			}
			s.OldestWait = max(s.OldestWait, k.OldestWait)
			s.Classes = append(s.Classes, k)
		}
	}
	return s
}

func (rp *report) class(q *classQueue) ClassStats {
	s := ClassStats{
		Profile: q.class.profile.name, Class: q.class.Name, Depth: q.n, Lanes: q.all.Len(),
		RawTokens: q.raw, CachedTokens: q.cached, Deficit: q.deficit, ClosedBy: q.closed.by, Never: q.class.never,
	}
	for _, l := range q.all.All() {
		for _, w := range l.waiters.All() {
			s.OldestWait = max(s.OldestWait, w.waited+rp.now.Sub(w.queuedAt))
			s.Fenced = s.Fenced || q.modelGroup.fence.owner == w.Ticket
		}
	}
	h := q.head()
	if h == nil {
		return s
	}
	s.HeadWait = h.waited + rp.now.Sub(h.queuedAt)
	if r := q.pace.perSecond(rp.now, rp.core.start, h.legOf(q.closed.by)); r > 0 {
		s.EstimatedWait = time.Duration(float64(q.n+1) / r * float64(time.Second))
	}
	if !rp.lacks {
		return s
	}
	s.HeldUp, s.HeldUpFor = rp.core.chooser.heldUpStats(rp.now, q)
	p, d := rp.core.chooser.fenceable(h)
	for l, r := range [...]*Rank{p, d} {
		if r == nil {
			continue
		}
		if lack := rp.core.chooser.shortage(h, Leg(l), r); lack.Short > 0 {
			s.Short = append(s.Short, RankShortage{Rank: r.id, Role: r.role, Shortage: lack})
		}
	}
	return s
}
