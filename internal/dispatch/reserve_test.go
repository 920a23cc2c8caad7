package dispatch

import (
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/tokens"
)

func TestOutputReserved(t *testing.T) {
	known := tokens.NewOutputLearner(0)
	for range 50 {
		known.Observe("short", 64)
		known.Observe("long", 1<<14)
	}
	auto := config.Admission{ReserveOutputTokens: config.ReserveAuto, ReserveOutputCap: 2048}
	for _, tc := range []struct {
		name      string
		opts      config.Admission
		pool      string
		maxTokens int64
		passing   bool
		want      int64
	}{
		{"none", config.Admission{}, "short", 1500, false, 0},
		{"fixed", config.Admission{ReserveOutputTokens: 700}, "short", 10, false, 700},
		{"nothing is known", auto, "new", -1, false, tokens.FirstOutput},
		{"nothing is known, the client wants little", auto, "new", 10, false, 10},
		{"nothing is known, the client allows much", auto, "new", 1500, false, tokens.FirstOutput},
		{"short answers", auto, "short", 1500, false, 64},
		{"long answers", auto, "long", -1, false, 2048},
		{"long answers, less allowed", auto, "long", 1500, false, 1500},
		{"no output wanted", auto, "long", 0, false, 0},
		{"a passing route", auto, "long", 1500, true, 0},
	} {
		req := &request{d: &services{cfg: &config.Config{Admission: tc.opts}, outputs: known}, call: &Call{Passing: tc.passing}}
		x := placement{request: req}
		if n := x.reserve(&openai.Peeked{MaxTokens: tc.maxTokens}, tc.pool); n != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, n, tc.want)
		}
	}
}

// What an answer has beyond an automatic reservation is booked as it comes, whether
// output is tracked or not; a fixed reservation is all unless it is.
func TestGrowthBeyondTheReservation(t *testing.T) {
	rank := fleetRank(t)
	for _, tc := range []struct {
		name    string
		opts    config.Admission
		passing bool
		want    int64 // blocks booked beside the reservation for an answer of 160 tokens
	}{
		{"nothing", config.Admission{}, false, 0},
		{"fixed", config.Admission{ReserveOutputTokens: 64}, false, 0},
		{"tracked", config.Admission{TrackOutputBlocks: true}, false, 10},
		{"fixed and tracked", config.Admission{ReserveOutputTokens: 64, TrackOutputBlocks: true}, false, 6},
		{"automatic", config.Admission{ReserveOutputTokens: config.ReserveAuto, ReserveOutputCap: 64}, false, 6},
		{"automatic and tracked", config.Admission{ReserveOutputTokens: config.ReserveAuto, ReserveOutputCap: 64, TrackOutputBlocks: true}, false, 6},
		{"automatic, room for all of it", config.Admission{ReserveOutputTokens: config.ReserveAuto, ReserveOutputCap: 2048}, false, 0},
		{"automatic on a passing route", config.Admission{ReserveOutputTokens: config.ReserveAuto, ReserveOutputCap: 64}, true, 0},
	} {
		req := &request{d: &services{cfg: &config.Config{Admission: tc.opts}, outputs: tokens.NewOutputLearner(0)}, call: &Call{Passing: tc.passing}}
		x := placement{request: req}
		x.ticket.PromptTokens, x.ticket.Legs = 16, 1
		x.ticket.ReserveTokens = x.reserve(&openai.Peeked{MaxTokens: -1}, "new")
		c := (&attempt{req}).counter(rank)
		got := int64(0)
		for events := 1; events <= 160; events++ {
			n := c.Seen(events, -1)
			if n > 0 && int64(events) <= x.ticket.ReserveTokens {
				t.Errorf("%s: %d blocks at token %d, within the reservation", tc.name, n, events)
			}
			got += n
		}
		if got != tc.want {
			t.Errorf("%s: %d blocks, want %d", tc.name, got, tc.want)
		}
	}
}

// fleetRank is a rank with blocks of the default size.
func fleetRank(t *testing.T) *fleet.Rank {
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{PageSize: 16}}})
	return r.fleet.List()[0].Ranks()[0]
}
