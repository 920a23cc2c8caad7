package policy

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/admission"
)

// pairs is a gate with prefill ranks that are placed by the policy under test, and a decode
// rank.
type pairs struct {
	t       testing.TB
	gate    *admission.Gate
	prefill []*admission.Rank
}

func newPairs(t testing.TB, o Options, name string, n int) *pairs {
	t.Helper()
	factory, err := NewWith(name, 1, o)
	if err != nil {
		t.Fatal(err)
	}
	f := &pairs{t: t, gate: admission.NewGate(admission.Options{NewPolicy: factory}, admission.NewSystemClock(), nil)}
	t.Cleanup(f.gate.Close)
	f.add(admission.RankSpec{ID: "d", Role: admission.RoleDecode})
	for i := range n {
		f.prefill = append(f.prefill, f.add(admission.RankSpec{ID: fmt.Sprint("p", i), Role: admission.RolePrefill}))
	}
	return f
}

func (f *pairs) add(s admission.RankSpec) *admission.Rank {
	s.Models, s.State.Healthy = []string{"m"}, true
	r := admission.NewRank(s)
	f.gate.Apply(admission.Change{Op: admission.AddRank, Rank: r})
	return r
}

// place books a request for so many tokens, of which holders have some.
func (f *pairs) place(prompt int64, holders ...admission.Holder) *admission.Ticket {
	f.t.Helper()
	h := admission.Hint{PromptTokens: prompt}
	copy(h.Holders[:], holders)
	return f.placeBy(h)
}

// placeBy books a request by what its hint says.
func (f *pairs) placeBy(h admission.Hint) *admission.Ticket {
	f.t.Helper()
	t := &admission.Ticket{
		Target:       f.gate.Resolve(admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}),
		PromptTokens: h.PromptTokens, Hints: [2]admission.Hint{admission.PrefillLeg: h},
	}
	if err := f.gate.Acquire(context.Background(), t); err != nil {
		f.t.Fatal(err)
	}
	return t
}

func holder(r *admission.Rank, tokens int64) admission.Holder {
	return admission.Holder{Rank: r, Tokens: tokens}
}

// A rank that holds the prompt is worth a wait of weight times the tokens it holds, and no
// more.
func TestCacheAwareWaitsForAHolderAsLongAsTheWeightSays(t *testing.T) {
	for _, tc := range []struct {
		weight          float64
		booked, held    int64
		goesToTheHolder bool
	}{
		{8, 0, 500, true},
		{8, 3999, 500, true},
		{8, 4001, 500, false},
		{1, 499, 500, true},
		{1, 501, 500, false},
		{0, 1, 1000, false},
		{1000, 499_999, 500, true},
	} {
		o := DefaultOptions()
		o.CacheWeight = tc.weight
		f := newPairs(t, o, CacheAware, 3)
		if tc.booked > 0 {
			if busy := f.place(tc.booked); busy.Prefill != f.prefill[0] {
				t.Fatalf("the first request is on %s", busy.Prefill.ID())
			}
		}
		got := f.place(1000, holder(f.prefill[0], tc.held)).Prefill
		if (got == f.prefill[0]) != tc.goesToTheHolder {
			t.Errorf("%+v: placed on %s", tc, got.ID())
		}
	}
}

// What many share is worth a copy: the weight is divided among them, down to 1.
func TestCacheAwareCopiesWhatManyShare(t *testing.T) {
	for _, tc := range []struct {
		weight          float64
		sharing         int32
		booked          int64
		goesToTheHolder bool
	}{
		{8, 0, 3999, true},
		{8, 1, 2249, true}, // 4.5 × 500
		{8, 1, 2251, false},
		{8, 1000, 500, true},
		{8, 1000, 504, false},
		{1, 1000, 499, true},
		{0.5, 1000, 249, true},
		{0.5, 1000, 251, false},
		{8, -1, 3999, true},
	} {
		o := DefaultOptions()
		o.CacheWeight = tc.weight
		f := newPairs(t, o, CacheAware, 3)
		f.place(tc.booked)
		h := admission.Hint{PromptTokens: 1000, Sharing: tc.sharing}
		h.Holders[0] = holder(f.prefill[0], 500)
		if got := f.placeBy(h).Prefill; (got == f.prefill[0]) != tc.goesToTheHolder {
			t.Errorf("%+v: placed on %s", tc, got.ID())
		}
	}
}

