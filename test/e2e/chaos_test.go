package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// chaos is one run: a router, engines that have faults, sources that change what they
// declare, and clients.
type chaos struct {
	t *testing.T
	*chaosFleet
	r       *router
	sources map[string]declarer
}

// TestChaos lets engines die, hang and come back, and sources add and remove them, by a
// schedule that is drawn from a seed, under load with clients that leave. Every request has
// its own answer or a visible end; no engine that only ever behaved is blamed; and when all
// that is over everything is as before: engines are used again, and nothing is held.
//
// CHAOS_SEED=N and CHAOS_SECS=N choose another schedule and its length ("make chaos"),
// CHAOS_LOG=DIR keeps the routers' logs and the schedules.
func TestChaos(t *testing.T) {
	seed, secs := number(t, "CHAOS_SEED", 12), number(t, "CHAOS_SECS", 0)
	if secs == 0 {
		if secs = 2; full {
			secs = 6
		} else if raceEnabled {
			t.Skip("the short run is made without the race detector, the long ones with it")
		}
	}
	for name, form := range chaosForms {
		if secs == 2 && form == (chaosForm{grpc: true}) {
			continue // the long runs have it
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runChaos(t, form, uint64(seed), time.Duration(secs)*time.Second)
		})
	}
}

// chaosForm is a form of fleet: of pairs or of engines that run whole requests, by HTTP or by
// gRPC.
type chaosForm struct{ pairs, grpc bool }

var chaosForms = map[string]chaosForm{
	"pairs": {pairs: true}, "whole requests": {},
	"pairs by gRPC": {pairs: true, grpc: true}, "whole requests by gRPC": {grpc: true},
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q: want a number", name, text)
	}
	return n
}

func runChaos(t *testing.T, form chaosForm, seed uint64, length time.Duration) {
	c := &chaos{t: t}
	dir := t.TempDir()
	c.sources = map[string]declarer{
		"configuration": &byConfiguration{t: t, file: filepath.Join(dir, "sluice.yaml"), pairs: form.pairs},
		"file":          &byFile{t: t, file: filepath.Join(dir, "workers.yaml")},
		"requests":      &byRequests{t},
		"dns":           newDNS(t),
		"kubernetes":    newKubernetes(t, form),
	}
	args := []string{"--health-check-endpoint", "/health", "--health-check-interval-secs", "0.3", "--health-check-timeout-secs", "2",
		"--health-failure-threshold", "2", "--worker-wedge-secs", "1", "--source-hold-secs", "3", "--no-worker-wait-secs", "3",
		"--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1", "--retry-initial-backoff-ms", "20", "--worker-idle-timeout-secs", "1",
		"--request-timeout-secs", fmt.Sprint(requestBound.Seconds()), "--stream-idle-timeout-secs", "5", "--access-log", "failures", "--dp-aware"}
	if form.pairs {
		c.chaosFleet = startPairs(t, form)
		args = append(args, "--pair-label", "generation", "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-timeout-secs", "10")
	} else {
		c.chaosFleet = startWhole(t, form)
	}
	for _, name := range chaosSources {
		args = append(args, c.sources[name].flags(ofSource(c.engines, name))...)
	}
	c.r = launchRouter(t, nil, nil, nil, args...)
	for _, e := range ofSource(c.engines, "requests") {
		c.sources["requests"].declare(c.r, nil, e)
	}
	schedule := draw(rand.New(rand.NewPCG(seed, 0)), length, c.targets())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("CHAOS_SEED=%d CHAOS_SECS=%d, schedule:\n%s", seed, int(length.Seconds()), listed(schedule))
		}
		if dir := os.Getenv("CHAOS_LOG"); dir != "" {
			all := fmt.Sprintf("%s\n%s\n", c.r.stderr.String(), listed(schedule))
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(t.Name())+".log"), []byte(all), 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	phase := time.Now()
	took := func(what string) {
		t.Logf("%s took %s", what, time.Since(phase).Round(time.Millisecond))
		phase = time.Now()
	}
	c.allServe()
	before := c.settled(0, 0)
	took("the start")

	crowd := startChaosClients(t, c.r.url(), form, 20, seed)
	for _, h := range schedule {
		time.Sleep(time.Until(crowd.began.Add(h.at)))
		c.do(h)
	}
	crowd.end()
	crowd.report()
	took("the load")
	c.removeOneEach()
	c.allServe()
	c.r.idle()
	took("recovery")
	after := c.settled(before.goroutines+4, before.files+4)
	took("rest")
	t.Logf("%d happenings; %d goroutines and %d files before, %d and %d after", len(schedule), before.goroutines, before.files, after.goroutines, after.files)
	c.blame()
	for _, p := range c.sims {
		p.fleet.misuse()
	}
}

// do does an entry of the schedule.
func (c *chaos) do(h happening) {
	c.t.Helper()
	if name, ok := strings.CutPrefix(h.target, "source "); ok {
		c.sources[name].fail(h.what == "fails")
		return
	}
	for _, p := range c.processes {
		if p.name == h.target {
			p.do(h.what)
			return
		}
	}
	i := slices.IndexFunc(c.engines, func(e *engine) bool { return e.name == h.target })
	e := c.engines[i]
	for _, d := range slices.Concat(upkeep, sourceUpkeep) {
		if h.what == d.do || h.what == d.undo {
			c.keep(e, h.what)
			return
		}
	}
	e.do(c.t, h.what)
}

