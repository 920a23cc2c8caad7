package admission

import (
	"slices"
	"testing"
)

// limitsBed is a core with one model, "m", and what its ranks are named.
type limitsBed struct {
	t    *testing.T
	core *Core
	out  []*Ticket
}

func newLimitsBed(t *testing.T, slots int, ranks ...RankSpec) *limitsBed {
	b := &limitsBed{t: t, core: NewCore(Options{Limits: Limits{PrefillSlots: slots, QueueSize: 100}})}
	for _, s := range ranks {
		s.Models, s.State.Healthy = []string{"m"}, true
		b.core.Apply(1, []Change{{Op: AddRank, Rank: NewRank(s)}}, &b.out)
	}
	return b
}

func (b *limitsBed) rank(id string) *Rank { return b.core.named[id][0] }

func (b *limitsBed) arrive(shape Shape, legs int) *Ticket {
	k := &Ticket{Target: b.core.Resolve(TargetSpec{Model: "m", Shape: shape}), Legs: legs}
	b.core.Arrive(2, k, &b.out)
	return k
}

func (b *limitsBed) want(what string, k *Ticket, state ticketState) {
	b.t.Helper()
	if k.state != state {
		b.t.Errorf("%s is %s, want %s", what, statuses[k.state], statuses[state])
	}
}

func TestRanksHaveLimitsOfTheirOwn(t *testing.T) {
	limited := func(role Role, slots int, running int64) RankSpec {
		return RankSpec{ID: role.String(), Role: role, Limits: RankLimits{PrefillSlots: slots, Running: running}}
	}
	t.Run("calls that run", func(t *testing.T) {
		b := newLimitsBed(t, 0, limited(RoleRegular, 0, 2))
		first, second, third := b.arrive(Aggregated, 1), b.arrive(Aggregated, 1), b.arrive(Aggregated, 1)
		b.want("the first", first, stateGranted)
		b.want("the second", second, stateGranted)
		b.want("the third", third, stateQueued)
		b.core.StartDecode(first)
		b.core.EndDecode(3, first, &b.out)
		b.want("the third, after the first has ended,", third, stateGranted)
		// A request of many calls starts where there is room for one.
		b.core.EndDecode(3, second, &b.out)
		b.want("one with five calls", b.arrive(Aggregated, 5), stateGranted)
		b.want("one behind it", b.arrive(Aggregated, 1), stateQueued)
	})
	t.Run("prefill slots in place of the router's", func(t *testing.T) {
		for _, router := range []int{0, 1, 4} {
			b := newLimitsBed(t, router, limited(RolePrefill, 2, 0), limited(RoleDecode, 0, 0))
			b.arrive(Disaggregated, 1)
			b.want("the second", b.arrive(Disaggregated, 1), stateGranted)
			third := b.arrive(Disaggregated, 1)
			b.want("the third", third, stateQueued)
			if s := rankStats(b.core, b.rank("prefill")); s.SlotLimit != 2 || s.Room {
				t.Errorf("router-wide %d: %+v", router, s)
			}
		}
	})
	t.Run("changed while requests run", func(t *testing.T) {
		b := newLimitsBed(t, 0, limited(RoleRegular, 0, 1))
		set := func(n int64) {
			b.core.Apply(3, []Change{{Op: SetAttributes, Rank: b.rank("regular"), Attributes: RankAttributes{Models: []string{"m"}, Limits: RankLimits{Running: n}}}}, &b.out)
		}
		first, second := b.arrive(Aggregated, 1), b.arrive(Aggregated, 1)
		b.want("the second", second, stateQueued)
		set(2)
		b.want("the second, after the limit was raised,", second, stateGranted)
		set(1) // takes nothing away
		b.core.EndDecode(4, first, &b.out)
		b.want("one that comes while as many run as may", b.arrive(Aggregated, 1), stateQueued)
		if n := b.rank("regular").load(); n != 1 {
			t.Errorf("%d calls are booked", n)
		}
	})
	t.Run("a full decode rank holds prefill back", func(t *testing.T) {
		b := newLimitsBed(t, 0, limited(RolePrefill, 0, 0), limited(RoleDecode, 0, 1))
		first := b.arrive(Disaggregated, 1)
		second := b.arrive(Disaggregated, 1)
		b.want("the second", second, stateQueued)
		b.core.EndPrefill(3, first, &b.out)
		b.want("the second", second, stateQueued)
		b.core.EndDecode(4, first, &b.out)
		b.want("the second", second, stateGranted)
	})
}

func TestPriorityGoesByRoom(t *testing.T) {
	ranked := func(id string, role Role, priority int, running int64) RankSpec {
		return RankSpec{ID: id, Role: role, Priority: priority, Limits: RankLimits{Running: running}}
	}
	b := newLimitsBed(t, 0, ranked("low", RoleRegular, 10, 0), ranked("high", RoleRegular, 90, 2), ranked("mid", RoleRegular, 50, 1))
	var got []string
	var all []*Ticket
	for range 5 {
		k := b.arrive(Aggregated, 1)
		all = append(all, k)
		got = append(got, k.Decode.id)
	}
	if want := []string{"high", "high", "mid", "low", "low"}; !slices.Equal(got, want) {
		t.Errorf("chosen %q, want %q", got, want)
	}
	b.core.EndDecode(3, all[1], &b.out)
	if k := b.arrive(Aggregated, 1); k.Decode.id != "high" {
		t.Errorf("with room at the best, %s was chosen", k.Decode.id)
	}
	// What the request itself asks for goes before.
	b.core.Apply(4, []Change{{Op: SetAttributes, Rank: b.rank("low"), Attributes: RankAttributes{Models: []string{"m"}, Priority: 10, Labels: map[string]string{"gpu": "x"}}}}, &b.out)
	spec := TargetSpec{Model: "m"}
	spec.Prefer[DecodeLeg] = []Preference{{Label{"gpu", "x"}, 1}}
	b.core.EndDecode(5, all[0], &b.out)
	k := &Ticket{Target: b.core.Resolve(spec)}
	if b.core.Arrive(5, k, &b.out); k.Decode.id != "low" {
		t.Errorf("%s was chosen, and the request prefers another", k.Decode.id)
	}
}
