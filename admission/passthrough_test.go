package admission

import (
	"strings"
	"testing"
)

// turns takes ranks in turn, as policies do that keep state.
type turns struct{ last int }

func (p *turns) Pick(v *View, _ *Hint) int { return v.Next(p.last) }
func (p *turns) Booked(i int, _ *Hint)     { p.last = i }
func (*turns) RankAdded(int, string)       {}
func (*turns) RankRemoved(int)             {}

// loads takes the rank with the least load, by the loads that policies see.
type loads struct{ known map[int]string }

func (p *loads) Pick(v *View, _ *Hint) int {
	best := v.Nth(0)
	for k := range v.Len() {
		if i := v.Nth(k); v.Load(i) < v.Load(best) {
			best = i
		}
	}
	if p.known[best] == "" {
		panic("a rank that the policy was not told of")
	}
	return best
}
func (p *loads) Booked(int, *Hint)          {}
func (p *loads) RankAdded(i int, id string) { p.known[i] = id }
func (p *loads) RankRemoved(i int)          { delete(p.known, i) }

// Passed requests stood outside of pins, labels, adapters and policy.
func TestPass(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 10}, NewPolicy: func(string, Role) Policy { return &turns{last: -1} }})
	up := RankState{Healthy: true}
	add := func(id string, role Role, f RankAttributes) *Rank {
		r := NewRank(RankSpec{ID: id, Worker: "w-" + id, Role: role, State: up, Models: f.Models, Labels: f.Labels, Adapters: f.Adapters})
		var out []*Ticket
		c.Apply(0, []Change{{Op: AddRank, Rank: r}}, &out)
		return r
	}
	m := []string{"m"}
	d := []*Rank{
		add("d0", RoleDecode, RankAttributes{Models: m, Labels: map[string]string{"zone": "a"}}),
		add("d1", RoleDecode, RankAttributes{Models: m, Labels: map[string]string{"zone": "b"}, Adapters: []string{"l"}}),
		add("d2", RoleDecode, RankAttributes{Models: m, Labels: map[string]string{"zone": "a", "fast": "y"}}),
	}
	add("p0", RolePrefill, RankAttributes{Models: m, Labels: map[string]string{"zone": "c"}})
	f := func(want string, s TargetSpec, role Role, exclude ...*Rank) {
		t.Helper()
		s.Model = "m"
		var got []string
		for range 4 {
			r := c.chooser.Pass(s, role, &Hint{}, exclude)
			if r == nil {
				got = append(got, "-")
				continue
			}
			got = append(got, r.id)
			r.endPass()
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%+v: %s, want %s", s, g, want)
		}
	}
	spec := func(change func(*TargetSpec)) (s TargetSpec) { change(&s); return s }
	zone := func(z string) TargetSpec {
		return spec(func(s *TargetSpec) { s.Require[DecodeLeg] = []Label{{"zone", z}} })
	}
	f("d0 d1 d2 d0", TargetSpec{}, RoleDecode)
	f("d2 d0 d2 d0", zone("a"), RoleDecode)
	f("d1 d1 d1 d1", zone("b"), RoleDecode)
	f("- - - -", zone("c"), RoleDecode)
	f("p0 p0 p0 p0", zone("c"), RolePrefill)
	f("- - - -", zone("a"), RolePrefill)
	f("- - - -", TargetSpec{}, RoleRegular)
	f("d2 d2 d2 d2", spec(func(s *TargetSpec) { s.Pins[DecodeLeg] = "w-d2" }), RoleDecode)
	f("- - - -", spec(func(s *TargetSpec) { s.Pins[DecodeLeg] = "w-d2" }), RolePrefill)
	f("d1 d1 d1 d1", spec(func(s *TargetSpec) { s.Adapter = "l" }), RoleDecode)
	f("d2 d2 d2 d2", spec(func(s *TargetSpec) { s.Prefer[DecodeLeg] = []Preference{{Label{"fast", "y"}, 1}} }), RoleDecode)
	f("d0 d2 d0 d2", spec(func(s *TargetSpec) { s.Allowed[DecodeLeg] = []string{"w-d0", "w-d2"} }), RoleDecode)
	f("d1 d2 d1 d2", TargetSpec{}, RoleDecode, d[0])

	// Full ranks serve them as well, those that are away do not.
	tk := &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	var out []*Ticket
	c.Arrive(0, tk, &out)
	f("p0 p0 p0 p0", TargetSpec{}, RolePrefill)
	if err := checkIndexes(c); err != nil {
		t.Error(err)
	}
	c.Release(0, tk, &out)
	c.Apply(0, []Change{{Op: SetState, Rank: d[1]}}, &out)
	f("d0 d2 d0 d2", TargetSpec{}, RoleDecode)
	if len(c.pinned) > maxIdleTargets || c.modelOf("m") == nil {
		t.Error("targets are left over")
	}
	for _, p := range c.pinned {
		if p.refs != 0 {
			t.Errorf("a target is still in use: %+v", p.spec)
		}
	}
}

