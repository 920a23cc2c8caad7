package fleet

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/internal/config"
)

// TestStatesAreMetrics guards against an alert that cannot be written: one of several
// workers is down, or a breaker is open.
func TestStatesAreMetrics(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		w := b.add(WorkerSpec{URL: urlA, Type: config.WorkerDecode})
		b.add(WorkerSpec{URL: urlB, Type: config.WorkerDecode})
		synctest.Wait()
		check := func(want string, names ...string) {
			t.Helper()
			if err := testutil.CollectAndCompare(NewCollector(b.Fleet), strings.NewReader(want), names...); err != nil {
				t.Error(err)
			}
		}
		up := func(a, b string) string {
			return "# HELP sluice_worker_up 1 while a worker is ready and receives requests, else 0.\n# TYPE sluice_worker_up gauge\n" + a + b
		}
		series := func(w *Worker, v string) string {
			return `sluice_worker_up{role="decode",worker="` + w.URL() + `",worker_id="` + w.ID() + `"} ` + v + "\n"
		}
		other, _ := b.Get(urlB)
		check(up(series(w, "1"), series(other, "1")), "sluice_worker_up")

		b.prober.set(vanished, urlA)
		b.pass(time.Minute)
		check(up(series(w, "0"), series(other, "1")), "sluice_worker_up")
		scrape := func() string {
			reg := prometheus.NewRegistry()
			reg.MustRegister(NewCollector(b.Fleet))
			w := httptest.NewRecorder()
			promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			return w.Body.String()
		}
		before := scrape()
		for range 10 {
			other.Ranks()[0].ReportFailure(Proven, 0)
		}
		after := scrape()
		for _, c := range []struct{ text, want string }{
			{before, `sluice_workers{role="decode",state="unhealthy"} 1`},
			{before, `sluice_workers{role="decode",state="ready"} 1`},
			{before, `sluice_workers{role="prefill",state="ready"} 0`},
			{before, `sluice_worker_state{role="decode",state="unhealthy",worker="` + w.URL() + `",worker_id="` + w.ID() + `"} 1`},
			{before, `sluice_worker_dead{role="decode",worker="` + w.URL() + `",worker_id="` + w.ID() + `"} 1`},
			{before, `sluice_worker_dead{role="decode",worker="` + urlB + `",worker_id="` + other.ID() + `"} 0`},
			{before, `sluice_rank_breaker_state{rank="` + urlB + `",role="decode",state="open"} 0`},
			{after, `sluice_rank_breaker_state{rank="` + urlB + `",role="decode",state="half_open"} 1`}, // the last of its role
			{after, `sluice_rank_breaker_state{rank="` + urlB + `",role="decode",state="closed"} 0`},
		} {
			if !strings.Contains(c.text, c.want+"\n") {
				t.Errorf("no %s in\n%s", c.want, c.text)
			}
		}

		b.Remove(urlA)
		b.pass(time.Minute)
		check(up("", series(other, "1")), "sluice_worker_up") // its series end with it
	})
}
