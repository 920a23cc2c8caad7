package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// limits are the ranks of a schedule and what may be booked on each.
type limits struct {
	prefill, decode int   // ranks
	slots           int   // the limit in force
	most            int   // the highest that was ever in force
	calls           int64 // on a decode rank; 0: any number
	queueTimeout    time.Duration
	queueSize       int
}

func (l *limits) settings() admission.Settings {
	return admission.Settings{Limits: admission.Limits{
		PrefillSlots: l.slots, QueueSize: l.queueSize, QueueTimeout: l.queueTimeout, StarvationGuard: 5 * time.Second,
	}}
}

func (l *limits) observation() Observation {
	o := Observation{Full: true}
	add := func(id string, role admission.Role, running int64) {
		o.Ranks = append(o.Ranks, RankObservation{ID: id, Spec: admission.RankSpec{
			ID: id, Worker: id, Role: role, Models: []string{"m"}, PairGroup: "g",
			Limits: admission.RankLimits{Running: running}, State: admission.RankState{Healthy: true},
		}})
	}
	for i := range l.prefill {
		add("p"+string(rune('0'+i)), admission.RolePrefill, 0)
	}
	for i := range l.decode {
		add("d"+string(rune('0'+i)), admission.RoleDecode, l.calls)
	}
	return o
}

// request is one request of a process.
type request struct {
	p       *process
	number  uint64
	attempt uint32
	waits   bool
	came    admission.Instant // this attempt, everybody's time
	waited  time.Duration
	stood   time.Duration // its process did meanwhile

	prefill, decode           string
	holdsPrefill, holdsDecode bool
	grantedAt                 admission.Instant
	excused                   bool // see world.excused
	movedTo                   bool // its decode leg was moved
}

func (r *request) drop() { r.holdsPrefill, r.holdsDecode = false, false }

// clients lets requests come for as long as the process lives and is not closing.
func (p *process) clients() {
	w := p.w
	w.after(w.between(0, w.load()), func() {
		if !p.alive || p.closing {
			return
		}
		if !p.frozen {
			p.arrive()
		}
		p.clients()
	})
}

// load is twice the time between two requests of a process.
func (w *world) load() time.Duration { return 300 * time.Millisecond }

func (p *process) arrive() {
	p.numbers++
	r := &request{p: p, number: p.numbers}
	p.requests[r.number] = r
	p.try(r, false)
	if p.w.chance(0.1) { // its client leaves
		p.w.after(p.w.between(0, 2*p.w.o.Lease), func() { p.call(func(now admission.Instant) { p.leaves(now, r) }) })
	}
}

func (p *process) try(r *request, retry bool) {
	r.attempt++
	r.waits, r.came = true, p.w.now
	q := &admission.Request{
		Target: admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}, Legs: 1, PromptTokens: 100, Retry: retry,
	}
	if retry && p.w.chance(0.5) {
		q.Exclude[0] = []admission.RankRef{{ID: r.prefill}}
	}
	p.call(func(now admission.Instant) { p.m.Arrive(now, r.number, r.attempt, q) })
	p.watch(r, r.attempt)
}

// watch checks that an attempt is answered in time.
func (p *process) watch(r *request, attempt uint32) {
	w := p.w
	bound := max(0, w.limits.queueTimeout-r.waited)
	var look func()
	look = func() {
		if !p.alive || r.attempt != attempt || !r.waits {
			return
		}
		if p.frozen { // nobody can ask it; once it goes on it has a while
			w.after(100*time.Millisecond, look)
			r.stood = time.Duration(w.now)
			return
		}
		if r.stood > 0 && time.Duration(w.now)-r.stood < 100*time.Millisecond {
			w.after(100*time.Millisecond, look)
			return
		}
		w.fail("I3: request %d.%d of %s has no answer %v after it came; its bound is %v", r.number, attempt, p.name, w.now.Sub(r.came), bound)
	}
	w.after(bound+bound/100+110*time.Millisecond, look)
}

// decided takes the answer to a request.
func (p *process) decided(d Decided) {
	w := p.w
	w.decided++
	r := p.requests[d.Number]
	if r == nil || r.attempt != d.Attempt || !r.waits {
		w.fail("I3: %s was answered for %d.%d, which does not wait", p.name, d.Number, d.Attempt)
		return
	}
	r.waits = false
	if !d.Granted {
		w.note("%s: %d.%d refused: %v", p.name, d.Number, d.Attempt, d.Refusal.Reason)
		w.refused++
		p.finish(r)
		return
	}
	w.note("%s: %d.%d granted %s %s", p.name, d.Number, d.Attempt, d.Prefill, d.Decode)
	r.waited = d.Grant.Waited
	r.prefill, r.decode, r.grantedAt = d.Prefill, d.Decode, w.now
	r.holdsPrefill, r.holdsDecode, r.movedTo = d.Prefill != "", d.Decode != "", false
	w.overBooked(p, r)
	step := func(after time.Duration, do func(now admission.Instant)) {
		attempt := r.attempt
		w.after(after, func() {
			p.call(func(now admission.Instant) {
				if r.attempt == attempt && !r.waits {
					do(now)
				}
			})
		})
	}
	prefill := w.between(10*time.Millisecond, 400*time.Millisecond)
	if w.long {
		prefill = w.between(time.Second, 4*time.Second)
	}
	decode := prefill + w.between(10*time.Millisecond, 400*time.Millisecond)
	if w.chance(0.1) { // it fails, and is tried once more or not
		step(prefill/2, func(now admission.Instant) {
			p.release(now, r, admission.StepRelease)
			if r.attempt < 3 && !p.closing {
				w.after(w.between(0, 50*time.Millisecond), func() {
					p.call(func(now admission.Instant) {
						if !r.waits && p.requests[r.number] == r {
							p.try(r, true)
						}
					})
				})
				return
			}
			p.finish(r)
		})
		return
	}
	if w.chance(0.05) {
		step(prefill/2, func(now admission.Instant) {
			r.movedTo = true // it will not use the one it has
			p.m.Move(now, r.number, r.attempt, []string{r.decode})
		})
	}
	step(prefill, func(now admission.Instant) {
		p.release(now, r, admission.StepEndPrefill)
		p.m.Step(now, r.number, r.attempt, admission.StepFirstToken, 0)
		p.m.Step(now, r.number, r.attempt, admission.StepStartDecode, 0)
	})
	step(decode, func(now admission.Instant) {
		p.release(now, r, admission.StepEndDecode)
		p.finish(r)
	})
}

