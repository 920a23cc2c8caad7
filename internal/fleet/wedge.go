package fleet

import (
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// A wedged scheduler is the usual way in which engines hang: the HTTP server lives, and
// requests never advance. This file judges the progress of one rank; wedge_watch.go looks
// at it, wedge_ask.go probes the scheduler.

const (
	// standStill is how long counters must stand still to count as a sign of a hang.
	standStill = time.Second
	// slowHealth and slowAnswer are how long a probe must be without an answer to count as
	// one. SGLang's health route takes a second when all is well.
	slowHealth = 1600 * time.Millisecond
	slowAnswer = 1200 * time.Millisecond
	// mostLead is how long before it may be suspect a silent rank is probed, half of the
	// setting at most: so its engine has that much longer for its answer.
	mostLead = time.Second
	// leastConfirm and confirmOf, in parts of the setting, are how long a suspicion must
	// last.
	leastConfirm = 1250 * time.Millisecond
	confirmOf    = 1.25
	// streamGraceOf is, in parts of the setting, how long the streams of a wedged rank
	// may go on to wait.
	streamGraceOf = 2
	// trialAfter is when a wedged rank that cannot be probed gets requests again.
	trialAfter = 30 * time.Second
)

// Rates at which a rank is assumed to compute prompts, in tokens per second, as long as
// it has not been seen to be slower. They are far below what engines do, because a
// prompt that takes its time must never look like a hang: one of a million tokens is
// given over eight minutes, in which no sign of life is needed at all.
const (
	slowPrompt     = 4000  // of a prompt, up to longPrompt tokens
	slowLongPrompt = 2000  // of its further tokens: attention grows with the square
	longPrompt     = 16384 // tokens
	restPrompts    = 20000 // of the prompts beside the longest
	transferRate   = 50000 // of KV cache that is fetched
	maxAllowance   = time.Hour
)

// allowance is the time in which some prompt must have been finished: the longest of
// them, the sum of the rest, and the transfers that legs wait for, all in tokens. rate is
// what was learned of the rank; 0: nothing.
func allowance(longest, rest, transfers int64, rate float64) time.Duration {
	slow, further, others := float64(slowPrompt), float64(slowLongPrompt), float64(restPrompts)
	if rate > 0 {
		slow, further = min(slow, rate/3), min(further, rate/6)
		others = min(max(rate/2, slow), 50_000)
	}
	seconds := float64(min(longest, longPrompt))/slow + float64(max(longest-longPrompt, 0))/further +
		float64(rest)/others + float64(transfers)/transferRate
	return time.Duration(min(seconds, maxAllowance.Seconds()) * float64(time.Second))
}

// hangState is where a rank is on the way to being wedged.
type hangState uint8

const (
	advancing hangState = iota
	// silent: no progress for nearly as long as the setting says, so that it is probed.
	silent
	// suspect: nor for as long as the setting says and its prompts are given.
	suspect
	wedged
)

// legsUnderWay is what a rank has to do.
type legsUnderWay struct {
	legs int
	// unbegun could advance and have not been begun to be answered, begun have been.
	unbegun, begun int
	// oldest is when the first of those could begin to advance.
	oldest admission.Instant
	// oldestPrefill and oldestDecode are when the oldest leg began whose prompt is being
	// computed, and the oldest whose answer is; valid if there is one.
	oldestPrefill, oldestDecode admission.Instant
	prefills, decodes           int
	longest, rest, transfers    int64 // tokens, as allowance takes them
}

// add takes a leg into account. probed: its engine can be asked whether its scheduler
// runs, so that legs which wait for another one are looked at too: it may be that their
// own engine is what the other waits for.
func (u *legsUnderWay) add(w *Watch, probed bool) {
	u.legs++
	begun, since := w.begun.Load() != 0, w.since.Load()
	if w.leg.Kind == LegDecode || begun {
		if u.decodes++; u.decodes == 1 || w.start < u.oldestDecode {
			u.oldestDecode = w.start
		}
	} else if u.prefills++; u.prefills == 1 || w.start < u.oldestPrefill {
		u.oldestPrefill = w.start
	}
	if since == waiting {
		if !probed {
			return
		}
		since = int64(w.start)
	}
	switch {
	case begun && w.leg.Kind == LegPrefill:
		return // its end is a formality
	case begun:
		since = max(since, w.begun.Load())
	}
	if u.unbegun+u.begun == 0 || admission.Instant(since) < u.oldest {
		u.oldest = admission.Instant(since)
	}
	if begun {
		u.begun++
	} else {
		u.unbegun++
	}
}

// addTokens takes the tokens of a leg into account that is still to be begun.
func (u *legsUnderWay) addTokens(w *Watch) {
	n := max(w.leg.Tokens, 0)
	switch {
	case w.begun.Load() != 0:
	case w.leg.Kind == LegDecode:
		u.transfers += n
	case n > u.longest:
		u.rest, u.longest = u.rest+u.longest, n
	default:
		u.rest += n
	}
}

// hangStatus is what is known of a rank's progress. It is guarded by Fleet.mu; but for its
// users it is a pure state machine.
type hangStatus struct {
	last  admission.Instant // when progress was last seen
	under legsUnderWay      // at the last look
	look  uint64            // number of that look

	state hangState
	since admission.Instant // of the state
	why   string            // of a suspicion or a hang
	// told: the log has the suspicion. streamsEnded: the streams of a wedged rank were
	// ended.
	told, streamsEnded bool
	total              int64 // times that it was found wedged
	// heldTokens are those of the longest prompt that it was computing when it was found
	// wedged, heldSince is since when it had made no progress then.
	heldTokens int64
	heldSince  admission.Instant

	signs signs
}

// signs are what probes found since the last progress.
type signs struct {
	health, question probeSigns

	// The counters. counted: they were read; before is what was read. lost: the last
	// read had no answer, and nor had the engine's front. still is when the first of the
	// reads was done that found them so, looked when the last was begun. absent: there are
	// none. unread: the engine's front answers, but does not tell them now, which proves
	// nothing.
	counted, lost, absent, unread bool
	before                        engine.RankLoad
	still, looked                 admission.Instant
	reads                         int

	// byQuestion: nothing tells of progress but the answer to a small piece of work.
	byQuestion bool
}

// probeSigns are what the probes of one kind found.
type probeSigns struct {
	flying  bool // one has no answer yet
	asked   admission.Instant
	refused int  // that failed
	denied  int  // that the engine does not take
	absent  bool // the engine has nothing to be asked so
	other   bool // one was answered, perhaps by another rank
}

// fails tells whether probes fail, which must be answered within a time.
func (p *probeSigns) fails(now admission.Instant, within time.Duration) bool {
	return !p.absent && (p.refused > 0 || p.flying && now.Sub(p.asked) >= within)
}

// progress takes a sign of progress into account.
func (h *hangStatus) progress(now admission.Instant) {
	h.last = now
	h.calm(now)
}

// calm forgets a suspicion, because of progress or because nothing is under way.
func (h *hangStatus) calm(now admission.Instant) {
	if h.state != advancing {
		h.state, h.since, h.why, h.told = advancing, now, "", false
	}
	h.signs = signs{}
}

// quiet is how long the rank was without progress, though it could have made some.
func (h *hangStatus) quiet(now admission.Instant) time.Duration {
	if h.under.unbegun+h.under.begun == 0 {
		return 0
	}
	return max(now.Sub(max(h.last, h.under.oldest)), 0)
}

// judge decides what becomes of a rank that made no progress since the last look, and
// when it may decide again, unless there is progress. rate is that of pace. It is not for
// one that is wedged.
func (h *hangStatus) judge(now admission.Instant, setting time.Duration, rate float64, probed bool) (next time.Duration) {
	u := &h.under
	quiet := h.quiet(now)
	if lead := min(setting/2, mostLead); quiet < setting-lead {
		h.calm(now)
		return setting - lead - quiet
	}
	if h.state == advancing {
		h.state, h.since = silent, now
	}
	patience := setting + allowance(u.longest, u.rest, u.transfers, rate)
	if h.state == silent && quiet < patience {
		return patience - quiet
	}
	if h.state == silent {
		h.state, h.since = suspect, now
		h.why = fmt.Sprintf("no progress for %s with %s", quiet.Round(10*time.Millisecond), u)
	}
	if left := confirmTime(setting) - now.Sub(h.since); left > 0 {
		return left
	}
	if h.proven(now, probed) {
		h.state, h.since = wedged, now
		h.why = fmt.Sprintf("no progress for %s with %s, and %s", quiet.Round(10*time.Millisecond), u, h.signs.String())
	}
	return 0
}

func (u *legsUnderWay) String() string {
	return fmt.Sprintf("%d requests that wait for an answer and %d streams", u.unbegun, u.begun)
}

// confirmTime is how long a suspicion must last to be a hang.
func confirmTime(setting time.Duration) time.Duration {
	return max(time.Duration(confirmOf*float64(setting)), leastConfirm)
}

// proven tells whether the probes say that the scheduler does not run. All that can say
// something must say so.
func (h *hangStatus) proven(now admission.Instant, probed bool) bool {
	s := &h.signs
	speaks := false
	if probed && !s.health.absent {
		if !s.health.fails(now, slowHealth) {
			return false
		}
		speaks = true
	}
	if !s.absent && !s.unread {
		if s.reads == 0 || s.looked.Sub(s.still) < standStill {
			return false
		}
		speaks = true
	}
	if !speaks {
		// The question is given the whole of its time: other clients' work may stand before it.
		return s.byQuestion && !s.unread && !s.question.other && s.question.refused > 0
	}
	// An engine that says that nothing runs may be right: a stream whose client reads
	// slowly is long over there, a picture is still being fetched for a prompt, a grammar
	// is compiled, or another engine has not sent its KV cache.
	if s.idle() && (!probed || s.health.absent) {
		return h.under.unbegun > 0 && s.question.fails(now, slowAnswer)
	}
	return true
}

// idle tells whether the engine says that nothing runs.
func (s *signs) idle() bool { return s.counted && !s.lost && s.before.Running == 0 }

// String tells what the probes found.
func (s *signs) String() string {
	switch {
	case s.lost:
		return "its counters cannot be read"
	case s.counted && s.health.refused > 0:
		return "its health route fails and its counters stand still"
	case s.counted && s.health.flying:
		return "its health route does not answer and its counters stand still"
	case s.byQuestion:
		return "a request for one token is not answered"
	case s.counted:
		return "its counters stand still"
	}
	return "its health route fails"
}

// counters takes a read of the counters into account, and tells whether they moved. sent
// and now are when it was begun and done. The use of the cache alone is not enough for an
// engine that cannot be probed: many a decode step leaves it as it was.
func (h *hangStatus) counters(sent, now admission.Instant, l engine.RankLoad, probed bool) (moved bool) {
	s := &h.signs
	s.absent, s.unread = l.Mark == 0 && (l.CacheMark == 0 || !probed), false
	first := !s.counted
	if first {
		s.reads = 0 // a read that was lost is no second look at what is read now
	}
	if !first {
		same := l.Running == s.before.Running && l.Waiting == s.before.Waiting
		moved = l.Mark != s.before.Mark || same && l.CacheMark != s.before.CacheMark
	}
	if s.counted, s.lost, s.before = true, false, l; s.reads == 0 {
		s.still = now
	}
	s.reads++
	s.looked = sent
	return moved
}

// countersLost takes a read into account that had no answer.
func (h *hangStatus) countersLost(sent, now admission.Instant) {
	s := &h.signs
	if s.lost, s.unread = true, false; s.reads == 0 {
		s.still = sent
	}
	s.reads++
	s.looked = now
}

// countersUnread takes a read into account that the engine's front answered with an
// error, or did not answer while it answered something else.
func (h *hangStatus) countersUnread() {
	s := &h.signs
	s.counted, s.lost, s.unread, s.reads = false, false, true, 0
}
