package replay

import (
	"slices"
	"time"
)

// Result is what came of one arm.
type Result struct {
	Summary
	// Requests are what became of each, by arrival.
	Requests []Outcome
	// Workers are how long each computed prompts, in seconds.
	Workers []float64
}

// Summary is what an arm comes to. Rates are parts of one. Times are seconds, and those to
// the first token (TTFT) are of the requests that were served.
type Summary struct {
	Arm string `json:"arm"`
	// HitRate is the part of the prompt tokens that engines found in their caches, of the
	// requests that were served; Ideal what one cache without bound would have had, of all.
	HitRate  float64 `json:"hit_rate"`
	Ideal    float64 `json:"ideal"`
	TTFTMean float64 `json:"ttft_mean_s"`
	TTFTP50  float64 `json:"ttft_p50_s"`
	TTFTP95  float64 `json:"ttft_p95_s"`
	TTFTP99  float64 `json:"ttft_p99_s"`
	// Goodput is the part of all requests, rejected ones included, whose first token came
	// within the goal.
	Goodput  float64 `json:"goodput"`
	Rejected int     `json:"rejected"`
	// Busiest is how long the busiest worker computed prompts over the mean of all.
	Busiest float64 `json:"busiest_over_mean"`
}

// Outcome is what became of one request. Times are seconds from the replay's beginning.
type Outcome struct {
	Arrived             float64
	Router              int
	Prefill, Decode     string // the workers; empty: none
	Prompt, Output      int64  // tokens
	Cached, Believed    int64  // that the engine had, and that the router credited it with
	Queued, TTFT, Total float64
	Rejected            bool
}

// result sums up what came of the requests.
func (s *sim) result(ideal float64) *Result {
	r := &Result{Summary: Summary{Arm: s.arm.name, Ideal: ideal}}
	var ttft []float64
	var cached, prompts int64
	sum, good := 0.0, 0
	for _, c := range s.calls {
		o := Outcome{
			Arrived: c.came.Seconds(), Router: c.router.number, Prompt: c.request.Prompt, Output: c.request.Output,
			Rejected: c.refused, Total: (c.done - c.came).Seconds(),
		}
		if c.refused {
			r.Rejected++
			o.Queued = o.Total
			r.Requests = append(r.Requests, o)
			continue
		}
		o.Prefill, o.Cached, o.Believed = c.prefill.name, c.cached, c.believed
		if c.decode != nil && s.opts.decodes() {
			o.Decode = c.decode.name
		}
		o.Queued, o.TTFT = (c.granted - c.came).Seconds(), (c.first - c.came).Seconds()
		if c.first-c.came <= s.opts.TTFTGoal {
			good++
		}
		ttft = append(ttft, o.TTFT)
		sum += o.TTFT
		cached += c.cached
		prompts += c.request.Prompt
		r.Requests = append(r.Requests, o)
	}
	slices.Sort(ttft)
	r.HitRate = ratio(float64(cached), float64(prompts))
	r.TTFTMean = ratio(sum, float64(len(ttft)))
	r.TTFTP50, r.TTFTP95, r.TTFTP99 = percentile(ttft, 50), percentile(ttft, 95), percentile(ttft, 99)
	r.Goodput = ratio(float64(good), float64(len(s.calls)))
	var busiest, all time.Duration
	for _, e := range s.prefills {
		r.Workers = append(r.Workers, e.busy.Seconds())
		busiest = max(busiest, e.busy)
		all += e.busy
	}
	r.Busiest = ratio(float64(busiest)*float64(len(s.prefills)), float64(all))
	return r
}

// percentile is the least value that so many percent of the sorted ones do not exceed.
func percentile(sorted []float64, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*percent+99)/100, 1)-1]
}
