package codec

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

func report(c *coder, r *cluster.Report) {
	flag(c, 1, &r.First)
	flag(c, 2, &r.Last)
	message(c, 3, &r.Self, member)
	list(c, 4, &r.Holds, holdEntry)
	list(c, 5, &r.Waiters, waiter)
	list(c, 6, &r.Foreign, holdEntry)
	flag(c, 7, &r.Standby)
	message(c, 8, &r.Of, epoch)
	list(c, 9, &r.Known, member)
	randoms(c, 10, &r.Ended)
	message(c, 11, &r.Shares, shares)
	optional(c, 12, &r.Rows, rows)
	optional(c, 13, &r.Configuration, configuration)
	optional(c, 14, &r.Documents, documents)
	optional(c, 15, &r.Observation, observation)
	unsigned(c, 16, &r.Fallback)
}

func holdEntry(c *coder, h *cluster.HoldEntry) {
	random(c, 1, &h.Ticket.Member)
	unsigned(c, 2, &h.Ticket.Number)
	unsigned(c, 3, &h.Attempt)
	text(c, 4, &h.Prefill)
	text(c, 5, &h.Decode)
	message(c, 6, &h.Hold, holdOf)
}

func holds(c *coder, h *cluster.Holds) {
	flag(c, 1, &h.First)
	flag(c, 2, &h.Last)
	list(c, 3, &h.Entries, holdEntry)
}

func waiter(c *coder, w *cluster.Waiter) {
	unsigned(c, 1, &w.Number)
	unsigned(c, 2, &w.Attempt)
	unsigned(c, 3, &w.Place.Epoch)
	unsigned(c, 4, &w.Place.Number)
	message(c, 5, &w.Ask, ask)
	optional(c, 6, &w.Queued, queued)
	signed(c, 7, &w.Passes)
	texts(c, 8, &w.HolderIDs[0])
	texts(c, 9, &w.HolderIDs[1])
	texts(c, 10, &w.ExcludeIDs[0])
	texts(c, 11, &w.ExcludeIDs[1])
}

func configuration(c *coder, x *cluster.Configuration) {
	unsigned(c, 1, &x.Generation)
	signed(c, 2, &x.Age)
	random(c, 3, &x.Digest)
	s := &x.Settings
	if asJSON(c, 4, &s); s != &x.Settings {
		x.Settings = *s
	}
}

func shares(c *coder, s *cluster.Shares) {
	unsigned(c, 1, &s.Version)
	randoms(c, 2, &s.Committed)
	randoms(c, 3, &s.Proposed)
	asJSON(c, 4, &s.CommittedSettings)
	asJSON(c, 5, &s.ProposedSettings)
}

func observation(c *coder, o *cluster.Observation) {
	flag(c, 1, &o.Full)
	list(c, 2, &o.Ranks, rankObservation)
	list(c, 3, &o.Pairs, pairObservation)
}

func pairObservation(c *coder, p *cluster.PairObservation) {
	text(c, 1, &p.Prefill)
	text(c, 2, &p.Decode)
	signed(c, 3, &p.Left)
}

func rankObservation(c *coder, r *cluster.RankObservation) {
	text(c, 1, &r.ID)
	flag(c, 2, &r.Gone)
	message(c, 3, &r.Spec, rankSpec)
	unsigned(c, 4, &r.Stamp)
	signed(c, 5, &r.ReportAge)
	unsigned(c, 6, &r.Checks)
	unsigned(c, 7, &r.Legs)
}

func rows(c *coder, r *cluster.Rows) {
	unsigned(c, 1, &r.Version)
	flag(c, 2, &r.Full)
	list(c, 3, &r.Rows, row)
	flag(c, 4, &r.HasPairs)
	list(c, 5, &r.Pairs, pairObservation)
}

func row(c *coder, r *cluster.Row) {
	unsigned(c, 1, &r.At.Number)
	unsigned(c, 2, &r.At.Generation)
	flag(c, 3, &r.Gone)
	optional(c, 4, &r.Spec, rankSpec)
	message(c, 5, &r.Load, load)
	randoms(c, 6, &r.Masked)
}

func load(c *coder, l *cluster.Load) {
	signed(c, 1, &l.Slots)
	signed(c, 2, &l.PrefillLegs)
	signed(c, 3, &l.Pending)
	signed(c, 4, &l.Active)
	signed(c, 5, &l.Tokens)
	signed(c, 6, &l.PendingBlocks)
	signed(c, 7, &l.ActiveBlocks)
}

func rankSpec(c *coder, r *admission.RankSpec) {
	text(c, 1, &r.ID)
	unsigned(c, 2, &r.Generation)
	text(c, 3, &r.Worker)
	unsigned(c, 4, &r.Role)
	texts(c, 5, &r.Models)
	text(c, 6, &r.PairGroup)
	text(c, 7, &r.Topology)
	labels(c, 8, &r.Labels)
	texts(c, 9, &r.Adapters)
	message(c, 10, &r.Capacity, capacity)
	signed(c, 11, &r.Limits.PrefillSlots)
	signed(c, 12, &r.Limits.Running)
	signed(c, 13, &r.Priority)
	message(c, 14, &r.State, rankState)
	message(c, 15, &r.Reported, reported)
}

func capacity(c *coder, x *admission.Capacity) {
	signed(c, 1, &x.MaxBatchedTokens)
	signed(c, 2, &x.KVBlocks)
	signed(c, 3, &x.BlockSize)
	signed(c, 4, &x.MaxRunning)
}

func rankState(c *coder, s *admission.RankState) {
	flag(c, 1, &s.Healthy)
	flag(c, 2, &s.Draining)
	unsigned(c, 3, &s.Breaker)
	unsigned(c, 4, &s.Share)
	signed(c, 5, &s.Probes)
}

func reported(c *coder, r *admission.ReportedLoad) {
	signed(c, 1, &r.Requests)
	signed(c, 2, &r.Waiting)
	signed(c, 3, &r.KVTokens)
	float(c, 4, &r.Usage)
	signed(c, 5, &r.ActiveBlocks)
	signed(c, 6, &r.Unbooked)
	flag(c, 7, &r.Vetoed)
}

func documents(c *coder, d *cluster.Documents) {
	flag(c, 1, &d.Full)
	list(c, 2, &d.All, document)
	flag(c, 3, &d.First)
	flag(c, 4, &d.Last)
	flag(c, 5, &d.Ask)
	list(c, 6, &d.Have, version)
	flag(c, 7, &d.Answer)
	unsigned(c, 8, &d.Floor)
}

func document(c *coder, d *cluster.Document) {
	text(c, 1, &d.Key)
	unsigned(c, 2, &d.Version.Counter)
	random(c, 3, &d.Version.Writer)
	flag(c, 4, &d.Deleted)
	text(c, 5, &d.Source)
	text(c, 6, &d.Origin)
	blob(c, 7, &d.Body)
	flag(c, 8, &d.Restored)
}

func version(c *coder, v *cluster.Version) {
	unsigned(c, 1, &v.Counter)
	random(c, 2, &v.Writer)
}
