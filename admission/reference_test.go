package admission

import (
	"fmt"
	"math"
	"slices"
)

// reference is the contract of the gate, written down as plainly as possible:
// lists, scans and no indexes. Where a policy chooses, it accepts any choice
// with room and follows it. Of the code it takes only names: which family and
// queue of a profile a model belongs to; checkFamilies proves those right.
type reference struct {
	limits             Limits
	reject             RejectThresholds
	classes            *Classes
	strict             bool       // one lane a class
	ranks              []*refRank // registered ones
	gone               []*refRank
	bars               []refBar
	waiters            []*refTicket // in no order
	seq                uint64
	stopped, noWaits   bool
	leastLoaded        bool // the policy under test
	decided            []*refTicket
	arriving           *refTicket
	deficit            map[refQueue]int64
	cursor             map[*profileQueue]int
	closed             int64 // nanoseconds with a blocked head, over all queues
	complaint          error
	grants, refusals   int
	retried, postponed int
	reasons            [numReasons]int
	moved, credited    int
}

type refRank struct {
	real    *Rank
	state   RankState
	slots   int
	legs    int
	pending int
	active  int
	tokens  int64
	blocks  [2]int64 // pending, active
	probes  int
	epoch   int
}

type refBar struct{ prefill, decode *refRank }

// refQueue is the waiters of one class in one family.
type refQueue struct {
	profile *profileQueue
	class   string
}

type refTicket struct {
	real     *Ticket
	model    string
	exclude  [numLegs][]*refRank
	arrived  bool
	arrival  Instant
	seq      uint64
	queued   bool
	queuedAt Instant
	waited   int64
	limitAt  Instant
	lostAt   Instant
	classAt  Instant
	state    ticketState
	reason   Reason
	kind     LimitKind
	current  int64
	limit    int64
	depth    int

	class   *Class
	weight  int64
	orderBy Instant
	raw     int64
	cached  int64
	queue   refQueue // that it waits in

	prefill, decode        *refRank // that it holds
	prefillWas             *refRank
	tokens, blocks         int64
	active                 bool
	prefillEpoch, decEpoch int // of the probe it holds, 0: none
}

func (m *reference) complain(format string, args ...any) {
	if m.complaint == nil {
		m.complaint = fmt.Errorf(format, args...)
	}
}

func (r *refRank) serves(model string) bool {
	return slices.Contains(r.real.models, model) || len(r.real.models) == 0 && model == ""
}

func (r *refRank) candidate() bool {
	return r.state.Healthy && !r.state.Draining && r.state.Breaker != BreakerOpen
}

// part is frac of whole, with what floating point lacks to a decimal fraction.
func part(frac float64, whole int64) float64 { return frac*float64(whole) + 1e-6 }

func (m *reference) over(r *refRank) bool {
	c := r.real.capacity
	if v := m.reject.ActivePrefillTokens; v != nil && r.tokens > *v {
		return true
	}
	if v := m.reject.ActivePrefillTokensFrac; v != nil && c.MaxBatchedTokens > 0 && float64(r.tokens) > part(*v, c.MaxBatchedTokens) {
		return true
	}
	v := m.reject.ActiveDecodeBlocks
	return v != nil && r.real.role != RolePrefill && c.KVBlocks > 0 && float64(r.blocks[0]+r.blocks[1]) > part(*v, c.KVBlocks)
}

func (m *reference) room(r *refRank) bool {
	if !r.candidate() || m.over(r) || r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		return false
	}
	return r.real.role != RolePrefill || m.limits.PrefillSlots <= 0 || r.slots < m.limits.PrefillSlots
}

func (r *refRank) assumed() bool {
	most := 64
	if r.real.capacity.MaxRunning > 0 {
		most = int(r.real.capacity.MaxRunning)
	}
	return r.load() < most
}

// calm tells whether a rank is not busy in prefill for the class of t.
func (t *refTicket) calm(r *refRank) bool {
	if v := t.class.PrefillBusyTokens; v != nil && r.tokens > *v {
		return false
	}
	v := t.class.PrefillBusyFrac
	if v == nil {
		return true
	}
	if r.real.capacity.MaxBatchedTokens == 0 {
		return r.assumed()
	}
	return float64(r.tokens) <= part(*v, r.real.capacity.MaxBatchedTokens)
}

