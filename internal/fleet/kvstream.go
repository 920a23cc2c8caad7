package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/text"
)

// rankStream is the event stream of one rank. It is the stream's sink: what the events say of
// blocks goes on to the index, and what they say of the stream decides whether the index is
// believed.
type rankStream struct {
	// immutable
	rank   *Rank
	source events.Source
	model  string
	exact  *kv.Exact
	stream eventStream
	cancel context.CancelFunc
	done   <-chan struct{} // closed when it is to end
	log    *slog.Logger
	lines  *logBudget

	pushed pushedLoad // owned by the stream

	blocks int64 // that exact holds at most; guarded by Fleet.mu

	mu sync.Mutex
	// guarded by mu
	stopped bool
	state   events.State
	since   time.Time // of the state
	told    bool      // that the state is Degraded, in the log
	toldAt  time.Time // when that was told last
}

// Stored implements events.Sink.
func (s *rankStream) Stored(e *events.Stored) { s.exact.Stored(e) }

// Removed implements events.Sink.
func (s *rankStream) Removed(e *events.Removed) { s.exact.Removed(e) }

// Cleared implements events.Sink.
func (s *rankStream) Cleared() { s.exact.Cleared() }

// State implements events.Sink. A rank is exact while its stream is live.
func (s *rankStream) State(state events.State) {
	s.exact.State(state)
	if s.changed(state) && state == events.Degraded {
		// Its engine may have ended: what the rank was sent would be wrong too.
		s.rank.CheckSoon()
	}
}

// changed takes over the state, and reports whether it is another one.
func (s *rankStream) changed(state events.State) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done: // that it ends is no news
		s.stopped = true
		s.rank.caches.exact.CompareAndSwap(s.exact, nil)
	default:
	}
	if s.stopped || state == s.state {
		return false
	}
	now := time.Now()
	lasted := now.Sub(s.since).Round(time.Millisecond)
	s.state, s.since = state, now
	if state == events.Live {
		s.rank.caches.exact.Store(s.exact)
		if !s.told && !s.toldAt.IsZero() {
			return true // nor was it told that it was degraded
		}
		s.told = false
		s.line(slog.LevelInfo, "KV events of a rank are followed", "endpoint", s.source.Endpoint, "degraded", lasted)
		return true
	}
	s.rank.caches.exact.CompareAndSwap(s.exact, nil)
	if now.Sub(s.toldAt) >= tellEvery {
		s.tellDegraded(now)
	}
	return true
}

const (
	// startGrace is how long a new stream may take to be live before the log says that it is
	// not.
	startGrace = 10 * time.Second
	// tellEvery is how often it is told at most that a stream which comes and goes is
	// degraded.
	tellEvery = time.Minute
)

// watch is called from time to time while the stream is followed: it tells of one that never
// became live, or is degraded for longer.
func (s *rankStream) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !s.stopped && s.state == events.Degraded && !s.told && now.Sub(s.since) >= startGrace {
		s.tellDegraded(now)
	}
}

// tellDegraded logs that the stream is degraded. The caller holds mu.
func (s *rankStream) tellDegraded(now time.Time) {
	if s.told = s.line(slog.LevelWarn, "KV events of a rank cannot be relied on: its cache is known by what it was sent",
		"endpoint", s.source.Endpoint, "why", text.Clip(s.why(s.stream.Snapshot()), maxReason)); s.told {
		s.toldAt = now
	}
}

func (s *rankStream) line(level slog.Level, text string, args ...any) bool {
	omitted, ok := s.lines.take(time.Now())
	if !ok {
		return false
	}
	if omitted > 0 {
		args = append(args, "lines_left_out", omitted)
	}
	s.log.Log(context.Background(), level, text, append([]any{"rank", s.rank.id}, args...)...)
	return true
}

// why is why the stream is degraded.
func (s *rankStream) why(n events.Snapshot) string {
	switch {
	case n.LastError != "":
		return n.LastError
	case n.Connects == 0:
		return "it is not connected"
	}
	return "no event has come yet"
}

// stop has the rank be believed no more by what this stream tells.
func (s *rankStream) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.rank.caches.exact.CompareAndSwap(s.exact, nil)
}

// TellsCached tells whether the engine has ever reported cached tokens: then an answer without
// such a count means none, as SGLang leaves a zero out.
func (r *Rank) TellsCached() bool { return r.caches.tellsCached.Load() }

// NoteComputed tells that the engine has computed a prompt here, since when, and how many of
// its tokens it says to have found in its cache. Its events must tell of the blocks that it
// computed; a stream that stays silent is degraded. It costs one read of a pointer for ranks
// without events.
func (r *Rank) NoteComputed(since time.Time, prompt, cached int64) {
	if cached > 0 && !r.caches.tellsCached.Load() {
		r.caches.tellsCached.Store(true)
	}
	s := r.caches.stream.Load()
	if s == nil {
		return
	}
	// An engine that never reports cached tokens may have found all of the prompt, and then
	// it has no event to send.
	block := max(r.worker.Facts().PageSize, int64(s.exact.BlockSize()), unitBlock)
	if r.caches.tellsCached.Load() && prompt-cached >= 2*block {
		s.stream.Expect(since)
	}
}
