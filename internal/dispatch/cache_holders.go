package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/mono"
)

// cacheSearch is the memory of a search for the ranks that hold the beginning of a prompt,
// and what the last one found.
type cacheSearch struct {
	target *admission.Target
	leg    admission.Leg
	exact  bool // the present pass is over what engines tell
	ids    bool // the prompt is of token ids: what engines tell of them is asked for

	mayUse func(*kv.Rank) bool
	found  [kv.MaxHolders]kv.Holder
	// at is the target that was searched for last, version that of the index then.
	at      *admission.Target
	version uint64

	// The longest match of the last search: its tokens, and the key of its last block.
	most    int64
	deepest kv.Key
	// sharing is Hint.Sharing, once it is known: a request counts once.
	sharing int32
	counted bool
}

// prefillsOn is the leg on which a request for the target computes its prompt, and the role
// of the ranks for that leg.
func prefillsOn(t *admission.Target) (admission.Leg, admission.Role) {
	switch t.Shape() {
	case admission.Disaggregated:
		return admission.PrefillLeg, admission.RolePrefill
	case admission.Bypass:
		return admission.DecodeLeg, admission.RoleDecode
	}
	return admission.DecodeLeg, admission.RoleRegular
}

// hint tells the policy of the leg that prefills which ranks that t may use hold the most of
// the prompt. It returns the leg and what the best of them holds, in tokens.
func (k *promptKeys) hint(t *admission.Target, hints *[2]admission.Hint) (leg admission.Leg, best int64) {
	leg, role := prefillsOn(t)
	h, s := &hints[leg], &k.search
	s.at, s.version = t, k.c.index.Version()
	h.PromptTokens = k.all
	h.Holders = [admission.MaxHolders]admission.Holder{}
	s.target, s.leg, s.ids = t, leg, k.asIDs && len(k.exact) > 0
	s.exact, s.most = false, 0
	k.merge(h, role, &k.sent)
	s.exact = true
	for i := range k.exact {
		k.merge(h, role, &k.exact[i])
	}
	if s.most > 0 && !s.counted {
		s.counted = true
		s.sharing = int32(k.c.heat.Touch(s.deepest, time.Duration(mono.Now())) + 0.5)
	}
	h.Sharing = s.sharing
	return leg, h.Holders[0].Tokens
}

// merge adds the ranks that hold the beginning of a chain to a hint, of each rank the most.
func (k *promptKeys) merge(h *admission.Hint, role admission.Role, c *keyChain) {
	for _, f := range k.c.index.Match(c.keys(), kv.Group(role), k.search.mayUse, k.search.found[:0]) {
		rank := f.Rank.Data().(*fleet.Rank).Admission()
		if rank != nil {
			tokens := k.tokensIn(c, f.Blocks)
			if s := &k.search; tokens > s.most {
				s.most, s.deepest = tokens, c.keys()[f.Blocks-1]
			}
			addHolder(&h.Holders, admission.Holder{Rank: rank, Tokens: tokens})
		}
	}
}

// addHolder puts n into the list, which has the most first and each rank once.
func addHolder(list *[admission.MaxHolders]admission.Holder, n admission.Holder) {
	at := len(list) - 1 // whose place is taken: that of the rank itself, a free one, or the last
	for i := range list {
		if list[i].Rank == nil || list[i].Rank == n.Rank {
			at = i
			break
		}
	}
	if list[at].Rank != nil && list[at].Tokens >= n.Tokens {
		return
	}
	for ; at > 0 && list[at-1].Tokens < n.Tokens; at-- {
		list[at] = list[at-1]
	}
	list[at] = n
}

// tokensIn is how many tokens of the prompt, over all its copies, its first blocks are.
func (k *promptKeys) tokensIn(c *keyChain, blocks int) int64 {
	if c.length <= 0 {
		return 0
	}
	part := min(float64(blocks)*float64(c.size)/float64(c.length), 1)
	return int64(part * float64(k.tokens))
}

// eligible tells whether a rank of the index may be used. Of a prompt of token ids, what an
// engine tells of its cache counts, and not what it was sent, unless it has told only a part.
func (s *cacheSearch) eligible(r *kv.Rank) bool {
	rank := r.Data().(*fleet.Rank)
	switch exact := rank.Exact(); {
	case s.exact && r != exact, !s.exact && (r != rank.Approx() || s.ids && exact != nil && !rank.ExactMisses()):
		return false
	}
	return s.target == nil || s.target.MayUse(s.leg, rank.Admission())
}

// again renews the hints of a ticket that goes back to the gate.
func (k *promptKeys) again(t *admission.Ticket) {
	if k != nil {
		k.hint(t.Target, &t.Hints)
	}
}

// Match is that of admission.Matcher.
func (k *promptKeys) Match(t *admission.Ticket, hints *[2]admission.Hint) (changed bool) {
	target := t.Matched()
	if target == k.search.at && k.c.index.Version() == k.search.version {
		return false
	}
	leg, _ := prefillsOn(target)
	old := hints[leg].Holders
	k.hint(target, hints)
	return old != hints[leg].Holders
}