// Of several holders the one with the most is not always the best.
func TestCacheAwareWeighsHoldersAgainstEachOther(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 20)
	f.place(6000) // on p0
	if got := f.place(1000, holder(f.prefill[0], 900), holder(f.prefill[1], 300), holder(f.prefill[2], 200)).Prefill; got != f.prefill[1] {
		t.Errorf("placed on %s", got.ID())
	}
}

// A holder that may not be chosen is passed over, and the next is taken.
func TestCacheAwarePassesOverHoldersThatMayNotBeChosen(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 20)
	for _, r := range f.prefill[:2] {
		f.gate.Apply(admission.Change{Op: admission.SetState, Rank: r, State: admission.RankState{Healthy: false}})
	}
	gone := f.add(admission.RankSpec{ID: "p99", Role: admission.RolePrefill})
	f.gate.Apply(admission.Change{Op: admission.RemoveRank, Rank: gone})
	got := f.place(1000, holder(f.prefill[0], 1000), holder(gone, 1000), holder(f.prefill[1], 900), holder(f.prefill[7], 800)).Prefill
	if got != f.prefill[7] {
		t.Errorf("placed on %s", got.ID())
	}
}

// A match of less than the least part of a prompt counts as none, so that prompts that all
// begin alike are spread in an idle fleet.
func TestCacheAwareSpreadsPromptsThatShareLittle(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 8)
	got := map[*admission.Rank]int{}
	for range 80 {
		ticket := f.place(10_000, holder(f.prefill[0], 512), holder(f.prefill[1], 512))
		got[ticket.Prefill]++
		ticket.Release()
	}
	for r, n := range got {
		if n != 10 {
			t.Errorf("%s got %d of 80 requests", r.ID(), n)
		}
	}
	if r := f.place(10_000, holder(f.prefill[3], 1000)).Prefill; r != f.prefill[3] {
		t.Errorf("a match of a tenth was placed on %s", r.ID())
	}
}

// Ranks of equal cost take turns, holders among themselves too.
func TestCacheAwareGivesTiesToTheLeastRecentlyBooked(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 6)
	var got []string
	for range 6 {
		ticket := f.place(1000, holder(f.prefill[4], 900), holder(f.prefill[2], 900), holder(f.prefill[3], 900))
		got = append(got, ticket.Prefill.ID())
		ticket.Release()
	}
	if fmt.Sprint(got[:3]) != fmt.Sprint(got[3:]) || got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
		t.Errorf("%v", got)
	}
}

// Hints that make no sense are no reason to choose badly, or to stop.
func TestCacheAwareWithHintsOutOfRange(t *testing.T) {
	o := DefaultOptions()
	o.CacheWeight = 1000
	f := newPairs(t, o, CacheAware, 3)
	f.place(1 << 40)
	for _, tokens := range []int64{-1, -1 << 62, 0} {
		if got := f.place(100, holder(f.prefill[0], tokens)).Prefill; got == f.prefill[0] {
			t.Errorf("%d tokens: placed on the busy rank", tokens)
		}
	}
	if got := f.place(0, holder(f.prefill[0], 1<<62)).Prefill; got == f.prefill[0] {
		t.Error("an empty prompt was placed on the busy rank")
	}
	// A holder that holds more than there is holds all there is.
	if got := f.place(100, holder(f.prefill[0], 1<<62)).Prefill; got == f.prefill[0] {
		t.Error("a prompt of 100 tokens was worth a wait for 2^40")
	}
	f.place(1<<62, holder(f.prefill[1], 1<<62))
}

// Priorities and warm-up narrow the choice before the caches are looked at.
func TestCacheAwareComposesWithPriorities(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 0)
	low := f.add(admission.RankSpec{ID: "low", Role: admission.RolePrefill, Priority: 1})
	high := f.add(admission.RankSpec{ID: "high", Role: admission.RolePrefill, Priority: 9})
	for range 3 {
		if got := f.place(1000, holder(low, 1000)).Prefill; got != high {
			t.Errorf("placed on %s", got.ID())
		}
	}
	warming := f.add(admission.RankSpec{ID: "warming", Role: admission.RolePrefill, Priority: 9, State: admission.RankState{Share: 100}})
	n := 0
	for range 100 {
		if f.place(1000, holder(warming, 1000)).Prefill == warming {
			n++
		}
	}
	if n < 5 || n > 20 {
		t.Errorf("a rank with a share of a tenth and the whole prompt got %d of 100 requests", n)
	}
}

