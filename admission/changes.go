package admission

// ChangeOp is what a [Change] does.
type ChangeOp uint8

// Change is one fleet event.
type Change struct {
	Op         ChangeOp
	Rank       *Rank
	State      RankState      // for SetState
	Attributes RankAttributes // for SetAttributes
	Other      *Rank          // for QuarantinePair and EndQuarantine
	Report     RankReport     // for SetReport
	Aside      Aside          // for SetAside
}

// The changes. Those of one Apply take effect together: a worker is replaced by
// removing its old ranks and adding the new ones in one call.
const (
	AddRank ChangeOp = iota
	RemoveRank
	SetState
	// SetAttributes replaces what is known of a rank: models, pairing, labels,
	// adapters, capacity. Its holds stay.
	SetAttributes
	// QuarantinePair keeps the pair of the prefill rank Rank and the decode rank Other
	// from new grants while another pair is left to a request: both work with
	// others, but not together. EndQuarantine ends that, and so does the removal of
	// one of them. At most 64 pairs are quarantined, the oldest is forgotten first.
	QuarantinePair
	EndQuarantine
	// SetReport replaces what the rank's engine reports of its load. The zero report
	// says that nothing is known any more.
	SetReport
	// SetAside replaces what is set aside on a rank: what is held of it by requests that
	// nobody here has a ticket for. It counts as what is booked; the end of holds does not
	// touch it.
	SetAside
)
