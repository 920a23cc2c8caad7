package tokens

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/openai"
)

const (
	// DefaultMaxModels bounds the models that an Estimator learns separately.
	DefaultMaxModels = 128
	// MaxTokens is the largest estimate.
	MaxTokens = 1 << 32
)

// The coefficients, in tokens.
const (
	perASCII   = iota // a byte of ASCII
	perOther          // a byte of other text
	perTool           // a byte of a tool's JSON
	perMessage        // the frame of a message
	perPrompt         // the template around a prompt
	perMedia          // a part that is no text
	numCoefs
)

type coef struct{ start, low, high float64 }

// coefs are where each coefficient starts and what bounds it. Byte-level
// tokenizers make at most a token of a byte.
var coefs = [numCoefs]coef{
	perASCII:   {0.25, 0.02, 1.25},
	perOther:   {0.3, 0.02, 1.25},
	perTool:    {0.3, 0.02, 1.25},
	perMessage: {4, 0.5, 64},
	perPrompt:  {4, 0.5, 4096},
	perMedia:   {512, 8, 65536},
}

const (
	// firstRate and lastRate are the part of its error by which a report moves the
	// estimate of its own prompt: at the start, and in the long run.
	firstRate, lastRate = 0.5, 0.03
	// settle is the number of reports over which firstRate becomes lastRate.
	settle = 64
	// wholeWeight is the number of tokens from which on a report has its full weight.
	wholeWeight = 64
	// startDeviation is the expected deviation of a new model; deviations stay between
	// minDeviation and maxDeviation. All are differences of logarithms.
	startDeviation, minDeviation, maxDeviation = 0.3, 0.02, 1.0
	// deviationStep moves the deviation towards the median of what is seen.
	deviationStep = 0.05
	// influence is the most deviations by which a report counts.
	influence = 3
)

// Estimator estimates the prompts of all models. All methods are safe for
// concurrent use.
type Estimator struct {
	// immutable
	max     int
	metrics *Metrics

	// atomic
	models atomic.Pointer[map[string]*model] // replaced with mu held, never changed

	mu sync.Mutex
	// guarded by mu
	tick uint64 // counts new models and reports to a full table
}

// model is what was learned about one model.
type model struct {
	// atomic; written with mu held
	coefs     [numCoefs]atomic.Uint64 // bits of a float64
	deviation atomic.Uint64           // bits of a float64
	reports   atomic.Uint64
	used      atomic.Uint64 // tick of the estimator at the last report

	mu sync.Mutex
}

func newModel() *model {
	m := &model{}
	for i, c := range coefs {
		m.coefs[i].Store(math.Float64bits(c.start))
	}
	m.deviation.Store(math.Float64bits(startDeviation))
	return m
}

// fresh is the model for names without any report.
var fresh = newModel()

// NewEstimator makes an estimator for up to maxModels models (0:
// DefaultMaxModels); beyond it the least recently used one is dropped. m may be
// nil.
func NewEstimator(maxModels int, m *Metrics) *Estimator {
	if maxModels <= 0 {
		maxModels = DefaultMaxModels
	}
	e := &Estimator{max: maxModels, metrics: m}
	e.models.Store(&map[string]*model{})
	m.watch(e)
	return e
}

// Estimate returns the tokens of a prompt, from 0 to MaxTokens, summed over the
// prompts of a batch but once for all samples of each. name is the gate's pool: an alias or adapter has the
// tokenizer of its base model.
func (e *Estimator) Estimate(name string, p *Prompt) int64 {
	m := (*e.models.Load())[name]
	if m == nil {
		m = fresh
	}
	_, sum := m.parts(p)
	return int64(min(float64(max(p.IDs, 0))+sum+0.5, MaxTokens))
}

// TokensPerByte is how many tokens a byte of text is in the model; of names without any
// report, where that starts.
func (e *Estimator) TokensPerByte(name string) float64 {
	m := (*e.models.Load())[name]
	if m == nil {
		m = fresh
	}
	return math.Float64frombits(m.coefs[perASCII].Load())
}

