//go:build kubernetes

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/test/process"
)

// router is a running "sluice serve" that finds its workers in Kubernetes.
type router struct {
	*process.Process
	t       testing.TB
	addr    string // host:port of the clients' listener
	metrics string // of the other one
}

// selects are the flags of a router whose workers are the pods of regular().
func (b *bed) selects(server *APIServer) []string {
	return []string{"--kubeconfig", b.kubeconfig(server), "--service-discovery-namespace", b.namespace, "--selector", "app in (engine, spare),!canary"}
}

// selectsPairs are the flags of a router whose workers are pods with a label role.
func (b *bed) selectsPairs(server *APIServer) []string {
	return []string{"--kubeconfig", b.kubeconfig(server), "--service-discovery-namespace", b.namespace, "--pd-disaggregation",
		"--prefill-selector", "app=engine,role=prefill", "--decode-selector", "app=engine,role=decode"}
}

// startRouter starts a router and waits until it listens.
func startRouter(t testing.TB, flags ...string) *router {
	t.Helper()
	return startRouterAs(t, nil, nil, flags...)
}

// startRouterAs starts it by the command prefix, with further variables.
func startRouterAs(t testing.TB, prefix, env []string, flags ...string) *router {
	t.Helper()
	argv := append(append([]string{}, prefix...), cluster.bin.Sluice, "serve", "--pre-drain-wait", "0", "--host", cluster.address(0, 1), "--port", "0",
		"--prometheus-host", cluster.address(0, 1), "--prometheus-port", "0", "--log-json",
		"--service-discovery", "--service-discovery-port", "http")
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	p, err := process.Start(t.TempDir(), name, append(env, "PATH="+os.Getenv("PATH")), append(argv, flags...)...)
	must(t, err)
	r := &router{Process: p, t: t}
	t.Cleanup(r.finish)
	eventually(t, "the router serves", func() string {
		for _, line := range r.lines(`"msg":"serving"`) {
			var v struct{ Address, Metrics string }
			if err := json.Unmarshal([]byte(line), &v); err == nil && v.Address != "" {
				r.addr, r.metrics = v.Address, v.Metrics
				return ""
			}
		}
		if !r.Running() {
			t.Fatalf("the router ended: %s", r.LogTail(20))
		}
		return "no line says so"
	})
	return r
}

// lines are those of the log that contain a text.
func (r *router) lines(text string) []string {
	r.t.Helper()
	b, err := os.ReadFile(r.Log())
	must(r.t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
			out = append(out, line)
		}
	}
	return out
}

// finish is what every test ends with: nothing is held, and the router ends in good order.
func (r *router) finish() {
	if r.Running() && !r.t.Failed() {
		eventually(r.t, "all holds are given back", r.held)
		must(r.t, r.Signal(syscall.SIGTERM))
		select {
		case <-r.Done():
			if code := r.ExitCode(); code != 0 {
				r.t.Errorf("the router's exit code is %d, want 0", code)
			}
		case <-time.After(patience):
			r.t.Errorf("the router does not end")
		}
	}
	r.Kill()
	// An id may have any letters and digits, so that "panic" alone proves nothing.
	for _, bad := range []string{"DATA RACE", "panic:", "panic ", "BUG:", "fatal error"} {
		if lines := r.lines(bad); len(lines) > 0 {
			r.t.Errorf("the router's log has %q: %s", bad, lines[0])
		}
	}
	if r.t.Failed() {
		quiet := slices.DeleteFunc(r.lines(""), func(line string) bool {
			return strings.Contains(line, `"msg":"request"`) && strings.Contains(line, `"reason":"ok"`)
		})
		r.t.Logf("the router's log:\n%s", strings.Join(quiet[max(0, len(quiet)-60):], ""))
	}
}

// worker is an entry of GET /workers.
type worker struct {
	ID        string            `json:"id"`
	URL       string            `json:"url"`
	Type      string            `json:"worker_type"`
	Status    string            `json:"status"`
	Load      int               `json:"load"`
	Bootstrap int               `json:"bootstrap_port"`
	Labels    map[string]string `json:"labels"`
	raw       string
}

func (w worker) String() string { return clip(w.raw) }

func (r *router) workers() []worker {
	r.t.Helper()
	status, body := get("http://" + r.addr + "/workers")
	var list struct {
		Workers []json.RawMessage `json:"workers"`
	}
	if err := json.Unmarshal([]byte(body), &list); status != http.StatusOK || err != nil {
		r.t.Fatalf("GET /workers: %d %s (%v)", status, clip(body), err)
	}
	out := make([]worker, len(list.Workers))
	for i, raw := range list.Workers {
		must(r.t, json.Unmarshal(raw, &out[i]))
		out[i].raw = string(raw)
	}
	return out
}

// worker is the entry of a pod, with the status "gone" if there is none.
func (r *router) worker(url string) worker {
	r.t.Helper()
	for _, w := range r.workers() {
		if w.URL == url {
			return w
		}
	}
	return worker{URL: url, Status: "gone", raw: url + " is gone"}
}

// sees waits until exactly these pods are workers, and ready.
func (r *router) sees(pods ...*Pod) {
	r.t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, p.url()+" ready")
	}
	slices.Sort(want)
	eventually(r.t, "the workers are the pods", func() string {
		var got []string
		for _, w := range r.workers() {
			got = append(got, w.URL+" "+w.Status)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("%s, want %s", got, want)
		}
		return ""
	})
}

// becomes waits until the worker at a pod's address has a status.
func (r *router) becomes(p *Pod, status string) {
	r.t.Helper()
	eventually(r.t, p.Metadata.Name+" is "+status, func() string {
		if w := r.worker(p.url()); w.Status != status {
			return w.String()
		}
		return ""
	})
}

// metric sums the series of /metrics whose name with labels begins so. NaN: there is none.
func (r *router) metric(prefix string) float64 {
	r.t.Helper()
	status, body := get("http://" + r.metrics + "/metrics")
	if status != http.StatusOK {
		r.t.Fatalf("GET /metrics: %d %s", status, clip(body))
	}
	sum := math.NaN()
	for line := range strings.Lines(body) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:i]
		if name != prefix && !strings.HasPrefix(name, prefix+"{") && !strings.HasPrefix(name, prefix+",") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		must(r.t, err)
		if math.IsNaN(sum) {
			sum = 0
		}
		sum += v
	}
	return sum
}

// held tells what is still booked, "" if nothing is.
func (r *router) held() string {
	r.t.Helper()
	for _, name := range []string{"smg_pd_prefill_admission_inflight", "smg_pd_prefill_admission_queued", "sluice_requests_in_flight",
		"sluice_admission_prefill_slots", "sluice_admission_decode_requests", "sluice_admission_queue_depth", "sluice_buffered_bytes"} {
		if v := r.metric(name); v != 0 && !math.IsNaN(v) { // no workers, no series
			return fmt.Sprintf("%s is %v", name, v)
		}
	}
	return ""
}

// processorTime is what the router has used of a processor so far.
func (r *router) processorTime(t testing.TB) time.Duration {
	t.Helper()
	return time.Duration(r.own(t, "process_cpu_seconds_total") * float64(time.Second)).Round(10 * time.Millisecond)
}

// memory is the router's, in bytes.
func (r *router) memory(t testing.TB) int64 {
	t.Helper()
	return int64(r.own(t, "process_resident_memory_bytes"))
}

func (r *router) own(t testing.TB, name string) float64 {
	t.Helper()
	v := r.metric(name)
	if math.IsNaN(v) {
		t.Errorf("there is no metric %s", name)
	}
	return v
}
