package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeFleet remembers what is in force.
type fakeFleet struct {
	mu      sync.Mutex
	urls    []string
	calls   int
	fails   map[string]bool
	awaited map[string]bool
	heldOut []string
	refuse  error
}

func (f *fakeFleet) Reconcile(_ context.Context, _ string, specs []fleet.Declared) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls = nil
	f.calls++
	for _, s := range specs {
		f.urls = append(f.urls, s.URL)
	}
	return f.refuse
}

func (f *fakeFleet) Fails(url string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fails[url]
}

func (f *fakeFleet) Awaited(_ string, urls []string) (list []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range urls {
		if f.awaited[u] {
			list = append(list, u)
		}
	}
	return list
}

func (f *fakeFleet) Owned(string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.urls)
}

func (f *fakeFleet) HeldOut(string) []string { return f.heldOut }

func (f *fakeFleet) failing(url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails[url] = true
}

// testbed is a manager in virtual time with a fake fleet.
type testbed struct {
	*Manager
	t     *testing.T
	fleet *fakeFleet
	log   bytes.Buffer
}

func inBubble(t *testing.T, f func(b *testbed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &testbed{t: t, fleet: &fakeFleet{fails: map[string]bool{}}}
		b.Manager = NewManager(Options{Fleet: b.fleet, Hold: time.Minute, Log: slog.New(slog.NewTextHandler(&b.log, nil))})
		defer b.Close()
		f(b)
	})
}

func url(i int) string { return fmt.Sprintf("http://10.0.0.%d:30000", i) }

func declare(is ...int) Reading {
	var r Reading
	for _, i := range is {
		r.Workers = append(r.Workers, fleet.Declared{Worker: config.Worker{URL: url(i)}})
	}
	return r
}

func (b *testbed) read(is ...int) { b.Take("pods", declare(is...)) }

func (b *testbed) want(is ...int) {
	b.t.Helper()
	b.fleet.mu.Lock()
	defer b.fleet.mu.Unlock()
	var want []string
	for _, i := range is {
		want = append(want, url(i))
	}
	slices.Sort(want)
	got := slices.Sorted(slices.Values(b.fleet.urls))
	if !slices.Equal(got, want) {
		b.t.Errorf("in force: %q, want %q", got, want)
	}
}

func (b *testbed) state() Status {
	b.t.Helper()
	list := b.Status()
	if len(list) != 1 {
		b.t.Fatalf("%d sources", len(list))
	}
	return list[0]
}

func (b *testbed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestEmptyReadingIsHeldBackUntilReadThreeTimes(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2)
		b.read()
		b.want(1, 2)
		if st := b.state(); st.State != StateHolding || st.HeldCount != 2 || st.HeldUntil == nil || !slices.Equal(st.Held, []string{url(1), url(2)}) {
			t.Errorf("status %+v", st)
		}
		b.pass(time.Second)
		b.read()
		b.want(1, 2)
		b.pass(time.Second)
		b.read()
		b.want()
		if st := b.state(); st.State != StateOK || st.HeldCount != 0 || st.Workers != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestReadingsInARushCountAsOne(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2)
		for range 10 {
			b.read()
			b.pass(10 * time.Millisecond)
		}
		b.want(1, 2)
	})
}

func TestDropIsPutInForceAfterTheHoldTime(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3, 4, 5)
		b.read(1, 2, 6)
		b.want(1, 2, 3, 4, 5, 6) // what is new comes at once
		b.pass(time.Minute - time.Millisecond)
		b.want(1, 2, 3, 4, 5, 6)
		b.pass(2 * time.Millisecond)
		b.want(1, 2, 6)
	})
}

func TestWhatIsNotSuspicious(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3)
		b.read(1) // two of three
		b.want(1)
		b.read(1, 2, 3, 4)
		b.read(1, 2) // half
		b.want(1, 2)
		b.read(1, 2, 3, 4, 5)
		b.read(1, 2, 3) // fewer than half
		b.want(1, 2, 3)
	})
}

