package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/internal/openai"
)

// cachedWait is how long a whole answer waits for that of the prefill leg, which
// mostly came before. Streams do not wait.
const cachedWait = 20 * time.Millisecond

// cachedEdit writes the prefill's count into the usage of the engine as it passes by.
type cachedEdit struct {
	from  *prefillCached // nil: nothing is changed
	count openai.CachedSplicer
	// edit changes one event as a whole, where that is needed.
	edit  func(data []byte) []byte
	lines *openai.LineSplicer
	list  bool // of a list of prompts
}

// takesCached lets the answer have c's count.
func (r *relay) takesCached(c *prefillCached) {
	x, e := r.x, &r.cached
	e.from = c
	e.list = x.call.Route == openai.RouteGenerate && x.ticket.Legs > 1 && x.plan.fan.Copies <= 1
	switch {
	case e.list:
		e.edit = func(data []byte) []byte { return openai.SpliceListEvent(data, c.counts()) }
	case x.call.Route == openai.RouteMessages && !x.translates():
		e.edit = func(data []byte) []byte { return openai.SpliceMessages(data, c.told.Load()-1, c.prompt.Load()-1) }
	default:
		return
	}
	e.lines = new(openai.LineSplicer)
}

// withCached is a piece of an event stream that scan has just been fed, with the
// prefill's count in the usage of the engine. events and within are of the scan before:
// its events with usage, and that it was in an event.
func (r *relay) withCached(piece []byte, events int, within bool) []byte {
	e := &r.cached
	switch {
	case e.from == nil:
		return piece
	case e.edit != nil:
		return e.lines.Splice(piece, e.edit)
	case events == r.scan.UsageEvents && !within && r.scan.AtBoundary():
		return piece
	}
	return e.count.Splice(piece, e.from.told.Load()-1)
}

// restWithCached is what withCached holds of a stream that has ended.
func (r *relay) restWithCached() []byte {
	if r.cached.lines == nil {
		return nil
	}
	return r.cached.lines.Rest()
}

// wholeWithCached is withCached for an answer that does not stream. One that is too large
// to be collected keeps the engine's count, as its length has been told.
func (r *relay) wholeWithCached(b []byte) []byte {
	if r.cached.from == nil {
		return b
	}
	if u, ok := openai.ReadUsage(b); !ok || u.CachedTokens < 0 {
		return b
	}
	c := r.cached.from
	if c.leg != nil && !c.known() {
		waitFor(c.leg, cachedWait)
	}
	switch {
	case r.cached.list:
		r.cached.count.Each = c.counts()
		return r.cached.count.Splice(b, -1)
	case r.cached.edit != nil:
		return r.cached.edit(b)
	}
	return r.cached.count.Splice(b, c.told.Load()-1)
}
