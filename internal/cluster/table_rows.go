package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/list"
)

// table is the keeper's table of ranks. A change of one rank costs as much as there are
// members, and telling them as much as has changed.
type table struct {
	epoch   Epoch
	counter uint64 // of generations

	byID    map[string]*row
	rows    []*row   // by number; nil: free
	free    []uint32 // numbers
	members []tableMember
	dirty   []*row // to be merged anew

	// recent has all rows by the version of their last change, and those that went.
	recent  list.List[*row]
	version uint64
	gone    int    // of recent, those that went
	since   uint64 // versions up to here cannot be told of any more but by all rows

	pairs        map[pairID]*pairState
	pairsVersion uint64
	pairsNext    admission.Instant // when the first quarantine ends
	pairsDirty   bool              // or a rank came or went

	news    []*row // of which members began to say different things
	refused int    // observations of ranks that had no place
}

// tableMember is a member that has told of ranks.
type tableMember struct {
	id   Incarnation
	lost bool
	rows map[*row]struct{} // that it has
}

// row is a rank of the table, or one that went, of which members have to be told.
type row struct {
	at     RankAt
	spec   admission.RankSpec // merged
	masked []Incarnation      // by incarnation
	load   Load
	seen   []sighting // by member
	// inherited is what an earlier keeper knew of its breaker, until a member has tried.
	inherited admission.RankState
	restored  bool // from a copy; no member has told of it yet

	dirty bool
	gone  bool

	// What the core has been told.
	added    bool
	told     admission.RankSpec
	toldMask []Incarnation

	differs Incarnation
	what    string
	news    bool // of that

	described uint64 // the version at which anything but load changed last
	changed   uint64
	node      list.Node[*row]
}

// maxGoneRows bounds the rows that are kept so that members can be told that they went.
const maxGoneRows = 4096

// maxRowsPart is the most ranks of one message to members.
const maxRowsPart = 512

func newTable(e Epoch) *table {
	return &table{epoch: e, version: 1, byID: map[string]*row{}, pairs: map[pairID]*pairState{}, pairsNext: never}
}

// ref is the rank as the core names it; the zero value: there is none.
func (t *table) ref(at RankAt) admission.RankRef {
	if int(at.Number) < len(t.rows) && at != (RankAt{}) {
		if r := t.rows[at.Number]; r != nil && r.at == at {
			return admission.RankRef{ID: r.spec.ID, Generation: at.Generation}
		}
	}
	return admission.RankRef{}
}

// at is the rank of an id; the zero value: there is none.
func (t *table) at(id string) RankAt {
	if r := t.byID[id]; r != nil {
		return r.at
	}
	return RankAt{}
}

// spec is what is known of a rank; nil: there is none. It must not be changed.
func (t *table) spec(id string) *admission.RankSpec {
	if r := t.byID[id]; r != nil {
		return &r.spec
	}
	return nil
}

// place makes a row for an id, or returns nil when there are too many.
func (t *table) place(id string) *row {
	if r := t.byID[id]; r != nil {
		return r
	}
	if len(t.byID) >= maxTableRanks || id == "" {
		t.refused++
		return nil
	}
	r := &row{}
	r.node.Value = r
	r.spec.ID = id
	t.number(r)
	t.byID[id] = r
	return r
}

// number gives r a number and a generation. Number 0 is not used.
func (t *table) number(r *row) {
	if n := len(t.free); n > 0 {
		r.at.Number, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if len(t.rows) == 0 {
			t.rows = append(t.rows, nil)
		}
		r.at.Number = uint32(len(t.rows))
		t.rows = append(t.rows, nil)
	}
	t.rows[r.at.Number] = r
	t.renew(r)
}

// renew gives r a new generation, which no rank has had under any keeper.
func (t *table) renew(r *row) {
	t.counter++
	r.at.Generation = t.epoch.Number<<32 | t.counter&(1<<32-1)
	r.spec.Generation = r.at.Generation
}

func (t *table) mark(r *row) {
	if !r.dirty {
		r.dirty = true
		t.dirty = append(t.dirty, r)
	}
}

// touch notes that members have to be told of r.
func (t *table) touch(r *row, described bool) {
	t.version++
	r.changed = t.version
	if described {
		r.described = t.version
	}
	if r.node.Listed() {
		t.recent.Remove(&r.node)
	}
	t.recent.PushBack(&r.node)
}

