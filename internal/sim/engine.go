package sim

import (
	"context"
	"errors"
	"time"
)

// sequence is one prompt or sample in the engine.
type sequence struct {
	// Immutable while it runs.
	index       int // of the choice
	prompt      int // tokens
	out         int // tokens to produce
	finish      string
	room        int64
	hasRoom     bool
	host        string
	port        int
	hasPort     bool
	rank        int
	prefillRank int        // decode: the rank that has the KV, -1: the one that the room implies
	v           *vsequence // of vLLM only

	// Of the prefix cache; content is nil without one.
	content *prompt
	scope   *cacheScope
	text    func(b []byte, k int) []byte // appends output token k
	token   func(k int) uint32           // instead of text, output token k; neither: the output is not cached

	// Owned by the goroutine that runs it.
	phase    phase
	produced int
	cached   int // prompt tokens that were not computed, as the answer tells
	created  int // prompt tokens that were computed and are cached now
	growth   *growth
}

// run takes a sequence through the engine and calls emit after each token. Its
// error is a *wireError, errBroken, or the cause of ctx.
func (w *Worker) run(ctx context.Context, l *lifetime, s *sequence, emit func(*sequence) error) error {
	defer w.move(s, none)
	defer w.freeBlocks(l, s)
	if w.opt.Backend == VLLM {
		return w.runVLLM(ctx, l, s, emit)
	}
	switch w.role {
	case Prefill:
		return w.runPrefill(ctx, l, s, emit)
	case Decode:
		return w.runDecode(ctx, l, s, emit)
	}
	return w.runRegular(ctx, l, s, emit)
}

// endLeg tells the peer of a leg that failed.
func (w *Worker) endLeg(m *meeting, err *error) {
	switch {
	case *err == nil:
	case errors.Is(*err, errKilled):
		w.fleet.broker.lose(m)
	default:
		// The peer learns of an abort at once, through the transfer engine.
		w.fleet.broker.fail(m, abortf(500, "KV transfer failed for room %d: %s aborted", m.room, w.id))
	}
}

func (w *Worker) runPrefill(parent context.Context, l *lifetime, s *sequence, emit func(*sequence) error) (err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	w.move(s, bootstrap)
	m, err := w.fleet.broker.offerPrefill(w, s, cancel)
	if err != nil {
		return err
	}
	defer w.endLeg(m, &err)
	if err = w.await(ctx, m, m.met); err != nil {
		return err
	}
	if err = w.compute(ctx, l, s, false); err != nil {
		return err
	}
	defer w.giveBack(l, s.rank, w.pages(s.prompt))
	w.move(s, transferring)
	if err = w.work(ctx, w.Timing().Transfer); err != nil {
		return err
	}
	if !w.fleet.broker.transferred(m, s.cached) {
		if err = w.await(ctx, m, nil); err != nil {
			return err
		}
	}
	s.produced = 1
	w.noteProgress()
	w.count(0, 1)
	return emit(s)
}

func (w *Worker) runDecode(parent context.Context, l *lifetime, s *sequence, emit func(*sequence) error) (err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	w.move(s, prealloc)
	need := w.pages(s.prompt + s.out)
	if err := l.memory[s.rank].acquire(ctx, need); err != nil {
		return err
	}
	w.hold(s.rank, need)
	defer w.giveBack(l, s.rank, need)
	w.move(s, receiving)
	m, err := w.fleet.broker.offerDecode(w, s, cancel)
	if err != nil {
		return err
	}
	if err = w.await(ctx, m, m.done); err != nil {
		w.endLeg(m, &err)
		return err
	}
	s.cached = m.cached // the prefill's number comes with the KV
	cachedPrompt{w, l, s, s.prompt}.received()
	// From here on a failure of the prefill does not affect this leg.
	return w.decode(parent, s, emit)
}

func (w *Worker) runRegular(ctx context.Context, l *lifetime, s *sequence, emit func(*sequence) error) error {
	w.move(s, queued)
	need := w.pages(s.prompt + s.out)
	if err := l.memory[s.rank].acquire(ctx, need); err != nil {
		return err
	}
	w.hold(s.rank, need)
	defer w.giveBack(l, s.rank, need)
	if err := w.compute(ctx, l, s, true); err != nil {
		return err
	}
	return w.decode(ctx, s, emit)
}

