package admission

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// Tests of what a port is told where it decides for several processes.

const second = Instant(time.Second)

// portWorld is a port to a core with ranks of one model.
type portWorld struct {
	t    *testing.T
	port *Port
	now  Instant
}

func newPortWorld(t *testing.T, o Options, ranks ...RankSpec) *portWorld {
	w := &portWorld{t: t, port: NewPort(o), now: second}
	var add []FleetChange
	for i := range ranks {
		r := &ranks[i]
		r.Generation, r.Models, r.State = 1, []string{"m"}, RankState{Healthy: true}
		add = append(add, FleetChange{Op: AddRank, Add: r})
	}
	w.do(Step{Op: StepApply, Changes: add})
	return w
}

func prefillRank(id string) RankSpec { return RankSpec{ID: id, Worker: id, Role: RolePrefill} }
func decodeRank(id string) RankSpec  { return RankSpec{ID: id, Worker: id, Role: RoleDecode} }
func ref(id string) RankRef          { return RankRef{id, 1} }

func (w *portWorld) do(s Step) Answer {
	w.t.Helper()
	s.Now = w.now
	a := w.port.Do(s)
	if err := checkIndexes(w.port.core); err != nil {
		w.t.Fatal(err)
	}
	return a
}

func disaggregated(origin uint64) *Request {
	return &Request{Target: TargetSpec{Model: "m", Shape: Disaggregated}, PromptTokens: 16, Origin: origin}
}

// arrive tells what became of a request: "1:p,d" (ticket and ranks), "1:reason", or "1:waits".
func (w *portWorld) arrive(ticket uint64, r *Request) string {
	w.t.Helper()
	a := w.do(Step{Op: StepArrive, Ticket: ticket, Request: r})
	s := outcomes(a)
	if x, _ := w.port.Ticket(ticket); x.Status == StatusQueued || x.Status == StatusSuspended {
		s = append(s, fmt.Sprintf("%d:waits", ticket))
	}
	return fmt.Sprint(s)
}

func outcomes(a Answer) (s []string) {
	for _, d := range a.Decided {
		switch {
		case !d.Granted:
			s = append(s, fmt.Sprintf("%d:%s", d.Ticket, d.Refusal.Reason))
		case d.Prefill.ID == "":
			s = append(s, fmt.Sprintf("%d:%s", d.Ticket, d.Decode.ID))
		default:
			s = append(s, fmt.Sprintf("%d:%s,%s", d.Ticket, d.Prefill.ID, d.Decode.ID))
		}
	}
	return s
}

func (w *portWorld) expect(a Answer, want ...string) {
	w.t.Helper()
	if got := outcomes(a); !slices.Equal(got, want) {
		w.t.Fatalf("decided %v, want %v", got, want)
	}
}

func (w *portWorld) expectArrival(ticket uint64, r *Request, want string) {
	w.t.Helper()
	if got := w.arrive(ticket, r); got != want {
		w.t.Fatalf("%s, want %s", got, want)
	}
}

// empty ends all tickets and demands that nothing is held but what is set aside.
func (w *portWorld) empty() {
	w.t.Helper()
	for n := range w.port.tickets {
		w.do(Step{Op: StepCancel, Ticket: n})
	}
	for n := range w.port.tickets {
		w.do(Step{Op: StepForget, Ticket: n})
	}
	for _, r := range w.port.core.ranks {
		if r == nil {
			continue
		}
		r.addAside(Aside{})
		if !r.idle() {
			w.t.Errorf("left over: %+v", r.stats())
		}
	}
	if w.port.core.waiting != 0 || len(w.port.tickets) != 0 {
		w.t.Errorf("%d wait", w.port.core.waiting)
	}
}

var oneSlot = Options{Limits: Limits{PrefillSlots: 1, QueueSize: 100, QueueTimeout: 10 * time.Second}}

