package admission

import (
	"cmp"
	"fmt"
	"slices"
)

// RankSpec describes a rank to the gate.
type RankSpec struct {
	// ID is the rank's name, unique among registered ranks: the worker's URL,
	// or url@rank for one data-parallel rank.
	ID string
	// Worker names the worker the rank belongs to, for pins; ranks of one
	// worker share it.
	Worker string
	Role   Role
	// Models are the base models whose pools the rank belongs to. The empty
	// name is the pool of ranks whose model is unknown; it serves any name
	// that no other pool has.
	Models []string
	// PairGroup: a prefill and a decode rank may be paired when theirs are
	// equal (one dialect, one connector, one KV layout).
	PairGroup string
	State     RankState
	// Data is handed back to the caller, who finds the engine by it.
	Data any
}

// Rank is one registered rank and the ledger of the holds on it. The pointer is
// the rank's generation: a worker that is registered anew gets new ranks, and
// holds on the old ones end there.
type Rank struct {
	// immutable
	id     string
	worker string
	role   Role
	models []string
	group  string
	data   any

	// guarded by the gate's lock (or owned by the core's caller)
	index   int
	groupID int
	pools   []*pool
	state   RankState
	present bool
	cand    bool
	room    bool
	epoch   uint32 // of the half-open state; probes belong to one

	slots   int // requests in prefill
	prefill int // prefill legs
	pending int // decode legs booked but not dispatched
	active  int // decode legs dispatched
	probes  int // requests granted in this half-open epoch
}

// NewRank makes a rank that [Change] can add.
func NewRank(spec RankSpec) *Rank {
	return &Rank{
		id: spec.ID, worker: spec.Worker, role: spec.Role,
		models: append([]string(nil), spec.Models...), group: spec.PairGroup,
		state: spec.State, data: spec.Data, index: -1,
	}
}

// ID returns the rank's name.
func (r *Rank) ID() string { return r.id }

// Worker returns the name of the rank's worker.
func (r *Rank) Worker() string { return r.worker }

// Role returns the rank's role.
func (r *Rank) Role() Role { return r.role }

// Data returns what the rank was registered with.
func (r *Rank) Data() any { return r.data }

// load is what policies balance.
func (r *Rank) load() int64 {
	if r.role == RolePrefill {
		return int64(r.prefill)
	}
	return int64(r.pending + r.active)
}

func (r *Rank) idle() bool { return r.slots == 0 && r.prefill == 0 && r.pending == 0 && r.active == 0 }

// pool is the ranks that serve one model in one role.
type pool struct {
	model  *model
	role   Role
	policy Policy

	members bitmap
	cand    bitmap
	room    bitmap
	candN   int
	roomN   int
	// with room, by block of roomBlock words, so that the n-th is found in
	// few steps
	roomIn []int32
	groups *[]bitmap // the core's
	// by group id: candidates, for "is there a pair at all"
	groupCand []int
	// members by group id; a pool whose members are all of one group is the
	// ordinary case and needs no intersection
	groupSize []int
	groupsN   int
	load      loadTree
}

// model is the pools of one base model.
type model struct {
	name   string
	pools  [numRoles]*pool
	family *family
	// targets without pins; they live as long as the model
	targets [numShapes]*Target
	ranks   int
	dead    bool
}

// soleGroup tells whether prefill and decode ranks of m all may be paired, and
// so need no look at groups.
func (m *model) soleGroup() bool {
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.groupsN > 1 || d.groupsN > 1 {
		return false
	}
	for g, n := range p.groupSize {
		if n > 0 {
			return g < len(d.groupSize) && d.groupSize[g] > 0
		}
	}
	return false
}

// family is the models whose requests compete for the same ranks.
type family struct {
	queue  waitQueue
	rate   rateMeter
	closed closedClock
}

// ChangeOp is what a [Change] does.
type ChangeOp uint8

// The changes. Those of one Apply take effect together: a worker is replaced by
// removing its old ranks and adding the new ones in one call.
const (
	AddRank ChangeOp = iota
	RemoveRank
	SetState
)

// Change is one fleet event.
type Change struct {
	Op    ChangeOp
	Rank  *Rank
	State RankState // for SetState
}