// removeOneEach removes an engine of each source, waits until the router knows, and adds
// them again.
func (c *chaos) removeOneEach() {
	c.t.Helper()
	var gone []*engine
	for _, name := range chaosSources {
		gone = append(gone, ofSource(c.engines, name)[0])
	}
	for _, e := range gone {
		c.keep(e, "remove")
	}
	eventually(c.t, "engines that were removed are gone", func() string {
		for _, w := range c.r.workers() {
			for _, e := range gone {
				if w.URL == e.url {
					return fmt.Sprintf("%s of %s: %+v", e.name, e.source, w)
				}
			}
		}
		return ""
	})
	for _, e := range gone {
		c.keep(e, "add")
	}
}

// allServe waits until each engine is ready, as its own source's, and serves a request that
// names it.
func (c *chaos) allServe() {
	c.t.Helper()
	eventually := func(t *testing.T, what string, check func() string) {
		t.Helper()
		start, last := time.Now(), ""
		eventually(t, what, func() string {
			now := check()
			if last = cmp.Or(now, last); now == "" && time.Since(start) > 5*time.Second {
				t.Logf("%s: after %s; before: %s", what, time.Since(start).Round(time.Millisecond), last)
			}
			return now
		})
	}
	eventually(c.t, "all engines are ready", func() string {
		is := make(map[string]worker)
		for _, w := range c.r.workers() {
			is[w.URL] = w
		}
		for _, e := range c.engines {
			w, ok := is[e.url]
			if owner, _, _ := strings.Cut(w.Source, ":"); !ok || w.Status != "ready" || owner != e.source {
				return fmt.Sprintf("%s of %s: %+v", e.name, e.source, w)
			}
		}
		if len(is) != len(c.engines) {
			return fmt.Sprintf("%d workers, not %d", len(is), len(c.engines))
		}
		return ""
	})
	for _, e := range c.engines {
		eventually(c.t, e.name+" serves", func() string {
			if a := c.askPinned(e.role, e.url); !a.whole() {
				return a.String()
			}
			return ""
		})
	}
	// A half-open breaker closes when its rank has served.
	eventually(c.t, "all breakers are closed", func() string {
		open := ""
		for _, w := range c.r.workers() {
			for _, k := range w.Ranks {
				if k.Breaker != "closed" {
					open = fmt.Sprintf("%s is %s: %s", k.ID, k.Breaker, c.askPinned(w.Type, k.ID))
				}
			}
		}
		return open
	})
}

// askPinned sends a request that names a worker or rank.
func (c *chaos) askPinned(role, pin string) *answer {
	c.t.Helper()
	header := "X-Smg-Target-Worker"
	if role == "decode" {
		header = "X-Sluice-Target-Decode"
	}
	return c.r.ask(brief, header, pin)
}

// usage is what the router's process has.
type usage struct{ goroutines, files int }

// settled is the usage after a while in which nothing was asked: connections that are idle are
// closed then. It waits until it is below the limits, if there are any.
func (c *chaos) settled(goroutines, files int) (u usage) {
	c.t.Helper()
	probeClient.CloseIdleConnections()
	eventually(c.t, "the router is at rest", func() string {
		last := u
		u.goroutines = int(c.r.metric("go_goroutines"))
		u.files = c.files()
		switch {
		case goroutines > 0 && (u.goroutines > goroutines || u.files > files):
			return fmt.Sprintf("%+v, want %d and %d at most", u, goroutines, files)
		case goroutines == 0 && max(u.goroutines-last.goroutines, last.goroutines-u.goroutines, u.files-last.files, last.files-u.files) > 2:
			time.Sleep(1200 * time.Millisecond) // longer than idle connections are kept
			return fmt.Sprintf("%+v and then %+v", last, u)
		}
		return ""
	})
	return u
}

// files is how many files the router has open, 0 where the system does not tell.
func (c *chaos) files() int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.r.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return len(list)
}

// blame fails the test if an engine was blamed that only ever behaved: by its breaker, as
// wedged, in a pair of two such engines, or in the count of what it failed.
func (c *chaos) blame() {
	c.t.Helper()
	var well []string
	for _, e := range c.engines {
		if !c.behaves(e) {
			continue
		}
		well = append(well, e.url)
		for _, rank := range []string{e.url, e.url + "@0", e.url + "@1"} {
			if v := c.r.metric(fmt.Sprintf("sluice_rank_wedged_total{rank=%q", rank)); v > 0 {
				c.t.Errorf("%s was found wedged %v times, and never was", e.name, v)
			}
		}
		// A decode engine fails what a prefill engine that died hands over.
		if v := c.r.metric(fmt.Sprintf(`sluice_worker_requests_total{outcome="failed",role="regular",worker=%q}`, e.url)); v > 0 {
			c.t.Errorf("%s only ever behaved, and %v requests are said to have failed by its doing", e.name, v)
		}
	}
	named := func(line string) (n int) {
		for _, url := range well {
			n += strings.Count(line, `"`+url+`"`) + strings.Count(line, `"`+url+`@`)
		}
		return n
	}
	for _, line := range c.r.stderr.all() {
		blamed := strings.Contains(line, "rank is wedged") || strings.Contains(line, "circuit breaker changed state") && strings.Contains(line, `"state":"open"`)
		if n := named(line); n > 0 && blamed || n > 1 && strings.Contains(line, "pair is quarantined") {
			c.t.Errorf("who only ever behaved is blamed: %s", line)
		}
	}
	if status, body := c.r.get("/admission"); status != http.StatusOK {
		c.t.Errorf("GET /admission: %d %s", status, clip(body))
	}
}
