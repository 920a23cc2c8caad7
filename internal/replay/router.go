package replay

import (
	"fmt"
	"math"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/kv"
)

const model = "replay"

// start is the gate's time when the replay begins: to it zero is no time.
const start = admission.Instant(time.Hour)

var inUse = admission.RankState{Healthy: true}

// router is one router: its gate, and what it knows of caches.
type router struct {
	sim    *sim
	number int
	core   *admission.Core
	target *admission.Target
	ranks  []*admission.Rank // of the workers that prefill

	own     *approximateFeed // nil: it has none
	heat    *kv.Heat
	index   *feed // where it looks prompts up; nil: nowhere
	calls   map[*admission.Ticket]*call
	planned time.Duration // when it is called for the next deadline
	out     []*admission.Ticket
	asked   []*admission.Ticket // memory
}

func newRouter(s *sim, number int) (*router, error) {
	o := s.opts
	newPolicy, err := s.arm.policies(o, o.Random+uint64(number)*0x9e37)
	if err != nil {
		return nil, err
	}
	r := &router{sim: s, number: number, calls: map[*admission.Ticket]*call{}, planned: math.MaxInt64}
	r.core = admission.NewCore(admission.Options{
		Limits: s.arm.limits(o), NewPolicy: newPolicy, QueueMode: s.arm.order, HealthInterval: time.Second,
	})
	role, shape := admission.RolePrefill, admission.Disaggregated
	if o.Aggregated {
		role, shape = admission.RoleRegular, admission.Aggregated
	}
	var add []admission.Change
	for _, e := range s.prefills {
		spec := admission.RankSpec{ID: e.name, Worker: e.name, Role: role, Models: []string{model}, State: inUse, Data: e}
		if o.Aggregated && s.arm.gate {
			spec.Limits.Running = int64(o.Slots)
		}
		rank := admission.NewRank(spec)
		r.ranks = append(r.ranks, rank)
		add = append(add, admission.Change{Op: admission.AddRank, Rank: rank})
	}
	for _, e := range s.decodes {
		add = append(add, admission.Change{Op: admission.AddRank, Rank: admission.NewRank(admission.RankSpec{
			ID: e.name, Worker: e.name, Role: admission.RoleDecode, Models: []string{model}, State: inUse, Data: e,
		})})
	}
	r.core.Apply(r.now(), add, &r.out)
	r.target = r.core.Resolve(admission.TargetSpec{Model: model, Shape: shape})
	switch s.arm.index {
	case indexExact:
		r.index, r.heat = &s.exact.feed, new(kv.Heat)
	case indexApproximate:
		r.own = newApproximateFeed(s)
		r.index, r.heat = &r.own.feed, new(kv.Heat)
	}
	return r, nil
}

func (r *router) now() admission.Instant { return start.Add(r.sim.now) }

// leg is the one that computes the prompt.
func (r *router) leg() admission.Leg {
	if r.sim.opts.Aggregated {
		return admission.DecodeLeg
	}
	return admission.PrefillLeg
}

// arrive brings a request to the gate.
func (r *router) arrive(c *call) {
	t := &c.ticket
	t.Target, t.Legs = r.target, 1
	t.PromptTokens = c.request.Prompt
	h := &t.Hints[r.leg()]
	h.PromptTokens = c.request.Prompt
	if k, ok := sessionKey(c.request); ok {
		h.Key, h.HasKey = k, true
	}
	if r.index != nil {
		c.Match(t, &t.Hints)
		t.CachedTokens = h.Holders[0].Tokens
		t.Matcher = c
	}
	r.calls[t] = c
	r.core.Arrive(r.now(), t, &r.out)
	switch {
	case t.Granted():
		r.granted(c)
	case !t.Queued():
		r.refused(c)
	}
	r.decided()
}

// sessionTokens are the first tokens of a prompt that stand for the session it is of: most
// traces do not tell it.
const sessionTokens = 1024

