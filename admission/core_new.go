package admission

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
	c.epoch = o.Epoch
	c.queues = queues{limits: &c.limits, share: o.ShareOf, mode: o.QueueMode, nextRecheck: never, nextRefresh: never, drainEnd: never}
	c.chooser = chooser{filter: filter{index: &c.rankIndex, limits: &c.limits}}
	c.decisions = decisions{queues: &c.queues, limits: &c.limits, slotRanks: &c.ownSlots, healthInt: o.HealthInterval, early: defaultEvidence}
	c.affinity = affinity{core: c, preview: preview{chooser: &c.chooser}, walk: laneWalk{queues: &c.queues}}
	c.limits = shareLimits(&c.queues, o.Limits)
	c.setReject(o.Reject)
	c.setClasses(o.Classes)
	c.setThresholds(c.profiles)
	return c
}
