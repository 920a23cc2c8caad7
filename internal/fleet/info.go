package fleet

import (
	"cmp"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Info is the description of a worker in GET /workers.
type Info struct {
	ID         string `json:"id"`
	URL        string `json:"url"`
	ModelID    string `json:"model_id"`
	WorkerType string `json:"worker_type"`
	IsHealthy  bool   `json:"is_healthy"`
	// Load is the number of calls booked on it by this router.
	Load   int    `json:"load"`
	Status Status `json:"status"`
	// Index is its place among the workers of its type, as X-SMG-Target-Worker
	// takes it.
	Index int `json:"index"`
	// Models are all pools it belongs to, Adapters its LoRA adapters.
	Models   []string `json:"models"`
	Adapters []string `json:"adapters,omitempty"`
	Backend  string   `json:"backend"`
	// Connector is how a worker hands KV cache over; empty if its engine has one way.
	Connector string `json:"kv_connector,omitempty"`
	// Pairing says why it cannot be paired with others, Quarantined which pairs of its ranks
	// are quarantined because KV transfers between them kept failing.
	Pairing     []string          `json:"pairing,omitempty"`
	Quarantined []QuarantinedPair `json:"barred_pairs,omitempty"`
	// Transfer reports whether KV cache arrives at a decode worker that prompts were
	// handed to: "moves", "nothing moves", empty when that cannot be said.
	Transfer string `json:"kv_transfer,omitempty"`
	// MaxModelLen is the context of its model in tokens.
	MaxModelLen int64 `json:"max_model_len,omitempty"`
	// BootstrapPort is nil when null is sent, and for workers other than prefill.
	BootstrapPort *int `json:"bootstrap_port,omitempty"`
	DPSize        int  `json:"dp_size"`
	// DPStartRank is the number that the engine gives the first of its data-parallel ranks
	// in its own metrics and logs: not 0 where several servers share a model's ranks.
	DPStartRank int    `json:"dp_start_rank,omitempty"`
	Breaker     string `json:"breaker"` // the worst of its ranks'
	// BreakerReason is how the rank of that breaker failed last, while it is not closed.
	BreakerReason string            `json:"breaker_reason,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	// Priority is that among the workers with room; see config.Worker.
	Priority int `json:"priority"`
	// TopologyDomain is where it stands for the transfer of KV cache.
	TopologyDomain string `json:"topology_domain,omitempty"`
	Generation     uint64 `json:"generation"`
	Version        string `json:"version,omitempty"`
	// Source is who declares it: "requests" for a worker that was registered by request.
	// Origin is where an operator finds it there.
	Source string `json:"source,omitempty"`
	Origin string `json:"origin,omitempty"`
	// NotReady is why its source says that it must not be chosen.
	NotReady string `json:"not_ready,omitempty"`
	// Drained: it gets no new requests, because it was drained by request.
	Drained bool `json:"drained,omitempty"`
	// Patched are the settings that a request changed on top of what its source declares.
	Patched []string `json:"patched,omitempty"`
	// LeaveBy is when a draining worker is removed at the latest.
	LeaveBy *time.Time `json:"leave_by,omitempty"`
	// Tokenizer is how its text becomes tokens; nil for engines that take text.
	Tokenizer *TokenizerInfo `json:"tokenizer,omitempty"`
	// Reason says why it is not healthy, or what the last check found.
	Reason string `json:"reason,omitempty"`
	// Busy: it failed its last check and that was forgiven.
	Busy bool `json:"busy,omitempty"`
	// Suspect is set while a worker's last check has failed, or the running one fails,
	// and requests do not explain it; and while a rank is suspect.
	Suspect *SuspectInfo `json:"suspect,omitempty"`
	// Dead: it does not answer at all.
	Dead bool `json:"dead,omitempty"`
	// MissingRoutes are information routes it does not have.
	MissingRoutes []string `json:"missing_routes,omitempty"`
	// MissingCapacity are capacities that classes go by and that are not known.
	MissingCapacity []string   `json:"missing_capacity,omitempty"`
	Warnings        []string   `json:"warnings,omitempty"`
	Ranks           []RankInfo `json:"ranks"`
}

// SuspectInfo says since when a worker's checks fail without requests that would
// explain it, and how the first of them failed; or since when a rank makes no progress.
type SuspectInfo struct {
	Since   time.Time `json:"since"`
	ForSecs float64   `json:"for_secs"`
	Why     string    `json:"why"`
}

// suspectLocked is nil for a worker that is not suspect.
func (w *Worker) suspectLocked(now admission.Instant) *SuspectInfo {
	v := &w.health
	if v.suspect {
		return newSuspectInfo(now, v.suspectSince, v.suspectReason)
	}
	for _, r := range w.Ranks() {
		if i := r.doubtInfo(now, suspect); i != nil {
			return i
		}
	}
	return nil
}

func newSuspectInfo(now, since admission.Instant, why string) *SuspectInfo {
	d := now.Sub(since).Round(time.Millisecond)
	return &SuspectInfo{Since: time.Now().Add(-d).UTC().Round(time.Millisecond), ForSecs: d.Seconds(), Why: why}
}

// doubtInfo tells of a rank that is in a state; nil: it is not.
func (r *Rank) doubtInfo(now admission.Instant, in hangState) *SuspectInfo {
	h := &r.hang
	if h.state != in {
		return nil
	}
	return newSuspectInfo(now, h.since, h.why)
}

// RankInfo is one rank of a worker in Info.
type RankInfo struct {
	ID           string `json:"id"`
	Load         int    `json:"load"`
	PrefillSlots int    `json:"prefill_slots"`
	// WarmingSecs is how long it still warms up, in seconds; see worker_warmup_secs.
	WarmingSecs float64 `json:"warming_up_secs,omitempty"`
	// SlotLimit and RunningLimit are the most of them and of its calls; absent: any number.
	SlotLimit     int    `json:"prefill_slot_limit,omitempty"`
	RunningLimit  int64  `json:"running_limit,omitempty"`
	PendingDecode int    `json:"pending_decode"`
	ActiveDecode  int    `json:"active_decode"`
	Breaker       string `json:"breaker"`
	// LastFailure is how a leg last failed here by the engine's doing.
	LastFailure *FailureInfo `json:"last_failure,omitempty"`
	Candidate   bool         `json:"candidate"`
	// Room is that of admission.RankStats: the thresholds of classes do not count.
	Room bool `json:"room"`
	// The capacities that are known of it.
	MaxBatchedTokens   int64 `json:"max_num_batched_tokens,omitempty"`
	TotalKVBlocks      int64 `json:"total_kv_blocks,omitempty"`
	BlockSize          int64 `json:"block_size,omitempty"`
	MaxRunningRequests int64 `json:"max_running_requests,omitempty"`
	// Cluster is what the members of a cluster know together; absent without one.
	Cluster *ClusterInfo `json:"cluster,omitempty"`
	// Reported is what the engine itself says about its load.
	Reported *ReportedInfo `json:"reported,omitempty"`
	// KVCache is how it is known what its KV cache holds.
	KVCache *KVCacheInfo `json:"kv_cache,omitempty"`
	// DriftBlocks are the KV blocks that it reports in use, less those that were active by
	// the bookings when it was asked; of decode and regular ranks whose report counts.
	DriftBlocks *int64 `json:"decode_blocks_drift,omitempty"`
	// Vetoed: no room because of what it reports.
	Vetoed bool `json:"vetoed,omitempty"`
	// Suspect: requests of it make no progress, and its scheduler is being probed.
	// Wedged: nor does its scheduler, so that it gets no requests.
	Suspect *SuspectInfo `json:"suspect,omitempty"`
	Wedged  *SuspectInfo `json:"wedged,omitempty"`
	// QuietSecs is how long it has made no progress, 0 if it has nothing that could make
	// any. The others are the ages of the oldest request under way whose prompt is
	// computed here, and whose answer is.
	QuietSecs         float64 `json:"quiet_secs"`
	OldestPrefillSecs float64 `json:"oldest_prefill_secs"`
	OldestDecodeSecs  float64 `json:"oldest_decode_secs"`
}

// FailureInfo is the failure of a leg in Info, without the engine's own words.
type FailureInfo struct {
	What       string  `json:"what"`
	AgeSeconds float64 `json:"age_secs"`
}

func (r *Rank) failureInfo(now admission.Instant) *FailureInfo {
	l := r.lastFailure.Load()
	if l == nil {
		return nil
	}
	return &FailureInfo{l.what, max(0, now.Sub(l.at).Round(time.Millisecond).Seconds())}
}

// ReportedInfo is a RankLoad in Info.
type ReportedInfo struct {
	Running       int64   `json:"running"`
	Waiting       int64   `json:"waiting"`
	WaitingTokens int64   `json:"waiting_tokens"`
	UsedTokens    int64   `json:"used_tokens"`
	TokenUsage    float64 `json:"token_usage"`
	AgeSeconds    float64 `json:"age_secs"`
	// Stale: it is so old that it does not count any more.
	Stale bool `json:"stale,omitempty"`
}

func (r *Rank) reportedInfo(now admission.Instant) *ReportedInfo {
	l, at, ok := r.Reported()
	if !ok {
		return nil
	}
	age := now.Sub(at).Round(time.Millisecond).Seconds()
	d := r.worker.fleet.cfg.Health.LoadMonitor
	return &ReportedInfo{l.Running, l.Waiting, l.WaitingTokens, l.UsedTokens, l.Usage, age, d > 0 && now.Sub(at) >= reportCounts*d}
}

// Infos describes all workers in the order of registration.
func (f *Fleet) Infos() []Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	infos := make([]Info, 0, len(f.workers))
	var places [admission.RoleEncode + 1]int
	for _, w := range f.workers {
		infos = append(infos, w.infoLocked(places[w.role]))
		places[w.role]++
	}
	return infos
}

// Info describes one worker.
func (w *Worker) Info() Info {
	f := w.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	place := 0
	for _, o := range f.workers {
		if o == w {
			break
		}
		if o.role == w.role {
			place++
		}
	}
	return w.infoLocked(place)
}

// Status returns where the worker is in its life.
func (w *Worker) Status() Status {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	return w.statusLocked()
}

func (w *Worker) statusLocked() Status {
	switch {
	case w.draining || w.removed:
		return StatusDraining
	case w.health.healthy && (w.withheldLocked() || w.modelProblem != "" || w.textHeldLocked()):
		return StatusPending
	case w.health.healthy && w.drained:
		return StatusDrained
	case w.health.healthy && w.notReady != "":
		return StatusNotReady
	case w.health.healthy && w.wedgedLocked():
		return StatusUnhealthy
	case w.health.healthy:
		return StatusReady
	case w.health.everHealthy:
		return StatusUnhealthy
	}
	return StatusPending
}

func (w *Worker) infoLocked(place int) Info {
	facts := w.Facts()
	i := Info{
		ID: w.id, URL: w.url, WorkerType: w.role.String(), IsHealthy: w.health.healthy,
		Status: w.statusLocked(), Index: place, Models: append([]string{}, w.models...), Backend: w.Backend(),
		DPSize: max(len(w.Ranks()), 1), DPStartRank: facts.FirstRank, Labels: w.spec.Load().Labels, Generation: w.Generation(), Version: facts.Version,
		Reason: w.health.reason, Busy: w.health.forgiven, Dead: w.health.dead,
		Connector: w.Connector(), Pairing: w.pairingNotes, Transfer: w.transfers.state(), MaxModelLen: facts.MaxModelLen(),
		TopologyDomain: w.spec.Load().TopologyDomain, Adapters: w.adapters(), Source: w.source, Origin: w.origin, NotReady: w.notReady,
		Priority: priorityOf(w.spec.Load()), Drained: w.drained, Patched: w.overlay.names(),
		Tokenizer:     w.tokenizerInfoLocked(),
		MissingRoutes: facts.Missing, MissingCapacity: w.missingCapacity(), Warnings: w.warnings(),
	}
	if len(w.models) > 0 {
		i.ModelID = w.models[0]
	}
	if w.role == admission.RolePrefill && w.Dialect().UsesBootstrap(w.Connector()) {
		if _, port, ok := w.Bootstrap(); ok {
			i.BootstrapPort = &port
		}
	}
	worst, now := admission.BreakerClosed, w.fleet.clock.Now()
	var worstOf *Rank
	if w.wedgedLocked() {
		i.IsHealthy, i.Reason = false, "wedged: "+w.Ranks()[0].hang.why
	}
	w.fleet.lookLocked(w)
	for _, r := range w.Ranks() {
		b, _ := r.breaker.get()
		if b == admission.BreakerOpen || worst == admission.BreakerClosed {
			worst, worstOf = b, r
		}
		c := r.Capacity()
		ri := RankInfo{
			ID: r.id, Breaker: b.String(), Cluster: r.inCluster(), LastFailure: r.failureInfo(now), Reported: r.reportedInfo(now), KVCache: r.cacheInfoLocked(),
			MaxBatchedTokens: c.MaxBatchedTokens, TotalKVBlocks: c.KVBlocks, BlockSize: c.BlockSize, MaxRunningRequests: c.MaxRunning,
		}
		if w.inGate {
			s := w.fleet.gate.RankStats(r.adm)
			ri.Load, ri.PrefillSlots, ri.PendingDecode, ri.ActiveDecode = s.Load(), s.PrefillSlots, s.PendingDecode, s.ActiveDecode
			ri.Candidate, ri.Room, ri.Vetoed = s.Candidate, s.Room, s.Reported.Vetoed
			if ri.Reported != nil && !ri.Reported.Stale && w.role != admission.RolePrefill && w.fleet.cfg.Health.LoadMonitor > 0 {
				ri.DriftBlocks = new(s.Drift())
			}
			if until := r.warmth.until; until != 0 {
				ri.WarmingSecs = max(until.Sub(now), time.Millisecond).Round(time.Millisecond).Seconds()
			}
			ri.SlotLimit, ri.RunningLimit = s.SlotLimit, s.RunningLimit
		}
		ri.Suspect, ri.Wedged = r.doubtInfo(now, suspect), r.doubtInfo(now, wedged)
		ri.QuietSecs, ri.OldestPrefillSecs, ri.OldestDecodeSecs = r.ages(now)
		i.Load += ri.Load
		i.Ranks = append(i.Ranks, ri)
	}
	for _, r := range w.oldRanks {
		i.Load += w.fleet.gate.RankStats(r).Load()
	}
	i.Reason = cmp.Or(i.Reason, w.modelProblem, w.textProblemLocked(), w.notReady)
	if w.draining && !w.removed {
		at := time.Now().Add(w.drainUntil.Sub(now)).UTC().Round(time.Second)
		i.LeaveBy = &at
	}
	i.Suspect = w.suspectLocked(now)
	i.Quarantined = w.fleet.quarantinedLocked(w, now)
	i.Breaker = worst.String()
	if worst != admission.BreakerClosed {
		if l := worstOf.failureInfo(now); l != nil {
			i.BreakerReason = l.What
		}
	}
	return i
}
