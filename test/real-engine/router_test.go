//go:build realengine

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// router is a running "sluice serve".
type router struct {
	t       testing.TB
	cmd     *exec.Cmd
	log     *logBuffer
	done    chan struct{}
	url     string
	metrics string // base URL of the other listener
}

// logBuffer is what the router printed.
type logBuffer struct {
	mu sync.Mutex
	// guarded by mu
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(l.text.String(), "\n")
}

// startWhole starts a router in front of the engine that runs whole requests.
func startWhole(t testing.TB, args ...string) *router {
	t.Helper()
	return startRouter(t, append([]string{"--worker-urls", one.URL()}, args...)...)
}

// startPair starts a router in front of prefill and decode.
func startPair(t testing.TB, args ...string) *router {
	t.Helper()
	return startRouter(t, append([]string{"--pd-disaggregation", "--prefill", prefill.URL(), "none", "--decode", decode.URL()}, args...)...)
}

// startRouter starts a router and waits until its workers are ready.
func startRouter(t testing.TB, args ...string) *router {
	t.Helper()
	r := launchRouter(t, args...)
	r.waitReady()
	return r
}

// launchRouter starts a router and waits until it listens.
func launchRouter(t testing.TB, args ...string) *router {
	t.Helper()
	r := &router{t: t, log: &logBuffer{}, done: make(chan struct{})}
	r.cmd = exec.Command(binary, append([]string{"serve", "--host", "127.0.0.1", "--port", "0",
		"--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--pre-drain-wait", "0", "--log-json"}, args...)...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SLUICE_") {
			r.cmd.Env = append(r.cmd.Env, e)
		}
	}
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("cannot start sluice: %v", err)
	}
	go func() { _ = r.cmd.Wait(); close(r.done) }() // its state tells
	t.Cleanup(r.finish)
	eventually(t, "the router serves", func() string {
		if !r.running() {
			t.Fatalf("the router ended: %s", r.tail())
		}
		for _, line := range r.log.lines() {
			var v struct{ Msg, Address, Metrics string }
			if json.Unmarshal([]byte(line), &v) == nil && v.Msg == "serving" {
				r.url, r.metrics = "http://"+v.Address, "http://"+v.Metrics
				return ""
			}
		}
		return "no line says so"
	})
	return r
}

func (r *router) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *router) tail() string {
	all := r.log.lines()
	return strings.Join(all[max(0, len(all)-40):], "\n")
}

// waitReady waits until all workers are ready.
func (r *router) waitReady() {
	r.t.Helper()
	eventually(r.t, "the router and its workers are ready", func() string {
		status, body := r.get("/readyz")
		if status != http.StatusOK {
			return fmt.Sprint("/readyz: ", status, " ", body)
		}
		for _, w := range r.workers() {
			if w.Status != "ready" {
				return w.URL + " is " + w.Status
			}
		}
		return ""
	})
}

func (r *router) get(path string) (status int, body string) {
	resp, err := scraper.Get(r.url + path)
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
	URL         string `json:"url"`
	Type        string `json:"worker_type"`
	Status      string `json:"status"`
	Load        int    `json:"load"`
	Backend     string `json:"backend"`
	Version     string `json:"version"`
	Connector   string `json:"kv_connector"`
	Transfer    string `json:"kv_transfer"`
	MaxModelLen int    `json:"max_model_len"`
	ID          string `json:"id"`
	Ranks       []struct {
		Blocks    int        `json:"total_kv_blocks"`
		BlockSize int        `json:"block_size"`
		Cache     *rankCache `json:"kv_cache"`
	} `json:"ranks"`
}

// rankCache is what the router knows of a rank's KV cache.
type rankCache struct {
	Feed     string `json:"feed"`
	Degraded *struct {
		Why string `json:"why"`
	} `json:"degraded"`
	Exact    int `json:"exact_blocks"`
	MaxExact int `json:"max_exact_blocks"`
	Events   struct {
		Gaps     int `json:"gaps"`
		Unfilled int `json:"unfilled_gaps"`
		Replays  int `json:"replays"`
		Clears   int `json:"clears"`
		Connects int `json:"connects"`

		LastError string `json:"last_error"`
	} `json:"events"`
}

func (r *router) workers() []worker {
	r.t.Helper()
	status, body := r.get("/workers")
	var list struct {
		Workers []worker `json:"workers"`
	}
	if err := json.Unmarshal([]byte(body), &list); status != http.StatusOK || err != nil {
		r.t.Fatalf("GET /workers: %d %s (%v)", status, clip(body), err)
	}
	return list.Workers
}

// Gauges of the admission contract.
const (
	slotsTaken = "smg_pd_prefill_admission_inflight"
	queued     = "smg_pd_prefill_admission_queued"
	rejections = "smg_pd_prefill_admission_rejections_total"
)

func (r *router) counters() counters { r.t.Helper(); return scrape(r.t, r.metrics) }

// waitFor waits until one of the router's metrics has a value.
func (r *router) waitFor(name string, want float64) {
	r.t.Helper()
	eventually(r.t, name, func() string {
		if got := r.counters()[name]; got != want {
			return fmt.Sprintf("is %v, want %v", got, want)
		}
		return ""
	})
}

// finish checks that nothing is held and that the router ends in good order.
func (r *router) finish() {
	t := r.t
	if !r.running() {
		t.Errorf("the router ended before its test:\n%s", r.tail())
		return
	}
	if !t.Failed() {
		eventually(t, "all holds are given back", func() string {
			for _, w := range r.workers() {
				if w.Load != 0 {
					return fmt.Sprintf("%s has load %d", w.URL, w.Load)
				}
			}
			c := r.counters()
			for _, name := range []string{slotsTaken, queued, "sluice_requests_in_flight", "sluice_buffered_bytes"} {
				if c[name] != 0 {
					return fmt.Sprintf("%s is %v", name, c[name])
				}
			}
			return ""
		})
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // or it has just ended
	select {
	case <-r.done:
		if code := r.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the router's exit code is %d", code)
		}
	case <-time.After(30 * time.Second):
		_ = r.cmd.Process.Kill()
		<-r.done
		t.Error("the router did not end within 30 s")
	}
	if t.Failed() {
		t.Logf("the router's log:\n%s", r.tail())
	}
}