func TestHeldWorkerThatFailsGoesAtOnce(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.fleet.failing(url(2))
		b.read(1, 2, 3, 4)
		b.read()
		b.want(1, 3, 4)
		b.fleet.failing(url(3))
		b.pass(holdLook)
		b.want(1, 4)
		b.read()
		b.want(1, 4) // it is still the drop that is held: of 2 now
		b.fleet.failing(url(1))
		b.fleet.failing(url(4))
		b.pass(holdLook)
		b.want()
		if st := b.state(); st.State != StateOK {
			t.Errorf("state %s", st.State)
		}
	})
}

func TestHeldWorkersThatComeBack(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3, 4)
		b.read()
		b.pass(time.Second)
		b.read(1, 2, 3)
		b.want(1, 2, 3, 4)
		b.read(1, 2, 3, 4)
		if st := b.state(); st.State != StateOK {
			t.Errorf("state %s", st.State)
		}
		// The next drop is a new one.
		b.pass(time.Hour)
		b.read()
		b.want(1, 2, 3, 4)
	})
}

// A source that answers now with one set and then with another one, such as two name
// servers that disagree, never lacks a worker three times in a row.
func TestSourceThatGoesBackAndForthLosesNobody(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3, 4, 5)
		for range 40 {
			b.read(6, 7, 8, 9, 10)
			b.want(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			b.pass(5 * time.Second)
			b.read(1, 2, 3, 4, 5)
			b.want(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			b.pass(5 * time.Second)
		}
		// A worker that stays away is gone after three readings, as ever.
		b.read(6, 7, 8, 9, 10)
		b.pass(time.Second)
		b.read(6, 7, 8, 9, 10)
		b.pass(time.Second)
		b.read(6, 7, 8, 9, 10)
		b.want(6, 7, 8, 9, 10)
	})
}

// A worker that its source declares as leaving has been announced: that it is gone then is
// no surprise.
func TestLeavingWorkersAreNotHeld(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3, 4)
		r := declare(1, 2, 3, 4)
		for i := range r.Workers {
			r.Workers[i].Leaving = true
		}
		b.Take("pods", r)
		b.read()
		b.want()
	})
}

func TestFailingSourceKeepsItsLastWorkers(t *testing.T) {
	inBubble(t, func(b *testbed) {
		if st := b.Status(); len(st) != 0 {
			t.Errorf("sources %v", st)
		}
		b.read(1, 2)
		for i := range 5 {
			b.Take("pods", Reading{Err: fmt.Errorf("connection refused %d", i)})
			b.pass(time.Second)
		}
		b.want(1, 2)
		st := b.state()
		if st.State != StateFailing || st.Failures != 5 || st.Readings != 1 || st.Error != "connection refused 4" || st.LastSuccessAge != 5 {
			t.Errorf("status %+v", st)
		}
		if n := strings.Count(b.log.String(), "cannot be read"); n != 1 {
			t.Errorf("%d lines about the failure:\n%s", n, b.log.String())
		}
		b.read(1, 2)
		if st := b.state(); st.State != StateOK || st.Error != "" || !strings.Contains(b.log.String(), "can be read again") {
			t.Errorf("status %+v, log:\n%s", st, b.log.String())
		}
	})
}

func TestWarningsAreLoggedOnce(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.fleet.refuse = errors.Join(errors.New("worker a: wrong"), errors.New("worker b: wrong"))
		r := declare(1)
		r.Warnings = []string{"line 3: odd"}
		for range 3 {
			b.Take("pods", r)
		}
		for _, about := range []string{"line 3: odd", "worker a: wrong", "worker b: wrong"} {
			if n := strings.Count(b.log.String(), about); n != 1 {
				t.Errorf("%d lines about %q", n, about)
			}
		}
		if st := b.state(); len(st.Warnings) != 3 {
			t.Errorf("warnings %q", st.Warnings)
		}
		b.fleet.refuse = nil
		b.read(1)
		if st := b.state(); len(st.Warnings) != 0 {
			t.Errorf("warnings %q stay", st.Warnings)
		}
	})
}