// release ends what a request holds, in the ledger before the machine hears of it: what a
// machine sends says it is over.
func (p *process) release(now admission.Instant, r *request, op admission.StepOp) {
	if r.holdsPrefill && op != admission.StepEndDecode {
		r.holdsPrefill = false
	}
	if r.holdsDecode && op != admission.StepEndPrefill {
		r.holdsDecode = false
	}
	p.m.Step(now, r.number, r.attempt, op, 0)
}

// finish ends a request: its ticket is closed.
func (p *process) finish(r *request) {
	if p.requests[r.number] != r {
		return
	}
	delete(p.requests, r.number)
	r.waits = false
	p.w.after(0, func() {
		p.call(func(now admission.Instant) {
			r.drop()
			p.m.Step(now, r.number, r.attempt, admission.StepForget, 0)
		})
	})
}

// leaves ends a request whose client is gone.
func (p *process) leaves(now admission.Instant, r *request) {
	if p.requests[r.number] != r {
		return
	}
	if r.waits {
		r.waits = false
		p.m.Step(now, r.number, r.attempt, admission.StepCancel, 0)
	} else {
		p.release(now, r, admission.StepRelease)
	}
	p.finish(r)
}

// moved takes another decode rank.
func (p *process) moved(d Moved) {
	r := p.requests[d.Number]
	if r == nil || r.attempt != d.Attempt || !d.Granted || !r.holdsDecode {
		return
	}
	// A leg whose prefill is running or done is never held: it may be above the limit.
	r.decode, r.movedTo = d.Decode, true
}

// revoked ends a prefill leg, as dispatch does when it is told to.
func (p *process) revoked(number uint64) {
	r := p.requests[number]
	if r == nil || r.waits {
		return
	}
	p.w.after(0, func() {
		p.call(func(now admission.Instant) {
			if !r.waits && r.holdsPrefill {
				p.release(now, r, admission.StepRelease)
				p.finish(r)
			}
		})
	})
}

// overBooked checks that what requests hold of the ranks of r is within the limits, by the
// row of the contract's table that the schedule belongs to.
func (w *world) overBooked(p *process, r *request) {
	slots, calls := 0, 0
	for _, q := range w.procs {
		for _, x := range q.requests {
			if w.excused(q, x) {
				continue
			}
			slots += b2i(x.holdsPrefill && x.prefill == r.prefill)
			calls += b2i(x.holdsDecode && x.decode == r.decode && !x.movedTo)
		}
	}
	if most := w.allowed(w.limits.most); slots > most {
		w.fail("I1: %d slots of %s are taken by the grant of %d.%d to %s; at most %d may be", slots, r.prefill, r.number, r.attempt, p.name, most)
	}
	if most := w.allowed(int(w.limits.calls)); w.limits.calls > 0 && calls > most {
		w.fail("I1: %d calls of %s are taken by the grant of %d.%d to %s; at most %d may be", calls, r.decode, r.number, r.attempt, p.name, most)
	}
}

// excused tells whether what a request holds may be beyond the limit:
//   - what a process that stood still beyond lost-secs has in engines, and the decode legs of
//     one that was cut off for so long (every row),
//   - what ran when a member without a keeper began to decide alone (row `share`).
func (w *world) excused(p *process, r *request) bool {
	if p.away > 0 && w.now.Sub(p.away) >= w.o.Lost-w.o.Lease/5 && r.grantedAt < p.away.Add(w.o.Lease) {
		r.excused = true
	}
	return r.excused
}

// allowed is how much of a limit may be taken, by what the schedule has:
//   - one member or one link at a time is lost, `refuse`: the limit,
//   - the same with `share`: and the share of one that is cut off beyond lost-secs,
//   - several at once, or a store that is split: up to twice.
func (w *world) allowed(limit int) int {
	switch {
	case w.kind == anything:
		return 2 * limit
	case w.o.Fallback == FallbackShare && w.beyondLost():
		return limit + (limit+1)/2
	}
	return limit
}

// beyondLost tells whether a process is or was cut off, or stood still, for longer than
// lost-secs, and has not been heard by the keeper since for long.
func (w *world) beyondLost() bool {
	for _, p := range w.procs {
		away := p.away > 0 && w.now.Sub(p.away) >= w.o.Lost-w.o.Lease
		if p.alive && (away || w.now < p.late) {
			return true
		}
	}
	return false
}

// beganAlone marks what runs when a process begins to decide alone.
func (w *world) beganAlone() {
	for _, q := range w.procs {
		for _, r := range q.requests {
			r.excused = r.excused || r.holdsPrefill || r.holdsDecode
		}
	}
}
