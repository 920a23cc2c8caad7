package fleet

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	// askPause is between two reads of the counters of a worker that makes no progress:
	// from the answer of one to the next.
	askPause = standStill
	// mostAskPause is that pause for a wedged worker, and for one that cannot be probed.
	mostAskPause = 5 * time.Second
	// countersTimeout is how long a read may take.
	countersTimeout = time.Second
	// schedulerTimeout is the least time that an answer of the scheduler is waited for.
	schedulerTimeout = 5 * time.Second
)

// questions are what is to be asked of a worker next.
type questions struct {
	dialect  engine.Dialect
	health   bool
	question *engine.Question // nil: none
	kinds    int              // of such questions that there are
	pause    time.Duration
	at       admission.Instant
}

// askLocked has the scheduler of w probed if a rank of it makes no progress, at once if
// one is suspect since this look.
func (f *Fleet) askLocked(w *Worker, suspects bool) {
	if w.asking && suspects {
		select {
		case w.askNow <- struct{}{}:
		default:
		}
	}
	if w.asking || !w.doubtedLocked() {
		return
	}
	w.asking = true
	f.askers.start(false, func() { f.askScheduler(w) })
}

// doubtedLocked tells whether some rank of w makes no progress.
func (w *Worker) doubtedLocked() bool {
	for _, r := range w.looked {
		if r.hang.state != advancing {
			return true
		}
	}
	return false
}

// askScheduler probes the scheduler of w until no rank of it is in doubt any more. It
// runs on a goroutine of its own.
func (f *Fleet) askScheduler(w *Worker) {
	ctx, cancel := context.WithCancel(f.ctx)
	var flights sync.WaitGroup
	defer flights.Wait()
	defer cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		q, more := f.nextQuestions(w)
		if !more {
			return
		}
		patience := max(2*f.cfg.Health.Wedge, schedulerTimeout)
		if q.health {
			flights.Go(func() { f.heardHealth(w, q.at, f.prober.scheduler(ctx, w, q.dialect, patience)) })
		}
		if q.question != nil {
			flights.Go(func() { f.heardAnswer(w, q, f.prober.answers(ctx, w, *q.question, patience)) })
		}
		f.readCounters(ctx, w, q.dialect)
		timer.Reset(q.pause)
		select {
		case <-timer.C:
		case <-w.askNow:
		case <-ctx.Done():
			return
		}
	}
}

// nextQuestions decides what is asked now. more is false when w is not to be asked any
// more.
func (f *Fleet) nextQuestions(w *Worker) (q questions, more bool) {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || w.removed && !w.legsLeft() || !w.doubtedLocked() {
		w.asking = false
		return q, false
	}
	q.dialect, q.pause, q.at = w.Dialect(), mostAskPause, now
	probed := q.dialect.SchedulerPath() != ""
	health, question := false, false
	for _, r := range w.looked {
		h := &r.hang
		s := &h.signs
		if h.state == silent || h.state == suspect && !(s.absent && (s.health.absent || !probed)) {
			q.pause = askPause
		} else if h.state == wedged {
			q.pause = min(q.pause, max(f.cfg.Health.Wedge, askPause))
		}
		if h.state == advancing {
			continue
		}
		// What costs the engine a generation is asked of a rank that is merely silent only
		// if its counters cannot tell, or if there is no time to look at them first.
		soon := h.state >= suspect || s.absent || s.unread || f.cfg.Health.Wedge < 2*mostLead
		health = health || probed && soon && !s.health.flying
		if h.state == silent {
			continue
		}
		// By gRPC nobody tells how many tokens were made, so that nothing else is left to ask.
		s.byQuestion = s.absent && !probed && q.dialect.TakesTokens()
		question = question || !probed && !s.question.flying && (h.state == wedged || s.idle() || s.byQuestion)
	}
	if question && len(w.models) > 0 {
		if all := q.dialect.SchedulerQuestions(w.models[0]); len(all) > 0 {
			q.question, q.kinds = &all[w.question%len(all)], len(all)
		}
	}
	q.health = health
	for _, r := range w.looked {
		h := &r.hang
		if h.state == advancing {
			continue
		}
		if q.health && !h.signs.health.flying {
			h.signs.health.flying, h.signs.health.asked = true, now
		}
		if h.state == silent {
			continue
		}
		if q.question != nil {
			h.signs.question.flying, h.signs.question.asked = true, now
		} else if question {
			h.signs.question.absent = true
		}
		if h.state == wedged && now.Sub(h.since) >= trialAfter && h.untriedLocked(probed) {
			f.progressLocked(r, now, "it cannot be probed, and is tried again")
		}
	}
	return q, true
}