// restore takes over a copy of the table of an earlier keeper, so that its ranks keep their
// generations. What it says of breakers counts until some member has tried.
func (t *table) restore(from *Rows) {
	for i := range from.Rows {
		c := &from.Rows[i]
		if c.Gone || c.Spec == nil || c.At.Generation == 0 {
			continue
		}
		r := t.byID[c.Spec.ID]
		switch {
		case r == nil:
			if r = t.place(c.Spec.ID); r == nil {
				continue
			}
		case !r.restored || r.added || r.at.Generation >= c.At.Generation:
			continue
		}
		if c.At.Generation>>32 == t.epoch.Number {
			t.counter = max(t.counter, c.At.Generation&(1<<32-1))
		}
		r.restored, r.at.Generation = true, c.At.Generation
		r.spec = *c.Spec
		r.spec.Generation, r.spec.Data = c.At.Generation, nil
		if b := c.Spec.State.Breaker; b != admission.BreakerClosed {
			r.inherited = admission.RankState{Breaker: b, Probes: c.Spec.State.Probes}
		}
		t.mark(r)
	}
}

// observe takes what a member tells of ranks and pairs.
func (t *table) observe(now admission.Instant, from Incarnation, o *Observation) {
	m := t.join(from)
	if o.Full {
		t.forgetPairsOf(from)
		told := make(map[string]bool, len(o.Ranks))
		for i := range o.Ranks {
			told[o.Ranks[i].ID] = !o.Ranks[i].Gone
		}
		for r := range m.rows {
			if !told[r.spec.ID] {
				t.drop(m, r)
			}
		}
	}
	for i := range o.Ranks {
		t.observeRank(now, m, &o.Ranks[i])
	}
	for i := range o.Pairs {
		t.observePair(now, from, &o.Pairs[i])
	}
}

// join finds or makes a member. A new one, and one that was lost, changes all ranks.
func (t *table) join(id Incarnation) *tableMember {
	at, found := t.search(id)
	if !found {
		t.members = slices.Insert(t.members, at, tableMember{id: id, rows: map[*row]struct{}{}})
		t.markAll()
	} else if t.members[at].lost {
		t.setLost(&t.members[at], false)
	}
	return &t.members[at]
}

func (t *table) search(id Incarnation) (int, bool) {
	return slices.BinarySearchFunc(t.members, id, func(m tableMember, id Incarnation) int { return cmp.Compare(m.id, id) })
}

func (t *table) markAll() {
	for _, r := range t.byID {
		t.mark(r)
	}
}

func (t *table) setLost(m *tableMember, lost bool) {
	m.lost = lost
	for r := range m.rows {
		if i, ok := r.sighted(m.id); ok {
			r.seen[i].lost = lost
		}
	}
	t.markAll() // it is masked, or not any more
}

func (r *row) sighted(id Incarnation) (int, bool) {
	return slices.BinarySearchFunc(r.seen, id, func(s sighting, id Incarnation) int { return cmp.Compare(s.member, id) })
}

func (t *table) observeRank(now admission.Instant, m *tableMember, o *RankObservation) {
	if o.Gone {
		if r := t.byID[o.ID]; r != nil {
			t.drop(m, r)
		}
		return
	}
	r := t.place(o.ID)
	if r == nil {
		return
	}
	s := sighting{member: m.id, spec: o.Spec, stamp: o.Stamp, checks: o.Checks, legs: o.Legs, reportAt: now.Add(-max(o.ReportAge, 0))}
	s.spec.ID, s.spec.Data = o.ID, nil
	if i, ok := r.sighted(m.id); ok {
		r.seen[i] = s
	} else {
		r.seen = slices.Insert(r.seen, i, s)
		m.rows[r] = struct{}{}
	}
	t.mark(r)
}

// drop takes back what a member said of a rank.
func (t *table) drop(m *tableMember, r *row) {
	if i, ok := r.sighted(m.id); ok {
		r.seen = slices.Delete(r.seen, i, i+1)
		delete(m.rows, r)
		t.mark(r)
	}
}

// lose tells that a member is lost: what it says of health counts no more, but ranks that
// nobody else has stay in the table, without being granted, for the holds on them.
func (t *table) lose(id Incarnation) {
	if at, ok := t.search(id); ok && !t.members[at].lost {
		t.setLost(&t.members[at], true)
	}
}

// forget takes back all that a member said: it has ended, or was lost for too long.
func (t *table) forget(now admission.Instant, id Incarnation) {
	at, ok := t.search(id)
	if !ok {
		return
	}
	for r := range t.members[at].rows {
		t.drop(&t.members[at], r)
	}
	t.members = slices.Delete(t.members, at, at+1)
	t.markAll()
	t.releasePairsOf(now, id)
}

// dropRestored removes the ranks of a restored copy that no member has told of: those that
// are still to come had time enough.
func (t *table) dropRestored() {
	for _, r := range t.byID {
		if r.restored && len(r.seen) == 0 {
			r.restored = false
			t.mark(r)
		}
	}
}