func (t *refTicket) need(r *refRank) int64 {
	size := r.real.capacity.BlockSize
	if size == 0 {
		size = 16
	}
	legs := int64(t.real.legs())
	leg := math.Ceil(float64(t.real.PromptTokens)/float64(legs)) + float64(t.real.ReserveTokens)
	return legs * int64(math.Ceil(leg/float64(size)))
}

// fitsOn tells whether the blocks of t fit on r for its class.
func (t *refTicket) fitsOn(r *refRank) bool {
	v := t.class.DecodeBusyFrac
	switch {
	case v == nil || r.pending+r.active == 0:
		return true
	case r.real.capacity.KVBlocks == 0:
		return r.assumed()
	}
	return float64(r.blocks[0]+r.blocks[1]+t.need(r)) <= part(*v, r.real.capacity.KVBlocks)
}

// refPair is a choice; prefill is nil for a request that needs one rank.
type refPair struct{ prefill, decode *refRank }

func (t *refTicket) single() bool { return t.real.Target.shape != Disaggregated }

func (t *refTicket) role(l Leg) Role {
	switch {
	case t.real.Target.shape == Aggregated:
		return RoleRegular
	case t.real.Target.shape == Disaggregated && l == PrefillLeg:
		return RolePrefill
	}
	return RoleDecode
}

func (m *reference) fits(t *refTicket, l Leg, r *refRank) bool {
	return r.real.role == t.role(l) && r.serves(t.model) && specAdmits(&t.real.Target.spec, l, r.real)
}

func (m *reference) choices(t *refTicket, ok func(*refRank) bool, avoid legSet) (all []refPair) {
	side := func(l Leg) (rs []*refRank) {
		for _, r := range m.ranks {
			if m.fits(t, l, r) && ok(r) && !(avoid&(1<<l) != 0 && slices.Contains(t.exclude[l], r)) {
				rs = append(rs, r)
			}
		}
		return rs
	}
	for _, d := range side(DecodeLeg) {
		if t.single() {
			all = append(all, refPair{nil, d})
			continue
		}
		for _, p := range side(PrefillLeg) {
			if p.real.group == d.real.group &&
				(t.real.Target.spec.Topology != TopologyRequired || p.real.topology == d.real.topology) &&
				!(avoid&onPairs != 0 && slices.Contains(m.bars, refBar{p, d})) {
				all = append(all, refPair{p, d})
			}
		}
	}
	return all
}

func (m *reference) hasCandidate(t *refTicket) bool {
	return len(m.choices(t, (*refRank).candidate, 0)) > 0
}

func (m *reference) avoid(t *refTicket) legSet {
	for _, legs := range []legSet{
		onPrefill | onDecode | onPairs, onPrefill | onDecode, onPrefill | onPairs, onPrefill,
		onDecode | onPairs, onDecode, onPairs,
	} {
		if len(m.choices(t, (*refRank).candidate, legs)) > 0 {
			return legs
		}
	}
	return 0
}

// overloaded tells whether t has candidates and all are over a reject threshold.
func (m *reference) overloaded(t *refTicket) bool {
	avoid := m.avoid(t)
	return m.hasCandidate(t) && len(m.choices(t, func(r *refRank) bool { return r.candidate() && !m.over(r) }, avoid)) == 0
}

// open is what t could be given now.
func (m *reference) open(t *refTicket) []refPair { return m.openTo(t, nil) }

// openTo is open with a fence; the owner of it is not judged by the ratio of
// busy ranks.
func (m *reference) openTo(t *refTicket, x *refFence) []refPair {
	avoid := m.avoid(t)
	if v := t.class.BusyWorkerRatio; v != nil && (x == nil || x.owner != t) && (t.class.PrefillBusyTokens != nil || t.class.PrefillBusyFrac != nil) {
		eligible, busy := map[*refRank]bool{}, 0
		for _, c := range m.choices(t, (*refRank).candidate, avoid) {
			r := c.prefill
			if r == nil {
				r = c.decode
			}
			if !eligible[r] && !t.calm(r) {
				busy++
			}
			eligible[r] = true
		}
		if float64(busy) >= *v*float64(len(eligible)) {
			return nil
		}
	}
	open := m.choices(t, m.room, avoid)
	return slices.DeleteFunc(open, func(c refPair) bool {
		gate := c.prefill
		if gate == nil {
			gate = c.decode
		}
		return !t.calm(gate) || !t.fitsOn(c.decode) || x != nil && x.owner != t && !m.spared(t, c, x)
	})
}

