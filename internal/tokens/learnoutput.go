package tokens

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

const (
	// FirstOutput is the expected length of an answer, in tokens, while fewer than
	// knownAnswers of its model are known.
	FirstOutput  = 256
	knownAnswers = 50
	// outputPart is the quantile that is expected: this share of answers is not longer.
	outputPart = 0.8
	// outputMemory is the most weight that is kept: beyond it all earlier answers count
	// half, so that a change of traffic shows within a few hundred answers.
	outputMemory = 512
	// Lengths are counted in outputBuckets, each a quarter of an octave wide.
	outputBuckets = 4 * 24
)

// OutputLearner learns how long each model's answers are. All methods are safe
// for concurrent use.
type OutputLearner struct {
	// immutable
	max int

	// atomic
	models atomic.Pointer[map[string]*outputs] // replaced with mu held, never changed

	mu sync.Mutex
	// guarded by mu
	tick uint64 // counts observations
}

// outputs are the answers of one model.
type outputs struct {
	expected atomic.Int64 // in tokens; 0: too few answers are known

	// guarded by the learner's mu
	known   int
	used    uint64
	total   float64
	buckets [outputBuckets]float64
}

// NewOutputLearner makes a learner for up to maxModels models (0:
// DefaultMaxModels); beyond it the least recently used one is dropped.
func NewOutputLearner(maxModels int) *OutputLearner {
	if maxModels <= 0 {
		maxModels = DefaultMaxModels
	}
	l := &OutputLearner{max: maxModels}
	l.models.Store(&map[string]*outputs{})
	return l
}

// Expect returns how many tokens an answer of the model is expected to have at
// most, in four of five cases. It takes no lock.
func (l *OutputLearner) Expect(model string) int64 {
	if o := (*l.models.Load())[model]; o != nil {
		if n := o.expected.Load(); n > 0 {
			return n
		}
	}
	return FirstOutput
}

// Observe records the length of an answer, in tokens. One without tokens is ignored.
func (l *OutputLearner) Observe(model string, tokens int64) {
	if tokens <= 0 {
		return
	}
	tokens = min(tokens, maxOutput-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tick++
	table := *l.models.Load()
	o := table[model]
	if o == nil {
		o = &outputs{}
		next := maps.Clone(table)
		if len(next) >= l.max {
			oldest, tick := "", uint64(math.MaxUint64)
			for name, m := range next {
				if m.used < tick {
					oldest, tick = name, m.used
				}
			}
			delete(next, oldest)
		}
		next[model] = o
		l.models.Store(&next)
	}
	o.used = l.tick
	o.learn(tokens)
}

func (o *outputs) learn(tokens int64) {
	if o.total >= outputMemory {
		o.total = 0
		for i := range o.buckets {
			o.buckets[i] /= 2
			o.total += o.buckets[i]
		}
	}
	// A bucket includes its upper edge, so that answers of one length are not longer than
	// expected.
	o.buckets[min(int(math.Ceil(4*math.Log2(float64(tokens))-1e-9)), outputBuckets-1)]++
	o.total++
	if o.known++; o.known < knownAnswers {
		return
	}
	sum := 0.0
	for i, n := range o.buckets {
		if sum += n; sum >= outputPart*o.total {
			o.expected.Store(int64(math.Ceil(math.Exp2(float64(i)/4) - 1e-9)))
			return
		}
	}
}
