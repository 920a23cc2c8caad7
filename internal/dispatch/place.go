package dispatch

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
)

// place finds what the request may run on: its model's pools and its pins. Its
// errors are final, whatever the fleet's load.
func (x *exchange) place() *failure {
	p := x.call.Peeked
	if x.pair {
		if f := x.planFan(p); f != nil {
			return f
		}
	}
	model, adapter, f := x.model(p)
	if f != nil {
		return f
	}
	x.pool = model
	spec := admission.TargetSpec{Model: model, Adapter: adapter, Shape: admission.Aggregated}
	if x.pair {
		spec.Shape = admission.Disaggregated
	}
	if x.goesBeside(model) {
		return x.placeBeside(spec)
	}
	if f := x.pins(&spec); f != nil {
		return f
	}
	if f := x.labels(&spec); f != nil {
		return f
	}
	if f := x.narrow(&spec); f != nil {
		return f
	}
	if x.pair {
		spec.Topology, spec.TopologyWeight = topology(x.d.cfg), x.d.cfg.Fleet.KVTransferPreferredWeight
	}
	target := x.d.gate.Resolve(spec)
	if target == nil {
		return x.notServed()
	}
	x.ticket.Target = target
	x.call.Record.Model = target.Model()
	if f := x.hints(p); f != nil {
		return f
	}
	if f := x.weigh(x.measured(), target.Model()); f != nil {
		return f
	}
	x.bypass(spec)
	return nil
}

// lookAgain is how often a request that waits for workers to tell their models looks
// whether they have.
const lookAgain = 50 * time.Millisecond

// placeOrWait places the request. While it is not known which workers serve its
// model there is no queue to wait in, so that it waits here, as long as
// no_worker_wait_secs and the client (x-sluice-max-queue-ms) allow and until the
// router stops. What it waited here is taken off what it may wait at the gate.
func (x *exchange) placeOrWait() *failure {
	f := x.place()
	if f == nil || f.reason != reasonNoWorkers {
		return f
	}
	began := mono.Now()
	patience := x.patience()
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
		f = x.place()
	}
	waited := mono.Now().Sub(began)
	x.ticket.NoWorkerWaited = waited
	if x.ticket.Deadline != 0 { // it was set just now, and is the client's from its arrival
		x.ticket.Deadline = max(x.ticket.Deadline.Add(-waited), 1)
	}
	return f
}

// patience is how long the client lets its request wait.
func (x *exchange) patience() time.Duration {
	if d, ok := x.d.classes.MaxQueueOf(x.call.Header); ok {
		return d
	}
	return math.MaxInt64
}

// planFan says how a request for several samples goes to SGLang. What SGLang
// cannot serve is refused at once, unless there are engines that may.
func (x *exchange) planFan(p *openai.Peeked) *failure {
	fan, err := openai.PlanFan(p, 0)
	if err != nil {
		f := &failure{reason: reasonBadRequest}
		errors.As(err, &f.local)
		if !x.d.some(func(e engine.Dialect) bool { return !e.FansOut() }) {
			return f
		}
		x.fanFault = f
	}
	x.fan = fan
	return nil
}

// some tells whether some worker has such a dialect. Workers are asked only where
// there is such a dialect at all.
func (d *Dispatcher) some(is func(engine.Dialect) bool) bool {
	return d.fleet.Dialects().Some(is) && slices.ContainsFunc(d.fleet.List(), func(w *fleet.Worker) bool { return is(w.Dialect()) })
}

// noWorkers is the answer while workers are expected that nobody has seen yet:
// the model may be theirs.
func (x *exchange) noWorkers() *failure {
	again := x.d.fleet.HealthInterval()
	if _, served := x.d.fleet.SolePool(); served == 0 {
		again = time.Second // at the start: workers tell their models as soon as they are up
	}
	return &failure{reason: reasonNoWorkers, local: openai.NoAvailableWorkers(x.call.Peeked.Model, "", again)}
}

// notServed is the answer where nobody is known to serve the model.
func (x *exchange) notServed() *failure {
	if _, served := x.d.fleet.SolePool(); served == 0 || x.d.fleet.Expecting() {
		return x.noWorkers()
	}
	x.d.fleet.RediscoverModels()
	return &failure{reason: reasonNoModel, local: openai.ModelNotFound(x.call.Peeked.Model)}
}

