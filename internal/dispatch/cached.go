package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/openai"
)

// prefillCached is how many tokens of the prompt the prefill leg had in its cache, once
// its answer told. To the decode rank all of the prompt came from elsewhere, so that
// what it reports of its own cache says nothing to the client.
type prefillCached struct {
	told atomic.Int64 // one more than the count; 0: not told
	leg  *latch       // of the leg beside, if there is one
}

func (c *prefillCached) tell(u openai.Usage) {
	if u.CachedTokens >= 0 {
		c.told.Store(u.CachedTokens + 1)
	}
}

// cachedWait is how long a whole answer waits for that of the prefill leg, which
// mostly came before. Streams do not wait.
const cachedWait = 20 * time.Millisecond

// withCached is a piece of an event stream that scan has just been fed, with the
// prefill's count in the usage of the engine. events and within are of the scan before:
// its events with usage, and that it was in an event.
func (r *relay) withCached(piece []byte, events int, within bool) []byte {
	if r.cached == nil || events == r.scan.UsageEvents && !within && r.scan.AtBoundary() {
		return piece
	}
	return r.splice.Splice(piece, r.cached.told.Load()-1)
}

// wholeWithCached is withCached for an answer that does not stream.
func (r *relay) wholeWithCached(b []byte) []byte {
	if r.cached == nil {
		return b
	}
	if u, ok := openai.ReadUsage(b); !ok || u.CachedTokens < 0 {
		return b
	}
	if r.cached.leg != nil && r.cached.told.Load() == 0 {
		waitFor(r.cached.leg, cachedWait)
	}
	return r.splice.Splice(b, r.cached.told.Load()-1)
}

// takesCached lets the answer have c's count. The lists of /generate have a count of
// each prompt, which is not c's.
func (r *relay) takesCached(c *prefillCached) {
	if r.x.call.Route != openai.RouteGenerate || r.x.ticket.Legs <= 1 || r.x.fan.Copies > 1 {
		r.cached = c
	}
}
