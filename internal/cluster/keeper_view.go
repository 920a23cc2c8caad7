package cluster

import (
	"reflect"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
)

const (
	// loadsEvery is the least time between two pushes of loads, viewEvery between two of what
	// operators see.
	loadsEvery = admission.Instant(100 * time.Millisecond)
	viewEvery  = admission.Instant(250 * time.Millisecond)
	// viewRefresh is how long a view that is like the last one but for ages is not told.
	viewRefresh = admission.Instant(time.Second)
)

// pushed is what members were told of ranks and of the whole.
type pushed struct {
	loadsAt, viewAt admission.Instant
	toldAt          admission.Instant // the last view that was told
	view            *ClusterView
	changed         bool // loads may have changed
}

func (k *keeper) nextTold() admission.Instant {
	next := k.pushed.viewAt + viewEvery
	if k.pushed.changed {
		next = min(next, k.pushed.loadsAt+loadsEvery)
	}
	return next
}

// tell pushes to members what is due.
func (k *keeper) tell() {
	now := k.m.now
	if k.port == nil {
		return
	}
	due := k.pushed.changed && now-k.pushed.loadsAt >= loadsEvery
	if due {
		k.pushed.loadsAt, k.pushed.changed = now, false
		k.tellLoads()
	}
	k.tellRows()
	if now-k.pushed.viewAt >= viewEvery || k.pushed.view == nil {
		k.pushed.viewAt = now
		k.tellView()
	}
}

// tellRows tells members of ranks that have changed since they were told last.
func (k *keeper) tellRows() {
	var version uint64
	var parts []Rows
	for _, s := range k.order {
		if !s.reported || s.rowsTold == k.table.version {
			continue
		}
		if parts == nil || version != s.rowsTold {
			version, parts = s.rowsTold, k.table.rowsSince(k.m.now, s.rowsTold)
		}
		if s.rowsTold == 0 {
			k.tellSharesTo(s)
			k.pushed.view = nil
		}
		s.rowsTold = k.table.version
		for i := range parts {
			k.m.toMember(s.Incarnation, Item{Kind: ItemRows, Body: &parts[i]})
		}
	}
}

// tellView tells members what their operators see, if it has changed.
func (k *keeper) tellView() {
	v := k.view()
	if old := k.pushed.view; old != nil && k.m.now-k.pushed.toldAt < viewRefresh && reflect.DeepEqual(ageless(v), ageless(*old)) {
		return
	}
	k.pushed.view, k.pushed.toldAt = &v, k.m.now
	for _, s := range k.order {
		if s.reported {
			k.m.toMember(s.Incarnation, Item{Kind: ItemStatus, Body: &v})
		}
	}
}

// ageless is a view without what changes by time alone.
func ageless(v ClusterView) ClusterView {
	members := make([]MemberView, len(v.Members))
	for i, x := range v.Members {
		x.Round, x.Heard = 0, 0
		members[i] = x
	}
	claims := make([]ClaimView, len(v.Claims))
	for i, x := range v.Claims {
		x.Until = 0
		claims[i] = x
	}
	v.Members, v.Claims = members, claims
	return v
}

// newToCluster is why a keeper does not decide that found no record of a cluster.
const newToCluster = "it found no record of this cluster, and waits for a lease in case there are members that it does not know"

// maxClaimViews bounds the claims that are shown.
const maxClaimViews = 256

// view is what operators see of the whole.
func (k *keeper) view() ClusterView {
	v := ClusterView{
		Epoch: k.epoch, Keeper: k.m.o.Self.Name, Deciding: k.office() == OfficeDeciding,
		Shares: k.shares.Version, Proposed: k.shares.Proposed != nil,
	}
	switch k.office() {
	case OfficeNone:
		v.WhyNot = "not confirmed by the store, nor by all members, within the lease"
		if k.stopped {
			v.WhyNot = "the office is being handed over"
		}
	case OfficeOpening:
		v.WhyNot = "it waits for the reports of " + strings.Join(k.missing(), ", ")
		if len(k.missing()) == 0 {
			v.WhyNot = newToCluster
		}
	}
	if k.standby != nil {
		v.Standby = k.standby.Name
	}
	if s := k.seats[k.settings.from]; s != nil {
		v.Settings = s.Name
	}
	for _, s := range k.order {
		x := MemberView{Member: s.Member, State: s.stateName(), Holds: s.holds, Waiting: s.waits, Differs: v.Settings != "" && s.differs()}
		if p := k.m.peers[s.Incarnation]; p != nil && p.everHere {
			x.Heard, x.Round = k.m.now.Sub(p.answered), s.round
		}
		if s.config != nil {
			x.Generation, x.Digest = s.config.Generation, digest(s.config.Digest)
		}
		v.Members = append(v.Members, x)
		v.Waiting += s.waits
		if s.suspended {
			v.Suspended += s.waits
		}
	}
	for _, c := range k.claims.each[:min(len(k.claims.each), maxClaimViews)] {
		v.Claims = append(v.Claims, ClaimView{
			Member: c.seat.Name, Rank: c.rank, Load: c.load,
			Until: max(c.seat.lostSince.Add(k.m.o.Lost).Sub(k.m.now), 0),
		})
	}
	return v
}

func (s *seat) stateName() string {
	switch {
	case s.state == seatLost:
		return "lost"
	case s.state == seatSilent:
		return "silent"
	case !s.listed:
		return "joining"
	case !s.reported:
		return "reporting"
	}
	return "answering"
}
