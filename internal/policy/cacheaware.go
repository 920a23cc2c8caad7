package policy

import "github.com/sluice-router/sluice/admission"

// cacheAware weighs what a rank is believed to hold of the prompt against what it has to do
// already. The cost of a rank is
//
//	booked tokens + tokens of the prompt - weight × tokens of it that the rank holds
//
// and the least cost wins, among the ranks that the hint names and the least loaded one;
// of equal ones the one that was booked least recently. The prompt is the same for all, so it
// is left out of the sum.
//
// With a weight of 1 this is the least time to the first token of this request alone. It
// copies prefixes from rank to rank as soon as their holder is a little busy, and the copies
// push other prefixes out of the caches. A larger weight lets a request wait for a holder
// so that others find theirs.
//
// What many prompts share is another matter: each rank that has computed it once has it for
// all that follow, so that a copy pays, and without one all would queue for the first that had
// it. So of a weight above 1 what is above 1 is divided by the number of requests that
// came lately with the same match.
//
// A match below a part of the prompt counts as none. Without that, prompts that all begin
// in the same way would all go to the first rank of an idle fleet.
//
// Ranks that both prefill and decode, and those that only decode, are weighed by the KV
// blocks they keep as well; see [admission.ByTokensAndKV]. For a request whose hint names
// no holder, as on the decode leg of a pair, this is the choice by load.
type cacheAware struct {
	weight   float64
	minMatch float64
	scale    float64 // of a token of the prompt in the measure of load
	load     tokenLoad
}

func newCacheAware(o pool) *cacheAware {
	p := &cacheAware{weight: o.opts.CacheWeight, minMatch: o.opts.CacheMinMatch, scale: 1, load: newTokenLoad(o)}
	if p.load.measure == admission.ByTokensAndKV {
		p.scale = admission.TokenWeight
	}
	return p
}

// Measure is that of [admission.Measured].
func (p *cacheAware) Measure() admission.Measure { return p.load.measure }

func (p *cacheAware) Pick(v *admission.View, h *admission.Hint) int {
	if v.Passing() {
		return p.load.passing.Pick(v, h)
	}
	best := p.load.least(v)
	cost := v.Amount(best)
	for k := range h.Holders {
		holder := &h.Holders[k]
		if holder.Rank == nil {
			break
		}
		i := v.Index(holder.Rank)
		if i < 0 {
			continue
		}
		c := v.Amount(i) - p.credit(holder.Tokens, h)
		if c < cost || c == cost && v.BookedBefore(i, best) {
			best, cost = i, c
		}
	}
	return best
}

// credit is what so many cached tokens of a prompt are worth, in the measure of the pool.
func (p *cacheAware) credit(cached int64, h *admission.Hint) int64 {
	cached = min(cached, h.PromptTokens)
	if cached <= 0 || float64(cached) < p.minMatch*float64(h.PromptTokens) {
		return 0
	}
	weight := p.weight
	if weight > 1 {
		weight = 1 + (weight-1)/(1+float64(max(h.Sharing, 0)))
	}
	return int64(min(weight*p.scale*float64(cached), maxCredit))
}

// maxCredit keeps sums with what is booked from overflow.
const maxCredit = 1 << 60

func (*cacheAware) Booked(int, *admission.Hint) {}
func (*cacheAware) RankAdded(int, string)       {}
func (*cacheAware) RankRemoved(int)             {}
