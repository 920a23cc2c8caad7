package e2e

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"
)

// atLeast checks that something was waited for. How much later it came is a matter
// of the machine; order and counts show that nobody waited for too much.
func atLeast(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-50*time.Millisecond {
		t.Errorf("%s took %s, want %s", what, got.Round(time.Millisecond), want)
	}
}

// inOrder sends requests one after another, each when the one before is at the
// gate: in prefill for the first, in the queue for the others.
func inOrder(t *testing.T, r *router, n int) []*call {
	t.Helper()
	var calls []*call
	client := clients(t)
	for i := range n {
		calls = append(calls, r.chat(client, brief))
		if i == 0 {
			r.waitMetric(metricInflight, 1)
			continue
		}
		r.waitMetric(metricQueued, float64(i))
	}
	return calls
}

// The metrics by which the public router's dashboards know the gate must be
// there before the first request.
func TestAdmissionMetricsFromTheStart(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1")
	for _, name := range []string{
		fmt.Sprintf("%s{worker=%q}", metricInflight, fleet.worker("prefill-0").URL), metricQueued, metricWaits, metricWaitSum,
		metricRejections + `{reason="queue_full"}`, metricRejections + `{reason="queue_timeout"}`, metricRejections + `{reason="unavailable"}`,
	} {
		if v := r.metric(name); v != 0 {
			t.Errorf("%s is %v, want 0", name, v)
		}
	}
}

// One place in prefill, one in the queue: the first is served, the second waits
// too long, the third finds the queue full.
func TestQueueOfOne(t *testing.T) {
	t.Parallel()
	r := startRouter(t, startSim(t, "--prefill-time", "8s"), "--prefill-max-inflight-requests-per-worker", "1",
		"--prefill-queue-size", "1", "--prefill-queue-timeout-secs", "2")
	calls := inOrder(t, r, 2)
	third := r.ask(brief)
	third.refused(t, 429, "pd_prefill_queue_full")
	if q, _ := r.accessLine(third.id)["queue_ms"].(float64); q > 100 {
		t.Errorf("who found the queue full waited %v ms in it", q)
	}
	second := calls[1].wait(t)
	second.refused(t, 429, "pd_prefill_queue_timeout")
	atLeast(t, "the wait in the queue", second.took, 2*time.Second)
	first := calls[0].wait(t)
	first.good(t)
	atLeast(t, "the prefill", first.took, 8*time.Second)
	for _, a := range []*answer{second, third} {
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 60 {
			t.Errorf("Retry-After %q, want 1 to 60", a.header.Get("Retry-After"))
		}
	}
	r.idle()
	for _, reason := range []string{"queue_full", "queue_timeout"} {
		if v := r.metric(metricRejections + `{reason="` + reason + `"}`); v != 1 {
			t.Errorf("%v rejections for %s, want 1", v, reason)
		}
	}
	if v := r.metric(metricWaits); v != 1 {
		t.Errorf("%v waits, want 1: only the second queued", v)
	}
}

// All three are served, in the order they came, by one place in prefill.
func TestQueueOfFour(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill-time", "5s")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "4", "--prefill-queue-timeout-secs", "60")
	start := time.Now()
	calls := inOrder(t, r, 3)
	if a, q := r.metric(metricInflight), r.metric(metricQueued); a != 1 || q != 2 {
		t.Errorf("%v in flight and %v queued, want 1 and 2", a, q)
	}
	var waits float64
	for i, c := range calls {
		a := c.wait(t)
		a.good(t)
		ms, err := strconv.ParseFloat(a.header.Get("X-Sluice-Queue-Ms"), 64)
		if err != nil {
			t.Errorf("request %d: X-Sluice-Queue-Ms %v", i+1, err)
		}
		waits += ms / 1000
	}
	atLeast(t, "all three", time.Since(start), 15*time.Second)
	r.idle()
	for i, leg := range fleet.requests("prefill-0") {
		if leg.Header.Get("X-Request-Id") != calls[i].id {
			t.Errorf("prefill's request %d is not the one that came as number %d", i+1, i+1)
		}
	}
	// The metric and the answers tell of the same waits.
	if n, sum := r.metric(metricWaits), r.metric(metricWaitSum); n != 2 || math.Abs(sum-waits) > 0.1 {
		t.Errorf("%v waits add up to %v s, want 2 and %v s", n, sum, waits)
	}
	if s := fleet.stats("prefill-0"); s.PeakInflight != 1 || s.Requests != 3 {
		t.Errorf("prefill had at most %d of %d requests at once, want 1 of 3", s.PeakInflight, s.Requests)
	}
}

// Without the options, and with a limit above the load, nothing waits.
func TestNothingQueuesWithoutNeed(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"off": nil, "high": {"--prefill-max-inflight-requests-per-worker", "10"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, "--prefill-time", "1s")
			r := startRouter(t, fleet, options...)
			client := clients(t)
			var calls []*call
			for range 5 {
				calls = append(calls, r.chat(client, brief))
			}
			for _, c := range calls {
				c.wait(t).good(t)
			}
			if v := r.metric(metricWaits); v != 0 && !math.IsNaN(v) {
				t.Errorf("%v requests queued, want none", v)
			}
			if s := fleet.stats("prefill-0"); s.PeakInflight != 5 {
				t.Errorf("at most %d in prefill at once, want all 5", s.PeakInflight)
			}
		})
	}
}

// A queue of size zero never lets anybody wait.
func TestQueueOfZero(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "0")
	fleet.fault("prefill-0", "delay=1h,count=1")
	client := clients(t)
	first := r.chat(client, brief)
	r.waitMetric(metricInflight, 1)
	r.ask(brief).refused(t, 429, "pd_prefill_queue_full")
	first.cancel()
	r.idle()
	r.ask(brief).good(t)
}
