package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/internal/openai"
)

// cachedWait is how long a whole answer waits for the answer of the prefill leg, which
// mostly comes earlier. Streams do not wait.
const cachedWait = 20 * time.Millisecond

// cachedEdit writes the prefill's count of cached tokens into the usage of the answer.
type cachedEdit struct {
	from  *prefillCached // nil: nothing is changed
	count openai.CachedSplicer
	// edit changes one event as a whole, where that is needed.
	edit  func(data []byte) []byte
	lines *openai.LineSplicer
	list  bool // of a list of prompts
}

// take sets the count to that of c, for the answer to x.
func (e *cachedEdit) take(x *request, c *prefillCached) {
	e.from = c
	e.list = x.call.Route == openai.RouteGenerate && x.ticket.Legs > 1 && x.plan.fan.Copies <= 1
	switch {
	case e.list:
		e.edit = func(data []byte) []byte { return openai.SpliceListEvent(data, c.counts()) }
	case x.call.Route == openai.RouteMessages && !x.translates:
		e.edit = func(data []byte) []byte { return openai.SpliceMessages(data, c.told.Load()-1) }
	default:
		return
	}
	e.lines = new(openai.LineSplicer)
}

// splice returns a piece of an event stream, which scan has just been fed, with the
// prefill's count in the usage. events and within are the state of scan before the piece:
// its events with usage, and whether it was inside an event.
func (e *cachedEdit) splice(piece []byte, scan *openai.EventScanner, events int, within bool) []byte {
	switch {
	case e.from == nil:
		return piece
	case e.edit != nil:
		return e.lines.Splice(piece, e.edit)
	case events == scan.UsageEvents && !within && scan.AtBoundary():
		return piece
	}
	return e.spliceAll(piece)
}

// spliceAll is splice for a piece that no scanner has seen.
func (e *cachedEdit) spliceAll(piece []byte) []byte {
	if e.from == nil {
		return piece
	}
	return e.count.Splice(piece, e.from.told.Load()-1)
}

// rest is what splice holds back at the end of a stream.
func (e *cachedEdit) rest() []byte {
	if e.lines == nil {
		return nil
	}
	return e.lines.Rest()
}

// whole is splice for an answer that is not streamed. An answer that is too large to be
// collected keeps the engine's count, as its length was already sent.
func (e *cachedEdit) whole(b []byte) []byte {
	if e.from == nil {
		return b
	}
	if u, ok := openai.ReadUsage(b); !ok || u.CachedTokens < 0 {
		return b
	}
	c := e.from
	if c.over != nil && !c.known() {
		waitFor(c.over, cachedWait)
	}
	switch {
	case e.list:
		e.count.Each = c.counts()
		return e.count.Splice(b, -1)
	case e.edit != nil:
		return e.edit(b)
	}
	return e.spliceAll(b)
}
