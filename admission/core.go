package admission

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

	limits Limits
	loaded Settings // of the last reload, or of the start

	noArrivals bool
	noWaits    bool
	arrivals   uint64

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
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: map[string][]*Rank{},
	}
	c.ledger = ledger{index: &c.rankIndex, queues: &c.queues}
	c.queues = queues{limits: &c.limits, mode: o.QueueMode, nextRecheck: never, drainEnd: never}
	c.chooser = chooser{filter: filter{index: &c.rankIndex, limits: &c.limits}}
	c.decisions = decisions{queues: &c.queues, limits: &c.limits, healthInt: o.HealthInterval, early: defaultEvidence}
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
