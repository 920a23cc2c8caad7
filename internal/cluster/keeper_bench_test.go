package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// benchKeeper is a keeper of three members and some ranks of each role.
func benchKeeper(b *testing.B, ranks int, with func(*Report)) *keeperBed {
	bed := newKeeperBed(&testing.T{}, 3, 1<<20, nil)
	bed.after(0)
	for m := range Incarnation(3) {
		bed.report(m+1, func(r *Report) {
			r.Observation = &Observation{Full: true}
			for _, x := range bedFleet().Ranks {
				for i := range ranks {
					x.ID = fmt.Sprintf("%s-%d", x.Spec.Worker, i)
					x.Spec.ID = x.ID
					r.Observation.Ranks = append(r.Observation.Ranks, x)
				}
			}
			if m == 2 && with != nil {
				with(r)
			}
		})
	}
	bed.after(200 * time.Millisecond)
	if bed.k.office() != OfficeDeciding {
		b.Fatal("the gate is not open")
	}
	return bed
}

// One request of a member at its keeper: granted, four steps, forgotten; with what goes to
// the standby.
func BenchmarkKeeperRequest(b *testing.B) {
	for _, ranks := range []int{32, 2048} {
		b.Run(fmt.Sprintf("%d ranks", 2*ranks), func(b *testing.B) {
			bed := benchKeeper(b, ranks, nil)
			k, m := bed.k, bed.m
			p, standby := m.peers[3], m.peers[2]
			ask := bedAsk()
			number, seq, session := uint64(0), p.seqIn, bed.sess[3]
			send := func(items ...Item) {
				seq++
				k.envelope(p, &Envelope{From: 3, To: own, Session: session, Seq: seq, Items: items})
				k.tick()
				for _, q := range []*peer{p, standby} {
					if items := q.takeItems(); len(items) > 0 {
						q.seqOut++
						k.took(q, q.seqOut, items)
					}
				}
			}
			step := func(op admission.StepOp) Item { return Item{Kind: ItemStep, Op: op, Number: number, Attempt: 1} }
			b.ReportAllocs()
			for b.Loop() {
				number++
				m.now += 10000
				m.election.wrote = m.now
				p.answered, standby.answered = m.now, m.now
				send(Item{Kind: ItemArrive, Number: number, Attempt: 1, Body: ask})
				send(step(admission.StepStartDecode))
				send(step(admission.StepFirstToken))
				send(step(admission.StepEndPrefill))
				send(step(admission.StepRelease), step(admission.StepForget))
				m.loop = m.loop[:0]
			}
			if n := len(k.seats[3].tickets); n != 0 {
				b.Fatalf("%d tickets are left", n)
			}
		})
	}
}

// A keeper begins with 10,000 waiters of one member.
func BenchmarkKeeperRebuild(b *testing.B) {
	for b.Loop() {
		benchKeeper(b, 32, func(r *Report) {
			r.Configuration.Settings.Limits.PrefillSlots = 1
			for i := range uint64(10000) {
				r.Waiters = append(r.Waiters, Waiter{Number: i + 1, Attempt: 1, Place: Place{6, i + 1}, Ask: *bedAsk()})
			}
		})
	}
}
