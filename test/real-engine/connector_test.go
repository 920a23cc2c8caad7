//go:build realengine

package main

import (
	"fmt"
	"strings"
	"testing"
)

// The engines say nothing of their connector, so sluice finds it out; how much
// they hold they do say.
func TestPairIsFound(t *testing.T) {
	needPair(t)
	r := startPair(t)
	for _, w := range r.workers() {
		if w.Backend != "vllm" || w.Connector != "nixl" || w.MaxModelLen != MaxModelLen || len(w.Ranks) != 1 ||
			w.Ranks[0].Blocks != Blocks || w.Ranks[0].BlockSize != BlockSize {
			t.Errorf("%+v", w)
		}
		report.say(t, "%s: %s %s, connector %s, context %d, %d blocks of %d", w.Type, w.Backend, w.Version, w.Connector,
			w.MaxModelLen, w.Ranks[0].Blocks, w.Ranks[0].BlockSize)
	}
	// Where a request runs whole there is nothing to hand over.
	whole := startWhole(t)
	if w := whole.workers()[0]; w.Backend != "vllm" || w.Connector == "nixl" {
		t.Errorf("%+v", w)
	}
}

// A decode engine without the connector answers all requests rightly and fetches
// nothing: every prefill is wasted, in silence. sluice says so.
func TestPairThatMovesNothing(t *testing.T) {
	needPair(t)
	r := startRouter(t, "--pd-disaggregation", "--prefill", prefill.URL(), "none", "--decode", one.URL(), "--health-check-interval-secs", "1")
	before := scrape(t, one.URL())
	asked := 0
	eventually(t, "the worker is reported", func() string {
		q := request{route: completions, prompt: prompt(60), tokens: 4}
		if missing := q.ask(t, r.url).whole(completions); missing != "" {
			t.Fatal(missing)
		}
		asked++
		for _, w := range r.workers() {
			if w.URL == one.URL() && w.Transfer == "nothing moves" {
				return ""
			}
		}
		return fmt.Sprintf("%d asked", asked)
	})
	if v := r.counters()["sluice_workers_without_kv_transfer"]; v != 1 {
		t.Errorf("the metric is %v", v)
	}
	warned := ""
	for _, line := range r.log.lines() {
		if strings.Contains(line, `"level":"WARN"`) && strings.Contains(line, one.URL()) {
			warned = line
		}
	}
	if warned == "" {
		t.Error("the log does not say so")
	}
	report.say(t, "after %d requests: %s; the engine: %s", asked, warned, scrape(t, one.URL()).since(before, computedHere, transferred))
}

// The pair that does move is reported as such.
func TestPairThatMoves(t *testing.T) {
	needPair(t)
	r := startPair(t, "--health-check-interval-secs", "1")
	eventually(t, "the worker is reported", func() string {
		q := request{route: completions, prompt: prompt(60), tokens: 4}
		if missing := q.ask(t, r.url).whole(completions); missing != "" {
			t.Fatal(missing)
		}
		for _, w := range r.workers() {
			if w.Type == "decode" && w.Transfer == "moves" {
				return ""
			}
		}
		return "it is not"
	})
	if v := r.counters()["sluice_workers_without_kv_transfer"]; v != 0 {
		t.Errorf("the metric is %v", v)
	}
	handed := r.counters()[`sluice_kv_handoffs_total{outcome="handed_over"}`]
	if handed < 1 {
		t.Errorf("%v requests are counted as handed over", handed)
	}
}
