package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-router/sluice/internal/kv"
)

// Bounds of a trace, so that a wrong file ends with an error and not with the memory.
const (
	maxLine     = 4 << 20 // bytes
	maxRequests = 4_000_000
	maxBlocks   = 100_000_000 // of all requests together
	maxTokens   = 1 << 30     // of one prompt or answer
	maxTime     = 366 * 24 * time.Hour
)

// Request is one request of a trace.
type Request struct {
	// At is when it came, from the beginning of the trace.
	At time.Duration
	// Prompt and Output are tokens.
	Prompt, Output int64
	// Blocks are the blocks of the prompt, each standing for all before it, too; the last
	// one may be shorter than BlockTokens.
	Blocks      []kv.Key
	BlockTokens int64
}

// tokens is how many tokens of the prompt are in its first n blocks.
func (r *Request) tokens(n int) int64 {
	return min(int64(n)*r.BlockTokens, r.Prompt)
}

// Trace is what a replay runs: requests by the time they came.
type Trace struct {
	Requests []Request
	// BlockTokens is how many tokens a block has; on average, if that differs.
	BlockTokens int64
	// Grain is how exact the times are. Requests of one time came within so much of it.
	Grain time.Duration
	// Skipped are lines that say nothing of a request's prompt, by why.
	Skipped map[string]int

	blocks int
}

// LineError is a line of a trace that cannot be read.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// add appends a request within the bounds of a trace.
func (t *Trace) add(r Request) error {
	t.blocks += len(r.Blocks)
	switch {
	case r.At < -maxTime || r.At > maxTime:
		return fmt.Errorf("its time is %v from that of the first request, at most %v are read", r.At, maxTime)
	case r.Prompt < 0 || r.Prompt > maxTokens:
		return fmt.Errorf("%d prompt tokens are not between 0 and %d", r.Prompt, maxTokens)
	case r.Output < 0 || r.Output > maxTokens:
		return fmt.Errorf("%d output tokens are not between 0 and %d", r.Output, maxTokens)
	case len(t.Requests) == maxRequests:
		return fmt.Errorf("more than %d requests", maxRequests)
	case t.blocks > maxBlocks:
		return fmt.Errorf("more than %d blocks in all requests", maxBlocks)
	}
	t.Requests = append(t.Requests, r)
	return nil
}

func (t *Trace) skip(why string) {
	if t.Skipped == nil {
		t.Skipped = map[string]int{}
	}
	t.Skipped[why]++
}

var errEmpty = errors.New("there is no request in it")

// finish puts the requests in order, the first at zero.
func (t *Trace) finish() error {
	if len(t.Requests) == 0 {
		return errEmpty
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	first := t.Requests[0].At
	for i := range t.Requests {
		t.Requests[i].At -= first
	}
	return nil
}

// arrivals returns when each request comes in a replay: requests of one time are spread over
// the grain of the trace, in an order that random decides, and then all goes speed times
// as fast. order are the requests by that.
func (t *Trace) arrivals(speed float64, random uint64) (at []time.Duration, order []int) {
	rng := rand.New(rand.NewPCG(random, 0x736c75696365))
	at, order = make([]time.Duration, len(t.Requests)), make([]int, len(t.Requests))
	for i := range t.Requests {
		spread := time.Duration(rng.Float64() * float64(t.Grain))
		at[i] = time.Duration(min(float64(t.Requests[i].At+spread)/speed, math.MaxInt64/4))
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	return at, order
}

// ideal is the part of all prompt tokens that one cache without bound would have held,
// for requests that come in this order.
func (t *Trace) ideal(order []int) float64 {
	seen := map[kv.Key]struct{}{}
	var hit, all int64
	for _, i := range order {
		r := &t.Requests[i]
		n := 0
		for n < len(r.Blocks) {
			if _, ok := seen[r.Blocks[n]]; !ok {
				break
			}
			n++
		}
		hit += r.tokens(n)
		all += r.Prompt
		for _, k := range r.Blocks[n:] {
			seen[k] = struct{}{}
		}
	}
	return ratio(float64(hit), float64(all))
}

// ratio is a/b, and 0 of nothing.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
