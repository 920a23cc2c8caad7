package node

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// Observe implements admission.Remote. What engines report of their load comes often, and
// is told some time later, together.
func (n *Node) Observe(changes []admission.FleetChange) {
	n.step(func(now admission.Instant) {
		n.ranks.Changes(unixMilli(), changes)
		for i := range changes {
			if changes[i].Op != admission.SetReport {
				n.observeLocked(now)
				return
			}
		}
		n.reports = true
	})
}

// Tried tells what came lately of checks of ranks' health, and of requests to them.
func (n *Node) Tried(trials []cluster.RankTrial) {
	n.step(func(now admission.Instant) {
		n.ranks.Trials(trials)
		n.observeLocked(now)
	})
}

// observeLocked tells what changed of the ranks.
func (n *Node) observeLocked(now admission.Instant) {
	n.reports = false
	if o, ok := n.ranks.Observation(); ok {
		n.m.Observe(now, o)
	}
}

// tellReports tells what engines reported lately.
func (n *Node) tellReports() {
	n.step(func(now admission.Instant) {
		if n.reports {
			n.observeLocked(now)
		}
	})
}

func unixMilli() uint64 { return uint64(max(time.Now().UnixMilli(), 0)) }