// related tells whether two models compete: they are one, or are joined by
// ranks that serve several.
func (m *reference) related(a, b string) bool {
	seen := []string{a}
	for i := 0; i < len(seen); i++ {
		for _, r := range m.ranks {
			if !slices.Contains(r.real.models, seen[i]) {
				continue
			}
			for _, name := range r.real.models {
				if !slices.Contains(seen, name) {
					seen = append(seen, name)
				}
			}
		}
	}
	return slices.Contains(seen, b)
}

func (t *refTicket) older(o *refTicket) bool {
	return t.arrival < o.arrival || t.arrival == o.arrival && t.seq < o.seq
}

// score is what the order of the class goes by, the highest first.
func (t *refTicket) score() float64 {
	switch t.class.Order {
	case WSPT:
		return (1 + t.real.PriorityJump) / float64(max(t.weight, 1))
	case LCFS:
		return t.real.PriorityJump*1e9 + float64(t.arrival)
	}
	return t.real.PriorityJump*1e9 - float64(t.arrival)
}

// ahead is the order within a class.
func (t *refTicket) ahead(o *refTicket) bool {
	switch {
	case t.real.StrictPriority != o.real.StrictPriority:
		return t.real.StrictPriority > o.real.StrictPriority
	case t.orderBy != o.orderBy:
		return t.orderBy < o.orderBy
	case t.score() != o.score():
		return t.score() > o.score()
	}
	return t.older(o)
}

func (m *reference) sameLane(t, o *refTicket) bool {
	return t.key() == o.key() && (m.strict || t.real.Target == o.real.Target &&
		slices.Equal(t.exclude[0], o.exclude[0]) && slices.Equal(t.exclude[1], o.exclude[1]))
}

// key is the queue t belongs to.
func (t *refTicket) key() refQueue { return refQueue{t.real.Target.model.queues, t.class.Name} }

// laneHead is the first of those t queues with, without it; nil when alone.
func (m *reference) laneHead(t *refTicket) (head *refTicket) {
	for _, o := range m.waiters {
		if o != t && m.sameLane(t, o) && (head == nil || o.ahead(head)) {
			head = o
		}
	}
	return head
}

// heads are the heads of the lanes of one queue, in order.
func (m *reference) heads(q refQueue) (heads []*refTicket) {
	for _, t := range m.waiters {
		if t.queue == q {
			if h := m.laneHead(t); h == nil || t.ahead(h) {
				heads = append(heads, t)
			}
		}
	}
	slices.SortFunc(heads, func(a, b *refTicket) int {
		if a.ahead(b) {
			return -1
		}
		return 1
	})
	return heads
}

func (m *reference) depth(q refQueue) (n int) {
	for _, t := range m.waiters {
		if t.queue == q {
			n++
		}
	}
	return n
}

func (t *refTicket) endsAt() Instant {
	end := min(t.limitAt, t.lostAt, t.classAt)
	if t.real.Deadline != 0 {
		end = min(end, t.real.Deadline)
	}
	return end
}

// queues is the number of queues somebody waits in.
func (m *reference) queues() int {
	seen := map[refQueue]bool{}
	for _, t := range m.waiters {
		seen[t.queue] = true
	}
	return len(seen)
}

// profile is the classes of a model.
func (m *reference) profile(model string) *Profile {
	if m.classes != nil {
		if p := m.classes.Models[model]; p != nil {
			return p
		}
		if m.classes.Root != nil {
			return m.classes.Root
		}
	}
	return &Profile{Classes: []Class{{Name: "default", Quantum: 1}}}
}

