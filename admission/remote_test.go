package admission

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// told is one thing that a Remote was told of a ticket.
type told struct {
	number  uint64
	attempt uint32
	op      StepOp
	amount  int64
}

// fakeRemote writes down what it is told, and decides when the test says so.
type fakeRemote struct {
	mu       sync.Mutex
	steps    []told
	requests []Request
	changes  []FleetChange
	settings []StepOp
	hints    []*[2]RequestHint
	decide   func(number uint64, attempt uint32) // within Arrive
	move     func(exclude []string) (string, bool)
	whole    *Stats
	stopped  []string
}

func (f *fakeRemote) Arrive(number uint64, attempt uint32, r *Request) {
	f.mu.Lock()
	f.steps = append(f.steps, told{number, attempt, StepArrive, 0})
	f.requests = append(f.requests, *r)
	f.mu.Unlock()
	if f.decide != nil {
		f.decide(number, attempt)
	}
}

func (f *fakeRemote) Step(number uint64, attempt uint32, op StepOp, amount int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, told{number, attempt, op, amount})
}

func (f *fakeRemote) Move(_ uint64, _ uint32, exclude []string) (string, bool) {
	return f.move(exclude)
}

func (f *fakeRemote) Refresh(_ uint64, _ uint32, hints *[2]RequestHint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hints = append(f.hints, hints)
}

func (f *fakeRemote) Observe(changes []FleetChange)          { f.changes = append(f.changes, changes...) }
func (f *fakeRemote) Configure(op StepOp, _ Settings)        { f.settings = append(f.settings, op) }
func (f *fakeRemote) StopArrivals()                          { f.stopped = append(f.stopped, "stop") }
func (f *fakeRemote) DrainWithin(time.Duration) int          { f.stopped = append(f.stopped, "drain"); return 3 }
func (f *fakeRemote) RefuseWaiters()                         { f.stopped = append(f.stopped, "refuse") }
func (f *fakeRemote) Stats() *Stats                          { return f.whole }
func (f *fakeRemote) Snapshot() *Stats                       { return f.whole }
func (f *fakeRemote) PoolLoad(string, Role) (PoolLoad, bool) { return PoolLoad{Requests: 7}, true }

// last returns what was told since the last call.
func (f *fakeRemote) last() []told {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.steps
	f.steps = nil
	return s
}

// remoteWorld is a gate with a Remote, a prefill and two decode ranks.
func remoteWorld(observer Observer) (*Gate, *fakeRemote) {
	f := &fakeRemote{}
	g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 5}}, NewSystemClock(), observer)
	g.SetRemote(f)
	rank := func(id string, role Role) Change {
		return Change{Op: AddRank, Rank: NewRank(RankSpec{ID: id, Worker: id, Role: role, Models: []string{"m"}, State: RankState{Healthy: true}})}
	}
	g.Apply(rank("p", RolePrefill), rank("d", RoleDecode), rank("e", RoleDecode))
	return g, f
}

func (f *fakeRemote) grants(g *Gate, d RemoteDecision) {
	f.decide = func(number uint64, attempt uint32) { g.Decide(number, attempt, &d) }
}

var pd = RemoteDecision{Granted: true, Prefill: "p", Decode: "d", Class: "gold", Choice: Choice{Best: 5}}

