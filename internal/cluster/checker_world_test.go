package cluster

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// The model checker plays schedules of a cluster: some machines, a network and a store that
// fail, processes that stand still or die, and requests; all in virtual time, from a seed.
// This file has the world, checker_faults_test.go what happens to it, checker_requests_test.go
// the requests and what is counted of them, checker_test.go the schedules.

// world is one schedule.
type world struct {
	seed  uint64
	rnd   *rand.Rand
	now   admission.Instant // everybody's
	queue happenings
	count uint64

	o     Options // of every machine, but for Self and Random
	rough bool    // envelopes are lost, doubled and overtaken, too
	procs []*process
	byInc map[Incarnation]*process
	links map[[2]int]*link
	store simStore

	kind       kind
	long       bool // requests are in prefill for seconds
	limits     limits
	generation uint64 // of the configuration
	failure    string
	trace      []string
	tracing    bool
	names      int

	decided, refused, steps int
}

// happening is something that happens at a time.
type happening struct {
	at    admission.Instant
	order uint64
	do    func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = happening{}
	*h = (*h)[:len(*h)-1]
	return last
}

func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.queue, happening{w.now.Add(max(0, d)), w.count, do})
}

// run plays until a time, or until something is wrong.
func (w *world) run(until admission.Instant) {
	for len(w.queue) > 0 && w.failure == "" && w.queue[0].at <= until {
		if w.steps > 300_000 {
			w.fail("I5: too many steps; something goes on without end")
			return
		}
		h := heap.Pop(&w.queue).(happening)
		w.now = h.at
		w.steps++
		h.do()
	}
	w.now = max(w.now, until)
}

func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.note("FAILED: %s", w.failure)
	}
}

func (w *world) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%8.3f ", time.Duration(w.now).Seconds())+fmt.Sprintf(format, args...))
	}
}

// between draws a duration.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rnd.Int64N(int64(b-a)+1))
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

// process is one start of a router on a host; a host has one at a time. Links are between
// hosts.
type process struct {
	w      *world
	host   int
	name   string
	inc    Incarnation
	origin admission.Instant // of its clock
	fast   int64             // its clock gains so many of 1000
	m      *Machine
	alive  bool

	frozen     bool
	held       []func() // what came meanwhile
	freezeTake time.Duration
	tickAt     admission.Instant

	requests map[uint64]*request
	numbers  uint64
	closing  bool              // nothing arrives any more
	away     admission.Instant // since when it stands still or is cut off; 0: it is not
	late     admission.Instant // until when it may not be heard yet after it was away for long
	alone    bool              // it decides alone
}

// clock is the process's own time, and when says when it will be a time of that.
func (p *process) clock() admission.Instant {
	return p.origin + p.w.now + p.w.now/1000*admission.Instant(p.fast)
}

func (p *process) when(t admission.Instant) admission.Instant {
	if t == never {
		return never
	}
	t -= p.origin
	return t/admission.Instant(1000+p.fast)*1000 + admission.Instant(10*time.Microsecond)
}

// call runs something in the process, now or when it goes on.
func (p *process) call(do func(now admission.Instant)) {
	switch {
	case !p.alive:
	case p.frozen:
		p.held = append(p.held, func() { do(p.clock()) })
	default:
		do(p.clock())
		p.flush()
	}
}

// flush does what the machine asks for.
func (p *process) flush() {
	w := p.w
	times := 0
	for again := true; again && p.alive && !p.frozen && w.failure == ""; {
		again = false
		if times++; times > 1000 {
			w.fail("I5: %s asks for more without end", p.name)
		}
		if on := p.m.member.alone.on; on != p.alone {
			if p.alone = on; on && w.o.Fallback == FallbackShare {
				w.beganAlone()
			}
		}
		out := p.m.Out()
		for _, e := range out.Events {
			w.note("%s: %s %v", p.name, e.Message, e.Args)
		}
		if out.Store != nil {
			w.store.do(w, p, *out.Store)
		}
		for _, d := range out.Decided {
			p.decided(d)
		}
		for _, d := range out.Moved {
			p.moved(d)
		}
		for _, n := range out.Revoked {
			p.revoked(n)
		}
		for _, n := range out.Renew {
			if r := p.requests[n]; r != nil {
				again = true
				p.m.Refresh(p.clock(), n, r.attempt, &[2]admission.RequestHint{})
			}
		}
		for _, to := range p.m.Ready(nil) {
			if e := p.m.Take(p.clock(), to); e != nil {
				again = true
				if p.freezeTake > 0 && (hasGrant(e) || w.chance(0.01)) {
					// It stands still between taking and sending.
					d := p.freezeTake
					p.freezeTake = 0
					w.freeze(p, d)
					p.held = append(p.held, func() { w.send(p, e) })
					break
				}
				w.send(p, e)
			}
		}
	}
	if !p.alive || p.frozen || w.failure != "" {
		return
	}
	w.inspect(p)
	if at := p.when(p.m.NextDeadline()); at < p.tickAt {
		p.tickAt = max(at, w.now)
		p.tickLater()
	}
}

