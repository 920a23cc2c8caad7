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
	// Candidate: the rank could serve a request at all. Room: it is a candidate, has a
	// free prefill slot, or trial of a half-open breaker, and is under the reject
	// thresholds. Room leaves out the thresholds of classes, which differ by class and
	// request: see ClassStats.Short.
	Candidate, Room bool

	// PrefillTokens are the uncached prompt tokens in prefill.
	PrefillTokens int64
	// PendingBlocks and ActiveBlocks are KV blocks booked and dispatched.
	PendingBlocks, ActiveBlocks int64
	Capacity                    Capacity
	// SlotLimit is the most requests in prefill on a prefill rank, RunningLimit the most
	// calls booked on a rank; 0: there is none.
	SlotLimit    int
	RunningLimit int64
	// Aside is what of this nobody here has booked; see [SetAside].
	Aside    Aside
	Priority int
	Topology string
	// Overloaded: the rank is over a reject threshold.
	Overloaded bool
	// Reported is what the engine reports.
	Reported ReportedLoad
	// Fenced: the rank is kept for a large request.
	Fenced bool
	// MissingTokens and MissingBlocks tell that a class needs to know
	// MaxBatchedTokens or KVBlocks and the rank did not tell: it is judged by its
	// requests.
	MissingTokens, MissingBlocks bool
	// Quarantined are the decode ranks that the prefill rank is not paired with.
	Quarantined []string
}

// Load is the rank's booked load as policies see it.
func (s RankStats) Load() int {
	if s.Role == RolePrefill {
		return s.PrefillLegs
	}
	return s.PendingDecode + s.ActiveDecode
}

// Drift is how many KV blocks the rank's engine reported to be in use, less those that
// were active here when it was asked; zero without a report.
func (s RankStats) Drift() int64 {
	size := s.Capacity.BlockSize
	if size <= 0 {
		size = assumedBlockSize
	}
	return (s.Reported.KVTokens+size-1)/size - s.Reported.ActiveBlocks
}

// QueueStats is the state of one model group's queue.
type QueueStats struct {
	// Models are the model group's models, sorted.
	Models []string
	Depth  int
	// OldestWait is how long the one of its waiters has waited in all that
	// has waited longest.
	OldestWait time.Duration
	// ClosedBy is what the head lacks; with several classes, the head of the
	// first class that waits.
	ClosedBy Resource
	// Fence is what is kept for a large request; nil: nothing.
	Fence *FenceStats
	// Classes are the classes of the model group's models.
	Classes []ClassStats
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
	// ClosedByClass is the same for each class that has queues, by its name.
	ClosedByClass map[string]map[Resource]time.Duration
	// MissedEvents counts grants that only the periodic recheck found.
	MissedEvents uint64
	// WaitingBytes are the Bytes of all that wait.
	WaitingBytes int64
	// Fences counts the fences set so far, UnknownClasses the requests that
	// named a class or family that is not configured.
	Fences, UnknownClasses uint64
	Reject                 RejectThresholds
	// CacheTokensLost counts the prompt tokens that granted requests would have found
	// cached on a rank that had no room, beyond those of the rank that they were given;
	// CacheTokensLostPerMinute is by the last half minute.
	CacheTokensLost          uint64
	CacheTokensLostPerMinute int64
}

func (r *Rank) stats() RankStats {
	return RankStats{
		ID: r.id, Worker: r.worker, Role: r.role, State: r.state, Models: r.models,
		PrefillSlots: r.slots, PrefillLegs: r.prefill,
		PendingDecode: r.pending, ActiveDecode: r.active,
		Candidate: r.cand, Room: r.room,
		PrefillTokens: r.tokens, PendingBlocks: r.blocksPending, ActiveBlocks: r.blocksActive,
		Capacity: r.capacity, RunningLimit: r.bounds.Running, Aside: r.aside, Priority: r.priority, Topology: r.topology, Overloaded: r.over, Reported: r.reported(),
	}
}

