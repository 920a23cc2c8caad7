package admission

import (
	"math"
	"time"
)

const (
	// paceEvidence is how many admissions of the last half minute are enough to go
	// by them alone. With fewer, what runs tells more: after a quiet time, and at
	// first, the count is of those who came, not of those who can be served.
	paceEvidence = 20
	// holdMemory is how many of the last holds the mean is of, about.
	holdMemory = 32
	// leastGuess is the shortest that a hold is taken to last while none has ended.
	leastGuess = 5 * time.Second
	// leastHold keeps the pace of holds that end at once finite.
	leastHold = time.Microsecond
)

// pace is how fast the requests of one queue start: by what was counted and by what
// runs.
type pace struct {
	runs    [numLegs]running
	granted uint64 // since the queue was made

	// The unbroken stretch in which somebody has waited: since when, and granted then.
	since       Instant
	grantedThen uint64

	rate rateMeter
}

// perSecond is the pace; leg is the one whose holds have to end for a request to
// start.
func (p *pace) perSecond(now, start Instant, leg Leg) float64 {
	r := p.rate.perSecond(now, start)
	if p.rate.sum < paceEvidence {
		r = max(r, p.runs[leg].perSecond(now))
	}
	return r
}

// leastStretch is the shortest time of unbroken waiting that shows a pace.
const leastStretch = time.Second

// stretch is how long somebody has waited all the time; 0: nobody waits.
func (q *classQueue) stretch(now Instant) time.Duration {
	if q.n == 0 {
		return 0
	}
	return now.Sub(q.pace.since)
}

// atBest is the fastest that the queue is known to be: by what was counted over the
// last half minute, by what runs, and by what was granted in the present stretch of
// waiting. What a client is refused for must not rest on a count that is low because
// few came.
func (q *classQueue) atBest(now, start Instant, leg Leg) float64 {
	p := &q.pace
	r := max(p.rate.perSecond(now, start), p.runs[leg].perSecond(now))
	if d := q.stretch(now); d >= leastStretch {
		r = max(r, float64(p.granted-p.grantedThen)/d.Seconds())
	}
	return r
}

// totalPace is the pace of all queues together. How long a hold lasts is what q, the
// queue of the one who asks, knows of it: so nothing is added up over queues.
func (qs *queues) totalPace(now Instant, q *classQueue, leg Leg) float64 {
	r := qs.total.perSecond(now, qs.start)
	if qs.total.sum >= paceEvidence {
		return r
	}
	all, own := qs.runs[leg], &q.pace.runs[leg]
	all.mean, all.ended = own.mean, own.ended
	return max(r, all.perSecond(now))
}

// running is the holds of one leg that are under way, and how long such holds last.
type running struct {
	// began is the sum of the instants at which they began. It may wrap around;
	// differences to it do not.
	began Instant
	mean  time.Duration // of the holds that have ended
	n     int32
	ended int32 // how many of them the mean knows, up to holdMemory
}

func (r *running) begin(now Instant) {
	r.n++
	r.began += now
}

func (r *running) drop(began Instant) {
	r.n--
	r.began -= began
}

func (r *running) end(began, now Instant) {
	r.drop(began)
	d := now.Sub(began) - r.mean
	if r.ended < holdMemory {
		r.ended++
		r.mean += d / time.Duration(r.ended)
	} else {
		r.mean += d / holdMemory // a constant power of two: no division
	}
}

// age is how long those that run have run, on average.
func (r *running) age(now Instant) time.Duration {
	if r.n == 0 {
		return 0
	}
	return (now*Instant(r.n) - r.began).Sub(0) / time.Duration(r.n)
}

// perSecond is how many holds end a second: as many as run, in the time that one
// lasts. That is the mean of those that ended, or the mean age of those that run
// when they are older; and while none has ended twice that age.
func (r *running) perSecond(now Instant) float64 {
	if r.n == 0 {
		return 0
	}
	hold := r.age(now)
	if r.ended == 0 {
		hold = max(2*hold, leastGuess)
	} else {
		hold = max(hold, r.mean, leastHold)
	}
	return float64(r.n) / hold.Seconds()
}

