package fleet

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// leg is a leg of a test. It leaves its rank when it is told to.
type testLeg struct {
	Watch
	wedged, dead atomic.Bool
	leftAt       time.Time
}

func (l *testLeg) WorkerDead() { l.dead.Store(true) }
func (l *testLeg) RankWedged() {
	if !l.wedged.Swap(true) {
		l.leftAt = time.Now()
	}
}

// hangBed is one worker, with another beside it, that is ready and has legs.
type hangBed struct {
	*testbed
	w *Worker
	r *Rank
}

func inHangBed(t *testing.T, backend string, setting time.Duration, f func(b *hangBed)) {
	t.Helper()
	inBubble(t, settings{Health: config.Health{Wedge: setting}}, func(b *testbed) {
		for _, u := range []string{urlA, urlB} {
			b.prober.set(well, u)
			b.prober.says(u, serves("m"))
			b.prober.schedule(u, func(s *fakeScheduler) { s.load = RankLoad{Running: 1, Mark: 7} })
		}
		w := b.add(WorkerSpec{URL: urlA, Backend: backend})
		b.add(WorkerSpec{URL: urlB, Backend: backend})
		b.pass(100 * time.Millisecond)
		b.wantCandidates(urlA, urlB)
		f(&hangBed{b, w, w.Ranks()[0]})
	})
}

func (b *hangBed) leg(leg Leg) *testLeg {
	l := &testLeg{}
	b.r.Watch(&l.Watch, l, leg)
	return l
}

// hangs makes the scheduler stand still: neither its health nor a request is answered, and
// the counters do not move.
func (b *hangBed) hangs() {
	b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs, s.computes = true, false })
}

// left waits for a leg to be taken back and returns after what time it was.
func (b *hangBed) left(l *testLeg, within time.Duration) time.Duration {
	b.t.Helper()
	start := time.Now()
	for time.Since(start) < within {
		if l.wedged.Load() {
			return l.leftAt.Sub(start)
		}
		b.pass(10 * time.Millisecond)
	}
	b.t.Fatalf("the leg is still there after %s: %+v", within, b.r.hang)
	return 0
}

// The bounds: at the defaults within 10 s, at settings of a second within 3 s, for either
// engine, in each shape of leg.
func TestWedgedSchedulerLosesWhatItHasNotBegun(t *testing.T) {
	for _, backend := range []string{dialectSGLang, dialectVLLM} {
		for _, c := range []struct {
			setting, bound time.Duration
		}{{3 * time.Second, 10 * time.Second}, {time.Second, 3 * time.Second}} {
			for _, kind := range []LegKind{LegWhole, LegPrefill, LegDecode} {
				t.Run(backend+" "+c.setting.String(), func(t *testing.T) {
					inHangBed(t, backend, c.setting, func(b *hangBed) {
						l := b.leg(Leg{Kind: kind, Tokens: 1000})
						b.hangs()
						took := b.left(l, c.bound)
						if b.wantCandidates(urlB); took < c.setting {
							t.Errorf("it left after %s", took)
						}
						i := b.w.Info()
						if i.Status != StatusUnhealthy || i.IsHealthy || i.Ranks[0].Wedged == nil || i.Ranks[0].Candidate {
							t.Errorf("%+v", i)
						}
						l.Stop()
					})
				})
			}
		}
	}
}

