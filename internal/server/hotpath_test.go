package server

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// Nothing about the fleet is asked for a request's sake: what the workers tell is
// known before.
func TestRequestsCauseNoOtherCallsToWorkers(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Health.Interval = time.Hour })
	probes := func() (n int) {
		for _, w := range r.sim.Workers() {
			n += w.Stats().Probes
		}
		return n
	}
	// What a new worker is asked comes to its end first.
	for before := -1; before != probes(); {
		before = probes()
		if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	before := probes()
	const n = 100
	for range n {
		if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	if after := probes(); after != before {
		t.Errorf("%d requests came with %d questions to the workers", n, after-before)
	}
	for _, w := range []*sim.Worker{r.sim.Prefill(0), r.sim.Decode(0)} {
		if s := w.Stats(); s.Requests < n || s.Accepted > 10 {
			t.Errorf("%s saw %d requests on %d connections", w.URL(), s.Requests, s.Accepted)
		}
	}
}

// A family that is declared twice makes scrapers refuse the whole page.
func TestEachMetricFamilyIsDeclaredOnce(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.PrefillSlots = 2 })
	for _, path := range []string{"/v1/chat/completions", "/generate", "/no/such/path"} {
		r.do("POST", path, chat)
	}
	seen := map[string]int{}
	for _, line := range strings.Split(r.metricsPage(), "\n") {
		for _, kind := range []string{"# HELP ", "# TYPE "} {
			if rest, ok := strings.CutPrefix(line, kind); ok {
				name, _, _ := strings.Cut(rest, " ")
				seen[kind+name]++
			}
		}
		if line != "" && line[0] != '#' {
			series, _, _ := strings.Cut(line, " ")
			seen[series]++
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d lines are told apart", len(seen))
	}
	for what, n := range seen {
		// A series' labels may hold spaces: those are cut short and not told apart.
		if n > 1 && (what[0] == '#' || !strings.Contains(what, "{") || strings.HasSuffix(what, "}")) {
			t.Errorf("%s is there %d times", what, n)
		}
	}
}
