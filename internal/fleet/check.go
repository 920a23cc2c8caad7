package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// prober sends the requests of checks. Tests have their own.
type prober interface {
	// check probes the health of w.
	check(ctx context.Context, w *Worker, l checkParams) checkResult
	// facts reads the information routes of w.
	facts(ctx context.Context, w *Worker) *Facts
	// kvEvents asks where w publishes the events of its KV cache.
	kvEvents(ctx context.Context, w *Worker, f *Facts) kvEventSources
	// loads reads the load of w, which is of the dialect; nil if it did not report it.
	// never: it has no such route.
	loads(ctx context.Context, w *Worker, d engine.Dialect) (l *loads, never bool)
	// changed reports, by a few cheap requests, whether w is another engine than
	// before, or serves something else.
	changed(ctx context.Context, w *Worker, before *Facts) bool
	// lost counts the connections that w has ended, as [upstream.Endpoint.Lost].
	lost(w *Worker) int64
	// scheduler asks the route that needs the scheduler, answers for a small piece of
	// work, counters reads the load. An outcome other than OK, denied and unknown is no
	// answer within the time.
	scheduler(ctx context.Context, w *Worker, d engine.Dialect, within time.Duration) probeResult
	answers(ctx context.Context, w *Worker, q engine.Question, within time.Duration) probeResult
	counters(ctx context.Context, w *Worker, d engine.Dialect, within time.Duration) (*engine.Loads, outcome)
	// connector finds out the KV connector of a prefill worker. An error may be
	// transient.
	connector(ctx context.Context, w *Worker, f *Facts) (engine.Found, error)
	// peer reads what decode must be told of w, as engine.Pairer.ReadPeer does.
	peer(ctx context.Context, w *Worker, d engine.Dialect, connector string) (p engine.Peer, asked bool, err error)
}

// due starts the check of a worker when its time has come, or continues its drain.
func (f *Fleet) due(w *Worker, now admission.Instant) {
	f.mu.Lock()
	if w.draining && !w.removed && !f.closed {
		f.drainAllLocked([]*Worker{w}, now)
	}
	if w.removed || w.draining || w.checking || f.closed {
		f.mu.Unlock()
		return
	}
	w.checking = true
	l := checkParams{
		inService: w.health.everHealthy && w.health.healthy, failing: w.health.everHealthy && w.health.failing(),
		infrequent: f.idlePauseLocked(w) > 0,
		deadAfter:  f.cfg.Health.FailureThreshold - w.health.deadFailures, onFailure: func(why string) { f.markSuspect(w, why) },
	}
	w.progress = w.liveness.Load().progressed.Swap(false)
	doubt := w.health.failing() || w.Facts().Incomplete
	stale, away := f.factsStaleLocked(w, now), !w.health.healthy || w.otherIdentity
	w.otherIdentity = false
	f.mu.Unlock()
	f.limiter.start(doubt, func() { f.check(w, l, stale, away) })
}

// factsStaleLocked reports whether the facts of w are to be read again, if it is
// healthy: the first time, after a failure, after it was unhealthy or failed a check,
// when it seems to be another engine, and every factsInterval.
func (f *Fleet) factsStaleLocked(w *Worker, now admission.Instant) bool {
	facts := w.Facts()
	if !facts.read || facts.Incomplete || w.withheldLocked() || !w.health.healthy || f.prober.lost(w) != w.lostBefore {
		return true
	}
	age := now.Sub(w.factsReadAt)
	return age >= factsInterval || age >= f.cfg.Health.Interval/2 && (w.maybeReplaced || w.health.failing())
}

