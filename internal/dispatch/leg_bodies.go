package dispatch

import (
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// legBodies are what the two legs of one call are sent: the client's bytes with
// the fields by which the legs find each other. They are the same segments
// unless the workers are scheduled by data-parallel rank. They are given back
// with the client's body.
type legBodies struct {
	prefill, decode [][]byte
	header          upstream.Header
	rankHeaders     [2]upstream.Header // by leg: header with the rank
	requests        [2]engine.Request  // by leg
	pair            engine.Pair
	plan            engine.Plan
	handOff         []byte // to decode; nil: it computes the prompt itself
	tokens          bool   // the request goes in tokens: the legs have no bodies
	model           string // to name in place of the client's alias; empty: what it names
	splicers        [2]openai.Splicer
	next            *legBodies // of the same request
}

var legBodiesPool = sync.Pool{New: func() any { return new(legBodies) }}

// buildBoth makes the bodies of both legs. edit changes each before the dialect does; it
// may be nil.
func (b *legBodies) buildBoth(edit func(*openai.Splicer)) {
	b.buildPrefill(edit)
	if b.plan.SameBody {
		b.decode = b.prefill
		return
	}
	b.buildDecode(edit, nil)
}

func (b *legBodies) buildPrefill(edit func(*openai.Splicer)) {
	if b.tokens {
		return
	}
	s := b.splicer(admission.PrefillLeg, edit)
	b.plan.Legs.EditPrefill(s)
	b.prefill, _ = s.Segments()
}

func (b *legBodies) buildDecode(edit func(*openai.Splicer), handOff []byte) {
	b.handOff = handOff
	if b.tokens {
		return
	}
	s := b.splicer(admission.DecodeLeg, edit)
	b.plan.Legs.EditDecode(s, handOff)
	b.decode, _ = s.Segments()
}

// begin makes s begin a body out of p.
func (b *legBodies) begin(s *openai.Splicer, p *openai.Peeked) {
	s.Reset(p)
	if b.model != "" {
		s.SetString(openai.FieldModel, b.model)
	}
}

func (b *legBodies) splicer(leg admission.Leg, edit func(*openai.Splicer)) *openai.Splicer {
	s := &b.splicers[leg]
	b.begin(s, b.pair.Request)
	if edit != nil {
		edit(s)
	}
	return s
}
