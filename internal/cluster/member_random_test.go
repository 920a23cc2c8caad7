package cluster

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/admission"
)

// modelKeeper is a keeper that grants and refuses as it is drawn, over a network that loses,
// repeats and delays what is sent each way. It keeps sessions as a keeper does.
type modelKeeper struct {
	*fakeKeeper
	t       *rapid.T
	known   map[uint64]*modelTicket
	whole   *Report // the parts that have come
	toM     []*Envelope
	toK     []*Envelope
	resync  bool
	seen    uint64 // the highest stamp
	waiting bool   // for a report
}

type modelTicket struct {
	attempt       uint32
	waits         bool
	prefill, held bool // holds
}

// receive takes one envelope at the keeper.
func (k *modelKeeper) receive(e *Envelope) {
	k.seen = max(k.seen, e.Stamp)
	k.fakeKeeper.echo = k.seen
	begins := false
	if len(e.Items) > 0 {
		r, _ := e.Items[0].Body.(*Report)
		begins = r != nil && r.First
	}
	switch {
	case e.Session < k.session:
		return
	case e.Session > k.session && (e.Seq != 1 || !begins):
		k.resync = true
		return
	case e.Session > k.session:
		k.session, k.seqIn, k.seqOut, k.whole, k.waiting = e.Session, 0, 0, nil, true
	}
	switch {
	case e.Seq > k.seqIn+1, len(e.Items) == 0 && e.Seq > k.seqIn:
		k.resync = true
		return
	case len(e.Items) == 0, e.Seq <= k.seqIn:
		return
	}
	k.seqIn = e.Seq
	for i := range e.Items {
		k.item(&e.Items[i])
	}
}

func (k *modelKeeper) item(it *Item) {
	if r, _ := it.Body.(*Report); r != nil {
		if r.First {
			k.whole = &Report{}
		}
		k.whole.Holds, k.whole.Waiters = append(k.whole.Holds, r.Holds...), append(k.whole.Waiters, r.Waiters...)
		if r.Last {
			k.known, k.waiting = map[uint64]*modelTicket{}, false
			for _, h := range k.whole.Holds {
				k.known[h.Ticket.Number] = &modelTicket{attempt: h.Attempt, held: true, prefill: h.Hold.HoldsPrefill}
			}
			for _, w := range k.whole.Waiters {
				k.known[w.Number] = &modelTicket{attempt: w.Attempt, waits: true}
			}
		}
		return
	}
	x := k.known[it.Number]
	switch it.Kind {
	case ItemArrive:
		if x == nil || it.Attempt > x.attempt {
			k.known[it.Number] = &modelTicket{attempt: it.Attempt, waits: true}
		}
	case ItemStep:
		if x == nil || it.Op != admission.StepForget && x.attempt != it.Attempt {
			return
		}
		switch it.Op {
		case admission.StepCancel, admission.StepRelease, admission.StepEndDecode:
			x.waits, x.held = false, false
		case admission.StepForget:
			delete(k.known, it.Number)
		case admission.StepEndPrefill:
			x.prefill = false
		}
	}
}

// decide grants or refuses one that waits.
func (k *modelKeeper) decide(number uint64, grant bool) {
	x := k.known[number]
	x.waits, x.held, x.prefill = false, grant, grant
	it := Item{Kind: ItemDecision, Number: number, Attempt: x.attempt, Body: &Refused{Refusal: admission.Refusal{Reason: admission.NoWorkers}}}
	if grant {
		it = k.grant(number, x.attempt, "p1", "d1")
	}
	k.toM = append(k.toM, k.envelope(it))
}

// flush takes what the member has to send.
func (k *modelKeeper) flush() {
	for k.m.ready(k.m.peers[keeperID]) {
		k.toK = append(k.toK, k.m.Take(k.now, keeperID))
	}
}

func (k *modelKeeper) beat() {
	e := k.envelope()
	if k.resync {
		e.Control, k.resync = []Control{{Kind: ControlResync}}, false
	}
	k.toM = append(k.toM, e)
}

