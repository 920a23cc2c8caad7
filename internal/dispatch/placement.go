package dispatch

import (
	"math"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
)

// step is one of the steps of a placement. The first failure ends it.
type step struct {
	name string
	run  func(*placement) *failure
}

// Steps are done in the order in which they stand.
var (
	firstSteps = []step{
		{"plan samples", (*placement).planSamples},
		{"resolve model", (*placement).resolveModel},
		{"find text", (*placement).findText},
	}
	gatedSteps = []step{
		{"read pins", (*placement).readPins},
		{"read labels", (*placement).readLabels},
		{"restrict to route", (*placement).restrictToRoute},
		{"resolve target", (*placement).resolveTarget},
		{"read hints", (*placement).readHints},
		{"read tokens", (*placement).readTokens},
		{"measure", (*placement).measure},
		{"find holders", (*placement).findHolders},
		{"classify", (*placement).classify},
		{"maybe bypass", (*placement).maybeBypass},
	}
	// ungatedSteps are those of requests that need no admission.
	ungatedSteps = []step{
		{"read labels", (*placement).readLabels},
		{"check class headers", (*placement).checkClassHeaders},
		{"refuse stored responses", (*placement).refuseStoredResponse},
		{"read hints", (*placement).readHints},
		{"find serving", (*placement).findServing},
		{"read pins", (*placement).readUngatedPins},
		{"read tokens", (*placement).readTokens},
	}
)

var placements = sync.Pool{New: func() any { return new(placement) }}

// place does the steps of one request.
func place(x *request) *failure {
	p := placements.Get().(*placement)
	defer func() {
		*p = placement{}
		placements.Put(p)
	}()
	p.request = x
	if f := p.do(firstSteps); f != nil {
		return f
	}
	if x.plan.answersHere {
		return nil
	}
	if p.skipsGate() {
		x.call.Record.Model = x.plan.pool
		x.plan.ungated = &ungated{pins: map[admission.Role]string{}}
		f := p.do(ungatedSteps)
		x.plan.ungated.spec = p.spec
		return f
	}
	f := p.do(gatedSteps)
	if f == nil {
		x.dropCounted()
	}
	return f
}

func (x *placement) do(steps []step) *failure {
	for _, s := range steps {
		if f := s.run(x); f != nil {
			return f
		}
	}
	return nil
}

// placeOrWait places the request. While it is not known which workers serve its
// model there is no queue to wait in, so that it waits here, as long as
// no_worker_wait_secs and the client (x-sluice-max-queue-ms) allow and until the
// router stops. What it waited here is taken off what it may wait at the gate.
func placeOrWait(x *request) *failure {
	f := place(x)
	if f == nil || f.reason != reasonNoWorkers {
		return f
	}
	began := mono.Now()
	patience := queuePatience(x)
	for f != nil && f.reason == reasonNoWorkers {
		limit, stopping := x.d.gate.NoWorkerWait()
		limit = min(limit, patience)
		waited := mono.Now().Sub(began)
		switch {
		case stopping:
			return &failure{reason: reasonDraining, local: openai.Draining()}
		case waited >= limit:
			return f
		}
		if !pause(&x.ctx, min(lookAgain, limit-waited)) {
			return x.clientEnd(x.ctx.ended())
		}
		f = place(x)
	}
	waited := mono.Now().Sub(began) - x.call.Record.Encoded
	x.ticket.NoWorkerWaited = waited
	if x.ticket.Deadline != 0 { // it was set just now, and is the client's from its arrival
		x.ticket.Deadline = max(x.ticket.Deadline.Add(-waited), 1)
	}
	return f
}

// lookAgain is how often a request that waits for workers to tell their models looks
// whether they have.
const lookAgain = 50 * time.Millisecond

// queuePatience is how long the client lets its request wait.
func queuePatience(x *request) time.Duration {
	if d, ok := x.d.classes.MaxQueueOf(x.call.Header); ok {
		return d
	}
	return math.MaxInt64
}
