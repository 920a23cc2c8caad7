package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

var (
	checkerSeeds = flag.Int("checker.seeds", 0, "schedules that the model checker plays; 0: some")
	checkerFrom  = flag.Uint64("checker.from", 1, "its first seed")
	checkerSeed  = flag.Uint64("checker.seed", 0, "play this one, and print what happens")
	checkerOnly  = flag.String("checker.only", "", "only this fault")
	checkerN     = flag.Int("checker.n", 0, "so many members at the start; 0: by the seed")
	checkerLong  = flag.Bool("checker.long", false, "long requests")
	checkerAll   = flag.Bool("checker.all", false, "go on after a failure, and print all")
	checkerKind  = flag.Int("checker.kind", -1, "only this kind of schedule")
)

// scheduled is what a test asks of schedules.
type scheduled struct {
	kind     kind
	fallback Fallback
	change   func(o *Options)
	// only are the faults that may happen; nil: all.
	only []string
	// tight: there are two prefill ranks with one slot each.
	tight bool
	// long: requests are in prefill for longer than a lease, and wait for longer.
	long bool
	// n is the number of members at the start; 0: by the seed.
	n int
}

// newWorld is a world in which nothing runs yet.
func newWorld(seed uint64, s scheduled, tracing bool) *world {
	w := &world{
		seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), kind: s.kind, tracing: tracing,
		byInc: map[Incarnation]*process{}, links: map[[2]int]*link{},
	}
	w.now = 1
	w.store.cutFrom = map[int]bool{}
	w.limits = limits{
		prefill: 1 + w.rnd.IntN(2), decode: 1 + w.rnd.IntN(2), slots: 1 + w.rnd.IntN(3),
		queueTimeout: w.between(time.Second, 4*time.Second), queueSize: 30, calls: int64(w.rnd.IntN(2)) * 4,
	}
	if s.tight {
		w.limits.prefill, w.limits.decode, w.limits.slots, w.limits.calls = 2, 1, 1, 0
	}
	w.limits.most = w.limits.slots
	if w.long = s.long; w.long {
		w.limits.queueTimeout = 10 * time.Second
	}
	w.generation = 1
	w.o = Options{
		Cluster: "sluice", Lease: time.Second, Margin: 100 * time.Millisecond, Patience: time.Second, Lost: 4 * time.Second,
		Beat: 50 * time.Millisecond, Silent: 150 * time.Millisecond, ReadStore: 200 * time.Millisecond, WriteStore: 250 * time.Millisecond,
		Fallback: s.fallback,
	}
	if s.change != nil {
		s.change(&w.o)
	}
	return w
}

// play plays one schedule.
func play(seed uint64, s scheduled, tracing bool) *world {
	w := newWorld(seed, s, tracing)
	w.rough = s.kind == anything && w.chance(0.5)
	n := s.n
	if n == 0 {
		n = 1 + w.rnd.IntN(4)
	}
	for host := range n {
		w.after(w.between(0, time.Second), func() { w.start(host, fmt.Sprintf("m%d", host)) })
	}
	w.run(w.now.Add(time.Second))
	w.becomesWhole("after the start")
	for range 1 + w.rnd.IntN(3) {
		if w.failure != "" {
			return w
		}
		w.happen(s.only)
	}
	w.settle()
	return w
}

// happen lets a fault happen, and waits until all have a keeper again; or lets some happen
// at once.
func (w *world) happen(only []string) {
	times := 1
	if w.kind == anything {
		times = 1 + w.rnd.IntN(4)
	}
	ended := 0
	begun := 0
	for range times {
		f := faults[w.rnd.IntN(len(faults))]
		if only != nil {
			name := only[w.rnd.IntN(len(only))]
			for _, g := range faults {
				if g.name == name {
					f = g
				}
			}
		}
		ends, after := f.does(w)
		if ends == nil {
			continue
		}
		w.note("fault: %s for %v", f.name, after)
		begun++
		w.after(after, func() { w.note("fault ends: %s", f.name); ends(); ended++ })
		if w.kind == anything {
			w.run(w.now.Add(w.between(0, w.o.Lease)))
		}
	}
	for w.failure == "" && (ended < begun || w.standsStill()) {
		w.run(w.now.Add(50 * time.Millisecond))
	}
	if w.kind == oneAtATime {
		w.becomesWhole("after a fault")
		w.run(w.now.Add(w.between(0, w.o.Lease)))
	}
}

func (w *world) standsStill() bool {
	return slices.ContainsFunc(w.procs, func(p *process) bool { return p.alive && p.frozen })
}

// becomesWhole checks I6: that all have a keeper again in time after the faults are over.
func (w *world) becomesWhole(when string) {
	until := w.now.Add(2*w.o.Lease + 2*time.Second)
	missing := "something"
	for w.failure == "" && missing != "" && w.now < until {
		w.run(w.now.Add(50 * time.Millisecond))
		missing = w.whole()
	}
	if missing != "" {
		w.fail("I6 %s: %s", when, missing)
	}
}

