package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// prober asks workers. Tests put their own in its place.
type prober interface {
	// check asks whether w is well.
	check(ctx context.Context, w *Worker, l look) checkup
	// facts asks w about itself.
	facts(ctx context.Context, w *Worker) *Facts
	// loads asks w for its load; nil if it did not tell. never: it has no such
	// route.
	loads(ctx context.Context, w *Worker, vllm bool) (l *loads, never bool)
	// changed asks cheaply whether w is another engine than before, or serves
	// something else.
	changed(ctx context.Context, w *Worker, before *Facts) bool
	// connector asks a vLLM prefill worker of which f is known how it hands KV
	// cache over. An error may pass; note is for people.
	connector(ctx context.Context, w *Worker, f *Facts) (name, note string, err error)
	// mooncake asks the bootstrap server of w.
	mooncake(ctx context.Context, w *Worker) (*mooncake, error)
}

// due begins the check of a worker whose time has come, or looks at its drain.
func (f *Fleet) due(w *Worker, now admission.Instant) {
	f.mu.Lock()
	if w.draining && !w.gone && !f.closed {
		f.drainLocked(w, now)
	}
	if w.gone || w.draining || w.checking || f.closed {
		f.mu.Unlock()
		return
	}
	w.checking = true
	l := look{
		working: w.vitals.seen && w.vitals.healthy, suspect: w.vitals.seen && w.vitals.suspect(),
		paced:  f.idlePauseLocked(w) > 0,
		proofs: f.cfg.Health.FailureThreshold - w.vitals.deadFails, doubt: func(why string) { f.doubt(w, why) },
	}
	w.moved = w.life.Load().sign.Swap(false)
	doubt := w.vitals.suspect() || w.Facts().incomplete
	stale, away := f.factsStaleLocked(w, now), !w.vitals.healthy
	f.mu.Unlock()
	f.lanes.start(doubt, func() { f.check(w, l, stale, away) })
}

// factsStaleLocked tells whether w is to be asked about itself, if it is well:
// at first, again when that failed, after it was away or failed a check, when it
// showed signs of being another one, and now and then.
func (f *Fleet) factsStaleLocked(w *Worker, now admission.Instant) bool {
	facts := w.Facts()
	if !facts.read || facts.incomplete || w.heldLocked() || !w.vitals.healthy {
		return true
	}
	age := now.Sub(w.factsAt)
	return age >= factsEvery || age >= f.cfg.Health.Interval/2 && (w.stale || w.vitals.suspect())
}

// check asks w and judges the answers. It runs on a goroutine of its own. stale:
// what is known of it is to be read again; away: it was not healthy.
func (f *Fleet) check(w *Worker, l look, stale, away bool) {
	c := checkup{health: answerOK, alive: answerOK}
	if !f.cfg.Health.Disabled {
		c = f.prober.check(w.ctx, w, l)
	}
	var facts *Facts
	if stale && c.health == answerOK {
		// They are read before the worker becomes a candidate, so that its first
		// request finds the right pool; but it is not kept waiting for long.
		ctx, cancel := context.WithTimeout(w.ctx, f.cfg.Health.Timeout)
		facts = f.prober.facts(ctx, w)
		f.addLoads(ctx, w, facts)
		cancel()
		f.addConnector(w, facts, away || facts.another(w.Facts()))
		facts.read = true
	}
	f.judge(w, c, facts)
	if facts == nil && c.health == answerOK {
		// After the judgement, which nothing may hold up.
		f.watch(w)
	}
}

// watch reads the load of a worker that is well, and looks whether it is still the
// engine that it was. If not, the next check, which begins soon, reads everything.
func (f *Fleet) watch(w *Worker) {
	facts := w.Facts()
	stale := false
	f.mu.Lock()
	paced := f.idlePauseLocked(w) > 0
	f.mu.Unlock()
	// The load of an SGLang worker that has none from here is no news worth a request
	// where there are many of them.
	if !facts.noLoads && (!paced || w.vllm()) {
		l, never := f.prober.loads(w.ctx, w, w.vllm())
		f.keepLoads(w, l)
		stale = never || l != nil && facts.toldAnother(l)
	}
	if !stale && !f.prober.changed(w.ctx, w, facts) {
		return
	}
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.Facts() != facts || w.gone || w.draining {
		return
	}
	w.stale = true
	f.sched.advance(w.event, max(now, w.factsAt.Add(f.cfg.Health.Interval/2)))
}

