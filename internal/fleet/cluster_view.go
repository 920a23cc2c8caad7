package fleet

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/cluster"
)

// ClusterInfo is a rank in Info as the keeper of the cluster knows it: by what all members
// observe, and with what all of them have booked there.
type ClusterInfo struct {
	Healthy  bool   `json:"healthy"`
	Draining bool   `json:"draining,omitempty"`
	Breaker  string `json:"breaker"`
	// Masked: requests of this router do not get it, because this router is not served by it
	// while others are. MaskedFor is how many members that is so for.
	Masked    bool `json:"masked,omitempty"`
	MaskedFor int  `json:"masked_members,omitempty"`
	// Load is the number of calls booked on it by all routers.
	Load          int `json:"load"`
	PrefillSlots  int `json:"prefill_slots"`
	PendingDecode int `json:"pending_decode"`
	ActiveDecode  int `json:"active_decode"`

	activeBlocks int64
}

// clusterView is what the keeper told of ranks last.
type clusterView struct {
	ranks atomic.Pointer[map[string]*ClusterInfo] // by id; never changed
}

// TakeRows takes the keeper's table of ranks, which each goes through. Workers that fail
// others now are checked soon: in a large fleet that may not be due for long.
func (f *Fleet) TakeRows(each func(func(*cluster.Row))) {
	m := f.member
	var before map[string]*ClusterInfo
	if last := m.view.ranks.Load(); last != nil {
		before = *last
	}
	ranks := make(map[string]*ClusterInfo, len(before))
	var fails []string // workers
	each(func(r *cluster.Row) {
		s := &r.Spec.State
		if was := before[r.Spec.ID]; was != nil && len(r.Masked) > was.MaskedFor && !slices.Contains(r.Masked, m.self.Incarnation) {
			fails = append(fails, r.Spec.Worker)
		}
		ranks[r.Spec.ID] = &ClusterInfo{
			Healthy: s.Healthy, Draining: s.Draining, Breaker: s.Breaker.String(),
			Masked: slices.Contains(r.Masked, m.self.Incarnation), MaskedFor: len(r.Masked),
			Load:         r.Load.PrefillLegs + r.Load.Pending + r.Load.Active,
			PrefillSlots: r.Load.Slots, PendingDecode: r.Load.Pending, ActiveDecode: r.Load.Active,
			activeBlocks: r.Load.ActiveBlocks,
		}
	})
	m.view.ranks.Store(&ranks)
	for _, name := range fails {
		if w, ok := f.Get(name); ok {
			w.checkSoon()
		}
	}
}

// inCluster is r as the keeper knows it; nil: it is not known.
func (r *Rank) inCluster() *ClusterInfo {
	m := r.worker.fleet.member
	if m == nil {
		return nil
	}
	ranks := m.view.ranks.Load()
	if ranks == nil {
		return nil
	}
	return (*ranks)[r.id]
}

// activeBlocks is how many KV blocks of r are active by the bookings of all routers. The
// caller must hold Fleet.mu.
func (r *Rank) activeBlocksLocked() int64 {
	own := r.worker.fleet.gate.RankStats(r.adm).ActiveBlocks
	if c := r.inCluster(); c != nil {
		return max(own, c.activeBlocks)
	}
	return own
}
