package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The fleet of these tests: 100 KV blocks of 10 tokens on each worker.
var smallKV = []string{"--kv-tokens", "1000", "--page-size", "10"}

const twoClasses = `
default_policy_family: normal
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: normal, policy_family: normal, cache_bucket: all, quantum: 512, decode_busy_threshold_frac: 0.5}
  - {name: never, quantum: 128, decode_busy_threshold_frac: 0.5, request_queue_limit_per_worker: 0}
`

// promptOf is a request of exactly n prompt tokens, which are given as such.
func promptOf(n, output int) string {
	return fmt.Sprintf(`{"model":"sim-model","max_tokens":%d,"prompt":[%s]}`, output, strings.TrimSuffix(strings.Repeat("7,", n), ","))
}

func (r *router) complete(t testing.TB, n, output int, headers ...string) *call {
	return send(clients(t), "POST", r.url()+"/v1/completions", promptOf(n, output), headers...)
}

// gateDoc is what GET /admission tells, as far as these tests look.
type gateDoc struct {
	Waiting int `json:"waiting"`
	Queues  []struct {
		Classes []struct {
			Class    string `json:"class"`
			Depth    int    `json:"depth"`
			ClosedBy string `json:"closed_by"`
			Short    []struct {
				Rank     string `json:"rank"`
				Resource string `json:"resource"`
				Short    int64  `json:"short"`
			} `json:"short_of"`
		} `json:"classes"`
	} `json:"queues"`
	Ranks []struct {
		ID       string `json:"id"`
		Role     string `json:"role"`
		Pending  int64  `json:"decode_blocks_pending"`
		Active   int64  `json:"decode_blocks_active"`
		Tokens   int64  `json:"prefill_tokens"`
		Unbooked int64  `json:"decode_blocks_unbooked"`
		Vetoed   bool   `json:"vetoed"`
		Capacity struct {
			Blocks int64 `json:"total_kv_blocks"`
		} `json:"capacity"`
	} `json:"ranks"`
	Reload struct {
		Generation int    `json:"generation"`
		Error      string `json:"error"`
	} `json:"reload"`
}

func (r *router) gate() (d gateDoc) {
	r.t.Helper()
	status, body := r.get("/admission")
	if err := json.Unmarshal([]byte(body), &d); status != 200 || err != nil {
		r.t.Fatalf("GET /admission: %d, %v: %s", status, err, clip(body))
	}
	return d
}

func (r *router) waitGate(what string, so func(gateDoc) bool) gateDoc {
	r.t.Helper()
	var d gateDoc
	eventually(r.t, what, func() string {
		if d = r.gate(); so(d) {
			return ""
		}
		return fmt.Sprintf("%+v", d)
	})
	return d
}

// decodeBlocks are those that are booked on all decode ranks.
func (d gateDoc) decodeBlocks() (n int64) {
	for _, k := range d.Ranks {
		if k.Role == "decode" {
			n += k.Pending + k.Active
		}
	}
	return n
}

func startClasses(t *testing.T, fleet *simFleet, classes string) (r *router, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "classes.yaml")
	if err := os.WriteFile(file, []byte(classes), 0o600); err != nil {
		t.Fatal(err)
	}
	// Blocks are told by the prompts alone.
	r = startRouter(t, fleet, "--router-policy-config", file, "--reserve-output-tokens", "0")
	r.waitGate("capacities", func(d gateDoc) bool {
		for _, k := range d.Ranks {
			if k.Capacity.Blocks != 100 {
				return false
			}
		}
		return len(d.Ranks) > 0
	})
	return r, file
}