// addConnector finds out how a vLLM prefill worker hands KV cache over. It is asked
// once, and again only after it was away or when it did not answer.
func (f *Fleet) addConnector(w *Worker, facts *Facts, away bool) {
	if w.role != admission.RolePrefill || !facts.vllm(w) {
		return
	}
	before := w.Facts()
	name := w.setConnector()
	if name == "" && facts.Connector == "" && before.Connector != "" {
		facts.Connector, facts.note = before.Connector, before.note
	}
	now := f.clock.Now()
	since := now.Sub(w.askedAt)
	unknown := facts.Connector == "" && (w.asks < f.cfg.Health.FailureThreshold || since >= factsEvery)
	if name == "" && (unknown || away && before.asked && since >= askPause) {
		facts.asked = true
		w.askedAt, w.asks = now, w.asks+1
		c, note, err := f.prober.connector(w.ctx, w, facts)
		switch {
		case err == nil:
			facts.Connector, facts.note = c, note
		case facts.Connector == "":
			facts.note = fmt.Sprintf("its connector is not known: %s; set kv_connector", err)
		}
	} else {
		facts.asked = before.asked
	}
	if name == "" {
		name = facts.Connector
	}
	if name == ConnectorMooncake {
		if err := f.readMooncake(w); err != nil {
			if away {
				w.mooncake.Store(nil) // it may have started anew, under other ids
			}
			facts.warn("its Mooncake bootstrap server does not answer: %s", err)
		}
	}
}

// doubt notes that a check of w, which goes on, has failed so far.
func (f *Fleet) doubt(w *Worker, why string) {
	now := f.clock.Now()
	f.mu.Lock()
	before := w.vitals
	if !w.gone && !w.draining {
		w.vitals.doubt(now, why)
	}
	after := w.vitals
	f.mu.Unlock()
	f.logDoubt(w, before, after, now)
}

// logDoubt tells once when a worker becomes suspect, and when that ends.
func (f *Fleet) logDoubt(w *Worker, before, after vitals, now admission.Instant) {
	switch {
	case after.doubted && !before.doubted:
		f.log.Warn("worker is suspect: it fails its check", "worker", w.spec.URL, "id", w.id, "why", after.doubtWhy)
	case before.doubted && !after.doubted:
		f.log.Info("worker is not suspect any more", "worker", w.spec.URL, "id", w.id, "after", now.Sub(before.since).Round(time.Millisecond))
	}
}

// judge takes the outcome of a check into account and sets the next.
func (f *Fleet) judge(w *Worker, c checkup, facts *Facts) {
	now := f.clock.Now()
	f.mu.Lock()
	w.checking = false
	w.judged.Store(int64(now))
	if w.gone || w.draining || f.closed {
		f.mu.Unlock()
		return
	}
	before, held := w.vitals, w.heldLocked()
	life := w.life.Load()
	s := signs{during: life.sign.Swap(false)}
	s.progress = s.during || w.moved
	if c.health == answerBusy {
		s.requests = f.requestsLocked(w) > 0
	}
	w.vitals.judge(now, c, s, &f.cfg.Health)
	after := w.vitals
	switch {
	case after.dead && !before.dead:
		life.end(ErrDead)
	case before.dead && !after.dead:
		w.life.Store(newLife())
	}
	if after.healthy && !before.healthy && before.seen {
		// It was away and is back: what the breakers hold against it is old.
		for _, r := range w.Ranks() {
			if r.breaker.elapse(now, true) {
				f.sched.drop(r.event)
			}
		}
	}
	var changes []admission.Change
	var news []pairingNews
	exchanged := false
	// What it said before counts more than what it could not say now.
	if facts != nil && (!facts.incomplete || !w.Facts().read || w.Facts().incomplete) {
		old := w.Facts()
		w.know(facts)
		w.factsAt, w.stale = now, false
		if exchanged = facts.another(old); exchanged {
			f.exchangedLocked(w, now, &changes)
		}
		if w.factTries++; !w.unready() {
			w.factTries = 0
		}
		if after.seen == before.seen && facts.concernSelf(old) {
			f.factsLocked(w, w.rankFacts(w.models), &changes)
			f.statesLocked(w, &changes)
		} else {
			news = f.settleAllLocked(w, &changes)
		}
	} else if after.seen != before.seen {
		news = f.settleAllLocked(w, &changes)
	} else {
		f.statesLocked(w, &changes)
	}
	if before.healthy && !after.healthy {
		f.reviveLocked(now, &changes)
	}
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	f.sched.set(w.event, now.Add(f.jitterLocked(f.pauseLocked(w))))
	warnings := w.warnings()
	f.mu.Unlock()
	if exchanged {
		f.log.Info("worker is a different engine now: its facts are read again", "worker", w.spec.URL, "id", w.id)
		w.endpoint.CloseIdle()
	}
	f.logDoubt(w, before, after, now)
	f.logCheck(w, before, after, facts != nil && (held || !before.healthy), warnings)
	f.logPairing(news)
}

