package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// work is a text that takes a microsecond for 10 bytes, as tokenizing does.
type work struct {
	name, key string
	bytes     int
}

// bed runs works in a queue, and tells in which order they were started.
type bed struct {
	*Queue
	wg      sync.WaitGroup
	mu      sync.Mutex
	started []string
}

func newBed(workers int, maxBytes int64) *bed { return &bed{Queue: New(workers, maxBytes)} }

// add puts a work into the queue; it is there when add returns.
func (b *bed) add(t *testing.T, w work) {
	b.wg.Go(func() {
		err := b.Do(t.Context(), w.key, w.bytes, func(ctx context.Context) error {
			b.mu.Lock()
			b.started = append(b.started, w.name)
			b.mu.Unlock()
			select {
			case <-time.After(time.Duration(w.bytes) * time.Microsecond / 10):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	})
	synctest.Wait()
}

func (b *bed) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.started, name)
}

// order waits for all works, and fails unless they were started in this order.
func (b *bed) order(t *testing.T, want ...string) {
	t.Helper()
	b.wg.Wait()
	if !slices.Equal(b.started, want) {
		t.Errorf("started %v; want %v", b.started, want)
	}
	empty(t, b.Queue)
}

// empty fails unless nothing is left in the queue.
func empty(t interface{ Errorf(string, ...any) }, q *Queue) {
	s := q.Stats()
	if s.Running != 0 || s.Waiting != 0 || s.Bytes != 0 || s.Keys != 0 || q.ready.Len() != 0 || q.idle.Len() != 0 {
		t.Errorf("an empty queue has %+v", s)
	}
}

const kb, mb = 1000, 1000_000

func TestShortBeforeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		b.add(t, work{"first", "k", mb})
		b.add(t, work{"long", "k", mb})
		b.add(t, work{"short", "k", kb})
		b.add(t, work{"short too", "k", kb})
		b.order(t, "first", "short", "short too", "long")
	})
}

// A long text waits for short ones that come soon after it, not for all that ever come.
func TestLongIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		b.add(t, work{"first", "k", mb})
		b.add(t, work{"long", "k", mb})
		since := time.Now()
		for i := 0; !b.has("long"); i++ { // as many short ones as are done meanwhile
			b.add(t, work{fmt.Sprint("short", i), "k", 100 * kb})
			time.Sleep(10 * time.Millisecond)
		}
		if waited := time.Since(since); waited < 800*time.Millisecond || waited > 1200*time.Millisecond {
			t.Errorf("the long text waited %v", waited)
		}
		b.wg.Wait()
		empty(t, b.Queue)
	})
}

func TestKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		b.add(t, work{"a0", "a", kb})
		for _, name := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
			b.add(t, work{name, name[:1], kb})
		}
		b.order(t, "a0", "b1", "c1", "a1", "b2", "a2", "a3")
	})
}

// A key with long texts does not get more than one with short ones because its texts are
// long; and one that comes anew waits for no more than what runs.
func TestFloodOfLongTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(2, 0)
		for i := range 50 {
			b.add(t, work{fmt.Sprint("long", i), fmt.Sprint("flood", i%5), mb})
		}
		for range 20 {
			since := time.Now()
			if err := b.Do(t.Context(), "other", 10*kb, func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(since); waited > 100*time.Millisecond {
				t.Errorf("a short text waited %v", waited)
			}
			time.Sleep(13 * time.Millisecond)
		}
		b.wg.Wait()
		empty(t, b.Queue)
	})
}

// What a key has had counts, also when it sends text after text and has none waiting.
func TestOneByOneIsNoAdvantage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		had := map[string]int{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		send := func(key string, at int, bytes int) {
			for range at {
				b.wg.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, key, bytes, func(context.Context) error {
							time.Sleep(time.Duration(bytes) * time.Microsecond / 10)
							had[key] += bytes // one worker
							return nil
						})
					}
				})
			}
		}
		send("one by one", 1, 500*kb)
		send("many at once", 50, 50*kb)
		b.wg.Wait()
		if r := float64(had["one by one"]) / float64(had["many at once"]); r < 0.8 || r > 1.25 {
			t.Errorf("bytes tokenized: %v", had)
		}
		empty(t, b.Queue)
	})
}

func TestWorkersAreTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(3, 0)
		for i := range 10 {
			b.add(t, work{fmt.Sprint(i), "k", mb})
		}
		if s := b.Stats(); s.Running != 3 || s.Waiting != 7 || s.Bytes != 10*(mb+512) {
			t.Errorf("%+v", s)
		}
		b.wg.Wait()
		if s := New(0, 0).Stats(); s.Workers < 1 {
			t.Errorf("%+v", s)
		}
	})
}

var errLeft = errors.New("the client left")

// Whoever only waits is gone when its context ends, and nothing of it is left.
func TestEndWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		b.add(t, work{"first", "k", mb})
		ctx, cancel := context.WithCancelCause(t.Context())
		b.wg.Go(func() {
			since := time.Now()
			err := b.Do(ctx, "k", kb, func(context.Context) error { t.Error("it was run"); return nil })
			if err != errLeft || time.Since(since) != 30*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(since))
			}
		})
		time.Sleep(30 * time.Millisecond)
		cancel(errLeft)
		synctest.Wait()
		if s := b.Stats(); s.Waiting != 0 || s.Bytes != mb+512 || s.Left != 1 {
			t.Errorf("%+v", s)
		}
		if err := b.Do(ctx, "k", kb, func(context.Context) error { t.Error("it was run"); return nil }); err != errLeft {
			t.Error(err)
		}
		b.order(t, "first")
	})
}

