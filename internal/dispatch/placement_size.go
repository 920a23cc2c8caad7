package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
)

// measure counts the tokens of the prompt where its ids are known, else it estimates them.
func (x *placement) measure() *failure {
	if ids := x.plan.prompts(); ids != nil {
		x.prompt = tokens.Counted(lengths(ids), len(ids))
	} else {
		x.prompt = tokens.Measure(x.measuredBody())
	}
	x.estimate = x.d.estimator.Estimate(x.ticket.Target.Model(), &x.prompt)
	return nil
}

// classify tells the gate what the request asks beside ranks: its class, how long its
// client would wait, and what it will hold.
func (x *placement) classify() *failure {
	t, p := &x.ticket, x.measuredBody()
	pool := t.Target.Model()
	if !x.call.Passing {
		x.extensions = readExtensions(p)
	}
	c, bad := x.d.classes.Classify(&classify.Facts{Header: x.call.Header, Peeked: p, Pool: pool, PromptTokens: x.estimate})
	if bad != nil {
		return &failure{reason: reasonBadRequest, local: bad}
	}
	t.Class = c.Class
	t.StrictPriority, t.PriorityJump = c.StrictPriority, c.PriorityJump
	if c.HasMaxQueue {
		t.Deadline = x.waitUntil(c.MaxQueue)
	}
	if c.ClassDeadline > 0 {
		t.ClassDeadline = x.waitUntil(c.ClassDeadline)
	}
	if t.Legs = p.Samples(); x.plan.generate != nil {
		t.Legs = len(x.plan.generate.Prompts) * x.plan.generate.Samples
	}
	t.PromptTokens = x.promptTokens()
	t.ReserveTokens = x.reserve(p, pool)
	t.Bytes = int64(len(p.Body))
	if x.d.cfg.Admission.TrackOutputBlocks {
		x.expected = p.MaxTokens
	}
	return nil
}

// waitUntil is when a wait of d ends that began before the request's text became tokens.
func (x *placement) waitUntil(d time.Duration) admission.Instant {
	return max(x.d.clock.Now().Add(d-x.call.Record.Encoded), 1)
}

// lengths is how many tokens there are in all prompts.
func lengths(prompts [][]uint32) (n int64) {
	for _, ids := range prompts {
		n += int64(len(ids))
	}
	return n
}

// promptTokens estimates the tokens of the prompts of all calls together.
func (x *placement) promptTokens() int64 { return x.estimate * int64(max(x.plan.fan.Copies, 1)) }

// reserve returns the tokens of output to find room for in each leg.
func (x *placement) reserve(p *openai.Peeked, pool string) int64 {
	a := &x.d.cfg.Admission
	if !x.d.reservesAuto() {
		return int64(a.ReserveOutputTokens)
	}
	if x.call.Passing { // answers with no tokens
		return 0
	}
	n := min(x.d.outputs.Expect(pool), int64(a.ReserveOutputCap))
	if p.MaxTokens >= 0 {
		n = min(n, p.MaxTokens)
	}
	return n
}

// measuredBody is the body whose prompt is best known.
func (x *placement) measuredBody() *openai.Peeked {
	if x.plan.translated != nil {
		return x.plan.translated.peeked
	}
	return x.call.Peeked
}
