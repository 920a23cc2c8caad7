package dispatch

import (
	"math"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
)

// placement finds what a request may run on, before it waits at the gate: its model's
// pools, its pins and labels, its size and class. Its errors are final, whatever the
// fleet's load.
type placement struct {
	*request
	spec admission.TargetSpec
}

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
	}
	gatedSteps = []step{
		{"read pins", (*placement).readPins},
		{"read labels", (*placement).readLabels},
		{"restrict to route", (*placement).restrictToRoute},
		{"resolve target", (*placement).resolveTarget},
		{"read hints", (*placement).readHints},
		{"measure", (*placement).measure},
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
	if p.skipsGate() {
		x.call.Record.Model = x.plan.pool
		x.plan.ungated = &ungated{pins: map[admission.Role]string{}}
		f := p.do(ungatedSteps)
		x.plan.ungated.spec = p.spec
		return f
	}
	return p.do(gatedSteps)
}

func (x *placement) do(steps []step) *failure {
	for _, s := range steps {
		if f := s.run(x); f != nil {
			return f
		}
	}
	return nil
}

// resolveTarget resolves all that the request says about ranks.
func (x *placement) resolveTarget() *failure {
	if x.plan.pair {
		x.spec.Topology, x.spec.TopologyWeight = topology(x.d.cfg), x.d.cfg.Fleet.KVTransferPreferredWeight
	}
	target := x.d.gate.Resolve(x.spec)
	if target == nil {
		return x.notServed()
	}
	x.ticket.Target = target
	x.call.Record.Model = target.Model()
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
	waited := mono.Now().Sub(began)
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

// topology is what the two ranks of a pair have to do with each other's KV-transfer
// domain.
func topology(cfg *config.Config) admission.Topology {
	switch cfg.Fleet.KVTransferTopology {
	case "required":
		return admission.TopologyRequired
	case "preferred":
		return admission.TopologyPreferred
	}
	return admission.TopologyAny
}
