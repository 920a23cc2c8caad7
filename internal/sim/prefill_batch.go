package sim

import (
	"context"
	"slices"
	"sync"
	"time"
)

// batcher is one rank's queue of prompts that are computed in batches of
// bounded tokens. Its loop is runBatches.
type batcher struct {
	wake chan struct{} // has room for one signal

	mu    sync.Mutex // guards the fields below
	queue []*batched // in order of arrival
}

// batched is a prompt in the queue.
type batched struct {
	left    int // guarded by batcher.mu
	started bool
	start   chan struct{} // closed when the computing of its first token begins
	done    chan struct{} // closed when its last token is computed
}

func newBatcher() *batcher { return &batcher{wake: make(chan struct{}, 1)} }

// join takes a sequence through the rank's batches.
func (w *Worker) join(ctx context.Context, b *batcher, s *sequence, tokens int) error {
	x := &batched{left: max(1, tokens), start: make(chan struct{}), done: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, x)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	leave := func() error {
		b.mu.Lock()
		if i := slices.Index(b.queue, x); i >= 0 {
			b.queue = slices.Delete(b.queue, i, i+1)
		}
		b.mu.Unlock()
		return context.Cause(ctx)
	}
	select {
	case <-x.start:
	case <-ctx.Done():
		return leave()
	}
	w.move(s, prefilling)
	select {
	case <-x.done:
		return w.thawed(ctx)
	case <-ctx.Done():
		return leave()
	}
}

// share is a prompt's part of a batch.
type share struct {
	of     *batched
	tokens int
}

// fill builds a batch: prompts in order, the last one cut to the token budget. The
// batch is empty if no prompt waits.
func (b *batcher) fill(budget int) (batch []share, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.queue {
		n := min(x.left, budget-tokens)
		if n == 0 {
			break
		}
		if !x.started {
			x.started = true
			close(x.start)
		}
		batch = append(batch, share{x, n})
		tokens += n
	}
	return batch, tokens
}

// settle removes the prompts from the queue that a computed batch has finished.
func (b *batcher) settle(batch []share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range batch {
		if s.of.left -= s.tokens; s.of.left == 0 {
			close(s.of.done)
			if i := slices.Index(b.queue, s.of); i >= 0 {
				b.queue = slices.Delete(b.queue, i, i+1)
			}
		}
	}
}

// runBatches computes batches until ctx ends.
func (w *Worker) runBatches(ctx context.Context, b *batcher, rank int) {
	for {
		batch, tokens := b.fill(w.opt.ChunkedPrefillSize)
		if len(batch) == 0 {
			select {
			case <-b.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		t := w.Timing()
		d := t.PrefillStep
		if t.PrefillRate > 0 {
			d += time.Duration(float64(tokens) / t.PrefillRate * float64(time.Second))
		}
		if w.work(ctx, d) != nil {
			return
		}
		w.note(func() {
			w.counts[rank].busy += d
			w.counts[rank].batches++
		})
		w.noteProgress()
		b.settle(batch)
	}
}
