package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// scenario is a few overlapping requests against one setting of the gate.
type scenario struct {
	name, explain string
	// workers are the engines.
	workers sim.WorkerOptions
	router  RouterOptions
	// reqs are the requests in the order in which they are sent.
	reqs []sending
	// waits is the sum of the waits of all requests.
	waits time.Duration
	// inFlight and queued are the most seen at a time: requests in prefill, or
	// with byDecode those that hold KV blocks on decode.
	inFlight, queued int
	byDecode         bool
	// blocks is the most KV blocks that may be booked on decode at a time; 0:
	// not looked at.
	blocks int64
	// served is the order in which requests must be served: groups of indexes, each
	// group after the one before it. Nil: the order in which they were sent, or any
	// with byDecode.
	served [][]int
	// lesson is printed after a correct result.
	lesson string
}

// sending is one request of a scenario and its expected outcome.
type sending struct {
	// name is that of the request on the screen.
	name string
	// body is its JSON.
	body string
	want outcome
}

// outcome is the expected status, error code and duration of a request.
type outcome struct {
	status int
	code   string
	took   time.Duration
}

// slack is how much later than expected a result may be on a busy machine. Too early is
// always wrong.
const slack = 5 * time.Second

const shortBody = `{"model":"` + model + `","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`

// same is n requests of one body, with these outcomes.
func same(body string, want ...outcome) []sending {
	list := make([]sending, len(want))
	for i, w := range want {
		list[i] = sending{name: fmt.Sprintf("request %d", i+1), body: body, want: w}
	}
	return list
}

// scenarios are all of them; prefill is the length of one slow prefill.
func scenarios(prefill time.Duration) []scenario {
	short := prefill * 2 / 3
	slow := sim.WorkerOptions{Timing: sim.Timing{PrefillTime: prefill}}
	return []scenario{
		{
			name:    fmt.Sprintf("A queue of 1, a wait of at most %s", short),
			explain: fmt.Sprintf("Prefill takes %s and one request at a time. The first is served, the second waits too long, the third finds the queue full.", prefill),
			workers: slow,
			router:  RouterOptions{Slots: 1, QueueSize: 1, QueueTimeout: short},
			reqs: same(shortBody,
				outcome{200, "", prefill},
				outcome{429, "pd_prefill_queue_timeout", short},
				outcome{429, "pd_prefill_queue_full", 0},
			),
			waits: short, inFlight: 1, queued: 1,
		},
		{
			name:    fmt.Sprintf("A queue of 4, a wait of at most %s", 10*prefill),
			explain: "The same workers. All are served, one after another, in the order they came.",
			workers: slow,
			router:  RouterOptions{Slots: 1, QueueSize: 4, QueueTimeout: 10 * prefill},
			reqs: same(shortBody,
				outcome{200, "", prefill},
				outcome{200, "", 2 * prefill},
				outcome{200, "", 3 * prefill},
			),
			waits: 3 * prefill, inFlight: 1, queued: 2,
		},
		decodeFull(short),
		flood(prefill / 3),
	}
}

// decodeFull is a decode worker whose KV blocks, as far as the class may fill them, are
// enough for two requests, and four requests: two wait before prefill, although prefill
// is idle.
func decodeFull(answer time.Duration) scenario {
	const (
		blockSize, blocks = 16, 100
		frac              = 0.75
		steps             = 20
	)
	// 480 tokens by four bytes each, 30 blocks; the gate's estimate is near.
	body := completion(strings.Repeat("wait here ", 192), steps+1)
	return scenario{
		name:    "Decode is full, prefill waits",
		explain: fmt.Sprintf("Prefill takes no time, an answer %s. Decode has %d KV blocks, a request needs about 30, the class may fill %.0f %%.", answer, blocks, 100*frac),
		workers: sim.WorkerOptions{
			KVTokens: blocks * blockSize, PageSize: blockSize,
			Timing: sim.Timing{DecodeStep: answer / steps},
		},
		router: RouterOptions{Classes: fmt.Sprintf(`
default_policy_family: all
uncached_isl_buckets: [{min_tokens: 0, bucket: any}]
policy_classes:
  - {name: all, policy_family: all, cache_bucket: any, quantum: 1024, decode_busy_threshold_frac: %g}
`, frac)},
		reqs: same(body,
			outcome{200, "", answer}, outcome{200, "", answer}, outcome{200, "", 2 * answer}, outcome{200, "", 2 * answer},
		),
		waits: 2 * answer, inFlight: 2, queued: 2, byDecode: true, blocks: int64(frac * blocks),
		lesson: "No prefill ran whose decode had no room.",
	}
}

// flood is one client that sends long prompts and another that sends short ones
// after them, with a class for each length.
func flood(prefill time.Duration) scenario {
	const (
		longTokens = 500
		longs      = 6
		shorts     = 3
	)
	s := scenario{
		name:    "A flood of long prompts, and classes",
		explain: fmt.Sprintf("One client sends %d long prompts of %s each, then another sends %d short ones. Long and short prompts are classes of their own and take turns by their tokens, so the short ones do not wait for the whole flood.", longs, prefill, shorts),
		workers: sim.WorkerOptions{Timing: sim.Timing{PrefillRate: longTokens / prefill.Seconds()}},
		router: RouterOptions{Slots: 1, Classes: `
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 200, bucket: long}]
policy_classes:
  - {name: short, policy_family: chat, cache_bucket: short, quantum: 1024}
  - {name: long, policy_family: chat, cache_bucket: long, quantum: 512}
`},
		inFlight: 1, queued: longs - 1 + shorts,
		lesson: fmt.Sprintf("In one queue the short ones would have waited for the whole flood, %s.", longs*prefill),
	}
	short := completion("a short question", 4)
	for i := range longs {
		// Each begins in its own way: what a worker has in its cache it does not compute again.
		long := completion(strings.Repeat(fmt.Sprintf("flood %d tx ", i), 4*longTokens/11), 4)
		s.reqs = append(s.reqs, sending{name: fmt.Sprintf("long %d", i+1), body: long, want: outcome{200, "", time.Duration(i+1) * prefill}})
		s.waits += time.Duration(i) * prefill
	}
	var shortOnes []int
	// How long a short one takes depends on when it was sent; the check is
	// that all are served before the second long one.
	for i := range shorts {
		s.reqs = append(s.reqs, sending{name: fmt.Sprintf("short %d", i+1), body: short, want: outcome{200, "", 0}})
		shortOnes = append(shortOnes, longs+i)
	}
	s.served = [][]int{{0}, shortOnes}
	for i := 1; i < longs; i++ {
		s.served = append(s.served, []int{i})
	}
	return s
}

func completion(prompt string, tokens int) string {
	return `{"model":"` + model + `","prompt":"` + prompt + `","max_tokens":` + strconv.Itoa(tokens) + `}`
}

// where is the phase of requests that do not wait.
func (s *scenario) where() string {
	if s.byDecode {
		return "in decode"
	}
	return "in prefill"
}

// nameWidth is the length of the longest name of a request.
func (s *scenario) nameWidth() int {
	n := 0
	for _, r := range s.reqs {
		n = max(n, len(r.name))
	}
	return n
}

// length is about how long the scenario takes.
func (s *scenario) length() time.Duration {
	var d time.Duration
	for _, r := range s.reqs {
		d = max(d, r.want.took)
	}
	return d
}