// The turn and the end of the context come at one time: the turn goes to the next one.
func TestEndAtTheTurn(t *testing.T) {
	for range 20 { // select takes either of two
		q := New(1, 0)
		running, _, _ := q.enter("k", 1)
		f, w, _ := q.enter("k", 1)
		ctx, cancel := context.WithCancel(t.Context())
		q.exit(running, 1)
		cancel()
		next, last, _ := q.enter("k", 1)
		if w.at >= 0 || last.at < 0 {
			t.Fatalf("places %d and %d", w.at, last.at)
		}
		if q.wait(ctx, w) {
			t.Fatal("it would be run")
		}
		if !q.wait(t.Context(), last) {
			t.Fatal("the turn was not given back")
		}
		q.exit(next, 1)
		if f != next {
			t.Error("another flow of the same key")
		}
		empty(t, q)
	}
}

// A key that comes anew has no claim to what others had before.
func TestNewKeyDoesNotCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 0)
		for i := range 6 {
			b.add(t, work{fmt.Sprint("a", i), "a", 100 * kb})
		}
		time.Sleep(35 * time.Millisecond) // a3 runs
		for i := range 3 {
			b.add(t, work{fmt.Sprint("b", i), "b", 100 * kb})
		}
		b.order(t, "a0", "a1", "a2", "a3", "b0", "a4", "b1", "a5", "b2")
	})
}

func TestErrorsAndPanicsOfWork(t *testing.T) {
	q := New(1, 0)
	if err := q.Do(t.Context(), "k", 1, func(context.Context) error { return errLeft }); err != errLeft {
		t.Error(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		_ = q.Do(t.Context(), "k", 1, func(context.Context) error { panic("x") })
	}()
	empty(t, q)
}

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := func(b *bed, key string, bytes int, want string) {
			t.Helper()
			err := b.Do(t.Context(), key, bytes, func(context.Context) error { t.Error("it was run"); return nil })
			if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
		// One key alone: four fifths.
		b := newBed(1, 10*mb)
		for i := range 8 {
			b.add(t, work{fmt.Sprint("a", i), "a", mb - 512})
		}
		refused(b, "a", mb, "1000512 bytes more than the 8000000 that wait or run, of which 8000000 are of the same key; at most 10000000")
		// Others have room, also a first text that is as long as what is free.
		b.add(t, work{"b", "b", mb - 512})
		b.add(t, work{"c", "c", mb - 512})
		refused(b, "d", 1, "")
		if s := b.Stats(); s.Refused != 2 || s.Bytes != 10*mb || s.Limit != 10*mb {
			t.Errorf("%+v", s)
		}
		b.wg.Wait()
		// What is longer than the bound is taken when nothing else is there.
		b.started = nil
		b.add(t, work{"long", "a", 20 * mb})
		refused(b, "b", 1, "")
		b.order(t, "long")
	})
}

// Each of these texts may take 60 MB: with 128 MB two of them run at one time, though there are
// four workers, and a short one that comes when the third waits does not wait with it.
func TestMemoryOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(4, 128*mb)
		end := make(chan struct{})
		run := func(ctx context.Context, bytes int, end chan struct{}) {
			go q.Do(ctx, fmt.Sprint(bytes), bytes, func(context.Context) error { <-end; return nil })
			synctest.Wait()
		}
		want := func(running, waiting int) {
			t.Helper()
			if s := q.Stats(); s.Running != running || s.Waiting != waiting {
				t.Errorf("%d run and %d wait, want %d and %d", s.Running, s.Waiting, running, waiting)
			}
		}
		leave, cancel := context.WithCancel(t.Context())
		run(t.Context(), mb, end)
		run(t.Context(), mb+1, end)
		run(leave, mb+2, end)
		want(2, 1)
		run(t.Context(), kb, end)
		want(3, 1)
		run(t.Context(), 2*mb, end)
		want(3, 2)
		run(t.Context(), 2*kb, end)
		want(4, 2)
		cancel()
		synctest.Wait()
		want(4, 1)
		close(end)
		synctest.Wait()
		empty(t, q)
		// One that is longer than the bound runs alone.
		end = make(chan struct{})
		run(t.Context(), 5*mb, end)
		run(t.Context(), kb, end)
		want(1, 1)
		close(end)
		synctest.Wait()
		empty(t, q)
	})
}

// The past of keys that have no work is bounded.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(2, 0)
		b.add(t, work{"long", "k", 1000 * mb})
		for i := range 5000 {
			if err := b.Do(t.Context(), fmt.Sprint(i), mb, func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if s := b.Stats(); s.Keys > maxIdle+1 {
			t.Errorf("%d keys", s.Keys)
		}
		b.order(t, "long")
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(1, 10*mb)
		reg := prometheus.NewPedanticRegistry()
		b.Register(reg)
		b.add(t, work{"a", "k", mb})
		b.add(t, work{"b", "k", kb})
		err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sluice_tokenizer_queue_waiting Texts that wait to be tokenized.
# TYPE sluice_tokenizer_queue_waiting gauge
sluice_tokenizer_queue_waiting 1
# HELP sluice_tokenizer_queue_running Texts that are being tokenized.
# TYPE sluice_tokenizer_queue_running gauge
sluice_tokenizer_queue_running 1
`), "sluice_tokenizer_queue_waiting", "sluice_tokenizer_queue_running")
		if err != nil {
			t.Error(err)
		}
		b.wg.Wait()
		n, err := testutil.GatherAndCount(reg)
		if err != nil || n != 8 {
			t.Errorf("%d metrics, %v", n, err)
		}
	})
}

// Nothing is allocated for a text that need not wait but what remembers its key.
func BenchmarkDo(b *testing.B) {
	q := New(2, 1<<30)
	b.ReportAllocs()
	for b.Loop() {
		_ = q.Do(b.Context(), "key", 1000, func(context.Context) error { return nil })
	}
}