// classify finds the class of t from its name and weight.
func (m *reference) classify(t *refTicket) *Class {
	p := m.profile(t.model)
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Family == "" && c.Name == t.real.Class {
			return c
		}
	}
	bucket := ""
	for _, b := range p.Buckets {
		if b.MinTokens <= t.weight {
			bucket = b.Name
		}
	}
	find := func(family string) *Class {
		for i := range p.Classes {
			if c := &p.Classes[i]; c.Family != "" && c.Family == family && c.Bucket == bucket {
				return c
			}
		}
		return nil
	}
	if c := find(t.real.Class); c != nil {
		return c
	}
	if c := find(p.DefaultFamily); c != nil {
		return c
	}
	return &p.Classes[0]
}

// reclassify gives t the class of its name in the configuration in force, or
// finds it one.
func (m *reference) reclassify(t *refTicket) {
	p := m.profile(t.model)
	for i := range p.Classes {
		if p.Classes[i].Name == t.class.Name {
			t.class = &p.Classes[i]
			return
		}
	}
	t.class = m.classify(t)
}

func (m *reference) decide(t *refTicket, s ticketState) {
	t.state = s
	if t != m.arriving {
		m.decided = append(m.decided, t)
	}
}

func (m *reference) refuse(t *refTicket, why Reason) {
	m.refusals++
	t.depth = m.depth(t.key())
	if why == QueueFull {
		t.depth = len(m.waiters)
	}
	if t.real.Retry && why != Draining {
		why = RetryRefused
	}
	m.reasons[why]++
	t.reason = why
	t.kind, t.current, t.limit = LimitNone, 0, 0
	m.decide(t, stateRefused)
}

// liking is what the labels a target prefers make of a pair.
func (t *refTicket) liking(c refPair) (sum int) {
	s := &t.real.Target.spec
	add := func(l Leg, r *refRank) {
		for i, x := range s.Prefer[l] {
			if v, ok := r.real.labels[x.Key]; ok && v == x.Value && i < 4 {
				sum += x.Weight
			}
		}
	}
	if c.prefill != nil {
		add(PrefillLeg, c.prefill)
		if s.Topology == TopologyPreferred && c.prefill.real.topology == c.decode.real.topology {
			sum += max(s.TopologyWeight, 1)
		}
	}
	add(DecodeLeg, c.decode)
	return sum
}

// grant follows the choice of the code, if it is a right one.
func (m *reference) grant(t *refTicket, open []refPair) {
	m.grants++
	var chosen refPair
	found := false
	for _, c := range open {
		if c.decode.real == t.real.Decode && (c.prefill == nil) == (t.real.Prefill == nil) &&
			(c.prefill == nil || c.prefill.real == t.real.Prefill) {
			chosen, found = c, true
		}
	}
	m.decide(t, stateGranted)
	if !found {
		m.complain("a request (granted: %t) was to be granted one of %d choices, and got another", t.real.state == stateGranted, len(open))
		return
	}
	if len(m.bars) == 0 {
		for _, c := range open {
			if t.liking(c) > t.liking(chosen) {
				m.complain("a pair is liked for %d, but the chosen one for %d", t.liking(c), t.liking(chosen))
			}
		}
	}
	if m.leastLoaded && len(m.bars) == 0 {
		for _, c := range open {
			if t.liking(c) < t.liking(chosen) {
				continue
			}
			if c.prefill != nil && c.prefill.legs < chosen.prefill.legs {
				m.complain("%s has load %d, but %s has %d", chosen.prefill.real.id, chosen.prefill.legs, c.prefill.real.id, c.prefill.legs)
			}
			if c.prefill == chosen.prefill && c.decode.load() < chosen.decode.load() {
				m.complain("%s has load %d, but %s has %d", chosen.decode.real.id, chosen.decode.load(), c.decode.real.id, c.decode.load())
			}
		}
	}
	t.tokens = max(t.real.PromptTokens-t.real.CachedTokens, 0)
	if p := chosen.prefill; p != nil {
		p.slots++
		p.legs += t.real.legs()
		p.tokens += t.tokens
		if p.state.Breaker == BreakerHalfOpen {
			p.probes++
			t.prefillEpoch = p.epoch
		}
	} else {
		chosen.decode.tokens += t.tokens
	}
	t.prefill, t.prefillWas = chosen.prefill, chosen.prefill
	m.bookDecode(t, chosen.decode)
}