// Its counters move, or its scheduler answers: it is well, however long it is silent.
func TestSilenceOfAWorkerThatComputesIsNoHang(t *testing.T) {
	for _, c := range []struct {
		name, backend string
		set           func(s *fakeScheduler)
	}{
		{"counters that move, health that does not answer", dialectSGLang, func(s *fakeScheduler) { s.computes, s.hangs = true, true }},
		{"counters that stand still, health that answers", dialectSGLang, func(s *fakeScheduler) {}},
		{"no counters, health that answers", dialectSGLang, func(s *fakeScheduler) { s.noLoads = true }},
		{"counters that move", dialectVLLM, func(s *fakeScheduler) { s.computes, s.hangs = true, true }},
		{"no counters", dialectVLLM, func(s *fakeScheduler) { s.noLoads, s.hangs = true, true }},
		{"an idle engine that answers", dialectVLLM, func(s *fakeScheduler) { s.load.Running = 0 }},
		{"a grammar that is compiled", dialectVLLM, func(s *fakeScheduler) { s.load.Running, s.load.Waiting = 0, 1 }},
		{"an idle engine that can be asked for nothing", dialectVLLM, func(s *fakeScheduler) {
			s.load.Running, s.refuses = 0, []string{"/v1/completions", "/v1/embeddings"}
		}},
		{"an idle engine of embeddings", dialectVLLM, func(s *fakeScheduler) { s.load.Running, s.refuses = 0, []string{"/v1/completions"} }},
		{"counters that cannot be read", dialectVLLM, func(s *fakeScheduler) { s.unread, s.hangs = true, true }},
		{"counters that cannot be read", dialectSGLang, func(s *fakeScheduler) { s.unread = true }},
		{"the use of its cache alone, which stands still", dialectVLLM, func(s *fakeScheduler) {
			s.load.Mark, s.load.CacheMark, s.hangs = 0, 7, true
		}},
		{"an idle engine without a health route", dialectSGLang, func(s *fakeScheduler) { s.load.Running, s.noHealth = 0, true }},
	} {
		t.Run(c.backend+": "+c.name, func(t *testing.T) {
			inHangBed(t, c.backend, time.Second, func(b *hangBed) {
				b.prober.schedule(urlA, c.set)
				l := b.leg(Leg{Kind: LegPrefill, Tokens: 100})
				b.pass(10 * time.Minute)
				if l.wedged.Load() {
					t.Errorf("it was taken for wedged")
				}
				b.wantCandidates(urlA, urlB)
				l.Stop()
			})
		})
	}
}

// A prompt of a million tokens may take minutes in which nothing at all is heard: neither
// the counters move before its end nor is the health route answered.
func TestMillionTokensAreNoHang(t *testing.T) {
	for _, backend := range []string{dialectSGLang, dialectVLLM} {
		t.Run(backend, func(t *testing.T) {
			inHangBed(t, backend, time.Second, func(b *hangBed) {
				// Short ones were quick before.
				for range 20 {
					l := b.leg(Leg{Kind: LegPrefill, Tokens: 4000})
					b.pass(10 * time.Millisecond)
					b.r.NoteAdvance()
					l.Begun()
					l.Stop()
				}
				b.hangs()
				l := b.leg(Leg{Kind: LegPrefill, Tokens: 1_000_000})
				b.pass(8 * time.Minute)
				if l.wedged.Load() {
					t.Errorf("it was taken for wedged")
				}
				l.Stop()
			})
		})
	}
}

// What comes after the hang does not put off that it is found.
func TestArrivalsDoNotHideAHang(t *testing.T) {
	inHangBed(t, dialectVLLM, 3*time.Second, func(b *hangBed) {
		l := b.leg(Leg{Kind: LegPrefill, Tokens: 500})
		b.hangs()
		var more []*testLeg
		for range 100 {
			more = append(more, b.leg(Leg{Kind: LegPrefill, Tokens: 5000}))
			if len(more) > 1 { // clients that leave are no progress
				more[len(more)-2].Stop()
			}
			b.pass(100 * time.Millisecond)
		}
		if !l.wedged.Load() {
			t.Errorf("the first leg is still there: %+v", b.r.hang)
		}
		for _, m := range append(more, l) {
			m.Stop()
		}
	})
}

// A decode leg of vLLM whose prefill runs cannot advance, and its engine cannot be asked.
// Of SGLang it can, and may be what prefill waits for.
func TestLegThatWaitsForAnother(t *testing.T) {
	inHangBed(t, dialectVLLM, time.Second, func(b *hangBed) {
		l := b.leg(Leg{Kind: LegDecode, Tokens: 100, Waits: true})
		b.hangs()
		b.pass(time.Minute)
		if l.wedged.Load() {
			t.Fatal("it was taken for wedged while prefill runs")
		}
		l.Awaited()
		if took := b.left(l, 3*time.Second); took < time.Second {
			t.Errorf("it left after %s", took)
		}
		l.Stop()
	})
	inHangBed(t, dialectSGLang, time.Second, func(b *hangBed) {
		l := b.leg(Leg{Kind: LegDecode, Tokens: 100, Waits: true})
		b.hangs()
		b.left(l, 3*time.Second)
		l.Stop()
	})
}

