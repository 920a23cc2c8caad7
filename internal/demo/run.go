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

const (
	waitsMetric = "smg_pd_prefill_admission_wait_seconds_sum "
	idHeader    = "X-Request-Id"
	pollEvery   = 20 * time.Millisecond
)

// request is the state of one request. Times of events that have not happened are zero.
type request struct {
	sent time.Time
	// prefill and decode are when the engines began and ended its prefill: the
	// time before prefill was spent at the gate.
	prefill, decode time.Time
	done            bool
	took            time.Duration
	status          int
	code            string
	retry           string
	err             error
}

// run is the state of a scenario under way.
type run struct {
	s     scenario
	start time.Time
	st    *stage

	mu sync.Mutex
	// guarded by mu
	reqs              []request
	inFlight, queued  int
	mostIn, mostQueue int
	blocks            int64 // the most booked on decode
	order             []int // of answers
	stopped           bool  // before the end
}

func (s scenario) run(ctx context.Context, o Options, st *stage) ([]string, error) {
	r := &run{s: s, start: time.Now(), st: st, reqs: make([]request, len(s.reqs))}
	screen := newScreen(o, r)
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); r.watch(watching, screen) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range r.reqs {
		wg.Go(func() { r.send(ctx, client, i) })
		// The next one is sent once this one is in prefill, in the queue, or answered.
		if r.settled(ctx, i) != nil {
			break
		}
	}
	wg.Wait()
	stop()
	<-watched
	r.sample()
	if err := ctx.Err(); err != nil {
		r.mu.Lock()
		r.stopped = true
		r.mu.Unlock()
		screen.end()
		return nil, err
	}
	screen.end()
	waits, err := r.waits(ctx, client)
	if err != nil {
		return nil, err
	}
	r.table(o, waits)
	return r.check(waits), nil
}

// settled waits until request i is in prefill, in the queue, or answered.
func (r *run) settled(ctx context.Context, i int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		in, queued, _ := r.look()
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

// look reads the gate's state.
func (r *run) look() (inFlight, queued int, blocks int64) {
	s := r.st.router.Stats()
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

// sample records where the requests are: how many wait, from the gate, and whose prefill
// runs, from the engines.
func (r *run) sample() {
	in, queued, blocks := r.look()
	legs := r.st.fleet.Prefill(0).Requests()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight, r.queued = in, queued
	r.mostIn, r.mostQueue, r.blocks = max(r.mostIn, in), max(r.mostQueue, queued), max(r.blocks, blocks)
	for i := range legs {
		if n := requestNumber(&legs[i]); n >= 0 && n < len(r.reqs) {
			r.reqs[n].prefill, r.reqs[n].decode = legs[i].Arrived, legs[i].Ended
		}
	}
}

// requestNumber is which request an engine's call belongs to, -1 if none.
func requestNumber(leg *sim.Request) int {
	n, err := strconv.Atoi(strings.TrimPrefix(leg.Header.Get(idHeader), requestID))
	if err != nil {
		return -1
	}
	return n
}

// requestID begins the ids of requests; their number follows.
const requestID = "demo-"

func (r *run) watch(ctx context.Context, s *screen) {
	tick := time.NewTicker(pollEvery)
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
	a := post(ctx, client, r.st.router.URL, r.s.reqs[i].body, idHeader, requestID+strconv.Itoa(i))
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.reqs[i]
	q.took, q.done = time.Since(q.sent), true
	q.status, q.code, q.retry, q.err = a.status, a.code, a.retry, a.err
	r.order = append(r.order, i)
}

// post sends a request to the router at url. headers are pairs.
func post(ctx context.Context, client *http.Client, url, body string, headers ...string) (q request) {
	path := "/v1/chat/completions"
	if strings.Contains(body, `"prompt"`) {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		return request{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return request{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	q = request{status: resp.StatusCode, retry: resp.Header.Get("Retry-After"), err: err}
	var e struct {
		Error struct{ Code string } `json:"error"`
	}
	if resp.StatusCode != http.StatusOK && json.Unmarshal(b, &e) == nil {
		q.code = e.Error.Code
	}
	return q
}

// waits is the sum of all waits in the queue, read from the router's metrics.
func (r *run) waits(ctx context.Context, client *http.Client) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.st.router.MetricsURL, nil)
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

// longest is when the last answer was over.
func (r *run) longest() time.Duration {
	var end time.Duration
	for _, q := range r.reqs {
		end = max(end, q.sent.Add(q.took).Sub(r.reqs[0].sent))
	}
	return end
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
