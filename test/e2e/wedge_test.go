package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestWedgedScheduler keeps away requests that sit in an engine whose HTTP server is well
// and whose scheduler is not: they are served elsewhere, the engine that hangs is named and
// gets nothing, and it is used again when it goes on. How fast that goes is a matter of
// unit tests in virtual time.
func TestWedgedScheduler(t *testing.T) {
	for _, backend := range []string{"sglang", "vllm"} {
		for _, victim := range []string{"regular-0", "prefill-0", "decode-0"} {
			t.Run(backend+" "+victim, func(t *testing.T) {
				t.Parallel()
				shape := []string{"--prefill", "2", "--decode", "2"}
				if victim == "regular-0" {
					shape = []string{"--regular", "2", "--prefill", "0", "--decode", "0"}
				}
				fleet := startSim(t, append(shape, "--backend", backend)...)
				r := startRouter(t, fleet, "--worker-wedge-secs", "1", "--policy", "round_robin")
				fleet.do(victim, "wedge", "")
				var all sync.WaitGroup
				for i := range 8 {
					all.Go(func() {
						client := http.Client{Timeout: patience}
						resp, err := client.Post(r.url()+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(
							`{"model":"sim-model","max_tokens":2,"stream":%v,"messages":[{"role":"user","content":"x"}]}`, i%2 == 0)))
						if err != nil {
							t.Error(err)
							return
						}
						_ = resp.Body.Close()
						if resp.StatusCode != 200 {
							t.Errorf("status %d", resp.StatusCode)
						}
					})
				}
				all.Wait()
				url := fleet.worker(victim).URL
				hear := func(what string) {
					t.Helper()
					eventually(t, what, func() string {
						for _, line := range r.stderr.all() {
							if strings.Contains(line, what) && strings.Contains(line, url) {
								return ""
							}
						}
						return "not said"
					})
				}
				hear("rank is wedged")
				for _, line := range r.stderr.all() {
					if strings.Contains(line, "rank is wedged") && !strings.Contains(line, url) {
						t.Errorf("another one is said to be wedged: %s", line)
					}
				}
				for _, w := range r.workers() {
					if is := w.URL == url; is != (w.Status == "unhealthy") {
						t.Errorf("%s is %s", w.URL, w.Status)
					}
				}
				if _, metrics := get("http://" + r.metrics + "/metrics"); !strings.Contains(metrics, fmt.Sprintf("sluice_rank_wedged{rank=%q,role=%q} 1", url, strings.TrimSuffix(victim, "-0"))) {
					t.Error("no metric tells of it")
				}
				fleet.do(victim, "unwedge", "")
				hear("rank is no longer wedged")
				r.waitReady()
			})
		}
	}
}

// TestLongPromptIsNoHang sends prompts of some hundred thousand tokens, which engines
// compute for many times the time after which a rank without progress is suspect: in
// chunks, or in one step in which nothing moves.
func TestLongPromptIsNoHang(t *testing.T) {
	for _, backend := range []string{"sglang", "vllm"} {
		for _, chunk := range []string{"8192", "2000000"} {
			t.Run(backend+" in chunks of "+chunk, func(t *testing.T) {
				t.Parallel()
				fleet := startSim(t, "--regular", "1", "--prefill", "0", "--decode", "0", "--backend", backend, "--prefill-rate", "60000", "--max-batched-tokens", chunk)
				r := startRouter(t, fleet, "--worker-wedge-secs", "0.1")
				client := http.Client{Timeout: 10 * time.Minute}
				resp, err := client.Post(r.url()+"/v1/chat/completions", "application/json", strings.NewReader(
					`{"model":"sim-model","max_tokens":2,"stream":true,"messages":[{"role":"user","content":"`+strings.Repeat("word ", 240_000)+`"}]}`))
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
				for _, line := range r.stderr.all() {
					if strings.Contains(line, "wedged") {
						t.Error(line)
					}
				}
			})
		}
	}
}
