package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// restrictToRoute keeps the request from workers that cannot serve it.
func (x *placement) restrictToRoute() *failure {
	if f := x.refuseHeld(); f != nil {
		return f
	}
	if x.plan.pair {
		return x.restrictPair()
	}
	if x.plan.text.TakesTokens && x.translatable() {
		if f := x.refuseStored(); f != nil {
			return f
		}
		if f := planTranslation(x.request); f != nil {
			return f
		}
	}
	if f := x.sticky(); f != nil {
		return f
	}
	if x.pinned() != "" || !x.serving().picky() {
		return nil
	}
	able, all := x.serving().able(admission.RoleRegular)
	if len(able) == 0 {
		return x.serving().noRoute(nil)
	}
	if !all {
		x.spec.Allowed[admission.DecodeLeg] = able
	}
	return nil
}

// refuseHeld refuses requests that count on the server to hold the conversation. No
// engine does, and one that ignores the field would answer the last turn alone. The
// tool runner of Anthropic's SDK begins a thread unasked, and sends the whole
// conversation itself once it has this error.
func (x *placement) refuseHeld() *failure {
	held, all, detail := openai.FieldThread, "messages", "thread_unsupported_request"
	switch x.call.Route {
	case openai.RouteMessages:
	case openai.RouteResponses:
		held, all, detail = openai.FieldConversation, "input", ""
	default:
		return nil
	}
	if !x.call.Peeked.Given(held) {
		return nil
	}
	e := openai.InvalidRequest(held.String(), "%s is not served here: conversations are not stored; send all of it in %s", held, all)
	e.Detail = detail
	return &failure{reason: reasonBadRequest, local: e}
}

// sticky refuses what only the worker can answer that had the request before:
// engines keep responses in their own memory.
func (x *placement) sticky() *failure {
	p := x.call.Peeked
	switch x.call.Route {
	case openai.RouteStoredResponse:
	case openai.RouteResponses:
		if p.FieldKind(openai.FieldPreviousResponseID) != openai.KindString {
			return nil
		}
	default:
		return nil
	}
	if x.pinned() != "" {
		return nil
	}
	workers := map[*fleet.Worker]bool{}
	for _, s := range x.serving().ranks() {
		workers[s.Worker] = true
	}
	if len(workers) <= 1 {
		return nil
	}
	return &failure{reason: reasonBadRequest, local: openai.InvalidRequest(openai.FieldPreviousResponseID.String(),
		"a stored response is known to the worker only that made it, and %d workers serve the model: name that one in the header %s, or send the whole conversation in input",
		len(workers), HeaderTargetWorker)}
}