// Streams wait a little for the rank to come back, then they are ended; the prefill leg of
// a request whose answer has begun is not.
func TestStreamsOfAWedgedRankAreEnded(t *testing.T) {
	inHangBed(t, dialectSGLang, time.Second, func(b *hangBed) {
		stream, formality := b.leg(Leg{}), b.leg(Leg{Kind: LegPrefill})
		stream.Begun()
		formality.Begun()
		l := b.leg(Leg{})
		b.hangs()
		b.left(l, 3*time.Second)
		l.Stop()
		if stream.wedged.Load() {
			t.Error("the stream was ended at once")
		}
		b.left(stream, 3*time.Second)
		if stream.Stop(); formality.wedged.Load() {
			t.Error("the prefill leg of an answer that has begun was ended")
		}
		formality.Stop()
	})
}

// A stream alone is evidence only while the engine says that it works: its client may
// read slowly what the engine has long finished.
func TestStreamThatIsReadSlowlyIsNoHang(t *testing.T) {
	for running, want := range map[int64]bool{0: false, 1: true} {
		inHangBed(t, dialectVLLM, time.Second, func(b *hangBed) {
			l := b.leg(Leg{})
			l.Begun()
			b.hangs()
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.load.Running = running })
			b.pass(time.Minute)
			if got := b.r.hang.state == wedged; got != want {
				t.Errorf("with %d requests that run: wedged %v", running, got)
			}
			l.Stop()
		})
	}
}

// A wedged rank gets requests again when its scheduler does something.
func TestWedgedRankComesBack(t *testing.T) {
	for _, c := range []struct {
		name, backend string
		heal          func(s *fakeScheduler)
	}{
		{"its health is answered", dialectSGLang, func(s *fakeScheduler) { s.hangs = false }},
		{"its counters move", dialectSGLang, func(s *fakeScheduler) { s.load.Mark++ }},
		{"its counters move", dialectVLLM, func(s *fakeScheduler) { s.load.Mark++ }},
		{"it does small work", dialectVLLM, func(s *fakeScheduler) { s.hangs = false }},
	} {
		t.Run(c.backend+": "+c.name, func(t *testing.T) {
			inHangBed(t, c.backend, 3*time.Second, func(b *hangBed) {
				l := b.leg(Leg{})
				b.hangs()
				b.left(l, 10*time.Second)
				l.Stop()
				b.pass(5 * time.Minute)
				b.wantCandidates(urlB)
				late := b.leg(Leg{}) // was granted before
				if !late.wedged.Load() {
					t.Error("a leg that comes to a wedged rank stays there")
				}
				late.Stop()
				b.prober.schedule(urlA, c.heal)
				b.pass(12 * time.Second)
				b.wantCandidates(urlA, urlB)
				if i := b.w.Info(); i.Ranks[0].Wedged != nil || i.Suspect != nil || i.Status != StatusReady {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

// Counters that change because of what comes and goes prove nothing.
func TestCacheThatFollowsArrivalsIsNoProgress(t *testing.T) {
	inHangBed(t, dialectVLLM, time.Second, func(b *hangBed) {
		l := b.leg(Leg{})
		b.hangs()
		for range 30 {
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.load.Waiting++; s.load.CacheMark++ })
			b.pass(100 * time.Millisecond)
		}
		if !l.wedged.Load() {
			t.Errorf("the leg is still there: %+v", b.r.hang)
		}
		l.Stop()
	})
}

// The chunks of a long prompt move nothing but the use of the cache.
func TestCacheThatFillsIsProgress(t *testing.T) {
	inHangBed(t, dialectVLLM, time.Second, func(b *hangBed) {
		l := b.leg(Leg{})
		b.hangs()
		for range 100 {
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.load.CacheMark++ })
			b.pass(900 * time.Millisecond)
		}
		if l.wedged.Load() {
			t.Error("it was taken for wedged")
		}
		l.Stop()
	})
}

// A process that answers nothing at all is found too, before it is known to be dead.
func TestFrozenWorkerIsWedged(t *testing.T) {
	for _, backend := range []string{dialectSGLang, dialectVLLM} {
		inHangBed(t, backend, time.Second, func(b *hangBed) {
			l := b.leg(Leg{})
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs, s.mute = true, true })
			b.left(l, 3*time.Second)
			l.Stop()
		})
	}
}

// Of several ranks of a worker the wedged one is found, though the others answer its
// health route.
func TestOneRankOfSeveralIsWedged(t *testing.T) {
	inBubble(t, settings{DPAware: true, Health: config.Health{Wedge: time.Second}}, func(b *testbed) {
		b.prober.set(well, urlA)
		f := serves("m")
		f.DPSize = 2
		b.prober.says(urlA, f)
		b.prober.schedule(urlA, func(s *fakeScheduler) { s.load = RankLoad{Running: 1, Mark: 7}; s.ranks = 2 })
		w := b.add(WorkerSpec{URL: urlA, Backend: dialectSGLang})
		b.pass(100 * time.Millisecond)
		a, c := &testLeg{}, &testLeg{}
		w.Ranks()[0].Watch(&a.Watch, a, Leg{})
		w.Ranks()[1].Watch(&c.Watch, c, Leg{})
		for range 40 {
			w.Ranks()[1].NoteAdvance()
			b.pass(100 * time.Millisecond)
		}
		// The health route is answered; a rank that does nothing cannot be told from it.
		if a.wedged.Load() || c.wedged.Load() {
			t.Errorf("wedged though the health route is answered: %v, %v", a.wedged.Load(), c.wedged.Load())
		}
		b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs = true })
		for range 40 {
			w.Ranks()[1].NoteAdvance()
			b.pass(100 * time.Millisecond)
		}
		if !a.wedged.Load() || c.wedged.Load() {
			t.Errorf("wedged: %v, %v", a.wedged.Load(), c.wedged.Load())
		}
		b.wantCandidates(urlA + "@1")
		a.Stop()
		c.Stop()
	})
}

