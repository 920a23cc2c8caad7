package telemetry

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxPending is how many bytes of lines may wait to be written.
const DefaultMaxPending = 1 << 20

// asyncWriter takes whole lines and writes them from a goroutine of its own. A
// line that does not fit any more is dropped.
type asyncWriter struct {
	// immutable
	out io.Writer
	max int
	// note is called by the writing goroutine when lines are taken again after
	// some were dropped, with their number.
	note  func(dropped uint64)
	wake  chan struct{} // of one: something is pending, or closing
	ended chan struct{}

	dropped atomic.Uint64

	mu sync.Mutex
	// guarded by mu
	pending []byte
	writing int // bytes that the goroutine has taken and not yet written
	spare   []byte
	closing bool
}

func newAsyncWriter(out io.Writer, maxPending int, note func(uint64)) *asyncWriter {
	if maxPending <= 0 {
		maxPending = DefaultMaxPending
	}
	w := &asyncWriter{out: out, max: maxPending, note: note, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write takes a line. It never waits and never fails: a log that cannot be
// written must not become the request's problem.
func (w *asyncWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	fits := !w.closing && len(w.pending)+w.writing+len(line) <= w.max
	if fits {
		w.pending = append(w.pending, line...)
	}
	w.mu.Unlock()
	if !fits {
		w.dropped.Add(1)
		return len(line), nil
	}
	w.signal()
	return len(line), nil
}

func (w *asyncWriter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *asyncWriter) run() {
	defer close(w.ended)
	var told uint64
	for range w.wake {
		for {
			batch, closing := w.take()
			if len(batch) == 0 {
				if closing {
					return
				}
				break
			}
			_, _ = w.out.Write(batch) // there is nobody left to tell
			w.written(batch)
			if n := w.dropped.Load(); n > told {
				w.note(n - told)
				told = n
			}
		}
	}
}

// keepSpare bounds the buffer that is kept for the next batch.
const keepSpare = 64 << 10

func (w *asyncWriter) take() (batch []byte, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch = w.pending
	w.pending, w.spare = w.spare[:0], nil
	w.writing = len(batch)
	return batch, w.closing
}

func (w *asyncWriter) written(batch []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = 0
	if cap(batch) <= keepSpare {
		w.spare = batch
	}
}

// close writes what is pending, for at most so long, and takes no more. If the
// time does not suffice the goroutine stays where it hangs.
func (w *asyncWriter) close(limit time.Duration) bool {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.signal()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-w.ended:
		return true
	case <-t.C:
		return false
	}
}
