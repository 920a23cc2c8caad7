package fleet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/metric"
	"github.com/sluice-router/sluice/internal/text"
)

// The feeds of a rank in Info and in metrics.
const (
	feedExact       = "exact"       // its events are followed
	feedDegraded    = "degraded"    // they are to be, but cannot be relied on now
	feedApproximate = "approximate" // there are none
)

// KVCacheInfo is how it is known what a rank's KV cache holds.
type KVCacheInfo struct {
	// Feed is "exact" while the engine's events are followed, "degraded" while they cannot be
	// relied on, "approximate" without events. In any case what the rank was sent is known.
	Feed string `json:"feed"`
	// Degraded is since when they cannot be relied on, and why.
	Degraded *SuspectInfo `json:"degraded,omitempty"`
	// NoEvents is why no events are followed.
	NoEvents string `json:"no_events,omitempty"`
	// Blocks is how many blocks of the prompts that it was sent it is believed to hold, of
	// MaxBlocks at most; ExactBlocks how many of its engine's blocks its events tell of.
	Blocks         int `json:"blocks"`
	MaxBlocks      int `json:"max_blocks"`
	ExactBlocks    int `json:"exact_blocks,omitempty"`
	MaxExactBlocks int `json:"max_exact_blocks,omitempty"`
	// Events is what came by its stream.
	Events *KVEventsInfo `json:"events,omitempty"`
}

// KVEventsInfo is what came by a stream of events since it was opened.
type KVEventsInfo struct {
	Endpoint string `json:"endpoint"`
	Replay   string `json:"replay_endpoint,omitempty"`
	// LagSecs is how old the last batch was when it came, by the clocks of both sides;
	// LastEventSecs is how long ago that was, absent if there was none.
	LagSecs       float64  `json:"lag_secs"`
	LastEventSecs *float64 `json:"last_event_age_secs,omitempty"`
	// Partial: what the cache held before the first event is not known.
	Partial     bool   `json:"partial,omitempty"`
	LastError   string `json:"last_error,omitempty"`
	Batches     uint64 `json:"batches"`
	Events      uint64 `json:"events"`
	BadEvents   uint64 `json:"bad_events"`
	Skipped     uint64 `json:"skipped_events"`
	BadMessages uint64 `json:"bad_messages"`
	Gaps        uint64 `json:"gaps"`
	Unfilled    uint64 `json:"unfilled_gaps"`
	Replays     uint64 `json:"replays"`
	Clears      uint64 `json:"clears"`
	Restarts    uint64 `json:"restarts"`
	Connects    uint64 `json:"connects"`
}

// cacheInfoLocked is nil without an index.
func (r *Rank) cacheInfoLocked() *KVCacheInfo {
	if r.caches.approx == nil {
		return nil
	}
	i := &KVCacheInfo{
		Feed: feedApproximate, NoEvents: r.caches.whyNone,
		Blocks: r.caches.approx.Held(), MaxBlocks: r.caches.approx.Bound(),
	}
	if s := r.caches.stream.Load(); s != nil {
		i.ExactBlocks, i.MaxExactBlocks = s.exact.Rank().Held(), s.exact.Rank().Bound()
		s.describe(i)
	}
	return i
}

// maxReason bounds why a stream is degraded, in bytes: it may have words of its peer.
const maxReason = 300

// describe tells of the stream.
func (s *rankStream) describe(i *KVCacheInfo) {
	n, now := s.stream.Snapshot(), time.Now()
	s.mu.Lock()
	state, since := s.state, s.since
	s.mu.Unlock()
	if i.Feed = feedExact; state == events.Degraded {
		i.Feed = feedDegraded
		i.Degraded = &SuspectInfo{Since: since.UTC().Round(time.Millisecond), ForSecs: secondsSince(now, since), Why: text.Clip(s.why(n), maxReason)}
	}
	e := &KVEventsInfo{
		Endpoint: s.source.Endpoint, Replay: s.source.Replay, LagSecs: n.Lag.Round(time.Millisecond).Seconds(), Partial: n.Partial, LastError: text.Clip(n.LastError, maxReason),
		Batches: n.Batches, Events: n.Events, BadEvents: n.BadEvents, Skipped: n.SkippedEvents, BadMessages: n.BadMessages,
		Gaps: n.Gaps, Unfilled: n.Unfilled, Replays: n.Replays, Clears: n.Clears, Restarts: n.Restarts, Connects: n.Connects,
	}
	if !n.LastEvent.IsZero() {
		e.LastEventSecs = new(secondsSince(now, n.LastEvent))
	}
	i.Events = e
}

