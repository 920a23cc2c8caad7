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
	work    batchedWork
	tokens  int // what size returned
	started bool
	start   chan struct{} // closed when the computing of its first token begins
	done    chan struct{} // closed when its last token is computed
}

// batchedWork is asked and told of a prompt in the batches. Its methods are called
// once each, in this order, planned and size with batcher.mu held.
type batchedWork interface {
	size() int // tokens to compute, asked when the first of them are scheduled
	planned()  // its last tokens are scheduled
	computed() // they are computed
}

// tokens is work of which nothing but the size is known.
type tokens int

func (n tokens) size() int { return int(n) }
func (tokens) planned()    {}
func (tokens) computed()   {}

func newBatcher() *batcher { return &batcher{wake: make(chan struct{}, 1)} }

// join takes a sequence through the rank's batches, and returns how many tokens were
// computed.
func (w *Worker) join(ctx context.Context, b *batcher, s *sequence, work batchedWork) (int, error) {
	x := &batched{work: work, start: make(chan struct{}), done: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, x)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	leave := func() (int, error) {
		b.mu.Lock()
		if i := slices.Index(b.queue, x); i >= 0 {
			b.queue = slices.Delete(b.queue, i, i+1)
		}
		b.mu.Unlock()
		return 0, context.Cause(ctx)
	}
	select {
	case <-x.start:
	case <-ctx.Done():
		return leave()
	}
	w.move(s, prefilling)
	select {
	case <-x.done:
		return x.tokens, w.thawed(ctx)
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
		if tokens == budget {
			break
		}
		if !x.started {
			x.started = true
			x.tokens = x.work.size()
			x.left = max(1, x.tokens)
			close(x.start)
		}
		n := min(x.left, budget-tokens)
		if n == x.left {
			x.work.planned()
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
			s.of.work.computed()
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
