package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var errLeft = errors.New("the client left")

func TestLegsEndWithTheirRequest(t *testing.T) {
	client, leave := context.WithCancelCause(context.Background())
	var c requestContext
	c.begin(client)
	defer c.stop()
	var prefill, decode, own legContext
	for _, leg := range []*legContext{&prefill, &decode, &own} {
		leg.follow(&c.legContext)
	}
	decode.end(errWorkerDead)
	own.unfollow()
	own.unfollow()
	leave(errLeft)
	<-prefill.Done()
	<-c.Done()
	if !errors.Is(prefill.ended(), errLeft) || !errors.Is(c.ended(), errLeft) || !errors.Is(c.Err(), context.Canceled) {
		t.Errorf("prefill ended with %v, the request with %v, %v", prefill.ended(), c.ended(), c.Err())
	}
	if !errors.Is(decode.ended(), errWorkerDead) {
		t.Errorf("decode's first cause was replaced by %v", decode.ended())
	}
	if own.ended() != nil {
		t.Errorf("a leg that does not follow any more ended with %v", own.ended())
	}
	var late legContext
	if late.follow(&c.legContext); !errors.Is(late.ended(), errLeft) {
		t.Errorf("a leg that follows a request that has ended goes on: %v", late.ended())
	}
	late.unfollow()
}

// A request whose client is gone already must not be given a rank first.
func TestRequestOfAClientThatLeftEndsAtOnce(t *testing.T) {
	client, leave := context.WithCancelCause(context.Background())
	leave(errLeft)
	var c requestContext
	c.begin(client)
	if !errors.Is(c.ended(), errLeft) {
		t.Errorf("ended with %v", c.ended())
	}
	c.stop()
}

// tellingContext is one that calls functions at its end by itself.
type tellingContext struct {
	context.Context
	registered, removed int
}

func (c *tellingContext) AfterFunc(f func()) func() bool {
	c.registered++
	stop := context.AfterFunc(c.Context, f)
	return func() bool { c.removed++; return stop() }
}

func TestRequestAsksItsClientsContextItself(t *testing.T) {
	client, leave := context.WithCancelCause(context.Background())
	defer leave(nil)
	telling := &tellingContext{Context: client}
	var c requestContext
	c.begin(telling)
	c.stop()
	leave(errLeft)
	if telling.registered != 1 || telling.removed != 1 || c.ended() != nil {
		t.Errorf("registered %d times, removed %d times, ended with %v", telling.registered, telling.removed, c.ended())
	}
}

func TestRequestEndsByTime(t *testing.T) {
	limits := &deadlines{cause: errRequestTimeout}
	var c, other requestContext
	var leg legContext
	c.begin(context.Background())
	other.begin(context.Background())
	leg.follow(&c.legContext)
	other.endBy(limits, time.Now().Add(time.Hour))
	c.endBy(limits, time.Now().Add(20*time.Millisecond))
	<-leg.Done()
	if !errors.Is(leg.ended(), errRequestTimeout) || !errors.Is(c.ended(), errRequestTimeout) || other.ended() != nil {
		t.Errorf("the leg ended with %v, the request with %v, another with %v", leg.ended(), c.ended(), other.ended())
	}
	c.stop()
	other.stop()
	other.stop()
	if limits.waiting.Len() != 0 {
		t.Error("deadlines are left")
	}
}

func TestDeadlinesComeInTheirOrder(t *testing.T) {
	l := &deadlines{cause: errDecodeOver}
	now := time.Now()
	const (
		n     = 60
		first = 250 * time.Millisecond // by then all are added, and a third is removed
	)
	var ctx [n]legContext
	var d [n]deadline
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range n {
		if i%3 != 0 {
			wg.Add(1)
		}
		ctx[i].AfterFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
			if early := d[i].at.Until(); early > 0 {
				t.Errorf("%d came %s early", i, early)
			}
			wg.Done()
		})
	}
	for _, i := range []int{7, 3, 59, 0} { // out of order, the timer must be moved
		l.add(&d[i], &ctx[i], now.Add(first+time.Duration(i)*time.Millisecond))
	}
	for i := range n {
		if i != 7 && i != 3 && i != 59 && i != 0 {
			l.add(&d[i], &ctx[i], now.Add(first+time.Duration(i)*time.Millisecond))
		}
	}
	for i := 0; i < n; i += 3 {
		l.remove(&d[i])
		l.remove(&d[i])
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i < len(order); i++ {
		if order[i-1] > order[i] {
			t.Fatalf("ended in the order %v", order)
		}
	}
	if len(order) != n-n/3 {
		t.Errorf("%d ended", len(order))
	}
}

// One that is far out of the order must not make all others wait while its place is
// looked for.
func TestDeadlineFarOutOfOrder(t *testing.T) {
	l := &deadlines{cause: errRequestTimeout}
	now := time.Now()
	var later [maxSteps + 1]deadline
	var ctx, early, taken legContext
	for i := range later {
		l.add(&later[i], &ctx, now.Add(time.Hour+time.Duration(i)))
	}
	var d, e deadline
	l.add(&e, &taken, now.Add(30*time.Minute))
	l.remove(&e)
	l.remove(&e)
	l.add(&d, &early, now.Add(10*time.Millisecond))
	<-early.Done()
	if d.alone == nil || e.alone == nil || e.alone.Stop() {
		t.Error("want timers of their own, the second of them stopped")
	}
	if !errors.Is(early.ended(), errRequestTimeout) || ctx.ended() != nil || taken.ended() != nil {
		t.Errorf("ended: %v, %v, %v", early.ended(), ctx.ended(), taken.ended())
	}
	l.remove(&d)
	for i := range later {
		l.remove(&later[i])
	}
	if l.waiting.Len() != 0 {
		t.Error("deadlines are left")
	}
}

// The timer is left set when the list becomes empty; the next deadline must come
// all the same, before or after it rings for nothing.
func TestDeadlineAfterOneThatWasRemoved(t *testing.T) {
	l := &deadlines{cause: errDecodeOver}
	for _, pause := range []time.Duration{0, 30 * time.Millisecond} {
		for _, after := range []time.Duration{-time.Second, 0, 5 * time.Millisecond, 40 * time.Millisecond} {
			var removed, due legContext
			var a, b deadline
			set := time.Now()
			l.add(&a, &removed, set.Add(20*time.Millisecond))
			l.remove(&a)
			inTime := time.Since(set) < 20*time.Millisecond
			time.Sleep(pause)
			l.add(&b, &due, time.Now().Add(after))
			<-due.Done()
			if inTime && removed.ended() != nil {
				t.Error("a removed deadline came")
			}
		}
	}
}

// However a request's ends meet, each leg ends once, with one of the causes, and
// nothing is left in the lists.
func TestRequestContextUnderContention(t *testing.T) {
	limits, graces := &deadlines{cause: errRequestTimeout}, &deadlines{cause: errDecodeOver}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 150 {
				client, leave := context.WithCancelCause(context.Background())
				var c requestContext
				c.begin(client)
				at := time.Now().Add(time.Duration((i*7+g)%5) * 50 * time.Microsecond)
				c.endBy(limits, at)
				var prefill, decode legContext
				prefill.follow(&c.legContext)
				decode.follow(&c.legContext)
				var calls atomic.Int32
				stop := decode.AfterFunc(func() { calls.Add(1) })
				var grace deadline
				var wg sync.WaitGroup
				wg.Go(func() { leave(errLeft) })
				wg.Go(func() { decode.end(errPeerFailed) })
				wg.Go(func() { graces.add(&grace, &prefill, at) })
				wg.Go(func() { graces.remove(&grace) })
				prefill.unfollow()
				stopped := stop()
				wg.Wait()
				graces.remove(&grace)
				<-c.Done()
				c.stop()
				if !errors.Is(c.ended(), errLeft) && !errors.Is(c.ended(), errRequestTimeout) {
					t.Errorf("the request ended with %v", c.ended())
				}
				if cause := decode.ended(); cause == nil {
					t.Error("decode goes on")
				}
				if n := calls.Load(); stopped && n != 0 || n > 1 {
					t.Errorf("stopped %t, called %d times", stopped, n)
				}
			}
		})
	}
	all.Wait()
	for _, l := range []*deadlines{limits, graces} {
		if l.waiting.Len() != 0 {
			t.Error("deadlines are left")
		}
	}
}

// An ordinary request costs the call that follows the client, where that ends at
// all, and no more.
func TestRequestContextAllocatesLittle(t *testing.T) {
	limits := &deadlines{cause: errRequestTimeout}
	var c requestContext
	c.endBy(limits, time.Now().Add(time.Hour)) // makes the timer
	c.stop()
	var x struct {
		c    requestContext
		legs [2]legContext
		told [2]listener
	}
	allocs := testing.AllocsPerRun(100, func() {
		x.c, x.legs = requestContext{}, [2]legContext{}
		x.c.begin(context.Background())
		x.c.endBy(limits, time.Now().Add(time.Hour))
		for i := range x.legs {
			x.legs[i].follow(&x.c.legContext)
			x.legs[i].Notify(&x.told[i])
			x.legs[i].Forget(&x.told[i])
			x.legs[i].unfollow()
		}
		x.c.stop()
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}