// check probes w and evaluates the answers. It runs on a goroutine of its own. stale:
// its facts are to be read again; away: it was not healthy.
func (f *Fleet) check(w *Worker, l checkParams, stale, away bool) {
	c := checkResult{health: outcomeOK, alive: outcomeOK}
	if !f.cfg.Health.Disabled {
		c = f.prober.check(w.ctx, w, l)
	}
	var facts *Facts
	if stale && c.health == outcomeOK {
		// The facts are read before the worker becomes a candidate, so that its first
		// request finds the right pool; the timeout bounds that delay.
		ctx, cancel := context.WithTimeout(w.ctx, f.cfg.Health.Timeout)
		w.lostNow = f.prober.lost(w)
		facts = f.prober.facts(ctx, w)
		f.readCapacities(ctx, w, facts)
		cancel()
		f.addConnector(w, facts, away || facts.otherEngine(w.Facts()))
		facts.read = true
	}
	f.finishCheck(w, c, facts)
	if facts == nil && c.health == outcomeOK {
		// After the evaluation, which must not be delayed.
		f.checkLoad(w)
	}
}

// checkLoad reads the load of a healthy worker, if that is due, and detects another engine
// at its address. If there is one, the next check, which starts soon, reads all facts.
func (f *Fleet) checkLoad(w *Worker) {
	facts, now := w.Facts(), f.clock.Now()
	f.mu.Lock()
	due := f.loadDueLocked(w, now, true)
	if due {
		w.readsLoad, w.loadAskedAt = true, now
	}
	f.mu.Unlock()
	if due && f.readLoad(w, facts) || f.prober.changed(w.ctx, w, facts) {
		f.seemsReplaced(w, facts)
	}
}

// addConnector finds out the KV connector of a prefill worker whose dialect has several.
// The worker is probed once, and again only after it was away or when it did not answer.
func (f *Fleet) addConnector(w *Worker, facts *Facts, away bool) {
	d := w.dialectBy(facts)
	if w.role != admission.RolePrefill || d.Connectors() == nil {
		return
	}
	before := w.Facts()
	name := w.setConnector()
	if name == "" && facts.Connector == "" && before.Connector != "" {
		facts.Connector, facts.connectorNote = before.Connector, before.connectorNote
	}
	now := f.clock.Now()
	since := now.Sub(w.connectorProbedAt)
	unknown := facts.Connector == "" && (w.connectorProbes < f.cfg.Health.FailureThreshold || since >= factsInterval)
	if name == "" && (unknown || away && before.connectorProbed && since >= connectorProbePause) {
		facts.connectorProbed = true
		w.connectorProbedAt, w.connectorProbes = now, w.connectorProbes+1
		found, err := f.prober.connector(w.ctx, w, facts)
		switch {
		case err == nil:
			facts.Connector, facts.connectorNote = found.Connector, found.Note
			w.setPeer(found.Peer)
		case facts.Connector == "":
			facts.connectorNote = fmt.Sprintf("its connector is not known: %s; set kv_connector", err)
		}
	} else {
		facts.connectorProbed = before.connectorProbed
	}
	if name == "" {
		name = facts.Connector
	}
	switch p, asked, err := f.prober.peer(w.ctx, w, d, name); {
	case !asked:
	case err == nil:
		w.setPeer(p)
	default:
		// What it told before stays, but for a worker that may have restarted.
		if away {
			w.setPeer(nil)
		}
		facts.Warn("%s", err)
	}
}

// probed is w as a dialect asks it.
func (p *httpProber) probed(w *Worker) engine.Probed {
	return engine.Probed{Ask: p.asker(w), Host: w.base.Host, BootstrapAddr: w.bootstrapAddr(), Model: w.spec.Load().ModelID}
}

func (p *httpProber) connector(ctx context.Context, w *Worker, f *Facts) (engine.Found, error) {
	return w.dialectBy(f).FindConnector(ctx, p.probed(w), &f.Facts)
}

func (p *httpProber) peer(ctx context.Context, w *Worker, d engine.Dialect, connector string) (engine.Peer, bool, error) {
	return d.ReadPeer(ctx, p.probed(w), connector)
}

// markSuspect records that a check of w, which is still running, has failed so far.
func (f *Fleet) markSuspect(w *Worker, why string) {
	now := f.clock.Now()
	f.mu.Lock()
	before := w.health
	if !w.removed && !w.draining {
		w.health.markSuspect(now, why)
	}
	after := w.health
	f.mu.Unlock()
	f.logSuspect(w, before, after, now)
}