// beginRuns counts the admission of t and the holds that it takes.
func (qs *queues) beginRuns(now Instant, t *Ticket) {
	p := &t.queue().pace
	t.granted, t.counted = now, p
	p.granted++
	p.rate.add(now)
	qs.total.add(now)
	if t.Prefill != nil {
		p.runs[PrefillLeg].begin(now)
		qs.runs[PrefillLeg].begin(now)
	}
	p.runs[DecodeLeg].begin(now)
	qs.runs[DecodeLeg].begin(now)
}

func (qs *queues) endRun(now Instant, t *Ticket, l Leg) {
	t.counted.runs[l].end(t.granted, now)
	qs.runs[l].drop(t.granted)
}

// legOf is the leg whose holds have to end before t, which lacks that, can start.
func (t *Ticket) legOf(lack Resource) Leg {
	if t.Target.shape == Disaggregated && lack != ResourceDecode && lack != ResourceDecodeBlocks {
		return PrefillLeg
	}
	return DecodeLeg
}

// resumeRuns counts the holds that t has kept, without their admission.
func (qs *queues) resumeRuns(t *Ticket) {
	if !t.holdsPrefill && !t.holdsDecode {
		return
	}
	t.counted = &t.queue().pace
	for l, held := range [...]bool{t.holdsPrefill, t.holdsDecode} {
		if held {
			t.counted.runs[l].begin(t.granted)
			qs.runs[l].begin(t.granted)
		}
	}
}

// rateWindow is the time over which admissions are counted.
const rateWindow = 30

// rateMeter counts admissions in one-second buckets.
type rateMeter struct {
	counts [rateWindow]uint32
	sum    uint64
	last   int64 // the second the newest bucket stands for
}

func (m *rateMeter) advance(now Instant) {
	if sec := int64(now) / int64(time.Second); sec > m.last {
		m.roll(sec) // apart, so that what mostly happens is inlined
	}
}

func (m *rateMeter) roll(sec int64) {
	if sec-m.last >= rateWindow {
		m.counts = [rateWindow]uint32{}
		m.sum = 0
	} else {
		for s := m.last + 1; s <= sec; s++ {
			i := s % rateWindow
			m.sum -= uint64(m.counts[i])
			m.counts[i] = 0
		}
	}
	m.last = sec
}

func (m *rateMeter) add(now Instant) {
	m.advance(now)
	m.counts[m.last%rateWindow]++
	m.sum++
}

// addMany counts n at once; rateMeter then counts something else than admissions.
func (m *rateMeter) addMany(now Instant, n int64) {
	m.advance(now)
	c := &m.counts[m.last%rateWindow]
	fits := min(uint64(max(n, 0)), uint64(math.MaxUint32-*c))
	*c += uint32(fits)
	m.sum += fits
}

// perSecond returns the admissions a second over the window, or over the time
// since start when that is shorter, but at least a second.
func (m *rateMeter) perSecond(now, start Instant) float64 {
	m.advance(now)
	window := min(max(now.Sub(start), time.Second), rateWindow*time.Second)
	return float64(m.sum) / window.Seconds()
}

// closedClock adds up how long a model group's queue was blocked, and by what.
type closedClock struct {
	queues *queues
	class  *[numResources]time.Duration // of Core.closedBy
	by     Resource
	since  Instant
}

func (c *closedClock) set(by Resource, now Instant) {
	if by == c.by {
		return
	}
	if c.by != ResourceNone {
		c.queues.closedFor[c.by] += now.Sub(c.since)
		c.class[c.by] += now.Sub(c.since)
	}
	c.by, c.since = by, now
}

// closedOf is the times of the class of that name.
func (qs *queues) closedOf(class string) *[numResources]time.Duration {
	times := qs.closedBy[class]
	if times == nil {
		if qs.closedBy == nil {
			qs.closedBy = map[string]*[numResources]time.Duration{}
		}
		times = new([numResources]time.Duration)
		qs.closedBy[class] = times
	}
	return times
}