// A worker that is registered anew with other settings stays wedged, the same worker (a
// label) or another (a key).
func TestReplacementStaysWedged(t *testing.T) {
	for _, spec := range []WorkerSpec{{Labels: map[string]string{"a": "b"}}, {APIKey: "k"}} {
		inHangBed(t, dialectVLLM, time.Second, func(b *hangBed) {
			l := b.leg(Leg{})
			b.hangs()
			b.left(l, 3*time.Second)
			l.Stop()
			spec.URL, spec.Backend = urlA, dialectVLLM
			w := b.add(spec)
			b.pass(5 * time.Second)
			b.wantCandidates(urlB)
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs = false })
			b.pass(10 * time.Second)
			b.wantCandidates(urlA, urlB)
			if w.Info().Ranks[0].Wedged != nil {
				t.Error("it is still wedged")
			}
		})
	}
}

// Registrations that were replaced are not looked at for the legs of later ones.
func TestReplacedRegistrationsAreNotLookedAt(t *testing.T) {
	inHangBed(t, dialectSGLang, time.Second, func(b *hangBed) {
		old, l := b.w, b.leg(Leg{})
		b.pass(time.Second)
		b.r = b.add(WorkerSpec{URL: urlA, Backend: dialectSGLang, APIKey: "another"}).Ranks()[0]
		next := b.leg(Leg{})
		b.pass(time.Second)
		if !old.watched.Load() {
			t.Error("a replaced registration is not looked at while it has a leg")
		}
		l.Stop()
		b.pass(time.Second)
		looks := old.looks
		b.pass(time.Minute)
		if old.watched.Load() || old.looks > looks {
			t.Errorf("it is still looked at: %d looks in a minute", old.looks-looks)
		}
		next.Stop()
	})
}

// A drained worker that hangs gives its requests back too.
func TestDrainingWorkerThatHangs(t *testing.T) {
	inHangBed(t, dialectSGLang, time.Second, func(b *hangBed) {
		b.Remove(urlB)
		held := b.acquire("m") // so that it stays
		l := b.leg(Leg{})
		b.Remove(urlA)
		b.hangs()
		b.left(l, 3*time.Second)
		l.Stop()
		held.Close()
	})
}

