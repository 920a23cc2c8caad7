package fleet

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/metric"
)

// reading is an answer about the load of a worker of 100 blocks of 16 tokens.
func reading(ranks ...RankLoad) *loads {
	l := &loads{}
	l.Ranks = ranks
	for range ranks {
		l.Capacities = append(l.Capacities, engine.RankCapacity{KVTokens: 1600})
	}
	return l
}

var monitored = settings{ModelID: "m", Health: config.Health{LoadMonitor: time.Second}}

func (b *testbed) monitoredWorker(spec WorkerSpec, l *loads) *Worker {
	b.t.Helper()
	spec.URL = urlA
	b.prober.set(well, urlA)
	b.prober.says(urlA, &Facts{Facts: engine.Facts{PageSize: 16, DPSize: len(l.Ranks)}})
	b.prober.loaded(urlA, l)
	w := b.add(spec)
	b.pass(10 * time.Millisecond)
	return w
}

// A report takes room and gives it back, within an interval of its own; one that is three
// intervals old counts no more, and that is told.
func TestReportsReachTheGate(t *testing.T) {
	var log logBook
	o := monitored
	o.Log = log.logger()
	inBubble(t, o, func(b *testbed) {
		b.gate.SetLimits(admission.Limits{OverloadWaiting: 5})
		w := b.monitoredWorker(WorkerSpec{}, reading(RankLoad{Running: 3, Waiting: 5}))
		if s := b.gateRank(urlA); !s.Reported.Vetoed || s.Room || !s.Candidate {
			t.Errorf("after the first reading: %+v", s)
		}
		b.prober.loaded(urlA, reading(RankLoad{Running: 3, Waiting: 3, UsedTokens: 480, Usage: 0.3}))
		b.pass(1100 * time.Millisecond)
		if s := b.gateRank(urlA); s.Reported.Vetoed || !s.Room || s.Reported.Unbooked != 30 || s.Reported.Usage != 0.3 || s.Reported.Requests != 6 {
			t.Errorf("an interval later: %+v", s)
		}
		if r := w.Info().Ranks[0]; r.Reported.Stale || *r.DriftBlocks != 30 || r.Reported.TokenUsage != 0.3 {
			t.Errorf("shown: %+v", r)
		}
		b.prober.loaded(urlA, reading(RankLoad{Running: 3, Waiting: 50}))
		b.pass(1100 * time.Millisecond)
		b.prober.loaded(urlA, nil)
		b.pass(1700 * time.Millisecond)
		if s := b.gateRank(urlA); !s.Reported.Vetoed {
			t.Errorf("a report younger than three intervals is dropped: %+v", s)
		}
		b.pass(1400 * time.Millisecond)
		if s := b.gateRank(urlA); s.Reported != (admission.ReportedLoad{}) || !s.Room {
			t.Errorf("after three intervals: %+v", s)
		}
		if i := w.Info(); !i.Ranks[0].Reported.Stale || i.Ranks[0].DriftBlocks != nil || !slices.ContainsFunc(i.Warnings, func(s string) bool { return strings.Contains(s, "for long") }) {
			t.Errorf("shown: %+v", i)
		}
		b.prober.loaded(urlA, reading(RankLoad{}))
		b.pass(1100 * time.Millisecond)
		if i := w.Info(); i.Ranks[0].Reported.Stale || len(i.Warnings) > 0 {
			t.Errorf("it reports again: %+v", i)
		}
	})
	for _, want := range []string{"does not report its load any more", "reports its load again"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is logged %d times", want, n)
		}
	}
}

