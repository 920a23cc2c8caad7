package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
)

// fleet is a gate whose aggregated pool is placed by the policy under test.
type fleet struct {
	t     testing.TB
	gate  *admission.Gate
	ranks []*admission.Rank
	inner *spy
}

// spy lets a test look at the view that a policy is handed.
type spy struct {
	admission.Policy
	onPick func(v *admission.View, h *admission.Hint)
}

func (s *spy) Pick(v *admission.View, h *admission.Hint) int {
	if s.onPick != nil {
		s.onPick(v, h)
	}
	return s.Policy.Pick(v, h)
}

func (s *spy) Measure() admission.Measure {
	if m, ok := s.Policy.(admission.Measured); ok {
		return m.Measure()
	}
	return admission.ByRequests
}

func newFleet(t testing.TB, policy string, n int) *fleet {
	t.Helper()
	factory, err := New(policy, 1)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t}
	f.gate = admission.NewGate(admission.Options{
		NewPolicy: func(model string, role admission.Role) admission.Policy {
			s := &spy{Policy: factory(model, role)}
			if role == admission.RoleRegular {
				f.inner = s
			}
			return s
		},
	}, admission.NewSystemClock(), nil)
	t.Cleanup(f.gate.Close)
	for i := range n {
		f.add(i)
	}
	return f
}

func (f *fleet) add(i int) *admission.Rank {
	r := admission.NewRank(admission.RankSpec{
		ID: fmt.Sprintf("http://10.0.0.%d:30000", i), Role: admission.RoleRegular,
		Models: []string{"m"}, State: admission.RankState{Healthy: true},
	})
	f.ranks = append(f.ranks, r)
	f.gate.Apply(admission.Change{Op: admission.AddRank, Rank: r})
	return r
}

func (f *fleet) remove(r *admission.Rank) {
	f.gate.Apply(admission.Change{Op: admission.RemoveRank, Rank: r})
}

func (f *fleet) healthy(r *admission.Rank, ok bool) {
	f.gate.Apply(admission.Change{Op: admission.SetState, Rank: r, State: admission.RankState{Healthy: ok}})
}

// place books one request and returns its ticket.
func (f *fleet) place(h admission.Hint) *admission.Ticket {
	f.t.Helper()
	target := f.gate.Resolve(admission.TargetSpec{Model: "m"})
	t := &admission.Ticket{Target: target, Hints: [2]admission.Hint{admission.DecodeLeg: h}}
	if err := f.gate.Acquire(context.Background(), t); err != nil {
		f.t.Fatal(err)
	}
	return t
}

// once is the rank that a request which ends at once is placed on.
func (f *fleet) once(h admission.Hint) string {
	f.t.Helper()
	t := f.place(h)
	t.Release()
	return t.Decode.ID()
}

func key(i int) admission.Hint {
	return admission.Hint{Key: HashKey(fmt.Sprint("session-", i)), HasKey: true}
}

func TestUnknownNameListsTheKnownOnes(t *testing.T) {
	_, err := New("round-robin", 1)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range append(Names(), `"round-robin"`) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestPerRole(t *testing.T) {
	is := func(name string) admission.PolicyFactory {
		f, err := New(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := PerRole(is(Random), is(RoundRobin), nil)
	if _, ok := f("m", admission.RolePrefill).(*roundRobin); !ok {
		t.Error("prefill does not have its own policy")
	}
	for _, role := range []admission.Role{admission.RoleDecode, admission.RoleRegular} {
		if _, ok := f("m", role).(*random); !ok {
			t.Errorf("%s does not have the common policy", role)
		}
	}
}

// TestIdleRanksShareTies guards against a choice that gives every tie to
// the first rank, so that the caches of the others stay empty.
func TestIdleRanksShareTies(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, name, 4)
			got := map[string]int{}
			for i := range 100 {
				h := admission.Hint{}
				if name == ConsistentHashing && i%2 == 0 {
					h = key(i)
				}
				got[f.once(h)]++
			}
			for id, n := range got {
				if n > 50 {
					t.Errorf("%s got %d of 100", id, n)
				}
			}
			if len(got) != 4 {
				t.Errorf("only %d of 4 ranks were used", len(got))
			}
		})
	}
}

