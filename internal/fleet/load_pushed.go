package fleet

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv/events"
)

const (
	// pushedEvery is how often a load is taken over, at most, that an engine pushes.
	pushedEvery = time.Second
	// pushedAge is the age from which such a load says nothing of now.
	pushedAge = 5 * time.Second
)

// pushedLoad is what is kept from one load that an engine pushes to the next.
type pushedLoad struct {
	at     admission.Instant // when one was taken over last
	before loadReading       // what was booked then
}

// tookLoad takes a load over that came with the events of the rank's engine: then it need not be
// asked for. Engines of several ranks tell one load for all of them, and are asked.
func (s *rankStream) tookLoad(l *events.Load) {
	select {
	case <-s.done: // it is of an engine that may be gone
		return
	default:
	}
	w := s.rank.worker
	f, facts := w.fleet, w.Facts()
	if s.rank.dp > 0 || facts.DPSize > 1 || l.Age > pushedAge {
		return
	}
	every := pushedEvery
	if d := f.cfg.Health.LoadMonitor; d > 0 {
		every = min(every, d)
	}
	now := f.clock.Now()
	if s.pushed.before.ranks != nil && now.Sub(s.pushed.at) < every {
		return
	}
	// The engine need not know yet of what was booked meanwhile, so that it is added to what
	// the engine reports.
	q := s.pushed.before
	s.pushed = pushedLoad{now, f.askLoad(w)}
	if q.ranks == nil {
		q = s.pushed.before
	}
	one := engine.RankLoad{Running: l.Running, Waiting: l.Waiting, WaitingTokens: max(l.WaitingTokens, 0), UsedTokens: l.UsedTokens, Usage: l.Usage}
	if one.UsedTokens < 0 {
		c := s.rank.Capacity()
		one.UsedTokens = int64(l.Usage * float64(c.KVBlocks*max(c.BlockSize, 1)))
	}
	f.storeLoads(w, &loads{Loads: engine.Loads{Ranks: []engine.RankLoad{one}, Capacities: facts.loads}}, q)
	f.mu.Lock()
	w.loadAskedAt = max(w.loadAskedAt, now)
	f.mu.Unlock()
}
