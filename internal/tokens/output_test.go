package tokens

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestOutputGrowsByBlocks(t *testing.T) {
	// 20 tokens in blocks of 16: the two booked have room for 12 more.
	c := NewOutputCounter(OutputPlan{PromptTokens: 20, BlockSize: 16})
	for events := 1; events <= 12; events++ {
		if n := c.Seen(events, -1); n != 0 {
			t.Fatalf("%d blocks at event %d", n, events)
		}
	}
	for _, step := range []struct {
		events   int
		reported int64
		want     int64
	}{
		{13, -1, 1}, {28, -1, 0}, {29, -1, 1}, {29, 28, 0}, {30, 29 + 32, 2}, {31, 0, 0}, {5, -1, 0},
	} {
		if n := c.Seen(step.events, step.reported); n != step.want {
			t.Errorf("%+v: %d blocks", step, n)
		}
	}
	if c.Tokens() != 61 {
		t.Errorf("%d tokens", c.Tokens())
	}
	var none OutputCounter
	if none.Seen(1000, 1000) != 0 {
		t.Error("the zero value grows")
	}
}

func TestOutputConsumesItsReserve(t *testing.T) {
	c := NewOutputCounter(OutputPlan{PromptTokens: 16, ReserveTokens: 64, BlockSize: 16})
	if n := c.Seen(64, -1); n != 0 {
		t.Errorf("%d blocks within the reserve", n)
	}
	if n := c.Seen(65, -1); n != 1 {
		t.Errorf("%d blocks beyond it", n)
	}
}

func TestOutputOfSeveralLegs(t *testing.T) {
	c := NewOutputCounter(OutputPlan{PromptTokens: 4 * 16, Legs: 4, BlockSize: 16})
	if n := c.Seen(1, -1); n != 4 { // their answers come together
		t.Errorf("%d blocks", n)
	}
	if n := c.Seen(64, -1); n != 0 {
		t.Errorf("%d blocks", n)
	}
	if n := c.Seen(65, -1); n != 4 {
		t.Errorf("%d blocks", n)
	}
}

// A block that is begun near the expected end of the answer is soon free again.
func TestOutputGrowthIsWeighedByExpectedRest(t *testing.T) {
	plan := OutputPlan{PromptTokens: 16, BlockSize: 16, Expected: 160}
	c := NewOutputCounter(plan)
	var grown int64
	for i := 1; i <= 160; i++ {
		grown += c.Seen(i, -1)
		if i == 16 && grown != 1 {
			t.Errorf("the first block counts for %d", grown)
		}
	}
	if grown != 6 { // 1 + 0.9 + … + 0.1 = 5.5
		t.Errorf("10 blocks count for %d", grown)
	}
	if n := c.Seen(10000, -1); n != 0 {
		t.Errorf("%d blocks behind the expected end", n)
	}
	c = NewOutputCounter(OutputPlan{PromptTokens: 1, BlockSize: 1000, Expected: 10})
	if n := c.Seen(5000, -1); n != 0 {
		t.Errorf("%d blocks", n)
	}
}

func TestOutputBlocksHoldTheTokensWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(-2, 5000), rapid.Int64())
		p := OutputPlan{
			PromptTokens: amount.Draw(t, "prompt"), ReserveTokens: amount.Draw(t, "reserve"),
			Legs: rapid.IntRange(-1, 4096).Draw(t, "legs"), BlockSize: amount.Draw(t, "size"),
			Expected: amount.Draw(t, "expected"),
		}
		whole := p
		whole.Expected = 0
		c, w := NewOutputCounter(p), NewOutputCounter(whole)
		var grown, wholes int64
		for range 20 {
			events := rapid.OneOf(rapid.IntRange(0, 20000), rapid.Int()).Draw(t, "events")
			reported := amount.Draw(t, "reported")
			n, m := c.Seen(events, reported), w.Seen(events, reported)
			if n < 0 || m < 0 {
				t.Fatalf("negative growth %d, %d", n, m)
			}
			grown, wholes = grown+n, wholes+m
			if grown > wholes {
				t.Fatalf("in part %d blocks, whole %d", grown, wholes)
			}
			if most := (maxOutput + 1) * int64(max(p.Legs, 1)); wholes > most || wholes == math.MaxInt64 {
				t.Fatalf("%d blocks, at most %d", wholes, most)
			}
			if used := ceilDiv(w.Tokens(), w.legs); wholes*w.size < w.legs*(used-w.spare) {
				t.Fatalf("%d blocks of %d do not hold %d × %d tokens", wholes, w.size, w.legs, used-w.spare)
			}
		}
	})
}

func BenchmarkOutputSeen(b *testing.B) {
	c := NewOutputCounter(OutputPlan{PromptTokens: 1000, BlockSize: 16, Expected: 1 << 30})
	i := 0
	for b.Loop() {
		i++
		c.Seen(i, -1)
	}
}