func TestSuspendedWaiterBlocksNobodyAndKeepsItsPlace(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	w.now++
	w.expectArrival(2, disaggregated(0), "[2:waits]")
	w.now++
	w.expectArrival(3, disaggregated(0), "[3:waits]")
	w.expect(w.do(Step{Op: StepSuspend, Tickets: []uint64{2, 99}}))
	if w.port.core.waiting != 1 {
		t.Errorf("%d count as waiting", w.port.core.waiting)
	}
	if a := w.do(Step{Op: StepArrive, Ticket: 2, Request: disaggregated(0)}); a.Done {
		t.Error("a suspended ticket arrived")
	}
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 1}), "3:p,d")
	w.expectArrival(4, disaggregated(0), "[4:waits]")
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{2}}))
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 3}), "2:p,d")
	w.do(Step{Op: StepSuspend, Tickets: []uint64{4}})
	w.do(Step{Op: StepEndPrefill, Ticket: 2})
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{4}}), "4:p,d")
	w.empty()
}

func TestSuspendedHeadLetsTheNextStart(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	pinned := disaggregated(0)
	pinned.Target.Pins[PrefillLeg] = "p"
	w.expectArrival(1, pinned, "[1:p,d]")
	w.expectArrival(2, pinned, "[2:waits]")
	w.expectArrival(3, disaggregated(0), "[3:waits]") // strict order
	w.expect(w.do(Step{Op: StepSuspend, Tickets: []uint64{2}}), "3:q,d")
	w.empty()
}

func TestBoundOfASuspendedWaiterEndsItWhenItIsPutBack(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	w.expectArrival(2, disaggregated(0), "[2:waits]")
	w.do(Step{Op: StepSuspend, Tickets: []uint64{2}})
	w.now += 11 * second
	w.expect(w.do(Step{Op: StepAdvance}))
	a := w.do(Step{Op: StepPutBack, Tickets: []uint64{2}})
	w.expect(a, "2:queue_timeout")
	if d := a.Decided[0]; d.Waited != 11*time.Second {
		t.Errorf("waited %s", d.Waited)
	}
	w.expectArrival(3, disaggregated(0), "[3:waits]")
	w.do(Step{Op: StepSuspend, Tickets: []uint64{3}})
	if a := w.do(Step{Op: StepCancel, Ticket: 3}); !a.Done {
		t.Error("a suspended waiter was not cancelled")
	}
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{3}}))

	w.expectArrival(4, disaggregated(0), "[4:waits]")
	w.do(Step{Op: StepSuspend, Tickets: []uint64{4}})
	w.expect(w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: RemoveRank, Rank: ref("p")}}}))
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{4}}), "4:no_workers")
	w.empty()
}

func TestWhatIsSetAsideIsNobodysRoom(t *testing.T) {
	aside := func(id string, a Aside) Step {
		return Step{Op: StepApply, Changes: []FleetChange{{Op: SetAside, Rank: ref(id), Aside: a}}}
	}
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	w.do(aside("p", Aside{Slots: 1, Calls: 2, Tokens: 50, Blocks: 9}))
	if s := w.port.PoolLoad("m", RolePrefill); s.Requests != 2 || s.PrefillTokens != 50 || s.Blocks != 0 {
		t.Errorf("the pool holds %+v", s)
	}
	w.expectArrival(1, disaggregated(0), "[1:waits]")
	w.expect(w.do(aside("p", Aside{})), "1:p,d")
	// It is absolute, and ends of holds do not touch it.
	w.do(aside("p", Aside{Slots: 3}))
	w.do(aside("p", Aside{Slots: 1}))
	w.do(Step{Op: StepForget, Ticket: 1})
	w.expectArrival(2, disaggregated(0), "[2:waits]")
	w.do(aside("d", Aside{Calls: -4, Blocks: -1, Tokens: -1}))
	if l, _ := w.port.Load(ref("d")); l.Active != 0 || l.ActiveBlocks != 0 {
		t.Errorf("less than nothing: %+v", l)
	}
	// A rank that is registered anew has nothing set aside.
	again := prefillRank("p")
	again.Generation, again.Models, again.State = 2, []string{"m"}, RankState{Healthy: true}
	w.expect(w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: RemoveRank, Rank: ref("p")}, {Op: AddRank, Add: &again}}}), "2:p,d")
	w.empty()
}

