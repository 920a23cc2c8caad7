package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/openai"
)

// prefillLeg is the leg that nobody reads, on its own goroutine. Its fields
// are valid once cached.over is closed.
type prefillLeg struct {
	f    *failure
	took time.Duration // of a leg that succeeded
	// logprobs are set if the leg succeeded and the client's answer needs them.
	logprobs *openai.LogprobMerger
	// cached may be read before.
	cached prefillCached
}

// prefillCached is how many tokens of the prompt the prefill leg had in its cache, once
// its answer told. To the decode rank all of the prompt came from elsewhere, so that
// what it reports of its own cache says nothing to the client.
type prefillCached struct {
	told atomic.Int64 // one more than the count; 0: not told
	// counted: the answer had token counts, perhaps without this one.
	counted atomic.Bool
	// each are the counts of a list of prompts, -1 where none was told.
	each atomic.Pointer[[]int64]
	over *latch // closed when the leg is over; nil where decode does not run beside it
}

func (c *prefillCached) tell(u openai.Usage) {
	if u.PromptTokens > 0 {
		c.counted.Store(true)
	}
	if u.CachedTokens >= 0 {
		c.told.Store(u.CachedTokens + 1)
	}
}

// tellEach tells the counts of a list of prompts.
func (c *prefillCached) tellEach(counts []int64) {
	if len(counts) > 0 {
		list := counts // on the heap only where there is one
		c.each.Store(&list)
	}
}

// counts are those of tellEach; nil: not told.
func (c *prefillCached) counts() []int64 {
	if p := c.each.Load(); p != nil {
		return *p
	}
	return nil
}

// addTo adds the count to a sum of counts, which is one more than the sum, or 0 before the
// first. Of an engine that tells of cached tokens, an answer with other counts means none.
func (c *prefillCached) addTo(sum *int64, tells bool) {
	n := c.told.Load() - 1
	if n < 0 && tells && c.counted.Load() {
		n = 0
	}
	for i, one := range c.counts() {
		if i == 0 {
			n = 0
		}
		n += max(one, 0)
	}
	if n >= 0 {
		*sum = max(*sum, 1) + n
	}
}

func (c *prefillCached) known() bool { return c.told.Load() != 0 || c.each.Load() != nil }
