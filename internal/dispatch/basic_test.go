package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

func TestPairAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	for _, tc := range []struct{ path, body string }{
		{"/v1/chat/completions", chatBody("")},
		{"/v1/completions", `{"prompt":"hi","max_tokens":3}`},
		{"/v1/completions", `{"prompt":["hi","ho"],"max_tokens":3}`},
		{"/generate", `{"text":"hi","sampling_params":{"max_new_tokens":3}}`},
		{"/generate", `{"input_ids":[[1,2],[3]],"sampling_params":{"max_new_tokens":3}}`},
	} {
		if a := r.do(t.Context(), tc.path, tc.body); a.status != 200 || !strings.Contains(a.body, " t1 t2") {
			t.Errorf("%s %s: %d %s", tc.path, tc.body, a.status, a.body)
		}
	}
	a := r.chat(`,"stream":true`)
	if a.status != 200 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") || a.err != nil {
		t.Errorf("stream: %d %v %s", a.status, a.err, a.body)
	}
	r.idle()
	r.noViolations()
}

func TestAggregatedAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 2}})
	for _, extra := range []string{"", `,"stream":true`, `,"n":2`} {
		if a := r.chat(extra); a.status != 200 || a.err != nil {
			t.Errorf("%s: %d %v %s", extra, a.status, a.err, a.body)
		}
	}
	r.idle()
}

// One request is in prefill, one waits, the third finds the queue full.
func TestSlotsOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 1, QueueTimeout: 200 * time.Millisecond},
		sim:    sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: time.Second}}},
	}))
	answers := make(chan answer, 2)
	go func() { answers <- r.chat("") }()
	r.until("the first is in prefill", func() bool { return r.gate.Stats().Ranks[0].PrefillSlots+r.gate.Stats().Ranks[1].PrefillSlots == 1 })
	go func() { answers <- r.chat("") }()
	r.until("the second waits", func() bool { return r.gate.Waiting() == 1 })
	third := r.chat("")
	if third.status != 429 || third.code() != "pd_prefill_queue_full" || third.header.Get("Retry-After") == "" {
		t.Errorf("third: %d %s %v", third.status, third.body, third.header)
	}
	second, first := <-answers, <-answers
	if second.status != 429 || second.code() != "pd_prefill_queue_timeout" {
		t.Errorf("second: %d %s", second.status, second.body)
	}
	if first.status != 200 {
		t.Errorf("first: %d %s", first.status, first.body)
	}
	r.idle()
	r.noViolations()
}