// parts returns what each coefficient adds to the estimate, and the sum.
func (m *model) parts(p *Prompt) (parts [numCoefs]float64, sum float64) {
	amounts := [numCoefs]int64{p.ASCII, p.Other, p.ToolBytes, p.Messages, 0, p.Media}
	if p.text() > 0 || p.Media > 0 || p.Messages > 0 {
		amounts[perPrompt] = p.Prompts
	}
	for i, n := range amounts {
		if n > 0 {
			parts[i] = float64(n) * math.Float64frombits(m.coefs[i].Load())
			sum += parts[i]
		}
	}
	return parts, sum
}

// Observe learns from an engine's count of a prompt that it answered. estimated is
// the result of Estimate when the request came.
func (e *Estimator) Observe(name string, p *Prompt, estimated int64, u openai.Usage) {
	reported := u.PromptTokens
	switch {
	case p.IsExact():
		return
	case reported <= 0:
		e.metrics.ignored(ignoredMissing)
		return
	case !p.clear, p.messagesAPI && u.CachedTokens > 0:
		e.metrics.ignored(ignoredUnclear)
		return
	case !plausible(p, reported):
		e.metrics.ignored(ignoredImplausible)
		return
	}
	e.metrics.observed(estimated, reported)
	e.model(name).learn(p, float64(reported))
}

// plausible reports whether a prompt can have so many tokens with any tokenizer and
// template.
func plausible(p *Prompt, reported int64) bool {
	most := 0.0
	for i, n := range [numCoefs]int64{p.ASCII, p.Other, p.ToolBytes, p.Messages, p.Prompts, p.Media} {
		most += float64(n) * coefs[i].high
	}
	return float64(reported) <= most
}

// learn moves the coefficients towards the reported count.
func (m *model) learn(p *Prompt, reported float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parts, sum := m.parts(p)
	if sum <= 0 {
		return
	}
	n := m.reports.Add(1)
	weight := min(reported, sum) / wholeWeight
	weight = min(max(weight, 0.05), 1)

	err := math.Log(reported / sum)
	deviation := math.Float64frombits(m.deviation.Load())
	clip := influence * deviation
	step := deviationStep * weight
	if math.Abs(err) < deviation {
		step = -step
	}
	deviation = min(max(deviation*math.Exp(step), minDeviation), maxDeviation)
	m.deviation.Store(math.Float64bits(deviation))

	rate := max(firstRate*settle/(settle+float64(n-1)*8), lastRate)
	move := rate * weight * min(max(err, -clip), clip)
	// Moving each part by its share moves the sum by the sum of the squares of the shares;
	// dividing by that makes it the whole move, so that mixed prompts teach as much as
	// others.
	squares := 0.0
	for _, x := range parts {
		squares += (x / sum) * (x / sum)
	}
	for i, x := range parts {
		if x == 0 {
			continue
		}
		c := math.Float64frombits(m.coefs[i].Load()) * math.Exp(move*x/sum/squares)
		m.coefs[i].Store(math.Float64bits(min(max(c, coefs[i].low), coefs[i].high)))
	}
}

// model returns the model of a name, and adds it if it is new.
func (e *Estimator) model(name string) *model {
	table := *e.models.Load()
	if m := table[name]; m != nil && len(table) < e.max {
		return m
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tick++
	table = *e.models.Load()
	m := table[name]
	if m == nil {
		m = newModel()
		next := maps.Clone(table)
		if len(next) >= e.max {
			delete(next, oldest(next))
		}
		next[name] = m
		e.models.Store(&next)
	}
	m.used.Store(e.tick)
	return m
}

func oldest(table map[string]*model) string {
	name, tick := "", uint64(math.MaxUint64)
	for n, m := range table {
		if u := m.used.Load(); u < tick {
			name, tick = n, u
		}
	}
	return name
}
