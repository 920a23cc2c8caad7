package codec

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

func ask(c *coder, a *cluster.Ask) {
	request(c, &a.Request)
	signed(c, 32, &a.Age)
	signed(c, 33, &a.Waited)
	timeLeft(c, 34, &a.HasDeadline, &a.Deadline)
	timeLeft(c, 35, &a.HasClassDeadline, &a.ClassDeadline)
	list(c, 36, &a.Holders[0], holder)
	list(c, 37, &a.Holders[1], holder)
	list(c, 38, &a.Exclude[0], rankAt)
	list(c, 39, &a.Exclude[1], rankAt)
}

// timeLeft is a time that may be missing. One that is zero is written as one nanosecond.
func timeLeft[T ~int64](c *coder, n protowire.Number, has *bool, v *T) {
	if c.writes {
		if !*has {
			return
		}
		x := *v
		if x == 0 {
			x = 1
		}
		signed(c, n, &x)
		return
	}
	if c.num == n {
		signed(c, n, v)
		*has = true
	}
}

// request has the fields below 32 of [cluster.Ask]. Instants mean nothing elsewhere, and
// ranks are named by the keeper's table, beside.
func request(c *coder, r *admission.Request) {
	target(c, 1, &r.Target)
	signed(c, 2, &r.Legs)
	message(c, 3, &r.Hints[0], hint)
	message(c, 4, &r.Hints[1], hint)
	flag(c, 5, &r.Renew)
	signed(c, 6, &r.NoWorkerWaited)
	flag(c, 7, &r.Retry)
	signed(c, 8, &r.PromptTokens)
	signed(c, 9, &r.CachedTokens)
	signed(c, 10, &r.ReserveTokens)
	signed(c, 11, &r.Bytes)
	text(c, 12, &r.Class)
	signed(c, 13, &r.StrictPriority)
	float(c, 14, &r.PriorityJump)
	optional(c, 15, &r.Bypass, bypass)
	instead(c, 16, r)
}

func instead(c *coder, n protowire.Number, r *admission.Request) {
	if c.writes {
		if r.Instead != nil {
			target(c, n, r.Instead)
		}
	} else if c.num == n {
		r.Instead = new(admission.TargetSpec)
		target(c, n, r.Instead)
	}
}

func hint(c *coder, h *admission.RequestHint) {
	flag(c, 1, &h.HasKey)
	random(c, 2, &h.Key)
	signed(c, 3, &h.PromptTokens)
	signed(c, 4, &h.Sharing)
	flag(c, 5, &h.HasPrefix)
	random(c, 6, &h.PrefixKey)
}

func bypass(c *coder, b *admission.BypassRule) {
	flag(c, 1, &b.Short)
	maybe(c, 2, &b.PrefillBusy)
	maybe(c, 3, &b.DecodeBusy)
	signed(c, 4, &b.Blocks)
}

// maybe is a number that may be missing.
func maybe(c *coder, n protowire.Number, v **float64) {
	optional(c, n, v, func(c *coder, v *float64) { float(c, 1, v) })
}

func holder(c *coder, h *cluster.Holder) {
	unsigned(c, 1, &h.Rank.Number)
	unsigned(c, 2, &h.Rank.Generation)
	signed(c, 3, &h.Tokens)
}

func hintsOf(c *coder, h *cluster.HintsOf) {
	message(c, 1, &h.Hints[0], hint)
	message(c, 2, &h.Hints[1], hint)
	list(c, 3, &h.Holders[0], holder)
	list(c, 4, &h.Holders[1], holder)
}

func queued(c *coder, q *cluster.Queued) {
	signed(c, 1, &q.Left)
	unsigned(c, 2, &q.Reason)
	text(c, 3, &q.Kind)
	signed(c, 4, &q.Limit)
	text(c, 5, &q.Class)
	unsigned(c, 6, &q.Lacked)
	flag(c, 7, &q.Slots)
}

func grant(c *coder, g *cluster.Grant) {
	text(c, 1, &g.Class)
	signed(c, 2, &g.Waited)
	flag(c, 3, &g.Queued)
	unsigned(c, 4, &g.Lacked)
	signed(c, 5, &g.Choice.Best)
	signed(c, 6, &g.Choice.Held)
	unsigned(c, 7, &g.Choice.Leg)
	unsigned(c, 8, &g.Choice.Why)
	signed(c, 9, &g.Tokens)
	signed(c, 10, &g.Blocks)
}

func refusedBody(c *coder, r *cluster.Refused) {
	message(c, 1, &r.Refusal, refusal)
	text(c, 2, &r.Class)
	signed(c, 3, &r.Waited)
}

func refusal(c *coder, r *admission.Refusal) {
	unsigned(c, 1, &r.Reason)
	unsigned(c, 2, &r.Resource)
	text(c, 3, &r.Class)
	text(c, 4, &r.LimitKind)
	signed(c, 5, &r.Limit)
	signed(c, 6, &r.Current)
	flag(c, 7, &r.PrefillSlots)
	signed(c, 8, &r.Depth)
	signed(c, 9, &r.Waited)
	flag(c, 10, &r.Predicted)
	signed(c, 11, &r.Estimate)
	signed(c, 12, &r.RetryAfter)
}

func holdOf(c *coder, h *cluster.HoldOf) {
	optional(c, 1, &h.Ask, ask)
	flag(c, 2, &h.HoldsPrefill)
	flag(c, 3, &h.HoldsDecode)
	flag(c, 4, &h.DecodeActive)
	flag(c, 5, &h.FirstToken)
	signed(c, 6, &h.Grown)
	signed(c, 7, &h.Age)
	text(c, 8, &h.Class)
	signed(c, 9, &h.Tokens)
	signed(c, 10, &h.Blocks)
}