func TestWhatIsSetAsideCountsInThresholds(t *testing.T) {
	half := 0.5
	o := oneSlot
	o.Limits.PrefillSlots = 0
	o.Classes = &Classes{Root: &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "b"}}, Classes: []Class{{Name: "c", Family: "f", Bucket: "b", Quantum: 1, DecodeBusyFrac: &half}}}}
	d := decodeRank("d")
	d.Capacity = Capacity{KVBlocks: 10, BlockSize: 16}
	w := newPortWorld(t, o, prefillRank("p"), d)
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAside, Rank: ref("d"), Aside: Aside{Calls: 1, Blocks: 5}}}})
	w.expectArrival(1, disaggregated(0), "[1:waits]")
	w.expect(w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAside, Rank: ref("d"), Aside: Aside{Calls: 1, Blocks: 4}}}}), "1:p,d")
	w.empty()
}

func TestMaskedRankIsNoCandidateForItsOrigin(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("p")}})
	w.expectArrival(1, disaggregated(7), "[1:q,d]")
	w.expectArrival(2, disaggregated(7), "[2:waits]")
	w.expectArrival(3, disaggregated(8), "[3:p,d]") // strict order: only the mask holds 2 back
	w.expectArrival(4, disaggregated(8), "[4:waits]")
	// With no room left 2 blocks those behind it, as any head does: also when it goes on
	// without a mask.
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 1}), "2:q,d")
	w.expectArrival(5, disaggregated(7), "[5:waits]")
	w.expectArrival(6, disaggregated(8), "[6:waits]")
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 3}), "4:p,d")
	w.expect(w.do(Step{Op: StepSetMask, Origin: 7}))
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 4}), "5:p,d")
	w.expect(w.do(Step{Op: StepSetMask, Origin: 8, Exclude: []RankRef{ref("p"), ref("q")}}), "6:no_workers")
	w.empty()
}

func TestStrictOrderHoldsAcrossMasks(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("p")}})
	pinned := disaggregated(8)
	pinned.Target.Pins[PrefillLeg] = "p"
	w.expectArrival(1, pinned, "[1:p,d]")
	w.expectArrival(2, pinned, "[2:waits]")
	w.expectArrival(3, disaggregated(7), "[3:waits]") // q has room, but 2 goes first
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 1}), "2:p,d", "3:q,d")
	w.empty()
}

func TestMaskOfOneOriginInLanes(t *testing.T) {
	o := oneSlot
	o.QueueMode = QueueLanes
	w := newPortWorld(t, o, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	w.expectArrival(1, disaggregated(7), "[1:p,d]")
	w.expectArrival(2, disaggregated(7), "[2:q,d]")
	w.expectArrival(3, disaggregated(7), "[3:waits]")
	w.expectArrival(4, disaggregated(8), "[4:waits]")
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("p")}})
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 1}), "4:p,d")
	w.expect(w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("q")}}))
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 4}), "3:p,d")
	w.empty()
}

func TestMaskOfARankThatComesAndGoes(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("q"), decodeRank("d"))
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("p")}})
	p := prefillRank("p")
	p.Generation, p.Models, p.State = 1, []string{"m"}, RankState{Healthy: true}
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: AddRank, Add: &p}, {Op: RemoveRank, Rank: ref("q")}}})
	w.expectArrival(1, disaggregated(7), "[1:no_workers]")
	w.expectArrival(2, disaggregated(8), "[2:p,d]")
	w.empty()
}

func held(ticket uint64, prefill, decode string) TicketState {
	p, d := ref(prefill), ref(decode)
	return TicketState{
		Ticket: ticket, Request: *disaggregated(0), Status: StatusGranted, Prefill: &p, Decode: &d,
		HoldsPrefill: true, HoldsDecode: true, Tokens: -1, Blocks: -1,
	}
}

func waiting(ticket uint64, place Place, arrival Instant) TicketState {
	return TicketState{
		Ticket: ticket, Request: *disaggregated(0), Status: StatusQueued, Arrived: true, Arrival: arrival, QueuedAt: arrival,
		Epoch: place.Epoch, Order: place.Number,
	}
}

func TestAdoptedHoldsAreBookedBeyondTheLimit(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	unknown := held(4, "gone", "d")
	nonsense := held(5, "d", "p")
	nonsense.Tokens = 1 << 60
	w.expect(w.port.Adopt(w.now, []TicketState{held(2, "p", "d"), held(3, "p", "d"), unknown, nonsense, held(1, "p", "d")}))
	l, _ := w.port.Load(ref("p"))
	if d, _ := w.port.Load(ref("d")); l.Slots != 3 || l.Tokens != 48 || d.Pending != 4 || d.PendingBlocks != 4 {
		t.Errorf("booked %+v and %+v", l, d)
	}
	w.expectArrival(9, disaggregated(0), "[9:waits]")
	for _, n := range []uint64{1, 2} {
		w.expect(w.do(Step{Op: StepRelease, Ticket: n}))
	}
	w.expect(w.do(Step{Op: StepRelease, Ticket: 3}), "9:p,d")
	w.empty()
}