func (m *reference) bookDecode(t *refTicket, d *refRank) {
	t.decode, t.active = d, false
	t.blocks = t.need(d)
	d.pending += t.real.legs()
	d.blocks[0] += t.blocks
	if d.state.Breaker == BreakerHalfOpen {
		d.probes++
		t.decEpoch = d.epoch
	}
}

func (r *refRank) load() int {
	if r.real.role == RolePrefill {
		return r.legs
	}
	return r.pending + r.active
}

// drain grants to waiters until nobody can start.
func (m *reference) drain(now Instant) {
	for again := true; again; {
		again = false
		for _, f := range m.families() {
			if t := m.next(now, f); t != nil {
				open := m.open(t)
				m.charge(t)
				m.leaveAt(now, t)
				m.grant(t, open)
				again = true
			}
		}
	}
}

func (t *refTicket) cost() int64 {
	if t.real.Retry {
		return 0
	}
	return max(t.weight, 1)
}

func (m *reference) charge(t *refTicket) { m.deficit[t.key()] -= t.cost() }

// families are the profile queues somebody waits in, by family.
func (m *reference) families() (all [][]*profileQueue) {
	at := map[*family]int{}
	for _, t := range m.waiters {
		f, p := t.real.Target.model.family, t.queue.profile
		i, ok := at[f]
		if !ok {
			i = len(all)
			at[f] = i
			all = append(all, nil)
		}
		if !slices.Contains(all[i], p) {
			all[i] = append(all[i], p)
		}
	}
	return all
}

func (m *reference) next(now Instant, profiles []*profileQueue) (first *refTicket) {
	for _, p := range profiles {
		if t := m.nextIn(now, p); t != nil && (first == nil || t.older(first)) {
			first = t
		}
	}
	return first
}

// nextIn is one decision of the round robin between the classes of a profile.
func (m *reference) nextIn(now Instant, p *profileQueue) *refTicket {
	n := len(p.classes)
	if _, ok := m.cursor[p]; !ok {
		m.cursor[p] = n - 1
	}
	poor := map[int]*refTicket{}
	rounds := int64(math.MaxInt64)
	for i := range n {
		at := (m.cursor[p] + i) % n
		q := refQueue{p, p.classes[at].class.Name}
		t := m.startable(now, q)
		if t == nil {
			continue
		}
		if m.deficit[q] >= t.cost() {
			m.cursor[p] = at
			return t
		}
		poor[at] = t
		lacks := float64(t.cost() - m.deficit[q])
		rounds = min(rounds, int64(math.Ceil(lacks/float64(t.class.Quantum))))
	}
	if len(poor) > 0 {
		m.credited++
	}
	for at, t := range poor {
		m.deficit[refQueue{p, p.classes[at].class.Name}] += rounds * t.class.Quantum
	}
	for i := range n { // the one whose turn is over is the last
		at := (m.cursor[p] + 1 + i) % n
		if t := poor[at]; t != nil && m.deficit[t.queue] >= t.cost() {
			m.cursor[p] = at
			return t
		}
	}
	return nil
}

// startable is the first head of a class with room.
func (m *reference) startable(now Instant, q refQueue) *refTicket {
	for {
		refused := false
		for _, t := range m.heads(q) {
			if len(m.open(t)) > 0 {
				return t
			}
			if m.overloaded(t) {
				m.leaveAt(now, t)
				m.refuse(t, AllOverloaded)
				refused = true
				break
			}
		}
		if !refused {
			return nil
		}
	}
}

func (m *reference) leaveAt(now Instant, t *refTicket) {
	m.waiters = slices.DeleteFunc(m.waiters, func(o *refTicket) bool { return o == t })
	t.queued = false
	t.state = stateIdle
	t.waited += int64(now - t.queuedAt)
	if m.depth(t.queue) == 0 {
		delete(m.deficit, t.queue)
	}
}

