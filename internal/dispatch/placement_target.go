package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// placement finds what a request may run on, before it waits at the gate: its model's
// pools, its pins and labels, its size and class. Its errors are final, whatever the
// fleet's load.
type placement struct {
	*request
	spec admission.TargetSpec
}

// resolveModel finds the pool of the model asked for.
func (x *placement) resolveModel() *failure {
	pool, adapter, f := x.model(x.call.Peeked)
	if f != nil {
		return f
	}
	x.plan.pool = pool
	x.spec = admission.TargetSpec{Model: pool, Adapter: adapter, Shape: admission.Aggregated}
	if x.plan.pair {
		x.spec.Shape = admission.Disaggregated
	}
	return nil
}

// model is the name of the pool that serves the model asked for, and the LoRA
// adapter if it is one.
func (x *placement) model(p *openai.Peeked) (pool, adapter string, f *failure) {
	x.plan.model = ""
	if pool, ok := x.pinnedPool(); ok {
		return pool, "", nil
	}
	if p.ModelKind == openai.KindString {
		if p.Model == "" {
			return "", "", &failure{reason: reasonBadRequest,
				local: openai.InvalidRequest("model", "model is empty; name one, or leave the field out where only one is served")}
		}
		if target, ok := x.d.fleet.Alias(p.Model); ok {
			if x.call.Form {
				return "", "", &failure{reason: reasonBadRequest, local: openai.InvalidRequest("model",
					"the model %q is an alias of %q, and a form is passed on as it is: send it with the model's own name", text.Line(p.Model), target)}
			}
			x.plan.model = target
		}
		if x.d.fleet.Undecided() && !x.d.fleet.Listed(p.Model) {
			return "", "", x.serving().noWorkers()
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
		return "", "", x.serving().noWorkers()
	}
	return "", "", &failure{reason: reasonBadRequest,
		local: openai.InvalidRequest("model", "%d models are served here; say which one in the field \"model\" (GET /v1/models lists them)", n)}
}

// pinnedPool is the model of the worker that a request without a body is for.
func (x *placement) pinnedPool() (pool string, ok bool) {
	if x.call.Route != openai.RouteStoredResponse || x.pinned() == "" {
		return "", false
	}
	_, models, ok := x.d.fleet.ResolvePin(x.pinned(), admission.RoleRegular)
	if !ok || models[0] == "" {
		return "", false
	}
	return models[0], true
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

// notServed is the answer where nobody is known to serve the model.
func (x *placement) notServed() *failure {
	if _, served := x.d.fleet.SolePool(); served == 0 || x.d.fleet.Expecting() {
		return x.serving().noWorkers()
	}
	x.d.fleet.RediscoverModels()
	return &failure{reason: reasonNoModel, local: openai.ModelNotFound(x.call.Peeked.Model)}
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