func TestRemoteDecidesAndIsToldEachStepOnce(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, pd)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: 100, Legs: 2}
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	if k.Prefill.ID() != "p" || k.Decode.ID() != "d" || k.ClassName() != "gold" || k.Queued() || k.Choice().Best != 5 {
		t.Errorf("granted %v and %v of class %s, queued %t", k.Prefill.ID(), k.Decode.ID(), k.ClassName(), k.Queued())
	}
	if s := g.RankStats(k.Prefill); s.PrefillSlots != 1 || s.PrefillTokens != 100 {
		t.Errorf("the gate has booked %+v for its own request", s)
	}
	for range 2 {
		k.StartDecode()
		k.FirstToken()
		k.EndPrefill()
	}
	k.Grow(2)
	k.Grow(3)
	for range 2 {
		k.EndDecode()
		k.Release()
		k.Close()
	}
	want := []told{
		{1, 1, StepArrive, 0}, {1, 1, StepStartDecode, 0}, {1, 1, StepFirstToken, 0}, {1, 1, StepEndPrefill, 0},
		{1, 1, StepGrow, 2}, {1, 1, StepGrow, 5}, {1, 1, StepEndDecode, 0}, {1, 1, StepRelease, 0}, {1, 1, StepForget, 0},
	}
	if got := f.last(); !reflect.DeepEqual(got, want) {
		t.Errorf("told\n%v, want\n%v", got, want)
	}
	for _, r := range local(g, (*Core).Stats).Ranks {
		if r.Load() != 0 || r.PrefillSlots != 0 || r.PrefillTokens != 0 || r.PendingBlocks != 0 || r.ActiveBlocks != 0 {
			t.Errorf("left over: %+v", r)
		}
	}
	if len(g.remote.tickets) != 0 || g.Waiting() != 0 {
		t.Errorf("%d tickets are left, %d wait", len(g.remote.tickets), g.Waiting())
	}
}

func TestRemoteDecisionIsTakenOnceByTheAttemptThatWaits(t *testing.T) {
	g, f := remoteWorld(nil)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	f.decide = func(number uint64, attempt uint32) {
		if g.Decide(number, attempt+1, &pd) || g.Decide(number+1, attempt, &pd) {
			t.Error("a decision was taken that was another's")
		}
		if !g.Decide(number, attempt, &pd) || g.Decide(number, attempt, &pd) {
			t.Error("a decision was not taken, or twice")
		}
	}
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	k.Release()
	f.decide = nil
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Acquire(ctx, k); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if g.Decide(1, 2, &pd) {
		t.Error("a decision was taken for one who gave up")
	}
	if got := f.last(); got[len(got)-1] != (told{1, 2, StepCancel, 0}) {
		t.Errorf("told %v", got)
	}
}

func TestRemoteRefuses(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, RemoteDecision{Refusal: &Refusal{Reason: GateUnavailable, RetryAfter: 3 * time.Second}, Waited: time.Second, Queued: true})
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	var r *Refusal
	if err := g.Acquire(context.Background(), k); !errors.As(err, &r) || r.Code() != "gate_unavailable" || r.RetryAfter != 3*time.Second {
		t.Fatalf("refused %v", err)
	}
	if k.Waited() != time.Second || !k.Queued() {
		t.Errorf("waited %s", k.Waited())
	}
}

// A rank that the Remote grants may have left this process meanwhile.
func TestGrantOfAnUnknownRankComesAgainWithoutIt(t *testing.T) {
	g, f := remoteWorld(nil)
	f.decide = func(number uint64, attempt uint32) {
		d := pd
		d.Decode = []string{"", "gone", "p", "e"}[attempt] // unknown, of another role, right
		if taken := g.Decide(number, attempt, &d); taken != (attempt == 3) {
			t.Errorf("attempt %d: taken %t", attempt, taken)
		}
	}
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	if err := g.Acquire(context.Background(), k); err != nil || k.Decode.ID() != "e" {
		t.Fatalf("granted %v, %v", k.Decode, err)
	}
	last := f.requests[len(f.requests)-1]
	if !last.Retry || !reflect.DeepEqual(last.Exclude[DecodeLeg], []RankRef{{ID: "gone"}, {ID: "p"}}) || f.requests[0].Retry {
		t.Errorf("came again as %+v", last)
	}
	k.Release()
	f.decide = func(number uint64, attempt uint32) { g.Decide(number, attempt, &pd) }
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	if r := f.requests[len(f.requests)-1]; len(r.Exclude[DecodeLeg]) > 0 || r.Retry {
		t.Errorf("the next attempt came as %+v", r)
	}
	k.Close()

	f.decide = func(number uint64, attempt uint32) {
		d := RemoteDecision{Granted: true, Prefill: "p", Decode: "gone"}
		if attempt == 3 {
			d = RemoteDecision{Refusal: &Refusal{Reason: RetryRefused}}
		}
		g.Decide(number, attempt, &d)
	}
	var r *Refusal
	k = &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	if err := g.Acquire(context.Background(), k); !errors.As(err, &r) || r.Reason != NoWorkers {
		t.Errorf("refused %v: there was no attempt before", err)
	}
	f.grants(g, RemoteDecision{Granted: true, Prefill: "p", Decode: "gone"})
	k = &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	if err := g.Acquire(context.Background(), k); !errors.As(err, &r) || r.Reason != NoWorkers {
		t.Errorf("refused %v", err)
	}
	if len(g.remote.tickets) != 0 || g.Waiting() != 0 {
		t.Errorf("%d tickets are left, %d wait", len(g.remote.tickets), g.Waiting())
	}
}

