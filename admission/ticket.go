package admission

import "time"

// Ticket is one request at the gate, from its first arrival to its end: what it
// asks for, what it was granted, and the holds it has. The caller allocates it,
// so that the gate does not have to, and reuses it for each attempt of the
// request, but not for another request.
//
// The caller sets the fields of the first group before Acquire and does not
// touch them while the ticket waits or holds anything.
type Ticket struct {
	Target *Target
	// Legs is the number of calls each phase makes (prompts × samples). All of
	// them share the one prefill slot. Zero means one.
	Legs int
	// Hints are what the policies of the two legs may go by.
	Hints [numLegs]Hint
	// Matcher renews Hints while the ticket waits; nil: they stay.
	Matcher Matcher
	// Deadline bounds the wait beside the limits' own timeout: the client's
	// patience. Zero: none.
	Deadline Instant
	// NoWorkerWaited is what the request waited for a worker before it came to the
	// gate. It is taken off Limits.NoWorkerWait.
	NoWorkerWaited time.Duration
	// Exclude are ranks to avoid while others are left.
	Exclude Exclusions

	// PromptTokens are those of all legs together, which are taken to be alike;
	// CachedTokens are how many of them the best eligible rank has already.
	// Class, bucket and cost are those of the first arrival.
	PromptTokens, CachedTokens int64
	// ReserveTokens are output tokens that each leg is given KV blocks for in
	// advance.
	ReserveTokens int64
	// Bytes is what keeping the request waiting costs in memory.
	Bytes int64
	// Class is the name the request came with: a class, a policy family, or empty.
	Class string
	// StrictPriority goes before everything else in the class, the highest
	// first. PriorityJump moves a request forward as if it had come so many
	// seconds earlier; with WSPT it multiplies its score.
	StrictPriority int
	PriorityJump   float64
	// ClassDeadline is a classifier's: it orders the waiters of the class and
	// bounds the wait. Zero: none.
	ClassDeadline Instant
	// Bypass is asked once more when a request of Bypass shape that waits first comes to
	// the head of its lane. When it does not allow that any more, the request goes on with
	// the target Instead, keeping its place.
	Bypass  *BypassRule
	Instead *Target

	// Granted: the ranks, until the next Acquire. Prefill is nil for a request
	// that needs one rank, which is Decode.
	Prefill, Decode *Rank

	// owned by the gate
	gate     *Gate
	arrival  Instant // the first one
	epoch    uint64  // order among equal arrivals: of the core that gave it its place, and
	seq      uint64  // the number of that
	queuedAt Instant // start of the present wait
	waited   time.Duration
	refusal  *Refusal
	wake     chan struct{}
	ask      chan struct{} // for a Matcher

	class        *class   // nil before the first arrival
	weight       int64    // uncached prompt tokens at the first arrival
	orderBy      Instant  // the deadline that orders it in its class; never: none
	position     position // its place in the class
	lane         *lane    // while queued
	queuedRaw    int64    // prompt tokens it counts for while queued
	queuedCached int64

	limitAt     Instant // when QueueTimeout ends the wait
	classAt     Instant // when the class's or classifier's deadline ends it
	classLimit  int64   // the time that allows, for the refusal
	lostAt      Instant // when NoWorkerWait ends it
	wakeAt      Instant // the earliest of these and Deadline, or when it declines no more
	queuePos    int32   // in the lane
	deadlinePos int32
	prev, next  *Ticket // of the target's waiters
	matched     *Target // by the last call of Matcher

	mask    *mask        // ranks that it may not use, beside what its target says; nil: none
	extra   *extraTicket // of one that is decided about elsewhere, or that a Port drives
	choice  Choice
	hintsAt Instant // when hints were handed in, or asked for, last
	// By AffinityWait: for how long it has declined ranks, but for the time since declinesAt,
	// when it began to decline what there is now; 0: it does not.
	declined   time.Duration
	declinesAt Instant

	tokens     int64 // prefill tokens held
	heldBlocks int64
	granted    Instant // when the holds began
	counted    *pace   // that they are counted in
	epochs     [numLegs]uint32
	probes     [numLegs]bool

	// Of one byte each, so that a ticket is no larger than it has to be.

	// Retry, which the caller sets, marks a further attempt of a request that was admitted
	// before. It keeps its first arrival, is not refused by the queue's bound, and is
	// refused with RetryRefused where it would have to wait but may not.
	Retry                                   bool
	state                                   ticketState
	lacked                                  Resource
	arrived                                 bool // arrival is set
	wasQueue                                bool // the last Acquire had to wait
	ended                                   bool // Close was called
	reconsidered                            bool
	declines                                bool  // memory of nowDecline
	passes                                  uint8 // how often it was passed over
	holdsPrefill, holdsDecode, decodeActive bool
}

