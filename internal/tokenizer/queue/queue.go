package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/heap"
)

// ErrFull is what Do returns, wrapped, when the text would be over the bound on memory.
var ErrFull = errors.New("the tokenizing queue is full")

const (
	// overhead is what a call counts as, beside its text.
	overhead = 512
	// patience is how much longer a byte of text waits for shorter texts of its key: a
	// second for a megabyte, ten times what it takes to tokenize it.
	patience = time.Microsecond
	// workBytes is what tokenizing takes beside the text, for each byte of it at worst, which is
	// that of one long word (see tokenizer.Encode).
	workBytes = 60
	// share is how many times what is free a key may hold.
	share = 4
	// maxIdle bounds the keys without work whose past is remembered.
	maxIdle = 1024
)

// Queue runs work on texts, not too much of it at one time. It is safe for concurrent use.
type Queue struct {
	workers  int
	maxBytes int64
	perByte  int64 // workBytes
	waited   prometheus.Histogram

	mu      sync.Mutex
	running int
	waiting int
	bytes   int64 // of what waits and runs
	work    int64 // bytes that may be taken by what runs, beside its texts
	refused uint64
	left    uint64
	keys    map[string]*flow
	ready   heap.Heap[*flow]    // those with waiters
	idle    heap.Heap[idleFlow] // those with neither waiters nor running work
	active  int                 // the others
	// now is the queue's own time, at which a key that comes anew begins: the bytes that each
	// active key would have had by now if all had the same. It goes on when work ends.
	now int64
	seq uint64
}

// New makes a queue that runs at most workers calls at one time, or, if that is 0, as many
// as there are cores but one, at least 1; and holds at most maxBytes of text, if that is not
// 0; what the work may take beside, by the length of its texts, is at most as much again.
// maxBytes should be more than the longest text; one that is longer is taken when the
// queue is empty.
func New(workers int, maxBytes int64) *Queue {
	if workers <= 0 {
		workers = max(1, runtime.GOMAXPROCS(0)-1)
	}
	return &Queue{
		workers:  workers,
		maxBytes: max(maxBytes, 0),
		perByte:  workBytes,
		keys:     map[string]*flow{},
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_tokenizer_queue_wait_seconds",
			Help:    "Seconds that a text waited to be tokenized, of those that were.",
			Buckets: []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}),
	}
}

// Do runs work when its turn comes, on the caller's goroutine, and returns its error. key is
// whom the text is counted for, bytes its length. The error is ErrFull, at once, when there
// is no memory for the text, and the cause of ctx's end when that comes before the turn.
// work must end soon after its ctx does.
func (q *Queue) Do(ctx context.Context, key string, bytes int, work func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	size := int64(max(bytes, 0)) + overhead
	f, w, err := q.enter(key, size)
	if err != nil {
		return err
	}
	if w == nil {
		q.waited.Observe(0)
	} else {
		since := time.Now()
		if !q.wait(ctx, w) {
			return context.Cause(ctx)
		}
		q.waited.Observe(time.Since(since).Seconds())
	}
	defer q.exit(f, size) // also when work panics
	return work(ctx)
}

