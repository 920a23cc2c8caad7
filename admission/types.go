package admission

import (
	"fmt"
	"math"
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
	// Bypass requests are prefilled on the decode rank itself: they need that
	// alone, pass the gate of their class there, and take prefill tokens but
	// no prefill slot.
	Bypass
	numShapes

	// onPrefillOnly is the shape of targets of requests that pass to a prefill
	// rank and so never come to the gate; see Core.Pass.
	onPrefillOnly = numShapes
)

func (s Shape) String() string {
	switch s {
	case Disaggregated:
		return "disaggregated"
	case Bypass:
		return "bypass"
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
	// QueueSize is the most requests that wait, over all model groups. Zero:
	// a request that cannot start at once is refused.
	QueueSize int
	// QueueTimeout is the longest one request waits, over all its waits.
	// Zero or less: no limit.
	QueueTimeout time.Duration
	// NoWorkerWait is how long a request without any candidate waits for
	// one to appear. Zero: it is refused at once.
	NoWorkerWait time.Duration
	// MaxWaitingBytes bounds the Bytes of all that wait together; zero or less
	// is no bound.
	MaxWaitingBytes int64
	// StarvationGuard is how long a head may be blocked while others of its
	// model group are granted before a rank or pair is fenced for it; zero or less:
	// there are no fences.
	StarvationGuard time.Duration
	// OverloadWaiting and OverloadUsage are how many waiting requests, and how large a
	// part of its KV cache in use, an engine may not reach by its own report: its rank has no room then.
	// Zero or less: no such limit.
	OverloadWaiting int64
	OverloadUsage   float64
	// AffinityLookahead is how many of the first waiters of a class are looked at for each
	// grant: the one with the most cached tokens on the rank it would be given is taken.
	// One or less: the head is.
	AffinityLookahead int
	// AffinityMaxPasses is how often a waiter may be passed over so.
	AffinityMaxPasses int
	// AffinityWait is how long a waiter declines other ranks while the one that holds most
	// of its prompt has no room, over all its waits. Zero or less: it takes what there is.
	AffinityWait time.Duration
	// RefuseEarly refuses a request at its arrival that would wait far beyond
	// its bounds, instead of when the first of them has passed.
	RefuseEarly bool
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
	// DeadlineExceeded: the request's own deadline, its class's or its
	// classifier's passed while it waited; LimitKind tells which.
	DeadlineExceeded
	// NoWorkers: no candidate rank, or none that may be paired.
	NoWorkers
	// RetryRefused: a retry would have had to wait where it may not, waited
	// as long as it may, or has no candidate; the client is owed the failure
	// of the attempt before.
	RetryRefused
	// Draining: the gate takes no more work.
	Draining
	// ClassQueueFull: a limit of the request's class, or the class never
	// queues.
	ClassQueueFull
	// AllOverloaded: every candidate is over a reject threshold.
	AllOverloaded
	// GateUnavailable: of several routers that share one gate nobody decides, or this one
	// has to decide alone and has no share of any rank that could serve the request.
	GateUnavailable
	numReasons
)

// code is the code that clients are told, but for a queue in front of prefill slots;
// see [Refusal.Code].
func (r Reason) code() string {
	switch r {
	case DeadlineExceeded:
		return "queue_deadline_exceeded"
	case NoWorkers:
		return "no_available_workers"
	case ClassQueueFull:
		return "policy_class_queue_full"
	case AllOverloaded:
		return "all_workers_overloaded"
	}
	return r.String()
}

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
	case ClassQueueFull:
		return "class_queue_full"
	case AllOverloaded:
		return "all_overloaded"
	case GateUnavailable:
		return "gate_unavailable"
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
	// ResourceTurn: the request waits behind another of its queue.
	ResourceTurn
	// ResourcePrefillTokens: every eligible rank has more prefill tokens than
	// the class allows.
	ResourcePrefillTokens
	// ResourceDecodeBlocks: on no eligible rank, of those that may be paired
	// with a prefill rank that has room, do the request's KV blocks fit under
	// the class's fraction.
	ResourceDecodeBlocks
	// ResourceFence: what is left is kept for a larger request.
	ResourceFence
	// ResourceOverloaded: every candidate is over a reject threshold.
	ResourceOverloaded
	// ResourceReportedLoad: every eligible rank of a role has no room because of what
	// its engine reports.
	ResourceReportedLoad
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
	case ResourceTurn:
		return "order"
	case ResourcePrefillTokens:
		return "prefill_tokens"
	case ResourceDecodeBlocks:
		return "decode_blocks"
	case ResourceFence:
		return "fence"
	case ResourceOverloaded:
		return "overloaded"
	case ResourceReportedLoad:
		return "reported_load"
	}
	return "none"
}

// LimitKind names which of several bounds of one kind refused.
type LimitKind string

// The kinds, spelled as the public router of policy classes spells them where it
// has them.
const (
	LimitNone         LimitKind = ""
	LimitRequests     LimitKind = "requests"        // of a queue
	LimitRawTokens    LimitKind = "raw_isl_tokens"  // prompt tokens queued in the class
	LimitCachedTokens LimitKind = "cached_tokens"   // cached tokens queued in the class
	LimitBytes        LimitKind = "bytes"           // of all that wait
	LimitClassWait    LimitKind = "class_deadline"  // the class's or the classifier's
	LimitClientWait   LimitKind = "client_deadline" // the request's own
)

