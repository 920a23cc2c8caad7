package dispatch

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// cacheMetrics compare, over the requests that were answered, what ranks were believed to
// have cached with what was made of it: a low hit rate is then known to be the workload's
// (best is low), that of the choice (chosen is below best) or of the index (reported is below
// believed).
type cacheMetrics struct {
	tokens  *prometheus.CounterVec
	choices *prometheus.CounterVec
	// byRole has the children of the roles, made when there is something to tell.
	byRole [admission.RoleEncode + 1]atomic.Pointer[cacheCounters]
}

// cacheCounters are the children of one role.
type cacheCounters struct {
	prompt, best, chosen, believed, reported prometheus.Counter
	why                                      map[admission.ChoiceReason]prometheus.Counter
}

func (m *cacheMetrics) init(reg prometheus.Registerer) {
	m.tokens = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_cache_tokens_total",
		Help: "Prompt tokens of answered requests whose prompts were looked up in the index of KV caches, by the role of the worker that prefilled: prompt (all of them); best (some worker that the request could use was believed to have them cached); chosen (the chosen worker was); reported (its engine reports that it reused them; not of requests for several prompts or samples); believed (as chosen, of the requests that count in reported, to compare with).",
	}, []string{"role", "tokens"})
	m.choices = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_cache_choices_total",
		Help: "Answered requests whose prompts were looked up, by why their worker was chosen: holder (none has more of the prompt cached), load (one with room has more, and more work too), room (the one that has more had no room), none (no worker has any of it).",
	}, []string{"role", "why"})
	reg.MustRegister(m.tokens, m.choices)
}

func (m *cacheMetrics) of(role admission.Role) *cacheCounters {
	at := &m.byRole[role]
	c := at.Load()
	if c == nil {
		name := role.String()
		tokens := func(of string) prometheus.Counter { return m.tokens.WithLabelValues(name, of) }
		c = &cacheCounters{prompt: tokens("prompt"), best: tokens("best"), chosen: tokens("chosen"), believed: tokens("believed"), reported: tokens("reported"),
			why: map[admission.ChoiceReason]prometheus.Counter{}}
		for _, why := range [...]admission.ChoiceReason{admission.ChosenWithoutHolder, admission.ChosenAsHolder, admission.ChosenByLoad, admission.ChosenByRoom} {
			c.why[why] = m.choices.WithLabelValues(name, why.String())
		}
		at.Store(c)
	}
	return c
}

// noteCache records how the rank of the last attempt was chosen by what is cached, and learns
// from what its engine reports.
func (x *exchange) noteCache() {
	rec := &x.call.Record
	x.noteTokens()
	if x.attempts == 0 || x.plan.ungated != nil {
		return
	}
	ch := x.ticket.Choice()
	rank := x.ticket.Decode
	if ch.Leg == admission.PrefillLeg {
		rank = x.ticket.Prefill
	}
	reported := x.reportedCached(ch.Leg, rank)
	// No more of a prompt is found than there is. Some engines add up over samples what they
	// count once in the prompt.
	reported = min(reported, rec.PromptTokens*int64(max(x.plan.fan.Copies, 1)))
	if x.keys != nil {
		rec.Cache = CacheRecord{Why: ch.Why.String(), Best: ch.Best, Chosen: ch.Held, Reported: reported}
	}
	if rank == nil || rec.Reason != reasonOK {
		return
	}
	on := rank.Data().(*fleet.Rank)
	x.noteComputed(on, ch.Leg, reported)
	if x.keys == nil {
		return
	}
	c := x.d.metrics.caches.of(on.Worker().Role())
	c.prompt.Add(float64(x.keys.all))
	c.best.Add(float64(ch.Best))
	c.chosen.Add(float64(ch.Held))
	c.why[ch.Why].Inc()
	// What is reported of several prompts or samples is not of what was looked up: of the
	// first prompt, and of what was there before its first sample.
	if rec.Cache.Reported >= 0 && x.ticket.Legs <= 1 {
		c.believed.Add(float64(ch.Held))
		c.reported.Add(float64(rec.Cache.Reported))
		x.keys.correct(on, ch.Held, rec.Cache.Reported)
	}
}

// noteComputed tells the rank that prefilled what it computed of the prompt, of which its
// events must have told.
func (x *exchange) noteComputed(on *fleet.Rank, leg admission.Leg, cached int64) {
	rec := &x.call.Record
	if cached < 0 && leg == admission.DecodeLeg {
		cached = 0 // some engines leave out that it was none
	}
	if cached < 0 || rec.Usage.PromptTokens <= 0 || x.ticket.Legs > 1 || x.call.Passing {
		return // it is not known: the answer of a prefill leg may not have come yet
	}
	on.NoteComputed(x.call.Arrived.Add(x.began), rec.PromptTokens, cached)
}

// reportedCached is how much of the prompt the engine of the leg that prefills reports that
// it had cached; -1: it did not. Many streams have no token counts at all.
func (x *exchange) reportedCached(leg admission.Leg, rank *admission.Rank) int64 {
	u := x.call.Record.Usage
	switch {
	case leg == admission.PrefillLeg:
		return x.cachedTold - 1
	case u == (openai.Usage{}):
		return -1
	case u.CachedTokens < 0 && u.PromptTokens > 0 && rank != nil && rank.Data().(*fleet.Rank).TellsCached():
		return 0
	}
	return u.CachedTokens
}

// noteTokens records how long the prompt and the answer are.
func (x *exchange) noteTokens() {
	rec, u := &x.call.Record, x.call.Record.Usage
	if x.call.Passing {
		return
	}
	rec.PromptTokens, rec.OutputTokens = u.PromptTokens, u.CompletionTokens
	if rec.OutputTokens <= 0 {
		rec.OutputTokens = x.output // by events, of which some have no token
	}
	if rec.PromptTokens <= 0 {
		rec.PromptTokens = x.estimate
	}
}

// correct tells the index what an answer says of a rank's cache. Where what the engine tells
// in events was gone by, there is nothing to correct.
func (k *promptKeys) correct(rank *fleet.Rank, believed, reported int64) {
	if rank.Approx() != nil && (len(k.exact) == 0 || rank.Exact() == nil || rank.ExactMisses()) {
		k.c.index.Correct(rank.Approx(), believed, reported)
	}
}
