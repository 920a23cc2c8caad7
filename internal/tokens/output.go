package tokens

import "math"

// OutputPlan is what the gate has booked for an answer, and its expected length.
type OutputPlan struct {
	// PromptTokens and ReserveTokens are those of all legs and of each leg, as the
	// gate booked blocks for them.
	PromptTokens, ReserveTokens int64
	// Legs share PromptTokens evenly. Zero means one.
	Legs int
	// BlockSize is the decode rank's, in tokens. Zero means DefaultBlockSize.
	BlockSize int64
	// Expected is how many tokens a leg's answer is expected to have, such as the
	// client's max_tokens: a block then counts by the share of the answer that is still
	// to come when the block is begun, as later blocks are held for a shorter time. Zero
	// or less: unknown, every block counts whole.
	Expected int64
}

const (
	// DefaultBlockSize is that of ranks that did not report theirs, as at the gate.
	DefaultBlockSize = 16
	// maxOutput bounds the reported length of a leg's answer, in tokens.
	maxOutput = 1 << 24
	// maxPrompt bounds prompts, so that no sum overflows.
	maxPrompt = 1 << 40
)

// OutputCounter converts the tokens of an answer so far into KV blocks that the gate has
// not booked yet. The zero value counts nothing. It is not safe for concurrent
// use.
type OutputCounter struct {
	legs, size int64
	spare      int64 // tokens of a leg's answer that the booked blocks have room for
	expected   float64
	tokens     int64 // of all legs, so far
	grown      int64
}

// NewOutputCounter makes a counter for one attempt of a request.
func NewOutputCounter(p OutputPlan) OutputCounter {
	c := OutputCounter{legs: int64(max(p.Legs, 1)), size: p.BlockSize, expected: float64(max(p.Expected, 0))}
	if c.size <= 0 {
		c.size = DefaultBlockSize
	}
	c.size = min(c.size, maxPrompt)
	prompt := (min(max(p.PromptTokens, 0), maxPrompt) + c.legs - 1) / c.legs
	booked := ceilDiv(prompt+min(max(p.ReserveTokens, 0), maxPrompt), c.size)
	c.spare = booked*c.size - prompt
	return c
}

// Tokens returns the tokens of all legs' answers so far, as estimated.
func (c *OutputCounter) Tokens() int64 { return c.tokens }

// Seen records the totals so far: content events, each counted as a token, and the
// engine's own count if it has reported one (-1 or 0: not). It returns the blocks to add
// to those booked, mostly 0. The count never decreases.
func (c *OutputCounter) Seen(events int, reported int64) (grow int64) {
	if c.legs == 0 {
		return 0
	}
	seen := min(max(int64(events), reported), maxOutput*c.legs)
	if seen <= c.tokens {
		return 0
	}
	c.tokens = seen
	if ceilDiv(seen, c.legs) <= c.spare {
		return 0
	}
	blocks := ceilDiv(ceilDiv(seen, c.legs)-c.spare, c.size)
	want := int64(math.Ceil(c.weight(blocks)*float64(c.legs) - 1e-6))
	grow = max(want-c.grown, 0)
	c.grown += grow
	return grow
}

// weight is the number of blocks for which the first n blocks of a leg's answer count.
func (c *OutputCounter) weight(n int64) float64 {
	if c.expected == 0 {
		return float64(n)
	}
	// Block i begins at token spare + i×size and counts by the share of expected that is
	// left then; blocks that begin after expected do not count.
	left := (c.expected - float64(c.spare)) / float64(c.size)
	if left <= 0 {
		return 0
	}
	k := min(float64(n), math.Ceil(left))
	return (k*left - k*(k-1)/2) * float64(c.size) / c.expected
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
