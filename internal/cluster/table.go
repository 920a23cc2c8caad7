package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// The keeper's table has each rank once, merged from what the members observe:
//
//   - registered is what any member has,
//   - draining is what any member says,
//   - unhealthy, or its breaker open, is what no member that tried lately was served by.
//     While one was, the rank is masked for those that failed: their requests do not get
//     it, those of the others do. It is masked, too, for members that do not have it.
//   - capacity, models, labels and limits are those of the member that changed them last.
//
// table_merge.go has these rules, table_rows.go the table and who has told what,
// table_settle.go what follows for the core and for the members' copies (table_copy.go),
// table_pairs.go the pairs in quarantine, table_observe.go what a member knows by itself.
//
// The keeper restores the table from its own copy and those in reports, hands it what
// members observe (observe), and who is lost or forgotten; after any of these it hands the
// core what changes returns, and each member what rowsSince the version that it was sent last.

// Observation is what a member's fleet knows of ranks: of all that it has (Full), or of
// those that changed.
type Observation struct {
	Full  bool
	Ranks []RankObservation
	Pairs []PairObservation
}

// RankObservation is what one member knows of one rank.
type RankObservation struct {
	ID   string
	Gone bool // it is not registered there any more; nothing else is told
	// Spec is what is known of it, its state and its engine's report among it; its
	// Generation is the member's own and Data is nil.
	Spec admission.RankSpec
	// Stamp is when what Spec has beside State and Reported changed last there, in Unix
	// milliseconds of that member's clock.
	Stamp uint64
	// ReportAge is how old Spec.Reported was when this was sent.
	ReportAge time.Duration
	// Checks and Legs are what came lately of checks of its health and of requests.
	Checks, Legs Trial
}

// Trial is what came lately of trying something.
type Trial uint8

// The trials. Requests have failed when the breaker is open, or the rank makes no progress.
const (
	Untried Trial = iota
	Succeeded
	Failed
)

func (t Trial) String() string {
	switch t {
	case Succeeded:
		return "succeeded"
	case Failed:
		return "failed"
	}
	return "untried"
}

// PairObservation is a pair of a prefill and a decode rank, by their ids, between which KV
// transfers fail, so that it is not to be granted.
type PairObservation struct {
	Prefill, Decode string
	Left            time.Duration // of its quarantine; 0: it is over
}

// Rows are ranks of the keeper's table that changed since a version, or all of them.
type Rows struct {
	Version uint64
	Full    bool
	Rows    []Row
	// Pairs are all pairs in quarantine, if HasPairs.
	HasPairs bool
	Pairs    []PairObservation
}

// Row is a rank of the keeper's table.
type Row struct {
	At   RankAt
	Gone bool // it is not in the table any more; nothing else is told
	// Spec has the id, the generation and what all members together know; nil: as it was
	// told before.
	Spec *admission.RankSpec
	// Masked are the members whose requests must not use it; told with Spec.
	Masked []Incarnation
	// Load is what all requests hold of it.
	Load Load
}

// Load is what is booked on a rank.
type Load struct {
	Slots, PrefillLegs, Pending, Active int
	Tokens, PendingBlocks, ActiveBlocks int64
}

const (
	// maxTableRanks bounds the ranks of a table, and those that one member may tell of.
	maxTableRanks = 1 << 16
	// maxTablePairs bounds the pairs in quarantine, as the gate does.
	maxTablePairs = 64
	// maxPairTime bounds how long a pair stays in quarantine because of one report.
	maxPairTime = 10 * time.Minute
)