// settle ends all faults and all requests and checks that nothing is left.
func (w *world) settle() {
	w.becomesWhole("at the end")
	if w.failure != "" {
		return
	}
	for _, p := range w.living() {
		p.closing = true
	}
	w.run(w.now.Add(w.limits.queueTimeout + 3*time.Second + time.Duration(b2i(w.long))*20*time.Second))
	if w.failure != "" {
		return
	}
	for _, p := range w.living() {
		if len(p.requests) > 0 {
			w.fail("I6: %s still has %d requests", p.name, len(p.requests))
		}
		if n := p.tickets(); n > 0 {
			w.fail("I4: the machine of %s still has %d tickets", p.name, n)
		}
	}
	if missing := w.whole(); missing != "" {
		w.fail("I6 in the end: %s", missing)
	}
	w.nothingHeld()
}

// inspect checks what must be true at any time.
func (w *world) inspect(p *process) {
	if k := p.m.keeper; k != nil && k.office() == OfficeDeciding && w.kind == oneAtATime {
		if d := w.deciding(); len(d) > 1 {
			w.fail("two decide: %s in epoch %v, %s in epoch %v", d[0].name, d[0].m.keeper.epoch, d[1].name, d[1].m.keeper.epoch)
		}
	}
	if len(p.m.order) > maxMembers {
		w.fail("I5: %s has %d peers", p.name, len(p.m.order))
	}
}

// check plays schedules until one fails.
func check(from uint64, n int, s scheduled) (failed *world, steps int64) {
	var mu sync.Mutex
	var next, did atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				mu.Lock()
				stop := failed != nil && !*checkerAll
				mu.Unlock()
				if i >= int64(n) || stop {
					return
				}
				w := play(from+uint64(i), s, false)
				did.Add(int64(w.steps))
				if w.failure != "" {
					mu.Lock()
					if *checkerAll {
						fmt.Println(w.seed, w.failure)
					}
					if failed == nil || w.seed < failed.seed {
						failed = w
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed, did.Load()
}

// kinds are the rows of the contract's table.
var kinds = []struct {
	name string
	scheduled
}{
	{"one at a time, refuse", scheduled{kind: oneAtATime, fallback: FallbackRefuse}},
	{"one at a time, share", scheduled{kind: oneAtATime, fallback: FallbackShare}},
	{"anything, refuse", scheduled{kind: anything, fallback: FallbackRefuse}},
	{"anything, share", scheduled{kind: anything, fallback: FallbackShare}},
}

func TestChecker(t *testing.T) {
	for i, k := range kinds {
		if *checkerKind >= 0 && *checkerKind != i {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			if k.n, k.long = *checkerN, *checkerLong; *checkerOnly != "" {
				k.only = []string{*checkerOnly}
			}
			if *checkerSeed != 0 {
				w := play(*checkerSeed, k.scheduled, true)
				t.Log("\n" + strings.Join(w.trace, "\n"))
				if w.failure != "" {
					t.Fatal(w.failure)
				}
				return
			}
			n := *checkerSeeds
			if n == 0 {
				n = defaultSeeds
			}
			began := time.Now()
			w, steps := check(*checkerFrom, n, k.scheduled)
			took := time.Since(began)
			t.Logf("%d schedules, %d steps in %v", n, steps, took)
			if w != nil {
				t.Fatalf("seed %d: %s\n(-checker.seed=%d -checker.kind=%d prints what happened)", w.seed, w.failure, w.seed, i)
			}
		})
	}
}

const defaultSeeds = 100

var _ = admission.Instant(0)

// Without one of the protocol's parts the checker finds that a limit is exceeded.
func TestCheckerFindsWhatIsMissing(t *testing.T) {
	for _, x := range []struct {
		part     string
		take     func(o *Options)
		fallback Fallback
		only     []string
		from     uint64
	}{
		{"the check of epochs", func(o *Options) { o.withoutEpochs = true }, FallbackRefuse, []string{"freeze the keeper with many grants in hand"}, 1},
		{"claims of the lost", func(o *Options) { o.withoutClaims = true }, FallbackShare, []string{"cut off"}, 50},
		{"the standby", func(o *Options) { o.withoutStandby = true }, FallbackRefuse, []string{"cut off"}, 1},
	} {
		t.Run(x.part, func(t *testing.T) {
			const most = 600
			s := scheduled{kind: oneAtATime, fallback: x.fallback, change: x.take, only: x.only, n: 3, long: true, tight: x.from == 1}
			w, _ := check(x.from, most, s)
			if w == nil {
				t.Fatalf("%d schedules without it show nothing", most)
			}
			if !strings.HasPrefix(w.failure, "I1") {
				t.Fatalf("seed %d: %s", w.seed, w.failure)
			}
			t.Logf("seed %d: %s", w.seed, w.failure)
			s.change = nil
			if w := play(w.seed, s, false); w.failure != "" {
				t.Errorf("with it, too: %s", w.failure)
			}
		})
	}
}