func (c *Core) addRank(r *Rank) {
	if r.present {
		panic("BUG: rank " + r.id + " added twice")
	}
	if len(c.freeIndex) > 0 {
		r.index = c.freeIndex[len(c.freeIndex)-1]
		c.freeIndex = c.freeIndex[:len(c.freeIndex)-1]
	} else {
		r.index = c.indexes
		c.indexes++
		c.growIndexes()
	}
	r.groupID = c.group(r.group)
	r.present = true
	r.pools = nil
	c.ranks[r.index] = r
	c.named[r.id] = append(c.named[r.id], r)
	if r.worker != "" && r.worker != r.id {
		c.named[r.worker] = append(c.named[r.worker], r)
	}
	c.groups[r.groupID].set(r.index)
	names := r.models
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		p := c.model(name).pools[r.role]
		if p.members.has(r.index) {
			continue
		}
		p.members.set(r.index)
		p.model.ranks++
		if p.groupSize[r.groupID]++; p.groupSize[r.groupID] == 1 {
			p.groupsN++
			p.load.join(r.groupID, c.indexCap)
		}
		r.pools = append(r.pools, p)
		p.policy.RankAdded(r.index, r.id)
	}
	if r.state.Breaker == BreakerHalfOpen {
		r.epoch++
	}
	for _, t := range c.pinned {
		t.matchRank(r, true)
	}
	c.refresh(r, 0)
}

func (c *Core) removeRank(r *Rank) {
	if !r.present {
		return
	}
	r.present = false
	c.refresh(r, 0)
	for _, p := range r.pools {
		p.members.clear(r.index)
		p.model.ranks--
		if p.groupSize[r.groupID]--; p.groupSize[r.groupID] == 0 {
			p.groupsN--
			p.load.leave(r.groupID)
		}
		p.policy.RankRemoved(r.index)
	}
	for _, t := range c.pinned {
		t.matchRank(r, false)
	}
	c.unname(r.id, r)
	c.unname(r.worker, r)
	c.groups[r.groupID].clear(r.index)
	c.ranks[r.index] = nil
	c.freeIndex = append(c.freeIndex, r.index)
	r.index = -1
}

func (c *Core) unname(name string, r *Rank) {
	left := slices.DeleteFunc(c.named[name], func(o *Rank) bool { return o == r })
	if len(left) == 0 {
		delete(c.named, name)
	} else {
		c.named[name] = left
	}
}

func (c *Core) setState(r *Rank, s RankState) {
	if s.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
		r.epoch++
		r.probes = 0
	}
	r.state = s
	c.refresh(r, 0)
}

// refresh brings the indexes in line with the rank's state and holds. seq is
// not zero when the rank was just booked.
func (c *Core) refresh(r *Rank, seq uint64) {
	if r.index < 0 {
		return // gone: its holds end without a trace in the indexes
	}
	cand := r.present && r.state.candidate()
	room := cand
	if r.role == RolePrefill && c.limits.PrefillSlots > 0 && r.slots >= c.limits.PrefillSlots {
		room = false
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		room = false
	}
	load := r.load()
	for _, p := range r.pools {
		if cand != r.cand {
			p.cand.put(r.index, cand)
			d := 1
			if !cand {
				d = -1
			}
			p.candN += d
			p.groupCand[r.groupID] += d
		}
		if room != r.room {
			p.room.put(r.index, room)
			d := 1
			if !room {
				d = -1
			}
			p.roomN += d
			p.roomIn[r.index/(64*roomBlock)] += int32(d)
		}
		p.load.put(r.index, r.groupID, load, seq, room)
	}
	r.cand, r.room = cand, room
}

// model returns the pools of a name, making them when they are new.
func (c *Core) model(name string) *model {
	if m := c.models[name]; m != nil {
		return m
	}
	m := &model{name: name, family: &family{}}
	m.family.closed.core = c
	for role := range numRoles {
		p := &pool{model: m, role: role, policy: c.newPolicy(name, role), groups: &c.groups}
		p.grow(c.words, c.indexCap, len(c.groupNames))
		m.pools[role] = p
	}
	for s := range numShapes {
		m.targets[s] = &Target{model: m, shape: s}
	}
	c.models[name] = m
	at, _ := slices.BinarySearchFunc(c.ordered, name, func(m *model, n string) int { return cmp.Compare(m.name, n) })
	c.ordered = slices.Insert(c.ordered, at, m)
	c.structure++
	return m
}

// roomBlock is the words that one count of roomIn is for.
const roomBlock = 8

// nthRoom returns the i-th rank with room in index order, 0 ≤ i < roomN.
func (p *pool) nthRoom(i int) int {
	for b, n := range p.roomIn {
		if i < int(n) {
			from := b * roomBlock
			return from<<6 + p.room[from:min(from+roomBlock, len(p.room))].nth(i)
		}
		i -= int(n)
	}
	return -1
}