// untriedLocked tells whether nothing can prove that the scheduler of a wedged rank runs
// again, but a request: nothing can be asked, or what answers may be another rank of its
// worker.
func (h *hangStatus) untriedLocked(probed bool) bool {
	s := &h.signs.question
	if probed {
		s = &h.signs.health
	}
	return s.absent || s.other
}

// readCounters reads the counters of w once.
func (f *Fleet) readCounters(ctx context.Context, w *Worker, d engine.Dialect) {
	sent, q := f.clock.Now(), f.askLoad(w)
	l, how := f.prober.counters(ctx, w, d, countersTimeout)
	now := f.clock.Now()
	if how == outcomeOK {
		f.storeLoads(w, &loads{Loads: *l}, q)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range w.looked {
		h := &r.hang
		if h.state == advancing {
			continue
		}
		switch how {
		case outcomeUnknown:
		case outcomeOK:
			if one, told := rankLoad(l, r.dp); !told {
				h.signs.absent = true
			} else if h.counters(sent, now, one, d.SchedulerPath() != "") {
				f.progressLocked(r, now, "its counters move")
			}
		case outcomeDenied:
			h.signs.absent = true
		case outcomeBusy:
			h.countersUnread()
		default:
			h.countersLost(sent, now)
		}
	}
}

// heardHealth takes an answer of the route that needs the scheduler into account.
func (f *Fleet) heardHealth(w *Worker, asked admission.Instant, r probeResult) {
	f.heard(w, asked, 1, r, func(s *signs) *probeSigns { return &s.health }, func(r *Rank) bool {
		// It is one rank that has answered: of several it need not be this one.
		s := &r.hang.signs
		return r.dps == 1 || s.absent || !s.counted
	}, "its scheduler answers")
}

// heardAnswer takes the answer to the small piece of work into account.
func (f *Fleet) heardAnswer(w *Worker, q questions, r probeResult) {
	if r.outcome == outcomeDenied {
		f.mu.Lock()
		w.question++
		f.mu.Unlock()
	}
	f.heard(w, q.at, q.kinds, r, func(s *signs) *probeSigns { return &s.question }, func(r *Rank) bool { return r.dps == 1 }, "its scheduler answers")
}

// heard takes the outcome of a probe into account, which was sent at asked and of which
// there are some kinds. proves tells whether a good one proves that the rank's scheduler
// runs.
func (f *Fleet) heard(w *Worker, asked admission.Instant, kinds int, p probeResult, of func(*signs) *probeSigns, proves func(*Rank) bool, why string) {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := w.wedgedLocked() // what answers after all ranks were wedged is taken for all
	for _, r := range w.looked {
		h := &r.hang
		s := of(&h.signs)
		if h.state == advancing {
			continue
		}
		if p.outcome == outcomeOK && !proves(r) {
			s.other = true
		}
		if !s.flying || s.asked != asked {
			// The doubt is younger than the question: only a good answer counts.
			if p.outcome == outcomeOK && (all || proves(r)) {
				f.progressLocked(r, now, why)
			}
			continue
		}
		s.flying = false
		switch p.outcome {
		case outcomeOK:
			if all || proves(r) {
				f.progressLocked(r, now, why)
			}
		case outcomeDenied:
			s.denied++
			s.absent = s.denied >= kinds
		case outcomeUnknown:
		default:
			s.refused++
		}
	}
}

// rankLoad is the part of an answer that is of a rank; all of it for a worker that is
// scheduled as a whole. told is false if there is none.
func rankLoad(l *engine.Loads, dp int) (load RankLoad, told bool) {
	if dp >= 0 {
		if dp >= len(l.Ranks) {
			return load, false
		}
		return l.Ranks[dp], true
	}
	for _, one := range l.Ranks {
		load = load.Plus(one)
	}
	load.Usage /= float64(max(len(l.Ranks), 1))
	return load, len(l.Ranks) > 0
}

// scheduler asks the route that needs the scheduler.
func (p *httpProber) scheduler(ctx context.Context, w *Worker, d engine.Dialect, within time.Duration) probeResult {
	status, _, err := p.askWithin(ctx, w, engine.Question{Path: d.SchedulerPath()}, within, -maxHealthBody)
	return schedulerResult(status, err, status/100 == 2)
}

// answers asks for a small piece of work.
func (p *httpProber) answers(ctx context.Context, w *Worker, q engine.Question, within time.Duration) probeResult {
	status, _, err := p.askWithin(ctx, w, q, within, maxProbeBody)
	if err == nil && status >= 500 && !behindAProxy(status) {
		return probeResult{outcome: outcomeDenied} // an engine that hangs answers nothing
	}
	return schedulerResult(status, err, status == http.StatusOK)
}

// schedulerResult is what an answer of the scheduler, or of what is in front of it, means.
// outcomeDenied: it cannot be asked so.
func schedulerResult(status int, err error, good bool) probeResult {
	switch {
	case err != nil && !upstream.EngineFault(err):
		return probeResult{outcome: outcomeUnknown}
	case err != nil:
		return probeResult{outcome: outcomeUnreachable}
	case good:
		return probeResult{outcome: outcomeOK}
	case status == http.StatusTooManyRequests: // by its front
		return probeResult{outcome: outcomeUnknown}
	case status/100 == 4, status == http.StatusNotImplemented:
		return probeResult{outcome: outcomeDenied}
	}
	return probeResult{outcome: outcomeBusy}
}

// counters reads the load of w. outcomeDenied: it does not tell any. outcomeBusy: it does
// not tell them now, but its front answers.
func (p *httpProber) counters(ctx context.Context, w *Worker, d engine.Dialect, within time.Duration) (*engine.Loads, outcome) {
	path := d.LoadsPath()
	if path == "" {
		return nil, outcomeDenied
	}
	ctx, cancel := context.WithCancel(ctx)
	failed, front := make(chan struct{}), make(chan bool, 1)
	go func() { front <- p.frontAnswers(ctx, w, d, within, failed) }()
	defer func() {
		if cancel(); front != nil {
			<-front
		}
	}()
	status, body, err := p.askWithin(ctx, w, engine.Question{Path: path}, within, maxFactsBody)
	if tooLarge(err) {
		return nil, outcomeDenied
	}
	if r := schedulerResult(status, err, status/100 == 2); r.outcome != outcomeOK {
		if r.outcome == outcomeUnreachable {
			close(failed)
			lives := <-front
			if front = nil; lives {
				return nil, outcomeBusy
			}
		}
		return nil, r.outcome
	}
	l, err := d.ReadLoads(body)
	if err != nil {
		return nil, outcomeDenied
	}
	return l, outcomeOK
}

// frontAnswers tells whether the engine's front answers, which needs no scheduler. It is
// asked when the other question has failed, or has been without an answer for a while.
func (p *httpProber) frontAnswers(ctx context.Context, w *Worker, d engine.Dialect, within time.Duration, failed <-chan struct{}) bool {
	timer := time.NewTimer(within / 4)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-failed:
	case <-ctx.Done():
		return false
	}
	status, _, err := p.askWithin(ctx, w, engine.Question{Path: d.AlivePath()}, within, -maxHealthBody)
	return err == nil && !behindAProxy(status)
}

// askWithin asks a question with a limit of its own in time; limit is that of send.
func (p *httpProber) askWithin(ctx context.Context, w *Worker, q engine.Question, within time.Duration, limit int) (status int, body []byte, err error) {
	r := &upstream.Request{Method: cmp.Or(q.Method, http.MethodGet), Path: q.Path, Header: probeHeader, Limits: upstream.Limits{Total: within}}
	if q.Body != nil {
		r.Header, r.Body = append(slices.Clone(probeHeader), upstream.Field{Name: "Content-Type", Value: "application/json"}), [][]byte{q.Body}
	}
	return p.send(ctx, w.endpoint, r, limit)
}