// TestRequestsThatArriveTogetherSpread guards against a choice by a
// snapshot of loads in which a burst does not see itself.
func TestRequestsThatArriveTogetherSpread(t *testing.T) {
	for _, name := range []string{PowerOfTwo, LeastLoad, RoundRobin} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, name, 8)
			got := map[string]int{}
			for range 64 {
				got[f.place(admission.Hint{}).Decode.ID()]++
			}
			for id, n := range got {
				if n > 16 {
					t.Errorf("%s got %d of 64, fair are 8", id, n)
				}
			}
		})
	}
}

func TestPowerOfTwoPrefersTheLessLoaded(t *testing.T) {
	f := newFleet(t, PowerOfTwo, 2)
	first := f.place(admission.Hint{})
	for range 20 {
		if f.once(admission.Hint{}) == first.Decode.ID() {
			t.Fatal("the busy rank of two was chosen")
		}
	}
}

// The least loaded rank is found among more ranks than are looked at one by one, and
// by what is booked at the moment: a request that ended leaves its rank idle.
func TestLeastLoadTakesTheLeastLoadedRank(t *testing.T) {
	const ranks = 40
	f := newFleet(t, LeastLoad, ranks)
	held := map[string]*admission.Ticket{}
	for range ranks {
		ticket := f.place(admission.Hint{})
		if held[ticket.Decode.ID()] != nil {
			t.Fatalf("%s got a second request while others were idle", ticket.Decode.ID())
		}
		held[ticket.Decode.ID()] = ticket
	}
	for _, r := range []*admission.Rank{f.ranks[31], f.ranks[3], f.ranks[17]} {
		held[r.ID()].Release()
		if got := f.place(admission.Hint{}).Decode.ID(); got != r.ID() {
			t.Errorf("placed on %s, the only idle rank is %s", got, r.ID())
		}
	}
	f.healthy(f.ranks[5], false)
	for range 2 * ranks {
		if got := f.place(admission.Hint{}).Decode.ID(); got == f.ranks[5].ID() {
			t.Fatal("placed on a rank that is unhealthy")
		}
	}
}

// Requests that hold nothing may go to ranks without room, which stand in no order of
// loads, and are spread by their own number.
func TestPassedRequestsAreSpreadUnderEachPolicy(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, name, 20)
			got := map[*admission.Rank]int{}
			for i := range 100 {
				r := f.gate.Pass(admission.TargetSpec{Model: "m"}, admission.RoleRegular, new(key(i)))
				if r == nil {
					t.Fatal("no rank was chosen")
				}
				got[r]++
			}
			for r, n := range got {
				if n > 25 {
					t.Errorf("%s got %d of 100", r.ID(), n)
				}
			}
		})
	}
}

func TestRoundRobinTakesTurnsAndSkips(t *testing.T) {
	f := newFleet(t, RoundRobin, 3)
	story := func() string {
		var b strings.Builder
		for range 5 {
			b.WriteString(strings.TrimSuffix(strings.TrimPrefix(f.once(admission.Hint{}), "http://10.0.0."), ":30000"))
		}
		return b.String()
	}
	if got := story(); got != "01201" {
		t.Errorf("turns %s", got)
	}
	f.healthy(f.ranks[0], false)
	if got := story(); got != "21212" {
		t.Errorf("turns without rank 0: %s", got)
	}
}

// TestSessionsKeepTheirRank guards against sessions that scatter, which
// loses the cache of every turn but the first.
func TestSessionsKeepTheirRank(t *testing.T) {
	f := newFleet(t, ConsistentHashing, 4)
	const keys = 400
	home := func() (at [keys]string) {
		for i := range at {
			at[i] = f.once(key(i))
		}
		return at
	}
	first := home()
	if again := home(); again != first {
		t.Error("the same keys moved in a stable fleet")
	}
	share := map[string]int{}
	for _, id := range first {
		share[id]++
	}
	for id, n := range share {
		if n < keys/8 || n > keys/2 {
			t.Errorf("%s has %d of %d keys", id, n, keys)
		}
	}

	t.Run("a rank that joins takes keys only for itself", func(t *testing.T) {
		added := f.add(9)
		for i, id := range home() {
			if id != first[i] && id != added.ID() {
				t.Fatalf("key %d moved from %s to %s", i, first[i], id)
			}
		}
		f.remove(added)
		if home() != first {
			t.Error("keys did not come back after it left")
		}
	})
	t.Run("a rank without room lends its keys only", func(t *testing.T) {
		f.healthy(f.ranks[1], false)
		spread := map[string]int{}
		for i, id := range home() {
			if id == f.ranks[1].ID() {
				t.Fatal("a rank without room was chosen")
			}
			if first[i] != f.ranks[1].ID() && id != first[i] {
				t.Fatalf("key %d moved from %s to %s", i, first[i], id)
			}
			if first[i] == f.ranks[1].ID() {
				spread[id]++
			}
		}
		if len(spread) < 2 {
			t.Errorf("the lent keys all went to one rank: %v", spread)
		}
		f.healthy(f.ranks[1], true)
		if home() != first {
			t.Error("keys did not come back with room")
		}
	})
	t.Run("a rank that is registered again has its keys", func(t *testing.T) {
		f.remove(f.ranks[0])
		f.remove(f.ranks[2])
		f.add(2) // the free index of another rank
		f.add(0)
		if home() != first {
			t.Error("keys moved with the registration")
		}
	})
}

