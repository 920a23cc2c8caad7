package tokens

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/internal/openai"
)

// tokenizer is the tokenizer and template of a test's engine.
type tokenizer struct{ ascii, other, message, prompt float64 }

func (x tokenizer) tokens(p *Prompt) int64 {
	return int64(math.Round(float64(p.ASCII)*x.ascii + float64(p.Other)*x.other + float64(p.Messages)*x.message + x.prompt))
}

func usage(n int64) openai.Usage {
	return openai.Usage{PromptTokens: n, CompletionTokens: 1, CachedTokens: -1}
}

// traffic is prompts of every length and mixture.
type traffic struct{ *rand.Rand }

func newTraffic() traffic { return traffic{rand.New(rand.NewPCG(1, 2))} }

func (r traffic) prompt() *Prompt {
	n := int64(math.Exp(3 + 8*r.Float64())) // 20 B to 60 kB
	p := &Prompt{ASCII: n, Messages: 1 + r.Int64N(8), Prompts: 1, clear: true}
	if r.IntN(3) == 0 {
		p.Other = int64(float64(n) * r.Float64())
		p.ASCII -= p.Other
	}
	return p
}

// meanError is the mean relative error of the estimates for new prompts of some length.
func meanError(e *Estimator, x tokenizer, r traffic) float64 {
	sum, n := 0.0, 0
	for range 2000 {
		p := r.prompt()
		if p.text() < 256 {
			continue
		}
		sum += math.Abs(float64(e.Estimate("m", p))/float64(x.tokens(p)) - 1)
		n++
	}
	return sum / float64(n)
}

func teach(e *Estimator, r traffic, n int, report func(p *Prompt) int64) {
	for range n {
		p := r.prompt()
		e.Observe("m", p, e.Estimate("m", p), usage(report(p)))
	}
}

func wantError(t *testing.T, what string, got, most float64) {
	t.Helper()
	t.Logf("%s: mean error %.1f %%", what, 100*got)
	if got > most {
		t.Errorf("%s: mean error %.1f %%, want at most %.0f %%", what, 100*got, 100*most)
	}
}

func TestLearnsATokenizer(t *testing.T) {
	for _, x := range []tokenizer{
		{0.22, 0.3, 4, 3}, {0.4, 0.15, 5, 30}, {0.3, 0.6, 8, 100}, {1, 1, 2, 1}, {0.12, 0.2, 4, 3},
	} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			e, r := NewEstimator(0, nil), newTraffic()
			teach(e, r, 50, x.tokens)
			wantError(t, "after 50", meanError(e, x, r), 0.3)
			teach(e, r, 1000, x.tokens)
			wantError(t, "after 1050", meanError(e, x, r), 0.06)
		})
	}
}

// The token counts of text vary in ways that no coefficient explains; the mean is still
// learned.
func TestLearnsUnderNoise(t *testing.T) {
	e, r := NewEstimator(0, nil), newTraffic()
	x := tokenizer{0.28, 0.35, 4, 10}
	teach(e, r, 2000, func(p *Prompt) int64 { return int64(float64(x.tokens(p)) * math.Exp(0.2*r.NormFloat64())) })
	wantError(t, "noise", meanError(e, x, r), 0.1)
}

func TestFollowsDrift(t *testing.T) {
	e, r := NewEstimator(0, nil), newTraffic()
	old, next := tokenizer{0.22, 0.3, 4, 3}, tokenizer{0.45, 0.7, 4, 3}
	teach(e, r, 2000, old.tokens)
	teach(e, r, 300, next.tokens) // the model was replaced
	wantError(t, "after a jump", meanError(e, next, r), 0.1)
	for i := range 2000 { // the traffic changes slowly
		next.ascii = 0.45 - 0.2*float64(i)/2000
		teach(e, r, 1, next.tokens)
	}
	wantError(t, "after a slow drift", meanError(e, next, r), 0.1)
}

func TestOutliersHaveBoundedInfluence(t *testing.T) {
	x := tokenizer{0.25, 0.3, 4, 4}
	for name, report := range map[string]func(p *Prompt) int64{
		"far too many":   func(p *Prompt) int64 { return x.tokens(p) * 4 },
		"one":            func(*Prompt) int64 { return 1 },
		"huge":           func(*Prompt) int64 { return math.MaxInt64 },
		"negative":       func(*Prompt) int64 { return math.MinInt64 },
		"the whole file": func(p *Prompt) int64 { return p.text() },
	} {
		t.Run(name, func(t *testing.T) {
			e, r := NewEstimator(0, nil), newTraffic()
			teach(e, r, 500, x.tokens)
			teach(e, r, 3000, func(p *Prompt) int64 {
				if r.IntN(10) == 0 {
					return report(p)
				}
				return x.tokens(p)
			})
			wantError(t, "one report in ten is wrong", meanError(e, x, r), 0.1)
			before := meanError(e, x, r)
			teach(e, r, 1, report)
			if after := meanError(e, x, r); after > before+0.03 {
				t.Errorf("one report moved the error from %.3f to %.3f", before, after)
			}
		})
	}
}