// wait waits for the turn of w. false: ctx ended before, and w is out of the queue.
func (q *Queue) wait(ctx context.Context, w *waiter) bool {
	select {
	case <-w.granted:
		if ctx.Err() == nil {
			return true
		}
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left++
	// One that is in its heap no more was granted its turn since, and gives it back.
	if w.at < 0 {
		q.end(w.flow, w.size)
		return false
	}
	w.flow.waiting.Remove(w.at)
	q.waiting--
	q.settle(w.flow)
	q.release(w.flow, w.size)
	q.grant() // it may have been the first, for which there was no memory
	return false
}

// enter takes a text in. Without a waiter it may run at once.
func (q *Queue) enter(key string, size int64) (*flow, *waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.keys[key]
	if q.maxBytes > 0 && q.bytes > 0 {
		free := q.maxBytes - q.bytes
		if size > free || f != nil && f.bytes > 0 && f.bytes+size > share*free {
			q.refused++
			return nil, nil, fmt.Errorf("%w: %d bytes more than the %d that wait or run, of which %d are of the same key; at most %d", ErrFull, size, q.bytes, q.held(f), q.maxBytes)
		}
	}
	if f == nil {
		f = &flow{key: key, at: -1, idleAt: -1}
		q.keys[key] = f
	}
	if f.idleAt >= 0 {
		q.idle.Remove(f.idleAt)
	}
	if f.bytes == 0 {
		q.active++
	}
	if f.waiting.Len() == 0 {
		f.start = max(f.start, q.now)
	}
	q.bytes += size
	f.bytes += size
	if q.ready.Len() == 0 && q.room(size) {
		q.begin(f, size)
		return f, nil, nil
	}
	q.seq++
	w := &waiter{flow: f, size: size, due: time.Now().Add(time.Duration(size) * patience), seq: q.seq, granted: make(chan struct{})}
	f.waiting.Push(w)
	q.waiting++
	q.settle(f)
	q.grant() // it may come before a longer one, for which there is no memory
	return f, w, nil
}

func (q *Queue) held(f *flow) int64 {
	if f == nil {
		return 0
	}
	return f.bytes
}

// exit gives back what a text has had.
func (q *Queue) exit(f *flow, size int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end(f, size)
}

func (q *Queue) end(f *flow, size int64) {
	q.running--
	q.work -= size * q.perByte
	q.now += size / int64(q.active)
	q.grant()
	q.release(f, size)
}

// room reports whether a text may run: there is a worker for it, and memory for the work. One
// text may always run.
func (q *Queue) room(size int64) bool {
	return q.running < q.workers && (q.maxBytes == 0 || q.running == 0 || q.work+size*q.perByte <= q.maxBytes)
}

// grant starts what is next as long as there is room for it. If there is none, those behind it
// wait too, for else a long text might wait for ever.
func (q *Queue) grant() {
	for q.ready.Len() > 0 && q.room(q.ready.First().waiting.First().size) {
		f := q.ready.First()
		w := f.waiting.Pop()
		q.waiting--
		q.begin(f, w.size)
		q.settle(f)
		close(w.granted)
	}
}

// begin counts a text of f as running.
func (q *Queue) begin(f *flow, size int64) {
	q.running++
	q.work += size * q.perByte
	f.start += size
}

// settle puts f at its place among those with waiters.
func (q *Queue) settle(f *flow) {
	switch {
	case f.waiting.Len() == 0 && f.at >= 0:
		q.ready.Remove(f.at)
	case f.waiting.Len() > 0 && f.at >= 0:
		q.ready.Fix(f.at)
	case f.waiting.Len() > 0:
		q.ready.Push(f)
	}
}

// release gives back the memory of a text of f. What a key without work has had is remembered
// until others have had as much, so that one that sends text after text has no advantage
// over one that sends them together.
func (q *Queue) release(f *flow, size int64) {
	q.bytes -= size
	if f.bytes -= size; f.bytes > 0 {
		return
	}
	q.active--
	q.idle.Push(idleFlow{f})
	q.forget()
}

// forget forgets keys without work that have had no more than others, and all of them when
// nobody has any work.
func (q *Queue) forget() {
	for q.idle.Len() > 0 && (q.idle.First().start <= q.now || q.idle.Len() > maxIdle || q.active == 0) {
		delete(q.keys, q.idle.Pop().key)
	}
}

// flow is the work of a key.
type flow struct {
	key     string
	waiting heap.Heap[*waiter]
	bytes   int64 // of what waits and runs
	start   int64 // when what is next starts, in the queue's own time
	at      int   // place in Queue.ready; -1: none
	idleAt  int   // place in Queue.idle; -1: none
}

// end is when what is next would have ended, in the queue's own time.
func (f *flow) end() int64 { return f.start + f.waiting.First().size }

func (f *flow) Before(o *flow) bool {
	if a, b := f.end(), o.end(); a != b {
		return a < b
	}
	return f.waiting.First().seq < o.waiting.First().seq
}
func (f *flow) SetIndex(i int) { f.at = i }

type idleFlow struct{ *flow }

func (f idleFlow) Before(o idleFlow) bool { return f.start < o.start }
func (f idleFlow) SetIndex(i int)         { f.idleAt = i }

// waiter is a text that waits.
type waiter struct {
	flow    *flow
	size    int64
	due     time.Time
	seq     uint64
	at      int // place in flow.waiting; -1: its turn came
	granted chan struct{}
}

func (w *waiter) Before(o *waiter) bool {
	if c := w.due.Compare(o.due); c != 0 {
		return c < 0
	}
	return w.seq < o.seq
}
func (w *waiter) SetIndex(i int) { w.at = i }