// full tells which bound keeps t from queueing.
func (m *reference) full(t *refTicket) (why Reason, kind LimitKind, current, limit int64) {
	workers := map[string]bool{}
	role := t.role(PrefillLeg)
	for _, r := range m.ranks {
		if r.real.role == role && r.serves(t.model) {
			workers[r.real.worker] = true
		}
	}
	var n, raw, cached, bytes int64
	for _, o := range m.waiters {
		bytes += o.real.Bytes
		if o.queue == t.key() {
			n++
			raw += o.raw
			cached += o.cached
		}
	}
	for i, each := range []*float64{t.class.RequestLimitPerWorker, t.class.RawTokenLimitPerWorker, t.class.CachedTokenLimitPerWorker} {
		if each == nil {
			continue
		}
		limit := max(int64(*each*float64(len(workers))), 1)
		if *each == 0 {
			limit = 0
		}
		if current := []int64{n, raw, cached}[i]; current >= limit {
			return ClassQueueFull, []LimitKind{LimitRequests, LimitRawTokens, LimitCachedTokens}[i], current, limit
		}
	}
	if len(m.waiters) >= m.limits.QueueSize {
		return QueueFull, LimitRequests, int64(len(m.waiters)), int64(m.limits.QueueSize)
	}
	if m.limits.MaxWaitingBytes > 0 && bytes+t.real.Bytes > m.limits.MaxWaitingBytes {
		return QueueFull, LimitBytes, bytes, m.limits.MaxWaitingBytes
	}
	return reasonNone, LimitNone, 0, 0
}

func (t *refTicket) never() bool {
	zero := func(v *float64) bool { return v != nil && *v == 0 }
	return zero(t.class.RequestLimitPerWorker) || zero(t.class.RawTokenLimitPerWorker) || zero(t.class.CachedTokenLimitPerWorker)
}

func (m *reference) arrive(now Instant, t *refTicket) {
	m.expire(now)
	m.arriving = t
	defer func() { m.arriving = nil }()
	if !t.arrived {
		m.seq++
		t.arrived, t.arrival, t.seq = true, now, m.seq
		t.weight = max(t.real.PromptTokens-t.real.CachedTokens, 0)
		t.class = m.classify(t)
		t.orderBy = never
		if t.real.ClassDeadline != 0 {
			t.orderBy = t.real.ClassDeadline
		}
		if t.class.MaxWait > 0 {
			t.orderBy = min(t.orderBy, t.arrival.Add(t.class.MaxWait))
		}
	} else {
		m.reclassify(t)
	}
	left := never
	if m.limits.QueueTimeout > 0 {
		left = Instant(int64(m.limits.QueueTimeout) - t.waited)
	}
	t.classAt = never
	if t.real.ClassDeadline != 0 {
		t.classAt = t.real.ClassDeadline
	}
	if w := t.class.MaxWait; w > 0 {
		t.classAt = min(t.classAt, now+Instant(int64(w)-t.waited))
	}
	candidate := m.hasCandidate(t)
	head := m.laneHead(t)
	first := head == nil || t.ahead(head)
	open := m.open(t)
	why, kind, current, limit := m.full(t)
	switch {
	case m.stopped && !t.real.Retry:
		m.refuse(t, Draining)
	case !candidate && m.limits.NoWorkerWait <= 0:
		m.refuse(t, NoWorkers)
	case first && len(open) > 0:
		if head != nil {
			m.charge(t)
		}
		m.grant(t, open)
		m.drain(now) // heads whose last candidate is overloaded now
	case m.overloaded(t):
		m.refuse(t, AllOverloaded)
	case m.noWaits:
		m.refuse(t, Draining)
	case t.real.Retry && (m.limits.QueueSize <= 0 || left <= 0 || t.never() || t.classAt <= now):
		m.refuse(t, RetryRefused)
	case !t.real.Retry && why != reasonNone && !candidate && (t.never() || m.limits.QueueSize <= 0):
		m.refuse(t, NoWorkers)
	case !t.real.Retry && why != reasonNone:
		m.refuse(t, why)
		t.kind, t.current, t.limit = kind, current, limit
	case left <= 0:
		m.refuse(t, QueueTimeout)
	case t.real.Deadline != 0 && t.real.Deadline <= now && t.real.Deadline <= t.classAt:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClientWait
	case t.classAt <= now:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClassWait
	default:
		m.postponed++
		t.queued, t.state, t.queuedAt = true, stateQueued, now
		t.limitAt, t.lostAt = never, never
		if left != never {
			t.limitAt = now + left
		}
		if !candidate {
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		}
		t.raw = t.real.PromptTokens
		t.cached = min(t.real.CachedTokens, t.raw)
		t.queue = t.key()
		m.waiters = append(m.waiters, t)
	}
}