// An engine that only reports wrong counts makes the estimates of its model wrong, within
// bounds, and those of no other model.
func TestOnlyWrongReportsKeepEstimatesInBounds(t *testing.T) {
	for name, report := range map[string]func(p *Prompt, i int) int64{
		"low":       func(*Prompt, int) int64 { return 1 },
		"high":      func(p *Prompt, _ int) int64 { return int64(float64(p.text()) * 1.2) },
		"turn":      func(p *Prompt, i int) int64 { return []int64{1, p.text()}[i%2] },
		"zero":      func(*Prompt, int) int64 { return 0 },
		"max":       func(*Prompt, int) int64 { return math.MaxInt64 },
		"min":       func(*Prompt, int) int64 { return math.MinInt64 },
		"all sorts": func(_ *Prompt, i int) int64 { return int64(uint64(i) * 0x9e3779b97f4a7c15) },
	} {
		t.Run(name, func(t *testing.T) {
			e, r := NewEstimator(0, nil), newTraffic()
			other := *r.prompt()
			want := e.Estimate("other", &other)
			for i := range 5000 {
				p := r.prompt()
				got := e.Estimate("m", p)
				if low, high := float64(p.text())*0.02, float64(p.text())*1.25+64*8+4096; float64(got) < low-1 || float64(got) > high {
					t.Fatalf("estimate %d of %+v", got, p)
				}
				e.Observe("m", p, got, usage(report(p, i)))
			}
			if got := e.Estimate("other", &other); got != want {
				t.Errorf("another model's estimate went from %d to %d", want, got)
			}
		})
	}
}

func TestEstimateIsBounded(t *testing.T) {
	e := NewEstimator(0, nil)
	for _, tc := range []struct {
		p    Prompt
		want int64
	}{
		{Prompt{}, 0},
		{Prompt{IDs: 17, Prompts: 1}, 17},
		{Prompt{IDs: math.MaxInt64, Prompts: 1}, MaxTokens},
		{Prompt{IDs: math.MaxInt64, ASCII: math.MaxInt64, Media: math.MaxInt64, Prompts: math.MaxInt64}, MaxTokens},
		{Prompt{IDs: -5, ASCII: -1, Other: -1, ToolBytes: -1, Messages: -1, Media: -1, Prompts: -1}, 0},
		{Prompt{ASCII: 400, Prompts: 1}, 104},
	} {
		if got := e.Estimate("m", &tc.p); got != tc.want {
			t.Errorf("%+v: %d, want %d", tc.p, got, tc.want)
		}
	}
}

func TestUnclearReportsAreIgnored(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := NewEstimator(0, NewMetrics(reg))
	batch := &Prompt{ASCII: 100, Prompts: 2}
	e.Observe("m", batch, 25, usage(90))
	ids := &Prompt{IDs: 3, Prompts: 1}
	e.Observe("m", ids, 3, usage(90))
	cached := &Prompt{ASCII: 400, Prompts: 1, clear: true, messagesAPI: true}
	e.Observe("m", cached, 100, openai.Usage{PromptTokens: 7, CachedTokens: 93})
	e.Observe("m", cached, 100, openai.Usage{PromptTokens: -1, CachedTokens: -1})
	if len(*e.models.Load()) != 0 {
		t.Error("something was learned")
	}
	e.Observe("m", cached, 104, openai.Usage{PromptTokens: 208, CachedTokens: 0})
	want := `
# HELP sluice_prompt_estimate_ignored_total Answers whose token count could not be used: none, a count of something else, or an impossible one.
# TYPE sluice_prompt_estimate_ignored_total counter
sluice_prompt_estimate_ignored_total{reason="implausible"} 0
sluice_prompt_estimate_ignored_total{reason="missing"} 1
sluice_prompt_estimate_ignored_total{reason="unclear"} 2
# HELP sluice_prompt_estimate_reports_total Token counts of engines that were used for learning.
# TYPE sluice_prompt_estimate_reports_total counter
sluice_prompt_estimate_reports_total{model="m"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "sluice_prompt_estimate_ignored_total", "sluice_prompt_estimate_reports_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(e.metrics.errors); n != 1 {
		t.Errorf("%d histograms", n)
	}
	if n, err := testutil.GatherAndCount(reg, "sluice_prompt_tokens_per_byte", "sluice_prompt_estimate_deviation"); n != 3 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
}

// The table is bounded, and a flood of new names does not evict a model in use.
func TestModelsAreBounded(t *testing.T) {
	e, x := NewEstimator(4, nil), tokenizer{0.5, 0.5, 4, 4}
	p := &Prompt{ASCII: 4000, Messages: 1, Prompts: 1, clear: true}
	for i := range 1000 {
		e.Observe("m", p, 0, usage(x.tokens(p)))
		e.Observe(fmt.Sprint("junk-", i), p, 0, usage(3))
		if n := len(*e.models.Load()); n > 4 {
			t.Fatalf("%d models", n)
		}
	}
	if got := e.Estimate("m", p); got < 1900 || got > 2100 {
		t.Errorf("the model in use was forgotten: estimate %d", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewRegistry()
	e := NewEstimator(3, NewMetrics(reg))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := traffic{rand.New(rand.NewPCG(uint64(i), 1))}
			for j := range 500 {
				name := fmt.Sprint("m", (i+j)%5)
				p := r.prompt()
				n := e.Estimate(name, p)
				if n < 0 || n > MaxTokens {
					t.Errorf("estimate %d", n)
				}
				e.Observe(name, p, n, usage(p.text()/3+1))
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}

func BenchmarkEstimate(b *testing.B) {
	e := NewEstimator(0, nil)
	p := &Prompt{ASCII: 4000, Other: 300, ToolBytes: 500, Messages: 7, Prompts: 1, Media: 1, clear: true}
	e.Observe("some/model-name", p, 1, usage(1500))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			e.Estimate("some/model-name", p)
		}
	})
}
