package fleet

import (
	"context"

	"github.com/sluice-router/sluice/internal/engine"
)

// ModelInfo is an entry of GET /v1/models.
type ModelInfo = engine.ModelInfo

// Facts are what a worker reports about itself, and what the fleet knows of how it was
// asked. Immutable.
type Facts struct {
	engine.Facts

	// loads has what the worker reports of each data-parallel rank with its load.
	loads []engine.RankCapacity
	// cacheOfLoads: the form of its KV cache and the number of its ranks are from there.
	cacheOfLoads bool
	// started is when the engine's process began, in seconds since 1970. Zero: not
	// reported.
	started float64
	// noLoads: it has no route for its load.
	noLoads bool

	// read: they were asked for.
	read bool
	// connectorProbed: its connector was probed for.
	connectorProbed bool
	// connectorNote is what the connector probe found, for the operator.
	connectorNote string
}

var noFacts = &Facts{}

// onlySelfAffected reports whether what is new since the old facts is no other worker's
// business: nothing of what it serves and how it is paired.
func (f *Facts) onlySelfAffected(old *Facts) bool {
	return f.read == old.read && f.Backend == old.Backend && f.Connector == old.Connector && f.CacheType == old.CacheType &&
		f.ServedName == old.ServedName && f.ModelPath == old.ModelPath && f.DPSize == old.DPSize && f.SameModels(&old.Facts) &&
		f.Tokens.Same(old.Tokens)
}

// otherEngine reports whether the facts are those of another engine process than the
// old ones: started at another time, of another kind, or with other arguments. A
// longer list of models is no sign of that.
func (f *Facts) otherEngine(old *Facts) bool {
	return old.read && (f.Fingerprint != old.Fingerprint || f.started != old.started || f.Backend != old.Backend)
}

// identify reports whether the facts tell one process of the engine from the next.
func (f *Facts) identify() bool { return f.Fingerprint != 0 || f.started != 0 }

// loadsDiffer reports whether an answer about the load is another engine's than the
// one that the facts are of.
func (f *Facts) loadsDiffer(l *loads) bool {
	if l.Started != f.started || len(l.Capacities) != len(f.loads) || f.cacheOfLoads && l.FirstRank != f.FirstRank {
		return true
	}
	for i, s := range l.Capacities {
		if s != f.loads[i] {
			return true
		}
	}
	return false
}

func (p *httpProber) facts(ctx context.Context, w *Worker) *Facts {
	return &Facts{Facts: *w.dialects().ReadFacts(ctx, p.asker(w), w.setDialect())}
}

func (*httpProber) lost(w *Worker) int64 { return w.endpoint.Lost() }

// changed reports, by a few cheap requests, whether w is another engine process than
// before, or serves other models.
func (p *httpProber) changed(ctx context.Context, w *Worker, before *Facts) bool {
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	return w.dialectBy(before).Changed(ctx, p.asker(w), &before.Facts)
}
