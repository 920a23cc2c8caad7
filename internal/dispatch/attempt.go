package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
)

// run runs the legs in the shape that the granted ranks' engines want.
func (x *attempt) run() *failure {
	if f := x.takeFiles(); f != nil {
		return f
	}
	if !x.plan.pair || x.bypasses() {
		rank := x.ticket.Decode.Data().(*fleet.Rank)
		if f := x.chooseAPI(rank.Dialect()); f != nil {
			return f
		}
		return x.runAlone(rank)
	}
	dialect := x.ticket.Prefill.Data().(*fleet.Rank).Dialect()
	if f := x.chooseAPI(dialect); f != nil {
		return f
	}
	copies := 1
	if dialect.FansOut() {
		if x.plan.fanFault != nil {
			return x.plan.fanFault
		}
		copies = x.plan.fan.Copies
	}
	b, f := x.planLegs(0)
	if f != nil {
		return f
	}
	if b.plan.Shape == engine.Together {
		return x.runTogether(b, copies)
	}
	return x.runInSequence(b)
}

// bypasses tells whether the ticket was granted a decode rank alone.
func (x *attempt) bypasses() bool {
	return x.ticket.Target.Shape() == admission.Bypass
}

// takeFiles counts the connections of an attempt before they are opened. What an
// earlier attempt has counted is counted still. Calls in tokens share the few connections of
// their worker.
func (x *attempt) takeFiles() *failure {
	if x.plan.generate != nil {
		return nil
	}
	n := 1
	if x.plan.pair {
		n = 2 * max(x.plan.fan.Copies, 1)
	}
	if x.call.Files == nil || n <= x.files {
		return nil
	}
	if !x.call.Files.TakeFiles(n - x.files) {
		x.setHeader("Connection", "close") // it has a file too
		return &failure{reason: reasonTooManyFiles, local: outOfFiles(nil)}
	}
	x.files = n
	return nil
}

// chooseAPI begins an attempt at engines that take the client's API or chat in its place. A
// worker that runs the whole request has routes of its own for all APIs, unless it takes
// tokens.
func (x *attempt) chooseAPI(d engine.Dialect) *failure {
	alone := !x.plan.pair || x.bypasses()
	if !x.translatable() || d.Native(x.call.Route) || alone && !d.TakesTokens() {
		x.passUntranslated()
	} else if f := x.translate(); f != nil {
		return f
	}
	return x.tokensFor(d)
}

// tokensFor reads the request in tokens for engines that take them and were not known for
// such when the request came.
func (x *attempt) tokensFor(d engine.Dialect) *failure {
	if x.plan.generate != nil || !d.TakesTokens() {
		return nil
	}
	p := placement{request: x.request}
	if f := p.findText(); f != nil || !x.plan.text.TakesTokens {
		return f
	}
	return p.readTokens()
}

// translate begins an attempt at engines that are sent chat in the place of the
// client's API.
func (x *attempt) translate() *failure {
	if x.plan.translated == nil {
		// They were not known for such when the request came.
		if f := planTranslation(x.request); f != nil {
			return f
		}
	}
	if x.translates = x.plan.translated != nil; x.translates {
		x.note(x.plan.translated.api.Note())
	}
	return nil
}

// passUntranslated begins an attempt at engines that speak the client's API.
func (x *attempt) passUntranslated() {
	if x.translates {
		x.translates = false
		x.note("")
	}
}