func (m *reference) expire(now Instant) {
	for {
		var first *refTicket
		for _, t := range m.waiters {
			if end := t.endsAt(); end <= now && (first == nil || end < first.endsAt() || end == first.endsAt() && t.older(first)) {
				first = t
			}
		}
		if first == nil {
			return
		}
		m.leaveAt(now, first)
		switch first.endsAt() {
		case first.lostAt:
			m.refuse(first, NoWorkers)
		case first.real.Deadline:
			m.refuse(first, DeadlineExceeded)
			first.kind = LimitClientWait
		case first.classAt:
			m.refuse(first, DeadlineExceeded)
			first.kind = LimitClassWait
		default:
			m.refuse(first, QueueTimeout)
		}
		m.drain(now)
	}
}

func (m *reference) cancel(now Instant, t *refTicket) bool {
	if !t.queued {
		return false
	}
	m.leaveAt(now, t)
	m.drain(now)
	return true
}

func (m *reference) endTokens(t *refTicket) {
	r := t.prefillWas
	if r == nil {
		r = t.decode
	}
	if r != nil {
		r.tokens -= t.tokens
	}
	t.tokens = 0
}

func (m *reference) endPrefill(t *refTicket) {
	if p := t.prefill; p != nil {
		m.endTokens(t)
		p.slots--
		p.legs -= t.real.legs()
		if t.prefillEpoch == p.epoch && p.state.Breaker == BreakerHalfOpen {
			p.probes--
		}
		t.prefill, t.prefillEpoch = nil, 0
	}
}

func (m *reference) startDecode(t *refTicket) {
	if t.decode != nil && !t.active {
		t.active = true
		t.decode.pending -= t.real.legs()
		t.decode.active += t.real.legs()
		t.decode.blocks[0] -= t.blocks
		t.decode.blocks[1] += t.blocks
	}
}

func (m *reference) grow(t *refTicket, blocks int64) {
	if d := t.decode; d != nil {
		t.blocks += blocks
		if t.active {
			d.blocks[1] += blocks
		} else {
			d.blocks[0] += blocks
		}
	}
}

func (m *reference) dropDecode(t *refTicket) {
	d := t.decode
	if t.active {
		d.active -= t.real.legs()
		d.blocks[1] -= t.blocks
	} else {
		d.pending -= t.real.legs()
		d.blocks[0] -= t.blocks
	}
	if t.decEpoch == d.epoch && d.state.Breaker == BreakerHalfOpen {
		d.probes--
	}
	t.decode, t.decEpoch, t.blocks = nil, 0, 0
}

func (m *reference) endDecode(t *refTicket) {
	if t.decode != nil {
		if t.prefillWas == nil {
			m.endTokens(t)
		}
		m.dropDecode(t)
	}
}