// A decode rank is chosen by the KV blocks it keeps, not by the number of its requests. Of
// ranks that prefill and decode, a holder does not keep all requests that begin alike while
// others idle: what it keeps for those it generates for counts too.
func TestCacheAwareCountsWhatRanksKeep(t *testing.T) {
	f := newFleet(t, CacheAware, 4)
	target := f.gate.Resolve(admission.TargetSpec{Model: "m"})
	got := map[*admission.Rank]int{}
	for range 64 {
		ticket := &admission.Ticket{Target: target, PromptTokens: 2048}
		ticket.Hints[admission.DecodeLeg] = admission.Hint{PromptTokens: 2048, Holders: [admission.MaxHolders]admission.Holder{holder(f.ranks[0], 512)}}
		if err := f.gate.Acquire(context.Background(), ticket); err != nil {
			t.Fatal(err)
		}
		ticket.StartDecode()
		ticket.FirstToken() // it generates for the rest of the test
		got[ticket.Decode]++
	}
	for _, r := range f.ranks {
		if n := got[r]; n < 12 || n > 28 {
			t.Errorf("%s has %d of 64 requests", r.ID(), n)
		}
	}
	if got[f.ranks[0]] < 17 {
		t.Errorf("the holder has %d of 64 requests", got[f.ranks[0]])
	}
}

func TestCacheAwareChoosesDecodeByKVBlocks(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 1)
	f.add(admission.RankSpec{ID: "d2", Role: admission.RoleDecode})
	long := f.place(10_000).Decode
	for range 9 {
		if got := f.place(1000).Decode; got == long {
			t.Fatal("a short request went to the rank that keeps more")
		}
	}
}

// Idle prefill and decode ranks meet in all combinations, so that a pair that fails does not
// hide which of the two is at fault.
func TestCacheAwareMixesIdlePairs(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 2)
	f.add(admission.RankSpec{ID: "d2", Role: admission.RoleDecode})
	met := map[string]int{}
	for range 80 {
		ticket := f.place(1000)
		met[ticket.Prefill.ID()+ticket.Decode.ID()]++
		ticket.Release()
	}
	for pair, n := range met {
		if n > 40 {
			t.Errorf("%s got %d of 80 requests", pair, n)
		}
	}
	if len(met) != 4 {
		t.Errorf("only %d of 4 pairs were used", len(met))
	}
}

// A request that runs whole on a decode rank is placed by what that holds, and by what it
// keeps.
func TestCacheAwarePlacesBypassByHolders(t *testing.T) {
	f := newPairs(t, DefaultOptions(), CacheAware, 1)
	second := f.add(admission.RankSpec{ID: "d2", Role: admission.RoleDecode})
	place := func(prompt int64, holders ...admission.Holder) *admission.Rank {
		h := admission.Hint{PromptTokens: prompt}
		copy(h.Holders[:], holders)
		ticket := &admission.Ticket{
			Target:       f.gate.Resolve(admission.TargetSpec{Model: "m", Shape: admission.Bypass}),
			PromptTokens: prompt, Hints: [2]admission.Hint{admission.DecodeLeg: h},
		}
		if err := f.gate.Acquire(context.Background(), ticket); err != nil {
			t.Fatal(err)
		}
		return ticket.Decode
	}
	for range 5 {
		if got := place(1000, holder(second, 900)); got != second {
			t.Errorf("placed on %s, which holds nothing", got.ID())
		}
	}
	place(100_000, holder(second, 100_000))
	if got := place(1000, holder(second, 900)); got == second {
		t.Error("a match of 900 tokens was worth a decode rank that keeps 100,000 more")
	}
}

func BenchmarkCacheAware(b *testing.B) {
	for _, n := range []int{64, 512, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFleet(b, CacheAware, n)
			h := admission.Hint{PromptTokens: 10_000}
			for k := range h.Holders {
				h.Holders[k] = holder(f.ranks[n/(k+2)], int64(9000-1000*k))
			}
			f.inner.onPick = func(v *admission.View, _ *admission.Hint) {
				b.ReportAllocs()
				for b.Loop() {
					f.inner.Policy.Pick(v, &h)
				}
			}
			f.once(admission.Hint{})
		})
	}
}
