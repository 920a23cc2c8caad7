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
	stopping  // whether the router stops
	affinity  // who goes before the head of a queue, and whose hints are renewed

	limits Limits
	loaded Settings // of the last reload, or of the start

	touched []*modelGroup // memory of applyReports

	arrivals uint64
	epoch    uint64 // of the places that it gives

	// counters
	missed uint64
	fences uint64
	lost   lostTokens
}