// logSuspect logs once when a worker becomes suspect, and when that ends.
func (f *Fleet) logSuspect(w *Worker, before, after healthState, now admission.Instant) {
	switch {
	case after.suspect && !before.suspect:
		f.mu.Lock()
		requests := f.requestsLocked(w)
		f.mu.Unlock()
		f.log.Warn("worker is suspect: its health check fails", "worker", w.url, "id", w.id, "requests", requests, "why", after.suspectReason)
	case before.suspect && !after.suspect:
		f.log.Info("worker is no longer suspect", "worker", w.url, "id", w.id, "after", now.Sub(before.suspectSince).Round(time.Millisecond))
	}
}

// finishCheck takes the outcome of a check into account and sets the next.
func (f *Fleet) finishCheck(w *Worker, c checkResult, facts *Facts) {
	now := f.clock.Now()
	f.mu.Lock()
	w.checking = false
	w.lastCheck.Store(int64(now))
	if w.removed || w.draining || f.closed {
		f.mu.Unlock()
		return
	}
	if w.otherIdentity {
		// The check began before its source named another engine.
		f.sched.set(w.event, now)
		f.mu.Unlock()
		return
	}
	before, held := w.health, w.withheldLocked()
	life := w.liveness.Load()
	s := activity{during: life.progressed.Swap(false)}
	s.progress = s.during || w.progress
	if c.health == outcomeBusy {
		s.requests = f.requestsLocked(w) > 0
	}
	w.health.evaluate(now, c, s, &f.cfg.Health)
	after := w.health
	switch {
	case after.dead && !before.dead:
		life.end(ErrDead)
		f.emptyCachesLocked(w, "its worker is dead")
	case before.dead && !after.dead:
		w.liveness.Store(newLiveness())
		f.forgetHangsLocked(w, now)
	}
	back := after.healthy && !before.healthy && before.everHealthy
	if back {
		// It was unhealthy and is back: the failures its breakers counted are old.
		for _, r := range w.Ranks() {
			if r.breaker.elapse(now, true) {
				f.sched.drop(r.event)
			}
		}
	}
	halfOpen := f.halfOpenLocked(w, c, now)
	var changes []admission.Change
	var news []pairingNews
	exchanged, lost := false, false
	// Complete facts from before are better than incomplete ones.
	if facts != nil && (!facts.Incomplete || !w.Facts().read || w.Facts().Incomplete) {
		old := w.Facts()
		w.updateState(facts)
		w.factsReadAt, w.maybeReplaced = now, false
		lost = w.lostNow != w.lostBefore
		w.lostBefore = w.lostNow
		if exchanged = facts.otherEngine(old); exchanged {
			f.engineReplacedLocked(w, now, &changes)
		}
		if w.factsAttempts++; !w.factsInsufficient() {
			w.factsAttempts = 0
		}
		if after.everHealthy == before.everHealthy && facts.onlySelfAffected(old) {
			f.applyFactsLocked(w, w.rankFacts(w.models), &changes)
			f.applyStatesLocked(w, &changes)
		} else {
			news = f.applySoonLocked([]*Worker{w}, &changes)
		}
	} else if after.everHealthy != before.everHealthy || f.hasTokens && after.dead != before.dead {
		news = f.applySoonLocked([]*Worker{w}, &changes)
	} else {
		f.applyStatesLocked(w, &changes)
	}
	if before.healthy && !after.healthy {
		f.halfOpenLastLocked(now, &changes)
	}
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	if back && !exchanged && !w.Facts().identify() {
		f.emptyCachesLocked(w, whyNotAsked) // another process could not be told from the former
	}
	f.boundCachesLocked(w)
	f.streams.followLocked(w)
	f.followTextLocked(w, exchanged || lost && back, lost)
	askEvents := f.streams.due(w, facts != nil)
	f.sched.set(w.event, f.gatheredLocked(w, now.Add(f.jitterLocked(f.pauseLocked(w)))))
	warnings := w.warnings()
	f.mu.Unlock()
	if exchanged {
		f.log.Info("worker runs another engine process now: its facts are read again", "worker", w.url, "id", w.id)
		w.endpoint.CloseIdle()
	}
	for _, r := range halfOpen {
		f.log.Warn("circuit breaker changed state", "rank", r.id, "state", admission.BreakerHalfOpen.String(), "why", "its worker was checked")
	}
	f.logSuspect(w, before, after, now)
	f.logCheck(w, before, after, facts != nil && (held || !before.healthy), warnings)
	f.logPairing(news)
	if askEvents {
		f.streams.ask(w)
	}
}

