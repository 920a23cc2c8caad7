package fleet

import (
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/policy"
)

// BenchmarkStates is the CPU time for 1,000 workers to change their state once and back,
// beside what the checks themselves cost on the wire: they fail and recover, or their
// source says that they must not be chosen and then that they may.
func BenchmarkStates(b *testing.B) {
	const n = 1000
	specs, flipped := make([]Declared, n), make([]Declared, n)
	for i := range specs {
		specs[i] = regular(fmt.Sprintf("http://10.%d.%d.1:30000", i/250, i%250), identity(fmt.Sprint(i)))
		specs[i].Type, specs[i].ModelID = []config.WorkerType{config.WorkerPrefill, config.WorkerDecode}[i%2], "m"
		flipped[i] = specs[i]
		flipped[i].NotReady = "pod is not Ready"
	}
	fleet := func(b *testing.B) *Fleet {
		clock := admission.NewSystemClock()
		newPolicy, err := policy.New(policy.PowerOfTwo, 1)
		if err != nil {
			b.Fatal(err)
		}
		gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, clock, nil)
		f := newFleet(gate, settings{Health: config.Health{FailureThreshold: 1, SuccessThreshold: 1}}.options(), clock, newFakeProber())
		b.Cleanup(func() { f.start(); f.Close(); gate.Close() })
		if err := f.Reconcile(b.Context(), "pods", specs); err != nil {
			b.Fatal(err)
		}
		return f
	}
	facts := &Facts{Facts: engine.Facts{Backend: "sglang", Models: []engine.ModelInfo{{ID: "m"}}, Answered: true, DPSize: 1}, read: true}
	check := func(b *testing.B, f *Fleet, r checkResult, facts *Facts, healthy bool) {
		for _, w := range f.workers {
			f.finishCheck(w, r, facts)
			if w.health.healthy != healthy {
				b.Fatalf("%s: healthy %t", w.url, !healthy)
			}
		}
		f.applyOthers(f.clock.Now())
	}
	good, bad := checkResult{health: outcomeOK, alive: outcomeOK}, checkResult{health: outcomeUnreachable, alive: outcomeUnreachable}
	b.Run("health", func(b *testing.B) {
		f := fleet(b)
		check(b, f, good, facts, true)
		b.ReportAllocs()
		for b.Loop() {
			check(b, f, bad, nil, false)
			check(b, f, good, facts, true)
		}
	})
	b.Run("source", func(b *testing.B) {
		f := fleet(b)
		check(b, f, good, facts, true)
		b.ReportAllocs()
		for b.Loop() {
			for _, set := range [][]Declared{flipped, specs} {
				if err := f.Reconcile(b.Context(), "pods", set); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