func TestAdoptedHoldOfARankThatIsRegisteredLater(t *testing.T) {
	w := newPortWorld(t, oneSlot, decodeRank("d"))
	w.port.Adopt(w.now, []TicketState{held(1, "p", "d")})
	p := prefillRank("p")
	p.Generation, p.Models, p.State = 1, []string{"m"}, RankState{Healthy: true}
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: AddRank, Add: &p}}})
	if l, ok := w.port.Load(ref("p")); !ok || l.Slots != 1 {
		t.Errorf("the rank holds %+v", l)
	}
	w.expectArrival(2, disaggregated(0), "[2:waits]")
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 1}), "2:p,d")
	w.empty()
}

func TestAdoptedWaitersAreInTheOrderOfTheirPlaces(t *testing.T) {
	o := oneSlot
	o.Epoch = 5
	w := newPortWorld(t, o, prefillRank("p"), decodeRank("d"))
	w.now = 9 * second
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	w.expectArrival(2, disaggregated(0), "[2:waits]")
	if x, _ := w.port.Ticket(2); x.Place.Epoch != 5 || x.LimitAt != w.now+10*second || x.Limit != 10*time.Second {
		t.Errorf("it waits as %+v", x)
	}
	w.now += second / 2
	// Clocks of members differ: what one has for earlier may have come later.
	w.port.Adopt(w.now, []TicketState{
		waiting(10, Place{}, 2*second), waiting(11, Place{}, second),
		waiting(12, Place{4, 9}, 9*second+9), waiting(13, Place{4, 8}, 8*second), waiting(14, Place{3, 77}, 9*second),
		waiting(15, Place{5, 1000}, second),
	})
	w.now++
	w.expectArrival(3, disaggregated(0), "[3:waits]")
	next := uint64(1)
	var order []uint64
	for range 8 {
		a := w.do(Step{Op: StepEndPrefill, Ticket: next})
		if len(a.Decided) != 1 {
			t.Fatalf("decided %v", outcomes(a))
		}
		next = a.Decided[0].Ticket
		order = append(order, next)
	}
	if want := []uint64{14, 13, 12, 2, 15, 11, 10, 3}; !slices.Equal(order, want) {
		t.Errorf("served %v, want %v", order, want)
	}
	w.empty()
}

func TestAdoptedWaiterStartsOrEndsAtOnce(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	w.now = 30 * second
	late := waiting(1, Place{1, 1}, 2*second)
	suspended := waiting(3, Place{1, 3}, 29*second)
	suspended.Status = StatusSuspended
	w.expect(w.port.Adopt(w.now, []TicketState{late, waiting(2, Place{1, 2}, 29*second), suspended}), "1:queue_timeout", "2:p,d")
	w.do(Step{Op: StepEndPrefill, Ticket: 2})
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{3}}), "3:p,d")
	w.empty()
}

func TestGrowToIsAbsolute(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"), decodeRank("e"))
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	for _, n := range []int64{5, 3, 5, 7, 6} {
		w.do(Step{Op: StepGrowTo, Ticket: 1, Blocks: n})
	}
	if l, _ := w.port.Load(ref("d")); l.PendingBlocks != 8 {
		t.Errorf("%d blocks, want 1 of the prompt and 7", l.PendingBlocks)
	}
	if a := w.do(Step{Op: StepMoveDecode, Ticket: 1}); !a.Done {
		t.Fatal("not moved")
	}
	w.do(Step{Op: StepGrowTo, Ticket: 1, Blocks: 2})
	if l, _ := w.port.Load(ref("e")); l.PendingBlocks != 3 {
		t.Errorf("%d blocks, want 1 of the prompt and 2", l.PendingBlocks)
	}
	w.do(Step{Op: StepGrowTo, Ticket: 77, Blocks: 2})
	w.empty()
}

