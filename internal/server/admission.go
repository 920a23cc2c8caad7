package server

import (
	"net/http"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// The JSON documents of /admission: the gate's state, and why it does not admit the next
// request. Times are in milliseconds.
type (
	admissionDoc struct {
		Limits       limitsDoc        `json:"limits"`
		Thresholds   thresholdsDoc    `json:"busy_thresholds"`
		Waiting      int              `json:"waiting"`
		WaitingBytes int64            `json:"waiting_bytes"`
		Queues       []queueDoc       `json:"queues"`
		Ranks        []rankDoc        `json:"ranks"`
		ClosedMS     map[string]int64 `json:"closed_ms"`
		Fences       uint64           `json:"fences"`
		Affinity     affinityDoc      `json:"affinity"`
		Unknown      uint64           `json:"unknown_classes"`
		Missed       uint64           `json:"missed_events"`
		Reload       *ReloadState     `json:"reload,omitempty"`
		Cluster      *gateOfDoc       `json:"cluster,omitempty"`
	}
	limitsDoc struct {
		PrefillSlots    int   `json:"prefill_max_inflight_requests_per_worker"`
		QueueSize       int   `json:"queue_size"`
		QueueTimeoutMS  int64 `json:"queue_timeout_ms"`
		MaxWaitingBytes int64 `json:"max_waiting_bytes,omitempty"`
		GuardMS         int64 `json:"starvation_guard_ms,omitempty"`
		RefuseEarly     bool  `json:"refuse_early,omitempty"`
	}
	// affinityDoc is late binding, and what is lost without it: tokens that were cached on
	// workers without room.
	affinityDoc struct {
		Lookahead     int    `json:"lookahead"`
		MaxPasses     int    `json:"max_passes"`
		WaitMS        int64  `json:"wait_ms"`
		Lost          uint64 `json:"cache_tokens_lost"`
		LostPerMinute int64  `json:"cache_tokens_lost_per_minute"`
		Remedy        string `json:"remedy,omitempty"`
	}
	thresholdsDoc struct {
		DecodeBlocks  *float64 `json:"active_decode_blocks_threshold"`
		PrefillTokens *int64   `json:"active_prefill_tokens_threshold"`
		PrefillFrac   *float64 `json:"active_prefill_tokens_threshold_frac"`
	}
	queueDoc struct {
		Models   []string   `json:"models"`
		Depth    int        `json:"depth"`
		OldestMS int64      `json:"oldest_wait_ms"`
		ClosedBy string     `json:"closed_by"`
		Fence    *fenceDoc  `json:"fence,omitempty"`
		Classes  []classDoc `json:"classes"`
	}
	fenceDoc struct {
		Class    string `json:"class"`
		WaitedMS int64  `json:"waited_ms"`
		Prefill  string `json:"prefill,omitempty"`
		Decode   string `json:"decode,omitempty"`
	}
	classDoc struct {
		Profile      string        `json:"model_profile,omitempty"`
		Class        string        `json:"class"`
		Depth        int           `json:"depth"`
		Lanes        int           `json:"lanes"`
		RawTokens    int64         `json:"queued_prompt_tokens"`
		CachedTokens int64         `json:"queued_cached_tokens"`
		HeadMS       int64         `json:"head_wait_ms"`
		OldestMS     int64         `json:"oldest_wait_ms"`
		Deficit      int64         `json:"deficit"`
		ClosedBy     string        `json:"closed_by"`
		Short        []shortageDoc `json:"short_of,omitempty"`
		Fenced       bool          `json:"fenced"`
		EstimatedMS  int64         `json:"estimated_wait_ms"`
		Never        bool          `json:"never_queues,omitempty"`
		// HeldUp: a blocked head of the queue holds up requests that could start.
		HeldUp *heldUpDoc `json:"held_up,omitempty"`
	}
	heldUpDoc struct {
		Requests int    `json:"requests"`
		ForMS    int64  `json:"for_ms"`
		Remedy   string `json:"remedy"`
	}
	shortageDoc struct {
		Rank     string `json:"rank"`
		Role     string `json:"role"`
		Resource string `json:"resource"`
		Short    int64  `json:"short"`
		Of       int64  `json:"of"`
	}
	capacityDoc struct {
		MaxBatchedTokens int64 `json:"max_num_batched_tokens,omitempty"`
		KVBlocks         int64 `json:"total_kv_blocks,omitempty"`
		BlockSize        int64 `json:"block_size,omitempty"`
		MaxRunning       int64 `json:"max_running_requests,omitempty"`
	}
	doubtDoc struct {
		Waiting       int64 `json:"waiting"`
		WaitingTokens int64 `json:"waiting_tokens"`
		Running       int64 `json:"running"`
		UsedTokens    int64 `json:"used_tokens"`
		AgeMS         int64 `json:"age_ms"`
	}
	rankDoc struct {
		ID            string   `json:"id"`
		WorkerID      string   `json:"worker_id"`
		Role          string   `json:"role"`
		Models        []string `json:"models"`
		Candidate     bool     `json:"candidate"`
		Room          bool     `json:"room"` // without the thresholds of classes
		Breaker       string   `json:"breaker"`
		Slots         int      `json:"prefill_slots"`
		PrefillTokens int64    `json:"prefill_tokens"`
		Pending       int      `json:"decode_requests_pending"`
		Active        int      `json:"decode_requests_active"`
		PendingBlocks int64    `json:"decode_blocks_pending"`
		ActiveBlocks  int64    `json:"decode_blocks_active"`
		// Unbooked are the blocks that its engine reports beyond the active ones.
		UnbookedBlocks int64       `json:"decode_blocks_unbooked"`
		Capacity       capacityDoc `json:"capacity"`
		// Vetoed: no room because of what its engine reports.
		Vetoed      bool     `json:"vetoed,omitempty"`
		Overloaded  bool     `json:"overloaded,omitempty"`
		Fenced      bool     `json:"fenced,omitempty"`
		Missing     []string `json:"missing_capacity,omitempty"`
		Quarantined []string `json:"barred_pairs,omitempty"`
		// Doubt is the engine's own report, if requests wait inside the engine
		// although the rank has room by the gate's bookings.
		Doubt *doubtDoc `json:"doubt,omitempty"`
	}
)

// heldUpRemedy is the option by which a blocked head holds up only those that need
// the same workers.
const heldUpRemedy = "--queue-order lanes"

// ReloadState is the result of the last reload of the configuration.
type ReloadState struct {
	Generation int       `json:"generation"`
	Loaded     time.Time `json:"loaded"`
	Trigger    string    `json:"trigger,omitempty"`
	// Error is why the last reload failed; empty: it did not.
	Error    string   `json:"error,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Reloader reads the configuration again. See Options.Reload.
type Reloader interface {
	// Reload applies the configuration files, or keeps the configuration in force and
	// returns why.
	Reload() error
	State() ReloadState
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

// closedName is the name of a resource, empty for ResourceNone.
func closedName(r admission.Resource) string {
	if r == admission.ResourceNone {
		return ""
	}
	return r.String()
}

// admission shows the gate's state: queues, ranks, and what requests are waiting for.
func (q *request) admission() {
	// The reload state is read first, so that the gate's snapshot includes what it
	// reports as applied.
	var reload *ReloadState
	if r := q.s.opts.Reload; r != nil {
		state := r.State()
		reload = &state
	}
	st, of := q.gateStats()
	doc := admissionDoc{
		Reload: reload, Cluster: of,
		Limits: limitsDoc{
			PrefillSlots: st.Limits.PrefillSlots, QueueSize: st.Limits.QueueSize, QueueTimeoutMS: ms(st.Limits.QueueTimeout),
			MaxWaitingBytes: st.Limits.MaxWaitingBytes, GuardMS: ms(st.Limits.StarvationGuard),
			RefuseEarly: st.Limits.RefuseEarly,
		},
		Thresholds: thresholdsOf(st.Reject),
		Waiting:    st.Waiting, WaitingBytes: st.WaitingBytes,
		Queues: []queueDoc{}, Ranks: []rankDoc{}, ClosedMS: map[string]int64{},
		Affinity: affinityDoc{
			Lookahead: max(st.Limits.AffinityLookahead, 1), MaxPasses: st.Limits.AffinityMaxPasses, WaitMS: ms(st.Limits.AffinityWait),
			Lost: st.CacheTokensLost, LostPerMinute: st.CacheTokensLostPerMinute,
		},
		Fences: st.Fences, Unknown: st.UnknownClasses, Missed: st.MissedEvents,
	}
	if st.Limits.AffinityLookahead <= 1 {
		doc.Affinity.Remedy = q.s.cfg.LookaheadRemedy()
	}
	for by, d := range st.ClosedFor {
		doc.ClosedMS[by.String()] = ms(d)
	}
	for i := range st.Queues {
		doc.Queues = append(doc.Queues, queueOf(&st.Queues[i]))
	}
	ids := map[string]string{}
	reported := map[string]*fleet.ReportedInfo{}
	for _, w := range q.s.opts.Fleet.Infos() { // under one lock, however many there are
		ids[w.URL] = w.ID
		for _, r := range w.Ranks {
			reported[r.ID] = r.Reported
		}
	}
	for i := range st.Ranks {
		rank := rankOf(&st.Ranks[i])
		rank.WorkerID = ids[st.Ranks[i].Worker]
		rank.Doubt = doubtOf(&st.Ranks[i], reported[rank.ID])
		doc.Ranks = append(doc.Ranks, rank)
	}
	q.document(http.StatusOK, &doc)
}

func queueOf(f *admission.QueueStats) queueDoc {
	d := queueDoc{Models: f.Models, Depth: f.Depth, OldestMS: ms(f.OldestWait), ClosedBy: closedName(f.ClosedBy), Classes: []classDoc{}}
	if f.Fence != nil {
		d.Fence = &fenceDoc{Class: f.Fence.Class, WaitedMS: ms(f.Fence.Waited), Prefill: f.Fence.Prefill, Decode: f.Fence.Decode}
	}
	for i := range f.Classes {
		c := &f.Classes[i]
		one := classDoc{
			Profile: c.Profile, Class: c.Class, Depth: c.Depth, Lanes: c.Lanes, RawTokens: c.RawTokens, CachedTokens: c.CachedTokens,
			HeadMS: ms(c.HeadWait), OldestMS: ms(c.OldestWait), Deficit: c.Deficit, ClosedBy: closedName(c.ClosedBy),
			Fenced: c.Fenced, EstimatedMS: ms(c.EstimatedWait), Never: c.Never,
		}
		if c.HeldUp > 0 {
			one.HeldUp = &heldUpDoc{Requests: c.HeldUp, ForMS: ms(c.HeldUpFor), Remedy: heldUpRemedy}
		}
		for _, s := range c.Short {
			one.Short = append(one.Short, shortageDoc{Rank: s.Rank, Role: s.Role.String(), Resource: s.Resource.String(), Short: s.Short, Of: s.Of})
		}
		d.Classes = append(d.Classes, one)
	}
	return d
}

func rankOf(r *admission.RankStats) rankDoc {
	d := rankDoc{
		ID: r.ID, Role: r.Role.String(), Models: r.Models, Candidate: r.Candidate, Room: r.Room, Breaker: r.State.Breaker.String(),
		Slots: r.PrefillSlots, PrefillTokens: r.PrefillTokens, Pending: r.PendingDecode, Active: r.ActiveDecode,
		PendingBlocks: r.PendingBlocks, ActiveBlocks: r.ActiveBlocks, Capacity: capacityDoc(r.Capacity),
		UnbookedBlocks: r.Reported.Unbooked, Vetoed: r.Reported.Vetoed,
		Overloaded: r.Overloaded, Fenced: r.Fenced, Quarantined: r.Quarantined,
	}
	if r.MissingTokens {
		d.Missing = append(d.Missing, "max_num_batched_tokens")
	}
	if r.MissingBlocks {
		d.Missing = append(d.Missing, "total_kv_blocks")
	}
	return d
}

// doubtOf returns the engine's report if it contradicts the room of a rank: requests wait
// inside the engine, or prompt tokens of such requests (engines may report one without
// the other). Otherwise it returns nil.
func doubtOf(r *admission.RankStats, reported *fleet.ReportedInfo) *doubtDoc {
	if !r.Room || reported == nil || reported.Waiting <= 0 && reported.WaitingTokens <= 0 {
		return nil
	}
	return &doubtDoc{
		Waiting: reported.Waiting, WaitingTokens: reported.WaitingTokens, Running: reported.Running, UsedTokens: reported.UsedTokens,
		AgeMS: int64(reported.AgeSeconds * 1000),
	}
}

// reload reads the configuration again.
func (q *request) reload() {
	r := q.s.opts.Reload
	if r == nil {
		q.refuse(openai.InvalidRequest("", "this router was started without anything to reload"), reasonBadRequest)
		return
	}
	err := r.Reload()
	state := r.State()
	if err != nil {
		e := openai.InvalidRequest("", "the configuration is not valid and the last good one stays in force: %s", err)
		q.refuse(e, reasonBadRequest)
		return
	}
	q.log("configuration is reloaded by request")
	q.document(http.StatusOK, &state)
}

// log logs a change that a client requested.
func (q *request) log(what string, more ...any) {
	q.s.log.Info(what, append(q.orderedBy(), more...)...)
}

// orderedBy is who ordered a change, for the log: the id and the client of the
// request's access line.
func (q *request) orderedBy() []any {
	by := []any{"request", q.call.ID, "client", peer(q.r.RemoteAddr)}
	if q.key != "" {
		by = append(by, "key", q.key)
	}
	return by
}

func thresholdsOf(r admission.RejectThresholds) thresholdsDoc {
	return thresholdsDoc{DecodeBlocks: r.ActiveDecodeBlocks, PrefillTokens: r.ActivePrefillTokens, PrefillFrac: r.ActivePrefillTokensFrac}
}

// busyThreshold shows or changes the reject thresholds. A field that is absent
// keeps its value, null removes the threshold.
func (q *request) busyThreshold() {
	gate := q.s.opts.Gate
	if q.r.Method == http.MethodPost {
		body, ok := q.smallBody()
		if !ok {
			return
		}
		next, e := readThresholds(body, q.thresholdsInForce())
		if e != nil {
			q.refuse(e, reasonBadRequest)
			return
		}
		gate.SetRejectThresholds(next)
		q.log("reject thresholds are changed by request")
		doc := thresholdsOf(next)
		q.document(http.StatusOK, &doc)
		return
	}
	doc := thresholdsOf(q.thresholdsInForce())
	q.document(http.StatusOK, &doc)
}

// thresholdsInForce are those of the gate: in a cluster those of all members.
func (q *request) thresholdsInForce() admission.RejectThresholds {
	if q.s.opts.Cluster == nil {
		return q.s.opts.Gate.RejectThresholds()
	}
	st, of := q.gateStats()
	if !of.Whole {
		return q.s.opts.Gate.RejectThresholds()
	}
	return st.Reject
}

// smallBody reads the body of one of the router's own routes, or answers with the error.
// Its memory is not counted in buffers, so that an operator can add a worker while
// requests use all of --max-buffered-bytes. maxWorkerBody bounds it.
func (q *request) smallBody() ([]byte, bool) {
	q.maxBody = min(q.maxBody, maxWorkerBody)
	body, p := q.readSmall()
	switch {
	case p == nil:
		return body, true
	case p.answer == nil:
		q.reason = p.reason
	default:
		q.refuse(p.answer, p.reason)
	}
	return nil, false
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func readThresholds(body []byte, old admission.RejectThresholds) (admission.RejectThresholds, *openai.Error) {
	// Copies: decoding writes through existing pointers, and these are the gate's and
	// the configuration's.
	in := thresholdsDoc{DecodeBlocks: clone(old.ActiveDecodeBlocks), PrefillTokens: clone(old.ActivePrefillTokens), PrefillFrac: clone(old.ActivePrefillTokensFrac)}
	if err := readStrict(body, &in, "tell thresholds"); err != nil {
		return old, err
	}
	next := admission.RejectThresholds{ActiveDecodeBlocks: in.DecodeBlocks, ActivePrefillTokens: in.PrefillTokens, ActivePrefillTokensFrac: in.PrefillFrac}
	if err := next.Validate(); err != nil {
		return old, openai.InvalidRequest("", "%s", err)
	}
	return next, nil
}