// rankStats adds to what the rank knows of itself what the core knows of it.
func rankStats(c *Core, r *Rank) RankStats {
	s := r.stats()
	if r.role == RolePrefill {
		s.SlotLimit = max(c.limits.slotLimit(r), 0)
	}
	s.MissingTokens = c.needsTokens && r.role != RoleDecode && r.capacity.MaxBatchedTokens == 0
	s.MissingBlocks = c.needsBlocks && r.decodes() && r.capacity.KVBlocks == 0
	for _, d := range r.quarantined {
		s.Quarantined = append(s.Quarantined, d.id)
	}
	for _, p := range r.pools {
		if x := &p.model.modelGroup.fence; x.owner != nil && (x.prefill == r || x.decode == r) {
			s.Fenced = true
		}
	}
	return s
}

// Stats describes the core's state, but for ClassStats.Short and HeldUp.
func (c *Core) Stats(now Instant) Stats { return newReport(c, now, false).Stats }

// Snapshot is Stats with what the heads lack and whom they hold up. It looks at every
// rank for every class that waits.
func (c *Core) Snapshot(now Instant) Stats { return newReport(c, now, true).Stats }

// report is a description of a core that is being made.
type report struct {
	Stats
	core  *Core
	now   Instant
	lacks bool // tell also what heads lack and whom they hold up
}

func newReport(c *Core, now Instant, lacks bool) *report {
	s := &report{core: c, now: now, lacks: lacks, Stats: Stats{
		Limits: c.limits, Waiting: c.waiting, MissedEvents: c.missed, WaitingBytes: c.waitingSize,
		Fences: c.fences, UnknownClasses: c.unknownClass, Reject: c.reject,
		CacheTokensLost: c.lost.total, CacheTokensLostPerMinute: c.lost.perMinute(now, c.start),
	}}
	s.WaitingBy = map[Shape]int{}
	for shape, n := range c.waitingBy {
		s.WaitingBy[Shape(shape)] = n
	}
	s.ClosedFor = map[Resource]time.Duration{}
	for _, r := range c.ranks {
		if r != nil {
			s.Ranks = append(s.Ranks, rankStats(c, r))
		}
	}
	for by := ResourcePrefillSlot; by < numResources; by++ {
		s.ClosedFor[by] = c.closedFor[by]
	}
	s.ClosedByClass = make(map[string]map[Resource]time.Duration, len(c.closedBy))
	for class, times := range c.closedBy {
		of := map[Resource]time.Duration{}
		for by := ResourcePrefillSlot; by < numResources; by++ {
			of[by] = times[by]
		}
		s.ClosedByClass[class] = of
	}
	for _, f := range c.modelGroups {
		s.Queues = append(s.Queues, s.queue(f))
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
		if r.tokens != 0 {
			fmt.Fprintf(&b, " tokens=%d", r.tokens)
		}
		if r.blocksPending != 0 || r.blocksActive != 0 {
			fmt.Fprintf(&b, " blocks=%d+%d", r.blocksPending, r.blocksActive)
		}
		if !r.cand {
			b.WriteString(" no-candidate")
		} else if !r.room {
			b.WriteString(" no-room")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Snapshot describes the gate's state and why its queues do not move; see
// [Core.Snapshot].
func (g *Gate) Snapshot() Stats {
	if g.remote != nil {
		return g.remote.snapshot()
	}
	return local(g, (*Core).Snapshot)
}

// Stats describes the gate's state, but for ClassStats.Short and HeldUp.
func (g *Gate) Stats() Stats {
	if g.remote != nil {
		return g.remote.stats()
	}
	return local(g, (*Core).Stats)
}

// RankStats returns what one rank holds now, whether or not it is still
// registered.
func (g *Gate) RankStats(r *Rank) RankStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return rankStats(g.core, r)
}

// Waiting returns the number of requests that wait in this process.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.remote != nil {
		return g.remote.waiting
	}
	return g.core.waiting
}

// Servable tells whether some model has candidates for requests of a shape that ask for
// nothing else: of Disaggregated ones, two that may be paired.
func (g *Gate) Servable(s Shape) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.core.models {
		if m.ranks > 0 && g.core.chooser.servable(m.targets[s], nil) {
			return true
		}
	}
	return false
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