func TestChangedLoadsAreTold(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	changed := func() (all []string) {
		w.port.EachLoad(func(r RankRef, l RankLoad) {
			all = append(all, fmt.Sprintf("%s %d/%d %d+%d", r.ID, l.Slots, l.PrefillLegs, l.Pending, l.Active))
		})
		slices.Sort(all)
		return all
	}
	for _, step := range []struct {
		do   func()
		want []string
	}{
		{func() {}, []string{"d 0/0 0+0", "p 0/0 0+0", "q 0/0 0+0"}},
		{func() {}, nil},
		{func() { w.arrive(1, disaggregated(0)) }, []string{"d 0/0 1+0", "p 1/1 0+0"}},
		{func() { w.do(Step{Op: StepStartDecode, Ticket: 1}) }, []string{"d 0/0 0+1"}},
		{func() { w.do(Step{Op: StepEndPrefill, Ticket: 1}) }, []string{"p 0/0 0+0"}},
		{func() { w.do(Step{Op: StepForget, Ticket: 1}) }, []string{"d 0/0 0+0"}},
		{func() {
			w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAside, Rank: ref("q"), Aside: Aside{Slots: 2}}, {Op: RemoveRank, Rank: ref("p")}}})
		}, []string{"q 2/0 0+0"}},
	} {
		step.do()
		if got := changed(); !slices.Equal(got, step.want) {
			t.Errorf("changed %v, want %v", got, step.want)
		}
	}
}

func TestStateKeepsWhatMembersBrought(t *testing.T) {
	o := oneSlot
	o.Epoch = 3
	w := newPortWorld(t, o, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("p")}})
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAside, Rank: ref("q"), Aside: Aside{Slots: 1, Tokens: 9}}}})
	w.expectArrival(1, disaggregated(7), "[1:waits]")
	w.expectArrival(2, disaggregated(8), "[2:p,d]")
	w.expectArrival(3, disaggregated(8), "[3:waits]")
	w.do(Step{Op: StepGrowTo, Ticket: 2, Blocks: 4})
	w.do(Step{Op: StepSuspend, Tickets: []uint64{3}})
	b, err := json.Marshal(w.port.State())
	if err != nil {
		t.Fatal(err)
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	port, a := Restore(w.now, s, o)
	w.expect(a)
	if !reflect.DeepEqual(port.State(), w.port.State()) {
		t.Errorf("restored\n%+v, was\n%+v", port.State(), w.port.State())
	}
	w.port = port
	w.do(Step{Op: StepGrowTo, Ticket: 2, Blocks: 4})
	if l, _ := w.port.Load(ref("d")); l.PendingBlocks != 5 {
		t.Errorf("%d blocks", l.PendingBlocks)
	}
	w.expect(w.do(Step{Op: StepSetMask, Origin: 7}))
	w.expect(w.do(Step{Op: StepPutBack, Tickets: []uint64{3}}))
	w.expect(w.do(Step{Op: StepEndPrefill, Ticket: 2}), "1:p,d")
	w.empty()
}

func TestRankWithoutAShareIsNoCandidate(t *testing.T) {
	p, d := prefillRank("p"), decodeRank("d")
	p.Limits.Share = RankShare{None: true}
	w := newPortWorld(t, oneSlot, p, d)
	w.expectArrival(1, disaggregated(0), "[1:gate_unavailable]")
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAttributes, Rank: ref("p"), Attributes: RankAttributes{Models: []string{"m"}, Limits: RankLimits{Share: RankShare{Parts: 3}}}}}})
	w.expectArrival(2, disaggregated(0), "[2:p,d]")
	w.expectArrival(3, disaggregated(0), "[3:waits]")
	w.expect(w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAttributes, Rank: ref("d"), Attributes: RankAttributes{Models: []string{"m"}, Limits: RankLimits{Share: RankShare{None: true}}}}}}), "3:gate_unavailable")
	w.expect(w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: RemoveRank, Rank: ref("d")}}}))
	w.expectArrival(4, disaggregated(0), "[4:no_workers]")
	w.empty()
}

