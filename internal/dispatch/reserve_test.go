package dispatch

import (
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
)

func TestOutputReserved(t *testing.T) {
	known := tokens.NewOutputLearner(0)
	for range 50 {
		known.Observe("short", 64)
		known.Observe("long", 1<<14)
	}
	auto := Options{ReserveAuto: true, ReserveCap: 2048}
	for _, tc := range []struct {
		name      string
		opts      Options
		pool      string
		maxTokens int64
		passing   bool
		want      int64
	}{
		{"none", Options{}, "short", 1500, false, 0},
		{"fixed", Options{ReserveTokens: 700}, "short", 10, false, 700},
		{"nothing is known", auto, "new", -1, false, tokens.FirstOutput},
		{"nothing is known, the client wants little", auto, "new", 10, false, 10},
		{"nothing is known, the client allows much", auto, "new", 1500, false, tokens.FirstOutput},
		{"short answers", auto, "short", 1500, false, 64},
		{"long answers", auto, "long", -1, false, 2048},
		{"long answers, less allowed", auto, "long", 1500, false, 1500},
		{"no output wanted", auto, "long", 0, false, 0},
		{"a passing route", auto, "long", 1500, true, 0},
	} {
		x := &exchange{d: &Dispatcher{opts: tc.opts, outputs: known}, call: &Call{Passing: tc.passing}}
		if n := x.reserve(&openai.Peeked{MaxTokens: tc.maxTokens}, tc.pool); n != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, n, tc.want)
		}
	}
}
