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
	// Epoch orders the places that this core gives after those of lower ones; see [Place].
	Epoch uint64
	// ShareOf is what this core has of a limit that bounds all gates together, where it
	// decides alone: of what waits, by the name of the bound. For a class it is
	// "class NAME KIND". Nil: all. Those of ranks are in [RankLimits].
	ShareOf func(limit int64, bound string) int64
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