// shareWorld has one prefill and one decode rank of a class with every threshold there is,
// and a share of them.
func shareWorld(t *testing.T, share RankShare, reject RejectThresholds) *portWorld {
	tokens, frac, blocks := int64(60), 0.6, 0.6
	p, d := prefillRank("p"), decodeRank("d")
	p.Capacity, d.Capacity = Capacity{MaxBatchedTokens: 150}, Capacity{KVBlocks: 10, BlockSize: 16} // 90 tokens, 6 blocks
	p.Limits.Share, d.Limits.Share = share, share
	return newPortWorld(t, Options{
		Limits: Limits{QueueSize: 100}, Reject: reject,
		Classes: &Classes{Root: &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "b"}}, Classes: []Class{
			{Name: "c", Family: "f", Bucket: "b", Quantum: 1},
			{Name: "tokens", Quantum: 1, PrefillBusyTokens: &tokens},
			{Name: "frac", Quantum: 1, PrefillBusyFrac: &frac},
			{Name: "blocks", Quantum: 1, DecodeBusyFrac: &blocks},
		}}},
	}, p, d)
}

// Requests of 16 tokens and one block each are brought until one waits, or is refused.
func TestShareOfThresholds(t *testing.T) {
	granted := func(class string, share RankShare, reject RejectThresholds) (n int) {
		w := shareWorld(t, share, reject)
		for ; n < 100; n++ {
			r := disaggregated(0)
			r.Class = class
			if w.arrive(uint64(n+1), r) != fmt.Sprintf("[%d:p,d]", n+1) {
				break
			}
		}
		w.empty()
		return n
	}
	third := RankShare{Parts: 3}
	other := RankShare{Parts: 3, NotFirst: true}
	tokens, frac, blocks := int64(60), 0.6, 0.6
	for _, x := range []struct {
		class         string
		reject        RejectThresholds
		all, of3, not int
	}{
		{"tokens", RejectThresholds{}, 4, 2, 2}, // before it: more than 60, 20
		{"frac", RejectThresholds{}, 6, 2, 2},   // 90, 30
		{"blocks", RejectThresholds{}, 6, 2, 2}, // with it: at most 6, 2
		{"", RejectThresholds{ActivePrefillTokens: &tokens}, 4, 2, 2},
		{"", RejectThresholds{ActivePrefillTokensFrac: &frac}, 6, 2, 2},
		{"", RejectThresholds{ActiveDecodeBlocks: &blocks}, 7, 3, 3},
	} {
		got := []int{granted(x.class, RankShare{}, x.reject), granted(x.class, third, x.reject), granted(x.class, other, x.reject)}
		if want := []int{x.all, x.of3, x.not}; !slices.Equal(got, want) {
			t.Errorf("class %q, %+v: %d were granted, want %d", x.class, x.reject, got, want)
		}
	}
}

func TestIdleRankFitsAnythingForItsFirstMemberOnly(t *testing.T) {
	large := disaggregated(0)
	large.PromptTokens, large.Class = 16*9, "blocks"
	w := shareWorld(t, RankShare{Parts: 3}, RejectThresholds{})
	w.expectArrival(1, large, "[1:p,d]")
	w.expectArrival(2, large, "[2:waits]")
	w.empty()
	w = shareWorld(t, RankShare{Parts: 3, NotFirst: true}, RejectThresholds{})
	w.expectArrival(1, large, "[1:waits]")
	w.empty()
}

func TestShareOfRanksOfUnknownCapacityAndOfProbes(t *testing.T) {
	w := shareWorld(t, RankShare{Parts: 3}, RejectThresholds{})
	c := w.port.core
	d := registered(&c.rankIndex, "d", RoleDecode)
	for _, x := range []struct {
		share    RankShare
		running  int64
		assumed  int64
		probes   int
		ofProbes int
	}{
		{RankShare{}, 0, 64, 2, 2}, {RankShare{Parts: 3}, 0, 22, 2, 1}, {RankShare{Parts: 3, NotFirst: true}, 0, 21, 2, 0},
		{RankShare{Parts: 3}, 9, 3, 3, 1}, {RankShare{Parts: 3, NotFirst: true}, 9, 3, 4, 1},
	} {
		d.bounds.Share, d.capacity.MaxRunning, d.state.Probes = x.share, x.running, x.probes
		if n, p := c.assumed(d), d.probesLimit(); n != x.assumed || p != x.ofProbes {
			t.Errorf("%+v: %d requests, %d probes, want %d and %d", x.share, n, p, x.assumed, x.ofProbes)
		}
	}
}

