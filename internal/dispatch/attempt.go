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
		x.passUntranslated()
		return x.runAlone(x.ticket.Decode.Data().(*fleet.Rank))
	}
	dialect := x.ticket.Prefill.Data().(*fleet.Rank).Dialect()
	if dialect.Native(x.call.Route) {
		x.passUntranslated()
	} else if f := x.translate(); f != nil {
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
// earlier attempt has counted is counted still.
func (x *attempt) takeFiles() *failure {
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