// sessionKey is the key of the session of a request.
func sessionKey(q *Request) (key uint64, ok bool) {
	if len(q.Blocks) == 0 {
		return 0, false
	}
	n := max((sessionTokens+q.BlockTokens-1)/q.BlockTokens, 1)
	return uint64(q.Blocks[min(int(n), len(q.Blocks))-1]), true
}

// Match looks up which workers hold the prompt of the request. It is that of
// admission.Matcher.
func (c *call) Match(t *admission.Ticket, hints *[2]admission.Hint) (changed bool) {
	r := c.router
	h := &hints[r.leg()]
	var holders [admission.MaxHolders]admission.Holder
	deepest := 0
	for i, f := range r.index.match(c.request.Blocks) {
		deepest = max(deepest, f.Blocks)
		holders[i] = admission.Holder{Rank: r.ranks[f.Rank.Data().(int)], Tokens: c.request.tokens(f.Blocks)}
	}
	if deepest > 0 && !c.counted {
		c.counted = true
		h.Sharing = int32(r.heat.Touch(c.request.Blocks[deepest-1], r.sim.now) + 0.5)
	}
	changed = holders != h.Holders
	h.Holders = holders
	return changed
}

// refresh renews the hints that the gate wants to be renewed.
func (r *router) refresh() {
	for {
		asked := r.core.Asked()
		if len(asked) == 0 {
			return
		}
		r.asked = append(r.asked[:0], asked...)
		for _, t := range r.asked {
			hints := t.Hints
			if r.calls[t].Match(t, &hints) {
				r.core.Refresh(r.now(), t, &hints, &r.out)
			}
		}
	}
}

// decided acts on what the last step decided, and sees to the next deadline.
func (r *router) decided() {
	for r.refresh(); len(r.out) > 0; r.refresh() {
		out := r.out
		r.out = nil
		for _, t := range out {
			c := r.calls[t]
			if t.Granted() {
				r.granted(c)
			} else {
				r.refused(c)
			}
		}
		if r.out == nil {
			r.out = out[:0]
		}
	}
	if d := r.core.NextDeadline(); d != math.MaxInt64 {
		if at := max(d.Sub(start), r.sim.now); at < r.planned {
			r.planned = at
			r.sim.at(at, event{kind: deadline, router: r})
		}
	}
}

// advance tells the gate the time.
func (r *router) advance(at time.Duration) {
	if at != r.planned {
		return // an earlier one was planned later
	}
	r.planned = math.MaxInt64
	r.core.Advance(r.now(), &r.out)
	r.decided()
}

func (r *router) granted(c *call) {
	t := &c.ticket
	rank := t.Prefill
	if rank == nil {
		rank = t.Decode
	} else {
		c.decode = t.Decode.Data().(*engine)
	}
	c.prefill = rank.Data().(*engine)
	c.believed = t.Hints[r.leg()].Cached(rank)
	if r.own != nil {
		r.own.sent(c.prefill.number, c.request.Blocks)
	}
	r.sim.start(c)
}

func (r *router) refused(c *call) {
	c.refused = true
	c.done = r.sim.now
	delete(r.calls, &c.ticket)
}

// firstToken ends the prefill tokens of a request.
func (r *router) firstToken(c *call) {
	r.core.FirstToken(r.now(), &c.ticket, &r.out)
	r.decided()
}

// handOver ends the prefill leg of a request whose decode begins.
func (r *router) handOver(c *call) {
	r.core.StartDecode(&c.ticket)
	r.core.EndPrefill(r.now(), &c.ticket, &r.out)
	r.decided()
}

// finish ends a request.
func (r *router) finish(c *call) {
	r.core.Release(r.now(), &c.ticket, &r.out)
	delete(r.calls, &c.ticket)
	r.decided()
}

// noBound stands for no bound of a queue.
const noBound = math.MaxInt32

func decodeName(i int) string { return fmt.Sprintf("decode-%d", i) }
