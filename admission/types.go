package admission

import (
	"fmt"
	"time"
)

// Instant is a point on a monotonic clock, in nanoseconds from an origin that
// the owner of the clock chose. The core only compares and subtracts instants.
type Instant int64

// never is later than every instant a clock can give.
const never = Instant(1<<63 - 1)

// Add returns the instant d after i; it saturates instead of wrapping.
func (i Instant) Add(d time.Duration) Instant {
	if d > 0 && i > never-Instant(d) {
		return never
	}
	return i + Instant(d)
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Role is the phase of a request that a rank runs.
type Role uint8

// The roles. A regular rank runs whole requests.
const (
	RoleRegular Role = iota
	RolePrefill
	RoleDecode
	RoleEncode
	numRoles
)

func (r Role) String() string {
	switch r {
	case RoleRegular:
		return "regular"
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	case RoleEncode:
		return "encode"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// Shape says which ranks a request needs.
type Shape uint8

const (
	// Aggregated requests run whole on one regular rank.
	Aggregated Shape = iota
	// Disaggregated requests need a prefill rank and a decode rank that may
	// be paired with it.
	Disaggregated
	numShapes
)

func (s Shape) String() string {
	if s == Disaggregated {
		return "disaggregated"
	}
	return "aggregated"
}

// Leg names one of the two bookings of a request: the prefill leg and the leg
// that gives the client its answer. An aggregated request has only the latter.
type Leg uint8

// The legs.
const (
	PrefillLeg Leg = iota
	DecodeLeg
	numLegs
)

func (l Leg) String() string {
	if l == PrefillLeg {
		return "prefill"
	}
	return "decode"
}

// Limits are the bounds of the gate. They can be changed at run time.
type Limits struct {
	// PrefillSlots is the most requests in prefill on one prefill rank;
	// zero or less turns that bound off.
	PrefillSlots int
	// QueueSize is the most requests that wait, over all families. Zero:
	// a request that cannot start at once is refused.
	QueueSize int
	// QueueTimeout is the longest one request waits, over all its waits.
	// Zero or less: no limit.
	QueueTimeout time.Duration
	// NoWorkerWait is how long a request without any candidate waits for
	// one to appear. Zero: it is refused at once.
	NoWorkerWait time.Duration
}

// Reason tells why a request was refused.
type Reason uint8

// The reasons.
const (
	reasonNone Reason = iota
	// QueueFull: the router-wide queue had no place.
	QueueFull
	// QueueTimeout: the request waited as long as it may.
	QueueTimeout
	// DeadlineExceeded: the request's own deadline passed while it waited.
	DeadlineExceeded
	// NoWorkers: no candidate rank, or none that may be paired.
	NoWorkers
	// RetryRefused: a retry would have had to wait where it may not, waited
	// as long as it may, or has no candidate; the client is owed the failure
	// of the attempt before.
	RetryRefused
	// Draining: the gate takes no more work.
	Draining
	numReasons
)

func (r Reason) String() string {
	switch r {
	case reasonNone:
		return "none"
	case QueueFull:
		return "queue_full"
	case QueueTimeout:
		return "queue_timeout"
	case DeadlineExceeded:
		return "deadline_exceeded"
	case NoWorkers:
		return "no_workers"
	case RetryRefused:
		return "retry_refused"
	case Draining:
		return "draining"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Resource names what a blocked request lacks.
type Resource uint8

// The resources.
const (
	ResourceNone Resource = iota
	// ResourcePrefillSlot: every eligible prefill rank has its limit of
	// requests in prefill.
	ResourcePrefillSlot
	// ResourceDecode: no eligible decode rank has room.
	ResourceDecode
	// ResourceRegular: no eligible regular rank has room.
	ResourceRegular
	// ResourceWorker: there is no candidate at all.
	ResourceWorker
	// ResourceOrder: the request waits behind another of its queue.
	ResourceOrder
	numResources
)

func (r Resource) String() string {
	switch r {
	case ResourcePrefillSlot:
		return "prefill_slot"
	case ResourceDecode:
		return "decode"
	case ResourceRegular:
		return "regular"
	case ResourceWorker:
		return "worker"
	case ResourceOrder:
		return "order"
	}
	return "none"
}

// Refusal is the error of a request that was not admitted. It is local to the
// gate: no engine has seen the request.
type Refusal struct {
	Reason Reason
	// Resource is what the request, or the head of its queue, lacked.
	Resource Resource
	// Limit is the bound that refused: requests for QueueFull, nanoseconds
	// for QueueTimeout and DeadlineExceeded.
	Limit int64
	// Depth is the number of requests that waited when this one was refused,
	// without it.
	Depth int
	// Waited is how long the request waited in all.
	Waited time.Duration
	// RetryAfter is when a repeated request may fare better; it is at least
	// a second and at most a minute.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string {
	switch r.Reason {
	case QueueFull:
		return fmt.Sprintf("the queue is full: %d requests wait, the limit is %d", r.Depth, r.Limit)
	case QueueTimeout:
		return fmt.Sprintf("waited %s, the limit is %s", r.Waited.Round(time.Millisecond), time.Duration(r.Limit))
	case DeadlineExceeded:
		return fmt.Sprintf("the request's own deadline passed after it waited %s", r.Waited.Round(time.Millisecond))
	case NoWorkers:
		return "no worker can serve the request now"
	case RetryRefused:
		return "a retry could not be placed"
	case Draining:
		return "the router is shutting down"
	}
	return "refused: " + r.Reason.String()
}

// Breaker is the state of a rank's circuit breaker, as the fleet tells it.
type Breaker uint8

// The breaker states.
const (
	BreakerClosed Breaker = iota
	BreakerOpen
	BreakerHalfOpen
)

func (b Breaker) String() string {
	switch b {
	case BreakerOpen:
		return "open"
	case BreakerHalfOpen:
		return "half-open"
	}
	return "closed"
}

// RankState is what decides whether a rank is a candidate.
type RankState struct {
	Healthy  bool
	Draining bool
	Breaker  Breaker
	// Probes is the most requests at once while the breaker is half-open.
	Probes int
}

// candidate tells whether a rank in this state could serve a request at all. A
// half-open rank whose probes are taken still is one; it merely has no room.
func (s RankState) candidate() bool {
	return s.Healthy && !s.Draining && s.Breaker != BreakerOpen
}
