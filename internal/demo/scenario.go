package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// scenario is a few overlapping requests against one setting of the gate.
type scenario struct {
	name, explain string
	// workers are the engines.
	workers sim.WorkerOptions
	router  RouterOptions
	// body is each request's.
	body string
	// want has one outcome for each request.
	want []outcome
	// waits is what the waits of all requests add up to.
	waits time.Duration
	// inFlight and queued are the most seen at a time: requests in prefill, or
	// with byDecode those that hold KV blocks on decode.
	inFlight, queued int
	byDecode         bool
	// blocks is the most KV blocks that may be booked on decode at a time; 0:
	// not looked at.
	blocks int64
}

// outcome is what one request must give: its status and code, and how long it
// takes.
type outcome struct {
	status int
	code   string
	took   time.Duration
}

// slack is what a busy machine may add to a time. Too early is always wrong.
const slack = 5 * time.Second

const (
	waitsMetric = "smg_pd_prefill_admission_wait_seconds_sum "
	shortBody   = `{"model":"` + model + `","messages":[{"role":"user","content":"request %d"}],"max_tokens":4}`
)

func scenarios(prefill time.Duration) []scenario {
	short := prefill * 2 / 3
	slow := sim.WorkerOptions{Timing: sim.Timing{PrefillTime: prefill}}
	return []scenario{
		{
			name:    fmt.Sprintf("A queue of 1, a wait of at most %s", short),
			explain: fmt.Sprintf("Prefill takes %s and one request at a time. The first is served, the second waits too long, the third finds the queue full.", prefill),
			workers: slow, body: shortBody,
			router: RouterOptions{Slots: 1, QueueSize: 1, QueueTimeout: short},
			want: []outcome{
				{200, "", prefill},
				{429, "pd_prefill_queue_timeout", short},
				{429, "pd_prefill_queue_full", 0},
			},
			waits: short, inFlight: 1, queued: 1,
		},
		{
			name:    fmt.Sprintf("A queue of 4, a wait of at most %s", 10*prefill),
			explain: "The same workers. All are served, one after another, in the order they came.",
			workers: slow, body: shortBody,
			router: RouterOptions{Slots: 1, QueueSize: 4, QueueTimeout: 10 * prefill},
			want: []outcome{
				{200, "", prefill},
				{200, "", 2 * prefill},
				{200, "", 3 * prefill},
			},
			waits: 3 * prefill, inFlight: 1, queued: 2,
		},
		decodeFull(short),
	}
}

// decodeFull is a decode worker that has KV blocks for two requests within the
// class's part of them, and four requests: two wait before prefill, though that
// is idle.
func decodeFull(answer time.Duration) scenario {
	const (
		blockSize, blocks = 16, 100
		frac              = 0.75
		steps             = 20
	)
	// 480 tokens by four bytes each, 30 blocks; the gate's estimate is near.
	prompt := strings.Repeat("wait here ", 192)
	return scenario{
		name:    "Decode is full, prefill waits",
		explain: fmt.Sprintf("Prefill takes no time, an answer %s. Decode has %d KV blocks, a request needs about 30, the class may fill %.0f %%.", answer, blocks, 100*frac),
		workers: sim.WorkerOptions{
			KVTokens: blocks * blockSize, PageSize: blockSize,
			Timing: sim.Timing{DecodeStep: answer / steps},
		},
		body: `{"model":"` + model + `","prompt":"%d ` + prompt + `","max_tokens":` + strconv.Itoa(steps+1) + `}`,
		router: RouterOptions{Classes: fmt.Sprintf(`
default_policy_family: all
uncached_isl_buckets: [{min_tokens: 0, bucket: any}]
policy_classes:
  - {name: all, policy_family: all, cache_bucket: any, quantum: 1024, decode_busy_threshold_frac: %g}
`, frac)},
		want: []outcome{
			{200, "", answer}, {200, "", answer}, {200, "", 2 * answer}, {200, "", 2 * answer},
		},
		waits: 2 * answer, inFlight: 2, queued: 2, byDecode: true, blocks: int64(frac * blocks),
	}
}

// request is one of them on its way.
type request struct {
	sent    time.Time
	done    bool
	took    time.Duration
	status  int
	code    string
	retry   string
	message string
	err     error
}

// run is the state of a scenario under way.
type run struct {
	s      scenario
	start  time.Time
	router *Router

	mu sync.Mutex
	// guarded by mu
	reqs              []request
	inFlight, queued  int
	mostIn, mostQueue int
	blocks            int64 // the most booked on decode
	order             []int
}

func (s scenario) run(ctx context.Context, o Options, router *Router) ([]string, error) {
	r := &run{s: s, start: time.Now(), router: router, reqs: make([]request, len(s.want))}
	screen := newScreen(o, r)
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); r.watch(watching, screen) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range r.reqs {
		wg.Go(func() { r.send(ctx, client, i) })
		// The next is sent once this one is where it will stay.
		if err := r.settled(ctx, i); err != nil {
			stop()
			<-watched
			wg.Wait()
			return nil, err
		}
	}
	wg.Wait()
	stop()
	<-watched
	r.sample()
	screen.end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	waits, err := r.waits(ctx, client)
	if err != nil {
		return nil, err
	}
	r.table(o.Out, waits)
	return r.check(waits), nil
}

