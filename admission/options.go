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
	// QueueMode is how the waiters of one class are kept.
	QueueMode QueueMode
	// AssumedMaxRequests is how many requests a rank of unknown capacity has
	// room for, where a class asks and the rank did not tell its
	// max_running_requests. Zero: 64.
	AssumedMaxRequests int
}

// QueueMode is how the waiters of one class are kept.
type QueueMode uint8

// The modes.
const (
	// QueueAuto is strict without configured classes, and lanes with them.
	QueueAuto QueueMode = iota
	// QueueStrict keeps one queue a class and model group: a head that cannot start
	// blocks all behind it.
	QueueStrict
	// QueueLanes keeps one queue a class and predicate: a blocked head delays
	// only requests that need the same ranks.
	QueueLanes
)

// Settings are what a reload may change of the gate.
type Settings struct {
	Limits Limits
	// Classes are the policy classes; nil: one synthetic class "default".
	Classes *Classes
	// Reject are the router-wide reject thresholds.
	Reject RejectThresholds
}