// A worker without requests is not looked at.
func TestIdleWorkersAreNotLookedAt(t *testing.T) {
	inHangBed(t, dialectSGLang, time.Second, func(b *hangBed) {
		l := b.leg(Leg{})
		b.pass(2 * time.Second)
		l.Stop()
		b.pass(5 * time.Second)
		looks := b.w.looks
		b.pass(time.Hour)
		if b.w.looks != looks || b.w.watched.Load() {
			t.Errorf("%d looks without a leg", b.w.looks-looks)
		}
	})
}

// 0 turns it off, and so does the option that turns health checks off.
func TestWedgedSchedulersAreNotLookedForWithoutTheSetting(t *testing.T) {
	t.Run("0", func(t *testing.T) { notLookedFor(t, func(o *config.Health) { o.Wedge = 0 }) })
	t.Run("no health checks", func(t *testing.T) { notLookedFor(t, func(o *config.Health) { o.Disabled = true }) })
}

func notLookedFor(t *testing.T, set func(o *config.Health)) {
	inBubble(t, settings{}, func(b *testbed) {
		set(&b.cfg.Health)
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Second)
		l := &testLeg{}
		w.Ranks()[0].Watch(&l.Watch, l, Leg{})
		b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs, s.load.Mark = true, 1 })
		b.pass(time.Hour)
		if l.wedged.Load() {
			t.Error("it was taken back")
		}
		l.Stop()
	})
}

func TestAllowance(t *testing.T) {
	for _, c := range []struct {
		longest, rest, transfers int64
		rate                     float64
		least, most              time.Duration
	}{
		{0, 0, 0, 0, 0, 0},
		{2000, 0, 0, 0, 500 * time.Millisecond, 500 * time.Millisecond},
		{2000, 30_000, 0, 0, 2 * time.Second, 2 * time.Second},
		{1_000_000, 0, 0, 0, 8 * time.Minute, 10 * time.Minute},
		{1_000_000, 0, 0, 1e6, 8 * time.Minute, 10 * time.Minute}, // short prompts say nothing of long ones
		{8000, 0, 0, 500, 48 * time.Second, 48 * time.Second},     // known to be slow
		{0, 0, 1_000_000, 0, 20 * time.Second, 20 * time.Second},
		{1 << 60, 1 << 60, 0, 0.001, time.Hour, time.Hour},
	} {
		if got := allowance(c.longest, c.rest, c.transfers, c.rate); got < c.least || got > c.most {
			t.Errorf("allowance(%d, %d, %d, %g) = %s, want %s to %s", c.longest, c.rest, c.transfers, c.rate, got, c.least, c.most)
		}
	}
}

// A rank's pace is learned from what it computed, and what waited its turn does not make
// it look slow.
func TestPaceIsOfTheRankAndNotOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fleet{clock: admission.NewSystemClock(), cfg: settings{}.options().Config}
		f.cfg.Health.Wedge = 0
		w := &Worker{fleet: f}
		w.liveness.Store(newLiveness())
		r := &Rank{worker: w}
		legs := make([]testLeg, 10)
		for i := range legs {
			r.Watch(&legs[i].Watch, &legs[i], Leg{Kind: LegPrefill, Tokens: 1000})
		}
		for i := range legs {
			time.Sleep(100 * time.Millisecond)
			legs[i].Begun()
			legs[i].Stop()
		}
		if got := r.pace.rate(); got < 9_000 || got > 11_000 {
			t.Errorf("%g tokens a second", got)
		}
	})
}

// A look at a worker whose thousand legs are all silent: it happens a few times a second.
func BenchmarkLook(b *testing.B) {
	f := &Fleet{clock: admission.NewSystemClock(), cfg: settings{}.options().Config}
	f.cfg.Health.Wedge = 0 // no event is set
	w := &Worker{fleet: f}
	w.state.Store(&workerState{facts: noFacts, dialect: engine.SGLang{}})
	w.liveness.Store(newLiveness())
	r := &Rank{worker: w}
	w.ranks.Store(&[]*Rank{r})
	legs := make([]testLeg, 1000)
	for i := range legs {
		r.Watch(&legs[i].Watch, &legs[i], Leg{Tokens: 1000})
	}
	b.ReportAllocs()
	for b.Loop() {
		f.lookLocked(w)
	}
}

