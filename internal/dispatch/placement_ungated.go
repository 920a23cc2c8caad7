package dispatch

import (
	"net/http"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/openai"
)

// skipsGate tells whether the request needs no admission. A worker for whole
// requests that stood among the others would be booked as ever.
func (x *placement) skipsGate() bool {
	return x.call.Passing && x.d.cfg.Fleet.PDDisaggregation && !x.d.gate.Serves(x.plan.pool, admission.RoleRegular)
}

// checkClassHeaders refuses what cannot be read of them. The request waits for nobody
// and has no class, but is refused wherever it is sent.
func (x *placement) checkClassHeaders() *failure {
	headers := classify.Options{}
	if _, bad := headers.Classify(&classify.Facts{Header: x.call.Header}); bad != nil {
		return &failure{reason: reasonBadRequest, local: bad}
	}
	return nil
}

func (x *placement) refuseStoredResponse() *failure {
	if x.call.Route != openai.RouteStoredResponse {
		return nil
	}
	return &failure{reason: reasonBadRequest, local: noStoredResponse("no response is stored where prefill and decode are apart")}
}

// findServing refuses what nobody is known to serve.
func (x *placement) findServing() *failure {
	if !x.d.gate.Serves(x.plan.pool, admission.RoleDecode) && !x.d.gate.Serves(x.plan.pool, admission.RolePrefill) {
		return x.notServed()
	}
	return nil
}

// readUngatedPins reads the headers that bind the request to a worker: of either role by
// the first, of decode by the second. With one of each, as a client sends them with
// all its requests, each holds for its role.
func (x *placement) readUngatedPins() *failure {
	b, model := x.plan.ungated, x.spec.Model
	want, f := x.steering(HeaderTargetWorker)
	if f != nil {
		return f
	}
	if want != "" {
		role := admission.RolePrefill
		if _, _, ok := x.d.fleet.ResolvePin(want, role); !ok {
			role = admission.RoleDecode
		}
		pin, f := x.resolvePin(want, HeaderTargetWorker, role, model, "")
		if f != nil {
			return f
		}
		b.pins[role], b.pinned = pin, true
	}
	if want, f = x.steering(HeaderTargetDecode); want == "" || f != nil {
		return f
	}
	pin, f := x.resolvePin(want, HeaderTargetDecode, admission.RoleDecode, model, admission.RoleDecode.String()+" ")
	if f != nil {
		return f
	}
	if other := b.pins[admission.RoleDecode]; other != "" && other != pin {
		return twoPins(want)
	}
	b.pins[admission.RoleDecode], b.pinned = pin, true
	return nil
}

func noStoredResponse(why string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "response_not_found",
		Message: "there is no such response here: " + why}
}