// engineReplacedLocked drops what was learned of the engine that was at w's address
// before: what it had cached, its breakers' and pairs' failures, and which routes it lacks.
func (f *Fleet) engineReplacedLocked(w *Worker, now admission.Instant, changes *[]admission.Change) {
	f.generation++
	w.generation.Store(f.generation)
	w.transfers.forget()
	f.emptyCachesLocked(w, whyNotAsked)
	for _, r := range w.Ranks() {
		if r.breaker.elapse(now, true) {
			f.sched.drop(r.event)
		}
		if r.warmth.inUse {
			f.beginWarmUpLocked(r)
		}
	}
	f.liftQuarantineLocked(w, changes)
	f.forgetPairsLocked(w.Ranks())
	f.forgetHangsLocked(w, now)
}

// RediscoverModels has all healthy workers checked within a check interval, at most
// once in one: a request named a model that no worker is known to serve.
func (f *Fleet) RediscoverModels() {
	now, every := f.clock.Now(), f.cfg.Health.Interval
	last := f.lastRediscovery.Load()
	if last != 0 && now.Sub(admission.Instant(last)) < every || !f.lastRediscovery.CompareAndSwap(last, int64(now)) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.health.healthy && !w.draining {
			f.sched.advance(w.event, now.Add(time.Duration(f.rand.Float64()*float64(every))))
		}
	}
}

// pauseLocked is the time to the next check of w; see maxIdleCheckRate.
func (f *Fleet) pauseLocked(w *Worker) time.Duration {
	d := w.health.next(&f.cfg.Health)
	if w.health.healthy && w.withheldLocked() {
		return min(firstRetry, d)
	}
	return max(d, f.idlePauseLocked(w))
}

// idlePauseLocked is the minimum pause between two checks of w if it is healthy and
// has no requests; else 0.
func (f *Fleet) idlePauseLocked(w *Worker) time.Duration {
	idle := time.Duration(len(f.workers)) * time.Second / maxIdleCheckRate
	if idle > f.cfg.Health.Interval && w.health.healthy && !w.health.failing() && f.requestsLocked(w) == 0 {
		return idle
	}
	return 0
}

// gatheredLocked is when something is done to w that is due at some time: in a large fleet
// what is due of idle workers is done several at a time, since to wake for each of them
// costs as much as the work itself.
func (f *Fleet) gatheredLocked(w *Worker, at admission.Instant) admission.Instant {
	if f.idlePauseLocked(w) == 0 {
		return at
	}
	return (at/admission.Instant(gatherPause) + 1) * admission.Instant(gatherPause)
}

// jitterLocked changes d by up to a tenth, so that checks do not synchronise.
func (f *Fleet) jitterLocked(d time.Duration) time.Duration {
	return d + time.Duration(float64(d)*(0.2*f.rand.Float64()-0.1))
}

func (f *Fleet) logCheck(w *Worker, before, after healthState, doubts bool, warnings []string) {
	log := f.log.With("worker", w.url, "id", w.id)
	switch {
	case after.healthy && !before.healthy:
		log.Info("worker is healthy", "first", !before.everHealthy)
	case before.healthy && !after.healthy:
		log.Warn("worker is unhealthy", "failures", after.failures, "why", after.reason)
	case !after.everHealthy && after.attempts == 1:
		log.Info("worker has not answered yet", "why", after.reason)
	}
	if after.dead && !before.dead {
		log.Warn("worker is dead", "why", after.reason)
	}
	if after.misconfigured != "" && after.misconfigured != before.misconfigured {
		log.Warn("worker is misconfigured", "about", after.misconfigured)
	}
	if doubts {
		for _, warning := range warnings {
			log.Warn("worker has a configuration warning", "about", warning)
		}
	}
}
