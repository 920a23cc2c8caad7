package cluster

import (
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// kind is what may happen in a schedule.
type kind uint8

const (
	// oneAtATime: one process or one link is lost at a time, or the store is; before the next
	// all have a keeper again.
	oneAtATime kind = iota
	// anything: what is lost is not waited for, the store may be split, and envelopes are
	// lost, doubled and overtaken.
	anything
)

// fault is one thing that happens. It returns what ends it, after a time.
type fault struct {
	name string
	// does begins it; nil: it could not, and nothing happened.
	does func(w *world) (ends func(), after time.Duration)
}

// some draws how long a fault is on: around the lease, and sometimes around lost-secs.
func (w *world) some() time.Duration {
	lease := w.o.Lease
	switch w.rnd.IntN(8) {
	case 0, 1:
		return w.between(lease/10, lease/2)
	case 2, 3, 4:
		return w.between(lease/2, lease*3/2)
	case 5, 6:
		return w.between(lease, 3*lease)
	}
	return w.between(w.o.Lost-lease, w.o.Lost+2*lease)
}

// victim is a living process, the keeper as often as the others together.
func (w *world) victim() *process {
	if d := w.deciding(); len(d) > 0 && w.chance(0.5) {
		return d[0]
	}
	living := w.living()
	if len(living) == 0 {
		return nil
	}
	return living[w.rnd.IntN(len(living))]
}

func (w *world) host() int {
	if p := w.victim(); p != nil {
		return p.host
	}
	return 0
}

const mostHosts = 5

func (w *world) newName() string {
	w.names++
	return fmt.Sprintf("n%d", w.names)
}

var faults = []fault{
	{"freeze", func(w *world) (func(), time.Duration) {
		if p := w.victim(); p != nil {
			d := w.some()
			w.freeze(p, d)
			return func() { w.back(p) }, d
		}
		return nil, 0
	}},
	{"freeze between taking and sending", func(w *world) (func(), time.Duration) {
		if p := w.victim(); p != nil {
			d := w.some()
			p.freezeTake = d
			return func() { p.freezeTake = 0; w.back(p) }, d + w.o.Lease
		}
		return nil, 0
	}},
	{"freeze the keeper with many grants in hand", func(w *world) (func(), time.Duration) {
		d := w.deciding()
		if len(d) == 0 {
			return nil, 0
		}
		k := d[0]
		k.freezeTake = w.between(w.o.Lease, 4*w.o.Lease)
		w.generation++ // a higher limit starts several waiters at once
		w.limits.slots++
		w.limits.most = max(w.limits.most, w.limits.slots)
		s, g := w.limits.settings(), w.generation
		w.note("%d slots a rank from now on", w.limits.slots)
		for _, p := range w.living() {
			p.call(func(now admission.Instant) { p.m.Configure(now, g, s) })
		}
		return func() { k.freezeTake = 0 }, k.freezeTake + w.o.Lease
	}},
	{"crash", func(w *world) (func(), time.Duration) {
		p := w.victim()
		if p == nil || len(w.living()) == 1 && w.chance(0.8) {
			return nil, 0
		}
		w.crash(p)
		if w.chance(0.3) {
			return func() {}, 0
		}
		name := p.name
		if w.chance(0.3) {
			name = w.newName()
		}
		return func() { w.start(p.host, name) }, w.between(0, 2*w.o.Lease)
	}},
	{"cut off", func(w *world) (func(), time.Duration) {
		host, out, in, buffers := w.host(), w.chance(0.7), w.chance(0.7), w.chance(0.5)
		if !out && !in {
			return nil, 0
		}
		p := w.at(host)
		w.note("host %d is cut off, to it %v, from it %v", host, in, out)
		if w.chance(0.5) {
			w.store.cutFrom[host] = true
		}
		for other := range mostHosts {
			if other != host {
				w.cut(host, other, out, buffers)
				w.cut(other, host, in, buffers)
			}
		}
		w.isAway(p)
		return func() {
			delete(w.store.cutFrom, host)
			for other := range mostHosts {
				w.heal(host, other)
				w.heal(other, host)
			}
			w.back(p)
		}, w.some()
	}},
	{"cut a link", func(w *world) (func(), time.Duration) {
		a, b := w.host(), w.rnd.IntN(mostHosts)
		if a == b || w.at(b) == nil {
			return nil, 0
		}
		buffers := w.chance(0.5)
		w.note("the link of hosts %d and %d is cut", a, b)
		w.cut(a, b, true, buffers)
		w.cut(b, a, w.chance(0.5), buffers)
		pa, pb := w.at(a), w.at(b)
		w.isAway(pa, pb)
		return func() { w.heal(a, b); w.heal(b, a); w.back(pa); w.back(pb) }, w.some()
	}},
	{"slow link", func(w *world) (func(), time.Duration) {
		a, b := w.host(), w.rnd.IntN(mostHosts)
		l := w.link(a, b)
		l.slow = w.between(0, w.o.Lease)
		pa, pb := w.at(a), w.at(b)
		w.isAway(pa, pb)
		return func() { l.slow = 0; w.back(pa); w.back(pb) }, w.some()
	}},
	{"leave", func(w *world) (func(), time.Duration) {
		p := w.victim()
		if p == nil || len(w.living()) < 2 {
			return nil, 0
		}
		w.leave(p)
		return func() { w.start(p.host, w.newName()) }, w.between(3*w.o.Lease, 4*w.o.Lease)
	}},
	{"hand over", func(w *world) (func(), time.Duration) {
		for _, p := range w.deciding() {
			w.note("%s hands over", p.name)
			p.call(func(now admission.Instant) { p.m.HandOver(now) })
		}
		return func() {}, 0
	}},
	{"hand over while a link is slow", func(w *world) (func(), time.Duration) {
		d := w.deciding()
		if len(d) == 0 {
			return nil, 0
		}
		p := d[0]
		l := w.link(p.host, w.rnd.IntN(mostHosts))
		l.slow = w.o.Lease * 3 / 4
		w.after(w.between(0, w.o.Lease/2), func() {
			w.note("%s hands over", p.name)
			p.call(func(now admission.Instant) { p.m.HandOver(now) })
		})
		return func() { l.slow = 0 }, w.o.Lease
	}},
	{"join", func(w *world) (func(), time.Duration) {
		for host := range mostHosts {
			if w.at(host) == nil {
				w.start(host, w.newName())
				return func() {}, 0
			}
		}
		return nil, 0
	}},
	{"reload", func(w *world) (func(), time.Duration) {
		w.generation++
		w.limits.slots = 1 + w.rnd.IntN(3)
		w.limits.most = max(w.limits.most, w.limits.slots)
		w.note("%d slots a rank from now on", w.limits.slots)
		for _, p := range w.living() {
			s, g := w.limits.settings(), w.generation
			w.after(w.between(0, w.o.Lease), func() {
				p.call(func(now admission.Instant) { p.m.Configure(now, g, s) })
			})
		}
		return func() {}, w.o.Lease
	}},
	{"store down", func(w *world) (func(), time.Duration) {
		w.store.down = true
		return func() { w.store.down = false }, w.some()
	}},
	{"store loses answers", func(w *world) (func(), time.Duration) {
		w.store.loses = true
		return func() { w.store.loses = false }, w.some()
	}},
	{"store lies", func(w *world) (func(), time.Duration) {
		w.store.lies = true
		return func() { w.store.lies = false }, w.some()
	}},
	{"store slow", func(w *world) (func(), time.Duration) {
		w.store.slow = w.between(0, 2*w.o.Lease)
		return func() { w.store.slow = 0 }, w.some()
	}},
	{"store restored", func(w *world) (func(), time.Duration) {
		if h := w.store.history; len(h) > 0 {
			w.store.revs++
			w.store.halves[0] = stored{h[w.rnd.IntN(len(h))].record, fmt.Sprint("r", w.store.revs)}
			w.note("the store is restored to epoch %v", w.store.halves[0].record.Epoch)
		}
		return func() {}, 0
	}},
	{"store emptied", func(w *world) (func(), time.Duration) {
		w.store.halves[0] = stored{}
		w.note("the store is emptied")
		if w.chance(0.5) {
			return func() {}, 0
		}
		return func() { // and another comes just then
			for host := range mostHosts {
				if w.at(host) == nil {
					w.start(host, w.newName())
					return
				}
			}
		}, w.between(0, w.o.WriteStore)
	}},
	{"store split", func(w *world) (func(), time.Duration) {
		if w.kind != anything {
			return nil, 0
		}
		w.store.split = true
		w.store.halves[1] = w.store.halves[0]
		w.note("the store is split")
		return func() {
			w.store.split = false
			if w.chance(0.5) {
				w.store.halves[0] = w.store.halves[1]
			}
		}, w.some()
	}},
}

func (w *world) cut(from, to int, really, buffers bool) {
	if really {
		l := w.link(from, to)
		l.cut, l.buffers = true, buffers
	}
}

func (w *world) heal(from, to int) {
	l := w.link(from, to)
	l.cut = false
	waiting := l.waiting
	l.waiting = nil
	for _, again := range waiting {
		again()
	}
}

// isAway notes that processes may not be heard by others from now on.
func (w *world) isAway(all ...*process) {
	for _, p := range all {
		if p != nil && p.away == 0 {
			p.away = w.now
		}
	}
}

// back notes that a process is there again. What it did before is forgiven for a while.
func (w *world) back(p *process) {
	if p == nil || p.frozen {
		return
	}
	for _, r := range p.requests {
		w.excused(p, r)
	}
	if p.away > 0 && w.now.Sub(p.away) >= w.o.Lost-w.o.Lease {
		p.late = w.now.Add(w.o.Lease + 4*w.o.Silent)
	}
	p.away = 0
}

// leave ends a process as a router is ended: it hands over, lets requests finish, and says
// goodbye.
func (w *world) leave(p *process) {
	w.note("%s is told to end", p.name)
	p.closing = true
	p.call(func(now admission.Instant) { p.m.StopArrivals(now); p.m.HandOver(now) })
	var wait func()
	until := w.now.Add(3 * w.o.Lease)
	wait = func() {
		if !p.alive {
			return
		}
		if (len(p.requests) > 0 || p.m.keeper != nil) && w.now < until {
			w.after(20*time.Millisecond, wait)
			return
		}
		p.call(func(now admission.Instant) {
			for _, r := range p.requests {
				p.leaves(now, r)
			}
			p.m.Leave(now)
		})
		w.after(w.between(0, 50*time.Millisecond), func() {
			w.note("%s has ended", p.name)
			p.alive, p.requests = false, nil
		})
	}
	w.after(0, wait)
}

// whole tells whether all that live have one keeper that decides, are listed, and know it;
// or what is missing.
func (w *world) whole() (missing string) {
	d := w.deciding()
	switch {
	case len(w.living()) == 0:
		return ""
	case len(d) == 0:
		return "nobody decides"
	case len(d) > 1:
		return fmt.Sprintf("%s and %s decide", d[0].name, d[1].name)
	}
	k := d[0]
	for _, p := range w.living() {
		switch {
		case p.frozen:
			return p.name + " stands still"
		case p.m.election.promised != k.m.keeper.epoch:
			return p.name + " obeys another"
		case !containsMember(k.m.election.hadList, p.inc):
			return p.name + " is not listed"
		case !p.m.election.hears():
			return p.name + " does not hear the keeper"
		}
	}
	if r := w.store.halves[0].record; r == nil || r.Epoch != k.m.keeper.epoch {
		return "the store has another record"
	}
	return ""
}

func containsMember(list []Member, who Incarnation) bool {
	for _, x := range list {
		if x.Incarnation == who {
			return true
		}
	}
	return false
}
