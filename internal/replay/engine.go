package replay

import (
	"math"
	"time"

	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/kv"
)

// engine is a modelled engine.
//
// Prompts are computed one after the other, in the order they come, at so many tokens a
// second; what the cache holds when one begins costs nothing. When it ends, all its blocks
// are in the cache, and the engine's events tell it.
//
// Decode goes in steps: in each, every request that runs gets a token. A request runs when
// its blocks, those of its answer included, are free, in the order they come; one alone
// always runs. An engine that does both stands still with decode while it computes a prompt,
// and its cache has the blocks that running requests leave.
//
// Left out: chunked prefill and batches of prompts, the transfer of KV cache, blocks that
// running requests share, preemption, stops before the end of an answer, failures.
type engine struct {
	sim    *sim
	number int
	name   string

	// prefill
	cache      *cache
	queue      []*call
	prefilling *call
	busy       time.Duration // it computed prompts for so long

	// decode
	joining []*call // that wait for blocks
	running heap.Heap[*call]
	blocks  int     // it has; 0: no bound
	used    int     // by those that run
	steps   float64 // done so far
	asOf    time.Duration
	version int // of the next event of its decode

	evicted []kv.Key // memory
}

// submit brings a request to prefill.
func (e *engine) submit(c *call) {
	e.queue = append(e.queue, c)
	e.begin()
}

// begin begins with the next prompt, if it can.
func (e *engine) begin() {
	if e.prefilling != nil || len(e.queue) == 0 {
		return
	}
	c := e.queue[0]
	if e.sim.opts.Aggregated && !e.reserve(c) {
		return
	}
	e.queue[0] = nil
	if e.queue = e.queue[1:]; len(e.queue) == 0 {
		e.queue = nil
	}
	e.advance()
	e.prefilling = c
	c.cached = c.request.tokens(e.cache.match(c.request.Blocks))
	d := time.Duration(math.Round(float64(c.request.Prompt-c.cached) / e.sim.opts.TokensPerSecond * float64(time.Second)))
	e.busy += d
	e.sim.at(e.sim.now+d, event{kind: prefilled, engine: e})
}

// endPrefill ends the prompt that is computed and returns its request.
func (e *engine) endPrefill() *call {
	c := e.prefilling
	e.advance()
	e.prefilling = nil
	e.evicted = e.cache.store(c.request.Blocks, e.evicted[:0])
	e.sim.tell(e, c.request.Blocks, e.evicted)
	return c
}

// join brings a request to decode.
func (e *engine) join(c *call) {
	e.joining = append(e.joining, c)
	e.admit()
}

// admit lets those run that there are blocks for.
func (e *engine) admit() {
	for len(e.joining) > 0 {
		c := e.joining[0]
		if !e.sim.opts.Aggregated && !e.reserve(c) {
			break
		}
		e.joining[0] = nil
		e.joining = e.joining[1:]
		e.advance()
		c.until = e.steps + float64(max(c.request.Output, 1))
		e.running.Push(c)
		if !e.sim.opts.Aggregated {
			c.first = e.sim.now + time.Duration(e.stepTime())
		}
	}
	e.plan()
}

// reserve takes the blocks of a request, if they are free or nobody else has any.
func (e *engine) reserve(c *call) bool {
	if e.blocks == 0 {
		return true
	}
	size := c.request.BlockTokens
	if size == 0 {
		size = e.sim.trace.BlockTokens
	}
	need := int(min((c.request.Prompt+c.request.Output+size-1)/size, math.MaxInt32))
	if e.used > 0 && e.used+need > e.blocks {
		return false
	}
	c.blocks = need
	e.use(need)
	return true
}

// use takes or gives back blocks. Those of an engine that does both are its cache's.
func (e *engine) use(n int) {
	e.used += n
	if !e.sim.opts.Aggregated {
		return
	}
	e.cache.limit = max(e.blocks-e.used, 0)
	if e.evicted = e.cache.shrink(e.cache.limit, e.evicted[:0]); len(e.evicted) > 0 {
		e.sim.tell(e, nil, e.evicted)
	}
}

// stepTime is the time of a step with what runs now.
func (e *engine) stepTime() float64 {
	return float64(e.sim.opts.DecodeStep) + float64(e.running.Len())*float64(e.sim.opts.DecodePerRequest)
}

// advance does the steps up to now.
func (e *engine) advance() {
	if e.prefilling == nil && e.running.Len() > 0 {
		e.steps += float64(e.sim.now-e.asOf) / e.stepTime()
	}
	e.asOf = e.sim.now
}

// plan has the engine called when the next request is over.
func (e *engine) plan() {
	e.version++
	if e.prefilling != nil || e.running.Len() == 0 {
		return
	}
	d := math.Ceil((e.running.First().until - e.steps) * e.stepTime())
	e.sim.at(e.sim.now+time.Duration(min(max(d, 0), math.MaxInt64/4)), event{kind: decoded, engine: e, version: e.version})
}

// almost makes good what steps lose by rounding.
const almost = 1e-6

// endDecode ends the requests that are over, in the order of their ends.
func (e *engine) endDecode(over []*call) []*call {
	e.advance()
	for e.running.Len() > 0 && e.running.First().until <= e.steps+almost {
		c := e.running.Pop()
		e.use(-c.blocks)
		over = append(over, c)
	}
	return over
}
