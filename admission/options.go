package admission

import "time"

// Options make a core.
type Options struct {
	Limits Limits
	// NewPolicy makes the policy of each pool; nil takes the first rank with
	// room.
	NewPolicy PolicyFactory
	// HealthInterval is what a client without any candidate is told to wait.
	HealthInterval time.Duration
	// Classes are the policy classes; nil: one synthetic class "default".
	Classes *Classes
	// Reject are the router-wide reject thresholds.
	Reject RejectThresholds
	// Order is how waiters of one class are kept.
	Order QueueOrder
	// AssumedMaxRequests is how many requests a rank of unknown capacity has
	// room for, where a class asks and the rank did not tell its
	// max_running_requests. Zero: 64.
	AssumedMaxRequests int
}

// QueueOrder is how the waiters of one class are kept.
type QueueOrder uint8

// The orders.
const (
	// OrderAuto is strict without configured classes, and lanes with them.
	OrderAuto QueueOrder = iota
	// OrderStrict keeps one queue a class and model group: a head that cannot start
	// blocks all behind it.
	OrderStrict
	// OrderLanes keeps one queue a class and predicate: a blocked head delays
	// only requests that need the same ranks.
	OrderLanes
)

// Settings are what a reload may change of the gate.
type Settings struct {
	Limits Limits
	// Classes are the policy classes; nil: one synthetic class "default".
	Classes *Classes
	// Reject are the router-wide reject thresholds.
	Reject RejectThresholds
}
