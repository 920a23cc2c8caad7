package dispatch

import (
	"fmt"
	"math/rand/v2"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// attempt runs the legs of one grant.
type attempt struct{ *request }

// planLegs plans the legs of copy number k of the request on the granted ranks.
func (x *attempt) planLegs(k int) (*legBodies, *failure) {
	b, pr := x.emptyBodies(), x.ticket.Prefill.Data().(*fleet.Rank)
	b.pair = engine.Pair{
		Request: x.legBody(), RequestID: x.engineID(k), Attempt: x.attempts,
		Prefill: pr, Decode: x.ticket.Decode.Data().(*fleet.Rank), Rooms: x.d.rooms, NewID: newTransferID,
	}
	plan, err := pr.Dialect().Plan(&b.pair)
	if err != nil {
		return nil, &failure{leg: admission.PrefillLeg, rank: pr, reason: reasonUpstream, local: openai.UpstreamFailed("prefill", err.Error(), nil)}
	}
	b.plan, b.tokens = plan, x.inTokens(pr)
	b.header = x.legHeader(b.header[:0], plan.RequestID)
	return b, nil
}

// inTokens tells whether a rank is sent the request in tokens, and so no body.
func (x *attempt) inTokens(rank *fleet.Rank) bool {
	return x.plan.generate != nil && rank.Dialect().TakesTokens()
}

// emptyBodies is for legs whose bodies are made one after the other.
func (x *attempt) emptyBodies() *legBodies {
	b := legBodiesPool.Get().(*legBodies)
	b.next, x.bodies = x.bodies, b
	b.model = x.plan.model
	return b
}

// legRequest is the request of a leg. It is part of b.
func (x *attempt) legRequest(b *legBodies, leg admission.Leg) *engine.Request {
	r := &b.requests[leg]
	r.Method, r.Path, r.Header, r.Body = x.method(), x.path(), b.header, b.decode
	r.Limits = x.d.legLimits
	r.ID, r.HandOff, r.Leg, r.Legs = b.plan.RequestID, b.handOff, engine.LegDecode, b.plan.Legs
	if b.tokens {
		r.Generate = x.plan.generate
	}
	rank := b.plan.DecodeRank
	switch {
	case b.plan.Legs == nil:
		r.Leg = engine.LegWhole
	case leg == admission.PrefillLeg:
		r.Body, rank, r.HandOff, r.Leg = b.prefill, b.plan.PrefillRank, nil, engine.LegPrefill
	}
	r.Rank = rank
	if b.plan.RankHeader != "" && rank >= 0 {
		h := append(b.rankHeaders[leg][:0], b.header...)
		h = append(h, upstream.Field{Name: b.plan.RankHeader, Value: itoa(rank)})
		b.rankHeaders[leg], r.Header = h, h
	}
	if leg == admission.PrefillLeg {
		// A prefill that streams sends its head at once and then computes; one
		// that waits for a decode rank must not be the one to be blamed for it.
		r.Limits.Header, r.Limits.FirstByte, r.Limits.StreamIdle = 0, 0, 0
	}
	return r
}

// engineID is the request id that an engine is sent: the client's id on the first
// attempt, another one for each further attempt and each copy. Engines match ids by
// prefix, so these differ in their first characters.
func (x *attempt) engineID(k int) string {
	id := x.call.ID
	if k > 0 {
		id = "s" + itoa(k) + "-" + id
	}
	return engine.AttemptID(id, x.attempts)
}

// legHeader is the header that an engine is sent, made from the client's.
func (x *attempt) legHeader(dst upstream.Header, engineID string) upstream.Header {
	contentType := typeJSON
	switch {
	case x.call.NoBody:
		contentType = ""
	case x.call.Form:
		contentType = x.call.Header.Get("Content-Type")
	}
	if contentType != "" {
		dst = append(dst, upstream.Field{Name: "Content-Type", Value: contentType})
	}
	dst = append(dst, upstream.Field{Name: HeaderRequestID, Value: engineID})
	named := connectionNamed(x.call.Header)
	for name, values := range x.call.Header {
		if !passRequest(name) && (name != HeaderDPRank || !x.d.passDPRank) || named != nil && named[name] {
			continue
		}
		for _, v := range values {
			dst = append(dst, upstream.Field{Name: name, Value: v})
		}
	}
	if x.d.passAuthorization {
		v := x.call.Header.Get(headerAuthorization)
		if key := x.call.Header.Get(headerAPIKey); v == "" && key != "" {
			v = "Bearer " + key // the only form that engines accept
		}
		if v != "" {
			dst = append(dst, upstream.Field{Name: headerAuthorization, Value: v})
		}
	}
	return dst
}

// newTransferID is a unique id. A request id is not enough, as clients and gateways repeat
// them.
func newTransferID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// guarded runs a leg on a goroutine of its own. A panic in it fails this request only, as
// a panic in its handler does, and not the process: it becomes the leg's failure, which
// is charged to no engine.
func (x *attempt) guarded(leg admission.Leg, run func() *failure) (f *failure) {
	defer func() {
		if p := recover(); p != nil {
			x.logPanic("the "+leg.String()+" leg", p)
			err := fmt.Errorf("%w: %v", errPanicked, p)
			f = &failure{leg: leg, reason: reasonInternal, err: err, local: openai.Internal(err)}
		}
	}()
	return run()
}
