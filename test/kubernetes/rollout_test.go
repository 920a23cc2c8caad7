//go:build kubernetes

package main

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// revision is the label in which generations of a fleet differ.
const revision = "revision"

// pdPod is a pod of a generation.
func pdPod(backend sim.Backend, gen, role string, i int) pod {
	p := regular(fmt.Sprintf("%s-%s-%d", gen, role, i)).inside(string(backend), role)
	p.labels = map[string]string{"app": "engine", "role": role, revision: gen}
	if role == "prefill" && backend == sim.SGLang {
		p = p.with("sglang.ai/bootstrap-port", strconv.Itoa(9000+i))
	}
	return p
}

// A rollout under load, a pod of each role at a time: no request is ever split between
// two generations, and none fails.
func TestRolloutPairsWithinAGeneration(t *testing.T) {
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			rollout(t, backend)
		})
	}
}

func rollout(t *testing.T, backend sim.Backend) {
	b := newBed(t)
	r := startRouter(t, append(b.selectsPairs(cluster.Server(0)), "--pair-label", revision)...)
	start := func(gen string, i int) {
		t.Helper()
		for _, p := range b.start(pdPod(backend, gen, "prefill", i), pdPod(backend, gen, "decode", i)) {
			r.becomes(p, "ready")
		}
	}
	for i := range 2 {
		start("r1", i)
	}
	l := r.load()
	l.more(40)
	old, deleted := "r1", []string(nil)
	for _, gen := range []string{"r2", "r3"} {
		for i := range 2 {
			start(gen, i)
			l.more(20)
			for _, role := range []string{"prefill", "decode"} {
				name := fmt.Sprintf("%s-%s-%d", old, role, i)
				b.delete(name, -1)
				deleted = append(deleted, name)
			}
		}
		old = gen
	}
	for _, name := range deleted {
		b.gone(name)
	}
	l.more(40)
	l.good()
	f := node.Fleet(b.namespace, backend)
	checkPairs(t, f, 3)
	if f.Violated() > 0 {
		t.Errorf("%d violations of the engines' contract, the first: %s", f.Violated(), f.Violations()[0])
	}
}

// checkPairs checks that both legs of each request were of one generation, of which that
// many served.
func checkPairs(t *testing.T, f *sim.Fleet, want int) {
	t.Helper()
	type legs struct{ prefill, decode string }
	pairs := make(map[string]legs)
	for _, w := range f.Workers() {
		gen := node.PodOf(w).Metadata.Labels[revision]
		for _, q := range w.Requests() {
			// SGLang's legs have a room of their own for each attempt, vLLM's the id.
			key := q.Header.Get("X-Request-Id")
			if room := q.Room(); room != 0 {
				key = strconv.FormatInt(room, 10)
			}
			leg := pairs[key]
			if w.Role() == sim.Prefill {
				leg.prefill = gen
			} else {
				leg.decode = gen
			}
			pairs[key] = leg
		}
	}
	served := make(map[string]int)
	for key, leg := range pairs {
		if leg.prefill == "" || leg.decode == "" {
			continue // the other leg never came to an engine
		}
		if leg.prefill != leg.decode {
			t.Errorf("request %s was of generation %q in prefill and %q in decode", key, leg.prefill, leg.decode)
		}
		served[leg.prefill]++
	}
	if len(served) != want {
		t.Errorf("%d generations served, want %d: %v", len(served), want, served)
	}
	t.Logf("requests by generation: %v", served)
}
