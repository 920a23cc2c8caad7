package demo

import (
	"fmt"
	"net/http"
	"time"
)

// check compares the results with those that the scenario expects.
func (r *run) check(waits time.Duration) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	within := func(got, want, slack time.Duration) bool {
		return got >= want-100*time.Millisecond && got <= want+slack
	}
	for i, q := range r.reqs {
		name, w := r.s.reqs[i].name, r.s.reqs[i].want
		switch {
		case q.err != nil:
			problem("%s failed: %v", name, q.err)
		case q.status != w.status || q.code != w.code:
			problem("%s: status %d %s, must be %d %s", name, q.status, q.code, w.status, w.code)
		case !within(q.took, w.took, slack):
			problem("%s took %s, must be %s", name, round(q.took), w.took)
		case w.status == http.StatusTooManyRequests && q.retry == "":
			problem("%s: no Retry-After", name)
		}
	}
	if p := r.checkOrder(); p != "" {
		problem("%s", p)
	}
	// Each wait may include delays of a busy machine, so the slack grows with their number.
	if !within(waits, r.s.waits, slack*time.Duration(len(r.reqs))/3) {
		problem("the waits add up to %s, must be %s", round(waits), r.s.waits)
	}
	if r.mostIn != r.s.inFlight || r.mostQueue != r.s.queued {
		problem("at most %d %s and %d queued, must be %d and %d", r.mostIn, r.s.where(), r.mostQueue, r.s.inFlight, r.s.queued)
	}
	if r.s.blocks > 0 && (r.blocks == 0 || r.blocks > r.s.blocks) {
		problem("at most %d KV blocks were booked on decode, must be some and no more than %d", r.blocks, r.s.blocks)
	}
	return problems
}

// checkOrder compares the order in which requests were served with the
// scenario's.
func (r *run) checkOrder() string {
	if r.s.served == nil && r.s.byDecode {
		return ""
	}
	group := make([]int, len(r.reqs)) // of each request
	for i := range group {
		group[i] = i
	}
	for g, members := range r.s.served {
		for _, i := range members {
			group[i] = g
		}
	}
	last := -1
	for _, i := range r.order {
		if r.reqs[i].status != http.StatusOK {
			continue
		}
		if last >= 0 && group[i] < group[last] {
			return fmt.Sprintf("%s was served after %s", r.s.reqs[i].name, r.s.reqs[last].name)
		}
		last = i
	}
	return ""
}
