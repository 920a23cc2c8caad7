package dispatch

import (
	"net/http"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
)

// CacheMatch is which ranks are believed to hold how much of a prompt. It has nothing of the
// prompt itself.
type CacheMatch struct {
	Model   string `json:"model"`
	Adapter string `json:"adapter,omitempty"`
	// LookedUp: requests are placed by this. Else no policy asks what is cached, and nothing
	// is recorded.
	LookedUp bool `json:"looked_up"`
	// PromptTokens are estimated, unless the prompt is of token ids (TokenIDs), or its text
	// becomes such here (Counted).
	PromptTokens int64 `json:"prompt_tokens"`
	TokenIDs     bool  `json:"token_ids"`
	Counted      bool  `json:"counted,omitempty"`
	// Keys is how many whole blocks the prompt has, of BlockSize bytes, or token ids.
	Keys      int   `json:"keys"`
	BlockSize int64 `json:"block_size"`

	Legs []LegMatch `json:"legs"`
}

// LegMatch is the part of one leg: the ranks that hold the most, those that the request may
// use among them.
type LegMatch struct {
	Leg   string      `json:"leg"`
	Role  string      `json:"role"`
	Ranks []RankMatch `json:"ranks"`
}

// RankMatch is what one rank is believed to hold.
type RankMatch struct {
	ID       string `json:"id"`
	WorkerID string `json:"worker_id"`
	Tokens   int64  `json:"tokens"`
	Blocks   int    `json:"blocks"`
	// Exact: its engine's events tell, and the blocks are the engine's; else it was sent them.
	Exact bool `json:"exact"`
	// Eligible: the request may use it, whatever its health and room are.
	Eligible bool `json:"eligible"`
}

// MatchCaches looks up a request without placing it. header has the client's pins and labels.
// If the request could not be placed it returns the error for the client, and a reason of a
// closed set.
func (d *Dispatcher) MatchCaches(p *openai.Peeked, header http.Header) (_ *CacheMatch, bad *openai.Error, reason string) {
	call := &Call{Route: p.Route, Peeked: p, Header: header, Arrived: time.Now()}
	x := &request{d: &d.services, call: call, plan: plan{pair: d.cfg.Fleet.PDDisaggregation}}
	defer x.ticket.Close()
	place := placement{request: x}
	for _, step := range [...]func(*placement) *failure{
		(*placement).planSamples, (*placement).resolveModel, (*placement).findText, (*placement).readPins, (*placement).readLabels, (*placement).resolveTarget,
		(*placement).readOwnTokens, (*placement).measure,
	} {
		if f := step(&place); f != nil {
			if f.local == nil {
				return nil, openai.Internal(f), reasonInternal
			}
			return nil, f.local, f.reason
		}
	}
	t := x.ticket.Target
	m := &CacheMatch{Model: t.Model(), Adapter: place.spec.Adapter, PromptTokens: place.promptTokens(), Legs: []LegMatch{}}
	if d.caches == nil || !d.caches.choosing {
		return m, nil, reasonOK
	}
	m.LookedUp = true
	k := d.caches.hashPrompt(p, t.Model(), place.spec.Adapter, m.PromptTokens, x.plan.firstPrompt())
	if k == nil {
		return m, nil, reasonOK
	}
	defer k.release()
	m.Keys, m.BlockSize = len(k.sent.keys()), k.sent.size
	m.TokenIDs = p.PromptKind.TokenIDs()
	m.Counted = !m.TokenIDs && x.plan.prompts() != nil
	leg, role := prefillsOn(t)
	m.Legs = append(m.Legs, k.matchLeg(t, leg, role))
	if t.Shape() == admission.Disaggregated {
		m.Legs = append(m.Legs, k.matchLeg(t, admission.DecodeLeg, admission.RoleDecode))
	}
	return m, nil, reasonOK
}

// matchLeg lists the ranks that hold the most, and of those that t may use on the leg.
func (k *promptKeys) matchLeg(t *admission.Target, leg admission.Leg, role admission.Role) LegMatch {
	m := LegMatch{Leg: leg.String(), Role: role.String(), Ranks: []RankMatch{}}
	s := &k.search
	s.leg, s.ids = leg, k.asIDs && len(k.exact) > 0
	seen := map[*kv.Rank]bool{}
	for _, of := range [...]*admission.Target{t, nil} {
		s.target = of
		chain := func(exact bool, c *keyChain) {
			s.exact = exact
			for _, h := range k.c.index.Match(c.keys(), kv.Group(role), s.mayUse, s.found[:0]) {
				if seen[h.Rank] {
					continue
				}
				seen[h.Rank] = true
				rank := h.Rank.Data().(*fleet.Rank)
				m.Ranks = append(m.Ranks, RankMatch{
					ID: rank.ID(), WorkerID: rank.Worker().ID(), Tokens: k.tokensIn(c, h.Blocks), Blocks: h.Blocks,
					Exact: exact, Eligible: of != nil,
				})
			}
		}
		chain(false, &k.sent)
		for i := range k.exact {
			chain(true, &k.exact[i])
		}
	}
	return m
}
