package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// affinityDoc is what GET /admission tells of late binding.
type affinityDoc struct {
	Lookahead int    `json:"lookahead"`
	MaxPasses int    `json:"max_passes"`
	WaitMS    int    `json:"wait_ms"`
	Lost      int64  `json:"cache_tokens_lost"`
	Remedy    string `json:"remedy"`
}

func (r *router) affinity() affinityDoc {
	r.t.Helper()
	var d struct {
		Affinity affinityDoc `json:"affinity"`
	}
	status, body := r.get("/admission")
	if err := json.Unmarshal([]byte(body), &d); status != 200 || err != nil {
		r.t.Fatalf("GET /admission: %d, %v: %s", status, err, clip(body))
	}
	return d.Affinity
}

// oneSlot are the options of a gate that lets one request at a time into each worker.
// A request is held there, and others wait, for as long as a slow machine needs for the rest
// of a test: neither the watch for wedged schedulers nor the guard against starvation steps in.
var oneSlot = []string{"--worker-wedge-secs", "600", "--health-failure-threshold", "60", "--starvation-guard-secs", "0", "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "1000", "--prefill-queue-timeout-secs", "300"}

// With all slots taken and many who wait, late binding sends conversations to the workers that
// hold them; in the order of arrival each takes the slot that comes free, and loses what was
// cached elsewhere.
func TestLateBindingKeepsConversations(t *testing.T) {
	t.Parallel()
	const talks, turns = 20, 4
	for _, c := range []struct {
		name  string
		fleet []string
	}{
		{"sglang/pairs", []string{"--prefill", "4", "--decode", "1"}},
		{"vllm/pairs", []string{"--backend", "vllm", "--prefill", "4", "--decode", "1"}},
		{"vllm/whole", []string{"--backend", "vllm", "--regular", "4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, append(c.fleet, "--cache-report", "--prefill-time", "15ms")...)
			classes := filepath.Join(t.TempDir(), "classes.yaml")
			if err := os.WriteFile(classes, []byte(`
default_policy_family: normal
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: normal, policy_family: normal, cache_bucket: all, quantum: 512}
  - {name: other, quantum: 512}
`), 0o600); err != nil {
				t.Fatal(err)
			}
			client := clients(t)
			run := func(first int, args ...string) (rate, lost float64) {
				args = append(args, "--router-policy-config", classes)
				whole := strings.HasSuffix(c.name, "whole")
				if !whole {
					args = append(args, oneSlot...)
				}
				r := startRouter(t, fleet, args...)
				for _, w := range r.workers() {
					if !whole {
						break
					}
					if status, body := r.change("PATCH", "/workers/"+w.ID, `{"max_running_requests":1}`); status/100 != 2 {
						t.Fatalf("PATCH /workers: %d %s", status, clip(body))
					}
				}
				fleet.do("all", "reset", "")
				var all sync.WaitGroup
				for i := range talks {
					all.Go(func() {
						k := newTalk(first + i)
						for range turns {
							k.turn(t, client, r, "X-Dynamo-Meta-Policy-Class", []string{"normal", "other"}[i%2])
						}
					})
				}
				all.Wait()
				return fleet.hitRate(), r.metric("sluice_admission_cache_tokens_lost_total")
			}
			first, firstLost := run(1000, "--affinity-lookahead", "1")
			late, lateLost := run(2000)
			if late < 1.3*first || lateLost > firstLost/2 {
				t.Errorf("late binding: hit rate %.2f, %.0f tokens lost; in the order of arrival %.2f, %.0f", late, lateLost, first, firstLost)
			}
		})
	}
}

// A waiting request is passed over by later ones that find their prompts cached, as often as
// --affinity-max-passes says and no more; a reload changes how often.
func TestWaitersArePassedOverSoOften(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "1", "--decode", "1")
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	write := func(lookahead, passes int) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, "admission: {affinity_lookahead: %d, affinity_max_passes: %d}\n", lookahead, passes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1, 8)
	r := startRouter(t, fleet, append(oneSlot, "--config", file)...)
	if a := r.affinity(); a.Lookahead != 1 || !strings.Contains(a.Remedy, "--affinity-lookahead") {
		t.Errorf("%+v", a)
	}
	client := clients(t)
	known := newTalk(1)
	known.turn(t, client, r)
	known.say("user", "And then?")
	const others = 5
	for _, c := range []struct{ lookahead, passes, want int }{{1, 8, 0}, {32, 3, 3}, {32, 1, 1}, {3, 8, others}} {
		if c.lookahead > 1 {
			write(c.lookahead, c.passes)
			r.signal(syscall.SIGHUP)
			eventually(t, "the options are in force", func() string {
				if a := r.affinity(); a.Lookahead != c.lookahead || a.MaxPasses != c.passes || a.Remedy != "" {
					return fmt.Sprintf("%+v", a)
				}
				return ""
			})
		}
		fleet.do("all", "reset", "")
		fleet.fault("prefill-0", "delay=1h,count=1")
		busy := r.chat(client, brief)
		r.waitMetric(metricInflight, 1)
		calls := []*call{r.chat(client, fmt.Sprintf(`"max_tokens":1,"user":"%d",`, c.passes))} // nothing of it is cached
		r.waitMetric(metricQueued, 1)
		for i := range others {
			calls = append(calls, send(client, "POST", r.url()+"/v1/chat/completions", known.body("")))
			r.waitMetric(metricQueued, float64(2+i))
		}
		busy.cancel()
		for _, k := range calls {
			k.wait(t).good(t)
		}
		<-busy.done
		order := slices.DeleteFunc(fleet.requests("prefill-0"), func(q sim.Request) bool { return q.Header.Get("X-Request-Id") == busy.id })
		at := slices.IndexFunc(order, func(q sim.Request) bool { return q.Header.Get("X-Request-Id") == calls[0].id })
		if at != c.want || len(order) != 1+others {
			t.Errorf("lookahead %d, passes %d: the first came as number %d of %d, want %d", c.lookahead, c.passes, at, len(order), c.want)
		}
	}
}

