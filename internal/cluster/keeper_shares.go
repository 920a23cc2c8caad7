package cluster

import (
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// sharesInForce are the lists by which members divide limits when there is no keeper. A new
// list is proposed, and committed when all members of both have agreed; until then no other
// is proposed, so that what a member obeys is never more than one step away.
type sharesInForce struct {
	Shares
	counter uint64
	dirty   bool // the members, or the settings, may have changed, or one agreed
}

// restoreShares goes on with the latest shares that members obey.
func (k *keeper) restoreShares(reports []*seat) {
	for _, s := range reports {
		if r := &s.report.Shares; r.any() && r.Version >= k.shares.Version {
			k.shares.Shares = *r
		}
	}
}

// settleShares commits what all have agreed to, and proposes a new list when the members or
// the settings have changed.
func (k *keeper) settleShares() {
	x := &k.shares
	if !x.dirty || k.port == nil || k.stopped {
		return
	}
	x.dirty = false
	if x.Proposed != nil && k.agreed() {
		x.Committed, x.CommittedSettings = x.Proposed, x.ProposedSettings
		x.Proposed, x.ProposedSettings = nil, nil
		k.tellShares()
	}
	if x.Proposed != nil {
		return
	}
	var list []Incarnation
	for _, s := range k.order {
		if s.listed {
			list = append(list, s.Incarnation)
		}
	}
	if len(list) == 0 {
		return
	}
	settings := k.settings.settings
	if slices.Equal(list, x.Committed) && x.CommittedSettings != nil && reflect.DeepEqual(*x.CommittedSettings, settings) {
		return
	}
	x.Proposed, x.ProposedSettings = list, &settings
	k.tellShares()
}

// tellShares tells all members.
func (k *keeper) tellShares() {
	x := &k.shares
	x.counter++
	x.Version = k.epoch.Number<<32 | x.counter&(1<<32-1)
	k.claims.dirty = true
	for _, s := range k.order {
		k.tellSharesTo(s)
	}
}

func (k *keeper) tellSharesTo(s *seat) {
	if s.reported && k.shares.any() {
		shares := k.shares.Shares
		k.m.toMember(s.Incarnation, Item{Kind: ItemShares, Body: &shares})
	}
}

// agreed tells whether all members that are concerned obey what is proposed.
func (k *keeper) agreed() bool {
	for _, list := range k.shares.lists() {
		for _, x := range list {
			if s := k.seats[x]; s != nil && s.sharesTaken < k.shares.Version {
				return false
			}
		}
	}
	return true
}

// shareOfSeat is what a member may book of a rank on its own, at most.
func (k *keeper) shareOfSeat(s *seat, spec *admission.RankSpec) rankShare {
	if s.fallback == FallbackRefuse {
		return rankShare{None: true}
	}
	x := Shares{Committed: k.shares.Committed, CommittedSettings: k.shares.CommittedSettings}
	if x.Committed == nil {
		x = Shares{Proposed: k.shares.Proposed, ProposedSettings: k.shares.ProposedSettings}
	}
	return x.rank(spec, s.Incarnation)
}

// claims are what is set aside for members that are lost: what they may book on their own
// beyond what they are known to hold.
type claims struct {
	dirty bool
	told  map[string]asideOn // by rank id
	each  []claim
}

type claim struct {
	seat *seat
	rank string
	load Load
}

// asideOn is what is set aside on a rank.
type asideOn struct {
	ref admission.RankRef
	admission.Aside
}

// settleClaims sets aside what lost members may book.
func (k *keeper) settleClaims() {
	if !k.claims.dirty || k.port == nil {
		return
	}
	k.claims.dirty = false
	wanted := map[string]asideOn{}
	k.claims.each = nil
	for _, s := range k.order {
		if (s.state == seatLost || s.unsure) && !k.m.o.withoutClaims {
			k.claim(s, wanted)
		}
	}
	var changes []asideOn
	for _, id := range slices.Sorted(maps.Keys(k.claims.told)) {
		if old := k.claims.told[id]; wanted[id].ref != old.ref {
			changes = append(changes, asideOn{ref: old.ref})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if wanted[id] != k.claims.told[id] {
			changes = append(changes, wanted[id])
		}
	}
	k.claims.told = wanted
	k.setAside(changes)
	if len(changes) > 0 && len(k.own) > 0 {
		// What was granted to this process and is not delivered yet, because nobody else knows
		// of it, does not run: it is no reason to have more than the limit. It waits again.
		k.m.member.report()
	}
}

// claim adds what a lost member may book beyond what it holds.
func (k *keeper) claim(s *seat, wanted map[string]asideOn) {
	held := k.heldBy(s, func(*kept) bool { return true })
	settings := k.shares.settings()
	for _, id := range slices.Sorted(maps.Keys(k.table.byID)) {
		r := k.table.byID[id]
		share := k.shareOfSeat(s, &r.spec)
		if share.None {
			continue
		}
		ref := admission.RankRef{ID: id, Generation: r.at.Generation}
		h := held[ref]
		x := wanted[id]
		x.ref = ref
		load := Load{}
		prefills := r.spec.Role == admission.RolePrefill
		if share.Slots >= 0 && prefills {
			load.Slots = int(max(share.Slots-int64(h.Slots), 0))
			load.PrefillLegs = load.Slots
		}
		if share.Calls >= 0 {
			if prefills {
				load.PrefillLegs = max(load.PrefillLegs, int(max(share.Calls-int64(h.PrefillLegs), 0)))
			} else {
				load.Active = int(max(share.Calls-int64(h.Pending+h.Active), 0))
			}
		}
		tokens, blocks := mostAmounts(settings, &r.spec)
		if r.spec.Role != admission.RoleDecode {
			load.Tokens = max(tokens/int64(share.Parts)-h.Tokens, 0)
		}
		if !prefills {
			load.ActiveBlocks = max(blocks/int64(share.Parts)-h.PendingBlocks-h.ActiveBlocks, 0)
		}
		if load == (Load{}) {
			continue
		}
		x.Slots += load.Slots
		x.Calls += load.PrefillLegs + load.Active
		x.Tokens += load.Tokens
		x.Blocks += load.ActiveBlocks
		wanted[id] = x
		k.claims.each = append(k.claims.each, claim{s, id, load})
	}
}

// heldBy is what some tickets of a member hold, by rank.
func (k *keeper) heldBy(s *seat, counts func(*kept) bool) map[admission.RankRef]Load {
	held := map[admission.RankRef]Load{}
	for _, t := range s.tickets {
		if t.state != keptGranted || !counts(t) {
			continue
		}
		x, ok := k.port.Ticket(t.number)
		if !ok {
			continue
		}
		legs := max(t.ask.Request.Legs, 1)
		if x.HoldsPrefill {
			h := held[x.Prefill]
			h.Slots++
			h.PrefillLegs += legs
			h.Tokens += x.Tokens
			held[x.Prefill] = h
		}
		if x.HoldsDecode {
			h := held[x.Decode]
			if !x.HoldsPrefill {
				h.Tokens += x.Tokens
			}
			h.Active += legs
			h.ActiveBlocks += x.Blocks
			held[x.Decode] = h
		}
	}
	return held
}

// mostAmounts are the most prefill tokens and KV blocks that some class allows on a rank;
// zero where no class bounds them.
func mostAmounts(s *admission.Settings, spec *admission.RankSpec) (tokens, blocks int64) {
	if s == nil || s.Classes == nil {
		return 0, 0
	}
	each := func(p *admission.Profile) {
		if p == nil {
			return
		}
		for i := range p.Classes {
			c := &p.Classes[i]
			n := int64(-1)
			if c.PrefillBusyTokens != nil {
				n = *c.PrefillBusyTokens
			}
			if c.PrefillBusyFrac != nil && spec.Capacity.MaxBatchedTokens > 0 {
				if of := int64(*c.PrefillBusyFrac * float64(spec.Capacity.MaxBatchedTokens)); n < 0 || of < n {
					n = of
				}
			}
			tokens = max(tokens, n)
			if c.DecodeBusyFrac != nil {
				blocks = max(blocks, int64(*c.DecodeBusyFrac*float64(spec.Capacity.KVBlocks)))
			}
		}
	}
	each(s.Classes.Root)
	for _, p := range s.Classes.Models {
		each(p)
	}
	return min(tokens, maxAmount), min(blocks, maxAmount)
}

// ownShare tells which grants to this process are within its share, while nobody else can
// know of them: together with what it holds already.
type ownShare struct {
	k    *keeper
	held map[admission.RankRef]Load
}

// fits tells whether t is, and counts it then.
func (o *ownShare) fits(t *kept) bool {
	k := o.k
	if len(k.order) == 1 {
		return true
	}
	if o.held == nil {
		o.held = k.heldBy(t.seat, func(t *kept) bool { return !t.own })
	}
	x, ok := k.port.Ticket(t.number)
	if !ok {
		return false
	}
	legs := max(t.ask.Request.Legs, 1)
	check := func(ref admission.RankRef, add Load) bool {
		spec := k.table.spec(ref.ID)
		if spec == nil {
			return false
		}
		share := k.shares.rank(spec, t.seat.Incarnation)
		h := o.held[ref]
		if share.None || share.Slots >= 0 && int64(h.Slots+add.Slots) > share.Slots {
			return false
		}
		calls := int64(h.Active)
		if spec.Role == admission.RolePrefill {
			calls = int64(h.PrefillLegs)
		}
		return share.Calls < 0 || calls < share.Calls
	}
	if x.Prefill.ID != "" && !check(x.Prefill, Load{Slots: 1}) || !check(x.Decode, Load{}) {
		return false
	}
	if x.HoldsPrefill {
		h := o.held[x.Prefill]
		h.Slots++
		h.PrefillLegs += legs
		o.held[x.Prefill] = h
	}
	h := o.held[x.Decode]
	h.Active += legs
	o.held[x.Decode] = h
	return true
}
