package dispatch

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/internal/fleet"
)

// TestMetricsOfWorkersAndModels keeps away the question which worker is slow or
// failing, and whose requests, to which no metric has an answer.
func TestMetricsOfWorkersAndModels(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	if err := r.reg.Register(fleet.NewCollector(r.fleet)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if a := r.chat(`,"stream":true`); a.status != 200 {
			t.Fatal(a.status)
		}
	}
	r.idle()
	for _, role := range []string{"prefill", "decode"} {
		if n := r.counted("sluice_worker_requests_total", "role", role, "outcome", "ok"); n != 3 {
			t.Errorf("%v requests of %s workers, want 3", n, role)
		}
		if n := r.counted("sluice_worker_first_tokens_total", "role", role); n != 3 {
			t.Errorf("%v first tokens of %s workers, want 3", n, role)
		}
		if s := r.counted("sluice_worker_first_token_seconds_total", "role", role); s <= 0 {
			t.Errorf("%v seconds to first tokens of %s workers", s, role)
		}
	}
	if n := r.counted("sluice_worker_prefills_total"); n != 3 {
		t.Errorf("%v prefills, want 3", n)
	}
	if n := r.counted("sluice_model_time_to_first_token_seconds", "model", "sim-model", "class", "default"); n != 3 {
		t.Errorf("%v times to first tokens of the model, want 3", n)
	}
	if n := r.counted("sluice_model_requests_total", "model", "sim-model", "class", "default", "outcome", "ok"); n != 3 {
		t.Errorf("%v requests of the model, want 3", n)
	}
	if n := r.counted("sluice_request_duration_seconds", "route", "embeddings"); n != 0 || testutil.CollectAndCount(r.d.metrics.duration) != 1 {
		t.Error("a route that nobody uses has series")
	}

	for _, w := range r.sim.Workers() {
		w.Kill()
	}
	if a := r.chat(""); a.status < 500 {
		t.Fatalf("status %d", a.status)
	}
	if n := r.counted("sluice_worker_requests_total", "outcome", "failed"); n == 0 {
		t.Error("no failed request of a worker is counted")
	}
	if n := r.counted("sluice_model_requests_total", "outcome", "failed"); n != 1 {
		t.Errorf("%v failed requests of the model, want 1", n)
	}
}

// TestModelSeriesAreBounded: whatever comes and goes, the page does not grow
// without end, and no lookup allocates.
func TestModelSeriesAreBounded(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	rec := &Record{Status: 200, Reason: reasonOK, TTFT: 1, Class: "c"}
	for i := range maxModelSeries + 50 {
		rec.Model = fmt.Sprint("m", i)
		m.models.observe(rec)
	}
	if n := testutil.CollectAndCount(m.models.ttft); n != maxModelSeries+1 {
		t.Errorf("%d series", n)
	}
	rec.Model = "m7"
	if n := testing.AllocsPerRun(100, func() { m.models.observe(rec) }); n != 0 {
		t.Errorf("%v allocations for a request", n)
	}
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		status int
		reason string
		want   int
	}{
		{200, reasonOK, outcomeOK}, {200, reasonBrokenOff, outcomeFailed}, {200, reasonClientGone, outcomeClientGone},
		{StatusClientGone, reasonClientGone, outcomeClientGone}, {429, reasonDeadline, outcomeRefused}, {529, reasonDeadline, outcomeRefused},
		{400, reasonEngineStatus, outcomeClientError}, {502, reasonUpstream, outcomeFailed}, {503, reasonDraining, outcomeFailed},
	} {
		if got := (&Record{Status: c.status, Reason: c.reason}).outcome(); got != c.want {
			t.Errorf("%d %s is %s, want %s", c.status, c.reason, outcomeNames[got], outcomeNames[c.want])
		}
	}
}