func TestRemoteGrantsWhatABypassMayTakeInstead(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, pd)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Bypass}), Instead: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), Bypass: &BypassRule{}}
	if err := g.Acquire(context.Background(), k); err != nil || k.Target.Shape() != Disaggregated || k.Prefill == nil {
		t.Fatalf("%v: goes on as %s", err, k.Target.Shape())
	}
	if r := f.requests[0]; r.Instead == nil || r.Target.Shape != Bypass || r.Predicate == 0 {
		t.Errorf("asked for %+v", r)
	}
}

func TestRemoteMovesDecode(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, pd)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: 16}
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	var asked [][]string
	f.move = func(exclude []string) (string, bool) {
		asked = append(asked, exclude)
		return []string{"gone", "e"}[len(asked)-1], true
	}
	d := k.Decode
	if !k.MoveDecode(d) || k.Decode.ID() != "e" || !reflect.DeepEqual(asked, [][]string{{"d"}, {"d", "gone"}}) {
		t.Errorf("moved to %s, asked %v", k.Decode.ID(), asked)
	}
	if g.RankStats(d).Load() != 0 || g.RankStats(k.Decode).Load() != 1 {
		t.Error("the booking did not move")
	}
	f.move = func([]string) (string, bool) { return "", false }
	if k.MoveDecode() || k.Decode.ID() != "e" {
		t.Error("moved to nothing")
	}
	k.Close()
	if k.MoveDecode() {
		t.Error("one that holds nothing has moved")
	}
}

// renewing finds the prefill rank for the holder of everything.
type renewing struct{ rank *Rank }

func (m renewing) Match(_ *Ticket, hints *[2]Hint) bool {
	hints[PrefillLeg] = Hint{PromptTokens: 9}
	hints[PrefillLeg].Holders[0] = Holder{m.rank, 9}
	return true
}

func TestRemoteHasHintsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := remoteWorld(nil)
		k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
		k.Matcher = renewing{registered(&g.core.rankIndex, "p", RolePrefill)}
		ended := make(chan error)
		go func() { ended <- g.Acquire(context.Background(), k) }()
		synctest.Wait()
		if g.Waiting() != 1 || !f.requests[0].Renew {
			t.Fatalf("%d wait", g.Waiting())
		}
		g.Ask(1, 2)
		synctest.Wait()
		if len(f.hints) != 1 || f.hints[0][PrefillLeg].Holders[0].Rank.ID != "p" {
			t.Fatalf("renewed %v", f.hints)
		}
		if !g.Decide(1, 1, &pd) {
			t.Error("not taken")
		}
		if err := <-ended; err != nil || k.Hints[PrefillLeg].PromptTokens != 9 {
			t.Errorf("%v, hints %+v", err, k.Hints)
		}
	})
}