// settled waits until request i is in prefill, in the queue, or answered.
func (r *run) settled(ctx context.Context, i int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		in, queued := r.state()
		r.mu.Lock()
		done := r.reqs[i].done
		answered := 0
		for _, q := range r.reqs {
			if q.done {
				answered++
			}
		}
		r.mu.Unlock()
		if done || in+queued+answered > i {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (r *run) state() (inFlight, queued int) {
	inFlight, queued, _ = r.look()
	return inFlight, queued
}

func (r *run) look() (inFlight, queued int, blocks int64) {
	s := r.router.Stats()
	for _, rank := range s.Ranks {
		switch rank.Role {
		case admission.RolePrefill:
			if !r.s.byDecode {
				inFlight += rank.PrefillSlots
			}
		case admission.RoleDecode:
			blocks += rank.PendingBlocks + rank.ActiveBlocks
			if r.s.byDecode {
				inFlight += rank.PendingDecode + rank.ActiveDecode
			}
		}
	}
	return inFlight, s.Waiting, blocks
}

func (r *run) sample() {
	in, queued, blocks := r.look()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight, r.queued = in, queued
	r.mostIn, r.mostQueue, r.blocks = max(r.mostIn, in), max(r.mostQueue, queued), max(r.blocks, blocks)
}

func (r *run) watch(ctx context.Context, s *screen) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r.sample()
		s.draw()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *run) send(ctx context.Context, client *http.Client, i int) {
	r.mu.Lock()
	r.reqs[i].sent = time.Now()
	r.mu.Unlock()
	q := r.post(ctx, client, i)
	r.mu.Lock()
	defer r.mu.Unlock()
	q.sent = r.reqs[i].sent
	q.took, q.done = time.Since(q.sent), true
	r.reqs[i] = q
	r.order = append(r.order, i)
}

func (r *run) post(ctx context.Context, client *http.Client, i int) (q request) {
	path := "/v1/chat/completions"
	if strings.Contains(r.s.body, `"prompt"`) {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.router.URL+path, strings.NewReader(fmt.Sprintf(r.s.body, i+1)))
	if err != nil {
		return request{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return request{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	q = request{status: resp.StatusCode, retry: resp.Header.Get("Retry-After"), err: err}
	var e struct {
		Error struct{ Code, Message string } `json:"error"`
	}
	if resp.StatusCode != http.StatusOK && json.Unmarshal(b, &e) == nil {
		q.code, q.message = e.Error.Code, e.Error.Message
	}
	return q
}

// waits is the sum of all waits in the queue, as the router's own metric has it.
func (r *run) waits(ctx context.Context, client *http.Client) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.router.MetricsURL, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("cannot read the router's metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), waitsMetric); ok {
			secs, err := strconv.ParseFloat(v, 64)
			return time.Duration(secs * float64(time.Second)), err
		}
	}
	return 0, fmt.Errorf("the router's metrics have no %s", waitsMetric)
}

// check compares what happened with what must.
func (r *run) check(waits time.Duration) (problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	near := func(got, want time.Duration) bool { return got >= want-100*time.Millisecond && got <= want+slack }
	for i, q := range r.reqs {
		w := r.s.want[i]
		switch {
		case q.err != nil:
			say("request %d failed: %v", i+1, q.err)
		case q.status != w.status || q.code != w.code:
			say("request %d: status %d %s, must be %d %s", i+1, q.status, q.code, w.status, w.code)
		case !near(q.took, w.took):
			say("request %d took %s, must be %s", i+1, round(q.took), w.took)
		case w.status == http.StatusTooManyRequests && q.retry == "":
			say("request %d: no Retry-After", i+1)
		}
	}
	served := -1
	for _, i := range r.order {
		if r.reqs[i].status == http.StatusOK {
			if i < served && !r.s.byDecode {
				say("request %d was served after request %d", i+1, served+1)
			}
			served = i
		}
	}
	if !near(waits, r.s.waits) {
		say("the waits add up to %s, must be %s", round(waits), r.s.waits)
	}
	if r.mostIn != r.s.inFlight || r.mostQueue != r.s.queued {
		say("at most %d %s and %d queued, must be %d and %d", r.mostIn, r.s.where(), r.mostQueue, r.s.inFlight, r.s.queued)
	}
	if r.s.blocks > 0 && (r.blocks == 0 || r.blocks > r.s.blocks) {
		say("at most %d KV blocks were booked on decode, must be some and no more than %d", r.blocks, r.s.blocks)
	}
	return problems
}

// where says where a request is that does not wait.
func (s *scenario) where() string {
	if s.byDecode {
		return "in decode"
	}
	return "in prefill"
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