// What each leg costs beside its request.
func BenchmarkWatch(b *testing.B) {
	f := &Fleet{clock: admission.NewSystemClock(), cfg: settings{}.options().Config}
	w := &Worker{fleet: f}
	w.liveness.Store(newLiveness())
	w.watched.Store(true)
	r := &Rank{worker: w}
	var l testLeg
	b.ReportAllocs()
	for b.Loop() {
		r.Watch(&l.Watch, &l, Leg{Tokens: 1000})
		r.NoteAdvance()
		l.Begun()
		l.Stop()
	}
}

// What hangs is found at an engine, too, that has nothing to be asked for but embeddings,
// and at one whose counters cannot be read while its front answers.
func TestHangOfAnEngineThatTellsLittle(t *testing.T) {
	for _, c := range []struct {
		name, backend string
		set           func(s *fakeScheduler)
	}{
		{"embeddings", dialectVLLM, func(s *fakeScheduler) { s.load.Running, s.refuses = 0, []string{"/v1/completions"} }},
		{"counters that cannot be read", dialectSGLang, func(s *fakeScheduler) { s.unread = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inHangBed(t, c.backend, 3*time.Second, func(b *hangBed) {
				b.prober.schedule(urlA, c.set)
				l := b.leg(Leg{})
				b.hangs()
				b.left(l, 10*time.Second)
				l.Stop()
			})
		})
	}
}

// Counters that were read once after they could not be read have not stood still.
func TestCountersThatAreReadOnceHaveNotStoodStill(t *testing.T) {
	h := &hangStatus{}
	second := admission.Instant(time.Second)
	h.countersLost(second, 2*second)
	h.counters(3*second, 3*second, RankLoad{Running: 1, Mark: 7}, false)
	if h.proven(4*second, false) {
		t.Error("they are taken for counters that stand still")
	}
	h.counters(5*second, 5*second, RankLoad{Running: 1, Mark: 7}, false)
	if !h.proven(6*second, false) {
		t.Error("counters that stand still are not seen")
	}
}

// Where nothing tells of progress, an engine hangs that does not answer a small piece of work in
// all the time that it is given.
func TestHangThatOnlyAQuestionShows(t *testing.T) {
	h := &hangStatus{}
	second := admission.Instant(time.Second)
	for i := range admission.Instant(9) {
		h.counters(i*second, i*second, RankLoad{Running: 1}, false)
	}
	h.signs.question.flying, h.signs.question.refused = true, 1
	if h.proven(10*second, false) {
		t.Error("counters of no tokens are taken for a sign")
	}
	h.signs.byQuestion, h.signs.question.refused = true, 0
	if h.proven(10*second, false) {
		t.Error("it has not had its time to answer")
	}
	if h.signs.question.refused = 1; !h.proven(10*second, false) {
		t.Error("nothing was answered, and that is not seen")
	}
	if h.signs.question.other = true; h.proven(10*second, false) {
		t.Error("another rank of its worker has answered")
	}
}

// A router that stood still itself, stopped or on a machine that was, has seen no bytes in
// that time, nor answers to its probes: that proves nothing.
func TestRouterThatStoodStillBlamesNobody(t *testing.T) {
	for _, backend := range []string{dialectSGLang, dialectVLLM} {
		inHangBed(t, backend, time.Second, func(b *hangBed) {
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.computes = true })
			l := b.leg(Leg{})
			answers := func(does bool) {
				b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs, s.mute = !does, !does })
			}
			for range 5 {
				b.pass(1700 * time.Millisecond) // silent, and probed
				answers(false)
				b.pass(500 * time.Millisecond)
				b.sched.set(newEvent(func(admission.Instant) {
					time.Sleep(30 * time.Second)
					answers(true)
				}), 1)
				b.pass(31 * time.Second)
			}
			if l.wedged.Load() {
				t.Errorf("%s: its worker is taken for wedged", backend)
			}
			l.Stop()
		})
	}
}