func TestReadingsAreBounded(t *testing.T) {
	inBubble(t, func(b *testbed) {
		r := Reading{Workers: make([]fleet.Declared, maxWorkers+5)}
		for i := range r.Workers {
			r.Workers[i].URL = fmt.Sprintf("http://w%d", i)
		}
		for range 3 * MaxWarnings {
			r.Warnings = append(r.Warnings, strings.Repeat("x", 10*maxText))
		}
		var errs []error
		for i := range 1000 {
			errs = append(errs, fmt.Errorf("error %d", i))
		}
		b.fleet.refuse = errors.Join(errs...)
		b.Take("pods", r)
		st := b.state()
		if len(b.fleet.urls) != maxWorkers || len(st.Warnings) > 2*MaxWarnings || len(st.Warnings[0]) > maxText+10 {
			t.Errorf("%d workers, %d warnings, the first of %d bytes", len(b.fleet.urls), len(st.Warnings), len(st.Warnings[0]))
		}
	})
}

func TestNothingIsHeldWithoutAHoldTime(t *testing.T) {
	f := &fakeFleet{fails: map[string]bool{}}
	m := NewManager(Options{Fleet: f})
	defer m.Close()
	m.Take("pods", declare(1, 2, 3, 4))
	m.Take("pods", declare())
	if len(f.urls) != 0 {
		t.Errorf("in force: %q", f.urls)
	}
}

// runner is a source that reports what it is sent.
type runner struct {
	readings chan Reading
	ended    bool
}

func (r *runner) Name() string { return "runner" }

func (r *runner) Run(ctx context.Context, report func(Reading)) {
	defer func() { r.ended = true }()
	for {
		select {
		case reading := <-r.readings:
			report(reading)
		case <-ctx.Done():
			return
		}
	}
}

func TestCloseEndsSources(t *testing.T) {
	inBubble(t, func(b *testbed) {
		r := &runner{readings: make(chan Reading)}
		b.Run(r)
		if st := b.state(); st.State != StateWaiting || st.LastSuccess != nil {
			t.Errorf("status %+v", st)
		}
		r.readings <- declare(1)
		synctest.Wait()
		b.want(1)
		r.readings <- declare()
		synctest.Wait() // a hold with its timer
		b.Close()
		if !r.ended {
			t.Error("the source still runs")
		}
		b.Take("runner", declare(2))
		b.want(1)
		b.Run(&runner{}) // does nothing
	})
}

// A source that hangs, as in a file system that does not answer, does not keep the process.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	inBubble(t, func(b *testbed) {
		hang := hanging{release: make(chan struct{}), ended: make(chan struct{})}
		b.Run(hang)
		synctest.Wait()
		began := time.Now()
		b.Close()
		if d := time.Since(began); d != closeWait || !strings.Contains(b.log.String(), "does not end") {
			t.Errorf("closed after %s: %s", d, b.log.String())
		}
		close(hang.release)
		<-hang.ended
	})
}

type hanging struct{ release, ended chan struct{} }

func (hanging) Name() string { return "hanging" }

func (h hanging) Run(_ context.Context, report func(Reading)) {
	defer close(h.ended)
	<-h.release
	report(declare(1)) // too late: it is not put in force
}

// A reading that comes again as it is costs no comparison with the fleet, as long as all of
// it is in force.
func TestUnchangedReadingIsNotComparedEachTime(t *testing.T) {
	inBubble(t, func(b *testbed) {
		r := declare(1, 2)
		for range 10 {
			b.Take("pods", r)
			b.pass(time.Second)
		}
		if b.fleet.calls != 1 || b.state().Readings != 10 {
			t.Errorf("%d comparisons, %d readings", b.fleet.calls, b.state().Readings)
		}
		b.pass(reconcileEvery)
		b.Take("pods", r)
		if b.fleet.calls != 2 {
			t.Errorf("%d comparisons after a while", b.fleet.calls)
		}
		r.Warnings = []string{"new"}
		b.Take("pods", r)
		if st := b.state(); b.fleet.calls != 3 || len(st.Warnings) != 1 {
			t.Errorf("%d comparisons, warnings %q", b.fleet.calls, st.Warnings)
		}
		// What was refused is tried each time.
		b.fleet.refuse = errors.New("worker a: certificate")
		other := declare(1, 2, 3)
		for range 3 {
			b.Take("pods", other)
		}
		if b.fleet.calls != 6 {
			t.Errorf("%d comparisons with a problem", b.fleet.calls)
		}
	})
}

