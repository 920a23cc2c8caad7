package kv

import (
	"slices"
	"testing"

	"github.com/sluice-router/sluice/internal/kv/events"
)

// follower is an index with one rank that events tell of.
type follower struct {
	*Exact
	t *testing.T
}

func follow(t *testing.T, blocks int) follower {
	x := newIndex(Options{MaxBytes: 8 << 20}, 2)
	return follower{NewExact(x, RankSpec{Blocks: blocks}, "model"), t}
}

// ids are the tokens of n blocks of 2; blocks of the same number are the same.
func ids(blocks ...uint32) (tokens []uint32) {
	for _, b := range blocks {
		tokens = append(tokens, b, b+1000)
	}
	return tokens
}

// event stores blocks under hashes 100 more than their numbers, after hash parent if it is not 0.
func event(parent uint64, blocks ...uint32) *events.Stored {
	s := &events.Stored{Parent: parent, HasParent: parent != 0, Tokens: ids(blocks...), BlockSize: 2, Medium: "GPU"}
	for _, b := range blocks {
		s.Hashes = append(s.Hashes, 100+uint64(b))
	}
	return s
}

// holds checks how many of a prompt's blocks are credited.
func (f follower) holds(want int, s Scope, tokens []uint32) {
	f.t.Helper()
	s.Model, s.Form = "model", FormTokens
	if s.Size == 0 {
		s.Size = 2
	}
	keys := keysOf(s, func(h *Hasher) { h.WriteTokens(tokens) })
	got := 0
	for _, o := range f.x.Match(keys, 0, nil, nil) {
		got = o.Blocks
	}
	if got != want {
		f.t.Errorf("%d blocks of %v are credited, want %d", got, tokens, want)
	}
}

func (f follower) unused(why string, want uint64) {
	f.t.Helper()
	if got := f.x.Stats().Unused[why]; got != want {
		f.t.Errorf("%d blocks are counted as unused by %s, want %d", got, why, want)
	}
}

func TestBlocksAfterAnUnknownParentCountWhenItComes(t *testing.T) {
	f := follow(t, 0)
	f.Stored(event(102, 3, 4))
	f.Stored(event(104, 5))
	f.holds(0, Scope{}, ids(1, 2, 3, 4, 5))
	if !f.Misses() {
		t.Error("nothing is said to be missed")
	}
	f.Stored(event(0, 1, 2))
	f.holds(5, Scope{}, ids(1, 2, 3, 4, 5))
	if f.Misses() {
		t.Error("something is said to be missed")
	}
	if n := f.BlockSize(); n != 2 {
		t.Errorf("blocks of %d tokens", n)
	}
}

func TestWhatIsKeptAsideIsBounded(t *testing.T) {
	f := follow(t, 0)
	for i := range uint32(3000) {
		f.Stored(event(1_000_000+uint64(i), 10*i, 10*i+1, 10*i+2))
	}
	if f.aside.blocks > asideBlocks || len(f.aside.runs) > asideRuns {
		t.Errorf("%d blocks in %d runs", f.aside.blocks, len(f.aside.runs))
	}
	f.unused("parent", 3*(3000-asideRuns))
	f.Removed(&events.Removed{Hashes: []uint64{100 + 29991}}) // of the last
	f.Stored(&events.Stored{Hashes: []uint64{1_002_999}, Tokens: ids(7), BlockSize: 2})
	f.holds(2, Scope{}, ids(7, 29990, 29991, 29992))
	f.Removed(&events.Removed{Hashes: firsts(f.aside.runs)})
	f.Stored(event(0, 1, 2))
	if len(f.aside.runs) != 0 || !f.Misses() {
		t.Errorf("%d runs are aside, and what was lost is forgotten", len(f.aside.runs))
	}
	f.Cleared()
	if f.aside.blocks != 0 || f.Misses() {
		t.Errorf("%d blocks after a clear", f.aside.blocks)
	}
}

// A salt keeps the prompts of one tenant from another: both may send the same words.
func TestSaltsNeverShareACredit(t *testing.T) {
	f := follow(t, 0)
	s := event(0, 1, 2, 3)
	s.Extra = [][]string{{"tenant-7"}, nil, nil}
	f.Stored(s)
	prompt := ids(1, 2, 3)
	f.holds(0, Scope{}, prompt)
	f.holds(0, Scope{Salt: "tenant-8"}, prompt)
	f.holds(3, Scope{Salt: "tenant-7"}, prompt)
	told := event(0, 1, 2, 3) // as engines tell it that have a member for it
	told.Salt, told.Hashes = "tenant-9", []uint64{1, 2, 3}
	f.Stored(told)
	f.holds(3, Scope{Salt: "tenant-9"}, prompt)
	f.holds(0, Scope{}, prompt)
}

func TestAdaptersAndImagesArePartOfTheKeys(t *testing.T) {
	f := follow(t, 0)
	s := event(0, 1, 2)
	s.Adapter, s.Extra = "sql", [][]string{{"sql", "salt"}, {"sql"}}
	f.Stored(s)
	f.holds(2, Scope{Adapter: "sql", Salt: "salt"}, ids(1, 2))
	f.holds(0, Scope{Adapter: "sql"}, ids(1, 2))
	f.holds(0, Scope{Salt: "salt"}, ids(1, 2))
	image := event(0, 5, 6, 7)
	image.Extra = [][]string{nil, {"image-hash"}, nil}
	f.Stored(image)
	f.holds(1, Scope{}, ids(5, 6, 7))
}