// exchangedLocked forgets what was learned of the engine that was at w's address
// before: what its breakers and pairs hold against it, and which routes it lacks.
func (f *Fleet) exchangedLocked(w *Worker, now admission.Instant, changes *[]admission.Change) {
	f.generation++
	w.generation.Store(f.generation)
	w.transfers.forget()
	for _, r := range w.Ranks() {
		if r.breaker.elapse(now, true) {
			f.sched.drop(r.event)
		}
	}
	f.unbarLocked(w, changes)
	f.forgetPairsLocked(w.Ranks())
}

// LookForNames has the workers asked what they serve, within a check interval and
// at most once in one: somebody asked for a name that nobody is known to serve.
func (f *Fleet) LookForNames() {
	now, every := f.clock.Now(), f.cfg.Health.Interval
	last := f.sought.Load()
	if last != 0 && now.Sub(admission.Instant(last)) < every || !f.sought.CompareAndSwap(last, int64(now)) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.vitals.healthy && !w.draining {
			f.sched.advance(w.event, now.Add(time.Duration(f.rand.Float64()*float64(every))))
		}
	}
}

// pauseLocked is the time to the next check of w; see maxIdleRate.
func (f *Fleet) pauseLocked(w *Worker) time.Duration {
	d := w.vitals.next(&f.cfg.Health)
	if w.vitals.healthy && w.heldLocked() {
		return min(firstRetry, d)
	}
	return max(d, f.idlePauseLocked(w))
}

// idlePauseLocked is the least pause between two checks of w, if it is well and has
// no requests; else 0.
func (f *Fleet) idlePauseLocked(w *Worker) time.Duration {
	idle := time.Duration(len(f.workers)) * time.Second / maxIdleRate
	if idle > f.cfg.Health.Interval && w.vitals.healthy && !w.vitals.suspect() && f.requestsLocked(w) == 0 {
		return idle
	}
	return 0
}

// jitterLocked changes d by up to a tenth, so that checks do not march in step.
func (f *Fleet) jitterLocked(d time.Duration) time.Duration {
	return d + time.Duration(float64(d)*(0.2*f.rand.Float64()-0.1))
}

func (f *Fleet) logCheck(w *Worker, before, after vitals, doubts bool, warnings []string) {
	log := f.log.With("worker", w.spec.URL, "id", w.id)
	switch {
	case after.healthy && !before.healthy:
		log.Info("worker is healthy", "first", !before.seen)
	case before.healthy && !after.healthy:
		log.Warn("worker is unhealthy", "failures", after.fails, "why", after.why)
	case !after.seen && after.tries == 1:
		log.Info("worker does not answer yet", "why", after.why)
	}
	if after.dead && !before.dead {
		log.Warn("worker is dead", "why", after.why)
	}
	if after.trouble != "" && after.trouble != before.trouble {
		log.Warn("worker cannot be used as it is registered", "about", after.trouble)
	}
	if doubts {
		for _, warning := range warnings {
			log.Warn("worker is registered with a warning", "about", warning)
		}
	}
}
