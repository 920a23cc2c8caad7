package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// router is a running "sluice serve".
type router struct {
	*process
	fleet   *simFleet
	addr    string // host:port of the clients' listener
	metrics string // of the other one
	// over: the test has ended it, or will not wait for it, and looks itself.
	over bool
}

func (r *router) url() string { return "http://" + r.addr }

// quickHealth makes the router see within a few seconds what happens to a
// worker. The simulated engines' /health takes a second, as the real one does;
// this one is asked of their front.
var quickHealth = []string{"--health-check-endpoint", "/model_info", "--health-check-interval-secs", "0.2", "--health-check-timeout-secs", "1"}

// startRouter starts a router in front of the fleet and waits until it is ready.
func startRouter(t testing.TB, fleet *simFleet, args ...string) *router {
	t.Helper()
	r := launchRouter(t, fleet, nil, nil, append(fleet.flags(), args...)...)
	r.waitReady()
	return r
}

// launchRouter starts a router and waits until it listens.
func launchRouter(t testing.TB, fleet *simFleet, prepare func(*exec.Cmd), prefix []string, args ...string) *router {
	t.Helper()
	base := append([]string{"serve", "--pre-drain-wait", "0", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--log-json"}, quickHealth...)
	r := &router{process: spawnWith(t, prepare, prefix, append(base, args...)...), fleet: fleet}
	line, ok := r.stderr.wait(patience, r.done, func(line string) bool { return strings.Contains(line, `"msg":"serving"`) })
	if !ok {
		t.Fatalf("the router does not serve: %s", r.stderr.String())
	}
	r.read(line)
	t.Cleanup(r.finish)
	return r
}

// read takes the addresses from the line that tells them.
func (r *router) read(line string) {
	var v struct{ Address, Metrics string }
	if err := json.Unmarshal([]byte(line), &v); err != nil || v.Address == "" {
		r.t.Fatalf("cannot read %q: %v", line, err)
	}
	r.addr, r.metrics = v.Address, v.Metrics
}

func (r *router) waitReady() {
	r.t.Helper()
	eventually(r.t, "the router is ready", func() string {
		status, body := r.get("/readyz")
		if status == http.StatusOK && len(r.missing()) == 0 {
			return ""
		}
		return fmt.Sprint(status, " ", body, " ", r.missing())
	})
}

// missing are the workers that are not ready.
func (r *router) missing() []string {
	var out []string
	for _, w := range r.workers() {
		if w.Status != "ready" {
			out = append(out, w.URL+" "+w.Status)
		}
	}
	return out
}

var probeClient = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks the clients' listener over a new connection. Status 0: no answer.
func (r *router) get(path string) (int, string) { return get(r.url() + path) }

func get(url string) (int, string) {
	resp, err := probeClient.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// worker is an entry of GET /workers.
type worker struct {
	ID        string `json:"id"`
	URL       string `json:"url"`
	Type      string `json:"worker_type"`
	Healthy   bool   `json:"is_healthy"`
	Load      int    `json:"load"`
	Status    string `json:"status"`
	Source    string `json:"source"`
	Breaker   string `json:"breaker"`
	Index     int    `json:"index"`
	Bootstrap int    `json:"bootstrap_port"`
	Ranks     []struct {
		ID      string `json:"id"`
		Load    int    `json:"load"`
		Slots   int    `json:"prefill_slots"`
		Pending int    `json:"pending_decode"`
		Active  int    `json:"active_decode"`
		Breaker string `json:"breaker"`

		Cache cacheFeed `json:"kv_cache"`
	} `json:"ranks"`
}

func (r *router) workers() []worker {
	r.t.Helper()
	status, body := r.get("/workers")
	var list struct {
		Workers []worker `json:"workers"`
		Total   int      `json:"total"`
	}
	if err := json.Unmarshal([]byte(body), &list); status != http.StatusOK || err != nil || list.Total != len(list.Workers) {
		r.t.Fatalf("GET /workers: %d %s (%v)", status, clip(body), err)
	}
	return list.Workers
}

// worker is the entry of a simulated worker.
func (r *router) worker(id string) worker {
	r.t.Helper()
	url := r.fleet.worker(id).URL
	for _, w := range r.workers() {
		if w.URL == url {
			return w
		}
	}
	return worker{Status: "gone"}
}

// change is a request to a route that changes the fleet.
func (r *router) change(method, path, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// metric sums the series of /metrics whose name with labels begins so. NaN: there
// is none.
func (r *router) metric(prefix string) float64 {
	r.t.Helper()
	status, body := get("http://" + r.metrics + "/metrics")
	if status != http.StatusOK {
		r.t.Fatalf("GET /metrics: %d %s", status, clip(body))
	}
	sum, found := 0.0, false
	for line := range strings.Lines(body) {
		name, value, ok := cutLast(strings.TrimSpace(line))
		if !ok || strings.HasPrefix(line, "#") || name != prefix && !strings.HasPrefix(name, prefix+"{") && !strings.HasPrefix(name, prefix+",") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.t.Fatalf("cannot read %q", line)
		}
		sum, found = sum+v, true
	}
	if !found {
		return math.NaN()
	}
	return sum
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// waitMetric waits until a metric has a value.
func (r *router) waitMetric(name string, want float64) {
	r.t.Helper()
	eventually(r.t, name, func() string {
		if got := r.metric(name); got != want {
			return fmt.Sprintf("is %v, want %v", got, want)
		}
		return ""
	})
}

// Metrics of the admission contract.
const (
	metricInflight   = "smg_pd_prefill_admission_inflight"
	metricQueued     = "smg_pd_prefill_admission_queued"
	metricWaits      = "smg_pd_prefill_admission_wait_seconds_count"
	metricWaitSum    = "smg_pd_prefill_admission_wait_seconds_sum"
	metricRejections = "smg_pd_prefill_admission_rejections_total"
)

// held tells what is still booked, "" if nothing is.
func (r *router) held() string {
	r.t.Helper()
	for _, w := range r.workers() {
		if w.Load != 0 {
			return fmt.Sprintf("%s has load %d: %+v", w.URL, w.Load, w.Ranks)
		}
		for _, k := range w.Ranks {
			if k.Load != 0 || k.Slots != 0 || k.Pending != 0 || k.Active != 0 {
				return fmt.Sprintf("rank %+v", k)
			}
		}
	}
	for _, name := range []string{metricInflight, metricQueued, "sluice_requests_in_flight", "sluice_admission_prefill_slots",
		"sluice_admission_decode_requests", "sluice_admission_queue_depth", "sluice_buffered_bytes"} {
		if v := r.metric(name); v != 0 && !math.IsNaN(v) { // no workers, no series
			return fmt.Sprintf("%s is %v", name, v)
		}
	}
	return ""
}

// idle waits until all holds are given back.
func (r *router) idle() {
	r.t.Helper()
	eventually(r.t, "all holds are given back", r.held)
}

// finish is what every test ends with: nothing is held, no event was missed, no
// engine was misused, and the router ends in good order.
func (r *router) finish() {
	t := r.t
	if r.running() && !r.over && !t.Failed() {
		r.idle()
		if v := r.metric("sluice_admission_missed_events_total"); v != 0 {
			t.Errorf("the gate missed %v events", v)
		}
		r.signal(syscall.SIGTERM)
		if code := r.exit(patience); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	}
	if r.fleet != nil && !t.Failed() {
		r.fleet.misuse()
	}
	for _, line := range r.stderr.all() {
		// An id may have any letters and digits, so that "panic" alone proves nothing.
		for _, bad := range []string{"DATA RACE", "panic:", "panic ", "BUG:", "fatal error", "goroutine "} {
			if strings.Contains(line, bad) {
				t.Errorf("the router's log has %q", line)
				return
			}
		}
	}
}

// accessLine is the access line of a request.
func (r *router) accessLine(id string) map[string]any {
	r.t.Helper()
	line, ok := r.stderr.wait(patience, r.done, func(line string) bool {
		return strings.Contains(line, `"msg":"request"`) && strings.Contains(line, `"id":"`+id+`"`)
	})
	if !ok {
		r.t.Fatalf("no access line of %s", id)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		r.t.Fatalf("cannot read %q: %v", line, err)
	}
	return v
}

// took is for messages.
func took(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }
