package cluster

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// waits lets time pass in steps until the one waiting ticket is decided, and returns how
// long that took.
func (k *fakeKeeper) waits(most time.Duration, heard bool) time.Duration {
	k.t.Helper()
	begun := k.now
	for k.now-begun < admission.Instant(most) {
		if k.pass(time.Millisecond, heard); len(k.out.Decided) > 0 {
			return time.Duration(k.now - begun)
		}
	}
	k.t.Fatalf("nothing was decided within %v", most)
	return 0
}

// endsAt checks that a wait ended by its bound and at most a tenth of a second later.
func (k *fakeKeeper) endsAt(bound time.Duration, heard bool) {
	k.t.Helper()
	if took := k.waits(bound+time.Second, heard); took < bound || took > bound+100*time.Millisecond {
		k.t.Errorf("the wait ended after %v, its bound is %v", took, bound)
	}
}

func TestMemberEndsWaitsOnTimeWhateverTheKeeperDoes(t *testing.T) {
	limit := func(d time.Duration) *admission.Request {
		r := pdRequest()
		r.Deadline = admission.Instant(d)
		return r
	}
	classLimit := func(d time.Duration) *admission.Request {
		r := pdRequest()
		r.ClassDeadline = admission.Instant(d)
		return r
	}
	classes := &admission.Classes{Root: &admission.Profile{Classes: []admission.Class{
		{Name: "batch", Quantum: 1}, {Name: "chat", Quantum: 1, MaxWait: 2 * time.Second},
	}}}
	chat := pdRequest()
	chat.Class = "chat"
	for name, c := range map[string]struct {
		request *admission.Request // deadlines from now
		queued  *Queued
		bound   time.Duration
		reason  admission.Reason
		kind    admission.LimitKind
	}{
		"the queue's timeout":            {pdRequest(), nil, 3 * time.Second, admission.QueueTimeout, admission.LimitNone},
		"the client's deadline":          {limit(700 * time.Millisecond), nil, 700 * time.Millisecond, admission.DeadlineExceeded, admission.LimitClientWait},
		"a client that is in a hurry":    {limit(10 * time.Millisecond), nil, 10 * time.Millisecond, admission.DeadlineExceeded, admission.LimitClientWait},
		"the classifier's deadline":      {classLimit(time.Second), nil, time.Second, admission.DeadlineExceeded, admission.LimitClassWait},
		"the class's longest wait":       {chat, nil, 2 * time.Second, admission.DeadlineExceeded, admission.LimitClassWait},
		"what the keeper said":           {pdRequest(), &Queued{Left: 1500 * time.Millisecond, Reason: admission.NoWorkers, Class: "batch"}, 1500 * time.Millisecond, admission.NoWorkers, admission.LimitNone},
		"what the keeper said, and less": {limit(900 * time.Millisecond), &Queued{Left: 1500 * time.Millisecond, Reason: admission.QueueTimeout}, 900 * time.Millisecond, admission.DeadlineExceeded, admission.LimitClientWait},
	} {
		for _, heard := range []bool{true, false} {
			k := newMember(t, func(o *Options) {
				o.Gate.Limits.QueueTimeout, o.Gate.Classes = 3*time.Second, classes
			})
			r := *c.request
			if r.Deadline != 0 {
				r.Deadline += k.now
			}
			if r.ClassDeadline != 0 {
				r.ClassDeadline += k.now
			}
			k.arrive(1, 1, &r)
			k.hear()
			if c.queued != nil {
				k.send(Item{Kind: ItemQueued, Number: 1, Attempt: 1, Place: Place{1, 1}, Body: c.queued})
			}
			t.Run(name, func(t *testing.T) {
				k.t = t
				k.endsAt(c.bound, heard)
				x := k.refusedFor(c.reason)
				if x.LimitKind != c.kind || x.RetryAfter < time.Second {
					t.Errorf("refused: %+v", x)
				}
				cancelled := k.sent(ItemStep)
				if len(cancelled) != 1 || cancelled[0].Op != admission.StepCancel {
					t.Errorf("the keeper was told %+v", cancelled)
				}
			})
		}
	}
}

func TestMemberLeavesTheKeeperTimeToRefuse(t *testing.T) {
	k := newMember(t, func(o *Options) { o.Gate.Limits.QueueTimeout = time.Second })
	k.arrive(1, 1, pdRequest())
	k.pass(time.Second+40*time.Millisecond, true)
	k.undecided()
	refusal := admission.Refusal{Reason: admission.QueueTimeout, Limit: int64(time.Second), Depth: 4}
	k.send(Item{Kind: ItemDecision, Number: 1, Attempt: 1, Body: &Refused{Refusal: refusal, Class: "default", Waited: time.Second}})
	if x := k.refusedFor(admission.QueueTimeout); x.Depth != 4 {
		t.Errorf("refused: %+v", x)
	}
	k.pass(time.Second, true)
	k.undecided()
}

func TestMemberCountsEarlierWaitsOfARetry(t *testing.T) {
	k := newMember(t, func(o *Options) { o.Gate.Limits.QueueTimeout = 3 * time.Second })
	k.arrive(1, 1, pdRequest())
	k.hear()
	g := k.grant(1, 1, "p1", "d1")
	g.Body = &Grant{Waited: 2 * time.Second}
	k.pass(2*time.Second, true)
	k.send(g)
	k.one()
	k.pass(time.Minute, true)
	k.step(1, admission.StepRelease)
	k.take()
	r := pdRequest()
	r.Retry = true
	k.arrive(1, 2, r)
	if a := k.sent(ItemArrive)[0].Body.(*Ask); a.Waited != 2*time.Second || a.Age != time.Minute+2*time.Second {
		t.Errorf("told age %v, waited %v", a.Age, a.Waited)
	}
	k.endsAt(time.Second, true)
	k.refusedFor(admission.RetryRefused)
}

func TestMemberRefusesWhatMayNotQueueWithoutAKeeper(t *testing.T) {
	zero := 0.0
	never := &admission.Classes{Root: &admission.Profile{Classes: []admission.Class{{Name: "now", Quantum: 1, RawTokenLimitPerWorker: &zero}}}}
	for name, c := range map[string]struct {
		change func(*Options)
		reason admission.Reason
		kind   admission.LimitKind
	}{
		"a queue of size 0":         {func(o *Options) { o.Gate.Limits.QueueSize = 0 }, admission.QueueFull, admission.LimitRequests},
		"a class that never queues": {func(o *Options) { o.Gate.Classes = never }, admission.ClassQueueFull, admission.LimitRawTokens},
	} {
		t.Run(name, func(t *testing.T) {
			k := newMember(t, c.change)
			k.office = OfficeOpening
			k.exchange()
			k.pass(time.Second, true)
			k.arrive(1, 1, pdRequest())
			k.endsAt(200*time.Millisecond, true)
			if x := k.refusedFor(c.reason); x.LimitKind != c.kind || x.Limit != 0 || x.Code() == "" {
				t.Errorf("refused: %+v", x)
			}
			r := pdRequest()
			r.Retry = true
			k.arrive(2, 1, r)
			k.endsAt(200*time.Millisecond, true)
			k.refusedFor(admission.RetryRefused)

			// With a keeper that is slow to answer it waits for the keeper.
			k.office = OfficeDeciding
			k.exchange()
			k.arrive(3, 1, pdRequest())
			k.pass(time.Second, true)
			k.undecided()
			// Until that is not heard any more.
			k.waits(400*time.Millisecond, false)
			k.refusedFor(c.reason)
		})
	}
}
