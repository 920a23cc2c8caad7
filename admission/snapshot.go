package admission

import (
	"fmt"
	"strings"
	"time"
)

// RankStats is what one rank holds.
type RankStats struct {
	ID     string
	Worker string
	Role   Role
	State  RankState
	Models []string
	// PrefillSlots are the requests in prefill, PrefillLegs their calls.
	PrefillSlots, PrefillLegs int
	// PendingDecode and ActiveDecode are calls booked and calls dispatched.
	PendingDecode, ActiveDecode int
	Candidate, Room             bool
}

// Load is the rank's booked load as policies see it.
func (s RankStats) Load() int {
	if s.Role == RolePrefill {
		return s.PrefillLegs
	}
	return s.PendingDecode + s.ActiveDecode
}

// QueueStats is the state of one family's queue.
type QueueStats struct {
	// Models are the family's models, sorted.
	Models []string
	Depth  int
	// OldestWait is how long the one of its waiters has waited in all that
	// has waited longest.
	OldestWait time.Duration
	// ClosedBy is what the head lacks.
	ClosedBy Resource
}

// Stats is the state of the gate at one moment.
type Stats struct {
	Limits  Limits
	Waiting int
	// WaitingBy is the same by shape.
	WaitingBy map[Shape]int
	Ranks     []RankStats
	Queues    []QueueStats
	// ClosedFor is how long queues were blocked, by what they lacked.
	ClosedFor map[Resource]time.Duration
	// MissedEvents counts grants that only the periodic recheck found.
	MissedEvents uint64
}

func (r *Rank) stats() RankStats {
	return RankStats{
		ID: r.id, Worker: r.worker, Role: r.role, State: r.state, Models: r.models,
		PrefillSlots: r.slots, PrefillLegs: r.prefill,
		PendingDecode: r.pending, ActiveDecode: r.active,
		Candidate: r.cand, Room: r.room,
	}
}

// Stats describes the core's state.
func (c *Core) Stats(now Instant) Stats {
	s := Stats{Limits: c.limits, Waiting: c.waiting, MissedEvents: c.missed}
	s.WaitingBy = map[Shape]int{}
	for shape, n := range c.waitingBy {
		s.WaitingBy[Shape(shape)] = n
	}
	s.ClosedFor = map[Resource]time.Duration{}
	for _, r := range c.ranks {
		if r != nil {
			s.Ranks = append(s.Ranks, r.stats())
		}
	}
	for by := ResourcePrefillSlot; by < numResources; by++ {
		s.ClosedFor[by] = c.closedFor[by]
	}
	for _, f := range c.families {
		q := QueueStats{Depth: f.queue.len(), ClosedBy: f.closed.by}
		for _, t := range f.queue.h {
			q.OldestWait = max(q.OldestWait, t.waited+now.Sub(t.queuedAt))
		}
		for _, m := range c.ordered {
			if m.family == f {
				q.Models = append(q.Models, m.name)
			}
		}
		if f.closed.by != ResourceNone {
			s.ClosedFor[f.closed.by] += now.Sub(f.closed.since)
		}
		s.Queues = append(s.Queues, q)
	}
	return s
}

// String is the whole state, for tests that tell a story.
func (c *Core) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "waiting %d\n", c.waiting)
	for _, r := range c.ranks {
		if r == nil {
			continue
		}
		fmt.Fprintf(&b, "%s %s slots=%d pending=%d active=%d", r.role, r.id, r.slots, r.pending, r.active)
		if !r.cand {
			b.WriteString(" no-candidate")
		} else if !r.room {
			b.WriteString(" no-room")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Stats describes the gate's state.
func (g *Gate) Stats() Stats {
	now := g.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Stats(max(now, g.last))
}

// RankStats returns what one rank holds now, whether or not it is still
// registered.
func (g *Gate) RankStats(r *Rank) RankStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return r.stats()
}

// Waiting returns the number of requests that wait.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.waiting
}

// Candidates tells how many candidate ranks there are in a role, over all
// models.
func (g *Gate) Candidates(role Role) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, r := range g.core.ranks {
		if r != nil && r.role == role && r.cand {
			n++
		}
	}
	return n
}