func (p *process) tickLater() {
	at := p.tickAt
	p.w.after(time.Duration(at-p.w.now), func() {
		if p.tickAt != at || !p.alive {
			return
		}
		p.tickAt = never
		p.call(p.m.Tick)
	})
}

// link is how envelopes go from one host to another.
type link struct {
	cut     bool
	buffers bool // what is sent while it is cut arrives afterwards
	slow    time.Duration
	lastAt  admission.Instant // the last arrival, which is not overtaken
	waiting []func()
}

func (w *world) link(from, to int) *link {
	l := w.links[[2]int{from, to}]
	if l == nil {
		l = &link{}
		w.links[[2]int{from, to}] = l
	}
	return l
}

func (w *world) send(p *process, e *Envelope) {
	to := w.byInc[e.To]
	if to != nil && !to.alive && to.host == p.host {
		w.after(time.Millisecond, func() { p.call(func(now admission.Instant) { p.m.LeadsHere(now, to.inc) }) })
	}
	if to == nil || !to.alive {
		return
	}
	if w.tracing && (len(e.Items) > 0 || len(e.Control) > 0) {
		w.note("%s -> %s: epoch %v office %d session %d/%d %s", p.name, to.name, e.Epoch, e.Office, e.Session, e.Seq, describe(e))
	}
	l := w.link(p.host, to.host)
	times := 1
	if w.rough {
		if w.chance(0.01) {
			return
		}
		times += b2i(w.chance(0.01))
	}
	for range times {
		w.carry(l, to, e)
	}
}

func (w *world) carry(l *link, to *process, e *Envelope) {
	if l.cut {
		if l.buffers && len(l.waiting) < 10_000 {
			l.waiting = append(l.waiting, func() { w.carry(l, to, e) })
		}
		return
	}
	d := w.between(100*time.Microsecond, 2*time.Millisecond)
	if l.slow > 0 {
		d += w.between(0, l.slow)
	}
	if w.rough && w.chance(0.005) {
		d += w.between(0, 2*w.o.Lease) // and is overtaken
	} else {
		d = max(d, time.Duration(l.lastAt-w.now))
		l.lastAt = w.now.Add(d)
	}
	w.after(d, func() {
		if l.cut && !l.buffers {
			return
		}
		copied := *e // a machine may keep what it is given
		copied.Items, copied.Control = slices.Clone(e.Items), slices.Clone(e.Control)
		to.call(func(now admission.Instant) { to.m.Receive(now, &copied) })
	})
}

func describe(e *Envelope) string {
	var s strings.Builder
	for _, c := range e.Control {
		fmt.Fprintf(&s, " control%d(%v %s)", c.Kind, c.Epoch, c.Reason)
	}
	for _, it := range e.Items {
		fmt.Fprintf(&s, " item%d(%d.%d %s", it.Kind, it.Number, it.Attempt, it.Op)
		if it.Granted {
			s.WriteString(" granted")
		}
		if r, ok := it.Body.(*Report); ok {
			fmt.Fprintf(&s, " %d holds %d waiters %d foreign", len(r.Holds), len(r.Waiters), len(r.Foreign))
			for _, h := range r.Holds {
				fmt.Fprintf(&s, " %d.%d %s %s", h.Ticket.Number, h.Attempt, h.Prefill, h.Decode)
			}
		}
		s.WriteString(")")
	}
	return s.String()
}

// simStore is the coordinator. While it is split, hosts with odd numbers use the other half.
type simStore struct {
	halves  [2]stored
	split   bool
	history []stored
	revs    int

	down    bool          // calls fail
	loses   bool          // calls have their effect, and fail
	lies    bool          // some calls do, with another delay
	slow    time.Duration // calls take up to so long
	cutFrom map[int]bool  // hosts that do not reach it
	writes  int
}

// stored is a record with its revision; "" is none.
type stored struct {
	record   *Record
	revision string
}

func (s *simStore) half(host int) *stored {
	if s.split && host%2 == 1 {
		return &s.halves[1]
	}
	return &s.halves[0]
}

