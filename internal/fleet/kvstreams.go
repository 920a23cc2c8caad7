package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/kv/events"
)

// cacheStreams follows the event streams of the KV caches of a fleet's ranks: one goroutine
// for each rank whose engine publishes events, from when its worker is healthy to when it is
// dead, removed, or another process. A rank without a stream that can be relied on is known
// by what it was sent; it is as good for requests as any other.
type cacheStreams struct {
	// immutable
	f      *Fleet
	open   func(events.Options) (eventStream, error)
	ctx    context.Context
	cancel context.CancelFunc

	running sync.WaitGroup
	lines   logBudget
}

// eventStream is an events.Stream.
type eventStream interface {
	Run(context.Context, events.Sink)
	Expect(time.Time)
	Snapshot() events.Snapshot
}

func newCacheStreams(f *Fleet) *cacheStreams {
	s := &cacheStreams{f: f, open: func(o events.Options) (eventStream, error) { return events.New(o) }}
	s.ctx, s.cancel = context.WithCancel(f.ctx)
	return s
}

// close ends all streams and waits for them. The fleet is closed: no more are opened.
func (s *cacheStreams) close() {
	s.cancel()
	s.running.Wait()
}

// due reports, with Fleet.mu held, whether the engine of a worker that has just been checked
// is to be asked where it publishes events: after its facts were read, and again with each
// check while it has not answered.
func (s *cacheStreams) due(w *Worker, factsRead bool) bool {
	return s.f.opts.Index != nil && s.f.cfg.KV.Events != config.KVEventsOff && w.health.healthy && !w.health.dead &&
		(factsRead || !w.kvSources.asked || w.kvSources.err != nil)
}

// ask asks the engine of a worker where it publishes events, and follows them.
func (s *cacheStreams) ask(w *Worker) {
	facts := w.Facts()
	if !facts.read {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, s.f.cfg.Health.Timeout)
	told := s.f.prober.kvEvents(ctx, w, facts)
	cancel()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if w.Facts() != facts {
		return // they are of another engine already, which is asked itself
	}
	if told.err == nil || !w.kvSources.told {
		w.kvSources = told
	} else {
		w.kvSources.err = told.err // what it said before stays
	}
	s.followLocked(w)
}

// followLocked brings the streams of a worker's ranks in line with what is known of it.
func (s *cacheStreams) followLocked(w *Worker) {
	if s.f.opts.Index == nil || w.removed || s.f.closed || w.health.dead || !w.health.everHealthy {
		return
	}
	model := ""
	if len(w.models) > 0 {
		model = w.models[0]
	}
	for _, r := range w.Ranks() {
		source, why := r.kvSource(&w.kvSources, &s.f.cfg.KV)
		if now := r.caches.stream.Load(); now != nil {
			if why == "" && now.source == source && now.model == model {
				now.watch()
				continue
			}
			s.stopLocked(r)
		}
		if r.caches.whyNone = why; why == "" {
			s.startLocked(r, source, model)
		}
	}
}

// startLocked begins to follow a rank's events.
func (s *cacheStreams) startLocked(r *Rank, source events.Source, model string) {
	x := s.f.opts.Index
	st := &rankStream{rank: r, source: source, model: model, log: s.f.log, lines: &s.lines, since: time.Now()}
	o := events.Options{
		Endpoint: source.Endpoint, Replay: source.Replay, Topic: source.Topic, Rank: source.Rank, Silent: s.f.cfg.KV.EventsSilent,
		Emptied: func() { x.Clear(r.caches.approx) },
	}
	if source.Pushed {
		o.Subscribe = func(ctx context.Context) (events.Subscription, error) {
			return r.Dialect().SubscribeKVEvents(ctx, r.worker.endpoint)
		}
		o.Load = st.tookLoad
	}
	opened, err := s.open(o)
	if err != nil {
		r.caches.whyNone = err.Error()
		return
	}
	st.stream, st.blocks = opened, r.Capacity().KVBlocks
	st.exact = kv.NewExact(x, kv.RankSpec{Group: kv.Group(r.worker.role), Blocks: int(st.blocks), Data: r}, model)
	ctx, cancel := context.WithCancel(s.ctx)
	st.cancel, st.done = cancel, ctx.Done()
	r.caches.stream.Store(st)
	s.running.Go(func() { opened.Run(ctx, st) })
}

// stopLocked ends the stream of a rank, if it has one, and forgets what it told. It does not
// wait: what the stream tells from now on is ignored.
func (s *cacheStreams) stopLocked(r *Rank) {
	st := r.caches.stream.Swap(nil)
	if st == nil {
		return
	}
	st.stop()
	st.cancel()
	st.exact.Drop()
}

// forgetLocked ends the streams of a worker, whose engine is dead or another process. It is
// asked anew where it publishes events.
func (s *cacheStreams) forgetLocked(w *Worker, why string) {
	w.kvSources = kvEventSources{}
	for _, r := range w.Ranks() {
		s.stopLocked(r)
		r.caches.whyNone = why
	}
}

// logBudget bounds how many lines are logged about streams: an interruption of the network
// concerns all of them.
type logBudget struct {
	mu      sync.Mutex
	since   time.Time
	n       int
	omitted int
}

// linesEvery is the time in which maxLogged lines are logged.
const linesEvery = 10 * time.Second

// take reports whether a line may be logged, and how many were left out before it.
func (b *logBudget) take(now time.Time) (omitted int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 || now.Sub(b.since) >= linesEvery {
		b.since, b.n = now, 0
	}
	if b.n >= maxLogged {
		b.omitted++
		return 0, false
	}
	b.n++
	omitted, b.omitted = b.omitted, 0
	return omitted, true
}
