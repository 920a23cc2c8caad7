package fleet

import (
	"sync/atomic"
	"time"
)

// LegOutcome is what a leg's end says of its worker.
type LegOutcome uint8

// The outcomes.
const (
	LegOK     LegOutcome = iota // answered as it should
	LegFailed                   // the engine's fault
	LegOther                    // neither: a client's fault, an engine that is busy, a leg that was cancelled
	numLegOutcomes
)

// String is the outcome as it is in metrics.
func (o LegOutcome) String() string { return [...]string{"ok", "failed", "other"}[o] }

// meter counts what a worker did. It is part of the worker rather than of a vector
// of Prometheus, so that counting is an addition and the series end with the worker.
type meter struct {
	legs    [numLegOutcomes]atomic.Uint64
	prefill span
	first   span
}

// span adds up times.
type span struct{ n, nanoseconds atomic.Int64 }

func (s *span) add(d time.Duration) {
	s.n.Add(1)
	s.nanoseconds.Add(int64(max(d, 0)))
}

func (s *span) seconds() float64 { return time.Duration(s.nanoseconds.Load()).Seconds() }

// NoteLeg counts a leg on the rank that has ended.
func (r *Rank) NoteLeg(o LegOutcome) { r.worker.meter.legs[o].Add(1) }

// NotePrefill takes the time of a prefill leg that succeeded.
func (r *Rank) NotePrefill(took time.Duration) { r.worker.meter.prefill.add(took) }

// NoteFirstToken takes the time from the start of the attempt that answered to the
// first byte of content.
func (r *Rank) NoteFirstToken(took time.Duration) { r.worker.meter.first.add(took) }
