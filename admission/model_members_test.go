package admission

import (
	"slices"

	"pgregory.net/rapid"
)

// The steps of the model test that only a gate for several processes is told.

// share is mostly all of a rank.
func drawShare(t *rapid.T) RankShare {
	return rapid.SampledFrom([]RankShare{{}, {}, {}, {}, {}, {}, {}, {}, {Parts: 2}, {Parts: 3, NotFirst: true}, {Parts: 1}, {None: true}}).Draw(t, "share")
}

// suspend takes some waiters out of their queues.
func (w *world) suspend(t *rapid.T) {
	var some []*refTicket
	var numbers []uint64
	for range rapid.IntRange(1, 3).Draw(t, "suspended") {
		if k := w.pick(t, func(k *refTicket) bool { return k.queued }); !slices.Contains(some, k) {
			some, numbers = append(some, k), append(numbers, k.number)
		}
	}
	_, out := w.do(t, Step{Op: StepSuspend, Tickets: numbers})
	w.ref.suspend(w.now, some)
	w.step(t, out)
}

// putBack queues some of them again, or all.
func (w *world) putBack(t *rapid.T) {
	isSuspended := func(k *refTicket) bool { return k.state == stateSuspended }
	some := []*refTicket{w.pick(t, isSuspended)}
	if rapid.Bool().Draw(t, "all") {
		some = nil
		for _, k := range w.tickets {
			if isSuspended(k) {
				some = append(some, k)
			}
		}
	}
	var numbers []uint64
	for _, k := range some {
		numbers = append(numbers, k.number)
	}
	_, out := w.do(t, Step{Op: StepPutBack, Tickets: numbers})
	for _, k := range some {
		k.renamed() // its model may have lost all ranks, and have others now
	}
	w.ref.putBack(w.now, some)
	w.step(t, out)
}

// setMask makes some ranks those that an origin may not use, or ends that.
func (w *world) setMask(t *rapid.T) {
	w.rarely(t)
	if !w.members {
		t.Skip("not here")
	}
	origin := uint64(rapid.IntRange(1, 2).Draw(t, "origin"))
	var ranks []*refRank
	all := append(slices.Clone(w.ref.ranks), w.ref.gone...)
	for range rapid.IntRange(0, 3).Draw(t, "masked") {
		if len(all) > 0 {
			if r := rapid.SampledFrom(all).Draw(t, "rank"); !slices.Contains(ranks, r) {
				ranks = append(ranks, r)
			}
		}
	}
	w.mask(t, origin, ranks)
}

func (w *world) mask(t *rapid.T, origin uint64, ranks []*refRank) {
	s := Step{Op: StepSetMask, Origin: origin}
	for _, r := range ranks {
		s.Exclude = append(s.Exclude, r.real.ref())
	}
	_, out := w.do(t, s)
	w.ref.setMask(w.now, origin, ranks)
	w.step(t, out)
}

// setAside sets something of a rank aside, or nothing any more.
func (w *world) setAside(t *rapid.T) {
	w.rarely(t)
	if !w.members || len(w.ref.ranks) == 0 {
		t.Skip("not here")
	}
	r := rapid.SampledFrom(w.ref.ranks).Draw(t, "rank").real
	var a Aside
	if rapid.Bool().Draw(t, "something") {
		a = Aside{
			Calls: rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "calls"), Tokens: rapid.SampledFrom([]int64{0, 30, 100}).Draw(t, "tokens"),
		}
		if r.role == RolePrefill {
			a.Slots = rapid.SampledFrom([]int{1, 0, 2}).Draw(t, "slots")
		} else {
			a.Blocks = rapid.SampledFrom([]int64{3, 0, 40}).Draw(t, "blocks")
		}
	}
	w.apply(t, []Change{{Op: SetAside, Rank: r, Aside: a}})
}

// growTo tells how many blocks an answer has in all, perhaps again, or late.
func (w *world) growTo(t *rapid.T) {
	k := w.pick(t, (*refTicket).holds)
	n := int64(rapid.IntRange(0, 9).Draw(t, "blocks in all"))
	more := n - k.real.extra.grown
	_, out := w.do(t, Step{Op: StepGrowTo, Ticket: k.number, Blocks: n})
	if more > 0 && k.decode != nil {
		w.ref.grow(k, more)
		w.ref.drain(w.now)
	}
	w.step(t, out)
}

// endMembers takes back what only members bring.
func (w *world) endMembers(t *rapid.T) {
	for _, origin := range []uint64{1, 2} {
		if len(w.ref.masks[origin]) > 0 {
			w.mask(t, origin, nil)
		}
	}
	for _, r := range slices.DeleteFunc(slices.Clone(w.ref.ranks), func(r *refRank) bool { return r.aside == Aside{} }) {
		w.apply(t, []Change{{Op: SetAside, Rank: r.real}})
	}
}

// adopt goes on with a fresh core that has the ranks, and is handed the tickets: in two parts,
// as they come from two members.
func (w *world) adopt(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "adopt") < 3 {
		t.Skip("not yet")
	}
	s := wired(t, w.port.State())
	tickets := s.Tickets
	s.Tickets = nil
	port, _ := Restore(w.now, s, w.options)
	answer := port.Adopt(w.now, tickets)
	w.goOn(port)
	w.ref.adopt(w.now, w.tickets)
	w.step(t, w.decided(t, answer, 0, false))
}
