//go:build !race

package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// cpu is the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pair is a keeper and another member, on a fleet that has room for all.
func pair(b *testing.B, ranks int) (keeper, other *process) {
	w := newWorld(b)
	w.lease, w.slots, w.ranks = 5*time.Second, 1<<20, ranks
	x, y := w.start("a", nil), w.start("b", nil)
	keeper = w.keeperOf(x, y)
	return keeper, others(keeper, x, y)[0]
}

// request takes a grant and gives it back in the steps of a request.
func (p *process) request(ctx context.Context) error {
	k := p.ticket()
	if err := p.gate.Acquire(ctx, k); err != nil {
		return err
	}
	k.StartDecode()
	k.EndPrefill()
	k.FirstToken()
	k.EndDecode()
	k.Close()
	return nil
}

// BenchmarkAdmission is the time from a request to its grant by a keeper in another member,
// one after the other.
func BenchmarkAdmission(b *testing.B) {
	_, other := pair(b, 8)
	var waits []time.Duration
	began := cpu()
	for b.Loop() {
		k := other.ticket()
		at := time.Now()
		if err := other.gate.Acquire(b.Context(), k); err != nil {
			b.Fatal(err)
		}
		waits = append(waits, time.Since(at))
		k.StartDecode()
		k.EndPrefill()
		k.FirstToken()
		k.EndDecode()
		k.Close()
	}
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64((cpu()-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
}

// BenchmarkRate is the processor time for a request, at a rate of requests that come in their
// own time: by a gate alone, and by a keeper in another member, both ends together. The
// difference is what the cluster costs.
func BenchmarkRate(b *testing.B) {
	for _, rate := range []int{5_000, 10_000, 20_000} {
		b.Run(fmt.Sprint(rate, "/alone"), func(b *testing.B) {
			w := newWorld(b)
			w.slots = 1 << 20
			clock := NewClock()
			p := &process{gate: admission.NewGate(w.gateOptions(), clock, nil)}
			defer p.gate.Close()
			p.gate.Apply(w.fleet()...)
			atRate(b, p, rate)
		})
		b.Run(fmt.Sprint(rate, "/keeper"), func(b *testing.B) {
			_, other := pair(b, 8)
			began := other.Status().Counters.Envelopes
			atRate(b, other, rate)
			b.ReportMetric(float64(other.Status().Counters.Envelopes-began)/float64(b.N), "batches/op")
		})
	}
}

func atRate(b *testing.B, p *process, rate int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var waits []time.Duration
	work := make(chan struct{}, 1<<16)
	for range 64 {
		wg.Go(func() {
			for range work {
				k := p.ticket()
				at := time.Now()
				if err := p.gate.Acquire(b.Context(), k); err != nil {
					b.Error(err)
					continue
				}
				d := time.Since(at)
				time.Sleep(time.Millisecond) // the prefill
				k.EndPrefill()
				k.StartDecode()
				k.FirstToken()
				time.Sleep(time.Millisecond)
				k.EndDecode()
				k.Close()
				mu.Lock()
				waits = append(waits, d)
				mu.Unlock()
			}
		})
	}
	began, start := cpu(), time.Now()
	b.ResetTimer()
	for i := range b.N {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64((cpu()-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "op/s")
}

// BenchmarkThroughput is how many admissions a second go through one keeper, with all the
// processors that there are for both ends.
func BenchmarkThroughput(b *testing.B) {
	for _, ranks := range []int{8, 4096} {
		b.Run(fmt.Sprint(ranks, "-ranks"), func(b *testing.B) {
			_, other := pair(b, ranks)
			b.SetParallelism(256)
			began := cpu()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := other.request(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((cpu()-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
			var s = other.Status()
			b.ReportMetric(float64(s.Counters.Envelopes)/float64(b.N), "batches/op")
		})
	}
}

// BenchmarkPoolLoad is what a request costs that asks for the load of a pool, away from the
// keeper: the same in a fleet of any size.
func BenchmarkPoolLoad(b *testing.B) {
	for _, ranks := range []int{8, 4096} {
		b.Run(fmt.Sprint(ranks, "-ranks"), func(b *testing.B) {
			_, other := pair(b, ranks)
			for b.Loop() {
				other.PoolLoad("m", admission.RolePrefill)
			}
		})
	}
}
