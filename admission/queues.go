package admission

import (
	"time"

	"github.com/sluice-router/sluice/internal/heap"
)

// queues are who waits: by model group, profile and class, in lanes; with their
// deadlines, their pace, and whose turn is next. They know no set of ranks.
type queues struct {
	limits *Limits
	share  func(limit int64, bound string) int64 // nil: all

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
	frontier     []int          // memory of fillFront
	unservable   []*Ticket      // memory: waiters that are to be ended

	waiting     int
	waitingBy   [numShapes]int
	waitingSize int64 // bytes
	deadlines   deadlineHeap
	nextRecheck Instant
	nextRefresh Instant // when hints are to be renewed
	matchers    int     // waiters that have a Matcher

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

// model group is the models whose requests compete for the same ranks.
type modelGroup struct {
	profiles   []*profileQueue
	waiting    int
	grants     uint64
	fence      fence
	fenceAt    Instant // when the next fence may be due
	fenceWaits bool    // it is due with the next grant
	fenceEnded bool    // in the round under way, or since
}

// profileQueue is the queues of one profile in one model group, and the round robin
// between them.
type profileQueue struct {
	profile *profile
	classes []*classQueue
	cursor  int // the class whose turn it is
	waiting int
}

// classQueue is the waiters of one class in one model group.
type classQueue struct {
	class      *class
	modelGroup *modelGroup

	all       heap.Heap[laneByHead] // every lane with waiters
	ready     heap.Heap[readyLane]  // those whose head is not known to be blocked
	lanes     map[*Target]*lane
	excluding []*lane
	shared    *lane   // of strict order, or of those beyond maxLanes
	masked    []*lane // of waiters with a mask
	wide      []*lane // blocked, and not parked at the few ranks they need

	n           int
	raw, cached int64 // prompt tokens that wait
	deficit     int64
	pace        pace
	closed      closedClock
	refresh     classRefresh
	passedBy    *Ticket   // who was last found startable before the head
	passed      []*Ticket // whom it passes over
	declining   []*Ticket // who declined what there was when it was last looked at
}

// tick tells the time of a step; that of the first is when pace begins to be counted.
func (qs *queues) tick(now Instant) {
	if !qs.started {
		qs.started, qs.start = true, now
	}
}

// recheckEvery is the period of the safety net that looks at blocked queues
// without an event. What it finds is counted: an event was missed.
const recheckEvery = time.Second
