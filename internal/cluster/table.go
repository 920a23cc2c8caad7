package cluster

import "github.com/sluice-router/sluice/admission"

// Observation is what a member's fleet knows of ranks: of all that it has (Full), or of
// those that changed.
type Observation struct {
	Full  bool
	Ranks []RankObservation
}

// RankObservation is what one member knows of one rank.
type RankObservation struct {
	ID   string
	Gone bool // it is not registered there any more; nothing else is told
	// Spec is what is known of it; its Generation is the member's own and Data is nil.
	Spec admission.RankSpec
	// Failed: this member has the rank for unhealthy, or its breaker is open. Succeeded: the
	// member tried lately and was served.
	Failed, Succeeded bool
}

// Rows are ranks of the keeper's table that changed since Since, or all of them.
type Rows struct {
	Version uint64
	Full    bool
	Rows    []Row
}

// Row is a rank of the keeper's table.
type Row struct {
	At   RankAt
	Gone bool
	// Spec has the id, the generation and what all members together know.
	Spec admission.RankSpec
	// Load is what all requests hold of it.
	Load Load
}

// Load is what is booked on a rank.
type Load struct {
	Slots, PrefillLegs, Pending, Active int
	Tokens, PendingBlocks, ActiveBlocks int64
}
