package admission

import (
	"encoding/json"
	"reflect"
	"slices"

	"pgregory.net/rapid"
)

// The model test takes each step by values that were written as JSON and read back.

// wired returns v as another process would read it.
func wired[T any](t *rapid.T, v T) (out T) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("cannot write %+v: %s", v, err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("cannot read %s: %s", b, err)
	}
	again, _ := json.Marshal(out)
	if string(again) != string(b) {
		t.Fatalf("%s was read as %s", b, again)
	}
	return out
}

// do takes a step and returns the tickets that were decided, but for one that arrived.
func (w *world) do(t *rapid.T, s Step) (done bool, decided []*Ticket) {
	t.Helper()
	s.Now = w.now
	w.steps++
	a := wired(t, w.port.Do(wired(t, s)))
	if a.Next != w.core.NextDeadline() {
		t.Fatalf("told to come again at %d, want %d", a.Next, w.core.NextDeadline())
	}
	return a.Done, w.decided(t, a, s.Ticket, s.Op == StepArrive)
}

func (w *world) decided(t *rapid.T, a Answer, but uint64, arrived bool) (decided []*Ticket) {
	t.Helper()
	for _, d := range a.Decided {
		k := w.port.tickets[d.Ticket]
		if d.Granted != (k.state == stateGranted) || d.Granted && (d.Decode != k.Decode.ref() || d.Prefill != k.Prefill.ref() || d.Choice != k.choice) ||
			!d.Granted && !reflect.DeepEqual(d.Refusal, k.refusal) || d.Class != k.ClassName() || d.Waited != k.waited || d.Queued != k.wasQueue || d.Lacked != k.lacked {
			t.Fatalf("told of %+v, but it is in state %d on %v", d, k.state, refOf(k.Decode))
		}
		if !arrived || d.Ticket != but {
			decided = append(decided, k)
		}
	}
	return decided
}

// rebuild goes on with a fresh core that is told what the old one knew.
func (w *world) rebuild(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "rebuild") < 3 {
		t.Skip("not yet")
	}
	s := wired(t, w.port.State())
	port, answer := Restore(w.now, s, w.options)
	for i, k := range wired(t, port.State()).Tickets {
		was := s.Tickets[i]
		if slices.ContainsFunc(answer.Decided, func(d Decision) bool { return d.Ticket == k.Ticket }) {
			continue // the reference tells what of it should be otherwise
		}
		if k.Status != StatusQueued {
			// It may be gone, and is found again now and not at the next arrival.
			k.ClassName, k.OrderBy = was.ClassName, was.OrderBy
		}
		if k.Reconsidered != was.Reconsidered { // who stood before it was decided
			k.Reconsidered, k.Target, k.Instead = was.Reconsidered, was.Target, was.Instead
		}
		k.Passes, k.Declined, k.DeclinesAt = was.Passes, was.Declined, was.DeclinesAt // compared with the reference later
		if !reflect.DeepEqual(k, was) {
			t.Fatalf("restored %+v as %+v", was, k)
		}
	}
	w.goOn(port)
	w.ref.rebuilt(w.now, w.tickets)
	w.ref.rebuilds++
	w.step(t, w.decided(t, answer, 0, false))
	for _, k := range w.tickets {
		w.checkAsked(t, k)
	}
}

// goOn has the reference go on with another port, to the same ranks and tickets.
func (w *world) goOn(port *Port) {
	w.port, w.core = port, port.core
	w.core.early = w.ref.evidence
	for _, r := range append(slices.Clone(w.ref.ranks), w.ref.gone...) {
		r.real = port.rank(r.real.ref())
	}
	for _, k := range w.tickets {
		k.real = port.tickets[k.number]
		k.renamed()
		if k.counter != nil {
			k.counter.rank = port.rank(k.counter.rank.ref())
		}
	}
	w.ref.warmUps = map[*pool]*refWarmUp{}
	fresh := map[*refRank]bool{}
	for _, r := range w.ref.ranks {
		fresh[r] = true
	}
	w.ref.beginWarmUps(fresh)
}

// rebuilt is what the gate knows no more on a fresh core: deficits, turns, fences, since
// when heads are blocked, pace, and how long queues were closed. Who was kept off by a
// fence may start.
func (m *reference) rebuilt(now Instant, all []*refTicket) {
	m.now, m.start, m.closed = now, now, 0
	m.deficit, m.cursor, m.paces = map[refQueue]int64{}, map[*profileQueue]int{}, map[refQueue]*refPace{}
	m.fences, m.groupGrants = map[*modelGroup]*refFence{}, map[*modelGroup]int{}
	m.total, m.runs = nil, [numLegs][]*refRun{}
	waiters := m.waiters
	m.waiters = nil
	for _, t := range all {
		m.resume(t)
	}
	for _, t := range waiters {
		t.endDecline(now)
		m.enter(t)
		m.waiters = append(m.waiters, t)
	}
	m.lookAll()
	m.drain(now)
}

// resume counts the holds of t that it has kept.
func (m *reference) resume(t *refTicket) {
	if t.class == nil {
		return
	}
	m.reclassify(t)
	if t.prefill == nil && t.decode == nil {
		return
	}
	p := m.paceOf(t.key())
	for l, r := range [...]*refRank{t.prefill, t.decode} {
		if r != nil {
			t.runs[l] = &refRun{t.runs[l].began, p}
			p.runs[l] = append(p.runs[l], t.runs[l])
			m.runs[l] = append(m.runs[l], t.runs[l])
		}
	}
}