// Whoever is first, the decision or the end of the context, one outcome follows and nothing
// is left.
func TestRemoteDecisionRacesWithTheContext(t *testing.T) {
	g, f := remoteWorld(nil)
	var taken, given sync.Map
	f.decide = func(number uint64, attempt uint32) {
		go func() {
			if g.Decide(number, attempt, &pd) {
				taken.Store(number, true)
			} else {
				given.Store(number, true)
			}
		}()
	}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			go cancel()
			k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
			if err := g.Acquire(ctx, k); err == nil {
				k.EndPrefill()
			}
			k.Close()
		})
	}
	all.Wait()
	ended := map[uint64][]StepOp{}
	for _, s := range f.last() {
		if s.op == StepCancel || s.op == StepRelease {
			ended[s.number] = append(ended[s.number], s.op)
		}
	}
	for n := range uint64(200) {
		if len(ended[n+1]) != 1 {
			t.Errorf("ticket %d ended by %v", n+1, ended[n+1])
		}
	}
	for _, r := range local(g, (*Core).Stats).Ranks {
		if r.Load() != 0 || r.PrefillSlots != 0 {
			t.Errorf("left over: %+v", r)
		}
	}
}

func TestRevokeIsToldOnce(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, pd)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	n := 0
	k.OnRevoke(func() { n++ })
	for range 2 {
		g.Revoke(1)
	}
	if n != 1 {
		t.Errorf("called %d times", n)
	}
	k.Release()
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	g.Revoke(1) // before anybody asks for it
	k.OnRevoke(func() { n++ })
	if n != 2 {
		t.Errorf("called %d times, of one that was revoked before", n)
	}
	k.Close()
	g.Revoke(1)
}

func TestRemoteIsToldOfRanksAndSettings(t *testing.T) {
	g, f := remoteWorld(nil)
	p := registered(&g.core.rankIndex, "p", RolePrefill)
	g.Apply(Change{Op: SetState, Rank: p, State: RankState{}}, Change{Op: RemoveRank, Rank: registered(&g.core.rankIndex, "e", RoleDecode)})
	want := []ChangeOp{AddRank, AddRank, AddRank, SetState, RemoveRank}
	for i, ch := range f.changes {
		if ch.Op != want[i] || ch.Rank.ID == "" || ch.Rank.Generation == 0 || (ch.Op == AddRank) != (ch.Add != nil) {
			t.Errorf("told %+v", ch)
		}
	}
	g.SetLimits(Limits{})
	g.SetClasses(nil)
	g.SetRejectThresholds(RejectThresholds{})
	g.Reload(Settings{})
	if !reflect.DeepEqual(f.settings, []StepOp{StepReload, StepSetLimits, StepSetClasses, StepSetReject, StepReload}) {
		t.Errorf("told %v", f.settings)
	}
	g.StopArrivals()
	if n := g.DrainWithin(time.Second); n != 3 {
		t.Errorf("%d refused", n)
	}
	g.RefuseWaiters()
	if !reflect.DeepEqual(f.stopped, []string{"stop", "drain", "refuse"}) {
		t.Errorf("told %v", f.stopped)
	}
}

func TestGaugesAreThoseOfTheWhole(t *testing.T) {
	g, f := remoteWorld(nil)
	f.grants(g, pd)
	k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
	if err := g.Acquire(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	for _, r := range g.Stats().Ranks {
		if r.Load() != 0 || r.PrefillSlots != 0 {
			t.Errorf("a gauge shows %+v, which another process shows", r)
		}
	}
	if s := g.Snapshot(); len(s.Ranks) != 3 || s.Ranks[0].PrefillSlots != 1 {
		t.Errorf("where the whole is not known: %+v", s.Ranks)
	}
	f.whole = &Stats{Waiting: 8}
	if g.Stats().Waiting != 8 || g.Snapshot().Waiting != 8 || g.PoolLoad("m", RolePrefill).Requests != 7 {
		t.Error("the whole is not shown")
	}
}
