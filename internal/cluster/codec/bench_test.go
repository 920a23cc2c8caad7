//go:build !race

package codec

import (
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

func steps() *cluster.Envelope {
	e := &cluster.Envelope{From: 1 << 60, To: 1 << 61, Stamp: 1e6, Echo: 1e6, Epoch: cluster.Epoch{Number: 3, Keeper: 1 << 61}, Session: 4, Seq: 1e5, Ack: 1e5}
	for i := range 8 {
		e.Items = append(e.Items, cluster.Item{Kind: cluster.ItemStep, Op: admission.StepRelease, Attempt: 1, Number: 1e6 + uint64(i)})
	}
	return e
}

func arrival() *cluster.Envelope {
	e := steps()
	a := &cluster.Ask{Age: 1000, Holders: [2][]cluster.Holder{{{Rank: cluster.RankAt{Number: 1, Generation: 3 << 32}, Tokens: 500}}}}
	a.Request.Target = admission.TargetSpec{Model: "llama", Shape: admission.Disaggregated}
	a.Request.PromptTokens, a.Request.CachedTokens, a.Request.Bytes, a.Request.Class, a.Request.Legs = 4000, 500, 16000, "batch", 1
	a.Request.Hints[0].HasPrefix, a.Request.Hints[0].PrefixKey = true, 1<<62
	e.Items = []cluster.Item{{Kind: cluster.ItemArrive, Attempt: 1, Number: 1e6, Body: a}}
	return e
}

func bench(b *testing.B, e *cluster.Envelope) {
	w, r := NewWriter(), NewReader()
	var buf []byte
	var got cluster.Envelope
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = w.Append(buf[:0], e); err != nil {
			b.Fatal(err)
		}
		if err := r.Read(buf, &got); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(buf)), "B/msg")
}

// BenchmarkSteps writes and reads eight steps of tickets.
func BenchmarkSteps(b *testing.B) { bench(b, steps()) }

// BenchmarkArrival writes and reads one ticket that arrives.
func BenchmarkArrival(b *testing.B) { bench(b, arrival()) }

// Steps are written and read without an allocation.
func TestStepsDoNotAllocate(t *testing.T) {
	e, w, r := steps(), NewWriter(), NewReader()
	var buf []byte
	var got cluster.Envelope
	if n := testing.AllocsPerRun(100, func() {
		buf, _ = w.Append(buf[:0], e)
		if err := r.Read(buf, &got); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