// What an engine has in use beyond what this gate has booked is others' share.
func TestReportOfASharedRankTellsNothingOfItsBlocks(t *testing.T) {
	for parts, want := range map[int]int64{0: 5, 2: 0} {
		w := shareWorld(t, RankShare{Parts: parts}, RejectThresholds{})
		w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetReport, Rank: ref("d"), Report: RankReport{Requests: 1, KVTokens: 80}}}})
		if d := registered(&w.port.core.rankIndex, "d", RoleDecode); d.unbooked != want {
			t.Errorf("%d parts: %d blocks count that were not booked", parts, d.unbooked)
		}
	}
}

func TestShareOfQueueBounds(t *testing.T) {
	asked := map[string]int64{}
	o := oneSlot
	two := 2.0
	o.Limits.QueueSize, o.Limits.MaxWaitingBytes = 7, 2
	o.Classes = &Classes{Root: &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "b"}}, Classes: []Class{
		{Name: "c", Family: "f", Bucket: "b", Quantum: 1}, {Name: "gold", Quantum: 1, RequestLimitPerWorker: &two},
	}}}
	o.ShareOf = func(limit int64, bound string) int64 {
		asked[bound] = limit
		return limit / 3
	}
	w := newPortWorld(t, o, prefillRank("p"), prefillRank("q"), decodeRank("d"))
	w.expectArrival(1, disaggregated(0), "[1:p,d]")
	w.expectArrival(2, disaggregated(0), "[2:q,d]")
	gold := disaggregated(0)
	gold.Class = "gold"
	w.expectArrival(3, gold, "[3:waits]")
	w.expectArrival(4, gold, "[4:class_queue_full]") // 4 / 3
	w.expectArrival(5, disaggregated(0), "[5:waits]")
	w.expectArrival(6, disaggregated(0), "[6:queue_full]") // 7 / 3
	if want := map[string]int64{"queue_size": 7, "max_waiting_bytes": 2, "class gold requests": 4}; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked for shares of %v, want %v", asked, want)
	}
	if w.port.core.limits.MaxWaitingBytes != 1 {
		t.Error("a share of no bytes is no bound")
	}
	l := o.Limits
	l.QueueSize = 9
	w.do(Step{Op: StepSetLimits, Settings: &Settings{Limits: l}})
	w.expectArrival(7, disaggregated(0), "[7:waits]")
	w.expectArrival(8, disaggregated(0), "[8:queue_full]")
	w.empty()
}

// classesOf has two classes with quanta of 4 and 1 prompts.
func softOptions() Options {
	o := oneSlot
	o.Limits.QueueTimeout = 0
	o.Limits.StarvationGuard = 5 * time.Second
	o.Classes = &Classes{Root: &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "b"}}, Classes: []Class{
		{Name: "c", Family: "f", Bucket: "b", Quantum: 64}, {Name: "bulk", Quantum: 16},
	}}}
	return o
}

// What is served next, and what clients are told, is the same at a successor as if it had
// not changed.
func TestSuccessorGoesOnWithSoftState(t *testing.T) {
	next := func(handedOver, soft bool) (order []uint64, paces []float64) {
		w := newPortWorld(t, softOptions(), prefillRank("p"), decodeRank("d"))
		w.arrive(1, disaggregated(0))
		for n := uint64(2); n < 30; n++ {
			w.now++
			r := disaggregated(0)
			if n%2 == 0 {
				r.Class = "bulk"
			}
			w.arrive(n, r)
		}
		running := uint64(1)
		serve := func() {
			w.now += second / 5
			a := w.do(Step{Op: StepForget, Ticket: running})
			if len(a.Decided) == 1 {
				running = a.Decided[0].Ticket
				order = append(order, running)
			}
		}
		for range 7 {
			serve()
		}
		if handedOver {
			b, err := json.Marshal(w.port.Soft(w.now))
			if err != nil {
				t.Fatal(err)
			}
			var s Soft
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			w.port, _ = Restore(w.now, w.port.State(), softOptions())
			if soft {
				w.expect(w.port.SetSoft(w.now, s))
			}
		}
		for range 15 {
			serve()
		}
		c := w.port.core
		for _, q := range c.modelGroups[0].profiles[0].classes {
			paces = append(paces, q.pace.perSecond(w.now, c.start, PrefillLeg), q.atBest(w.now, c.start, PrefillLeg), float64(q.deficit))
		}
		return order, append(paces, float64(c.total.sum))
	}
	order, paces := next(false, false)
	if o, p := next(true, true); !slices.Equal(o, order) || !reflect.DeepEqual(p, paces) {
		t.Errorf("served %v at paces %v, without a handover %v at %v", o, p, order, paces)
	}
	if o, p := next(true, false); slices.Equal(o, order) && reflect.DeepEqual(p, paces) {
		t.Error("the test shows nothing: nothing of it is needed")
	}
}

