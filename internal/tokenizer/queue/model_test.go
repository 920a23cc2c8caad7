package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Random texts of random keys come, run, end, fail and leave. At each moment as many run as
// can, what is counted is what is there, and the bounds hold; nobody is lost, and in the end
// the queue is empty.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, model) // not its Deadline, which a bubble does not have
	})
}

type modelled struct {
	key            string
	size           int64
	cancel         context.CancelFunc
	end            chan struct{}
	running, ended bool
}

func model(rt *rapid.T) {
	workers := rapid.IntRange(1, 3).Draw(rt, "workers")
	limit := rapid.SampledFrom([]int64{0, 5000, 50_000}).Draw(rt, "limit")
	q := New(workers, limit)
	q.perByte = rapid.SampledFrom([]int64{0, 1, 10}).Draw(rt, "per byte")
	var all []*modelled
	defer func() { // also when it failed, which is tried again with less
		for _, m := range all {
			m.cancel()
		}
		synctest.Wait()
	}()
	check := func() {
		synctest.Wait()
		running, waiting, bytes, work := 0, 0, int64(0), int64(0)
		waits := map[string]bool{}
		for _, m := range all {
			switch {
			case m.ended:
				continue
			case m.running:
				running++
				work += m.size * q.perByte
			default:
				waiting++
				waits[m.key] = true
			}
			bytes += m.size
		}
		s := q.Stats()
		if q.work != work || s.Running != running || s.Waiting != waiting || s.Bytes != bytes || running > workers {
			rt.Fatalf("%+v; want %d running, %d waiting, %d bytes", s, running, waiting, bytes)
		}
		if limit > 0 && q.work > limit && running > 1 {
			rt.Fatalf("%d run, and take %d bytes", running, q.work)
		}
		blocked := waiting > 0 && limit > 0 && running > 0 && q.work+q.ready.First().waiting.First().size*q.perByte > limit
		if waiting > 0 && running < workers && !blocked {
			rt.Fatalf("%d wait, and %d of %d workers are in use", waiting, running, workers)
		}
		if limit > 0 && bytes > limit && running+waiting > 1 {
			rt.Fatalf("%d bytes", bytes)
		}
		if q.ready.Len() != len(waits) {
			rt.Fatalf("%d keys with waiters; want %d", q.ready.Len(), len(waits))
		}
	}
	alive := func(want func(*modelled) bool) []*modelled {
		var some []*modelled
		for _, m := range all {
			if !m.ended && want(m) {
				some = append(some, m)
			}
		}
		return some
	}
	rt.Repeat(map[string]func(*rapid.T){
		"come": func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			bytes := rapid.IntRange(0, 3000).Draw(rt, "bytes")
			m := &modelled{
				key: fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "key")), size: int64(bytes) + overhead,
				cancel: cancel, end: make(chan struct{}),
			}
			held, total := int64(0), int64(0)
			for _, o := range alive(func(*modelled) bool { return true }) {
				total += o.size
				if o.key == m.key {
					held += o.size
				}
			}
			full := limit > 0 && total > 0 && (total+m.size > limit || held > 0 && held+m.size > share*(limit-total))
			all = append(all, m)
			refused := false
			go func() {
				err := q.Do(ctx, m.key, bytes, func(ctx context.Context) error {
					m.running = true
					select {
					case <-m.end:
					case <-ctx.Done():
					}
					return nil
				})
				m.ended, refused = true, err != nil && ctx.Err() == nil
			}()
			synctest.Wait()
			if refused != full {
				rt.Fatalf("refused %v; want %v", refused, full)
			}
		},
		"end": func(rt *rapid.T) {
			if some := alive(func(m *modelled) bool { return m.running }); len(some) > 0 {
				close(rapid.SampledFrom(some).Draw(rt, "which").end)
			}
		},
		"leave": func(rt *rapid.T) {
			if some := alive(func(*modelled) bool { return true }); len(some) > 0 {
				rapid.SampledFrom(some).Draw(rt, "which").cancel()
			}
		},
		"all at once": func(rt *rapid.T) {
			var steps []func()
			for _, m := range alive(func(*modelled) bool { return true }) {
				switch how := rapid.IntRange(0, 3).Draw(rt, "how"); {
				case how == 0:
					steps = append(steps, m.cancel)
				case how == 1 && m.running:
					steps = append(steps, func() { close(m.end) })
				}
			}
			for _, step := range steps {
				step()
			}
		},
		"time": func(rt *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 5000).Draw(rt, "us")) * time.Microsecond)
		},
		"": func(*rapid.T) { check() },
	})
	for len(alive(func(*modelled) bool { return true })) > 0 {
		for _, m := range alive(func(m *modelled) bool { return m.running }) {
			close(m.end)
		}
		check()
	}
	empty(rt, q)
}