// await waits for ready (nil: never) while the peer lives.
func (w *Worker) await(ctx context.Context, m *meeting, ready <-chan struct{}) error {
	select { // the common case needs no timer
	case <-ready:
		return nil
	default:
	}
	t := time.NewTimer(w.opt.BootstrapTimeout)
	defer t.Stop()
	select {
	case <-ready:
		return w.thawed(ctx)
	case <-m.vanished:
		if err := w.sleep(ctx, w.opt.PeerLossAfter); err != nil {
			return err
		}
		return abortf(500, "KV transfer failed for room %d: the peer is gone", m.room)
	case <-t.C:
		w.fleet.broker.violate(w, NoMeeting, m.room, "no peer within %s", w.opt.BootstrapTimeout)
		return abortf(500, "KV transfer failed for room %d: no peer within %s", m.room, w.opt.BootstrapTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// compute runs the prompt: it waits for the GPU, and for memory unless held tells
// that it is held already. The memory is held afterwards if there was no error.
func (w *Worker) compute(ctx context.Context, l *lifetime, s *sequence, held bool) (err error) {
	w.move(s, queued)
	if !held {
		need := w.pages(s.prompt)
		if err := l.memory[s.rank].acquire(ctx, need); err != nil {
			return err
		}
		w.hold(s.rank, need)
		defer func() {
			if err != nil {
				w.giveBack(l, s.rank, need)
			}
		}()
	}
	return w.computeTokens(ctx, l, s, 0)
}

// computeTokens computes a prompt whose memory is held, but for the tokens that came
// from elsewhere and those that the prefix cache has.
func (w *Worker) computeTokens(ctx context.Context, l *lifetime, s *sequence, external int) error {
	p := cachedPrompt{w, l, s, external}
	if l.batches != nil {
		tokens, err := w.join(ctx, l.batches[s.rank], s, p)
		if err != nil {
			return err
		}
		w.noteProgress()
		w.note(func() { w.computed(s.rank, tokens) })
		return nil
	}
	if err := l.compute[s.rank].acquire(ctx, 0); err != nil {
		return err
	}
	defer l.compute[s.rank].release(0)
	w.move(s, prefilling)
	tokens := p.size()
	if err := w.computeChunks(ctx, s.rank, tokens, w.Timing().prefill(tokens)); err != nil {
		return err
	}
	p.planned()
	p.computed()
	return nil
}

// computeChunks computes a prompt in d. A prompt longer than a chunk is computed in
// several, after each of which the scheduler gives a sign of life.
func (w *Worker) computeChunks(ctx context.Context, rank, tokens int, d time.Duration) error {
	left := tokens
	spend := w.sleep
	if w.Timing().PrefillTime > 0 {
		spend = w.work // whatever the prompt, it stands for one that takes that long
	}
	w.note(func() { w.counts[rank].uncomputed += tokens })
	defer func() { w.note(func() { w.counts[rank].uncomputed -= left }) }()
	for {
		chunk := left
		if size := w.opt.ChunkedPrefillSize; size > 0 {
			chunk = min(chunk, size)
		}
		part := d
		if chunk < tokens {
			part = time.Duration(float64(d) * float64(chunk) / float64(tokens))
		}
		if err := spend(ctx, part); err != nil {
			return err
		}
		w.noteProgress()
		last := chunk == left
		w.note(func() {
			c := &w.counts[rank]
			c.busy += part
			c.uncomputed -= chunk
			if w.opt.Backend == SGLang {
				w.computed(rank, chunk)
			} else if last {
				w.computed(rank, tokens) // vLLM counts a prompt when it is done
			}
		})
		if left -= chunk; last {
			return nil
		}
	}
}

// computed counts prompt tokens. The caller must hold mu.
func (w *Worker) computed(rank, tokens int) {
	w.counts[rank].done += tokens
	w.stats.PromptTokens += int64(tokens)
}

// pages rounds tokens up to whole pages.
func (w *Worker) pages(tokens int) int {
	p := w.opt.PageSize
	return (tokens + p - 1) / p * p
}

// giveBack releases a slot and memory.
func (w *Worker) giveBack(l *lifetime, rank, tokens int) {
	w.hold(rank, -tokens)
	l.memory[rank].release(tokens)
}

// decode produces the tokens, the first after FirstToken, each further one
// after a step.
func (w *Worker) decode(ctx context.Context, s *sequence, emit func(*sequence) error) error {
	w.move(s, decoding)
	for s.produced < s.out {
		t := w.timing.Load()
		d := t.FirstToken
		if s.produced > 0 {
			d = t.DecodeStep
			if t.DecodePerRequest > 0 || t.DecodePerKTokens > 0 {
				d = t.step(w.running(s.rank))
			}
		}
		if err := w.work(ctx, d); err != nil {
			w.count(0, s.produced)
			return err
		}
		s.produced++
		w.generated.Add(1)
		w.noteProgress()
		if s.growth != nil {
			s.growth.add(s.produced - 1)
		}
		if err := emit(s); err != nil {
			w.count(0, s.produced)
			return err
		}
	}
	w.count(0, s.produced)
	return nil
}

func (w *Worker) count(prompt, out int) {
	w.mu.Lock()
	w.stats.PromptTokens += int64(prompt)
	w.stats.OutputTokens += int64(out)
	w.mu.Unlock()
}

// noteProgress records that the scheduler makes progress, which /health checks.
func (w *Worker) noteProgress() {
	w.lastProgress.Store(time.Now().UnixNano())
	w.steps.Add(1)
}

// thawed waits while the worker is frozen or wedged, or its engine has ended.
func (w *Worker) thawed(ctx context.Context) error {
	w.gate.wait(ctx.Done())
	w.core.wait(ctx.Done())
	w.sched.wait(ctx.Done())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// mostStep is how long an engine at work is without a sign of life.
const mostStep = 500 * time.Millisecond

// work is sleep with something to do: the scheduler makes a step now and then.
func (w *Worker) work(ctx context.Context, d time.Duration) error {
	for d > mostStep {
		if err := w.sleep(ctx, mostStep); err != nil {
			return err
		}
		d -= mostStep
		w.noteProgress()
	}
	return w.sleep(ctx, d)
}

// pause is sleep of the server, which goes on while its scheduler is wedged.
func (w *Worker) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	w.gate.wait(ctx.Done())
	w.core.wait(ctx.Done())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// sleep waits for d, and then for as long as the worker is frozen or wedged.
func (w *Worker) sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return w.thawed(ctx)
}
