package admission

import "time"

// queues are who waits: by model group, profile and class, in lanes; with their
// deadlines, their pace, and whose turn is next. They know no set of ranks.
type queues struct {
	limits *Limits

	modelGroups []*modelGroup // of living models, without duplicates
	classes     *Classes      // in force
	mode        QueueMode
	laned       bool
	root        *profile
	profiles    []*profile // the root's first
	needsTokens bool       // some class needs MaxBatchedTokens
	needsBlocks bool       // some class needs KVBlocks

	lanes        int
	spareLanes   []*lane
	unaffordable []unaffordable // memory of nextIn
	unservable   []*Ticket      // memory: waiters that are to be ended

	waiting     int
	waitingBy   [numShapes]int
	waitingSize int64 // bytes
	deadlines   deadlineHeap
	nextRecheck Instant

	started  bool
	start    Instant
	total    rateMeter
	runs     [numLegs]running // of all requests, without how long they last
	drainEnd Instant          // when waiting ends because the router stops; never: not known

	unknownClass uint64
	closedFor    [numResources]time.Duration
	// closedBy is closedFor by the name of the class, for each that ever was.
	closedBy map[string]*[numResources]time.Duration
}

// unaffordable is a class whose head could start but whose deficit does not pay for it.
type unaffordable struct {
	at   int
	head *Ticket
}

// tick tells the time of a step; that of the first is when pace begins to be counted.
func (qs *queues) tick(now Instant) {
	if !qs.started {
		qs.started, qs.start = true, now
	}
}