func (f *fakeFleet) await(urls ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = map[string]bool{}
	for _, u := range urls {
		f.awaited[u] = true
	}
}

// A source that replaces its workers drops the former ones when the new ones are not ready
// yet.
func TestFormerWorkersStayUntilTheNewOnesAreReady(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2)
		b.fleet.await(url(1))
		b.read(3)
		b.want(1, 3) // 2 is not needed
		if st := b.state(); st.State != StateHolding || st.HeldCount != 1 || st.HeldUntil == nil {
			t.Errorf("status %+v", st)
		}
		b.pass(5 * time.Second)
		for range 5 { // reads do not count
			b.read(3)
			b.pass(time.Second)
		}
		b.want(1, 3)
		b.fleet.await()
		b.pass(awaitLook)
		b.want(3)
		if st := b.state(); st.State != StateOK {
			t.Errorf("state %s", st.State)
		}

		// New ones that never get ready are not waited for longer than the hold time.
		b.fleet.await(url(3))
		b.read(4)
		b.pass(time.Minute - time.Millisecond)
		b.want(3, 4)
		b.pass(awaitLook)
		b.want(4)
	})
}

// Workers that are waited for count neither as dropped again nor as those there were.
func TestAwaitedWorkersDoNotMakeADropSuspicious(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3)
		b.fleet.await(url(1), url(2), url(3))
		b.read(4)
		b.want(1, 2, 3, 4)
		b.pass(time.Second)
		if b.fleet.await(); strings.Contains(b.log.String(), "suspiciously") {
			t.Error(b.log.String())
		}
		b.read(4)
		b.want(4)
	})
}

// A drop that was held back is one that waits for the new ones, too, when it is believed.
func TestBelievedDropWaitsForTheNewOnes(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2, 3, 4)
		b.fleet.await(url(1))
		for range 3 {
			b.read(5)
			b.pass(time.Second)
		}
		b.want(1, 5)
		b.fleet.await()
		b.pass(awaitLook)
		b.want(5)
	})
}

// That the entry of a worker is wrong now is no order to remove it.
func TestWorkerWhoseEntryBecameWrongStays(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.read(1, 2)
		r := declare(2, 3)
		r.LeftOut = []string{url(1) + "/", url(2), url(9), ""}
		for range 3 {
			b.Take("pods", r)
			b.want(1, 2, 3)
		}
		if st := b.state(); st.State != StateOK {
			t.Errorf("state %s", st.State)
		}
		b.read(2, 3) // now it is not named at all
		b.want(2, 3)
	})
}

// A selector or a name with a typo declares nothing and is no failure: the log says so, once.
func TestSourceThatDeclaresNothingAtFirstIsLogged(t *testing.T) {
	const says = "declares no workers"
	inBubble(t, func(b *testbed) {
		b.Run(fakeSource{declare(), declare()})
		b.pass(time.Second)
		if n := strings.Count(b.log.String(), says); n != 1 {
			t.Errorf("said %d times:\n%s", n, b.log.String())
		}
	})
	inBubble(t, func(b *testbed) {
		b.Run(fakeSource{declare(1), declare()})
		b.Take("configuration", declare())
		b.pass(time.Second)
		if strings.Contains(b.log.String(), says) {
			t.Error(b.log.String())
		}
	})
}

// fakeSource reports its readings one after the other.
type fakeSource []Reading

func (fakeSource) Name() string { return "pods" }

func (s fakeSource) Run(_ context.Context, report func(Reading)) {
	for _, r := range s {
		report(r)
	}
}