func secondsSince(now, then time.Time) float64 {
	return max(0, now.Sub(then)).Round(time.Millisecond).Seconds()
}

var (
	feedsDesc = metric.Gauge("sluice_kv_ranks",
		"Ranks by how it is known what their KV caches hold: exact (their events are followed), degraded (they publish events, which cannot be relied on now; what they were sent counts), approximate (there are no events; what they were sent counts).", "role", "feed")
	eventsLiveDesc = metric.Gauge("sluice_rank_kv_events_live",
		"1 while the KV events of a rank are followed and can be relied on, 0 while they cannot. Absent for ranks without events.", "rank", "role")
	eventLagDesc = metric.Gauge("sluice_rank_kv_event_lag_seconds",
		"How old the last batch of KV events of a rank was when it came, in seconds, by the clocks of both sides. Absent for ranks without events.", "rank", "role")
	eventsDesc = metric.Counter("sluice_rank_kv_events_total",
		"KV events of a rank: ok; bad (could not be used, or only in part); skipped (of an unknown type, another rank, or a cache elsewhere).", "rank", "role", "result")
	eventFaultsDesc = metric.Counter("sluice_rank_kv_event_faults_total",
		"What happened to the stream of KV events of a rank: gap (messages were missed), unfilled_gap (they were not repeated, so that the rank counts as empty), replay (they were asked for again), restart (of the engine), clear (the rank counted as empty, for any reason), connect (a connection was made), bad_message (no batch of events at all). After a normal start connect and replay are 1.", "rank", "role", "fault")
)

// kvDescs are the metrics of what is known of KV caches.
var kvDescs = metric.Descs{feedsDesc, eventsLiveDesc, eventLagDesc, eventsDesc, eventFaultsDesc}

// kvCaches reports them. Series of a rank end with its stream.
func (c collector) kvCaches(ch chan<- prometheus.Metric) {
	if c.f.opts.Index == nil {
		return
	}
	type group struct {
		role string
		feed string
	}
	counts := map[group]int{}
	for _, w := range c.f.List() {
		role := w.Role().String()
		for _, r := range w.Ranks() {
			s := r.caches.stream.Load()
			if s == nil {
				counts[group{role, feedApproximate}]++
				continue
			}
			var i KVCacheInfo
			s.describe(&i)
			counts[group{role, i.Feed}]++
			id, e := label(r.id), i.Events
			ch <- eventsLiveDesc.Of(one01(i.Feed == feedExact), id, role)
			ch <- eventLagDesc.Of(e.LagSecs, id, role)
			for _, n := range [...]struct {
				result string
				n      uint64
			}{{"ok", e.Events}, {"bad", e.BadEvents}, {"skipped", e.Skipped}} {
				ch <- eventsDesc.Of(float64(n.n), id, role, n.result)
			}
			for _, n := range [...]struct {
				fault string
				n     uint64
			}{
				{"gap", e.Gaps}, {"unfilled_gap", e.Unfilled}, {"replay", e.Replays}, {"restart", e.Restarts},
				{"clear", e.Clears}, {"connect", e.Connects}, {"bad_message", e.BadMessages},
			} {
				ch <- eventFaultsDesc.Of(float64(n.n), id, role, n.fault)
			}
		}
	}
	for _, role := range allRoles {
		for _, feed := range [...]string{feedExact, feedDegraded, feedApproximate} {
			ch <- feedsDesc.Of(float64(counts[group{role.String(), feed}]), role.String(), feed)
		}
	}
}