// The policy sees passed requests and knows ranks that came before and after it.
func TestPassCountsAsLoad(t *testing.T) {
	c := NewCore(Options{NewPolicy: func(string, Role) Policy { return &loads{known: map[int]string{}} }})
	var out []*Ticket
	add := func(id string) *Rank {
		r := NewRank(RankSpec{ID: id, Role: RoleDecode, State: RankState{Healthy: true}, Models: []string{"m"}})
		c.Apply(0, []Change{{Op: AddRank, Rank: r}}, &out)
		return r
	}
	a, b := add("a"), add("b")
	pass := func() string { return c.chooser.Pass(TargetSpec{Model: "m"}, RoleDecode, &Hint{}, nil).id }
	if got := pass() + pass() + pass(); got != "aba" {
		t.Errorf("%s", got)
	}
	add("c")
	if got := pass() + pass() + pass(); got != "cbc" {
		t.Errorf("%s", got)
	}
	c.Apply(0, []Change{{Op: RemoveRank, Rank: b}}, &out)
	b.endPass()
	a.endPass()
	if got := pass(); got != "a" {
		t.Errorf("%s", got)
	}
}

// A request that takes a place is chosen for by what is booked alone, also right after
// one that takes none.
func TestPassedRequestsAreNoLoadForOthers(t *testing.T) {
	c := NewCore(Options{NewPolicy: func(string, Role) Policy { return &loads{known: map[int]string{}} }})
	var out []*Ticket
	for _, id := range []string{"a", "b"} {
		r := NewRank(RankSpec{ID: id, Role: RoleDecode, State: RankState{Healthy: true}, Models: []string{"m"}})
		c.Apply(0, []Change{{Op: AddRank, Rank: r}}, &out)
	}
	spec := TargetSpec{Model: "m", Shape: Bypass}
	if r := c.chooser.Pass(spec, RoleDecode, &Hint{}, nil); r.id != "a" {
		t.Fatalf("passed to %s", r.id)
	}
	k := &Ticket{Target: c.Resolve(spec)}
	c.Arrive(0, k, &out)
	if k.state != stateGranted || k.Decode.id != "a" {
		t.Errorf("state %d, on %s; want a, on which nothing is booked", k.state, k.Decode.id)
	}
}

// A further attempt of a passed request leaves the process that failed it, too, while
// another one is there.
func TestPassAvoidsTheWorker(t *testing.T) {
	c := NewCore(Options{NewPolicy: func(string, Role) Policy { return &turns{last: -1} }})
	ranks := map[string]*Rank{}
	for _, id := range []string{"a@0", "a@1", "b@0"} {
		worker, _, _ := SplitRankID(id)
		ranks[id] = NewRank(RankSpec{ID: id, Worker: worker, Role: RoleRegular, Models: []string{"m"}, State: RankState{Healthy: true}})
		var out []*Ticket
		c.Apply(0, []Change{{Op: AddRank, Rank: ranks[id]}}, &out)
	}
	for _, tc := range []struct {
		exclude []*Rank
		want    string
	}{
		{[]*Rank{ranks["a@0"]}, "b@0"},
		{[]*Rank{ranks["b@0"], ranks["a@0"]}, "a@1"},
	} {
		for range 3 {
			r := c.chooser.Pass(TargetSpec{Model: "m"}, RoleRegular, &Hint{}, tc.exclude)
			if r == nil || r.id != tc.want {
				t.Errorf("%v was chosen, want %s", r, tc.want)
				continue
			}
			r.endPass()
		}
	}
	if r := c.chooser.Pass(TargetSpec{Model: "m"}, RoleRegular, &Hint{}, []*Rank{ranks["a@0"], ranks["a@1"], ranks["b@0"]}); r != nil {
		t.Errorf("%s was chosen, but failed", r.id)
	}
}
