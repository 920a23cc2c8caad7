package fleet

import (
	"context"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// RankLoad is what an engine says about the work on one data-parallel rank.
type RankLoad = engine.RankLoad

// loads is an answer about the load of a worker.
type loads struct {
	engine.Loads
	at admission.Instant
}

// Reported returns what the engine last said about the rank's load, and when. ok
// is false when it never did.
func (r *Rank) Reported() (load RankLoad, at admission.Instant, ok bool) {
	l := r.worker.loads.Load()
	if l == nil {
		return RankLoad{}, 0, false
	}
	if load, ok = rankLoad(&l.Loads, r.dp); !ok && r.dp >= 0 {
		return RankLoad{}, 0, false
	}
	return load, l.at, true
}

// loadsTimeout bounds the wait for the load. It is worth less than the check that it
// comes after.
const loadsTimeout = time.Second

func (p *httpProber) loads(ctx context.Context, w *Worker, d engine.Dialect) (l *loads, never bool) {
	path := d.LoadsPath()
	if path == "" {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	var body []byte
	status, err := p.get(ctx, w, path, false, &body)
	switch {
	case err != nil:
		return nil, tooLarge(err)
	case status/100 != 2:
		return nil, status < 500 && status != 429 || status == 501
	}
	told, err := d.ReadLoads(body)
	if err != nil {
		return nil, true
	}
	return &loads{Loads: *told}, false
}

// setLoads takes from an answer about the load what does not change.
func (f *Facts) setLoads(l *loads) {
	f.loads, f.started = l.Capacities, l.Started
	if f.cacheOfLoads = l.BlockSize > 0; f.cacheOfLoads {
		f.PageSize, f.CacheType = l.BlockSize, l.CacheType
		f.DPSize, f.FirstRank = len(l.Capacities), l.FirstRank
	}
}

// copyLoads takes it from what was known before.
func (f *Facts) copyLoads(before *Facts) {
	f.loads, f.started, f.cacheOfLoads = before.loads, before.started, before.cacheOfLoads
	if f.cacheOfLoads {
		f.PageSize, f.CacheType = before.PageSize, before.CacheType
		f.DPSize, f.FirstRank = before.DPSize, before.FirstRank
	}
}

// readCapacities adds the capacities that are only reported with the load. A transient
// failure leaves those from before.
func (f *Fleet) readCapacities(ctx context.Context, w *Worker, facts *Facts) {
	d, q := w.dialectBy(facts), f.askLoad(w)
	l, never := f.prober.loads(ctx, w, d)
	switch {
	case l != nil:
		facts.setLoads(l)
		f.storeLoads(w, l, q)
	case never:
		facts.noLoads = true
		if before := w.Facts(); before.read && !before.noLoads && f.cfg.Health.LoadMonitor > 0 {
			f.log.Warn("worker does not report its load any more: its bookings alone count", "worker", w.url, "id", w.id, "path", d.LoadsPath())
		}
		if path := engine.PathOnly(d.LoadsPath()); path != "" {
			facts.Missing = append(facts.Missing, path)
		}
	default:
		facts.copyLoads(w.Facts())
	}
}
