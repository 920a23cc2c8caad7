package replay

import (
	"errors"
	"fmt"
	"time"
)

// Options are the fleet that is modelled, and the settings of its routers. Those of routers
// have the names and meanings that they have for sluice serve.
type Options struct {
	// Workers are those that prefill: the engines of whole requests with Aggregated, else
	// prefill workers. Each computes TokensPerSecond of a prompt, one prompt after the other,
	// and has a cache of CacheBlocks, which the trace's blocks fill.
	Workers         int
	TokensPerSecond float64
	CacheBlocks     int
	Aggregated      bool

	// Decode. DecodeStep is the time of a step in which each running request gets a token,
	// DecodePerRequest what each adds to it; both zero: requests are over when their prompts
	// are computed. Unless Aggregated there are DecodeWorkers, of DecodeBlocks KV blocks each;
	// no blocks: they hold all that comes.
	DecodeStep, DecodePerRequest time.Duration
	DecodeWorkers                int
	DecodeBlocks                 int

	// Slots are the most requests in prefill on a worker, as its router counts them; with
	// Aggregated the most that run. QueueSize bounds those that wait, zero or less does not;
	// QueueTimeout their wait, zero or less does not. They are those of the arms with a gate.
	Slots        int
	QueueSize    int
	QueueTimeout time.Duration

	AffinityLookahead, AffinityMaxPasses int
	AffinityWait                         time.Duration
	CacheWeight, CacheMinMatch           float64

	// Routers share the requests evenly. Each has a gate of its own, and sees its own requests.
	Routers int
	// Speed is how many times as fast as in the trace requests come.
	Speed float64
	// Random decides all that is left to chance.
	Random uint64
	// TTFTGoal is the time to the first token that goodput counts.
	TTFTGoal time.Duration
}

// Default is the model whose figures docs/replay.md has.
func Default() Options {
	return Options{
		Workers: 8, TokensPerSecond: 5000, CacheBlocks: 3000, DecodeWorkers: 1,
		Slots: 4, AffinityLookahead: 32, AffinityMaxPasses: 8, AffinityWait: 3 * time.Second,
		CacheWeight: 8, CacheMinMatch: 0.1, Routers: 1, Speed: 1, Random: 1, TTFTGoal: 10 * time.Second,
	}
}

// Bounds of a model.
const (
	maxWorkers = 65536
	maxRouters = 1024
)

// check returns what is wrong with the options.
func (o *Options) check() error {
	var wrong []error
	bad := func(is bool, format string, args ...any) {
		if is {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	bad(o.Workers < 1 || o.Workers > maxWorkers, "--workers: %d is not between 1 and %d", o.Workers, maxWorkers)
	bad(o.DecodeWorkers < 1 || o.DecodeWorkers > maxWorkers, "--decode-workers: %d is not between 1 and %d", o.DecodeWorkers, maxWorkers)
	bad(o.Routers < 1 || o.Routers > maxRouters, "--routers: %d is not between 1 and %d", o.Routers, maxRouters)
	bad(!within(o.TokensPerSecond, 1, 1e9), "--tokens-per-second: %v is not between 1 and 1e9", o.TokensPerSecond)
	bad(!within(o.Speed, 1e-4, 1e6), "--speed: %v is not between 0.0001 and 1000000", o.Speed)
	bad(o.CacheBlocks < 0 || o.CacheBlocks > maxBlocks, "--cache-blocks: %d is not between 0 and %d", o.CacheBlocks, maxBlocks)
	bad(o.DecodeBlocks < 0, "--decode-blocks: %d is negative", o.DecodeBlocks)
	bad(o.Slots < 1, "--prefill-max-inflight-requests-per-worker: %d is not positive", o.Slots)
	bad(!within(float64(o.DecodeStep), 0, float64(time.Hour)) || !within(float64(o.DecodePerRequest), 0, float64(time.Hour)),
		"--decode-step, --decode-per-request: %v and %v are not between 0 and an hour", o.DecodeStep, o.DecodePerRequest)
	bad(o.AffinityLookahead < 1, "--affinity-lookahead: %d is not positive", o.AffinityLookahead)
	bad(o.AffinityMaxPasses < 0, "--affinity-max-passes: %d is negative", o.AffinityMaxPasses)
	bad(o.AffinityWait < 0, "--affinity-wait-secs: %v is negative", o.AffinityWait)
	bad(!within(o.CacheWeight, 0, 1e6), "--cache-weight: %v is not between 0 and 1000000", o.CacheWeight)
	bad(!within(o.CacheMinMatch, 0, 1), "--cache-min-match: %v is not between 0 and 1", o.CacheMinMatch)
	bad(o.TTFTGoal <= 0, "--ttft-goal: %v is not positive", o.TTFTGoal)
	return errors.Join(wrong...)
}

// within is false for NaN.
func within(x, least, most float64) bool { return x >= least && x <= most }

// decodes tells whether decode is modelled.
func (o *Options) decodes() bool { return o.DecodeStep > 0 || o.DecodePerRequest > 0 }