func (p *pool) grow(words, indexes, groups int) {
	p.members = p.members.grow(words)
	p.cand = p.cand.grow(words)
	p.room = p.room.grow(words)
	for len(p.roomIn)*roomBlock < words {
		p.roomIn = append(p.roomIn, 0)
	}
	if p.load.leaves > 0 {
		p.load.grow(indexes)
	}
	for len(p.groupCand) < groups {
		p.groupCand = append(p.groupCand, 0)
		p.groupSize = append(p.groupSize, 0)
	}
}

func (c *Core) growIndexes() {
	if c.indexes <= c.indexCap {
		return
	}
	c.indexCap = max(64, 2*c.indexCap)
	c.words = c.indexCap / 64
	ranks := make([]*Rank, c.indexCap)
	copy(ranks, c.ranks)
	c.ranks = ranks
	for i := range c.groups {
		c.groups[i] = c.groups[i].grow(c.words)
	}
	c.scratchP = c.scratchP.grow(c.words)
	c.scratchD = c.scratchD.grow(c.words)
	for _, m := range c.models {
		for _, p := range m.pools {
			p.grow(c.words, c.indexCap, len(c.groupNames))
		}
	}
	for _, t := range c.pinned {
		t.grow(c.words)
	}
}

// group interns a pairing group.
func (c *Core) group(name string) int {
	for i, n := range c.groupNames {
		if n == name {
			return i
		}
	}
	c.groupNames = append(c.groupNames, name)
	c.groups = append(c.groups, make(bitmap, c.words))
	for _, m := range c.models {
		for _, p := range m.pools {
			p.grow(c.words, c.indexCap, len(c.groupNames))
		}
	}
	return len(c.groupNames) - 1
}

// book takes the holds of t on its chosen ranks.
func (c *Core) book(t *Ticket) {
	c.seq++
	legs := t.legs()
	if p := t.Prefill; p != nil {
		p.slots++
		p.prefill += legs
		t.holdsPrefill = true
		c.probe(t, p, PrefillLeg)
		c.refresh(p, c.seq)
	}
	d := t.Decode
	d.pending += legs
	t.holdsDecode = true
	t.decodeActive = false
	c.probe(t, d, DecodeLeg)
	c.refresh(d, c.seq)
}

func (c *Core) probe(t *Ticket, r *Rank, l Leg) {
	t.probes[l] = r.state.Breaker == BreakerHalfOpen
	if t.probes[l] {
		r.probes++
		t.epochs[l] = r.epoch
	}
}

func (c *Core) unprobe(t *Ticket, r *Rank, l Leg) {
	if t.probes[l] && t.epochs[l] == r.epoch && r.state.Breaker == BreakerHalfOpen {
		r.probes--
	}
	t.probes[l] = false
}

// endPrefill ends the prefill slot and units of t, if it still has them.
func (c *Core) endPrefill(t *Ticket) bool {
	if !t.holdsPrefill {
		return false
	}
	t.holdsPrefill = false
	r := t.Prefill
	r.slots--
	r.prefill -= t.legs()
	c.unprobe(t, r, PrefillLeg)
	r.check()
	c.refresh(r, 0)
	return true
}

// startDecode turns the decode booking of t from pending to active.
func (c *Core) startDecode(t *Ticket) {
	if !t.holdsDecode || t.decodeActive {
		return
	}
	t.decodeActive = true
	t.Decode.pending -= t.legs()
	t.Decode.active += t.legs()
	t.Decode.check()
}

func (c *Core) endDecode(t *Ticket) bool {
	if !t.holdsDecode {
		return false
	}
	t.holdsDecode = false
	r := t.Decode
	if t.decodeActive {
		r.active -= t.legs()
	} else {
		r.pending -= t.legs()
	}
	c.unprobe(t, r, DecodeLeg)
	r.check()
	c.refresh(r, 0)
	return true
}

// check stops the process when the ledger has gone wrong: a negative hold means
// that a later request would be admitted into room that is not there.
func (r *Rank) check() {
	if r.slots < 0 || r.prefill < 0 || r.pending < 0 || r.active < 0 || r.probes < 0 {
		panic(fmt.Sprintf("BUG: negative hold on %s: slots %d, prefill %d, pending %d, active %d, probes %d",
			r.id, r.slots, r.prefill, r.pending, r.active, r.probes))
	}
}