// A request whose prompt is cached on a worker without room lets others go free, for
// --affinity-wait-secs; then it takes what there is.
func TestWaiterDeclinesForItsHolder(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "1", "--cache-report")
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	write := func(wait string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("admission: {affinity_wait_secs: "+wait+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("120")
	r := startRouter(t, fleet, append(oneSlot, "--queue-order", "lanes", "--config", file)...)
	client := clients(t)
	k := newTalk(1)
	holder := fleet.computing(k.turn(t, client, r).id).Worker
	k.say("user", "And then?")
	ask := func() (busy, c *call) {
		fleet.fault(holder, "delay=1h,count=1")
		busy = r.chat(client, brief, "X-Smg-Target-Worker", fleet.worker(holder).URL)
		r.waitMetric(metricInflight, 1)
		return busy, send(client, "POST", r.url()+"/v1/chat/completions", k.body(""))
	}
	busy, c := ask()
	r.waitMetric(metricQueued, 1)
	r.ask(brief).good(t) // what it declines is free for another
	if n := r.metric(metricQueued); n != 1 {
		t.Errorf("%v wait, want the one whose holder is full", n)
	}
	busy.cancel()
	a := c.wait(t)
	a.good(t)
	if r.wantCache(a, "holder"); fleet.computing(a.id).Worker != holder {
		t.Errorf("it ran at %s, not at %s", fleet.computing(a.id).Worker, holder)
	}
	if n := r.metric("sluice_admission_cache_tokens_lost_total"); n != 0 {
		t.Errorf("%v tokens are lost", n)
	}

	write("0.4")
	r.signal(syscall.SIGHUP)
	eventually(t, "the option is in force", func() string {
		if a := r.affinity(); a.WaitMS != 400 {
			return fmt.Sprintf("%+v", a)
		}
		return ""
	})
	busy, c = ask()
	a = c.wait(t)
	a.good(t)
	best, chosen, _ := r.wantCache(a, "room")
	waited, _ := r.accessLine(a.id)["queue_ms"].(float64)
	if at := fleet.computing(a.id).Worker; at == holder || waited < 390 || best <= chosen {
		t.Errorf("it ran at %s after %v ms; %s holds it: best %d, chosen %d", at, waited, holder, best, chosen)
	}
	if n := r.metric("sluice_admission_cache_tokens_lost_total"); n != float64(best-chosen) {
		t.Errorf("%v tokens are lost, want %d", n, best-chosen)
	}
	busy.cancel()
	<-busy.done
}

// With conditional disaggregation by length a second turn runs whole where decode holds the
// first, and a prompt of which little is cached goes through prefill.
func TestLongPromptsSkipPrefillWhereDecodeHoldsThem(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--backend", "vllm", "--prefill", "1", "--decode", "3", "--cache-report")
	r := startRouter(t, fleet, "--conditional-disagg-enabled", "--conditional-disagg-eff-isl-threshold", "700")
	client := clients(t)
	k := newTalk(1)
	legs := fleet.legs(k.turn(t, client, r).id)
	if len(legs) != 2 {
		t.Fatalf("the first turn has %d legs", len(legs))
	}
	decode := slices.IndexFunc(legs, func(q sim.Request) bool { return q.Worker != "prefill-0" })
	for range 2 {
		a := k.turn(t, client, r)
		again := fleet.legs(a.id)
		if len(again) != 1 || again[0].Worker != legs[decode].Worker || again[0].Cached < legs[decode].Prompt/2 {
			t.Errorf("a turn that %s holds: %+v", legs[decode].Worker, again)
		}
		r.wantCache(a, "holder")
	}
	if n := len(fleet.legs(newTalk(2).turn(t, client, r).id)); n != 2 { // few tokens, but all of them
		t.Errorf("another conversation has %d legs", n)
	}
	k.say("user", pieceOf(7, 7, 6000)) // a smaller part, but many tokens
	a := send(client, "POST", r.url()+"/v1/chat/completions", k.body("")).wait(t)
	if a.good(t); len(fleet.legs(a.id)) != 2 {
		t.Errorf("a turn of many new tokens has %d legs", len(fleet.legs(a.id)))
	}
}

// A command line for another router's caches starts, and one line says what of it has no
// meaning.
func TestCacheFlagsOfOtherRouters(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "1")
	unused := []string{"--balance-abs-threshold", "32", "--balance-rel-threshold", "1.1", "--eviction-interval", "60", "--max-tree-size", "67108864", "--block-size", "16"}
	args := append([]string{"--policy", "cache_aware", "--cache-threshold", "0.4"}, unused...)
	r := startRouter(t, fleet, args...)
	r.ask(brief).good(t)
	lines := slices.DeleteFunc(r.stderr.all(), func(line string) bool { return !strings.Contains(line, "balance-abs-threshold") })
	if len(lines) != 1 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	code, _, check := sluice(t, slices.Concat([]string{"check-config"}, fleet.flags(), args)...)
	for i := 0; i < len(unused); i += 2 {
		if !strings.Contains(lines[0], unused[i]) || strings.Count(check, unused[i]) != 1 {
			t.Errorf("%s is not told once: %s\n%s", unused[i], lines[0], check)
		}
	}
	if code != 0 || strings.Contains(lines[0]+check, "cache-threshold") {
		t.Errorf("exit code %d; %s\n%s", code, lines[0], check)
	}
}
