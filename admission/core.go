package admission

import "time"

// Core is the step machine: see the package comment. It is not safe for
// concurrent use.
//
// Each step appends the tickets that it decided, other than the one it was
// called with, to the buffer it is lent; their state tells what became of them.
type Core struct {
	rankIndex // what is known of the ranks
	ledger    // what is booked on them
	queues    // who waits, and in which order
	chooser   // which ranks a request can start on
	decisions // what callers are told
	stopping  // whether the router stops

	limits Limits
	loaded Settings // of the last reload, or of the start

	touched []*modelGroup // memory of applyReports

	arrivals uint64

	// counters
	missed uint64
	fences uint64
}

// NewCore makes a core without ranks.
func NewCore(o Options) *Core {
	if o.NewPolicy == nil {
		o.NewPolicy = func(string, Role) Policy { return firstFit{} }
	}
	c := &Core{limits: o.Limits, loaded: Settings{o.Limits, o.Classes, o.Reject}}
	c.rankIndex = rankIndex{
		limits: &c.limits, newPolicy: o.NewPolicy, assumedMax: o.AssumedMaxRequests,
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: rankNames{},
	}
	c.ledger = ledger{index: &c.rankIndex, queues: &c.queues}
	c.queues = queues{limits: &c.limits, mode: o.QueueMode, nextRecheck: never, drainEnd: never}
	c.chooser = chooser{filter: filter{index: &c.rankIndex, limits: &c.limits}}
	c.decisions = decisions{queues: &c.queues, limits: &c.limits, slotRanks: &c.ownSlots, healthInt: o.HealthInterval, early: defaultEvidence}
	c.setReject(o.Reject)
	c.setClasses(o.Classes)
	c.setThresholds(c.profiles)
	return c
}

// wakeFor lets the heads be looked at again that may use r, from which a hold
// was taken, and returns the model group to drain, or nil.
func (qs *queues) wakeFor(r *Rank) *modelGroup {
	if qs.waiting == 0 || r.index < 0 {
		return nil
	}
	f := r.pools[0].model.modelGroup
	if f.waiting == 0 {
		return nil
	}
	qs.wake(f, r)
	return f
}

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
