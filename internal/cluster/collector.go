package cluster

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

var (
	keeperDesc    = metric.Gauge("sluice_cluster_is_keeper", "1 while this router is the keeper, which decides for all members of the cluster, else 0. The sum over all is 1, and for up to a lease 0 or 2 when one takes over from another that is gone.")
	decidingDesc  = metric.Gauge("sluice_cluster_deciding", "1 while the keeper decides, as this router knows it; 0 while it collects what members report, was not confirmed for a lease, or is not known.")
	epochDesc     = metric.Gauge("sluice_cluster_epoch", "Number of the keeper's time in office that this router obeys.")
	membersDesc   = metric.Gauge("sluice_cluster_members", "Members of the cluster by state, as the keeper sees them: answering, silent (for half a second), lost (for the lease), reporting, joining.", "state")
	roundDesc     = metric.Gauge("sluice_cluster_round_trip_seconds", "Seconds from this member to the keeper and back, by the keeper's last measurement; 0 at the keeper.")
	heardDesc     = metric.Gauge("sluice_cluster_keeper_heard_seconds", "Seconds since this router last heard a keeper that decides; no series before the first time.")
	viewDesc      = metric.Gauge("sluice_cluster_view_age_seconds", "Age of what this router knows of the whole cluster; no series before the first time.")
	writesDesc    = metric.Counter("sluice_cluster_store_writes_total", "Writes to the store in which the members find each other.")
	readsDesc     = metric.Counter("sluice_cluster_store_reads_total", "Readings of that store.")
	errorsDesc    = metric.Counter("sluice_cluster_store_errors_total", "Readings and writes of that store that failed.")
	conflictsDesc = metric.Counter("sluice_cluster_store_conflicts_total", "Writes to that store that another member's was before; they are repeated.")
	officeDesc    = metric.Counter("sluice_cluster_elections_total", "What became of this router's times in office: stood (it tried to become keeper), elected (it did), resigned (its office ended without a successor of its choice).", "result")
	handoverDesc  = metric.Counter("sluice_cluster_handovers_total", "Planned changes of the keeper: given by this router to another, or taken over by it.", "direction")
	fallbackDesc  = metric.Gauge("sluice_cluster_fallback", "1 while this router is in fallback, because it heard no keeper for --cluster-patience-secs, else 0.", "fallback")
	fallenDesc    = metric.Counter("sluice_cluster_fallback_seconds_total", "Seconds in fallback.")
	droppedDesc   = metric.Counter("sluice_cluster_grants_dropped_total", "Decisions to start a request that were not used: stale (too old on arrival), epoch (of a keeper or session that is not obeyed any more), canceled (the client had left), unusable (the worker is not known here), void (taken back by the keeper).", "reason")
	reportsDesc   = metric.Counter("sluice_cluster_reports_total", "Reports to a keeper of all that this router holds: one for each new keeper and after each loss of messages.")
	revokedDesc   = metric.Counter("sluice_cluster_revoked_total", "Prefill legs that were ended because no keeper was heard until nearly --cluster-lost-secs.")
	claimsDesc    = metric.Gauge("sluice_cluster_claims", "Ranks on which something is set aside for members that are lost; told by the keeper, 0 elsewhere.")
	envelopesDesc = metric.Counter("sluice_cluster_batches_total", "Messages to other members, beats included.")
	itemsDesc     = metric.Counter("sluice_cluster_items_total", "Requests, steps and decisions in those messages.")
	parkedDesc    = metric.Gauge("sluice_cluster_parked", "Requests at this router that wait until there is a keeper.")
	suspendedDesc = metric.Gauge("sluice_cluster_suspended", "Waiting requests of members that are silent, which keep their places and block nobody; told by the keeper, 0 elsewhere.")
	differsDesc   = metric.Gauge("sluice_cluster_config_differs", "1: the limits, classes or policies that this router was given are not those in force for the cluster, else 0.")
	allDescs      = metric.Descs{
		keeperDesc, decidingDesc, epochDesc, membersDesc, roundDesc, heardDesc, viewDesc, officeDesc, handoverDesc, reportsDesc,
		droppedDesc, revokedDesc, fallbackDesc, fallenDesc, parkedDesc, suspendedDesc, claimsDesc, differsDesc,
		readsDesc, writesDesc, errorsDesc, conflictsDesc, envelopesDesc, itemsDesc,
	}
)

// MemberStates are what [MemberView.State] can be.
var MemberStates = []string{"answering", "silent", "lost", "reporting", "joining"}

// RoleKeeper is [Status.Role] of the keeper.
const RoleKeeper = "keeper"

// Collector are the metrics of a member. Without a member they have no series.
type Collector struct {
	// Status is read at each scrape. It is set before the first one; nil: the process is
	// no member.
	Status func() Status
}

// Metrics is of metric.Collector.
func (*Collector) Metrics() metric.Descs { return allDescs }

// Describe does what prometheus.Collector asks for.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { allDescs.Describe(ch) }

// Collect does what prometheus.Collector asks for.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	if c.Status == nil {
		return
	}
	st := c.Status()
	n := &st.Counters
	send := func(d metric.Desc, v float64, labels ...string) { ch <- d.Of(v, labels...) }
	count := func(d metric.Desc, v uint64, labels ...string) { ch <- d.Of(float64(v), labels...) }

	send(keeperDesc, float64(b2i(st.Role == RoleKeeper)))
	send(epochDesc, float64(st.Promised.Number))
	if st.Heard >= 0 {
		send(heardDesc, st.Heard.Seconds())
	}
	send(parkedDesc, float64(st.Parked))
	for _, f := range []string{"share", "refuse"} {
		send(fallbackDesc, float64(b2i(st.Fallback == f)), f)
	}
	send(fallenDesc, n.FallbackFor.Seconds())
	count(officeDesc, n.Stood, "stood")
	count(officeDesc, n.Elected, "elected")
	count(officeDesc, n.Resigned, "resigned")
	count(handoverDesc, n.HandedOver, "given")
	count(handoverDesc, n.TookOver, "taken")
	count(reportsDesc, n.Reports)
	for d := range NumDrops {
		count(droppedDesc, n.Dropped[d], d.String())
	}
	count(revokedDesc, n.Revoked)
	count(readsDesc, n.StoreReads)
	count(writesDesc, n.StoreWrites)
	count(errorsDesc, n.StoreErrors)
	count(conflictsDesc, n.StoreConflicts)
	count(envelopesDesc, n.Envelopes)
	count(itemsDesc, n.Items)
	c.view(&st, send)
}

// view sends what the keeper tells of all.
func (c *Collector) view(st *Status, send func(metric.Desc, float64, ...string)) {
	v := st.View
	states := map[string]int{}
	var own MemberView
	claims, suspended := 0, 0
	if v != nil {
		send(viewDesc, st.ViewAge.Seconds())
		for i := range v.Members {
			m := &v.Members[i]
			states[m.State]++
			if m.Incarnation == st.Self.Incarnation {
				own = *m
			}
		}
		if st.Role == RoleKeeper {
			claims, suspended = len(v.Claims), v.Suspended
		}
	}
	send(decidingDesc, float64(b2i(st.Decides())))
	for _, s := range MemberStates {
		send(membersDesc, float64(states[s]), s)
	}
	send(roundDesc, own.Round.Seconds())
	send(differsDesc, float64(b2i(own.Differs)))
	send(claimsDesc, float64(claims))
	send(suspendedDesc, float64(suspended))
}
