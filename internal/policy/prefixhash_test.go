package policy

import (
	"context"
	"testing"

	"github.com/sluice-router/sluice/admission"
)

// prefixed books a request for so many tokens whose prompt begins in a way of its own.
func (f *pairs) prefixed(key uint64, tokens int64) *admission.Ticket {
	f.t.Helper()
	t := &admission.Ticket{
		Target:       f.gate.Resolve(admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}),
		PromptTokens: tokens, Hints: [2]admission.Hint{admission.PrefillLeg: {PrefixKey: mix(key), HasPrefix: true}},
	}
	if err := f.gate.Acquire(context.Background(), t); err != nil {
		f.t.Fatal(err)
	}
	return t
}

// Prompts that begin alike meet on one rank, and a rank that leaves takes along only its own
// keys.
func TestPrefixHashKeepsPrefixesTogether(t *testing.T) {
	f := newPairs(t, DefaultOptions(), PrefixHash, 6)
	home := func() (at [120]*admission.Rank) {
		for i := range at {
			ticket := f.prefixed(uint64(i), 1000)
			at[i] = ticket.Prefill
			ticket.Release()
		}
		return at
	}
	first := home()
	if home() != first {
		t.Error("prefixes moved in an idle fleet")
	}
	count := map[*admission.Rank]int{}
	for _, r := range first {
		count[r]++
	}
	if len(count) != 6 {
		t.Errorf("prefixes are on %d of 6 ranks", len(count))
	}
	f.gate.Apply(admission.Change{Op: admission.RemoveRank, Rank: f.prefill[2]})
	for i, r := range home() {
		if r != first[i] && first[i] != f.prefill[2] {
			t.Fatalf("prefix %d moved from %s to %s", i, first[i].ID(), r.ID())
		}
	}
}

// One prefix does not take all requests to one rank: over both bounds of its load it is
// passed over.
func TestPrefixHashBoundsTheLoadOfAHotPrefix(t *testing.T) {
	for _, tc := range []struct {
		factor      float64
		slack       int64
		least, most int // requests of 160 on the rank of the prefix; a fair share is 20
	}{
		{1.25, 10, 25, 35},
		{1.25, 0, 20, 28},
		{3, 0, 50, 70}, // three times the mean
		{1000, 0, 160, 160},
	} {
		o := DefaultOptions()
		o.PrefixLoadFactor, o.PrefixLoadSlack = tc.factor, tc.slack
		f := newPairs(t, o, PrefixHash, 8)
		got := map[*admission.Rank]int{}
		home := f.prefixed(7, 1000).Prefill
		got[home]++
		for range 159 {
			got[f.prefixed(7, 1000).Prefill]++
		}
		if n := got[home]; n < tc.least || n > tc.most {
			t.Errorf("%+v: the rank of the prefix has %d of 160 requests", tc, n)
		}
	}
}

// A request without a prefix, and one whose rank has no room, go to the least loaded rank or
// the next one on the ring.
func TestPrefixHashWithoutPrefixOrRoom(t *testing.T) {
	f := newPairs(t, DefaultOptions(), PrefixHash, 4)
	home := f.prefixed(1, 100).Prefill
	for range 3 {
		if got := f.place(1000).Prefill; got == home {
			t.Error("a request without a prefix went to the busy rank")
		}
	}
	f.gate.Apply(admission.Change{Op: admission.SetState, Rank: home, State: admission.RankState{}})
	next := f.prefixed(1, 100).Prefill
	if next == home || f.prefixed(1, 100).Prefill != next {
		t.Errorf("without room at %s: %s", home.ID(), next.ID())
	}
}

// A prefix that more than half of the requests have is reported once; others are not.
func TestAHotPrefixIsReportedOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		key  func(i int) uint64
		want int
	}{
		{"all", func(int) uint64 { return 1 }, 1},
		{"two of three", func(i int) uint64 { return uint64(max(i%3, 1)) * 5 }, 1},
		{"half", func(i int) uint64 { return uint64(i%2) * uint64(i) }, 0},
		{"none", func(i int) uint64 { return uint64(i % 50) }, 0},
	} {
		o := DefaultOptions()
		hot := make(chan HotPrefix, 9)
		o.HotPrefixes = hot
		f := newPairs(t, o, PrefixHash, 3)
		for i := range 6 * keyWindow {
			f.prefixed(tc.key(i), 100).Release()
		}
		if len(hot) != tc.want {
			t.Errorf("%s: %d reports", tc.name, len(hot))
			continue
		}
		if tc.want > 0 {
			if h := <-hot; h.Model != "m" || h.Role != admission.RolePrefill || 2*h.Requests <= h.Of {
				t.Errorf("%s: %+v", tc.name, h)
			}
		}
	}
	// Nobody reads: nobody waits.
	o := DefaultOptions()
	o.HotPrefixes = make(chan HotPrefix)
	f := newPairs(t, o, PrefixHash, 1)
	for range 4 * keyWindow {
		f.prefixed(1, 100).Release()
	}
}

func TestOptionsSayHowLongAPrefixIs(t *testing.T) {
	o := DefaultOptions()
	if n := o.PrefixBytes(); n != 1024 {
		t.Errorf("%d bytes", n)
	}
	for _, name := range Names() {
		if UsesHolders(name) != (name == CacheAware) || UsesPrefix(name) != (name == PrefixHash) {
			t.Error(name)
		}
	}
}
