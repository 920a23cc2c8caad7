package admission

// RankShare is what of the bounds of a rank a gate has that decides alone, while others may
// do so too; see [Options.ShareOf] for bounds that are not of a rank. PrefillSlots and
// Running of [RankLimits] are shares already. The zero value is all.
type RankShare struct {
	// None: the rank is no candidate. Requests that lack it are refused with
	// GateUnavailable.
	None bool `json:",omitempty"`
	// Parts is into how many parts amounts are divided (tokens, KV blocks, the requests that
	// a rank of unknown capacity takes, probes of its breaker), of which this gate has one;
	// 0 and 1: it has all.
	Parts int `json:",omitempty"`
	// NotFirst: a request that needs more KV blocks than there are does not fit even if the
	// rank is idle: for that, another gate has it.
	NotFirst bool `json:",omitempty"`
}

// shared tells whether others decide about the rank, too. Of a rank without limits of its
// own, as most are, bounds are not looked at: they may not be in the processor's cache.
func (r *Rank) shared() bool { return r.limited && r.bounds.Share.Parts > 1 }

// withheld tells whether this gate has nothing of the rank.
func (r *Rank) withheld() bool { return r.limited && r.bounds.Share.None }

// first tells whether any request fits on the rank while it is idle.
func (r *Rank) first() bool { return !r.limited || !r.bounds.Share.NotFirst }

// part is this gate's part of an amount.
func (r *Rank) part(amount int64) int64 {
	if r.shared() && amount > 0 {
		return amount / int64(r.bounds.Share.Parts)
	}
	return amount
}

// count is this gate's part of a number of requests.
func (r *Rank) count(n int64) int64 {
	if r.shared() && r.first() && n%int64(r.bounds.Share.Parts) > 0 {
		return r.part(n) + 1
	}
	return r.part(n)
}

// probesLimit is the most requests at once while the breaker of r is half-open.
func (r *Rank) probesLimit() int { return int(r.count(int64(r.state.Probes))) }

// lacksShare tells whether this gate has no share of some rank that t might run on.
func (t *Target) lacksShare() bool {
	for l := range numLegs {
		if (l == DecodeLeg || t.shape == Disaggregated) && t.model.pools[t.role(l)].shareless > 0 {
			return true
		}
	}
	return false
}

// shareOf is this gate's share of a bound that is not of a rank.
func shareOf(qs *queues, limit int64, bound string) int64 {
	if qs.share == nil || limit <= 0 {
		return limit
	}
	return max(min(qs.share(limit, bound), limit), 0)
}

// shareLimits is what this gate has of limits.
func shareLimits(qs *queues, l Limits) Limits {
	if qs.share == nil {
		return l
	}
	l.QueueSize = int(shareOf(qs, int64(l.QueueSize), "queue_size"))
	if l.MaxWaitingBytes > 0 {
		l.MaxWaitingBytes = max(shareOf(qs, l.MaxWaitingBytes, "max_waiting_bytes"), 1) // 0 is no bound
	}
	return l
}