func TestSuccessorGoesOnWithTheFence(t *testing.T) {
	w := newPortWorld(t, softOptions(), prefillRank("p"), prefillRank("q"), decodeRank("d"))
	pinned := disaggregated(0)
	pinned.Target.Pins[PrefillLeg] = "p"
	w.arrive(1, pinned)
	w.arrive(2, pinned)
	w.now += 3 * second
	w.expectArrival(3, disaggregated(0), "[3:q,d]") // others are granted meanwhile
	s := w.port.Soft(w.now)
	state := w.port.State()
	w.now += 3 * second
	w.port, _ = Restore(w.now-3*second, state, softOptions())
	w.port.SetSoft(w.now-3*second, s)
	w.do(Step{Op: StepAdvance})
	owner := func() uint64 {
		if o := w.port.core.modelGroups[0].fence.owner; o != nil {
			return o.extra.number
		}
		return 0
	}
	if owner() != 2 {
		t.Fatal("how long it was blocked is forgotten")
	}
	s, state = w.port.Soft(w.now), w.port.State()
	w.port, _ = Restore(w.now, state, softOptions())
	if w.port.SetSoft(w.now, s); owner() != 2 {
		t.Error("the fence is forgotten")
	}
	s.Queues[0].Fence, s.Queues[0].Rate, s.Queues[0].Class = 99, make(SoftRate, 99), "unknown"
	w.port.SetSoft(w.now, s)
	w.empty()
}

// In strict order, too, one whom its mask holds back keeps nobody of its own origin from
// starting.
func TestMaskedHeadBlocksNobodyOfItsOrigin(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), prefillRank("q"), decodeRank("d"), decodeRank("f"))
	w.do(Step{Op: StepSetMask, Origin: 7, Exclude: []RankRef{ref("d")}})
	pinned := disaggregated(7)
	pinned.Target.Pins[PrefillLeg] = "p"
	pinned.Target.Pins[DecodeLeg] = "f"
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: SetAttributes, Rank: ref("f"), Attributes: RankAttributes{Models: []string{"m"}, Limits: RankLimits{Running: 1}}}}})
	w.expectArrival(1, pinned, "[1:p,f]")
	w.do(Step{Op: StepEndPrefill, Ticket: 1})
	w.expectArrival(2, disaggregated(7), "[2:waits]") // only d has room, which it may not use
	w.do(Step{Op: StepApply, Changes: []FleetChange{{Op: AddRank, Add: &RankSpec{ID: "g", Generation: 1, Worker: "g", Role: RoleRegular, Models: []string{"m"}, State: RankState{Healthy: true}}}}})
	aggregated := disaggregated(7)
	aggregated.Target.Shape = Aggregated
	w.expectArrival(3, aggregated, "[3:g]")
	w.empty()
}

// What another process tells may contradict itself: a waiter holds nothing, and who is idle
// does not either.
func TestAdoptedNonsenseBooksNothing(t *testing.T) {
	w := newPortWorld(t, oneSlot, prefillRank("p"), decodeRank("d"))
	queued, idle, alone := held(1, "p", "d"), held(2, "p", "d"), held(3, "p", "d")
	queued.Status, idle.Status = StatusQueued, "nonsense"
	alone.Prefill, alone.Decode = nil, nil
	queued.QueuedAt, queued.Arrival = 5*second, 9*second // later than now
	w.expect(w.port.Adopt(w.now, []TicketState{idle, alone, queued}), "1:p,d")
	l, _ := w.port.Load(ref("p"))
	if d, _ := w.port.Load(ref("d")); l.Slots != 1 || d.Pending != 1 {
		t.Errorf("booked %+v and %+v", l, d)
	}
	w.empty()
}
