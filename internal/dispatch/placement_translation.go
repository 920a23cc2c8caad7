package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
)

// translatable tells whether the route is one that SGLang's pairs are sent as
// chat.
func (x *placement) translatable() bool {
	return x.call.Route == openai.RouteMessages || x.call.Route == openai.RouteResponses
}

// restrictPair keeps a request from pairs that could not serve it, or refuses it
// where there are no others.
func (x *placement) restrictPair() *failure {
	if x.translatable() {
		if f := x.refuseStored(); f != nil {
			return f
		}
	}
	fault := x.plan.fanFault
	takes := func(e engine.Dialect) bool { return !e.FansOut() }
	if native := func(e engine.Dialect) bool { return e.Native(x.call.Route) }; x.d.some(func(e engine.Dialect) bool { return !native(e) }) {
		if f := planTranslation(x.request); f != nil {
			if fault == nil {
				takes = native
			} else {
				takes = func(e engine.Dialect) bool { return !e.FansOut() && native(e) }
			}
			fault = f
		}
	}
	if fault == nil {
		return nil
	}
	var able []string
	for _, s := range x.d.fleet.Serving(x.plan.pool) {
		if s.Worker.Role() == admission.RolePrefill && takes(s.Worker.Dialect()) {
			able = append(able, s.Worker.URL())
		}
	}
	if able == nil {
		return fault
	}
	x.spec.Allowed[admission.PrefillLeg] = able
	return nil
}
