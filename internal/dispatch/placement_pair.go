package dispatch

import (
	"errors"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
)

// planSamples says how a request for several samples goes to engines that want a
// call for each. What cannot be made into such calls is refused at once, unless there
// are engines that may take it as it is.
func (x *placement) planSamples() *failure {
	if !x.plan.pair {
		return nil
	}
	fan, err := openai.PlanFan(x.call.Peeked, 0)
	if err != nil {
		f := &failure{reason: reasonBadRequest}
		errors.As(err, &f.local)
		if !x.d.some(func(e engine.Dialect) bool { return !e.FansOut() }) {
			return f
		}
		x.plan.fanFault = f
	}
	x.plan.fan = fan
	return nil
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
	native := func(e engine.Dialect) bool { return e.Native(x.call.Route) }
	if x.translatable() && x.d.some(func(e engine.Dialect) bool { return !native(e) }) {
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

// translatable tells whether the route is of an API that pairs of some engines do not
// speak: they are sent chat.
func (x *request) translatable() bool {
	return x.call.Route == openai.RouteMessages || x.call.Route == openai.RouteResponses
}

// refuseStored refuses what needs an engine to remember an earlier request: the
// next one may go to others, and a prefill leg cannot take part in it.
func (x *placement) refuseStored() *failure {
	p := x.call.Peeked
	if p.Route != openai.RouteResponses {
		return nil
	}
	bad := func(field openai.Field, why string) *failure {
		return &failure{reason: reasonBadRequest, local: openai.InvalidRequest(field.String(), "%s", why)}
	}
	if p.Given(openai.FieldPreviousResponseID) {
		return bad(openai.FieldPreviousResponseID, "previous_response_id is not served here: no response is stored where prefill and decode are apart; send the whole conversation in input")
	}
	if p.Given(openai.FieldBackground) && string(p.Raw(openai.FieldBackground)) != "false" {
		return bad(openai.FieldBackground, "background is not served here: no response is stored where prefill and decode are apart")
	}
	return nil
}