// A class file on the built command: with decode full a request waits in front of
// prefill, a class that never waits is refused, and what comes free, or a reload,
// lets the first one in.
func TestClassesEndToEnd(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, append([]string{"--decode-step", "1h"}, smallKV...)...)
	r, file := startClasses(t, fleet, twoClasses)
	full := r.complete(t, 400, 2) // its second token never comes
	r.waitGate("a request that decodes", func(d gateDoc) bool {
		return d.decodeBlocks() == 40 && d.Ranks[0].Tokens+d.Ranks[1].Tokens == 0
	})
	waits := r.complete(t, 200, 1)
	d := r.waitGate("one that waits", func(d gateDoc) bool { return d.Waiting == 1 })
	c := d.Queues[0].Classes[0]
	if c.Class != "normal" || c.ClosedBy != "decode_blocks" || len(c.Short) != 1 || c.Short[0].Rank != fleet.worker("decode-0").URL || c.Short[0].Short != 10 {
		t.Errorf("class %+v", c)
	}
	never := r.complete(t, 200, 1, "X-Dynamo-Meta-Policy-Class", "never").wait(t)
	never.refused(t, 429, "policy_class_queue_full")
	if !strings.Contains(never.body, `"details":{"policy_class":"never","limit_kind":"requests","current":0,"limit":0}`) || never.header.Get("Retry-After") == "" {
		t.Errorf("%s", never)
	}
	if n := fleet.stats("prefill-0").Requests; n != 1 {
		t.Errorf("prefill got %d requests, want 1: decode is full", n)
	}

	// A broken file keeps the last good one, and the waiter its place.
	if err := os.WriteFile(file, []byte(strings.Replace(twoClasses, "quantum: 512", "quantum: -1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGHUP)
	d = r.waitGate("the file's error", func(d gateDoc) bool { return d.Reload.Error != "" })
	if d.Reload.Generation != 1 || d.Waiting != 1 || !strings.Contains(d.Reload.Error, "quantum") {
		t.Errorf("%+v", d)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(twoClasses, "frac: 0.5", "frac: 0.8")), 0o600); err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGHUP)
	waits.wait(t).good(t)
	if d := r.gate(); d.Reload.Generation != 2 || d.Reload.Error != "" || d.decodeBlocks() != 40 {
		t.Errorf("%+v", d)
	}
	full.cancel()
	<-full.done
}

// 64 requests at once never hold more of decode's memory than their class may, by
// the engine's own count.
func TestClassesBurstEndToEnd(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, append([]string{"--prefill-time", "5ms", "--decode-step", "1ms", "--decode", "2"}, smallKV...)...)
	r, _ := startClasses(t, fleet, twoClasses)
	client := clients(t)
	var all []*call
	for range 64 {
		all = append(all, send(client, "POST", r.url()+"/v1/completions", promptOf(95, 1)))
	}
	for _, c := range all {
		c.wait(t).good(t)
	}
	for _, id := range []string{"decode-0", "decode-1"} {
		if peak := fleet.stats(id).PeakKVTokens; peak == 0 || peak > 500 {
			t.Errorf("%s held %d tokens of KV, and its class may have 500", id, peak)
		}
	}
}

// Every answer names its workers, by ids that a pin takes.
func TestAnswersHaveWorkerHeaders(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "2")
	r := startRouter(t, fleet)
	for range 8 {
		a := r.ask(brief)
		p, d := a.header.Get("X-Sluice-Prefill-Worker"), a.header.Get("X-Sluice-Decode-Worker")
		if p == "" || d == "" || a.header.Get("X-Sluice-Queue-Ms") == "" {
			t.Fatalf("%s: %v", a, a.header)
		}
		b := r.ask(brief, "X-SMG-Target-Worker", p, "X-Sluice-Target-Decode", d)
		if b.good(t); b.header.Get("X-Sluice-Prefill-Worker") != p || b.header.Get("X-Sluice-Decode-Worker") != d {
			t.Errorf("pinned to %s and %s: %v", p, d, b.header)
		}
	}
	a := r.ask(brief + `"nvext":{"extra_fields":["worker_id"]},`)
	if a.good(t); !strings.Contains(a.body, `"nvext":{"worker_id":{"prefill_worker_id":`) {
		t.Errorf("%s", a)
	}
}