// The walk is bounded: with one rank of many left the choice is still defined,
// and the same for the same key.
func TestConsistentHashingWhenFewHaveRoom(t *testing.T) {
	f := newFleet(t, ConsistentHashing, 300)
	for _, r := range f.ranks[:297] {
		f.healthy(r, false)
	}
	used := map[string]bool{}
	for i := range 50 {
		a, b := f.once(key(i)), f.once(key(i))
		if a != b {
			t.Fatalf("key %d went to %s and %s", i, a, b)
		}
		used[a] = true
	}
	if len(used) < 2 {
		t.Errorf("all keys went to one of three ranks")
	}
}

func TestRandomIsEven(t *testing.T) {
	f := newFleet(t, Random, 8)
	got := map[string]int{}
	for range 8000 {
		got[f.once(admission.Hint{})]++
	}
	for id, n := range got {
		if n < 800 || n > 1200 {
			t.Errorf("%s got %d of 8000", id, n)
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, name, 100)
			h := key(1)
			h.PromptTokens, h.PrefixKey, h.HasPrefix = 1000, 5, true
			for i := range h.Holders {
				h.Holders[i] = admission.Holder{Rank: f.ranks[7*i], Tokens: int64(900 - 100*i)}
			}
			var none admission.Hint
			f.inner.onPick = func(v *admission.View, _ *admission.Hint) {
				if n := testing.AllocsPerRun(100, func() {
					f.inner.Booked(f.inner.Policy.Pick(v, &h), &h)
					f.inner.Policy.Pick(v, &none)
				}); n != 0 {
					t.Errorf("%v allocations a choice", n)
				}
			}
			f.once(h)
		})
	}
}

// The ring is compared with the plainest one: all points sorted.
func TestRingAgreesWithASortedList(t *testing.T) {
	var r ring
	ids := map[int]string{}
	next := rng{state: 7}
	check := func() {
		t.Helper()
		var all []point
		for i, id := range ids {
			for k := range virtualNodes {
				all = append(all, point{hash: pointHash(HashKey(id), k), rank: int32(i)})
			}
		}
		slices.SortFunc(all, point.compare)
		var got []point
		for _, b := range r.buckets {
			got = append(got, b...)
		}
		if !slices.Equal(all, got) || r.n != len(all) {
			t.Fatalf("ring of %d ranks: %d points, want %d, or not in order", len(ids), len(got), len(all))
		}
	}
	for step := range 60 {
		i := next.below(40)
		if id, ok := ids[i]; ok {
			r.remove(i, id)
			delete(ids, i)
		} else {
			ids[i] = fmt.Sprintf("rank-%d-%d", i, step)
			r.add(i, ids[i])
		}
		check()
	}
	for i, id := range ids {
		r.remove(i, id)
	}
	if r.n != 0 || r.buckets != nil {
		t.Error("an empty ring keeps memory")
	}
}

func BenchmarkPick(b *testing.B) {
	for _, name := range Names() {
		for _, n := range []int{64, 4096} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				f := newFleet(b, name, n)
				f.inner.onPick = func(v *admission.View, _ *admission.Hint) {
					i := uint64(0)
					for b.Loop() {
						i++
						f.inner.Policy.Pick(v, &admission.Hint{Key: mix(i), HasKey: true})
					}
				}
				f.once(admission.Hint{})
			})
		}
	}
}
