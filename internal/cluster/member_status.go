package cluster

import "github.com/sluice-router/sluice/admission"

// Roles of a [Status] beside RoleKeeper.
const (
	roleStandby = "standby"
	roleMember  = "member"
	roleAlone   = "alone"
	roleJoining = "joining"
)

// String is the name that the option has.
func (f Fallback) String() string {
	if f == FallbackRefuse {
		return "refuse"
	}
	return "share"
}

// status tells what this member's own requests have come to.
func (b *member) status(s *Status) {
	m := b.m
	switch {
	case b.alone.on:
		s.Role = roleAlone
		s.Fallback = FallbackRefuse.String()
		if b.alone.port != nil {
			s.Fallback = FallbackShare.String()
		}
		s.Counters.FallbackFor += m.now.Sub(b.alone.since)
	case m.keeper != nil:
		s.Role = RoleKeeper
	case b.heardAt < 0:
		s.Role = roleJoining
	case b.isStandby():
		s.Role = roleStandby
	default:
		s.Role = roleMember
	}
	s.Tickets = len(b.tickets)
	if !b.alone.on && !b.hasKeeper(m.o.Silent) {
		s.Parked = b.waits.len()
	}
	s.Shares = b.shares(maxShareViews)
	if b.view != nil {
		s.View, s.ViewAge = b.view, m.now.Sub(b.viewAt)
	}
}

// stats is the state of the core by which this member decides alone, if it does.
func (b *member) stats() (s admission.Stats, ok bool) {
	if b.alone.port == nil {
		return s, false
	}
	return b.alone.port.Stats(b.m.now), true
}

// shares are the own shares of ranks, most at most.
func (b *member) shares(most int) (all []ShareView) {
	if !b.shared.any() {
		return nil
	}
	for _, row := range b.m.ranks.whole().Rows {
		if len(all) == most {
			break
		}
		if row.Spec.Role != admission.RolePrefill {
			continue
		}
		v := ShareView{Rank: row.Spec.ID, Limit: int64(max(slotLimit(row.Spec, b.settings()), 0))}
		if x := b.shared.rank(row.Spec, b.m.o.Self.Incarnation); !x.None {
			v.Share = max(x.Slots, 0)
		}
		all = append(all, v)
	}
	return all
}

// tellDiffers tells once that the own configuration is not the one in force, and that it is
// again. A keeper tells of itself with the others.
func (b *member) tellDiffers() {
	if b.m.keeper != nil {
		return
	}
	for i := range b.view.Members {
		x := &b.view.Members[i]
		if x.Incarnation != b.m.o.Self.Incarnation || x.Differs == b.differs {
			continue
		}
		if b.differs = x.Differs; x.Differs {
			b.m.event(LevelWarn, "the configuration of this router is not the one in force in the cluster", "in_force", b.view.Settings, "generation", x.Generation)
		} else {
			b.m.event(LevelInfo, "the configuration of this router is the one in force in the cluster again", "generation", x.Generation)
		}
	}
}
