package server

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// TestEarlyRefusalIsReported keeps away requests that wait for all of a deadline that was
// bound to pass, and are told only then. They are told the same when they come, and
// that it was predicted.
func TestEarlyRefusalIsReported(t *testing.T) {
	r := start(t, func(s *setup) {
		s.limits.PrefillSlots, s.limits.RefuseEarly = 1, true
		s.sim.Worker.Timing = sim.Timing{PrefillTime: 30 * time.Millisecond}
	})
	for range 150 {
		r.fly(promptOf(10, ""))
	}
	r.waitFor("a long queue", func() bool { return r.gate.Waiting() >= 100 })
	var told struct {
		Error struct {
			Message   string
			Admission struct {
				Predicted      bool
				EstimatedMS    int64 `json:"estimated_wait_ms"`
				RetryAfterMS   int64 `json:"retry_after_ms"`
				QueueDepth     int   `json:"queue_depth"`
				Resource, Gate string
			}
		}
	}
	// Until there were 20 admissions, and somebody waited for a second, it waits.
	r.waitFor("a prediction", func() bool {
		a := r.do("POST", completions, promptOf(10, ""), "X-Sluice-Max-Queue-Ms", "10")
		a.refusal(t, 429, "queue_deadline_exceeded")
		if err := json.Unmarshal([]byte(a.body), &told); err != nil {
			t.Fatal(err)
		}
		if !told.Error.Admission.Predicted && strings.Contains(a.body, "estimated_wait_ms") {
			t.Errorf("%s", a.body)
		}
		return told.Error.Admission.Predicted
	})
	a := told.Error.Admission
	if a.EstimatedMS <= 15 || a.RetryAfterMS < a.EstimatedMS && a.RetryAfterMS < 60000 || a.QueueDepth == 0 || a.Gate != "prefill" || a.Resource != "prefill_slot" {
		t.Errorf("%+v", told)
	}
	if m := told.Error.Message; !strings.Contains(m, "10ms") || !strings.Contains(m, "--refuse-early") {
		t.Error(m)
	}
	r.waitFor("the access line", func() bool { return strings.Contains(r.log.String(), " predicted_ms=") })
	if n := r.metric(`sluice_admission_refused_early_total{class="default"}`); n != 1 {
		t.Errorf("%g were counted", n)
	}
}