func TestOnlyTheCacheThatPrefillUsesCounts(t *testing.T) {
	f := follow(t, 0)
	cpu := event(0, 1, 2)
	cpu.Medium = "CPU"
	f.Stored(cpu)
	f.holds(0, Scope{}, ids(1, 2))
	f.Stored(event(0, 1, 2))
	f.Removed(&events.Removed{Hashes: []uint64{101, 102}, Medium: "CPU"})
	f.holds(2, Scope{}, ids(1, 2))
	f.unused("tier", 4)

	window := event(102, 3)
	window.Group, window.Kind = 1, "sliding_window"
	f.Stored(window)
	second := event(102, 3)
	second.Group, second.Kind = 2, "full_attention"
	f.Stored(second)
	f.holds(2, Scope{}, ids(1, 2, 3))
	f.Removed(&events.Removed{Hashes: []uint64{101}, Group: 1})
	f.holds(2, Scope{}, ids(1, 2, 3))
	f.unused("group", 3)
}

// One unknown block in a removal must not stop the rest of it.
func TestARemovalOfUnknownBlocksRemovesTheOthers(t *testing.T) {
	f := follow(t, 0)
	f.Stored(event(0, 1, 2, 3))
	f.Removed(&events.Removed{Hashes: []uint64{9999, 103, 8888, 102}})
	f.holds(1, Scope{}, ids(1, 2, 3))
	f.unused("unknown", 2)
	f.Stored(event(101, 2, 3))
	f.Removed(&events.Removed{Hashes: []uint64{102}}) // those after it are no use now
	f.holds(1, Scope{}, ids(1, 2, 3))
	f.Stored(event(101, 2))
	f.holds(3, Scope{}, ids(1, 2, 3))
}

func TestAHashThatStandsForAnotherBlockClearsTheRank(t *testing.T) {
	f := follow(t, 0)
	f.Stored(event(0, 1, 2))
	again := event(0, 1, 2)
	f.Stored(again)
	f.holds(2, Scope{}, ids(1, 2))
	other := event(0, 7)
	other.Hashes[0] = 101
	f.Stored(other)
	f.holds(0, Scope{}, ids(1, 2))
	f.holds(0, Scope{}, ids(7))
	f.unused("reused", 1)
	f.Stored(event(0, 1, 2))
	f.holds(2, Scope{}, ids(1, 2))
}

func TestAnotherBlockSizeForgetsWhatWasHeld(t *testing.T) {
	f := follow(t, 0)
	f.Stored(event(0, 1, 2))
	other := event(0, 3, 4)
	other.BlockSize, other.Hashes = 4, other.Hashes[:1]
	f.Stored(other)
	f.holds(0, Scope{}, ids(1, 2))
	f.holds(1, Scope{Size: 4}, ids(3, 4))
	if n := f.BlockSize(); n != 4 {
		t.Errorf("blocks of %d tokens", n)
	}
}

func TestEventsThatMakeNoSenseAreLeftOut(t *testing.T) {
	f := follow(t, 0)
	f.Stored(event(0, 1))
	f.Stored(event(102, 2)) // its own parent
	f.Stored(&events.Stored{Hashes: []uint64{1}, Tokens: ids(1)})
	f.Stored(&events.Stored{Hashes: []uint64{1}, BlockSize: -5, Tokens: ids(1)})
	f.Stored(&events.Stored{Hashes: []uint64{1}, BlockSize: 1 << 40, Tokens: ids(1)})
	f.Stored(&events.Stored{})
	short := event(101, 5, 6)
	short.Tokens = short.Tokens[:3]
	f.Stored(short)
	twice := event(105, 7, 7)
	f.Stored(twice)
	f.holds(3, Scope{}, ids(1, 5, 7, 7))
	f.unused("tokens", 4)
	f.unused("parent", 1)
}

// An engine that never tells of removals must not make the index grow.
func TestARankHoldsNoMoreThanItsEngineCan(t *testing.T) {
	f := follow(t, 80)
	last := event(0, 1)
	for i := range uint32(2000) {
		if i%50 == 0 {
			last = event(0, i)
		} else {
			last = event(last.Hashes[len(last.Hashes)-1], i)
		}
		f.Stored(last)
		if n := f.Rank().Held(); n > 80+10+slackBlocks {
			t.Fatalf("%d blocks are held", n)
		}
	}
	f.holds(50, Scope{}, slices.Concat(func() (all [][]uint32) {
		for i := range uint32(50) {
			all = append(all, ids(1950+i))
		}
		return all
	}()...))
	f.Drop()
	f.Stored(event(0, 1))
	f.Cleared()
	f.Drop()
	if n := f.Rank().Held(); n != 0 || f.Live() {
		t.Errorf("%d blocks are held after Drop", n)
	}
}

// firsts are the hashes that runs begin with.
func firsts(runs []run) (hashes []uint64) {
	for _, r := range runs {
		hashes = append(hashes, r.hashes[0])
	}
	return hashes
}