// An engine that computes prompts more slowly than is assumed is taken for wedged once, and
// given the time that it needs from then on, until it is seen how fast it is.
func TestSlowEngineIsWedgedOnce(t *testing.T) {
	inHangBed(t, dialectVLLM, 3*time.Second, func(b *hangBed) {
		computes := func(n int64, took time.Duration) (wedged bool) {
			l := b.leg(Leg{Tokens: n})
			b.pass(took)
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.load.Mark++ })
			if wedged = l.wedged.Load(); !wedged {
				l.Begun()
			}
			l.Stop()
			b.pass(10 * time.Second)
			return wedged
		}
		b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs = true })
		if !computes(8000, 20*time.Second) {
			t.Fatal("it was not taken for wedged: this tests nothing")
		}
		b.wantCandidates(urlA, urlB)
		for range 3 {
			if computes(8000, 20*time.Second) {
				t.Fatal("it was taken for wedged again")
			}
		}
	})
	inHangBed(t, dialectVLLM, 3*time.Second, func(b *hangBed) {
		l := b.leg(Leg{Tokens: 1000})
		b.hangs()
		b.left(l, 10*time.Second)
		l.Stop()
		b.pass(time.Minute)
		b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs = false })
		b.pass(10 * time.Second)
		l = b.leg(Leg{Tokens: 1000})
		b.pass(100 * time.Millisecond)
		l.Begun()
		l.Stop()
		l = b.leg(Leg{Tokens: 1000})
		b.hangs()
		b.left(l, 10*time.Second)
		l.Stop()
	})
}

// A worker of which nothing proves what engine it runs may answer its health route late
// because it is busy, and may have no counters.
func TestUnknownEngineThatIsBusyIsNotWedged(t *testing.T) {
	for backend, want := range map[string]bool{"": false, dialectSGLang: true} {
		inHangBed(t, backend, 3*time.Second, func(b *hangBed) {
			b.prober.schedule(urlA, func(s *fakeScheduler) { s.noLoads, s.hangs = true, true })
			l := b.leg(Leg{})
			b.pass(time.Minute)
			if l.wedged.Load() != want {
				t.Errorf("backend %q: wedged %v", backend, !want)
			}
			l.Stop()
		})
	}
}

// A wedged rank of several comes back though its counters stand still, since nothing is
// sent to it, and what answers its worker's probes may be another rank: all of them at
// once if all were wedged, else it is tried after a while.
func TestWedgedRankOfSeveralComesBack(t *testing.T) {
	for _, backend := range []string{dialectSGLang, dialectVLLM} {
		for _, hung := range []int{1, 2} {
			inBubble(t, settings{DPAware: true, Health: config.Health{Wedge: time.Second}}, func(b *testbed) {
				b.prober.set(well, urlA)
				f := serves("m")
				f.DPSize = 2
				b.prober.says(urlA, f)
				b.prober.schedule(urlA, func(s *fakeScheduler) { s.load, s.ranks, s.hangs = RankLoad{Running: 1, Mark: 7}, 2, true })
				w := b.add(WorkerSpec{URL: urlA, Backend: backend})
				b.pass(100 * time.Millisecond)
				legs := make([]testLeg, hung)
				for i := range legs {
					w.Ranks()[i].Watch(&legs[i].Watch, &legs[i], Leg{})
				}
				b.pass(5 * time.Second)
				for i := range legs {
					if !legs[i].wedged.Load() {
						t.Fatalf("%s: rank %d of %d is not wedged", backend, i, hung)
					}
					legs[i].Stop()
				}
				b.prober.schedule(urlA, func(s *fakeScheduler) { s.hangs = false })
				if b.pass(5 * time.Second); hung == 2 {
					b.wantCandidates(urlA+"@0", urlA+"@1")
					return
				}
				b.wantCandidates(urlA + "@1")
				b.pass(30 * time.Second)
				b.wantCandidates(urlA+"@0", urlA+"@1")
			})
		}
	}
}
