package cluster

import (
	"cmp"
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Incarnation is one start of one process: a random number, never zero.
type Incarnation uint64

func (i Incarnation) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// Member is one member as the others know it.
type Member struct {
	Name        string      `json:"name"`
	Incarnation Incarnation `json:"incarnation"`
	// Address is where it listens for the others, host:port.
	Address string `json:"address"`
	// Versions of the protocol that it speaks.
	Versions Versions `json:"versions"`
	// Build is the version of the program, for people.
	Build string `json:"build,omitempty"`
	// Seat orders members by when they were first listed; zero: not yet.
	Seat uint64 `json:"seat,omitempty"`
}

// Versions is a range of protocol versions, both ends included.
type Versions struct {
	Min uint32 `json:"min"`
	Max uint32 `json:"max"`
}

// Epoch is the time in office of one keeper. Later ones have higher numbers; that of two
// with the same number is higher whose keeper's incarnation is.
type Epoch struct {
	Number uint64      `json:"number"`
	Keeper Incarnation `json:"keeper"`
}

// Compare is negative when e is lower than o.
func (e Epoch) Compare(o Epoch) int {
	return cmp.Or(cmp.Compare(e.Number, o.Number), cmp.Compare(e.Keeper, o.Keeper))
}

func (e Epoch) String() string { return fmt.Sprintf("%d/%v", e.Number, e.Keeper) }

// Place is the place of a waiter, which it keeps from keeper to keeper. The zero Place is
// none: it has not been queued by any.
type Place struct{ Epoch, Number uint64 }

// Compare is negative when p is before o; no place is after all places.
func (p Place) Compare(o Place) int {
	if none, other := p == (Place{}), o == (Place{}); none || other {
		return cmp.Compare(b2i(none), b2i(other))
	}
	return cmp.Or(cmp.Compare(p.Epoch, o.Epoch), cmp.Compare(p.Number, o.Number))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TicketID names a ticket among those of all members.
type TicketID struct {
	Member Incarnation
	Number uint64
}

// RankAt names a rank of the keeper's table. The zero value is no rank.
type RankAt struct {
	Number     uint32
	Generation uint64
}

// Record is what the store keeps of a cluster.
type Record struct {
	Format  int      `json:"format"` // 1
	Cluster string   `json:"cluster"`
	Epoch   Epoch    `json:"epoch"`
	Members []Member `json:"members"` // by seat, the keeper among them
	// Ended are incarnations that are proven to have ended, the latest last, some at most.
	Ended []Incarnation `json:"ended,omitempty"`
	// Renewals counts what the keeper wrote; Time is when, by its wall clock, for people.
	Renewals uint64    `json:"renewals"`
	Time     time.Time `json:"time"`
}

// Fallback is what a member does that has heard no keeper for its patience.
type Fallback uint8

// The fallbacks.
const (
	// FallbackShare lets it decide alone, on its share of every limit.
	FallbackShare Fallback = iota
	// FallbackRefuse refuses what waits and what comes.
	FallbackRefuse
)

// Options make a [Machine].
type Options struct {
	Cluster string
	Self    Member
	// Lease is how long a keeper may decide after it was last confirmed, but for Margin;
	// Patience when a member without a keeper falls back, at least Lease; Lost when a
	// member that does not answer is counted no more.
	Lease, Margin, Patience, Lost time.Duration
	// Beat is the longest time between two envelopes to a peer, Silent how long a peer may
	// leave them unanswered before it is granted nothing, ReadStore and WriteStore the time
	// between two readings and two renewals of the record.
	Beat, Silent, ReadStore, WriteStore time.Duration
	Fallback                            Fallback
	// Gate makes the core: of the keeper, and of a member on its own.
	Gate admission.Options
	// Generation is that of the configuration, 0: none was given.
	Generation uint64
	// Random gives numbers for jitter and incarnations.
	Random func() uint64

	// Tests take these out to see that they are needed.
	withoutEpochs, withoutClaims, withoutStandby bool
}

// Complete gives what is not set its default.
func (o *Options) Complete() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Lease, 5*time.Second)
	set(&o.Margin, o.Lease/10)
	set(&o.Patience, o.Lease)
	set(&o.Lost, 60*time.Second)
	set(&o.Beat, 100*time.Millisecond)
	set(&o.Silent, 500*time.Millisecond)
	set(&o.ReadStore, time.Second)
	set(&o.WriteStore, max(time.Second, o.Lease/4))
}