// A request that ends while the engine is asked is in the answer, but nobody's load.
func TestWhatEndsWhileAskedIsNoDrift(t *testing.T) {
	inBubble(t, monitored, func(b *testbed) {
		b.monitoredWorker(WorkerSpec{}, reading(RankLoad{}))
		ticket := &admission.Ticket{Target: b.gate.Resolve(admission.TargetSpec{Model: "m"}), PromptTokens: 800}
		if err := b.gate.Acquire(t.Context(), ticket); err != nil {
			t.Fatal(err)
		}
		ticket.StartDecode()
		b.prober.loaded(urlA, reading(RankLoad{Running: 2, UsedTokens: 960}))
		b.pass(1100 * time.Millisecond)
		if s := b.gateRank(urlA); s.Reported.Unbooked != 10 {
			t.Errorf("beside 50 blocks of its own: %+v", s.Reported)
		}
		b.prober.mu.Lock()
		b.prober.onLoad = ticket.Close
		b.prober.mu.Unlock()
		b.pass(1100 * time.Millisecond)
		if s := b.gateRank(urlA); s.Reported.Unbooked != 10 || s.ActiveBlocks != 0 {
			t.Errorf("released during the reading: %+v", s.Reported)
		}
		b.pass(1100 * time.Millisecond)
		if s := b.gateRank(urlA); s.Reported.Unbooked != 60 {
			t.Errorf("what it still has at the next reading is not ours: %+v", s.Reported)
		}
	})
}

// Each data-parallel rank has a report of its own; a worker that is scheduled whole has the
// sum of them, and the mean of the part that is in use.
func TestReportsOfDataParallelRanks(t *testing.T) {
	l := reading(RankLoad{Running: 1, Waiting: 2, UsedTokens: 160, Usage: 0.1}, RankLoad{Running: 1, Waiting: 4, UsedTokens: 480, Usage: 0.3})
	for _, aware := range []bool{true, false} {
		o := monitored
		o.DPAware = aware
		inBubble(t, o, func(b *testbed) {
			b.monitoredWorker(WorkerSpec{}, l)
			b.pass(1100 * time.Millisecond)
			want := map[string]admission.RankReport{urlA: {Requests: 8, Waiting: 6, KVTokens: 640, Usage: 0.2}}
			if aware {
				want = map[string]admission.RankReport{
					urlA + "@0": {Requests: 3, Waiting: 2, KVTokens: 160, Usage: 0.1},
					urlA + "@1": {Requests: 5, Waiting: 4, KVTokens: 480, Usage: 0.3},
				}
			}
			for id, report := range want {
				if s := b.gateRank(id); s.Reported.RankReport != report {
					t.Errorf("aware %t: %s: %+v, want %+v", aware, id, s.Reported.RankReport, report)
				}
			}
		})
	}
}

// An engine whose route for the load goes away, or answers in another form, is told within
// a minute, by log, warning and metric, and its report is dropped.
func TestLostLoadsRouteIsTold(t *testing.T) {
	var log logBook
	o := monitored
	o.Log = log.logger()
	o.Health.LoadMonitor = config.Default().Health.LoadMonitor
	inBubble(t, o, func(b *testbed) {
		b.gate.SetLimits(admission.Limits{OverloadWaiting: 5})
		w := b.monitoredWorker(WorkerSpec{}, reading(RankLoad{Waiting: 5}))
		b.prober.mu.Lock()
		delete(b.prober.load, urlA)
		b.prober.mu.Unlock()
		b.pass(30 * time.Second)
		if i := w.Info(); !slices.ContainsFunc(i.Warnings, func(s string) bool { return strings.Contains(s, "does not report its load (/v1/loads)") }) {
			t.Errorf("warnings %q", i.Warnings)
		}
		if s := b.gateRank(urlA); !s.Room {
			t.Errorf("it is judged by a report that is gone: %+v", s)
		}
		if n := testutil.ToFloat64(only{NewCollector(b.Fleet), loadUnknownDesc}); n != 1 {
			t.Errorf("the metric is %g", n)
		}
	})
	if n := strings.Count(log.String(), "does not report its load any more"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

// only is one metric of a collector.
type only struct {
	prometheus.Collector
	desc metric.Desc
}

func (o only) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		o.Collector.Collect(all)
	}()
	for m := range all {
		if m.Desc() == o.desc.Desc {
			ch <- m
		}
	}
}

