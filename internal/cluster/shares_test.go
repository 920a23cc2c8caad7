package cluster

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/admission"
)

// In any state that a change of list can have - each member obeys the old list, both, or,
// once all have agreed, the new one - the shares of a rank never exceed its limit in sum.
func TestSharesNeverExceedALimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []Incarnation {
			return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Incarnation {
				return Incarnation(rapid.Uint64Range(1, 12).Draw(t, "member"))
			}), 1, 6, func(i Incarnation) Incarnation { return i }).Draw(t, name)
		}
		before, after := draw("before"), draw("after")
		limits := [2]int{rapid.IntRange(1, 9).Draw(t, "limit"), rapid.IntRange(1, 9).Draw(t, "new limit")}
		spec := &admission.RankSpec{ID: rapid.StringN(1, 8, 8).Draw(t, "rank"), Role: admission.RolePrefill, Limits: admission.RankLimits{Running: 7}}
		old := &admission.Settings{Limits: admission.Limits{PrefillSlots: limits[0]}}
		next := &admission.Settings{Limits: admission.Limits{PrefillSlots: limits[1]}}
		states := []Shares{
			{Committed: before, CommittedSettings: old},
			{Committed: before, CommittedSettings: old, Proposed: after, ProposedSettings: next},
			{Committed: after, CommittedSettings: next},
		}
		agreed := rapid.Bool().Draw(t, "all agreed") // they have the second state or the third, else the first or second
		var slots, calls int64
		firsts := 0
		for m := range Incarnation(13) {
			s := &states[rapid.IntRange(0, 1).Draw(t, "state")+b2i(agreed)]
			if x := s.rank(spec, m); !x.None {
				slots += x.Slots
				calls += x.Calls
				firsts += b2i(x.First)
			}
		}
		limit := limits[0]
		if agreed {
			limit = limits[1]
		}
		if slots > int64(limit) || calls > 7 || firsts > 1 {
			t.Fatalf("%d slots of %d, %d calls of 7, %d firsts", slots, limit, calls, firsts)
		}
	})
}

func TestSharesOfOneListUseTheWholeLimit(t *testing.T) {
	list := []Incarnation{5, 9, 14}
	for limit := int64(0); limit < 10; limit++ {
		sum, firsts := int64(0), 0
		for _, m := range list {
			n, first := shareOf(limit, "http://w1", list, m)
			sum += n
			firsts += b2i(first)
		}
		if sum != limit || firsts != 1 {
			t.Errorf("limit %d: the shares are %d, %d members are the first", limit, sum, firsts)
		}
	}
	if s := (&Shares{Committed: list}).rank(&admission.RankSpec{ID: "w"}, 7); !s.None {
		t.Errorf("who is in no list has %+v", s)
	}
}
