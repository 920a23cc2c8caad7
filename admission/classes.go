package admission

import (
	"time"
)

// Order is how the waiters of a class are served, after strict priority and
// deadline.
type Order string

// The orders.
const (
	// FCFS serves by arrival, moved forward by a priority jump in seconds.
	FCFS Order = "fcfs"
	// WSPT serves the shortest work first: (1 + priority jump) over uncached
	// tokens.
	WSPT Order = "wspt"
	// LCFS serves the latest arrival first.
	LCFS Order = "lcfs"
)

// Class is one policy class as it is configured. A nil limit or threshold is
// none.
type Class struct {
	// Name is unique within a profile: letters, digits, '.', '_', '-'.
	Name string
	// Family and Bucket make the class one cell of the matrix of families and
	// buckets. Both are set, or neither: then only its name leads to it.
	Family, Bucket string
	// Order of its waiters. Empty: FCFS.
	Order Order
	// Quantum is its credit in each round between classes, in uncached tokens,
	// more than zero.
	Quantum int64

	// A prefill rank is busy for the class when its active prefill tokens are
	// more than PrefillBusyTokens, or more than PrefillBusyFrac of its
	// max_num_batched_tokens.
	PrefillBusyTokens *int64
	PrefillBusyFrac   *float64
	// A decode rank has room for a request of the class when its active and
	// pending KV blocks, with the request's, are at most this part of all its
	// blocks. In (0, 1].
	DecodeBusyFrac *float64
	// BusyWorkerRatio calls the prefill pool busy when so large a part of the
	// eligible ranks is busy, instead of all of them. In (0, 1].
	BusyWorkerRatio *float64

	// Limits of what may wait in the class, each times the number of registered
	// workers of the gating role: requests, prompt tokens, cached tokens. Zero
	// makes a class that never queues.
	RequestLimitPerWorker     *float64
	RawTokenLimitPerWorker    *float64
	CachedTokenLimitPerWorker *float64
	// MaxWait is the longest wait in the class. Zero: none of its own.
	MaxWait time.Duration
}

// Bucket is a range of uncached prompt tokens: from MinTokens to the next
// bucket's.
type Bucket struct {
	MinTokens int64
	Name      string
}

// Profile is the classes of a model, or of all models that have none of their
// own.
type Profile struct {
	// DefaultFamily is the family of requests that name no class.
	DefaultFamily string
	// Buckets rise strictly, the first at 0.
	Buckets []Bucket
	Classes []Class
}

// Classes is a class configuration. It is immutable once handed to the gate.
type Classes struct {
	// Root serves models without a profile of their own; nil: they have the one
	// synthetic class "default".
	Root *Profile
	// Models replace Root whole, by the name of the base model.
	Models map[string]*Profile
}

// RejectThresholds are the router-wide limits beyond which a rank is not chosen
// and, when every candidate is, a request is refused at once. Nil is none.
type RejectThresholds struct {
	// ActiveDecodeBlocks is a part of a decode rank's KV blocks, 0–1.
	ActiveDecodeBlocks *float64
	// ActivePrefillTokens is in tokens on a prefill rank, ActivePrefillTokensFrac
	// a part of its max_num_batched_tokens.
	ActivePrefillTokens     *int64
	ActivePrefillTokensFrac *float64
}