// What is known of the load stays with a worker whose ranks are registered anew.
func TestReportsSurviveRegistration(t *testing.T) {
	inBubble(t, monitored, func(b *testbed) {
		b.gate.SetLimits(admission.Limits{OverloadWaiting: 5})
		b.monitoredWorker(WorkerSpec{}, reading(RankLoad{Running: 1, Waiting: 9}))
		b.prober.loaded(urlA, nil)
		b.add(WorkerSpec{URL: urlA, ModelID: "other"})
		synctest.Wait()
		if s := b.gateRank(urlA); !s.Reported.Vetoed || !slices.Equal(s.Models, []string{"other"}) {
			t.Errorf("with another model: %+v", s)
		}
		b.add(WorkerSpec{URL: urlA, ModelID: "other", APIKey: "k"})
		synctest.Wait()
		if s := b.gateRank(urlA); !s.Reported.Vetoed {
			t.Errorf("as another worker: %+v", s)
		}
		b.pass(4 * time.Second)
		if s := b.gateRank(urlA); s.Reported.Vetoed {
			t.Errorf("its report is older than three intervals: %+v", s)
		}
	})
}

// Readings come at the interval, whatever that of checks is, and one with a check where
// both are due.
func TestPaceOfReadings(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		least    int
		most     int
	}{{time.Second, 54, 66}, {5 * time.Second, 11, 14}, {20 * time.Second, 2, 4}, {0, 11, 14}} {
		o := monitored
		o.Health.LoadMonitor = c.interval
		inBubble(t, o, func(b *testbed) {
			b.monitoredWorker(WorkerSpec{}, reading(RankLoad{}))
			b.pass(2 * time.Second)
			before := b.prober.reads()
			b.pass(time.Minute)
			if n := b.prober.reads() - before; n < c.least || n > c.most {
				t.Errorf("interval %s: %d readings in a minute, want %d to %d", c.interval, n, c.least, c.most)
			}
		})
	}
}

func (p *fakeProber) reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loadReads
}

// Idle workers of a large fleet are not read while nothing is decided by what they report.
func TestIdleFleetIsReadWhereItCounts(t *testing.T) {
	o := monitored
	o.Health.LoadMonitor = 5 * time.Second
	inBubble(t, o, func(b *testbed) {
		const n = 400
		for i := range n {
			u := fmt.Sprintf("http://w-%d:1", i)
			b.prober.set(well, u)
			b.prober.loaded(u, reading(RankLoad{}))
			b.add(WorkerSpec{URL: u})
		}
		b.pass(2 * time.Minute)
		before := b.prober.reads()
		b.pass(time.Minute)
		if got := b.prober.reads() - before; got > 0 {
			t.Errorf("%d readings of idle workers in a minute", got)
		}
		for _, i := range b.Infos() {
			if len(i.Warnings) > 0 {
				t.Fatalf("a worker that is not asked is told of: %q", i.Warnings)
			}
		}
		b.gate.SetLimits(admission.Limits{OverloadWaiting: 5})
		b.pass(10 * time.Second)
		before = b.prober.reads()
		b.pass(time.Minute)
		if got := b.prober.reads() - before; got < 9*n || got > 15*n {
			t.Errorf("%d readings of %d workers in a minute", got, n)
		}
	})
}

// The load of an idle worker is not asked for in a large fleet, so that nobody may say that
// it does not report it any more: a warning for each of them some seconds after the start.
// One that gets a request is read within an interval.
func TestIdleWorkersAreNotSaidToBeSilent(t *testing.T) {
	var log bytes.Buffer
	o := monitored
	o.Health.LoadMonitor, o.Health.Wedge, o.ModelID = 5*time.Second, 3*time.Second, "m"
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	inBubble(t, o, func(b *testbed) {
		for i := range 1000 {
			u := fmt.Sprintf("http://w-%d:1", i)
			b.prober.set(well, u)
			b.prober.loaded(u, reading(RankLoad{}))
			b.add(WorkerSpec{URL: u})
		}
		b.pass(2 * time.Minute)
		if s := log.String(); strings.Contains(s, "does not report its load") {
			t.Error("idle workers are said not to report their load")
		}
		w := b.acquire("m").Decode.Data().(*Rank).worker
		asked := w.loadAskedAt
		w.keepWatch(b.clock.Now())
		b.pass(7 * time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		if w.loadAskedAt == asked {
			t.Error("a worker with a request was not read within an interval")
		}
	})
}
