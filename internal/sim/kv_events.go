package sim

// KVEvents describes the publisher of a worker's KV events.
type KVEvents struct{}

// eventLog collects the events of one rank until its next step.
type eventLog struct{}

func (*eventLog) stored(p *prompt, from, to, size int, scope *cacheScope) {}
func (*eventLog) removed(key uint64)                                      {}
func (*eventLog) cleared()                                                {}
func (*eventLog) step()                                                   {}