// Whatever the network does, each attempt gets one decision, and what was granted is held
// here and at the keeper until it is released, and then at neither.
func TestMemberOverANetworkThatLosesRepeatsAndReorders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &modelKeeper{fakeKeeper: newMember(nil, func(o *Options) { o.Gate.Limits.QueueTimeout = time.Minute }), t: t, known: map[uint64]*modelTicket{}}
		k.seen = k.fakeKeeper.echo
		type attempt struct {
			number  uint64
			attempt uint32
		}
		open := map[attempt]bool{} // arrived, without a decision
		held := map[uint64]uint32{}
		next, attempts := uint64(1), map[uint64]uint32{}
		settle := func() {
			k.gather()
			for _, d := range k.out.Decided {
				a := attempt{d.Number, d.Attempt}
				if !open[a] {
					t.Fatalf("%+v was decided without waiting", d)
				}
				delete(open, a)
				if d.Granted {
					held[d.Number] = d.Attempt
				}
			}
			k.out.Decided = nil
		}
		take := func(q *[]*Envelope) (e *Envelope) {
			i := rapid.IntRange(0, min(len(*q)-1, 3)).Draw(t, "which")
			e = (*q)[i]
			if rapid.IntRange(0, 5).Draw(t, "repeated") > 0 {
				*q = append((*q)[:i:i], (*q)[i+1:]...)
			}
			return e
		}
		pick := func(from map[uint64]uint32) uint64 {
			for n := uint64(1); n < next; n++ {
				if _, ok := from[n]; ok && rapid.Bool().Draw(t, "this") {
					return n
				}
			}
			return 0
		}
		step := func(n uint64, op admission.StepOp) {
			k.m.Step(k.now, n, attempts[n], op, 0)
			switch op {
			case admission.StepCancel:
				delete(open, attempt{n, attempts[n]})
				delete(held, n)
			case admission.StepRelease:
				delete(held, n)
			}
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 0, 1:
				n := next
				if rapid.Bool().Draw(t, "again") {
					if old := pick(attempts); old > 0 && held[old] == 0 && !open[attempt{old, attempts[old]}] {
						n = old
					}
				}
				next = max(next, n+1)
				attempts[n]++
				open[attempt{n, attempts[n]}] = true
				k.m.Arrive(k.now, n, attempts[n], pdRequest())
			case 2:
				if n := pick(attempts); n > 0 && open[attempt{n, attempts[n]}] {
					step(n, admission.StepCancel)
				}
			case 3:
				if n := pick(held); n > 0 {
					step(n, admission.StepEndPrefill)
				}
			case 4:
				if n := pick(held); n > 0 {
					step(n, admission.StepRelease)
				}
			case 5, 6:
				for n := uint64(1); n < next; n++ {
					if x := k.known[n]; x != nil && x.waits && !k.waiting && rapid.Bool().Draw(t, "decides") {
						k.decide(n, rapid.IntRange(0, 3).Draw(t, "grants") > 0)
						break
					}
				}
			case 7:
				if len(k.toM) > 0 {
					k.m.Receive(k.now, take(&k.toM))
				}
			case 8:
				if len(k.toK) > 0 {
					k.receive(take(&k.toK))
				}
			case 9:
				if q := &k.toM; len(*q) > 0 && rapid.Bool().Draw(t, "to the member") {
					*q = (*q)[1:]
				} else if q := &k.toK; len(*q) > 0 {
					*q = (*q)[1:]
				}
			case 10:
				k.beat()
			case 11:
				k.now = k.now.Add(time.Duration(rapid.IntRange(1, 1500).Draw(t, "ms")) * time.Millisecond)
				k.m.Tick(k.now)
			}
			k.flush()
			settle()
		}
		// The network is whole again, and the keeper decides all.
		heal := func() {
			for range 50 {
				k.now = k.now.Add(50 * time.Millisecond)
				k.m.Tick(k.now)
				k.flush()
				for _, e := range k.toK {
					k.receive(e)
				}
				k.toK = nil
				for n := uint64(1); n < next; n++ {
					if x := k.known[n]; x != nil && x.waits && !k.waiting {
						k.decide(n, true)
					}
				}
				k.beat()
				for _, e := range k.toM {
					k.m.Receive(k.now, e)
				}
				k.toM = nil
				settle()
			}
		}
		heal()
		if len(open) > 0 {
			t.Fatalf("never decided: %v", open)
		}
		for n, x := range k.known {
			if _, ok := held[n]; ok != x.held {
				t.Errorf("ticket %d is held: here %v, at the keeper %v", n, ok, x.held)
			}
		}
		for n := range held {
			if k.known[n] == nil {
				t.Errorf("the keeper does not know what ticket %d holds", n)
			}
		}
		for n := range attempts {
			k.m.Step(k.now, n, attempts[n], admission.StepForget, 0)
		}
		heal()
		if len(k.known) > 0 || len(k.m.member.tickets) > 0 || k.m.member.waits.len() > 0 {
			t.Errorf("left: %v, %d tickets, %d waits", k.known, len(k.m.member.tickets), k.m.member.waits.len())
		}
	})
}