// staged are the ranks that the decode booking of t may move to.
func (m *reference) staged(t *refTicket, exclude []*Rank) []*refRank {
	if t.state != stateGranted || t.decode == nil || t.prefillWas == nil {
		return nil
	}
	for _, bars := range []bool{true, false} {
		var all []*refRank
		for _, d := range m.ranks {
			p := t.prefillWas
			if m.fits(t, DecodeLeg, d) && m.room(d) && d != t.decode && !slices.Contains(exclude, d.real) &&
				d.real.group == p.real.group && (t.real.Target.spec.Topology != TopologyRequired || d.real.topology == p.real.topology) &&
				!(bars && slices.Contains(m.bars, refBar{p, d})) {
				all = append(all, d)
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

func (m *reference) find(r *Rank) *refRank {
	for _, x := range append(slices.Clone(m.ranks), m.gone...) {
		if x.real == r {
			return x
		}
	}
	return nil
}

func (m *reference) apply(now Instant, changes []Change) {
	for _, ch := range changes {
		switch ch.Op {
		case AddRank:
			r := &refRank{real: ch.Rank, state: ch.State, epoch: 1}
			m.ranks = append(m.ranks, r)
		case RemoveRank:
			r := m.find(ch.Rank)
			m.ranks = slices.DeleteFunc(m.ranks, func(x *refRank) bool { return x == r })
			m.gone = append(m.gone, r)
			m.bars = slices.DeleteFunc(m.bars, func(b refBar) bool { return b.prefill == r || b.decode == r })
		case SetState:
			r := m.find(ch.Rank)
			if ch.State.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
				r.epoch++
				r.probes = 0
			}
			r.state = ch.State
		case BarPair:
			b := refBar{m.find(ch.Rank), m.find(ch.Other)}
			if !slices.Contains(m.bars, b) {
				m.bars = append(m.bars, b)
			}
		case UnbarPair:
			b := refBar{m.find(ch.Rank), m.find(ch.Other)}
			m.bars = slices.DeleteFunc(m.bars, func(o refBar) bool { return o == b })
		}
	}
	m.requeue()
	lost := slices.Clone(m.waiters)
	slices.SortFunc(lost, func(a, b *refTicket) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	for _, t := range lost {
		switch {
		case m.hasCandidate(t):
			t.lostAt = never
		case m.limits.NoWorkerWait <= 0:
			m.leaveAt(now, t)
			m.refuse(t, NoWorkers)
		case t.lostAt == never:
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		}
	}
	m.drain(now)
}

// requeue moves waiters of models that changed their family.
func (m *reference) requeue() {
	var left []refQueue
	for _, t := range m.waiters {
		if t.queue != t.key() {
			left = append(left, t.queue)
			t.queue = t.key()
		}
	}
	for _, q := range left {
		if m.depth(q) == 0 {
			delete(m.deficit, q)
		}
	}
}

// reload puts other classes in force. The waiters' queues are new, with the
// deficits of those of their name.
func (m *reference) reload(now Instant, cs *Classes, strict bool, old map[*profileQueue]string) {
	type name struct {
		f              *family
		profile, class string
	}
	deficits := map[name]int64{}
	for _, t := range m.waiters {
		deficits[name{t.real.Target.model.family, old[t.queue.profile], t.queue.class}] = m.deficit[t.queue]
	}
	m.classes, m.strict = cs, strict
	m.deficit, m.cursor = map[refQueue]int64{}, map[*profileQueue]int{}
	for _, t := range m.waiters {
		m.reclassify(t)
		t.queue = t.key()
	}
	for _, t := range m.waiters {
		m.deficit[t.queue] = deficits[name{t.real.Target.model.family, t.queue.profile.profile.name, t.queue.class}]
	}
	m.drain(now)
}

// refFence is what is kept for a starving request.
type refFence struct {
	owner           *refTicket
	prefill, decode *refRank
}

// spared tells whether the owner of a fence would have room after t got c.
func (m *reference) spared(t *refTicket, c refPair, x *refFence) bool {
	for _, r := range []*refRank{c.prefill, c.decode} {
		if r == nil || r != x.prefill && r != x.decode {
			continue
		}
		after := *r
		n := t.real.legs()
		if r == c.prefill {
			after.slots++
			after.legs += n
			after.tokens += max(t.real.PromptTokens-t.real.CachedTokens, 0)
		} else {
			after.pending += n
			after.blocks[0] += t.need(r)
			if t.single() {
				after.tokens += max(t.real.PromptTokens-t.real.CachedTokens, 0)
			}
		}
		if r.state.Breaker == BreakerHalfOpen {
			after.probes++
		}
		if !m.ownerFits(x, &after) {
			return false
		}
	}
	return true
}

// ownerFits tells whether the owner of a fence has room on r, but for the reject
// thresholds.
func (m *reference) ownerFits(x *refFence, r *refRank) bool {
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		return false
	}
	if r.real.role == RolePrefill {
		return x.owner.calm(r) && (m.limits.PrefillSlots <= 0 || r.slots < m.limits.PrefillSlots)
	}
	return x.owner.fitsOn(r) && (!x.owner.single() || x.owner.calm(r))
}
