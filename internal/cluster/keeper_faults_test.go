package cluster

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// What this process was granted and not told is void once it reports where it stands: its
// report does not have it.
func TestKeeperDeliversNothingToItselfDuringAReport(t *testing.T) {
	b := opened(t, 2, 1, nil)
	b.mute[2] = true
	b.arrive(own, 1, bedAsk())
	if len(b.k.own) != 1 || len(b.got[own]) > 0 && b.got[own][len(b.got[own])-1].Granted {
		t.Fatalf("%d grants wait for the standby", len(b.k.own))
	}
	b.m.loop = append(b.m.loop, looped{item: Item{Kind: ItemDecision, Granted: true, Number: 7, Attempt: 1}})
	b.m.member.report()
	b.k.own[0].told, b.k.own[0].seq, b.m.peers[2].acked = true, 1, 1 // now the standby knows of it
	b.k.deliver()
	for _, l := range b.m.loop {
		if !l.toKeeper && l.item.Kind == ItemDecision {
			t.Errorf("%d.%d is delivered while its process reports", l.item.Number, l.item.Attempt)
		}
	}
}

// What a member sent before it may have fallen back, and comes only now, tells nothing of what
// it holds: it may have granted more since. Its share stays set aside until it reports anew.
func TestKeeperTakesNothingThatComesAfterTheLease(t *testing.T) {
	for _, c := range []struct {
		name string
		late func(b *keeperBed, p *peer) *Envelope
	}{
		{"a report", func(b *keeperBed, p *peer) *Envelope {
			r := &Report{First: true, Last: true, Self: p.Member, Observation: bedFleet()}
			return &Envelope{Session: b.sess[2] + 1, Seq: 1, Items: []Item{{Kind: ItemReport, Body: r}}}
		}},
		{"a step", func(b *keeperBed, p *peer) *Envelope {
			return &Envelope{Session: b.sess[2], Seq: b.seq[2] + 1, Items: []Item{{Kind: ItemStep, Op: admission.StepForget, Number: 1, Attempt: 1}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := opened(t, 2, 2, nil)
			b.after(time.Second)
			b.arrive(2, 1, bedAsk())
			sent := b.m.now
			b.mute[2] = true
			b.after(6 * time.Second)
			b.slots(1) // which is the larger of what it holds and its share
			p := b.m.peers[2]
			e := c.late(b, p)
			e.From, e.To, e.Epoch, e.Echo = 2, own, b.k.epoch, 1
			p.fresh = sent
			b.k.envelope(p, e)
			b.k.tick()
			b.slots(1)
			if b.k.seats[2].reported {
				t.Error("it counts as having reported")
			}
			b.mute[2] = false
			b.report(2, nil)
			b.after(time.Second)
			b.slots(0)
		})
	}
}