// Refusal is the error of a request that was not admitted. It is local to the
// gate: no engine has seen the request.
type Refusal struct {
	Reason Reason
	// Resource is what the request, or the head of its queue, lacked.
	Resource Resource
	// Class is the class of the request.
	Class string
	// LimitKind names the bound where there are several of the reason's kind.
	LimitKind LimitKind
	// Limit is the bound that refused: by LimitKind for QueueFull and
	// ClassQueueFull (zero: the class never queues), nanoseconds for
	// QueueTimeout and DeadlineExceeded.
	Limit int64
	// Current is what had been reached of it, for QueueFull and ClassQueueFull.
	Current int64
	// PrefillSlots: requests in prefill were bounded when it was refused.
	PrefillSlots bool
	// Depth is the number of requests that waited when this one was refused,
	// without it.
	Depth int
	// Waited is how long the request waited in all.
	Waited time.Duration
	// Predicted: it was refused at its arrival for the bound that would have
	// ended its wait; Estimate is how long it would have waited without.
	Predicted bool
	Estimate  time.Duration
	// RetryAfter is when a repeated request may fare better; it is at least
	// a second and at most a minute.
	RetryAfter time.Duration
}

// Codes of a queue in front of prefill slots, which are those of SMG.
const (
	codePrefillQueueFull    = "pd_prefill_queue_full"
	codePrefillQueueTimeout = "pd_prefill_queue_timeout"
)

// Code is the word for the refusal, the same towards the client, in the log and in
// metrics. It is of a closed set.
func (r *Refusal) Code() string {
	switch {
	case !r.PrefillSlots || r.LimitKind == LimitBytes:
	case r.Reason == QueueFull:
		return codePrefillQueueFull
	case r.Reason == QueueTimeout:
		return codePrefillQueueTimeout
	}
	return r.Reason.code()
}

func (r *Refusal) Error() string {
	if r.Predicted {
		return fmt.Sprintf("would wait about %s, the limit is %s", r.Estimate.Round(time.Millisecond), time.Duration(r.Limit))
	}
	switch r.Reason {
	case QueueFull:
		if r.LimitKind == LimitBytes {
			return fmt.Sprintf("the queue is full: %d bytes wait, the limit is %d", r.Current, r.Limit)
		}
		return fmt.Sprintf("the queue is full: %d requests wait, the limit is %d", r.Depth, r.Limit)
	case ClassQueueFull:
		if r.Limit == 0 {
			return fmt.Sprintf("class %s does not queue, and there is no room now (%s)", r.Class, r.Resource)
		}
		return fmt.Sprintf("the queue of class %s is full: %d %s wait, the limit is %d", r.Class, r.Current, r.LimitKind, r.Limit)
	case AllOverloaded:
		return "every worker that could serve the request is overloaded"
	case QueueTimeout:
		return fmt.Sprintf("waited %s, the limit is %s", r.Waited.Round(time.Millisecond), time.Duration(r.Limit))
	case DeadlineExceeded:
		if r.LimitKind == LimitClassWait {
			return fmt.Sprintf("the deadline of class %s passed after the request waited %s", r.Class, r.Waited.Round(time.Millisecond))
		}
		return fmt.Sprintf("the request's own deadline passed after it waited %s", r.Waited.Round(time.Millisecond))
	case NoWorkers:
		return "no worker can serve the request now"
	case RetryRefused:
		return "a retry could not be placed"
	case Draining:
		return "the router is shutting down"
	case GateUnavailable:
		return "none of the routers that share the admission gate can decide now"
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
	// Share is how many requests the rank gets at most while it warms up, in thousandths of
	// those that another rank gets. Zero, and a thousand or more: it does not warm up.
	Share uint16
	// Probes is the most requests at once while the breaker is half-open.
	Probes int
}

// candidate tells whether a rank in this state could serve a request at all. A
// half-open rank whose probes are taken still is one; it merely has no room.
func (s RankState) candidate() bool {
	return s.Healthy && !s.Draining && s.Breaker != BreakerOpen
}

// RankReport is what an engine says of the load of a rank, whoever sent the requests; see
// [SetReport]. The zero value is no report.
type RankReport struct {
	// Requests are all that the engine has, Waiting those that it has not begun.
	Requests, Waiting int64
	// KVTokens are the tokens of its KV cache that requests hold, Usage the part of the
	// cache that they take, from 0 to 1.
	KVTokens int64
	Usage    float64
	// ActiveBlocks are the active blocks of the rank when the engine was asked:
	// requests that have ended since may still be in what it answered.
	ActiveBlocks int64
}

// ReportedLoad is the last report of a rank and what follows from it.
type ReportedLoad struct {
	RankReport
	// Unbooked are KV blocks that the engine has in use beyond what is booked.
	Unbooked int64
	// Vetoed: the rank has no room because of Limits.OverloadWaiting or
	// Limits.OverloadUsage.
	Vetoed bool
}

func (p RankReport) clean() RankReport {
	for _, v := range []*int64{&p.Requests, &p.Waiting, &p.KVTokens, &p.ActiveBlocks} {
		*v = min(max(*v, 0), maxAmount)
	}
	if !(p.Usage >= 0) || math.IsInf(p.Usage, 0) {
		p.Usage = 0
	}
	return p
}

// BypassRule tells by what the pools hold whether a request may be prefilled where it
// decodes, although prefill and decode are apart.
type BypassRule struct {
	// Short: the request may, however little prefill has to do.
	Short bool
	// PrefillBusy: it may when the prefill tokens of the prefill pool are more than this
	// part of the MaxBatchedTokens of its ranks; nil: that is no reason.
	PrefillBusy *float64
	// DecodeBusy: it may not when the KV blocks booked in the decode pool, with Blocks
	// for the request, are more than this part of all, or these are not known; nil: it
	// does not matter.
	DecodeBusy *float64
	Blocks     int64
}