// model is the name of the pool that serves the model asked for, and the LoRA
// adapter if it is one.
func (x *exchange) model(p *openai.Peeked) (pool, adapter string, f *failure) {
	if pool, ok := x.pinnedPool(); ok {
		return pool, "", nil
	}
	if p.ModelKind == openai.KindString {
		if p.Model == "" {
			return "", "", &failure{reason: reasonBadRequest,
				local: openai.InvalidRequest("model", "model is empty; name one, or leave the field out where only one is served")}
		}
		if x.d.fleet.Undecided() && !x.d.fleet.Listed(p.Model) {
			return "", "", x.noWorkers()
		}
		pool, adapter = x.d.fleet.Resolve(p.Model)
		return pool, adapter, nil
	}
	if x.d.fleet.Undecided() {
		return "", "", &failure{reason: reasonNoWorkers, local: openai.ModelUndecided(time.Second)}
	}
	sole, n := x.d.fleet.SolePool()
	switch n {
	case 1:
		return sole, "", nil
	case 0:
		return "", "", x.noWorkers()
	}
	return "", "", &failure{reason: reasonBadRequest,
		local: openai.InvalidRequest("model", "%d models are served here; say which one in the field \"model\" (GET /v1/models lists them)", n)}
}

// steering is the value of a header that says where a request goes, "" for none. One
// that is there twice with two values says nothing.
func (x *exchange) steering(header string) (string, *failure) {
	values := x.call.Header[header]
	for _, v := range values {
		if v != values[0] {
			return "", &failure{reason: reasonBadRequest,
				local: openai.InvalidRequest("", "the header %s is there twice with different values; send it once", header)}
		}
	}
	if len(values) == 0 {
		return "", nil
	}
	return values[0], nil
}

// pins reads the headers that bind a leg to a worker. On a worker that runs whole
// requests both mean the same: answers name it as the one that decodes.
func (x *exchange) pins(spec *admission.TargetSpec) *failure {
	main, role, kind := admission.DecodeLeg, admission.RoleRegular, admission.RoleRegular
	if x.pair {
		main, role, kind = admission.PrefillLeg, admission.RolePrefill, admission.RoleDecode
	}
	if f := x.pin(spec, HeaderTargetWorker, main, role); f != nil {
		return f
	}
	return x.pin(spec, HeaderTargetDecode, admission.DecodeLeg, kind)
}

func (x *exchange) pin(spec *admission.TargetSpec, header string, leg admission.Leg, role admission.Role) *failure {
	want, f := x.steering(header)
	if want == "" || f != nil {
		return f
	}
	pin, f := x.resolvePin(want, header, role, spec.Model, role.String()+" ")
	if f != nil {
		return f
	}
	if other := spec.Pins[leg]; other != "" && other != pin {
		return twoPins(want)
	}
	spec.Pins[leg] = pin
	return nil
}

// resolvePin finds the worker of a pin; kind is what a message calls it.
func (x *exchange) resolvePin(want, header string, role admission.Role, model, kind string) (string, *failure) {
	pin, models, ok := x.d.fleet.ResolvePin(want, role)
	if !ok {
		return "", &failure{reason: reasonBadRequest,
			local: openai.InvalidTarget(want, header+" names no "+kind+"worker; it takes a worker's index, URL, id, or URL@rank")}
	}
	if !slices.Contains(models, model) && !slices.Contains(models, "") {
		return "", &failure{reason: reasonBadRequest,
			local: openai.InvalidTarget(want, "that worker does not serve the model asked for")}
	}
	return pin, nil
}

func twoPins(want string) *failure {
	return &failure{reason: reasonBadRequest,
		local: openai.InvalidTarget(want, HeaderTargetDecode+" and "+HeaderTargetWorker+" name different workers for the one that serves the request")}
}

// hints tells the policies what binds requests together: the routing key, else
// the session, else the user.
func (x *exchange) hints(p *openai.Peeked) *failure {
	key, f := x.steering(HeaderRoutingKey)
	if f != nil {
		return f
	}
	if key == "" {
		if key = p.SessionID(); key == "" {
			key = p.User()
		}
	}
	if key == "" {
		return nil
	}
	h := admission.Hint{Key: policy.HashKey(key), HasKey: true}
	x.ticket.Hints[admission.PrefillLeg], x.ticket.Hints[admission.DecodeLeg] = h, h
	return nil
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