type ticketState uint8

const (
	stateIdle ticketState = iota
	stateQueued
	stateGranted
	stateRefused
	stateSuspended // it waits, but for nothing now; see Suspend
)

// Matcher knows which ranks hold the beginning of a waiting request's prompt.
type Matcher interface {
	// Match renews the hints of t. It is handed those that t has, and tells whether it
	// changed them.
	//
	// It is called outside the gate's lock, by the goroutine that waits in Acquire, when t
	// comes among those that are looked at next, and then every half second. The gate may
	// decide t meanwhile, and of a Bypass request exchange Target and Instead: Match goes by
	// [Ticket.Matched] instead of these, and by nothing else that the gate sets.
	Match(t *Ticket, hints *[2]Hint) (changed bool)
}

// Matched returns the target that Match is to find hints for. It is for Match only.
func (t *Ticket) Matched() *Target { return t.matched }

// patience is the time from the first arrival to the request's own deadline.
func (t *Ticket) patience() int64 { return max(int64(t.Deadline.Sub(t.arrival)), 0) }

func (t *Ticket) legs() int { return max(t.Legs, 1) }

// modelGroup is the one that t waits in. REQUIRES: t waits.
func (t *Ticket) modelGroup() *modelGroup { return t.lane.queue.modelGroup }

// Waited returns the time spent in the queue, over all waits so far.
func (t *Ticket) Waited() time.Duration { return t.waited }

// Queued tells whether the last Acquire had to wait.
func (t *Ticket) Queued() bool { return t.wasQueue }

// Granted tells whether the ticket has what it was granted last and has not been released
// since. It is for those who drive a [Core] themselves.
func (t *Ticket) Granted() bool { return t.state == stateGranted }

// Lacked returns what the request, or the head of its queue, lacked when it last
// began to wait; ResourceNone if it never did.
func (t *Ticket) Lacked() Resource { return t.lacked }

// ClassName returns the class that the request was given when it first came to
// the gate; it may change with a reload while it waits.
func (t *Ticket) ClassName() string {
	if t.class == nil {
		return defaultClass
	}
	return t.class.Name
}

// blocks returns the KV blocks that the legs of t need on a rank with blocks of
// size tokens: each leg has its own prompt, all alike, and its reserve.
func (t *Ticket) blocks(size int64) int64 {
	legs := int64(t.legs())
	prompt := min(max(t.PromptTokens, 0), maxAmount)
	leg := (prompt+legs-1)/legs + min(max(t.ReserveTokens, 0), maxAmount)
	return legs * ((leg + size - 1) / size)
}

// uncached returns the prompt tokens that prefill has to compute at best.
func (t *Ticket) uncached() int64 {
	return min(max(t.PromptTokens-max(t.CachedTokens, 0), 0), maxAmount)
}

// uncachedOn returns the prompt tokens that r has to compute for leg l, by its own hint.
func (t *Ticket) uncachedOn(l Leg, r *Rank) int64 {
	return min(max(t.PromptTokens-max(t.Hints[l].Cached(r), 0), 0), maxAmount)
}

// size is what t counts for in the bytes that wait.
func (t *Ticket) size() int64 { return min(max(t.Bytes, 0), maxAmount) }

// holdsProbe tells whether the booking of t on r counts as a probe of its breaker.
func (t *Ticket) holdsProbe(r *Rank, l Leg) bool {
	return t.probes[l] && t.epochs[l] == r.epoch && r.state.Breaker == BreakerHalfOpen
}

// prefillRank is the rank that holds the prefill tokens of t.
func (t *Ticket) prefillRank() *Rank {
	if t.Prefill != nil {
		return t.Prefill
	}
	return t.Decode
}
