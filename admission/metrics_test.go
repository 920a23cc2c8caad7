package admission

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var bucketLines = regexp.MustCompile(`(?m)^\w+_bucket\{.*\n`)

// exposition is what a scrape gives, without the histograms' buckets.
func exposition(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return bucketLines.ReplaceAllString(w.Body.String(), "")
}

// golden compares got with a file of testdata; UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, []byte(got)) {
		t.Fatalf("%s differs, got:\n%s", path, got)
	}
}

// The names, labels and help texts are an interface: dashboards and alerts are
// built on them.
func TestMetricsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		golden(t, "metrics_start.txt", exposition(t, reg))

		g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 2, QueueTimeout: 4 * time.Second}}, NewSystemClock(), m)
		defer g.Close()
		m.Watch(g)
		p := rank("http://p1", RolePrefill, "m")
		d := rank("http://d1", RoleDecode, "m")
		g.Apply(Change{Op: AddRank, Rank: p}, Change{Op: AddRank, Rank: d})
		acquire := func(ctx context.Context) *Ticket {
			k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), Legs: 2}
			go g.Acquire(ctx, k)
			synctest.Wait()
			return k
		}
		a := acquire(t.Context())
		a.StartDecode()
		b := acquire(t.Context()) // will be granted after 1 s
		ctx, leave := context.WithCancel(t.Context())
		acquire(ctx)         // will leave after 3 s
		acquire(t.Context()) // finds the queue full
		time.Sleep(time.Second)
		a.EndPrefill()
		acquire(t.Context()) // will time out
		time.Sleep(2 * time.Second)
		leave()
		synctest.Wait()
		golden(t, "metrics_used.txt", exposition(t, reg))

		time.Sleep(4 * time.Second)
		a.Release()
		b.Release()
		g.Apply(Change{Op: RemoveRank, Rank: p}, Change{Op: RemoveRank, Rank: d})
		end := exposition(t, reg)
		if strings.Contains(end, "http://") {
			t.Fatalf("series of a rank outlive it:\n%s", end)
		}
		for _, line := range []string{
			`smg_pd_prefill_admission_rejections_total{reason="queue_timeout"} 1`,
			`smg_pd_prefill_admission_rejections_total{reason="queue_full"} 1`,
			`smg_pd_prefill_admission_wait_seconds_sum 8`,
			`smg_pd_prefill_admission_wait_seconds_count 3`,
			`smg_pd_prefill_admission_queued 0`,
			`sluice_admission_closed_seconds_total{resource="prefill_slot"} 5`,
			`sluice_admission_missed_events_total 0`,
		} {
			if !strings.Contains(end, line+"\n") {
				t.Errorf("no %s in\n%s", line, end)
			}
		}
	})
}

// Where classes are configured there is no class "default", and none in the metrics.
// The time that a queue was closed is told by class.
func TestMetricsOfClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		classes := &Classes{Root: &Profile{
			DefaultFamily: "f", Buckets: []Bucket{{Name: "short"}, {Name: "long", MinTokens: 100}},
			Classes: []Class{{Name: "short", Family: "f", Bucket: "short", Quantum: 100}, {Name: "long", Family: "f", Bucket: "long", Quantum: 100}},
		}}
		g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 9, QueueTimeout: time.Minute}, Classes: classes}, NewSystemClock(), m)
		defer g.Close()
		m.Watch(g)
		g.Apply(Change{Op: AddRank, Rank: rank("p1", RolePrefill, "m")}, Change{Op: AddRank, Rank: rank("d1", RoleDecode, "m")})
		acquire := func(tokens int64) *Ticket {
			k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: tokens}
			go g.Acquire(t.Context(), k)
			synctest.Wait()
			return k
		}
		a := acquire(1)
		b := acquire(1000)
		time.Sleep(3 * time.Second)
		open := exposition(t, reg)
		a.Release()
		synctest.Wait()
		end := exposition(t, reg)
		b.Release()
		for when, text := range map[string]string{"while it is closed": open, "afterwards": end} {
			if strings.Contains(text, `class="default"`) {
				t.Errorf("%s: there is a class default:\n%s", when, text)
			}
			for _, line := range []string{
				`sluice_admission_class_closed_seconds_total{class="long",resource="prefill_slot"} 3`,
				`sluice_admission_class_closed_seconds_total{class="short",resource="prefill_slot"} 0`,
				`sluice_admission_closed_seconds_total{resource="prefill_slot"} 3`,
				`sluice_admission_wait_seconds_count{class="short",outcome="granted"} 1`,
				`sluice_admission_queue_depth{class="short"} 0`,
			} {
				if !strings.Contains(text, line+"\n") {
					t.Errorf("%s: no %s in\n%s", when, line, text)
				}
			}
		}
	})
}

// Aggregated requests are none of the prefill gate's, by SMG's names.
func TestMetricsOfAggregatedRequests(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	g := NewGate(Options{}, NewSystemClock(), m)
	defer g.Close()
	m.Watch(g)
	r := rank("r1", RoleRegular, "m")
	g.Apply(Change{Op: AddRank, Rank: r})
	target := g.Resolve(TargetSpec{Model: "m"})
	k := &Ticket{Target: target}
	if err := g.Acquire(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	g.Apply(Change{Op: SetState, Rank: r, State: RankState{}})
	if err := g.Acquire(t.Context(), &Ticket{Target: target}); err == nil {
		t.Fatal("granted")
	}
	text := exposition(t, reg)
	for _, line := range []string{
		`smg_pd_prefill_admission_rejections_total{reason="unavailable"} 0`,
		`sluice_admission_rejections_total{class="default",reason="no_available_workers"} 1`,
		`sluice_admission_dispatches_total{class="default"} 1`,
		`sluice_admission_wait_seconds_count{class="default",outcome="granted"} 1`,
		`sluice_admission_decode_requests{rank="r1",state="pending"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}

// Two ranks of one id, or an id that is no UTF-8, must not cost the scrape.
func TestMetricsSurviveOddRanks(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	g := NewGate(Options{}, NewSystemClock(), m)
	defer g.Close()
	m.Watch(g)
	for _, id := range []string{"x", "x", "\xff", "\xfe"} {
		g.Apply(Change{Op: AddRank, Rank: rank(id, RolePrefill, "m")}, Change{Op: AddRank, Rank: rank(id, RoleDecode, "m")})
	}
	if text := exposition(t, reg); !strings.Contains(text, `smg_pd_prefill_admission_inflight{worker="x"} 0`) {
		t.Fatal(text)
	}
}

// TestCapacityIsAMetric keeps away booked blocks and tokens that nothing can be
// divided by.
func TestCapacityIsAMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		g := NewGate(Options{}, NewSystemClock(), m)
		defer g.Close()
		m.Watch(g)
		for _, s := range []RankSpec{
			{ID: "p", Role: RolePrefill, Models: []string{"m"}, Capacity: Capacity{MaxBatchedTokens: 8192}},
			{ID: "d", Role: RoleDecode, Models: []string{"m"}, Capacity: Capacity{KVBlocks: 500}},
			{ID: "unknown", Role: RoleDecode, Models: []string{"m"}},
		} {
			s.Worker = s.ID
			g.Apply(Change{Op: AddRank, Rank: NewRank(s)})
		}
		text := exposition(t, reg)
		for _, want := range []string{
			`sluice_admission_prefill_tokens_capacity{rank="p"} 8192`,
			`sluice_admission_decode_blocks_capacity{rank="d"} 500`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if strings.Contains(text, `capacity{rank="unknown"}`) {
			t.Error("a capacity that nobody knows is told")
		}
	})
}
