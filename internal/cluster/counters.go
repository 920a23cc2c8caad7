package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Counters are what happened in this member since its start, for metrics. Each part
// counts in Machine.counters where it happens.
type Counters struct {
	// Stood: it stood for keeper. Elected: it became keeper so; TookOver: it became keeper
	// because another handed over. HandedOver: it handed over. Resigned: its office ended
	// otherwise.
	Stood, Elected, TookOver, HandedOver, Resigned uint64
	// Reports that it sent, each of which opens a session.
	Reports uint64
	// Dropped are grants that were decided and not used, by why.
	Dropped [NumDrops]uint64
	// Reads and Writes of the store, and those of them that failed. A Conflict is a write
	// that another was before; it is no error.
	StoreReads, StoreWrites, StoreErrors, StoreConflicts uint64
	// Envelopes that were taken to be sent, and the items in them.
	Envelopes, Items uint64
	// FallbackFor is how long it was in fallback, until now.
	FallbackFor time.Duration
	// Revoked are prefill legs that were ended because no keeper was heard for too long.
	Revoked uint64
}

// Drop is why a grant was not used.
type Drop uint8

// The reasons.
const (
	// DropStale: the grant came too long after what it answers.
	DropStale Drop = iota
	// DropEpoch: it was of an epoch or a session that is not obeyed any more.
	DropEpoch
	// DropCanceled: its request had left.
	DropCanceled
	// DropUnusable: this process does not have its rank.
	DropUnusable
	// DropVoid: the keeper took it back before it was sent, or because nobody took it up.
	DropVoid
	// NumDrops is how many there are.
	NumDrops
)

func (d Drop) String() string {
	return [...]string{"stale", "epoch", "canceled", "unusable", "void"}[d]
}

// ShareView is this member's share of one limit, of which it decides alone without a
// keeper.
type ShareView struct {
	Rank  string `json:"rank"`
	Limit int64  `json:"limit"` // most requests in prefill; 0: none is set
	Share int64  `json:"share"`
}

// maxShareViews bounds the shares of a Status.
const maxShareViews = 256

// GateStats returns the state of the gate: of all members while this one is the keeper
// (whole), of this one alone while it decides on its share. ok is false while it knows
// neither.
func (m *Machine) GateStats(now admission.Instant) (s admission.Stats, whole, ok bool) {
	m.at(now)
	if m.keeper != nil {
		s, ok = m.keeper.stats()
		return s, true, ok
	}
	s, ok = m.member.stats()
	return s, false, ok
}