func (s *simStore) do(w *world, p *process, op StoreOp) {
	delay := w.between(200*time.Microsecond, 3*time.Millisecond)
	if s.slow > 0 {
		delay = w.between(0, s.slow)
	}
	there := time.Duration(float64(delay) * w.rnd.Float64())
	fails := s.down || s.cutFrom[p.host]
	effect, answer := !fails, !fails
	if !fails && (s.loses || s.lies && w.chance(0.3)) {
		answer = false
	}
	if !fails && s.lies && w.chance(0.2) {
		there = w.between(0, 2*w.o.Lease) // it happens after the answer
		answer = false
	}
	result := StoreResult{ID: op.ID}
	happens := func() {
		k := s.half(p.host)
		switch {
		case !op.Write:
			result.Record, result.Revision = cloneRecord(k.record), k.revision
		case k.revision != op.Revision:
			result.Conflict = true
		default:
			s.revs++
			s.writes++
			*k = stored{cloneRecord(&op.Record), fmt.Sprint("r", s.revs)}
			s.history = append(s.history, *k)
			result.Revision = k.revision
			w.note("store: %s wrote epoch %v, members %v", p.name, op.Record.Epoch, names(op.Record.Members))
		}
	}
	if effect {
		w.after(there, happens)
	}
	w.after(delay, func() {
		p.call(func(now admission.Instant) {
			r := result
			if !answer {
				r = StoreResult{ID: op.ID, Err: errStore}
			}
			p.m.Stored(now, r)
		})
	})
}

type storeDown struct{}

func (storeDown) Error() string { return "no answer" }

var errStore = storeDown{}

func cloneRecord(r *Record) *Record {
	if r == nil {
		return nil
	}
	c := *r
	c.Members, c.Ended = slices.Clone(r.Members), slices.Clone(r.Ended)
	return &c
}

// start starts a process on a host.
func (w *world) start(host int, name string) *process {
	inc := Incarnation(w.rnd.Uint64() | 1)
	p := &process{
		w: w, host: host, name: name, inc: inc, alive: true, tickAt: never,
		origin: admission.Instant(w.rnd.Int64N(int64(time.Hour))), fast: w.rnd.Int64N(11) - 5,
		requests: map[uint64]*request{},
	}
	o := w.o
	o.Self = Member{Name: name, Incarnation: inc, Address: fmt.Sprintf("host%d:1", host), Versions: Versions{ProtocolMin, ProtocolVersion}, Build: "model"}
	rnd := rand.New(rand.NewPCG(w.seed, uint64(len(w.procs))))
	o.Random = rnd.Uint64
	o.Gate.Limits, o.Generation = w.limits.settings().Limits, w.generation
	p.m = NewMachine(o, p.clock())
	w.procs = append(w.procs, p)
	w.byInc[inc] = p
	w.note("%s starts on host %d as %v", name, host, inc)
	p.call(func(now admission.Instant) { p.m.Observe(now, w.limits.observation()) })
	p.call(p.m.Tick)
	p.clients()
	return p
}

// at is the living process on a host, or nil.
func (w *world) at(host int) *process {
	for _, p := range w.procs {
		if p.host == host && p.alive {
			return p
		}
	}
	return nil
}

func (w *world) living() (living []*process) {
	for _, p := range w.procs {
		if p.alive {
			living = append(living, p)
		}
	}
	return living
}

// deciding is who decides now, of those that run.
func (w *world) deciding() (who []*process) {
	for _, p := range w.procs {
		if p.alive && !p.frozen && p.m.keeper != nil {
			p.m.at(p.clock())
			if p.m.keeper.office() == OfficeDeciding {
				who = append(who, p)
			}
		}
	}
	return who
}

func (w *world) freeze(p *process, d time.Duration) {
	if !p.alive || p.frozen {
		return
	}
	w.note("%s stands still for %v", p.name, d)
	p.frozen = true
	if p.away == 0 {
		p.away = w.now
	}
	w.after(d, func() {
		if !p.alive {
			return
		}
		w.note("%s goes on", p.name)
		p.frozen = false
		w.back(p)
		held := p.held
		p.held = nil
		for _, do := range held {
			if !p.alive || w.failure != "" {
				return
			}
			if p.frozen { // once more
				p.held = append(p.held, do)
				continue
			}
			do()
			p.flush()
		}
		if !p.frozen {
			p.call(p.m.Tick)
		}
	})
}

func (w *world) crash(p *process) {
	if p == nil || !p.alive {
		return
	}
	w.note("%s is killed", p.name)
	p.alive = false
	p.requests = nil // what it had in engines is cancelled with its connections
}

func (p *process) tickets() int { return len(p.m.member.tickets) }

// nothingHeld checks I4: that the keeper counts nothing any more.
func (w *world) nothingHeld() {
	for _, p := range w.deciding() {
		for number, x := range p.m.keeper.tickets {
			if x != nil && x.seat != nil {
				w.fail("I4: the keeper %s still has ticket %d of %s", p.name, number, x.seat.Name)
				return
			}
		}
	}
}
