package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

func oneSlot() admission.Limits {
	return admission.Limits{PrefillSlots: 1, QueueSize: 10, QueueTimeout: time.Minute}
}

// The slot is free at the end of the prefill leg, while decode still streams:
// the next one starts then, not at the end of the first.
func TestSlotEndsWithPrefill(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, extra string) {
		r := newRig(t, pd(rigOptions{limits: oneSlot(), sim: sim.Options{Worker: sim.WorkerOptions{
			Timing: sim.Timing{PrefillTime: 200 * time.Millisecond, FirstToken: forever}}}}))
		_, leave := r.begin("/v1/chat/completions", bodyFor("", 10, extra))
		r.working(r.sim.Prefill(0), 1)
		second, _ := r.begin("/v1/chat/completions", chatBody(extra))
		r.until("the second waits", func() bool { return r.gate.Waiting() == 1 })
		if s := r.of(r.sim.Prefill(0)); s.PrefillSlots != 1 {
			t.Errorf("slots %+v", s)
		}
		r.until("the second is in prefill while the first decodes", func() bool {
			p, d := r.of(r.sim.Prefill(0)), r.of(r.sim.Decode(0))
			return p.PrefillSlots == 1 && d.ActiveDecode == 2 && r.gate.Waiting() == 0
		})
		r.wait(r.sim.Decode(0), "the first decodes", func(s sim.Stats) bool { return s.Decoding == 1 })
		// The second has all it needs once the engine is quick again; the first
		// stays where it is.
		r.sim.Decode(0).SetTiming(sim.Timing{})
		if a := <-second; a.status != 200 {
			t.Errorf("the second: %d %s %v", a.status, a.body, a.err)
		}
		if s := r.of(r.sim.Decode(0)); s.ActiveDecode != 1 {
			t.Errorf("the first is over: %+v", s)
		}
		leave()
		r.settled()
		if peak := r.sim.Prefill(0).Stats().PeakPrefilling; peak != 1 {
			t.Errorf("%d were in prefill at once", peak)
		}
	})
}

// All the calls of one request share one slot.
func TestOneSlotForABatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ path, body string }{
		{"/v1/completions", `{"prompt":["a","b","c","d","e","f","g","h"],"max_tokens":2}`},
		{"/v1/completions", `{"prompt":[[1],[2],[3],[4],[5],[6],[7],[8]],"max_tokens":2}`},
		{"/generate", `{"text":["a","b","c","d","e","f","g","h"],"sampling_params":{"max_new_tokens":2}}`},
	} {
		t.Run(tc.body, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, pd(rigOptions{limits: oneSlot(), sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: 200 * time.Millisecond}}}}))
			first, _ := r.begin(tc.path, tc.body)
			r.working(r.sim.Prefill(0), 1)
			if p, d := r.of(r.sim.Prefill(0)), r.of(r.sim.Decode(0)); p.PrefillSlots != 1 || p.PrefillLegs != 8 || d.ActiveDecode+d.PendingDecode != 8 {
				t.Errorf("held: %+v and %+v, want 1 slot and 8 legs on each", p, d)
			}
			second, _ := r.begin("/v1/chat/completions", chatBody(""))
			r.until("the second waits", func() bool { return r.gate.Waiting() == 1 })
			for _, c := range []chan answer{first, second} {
				if a := <-c; a.status != 200 {
					t.Errorf("%d %s %v", a.status, a.body, a.err)
				}
			}
			r.settled()
		})
	}
}

// Arrival order is service order, and no two are ever in prefill at once.
func TestSlotsAreFirstInFirstOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{limits: oneSlot(), sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: 30 * time.Millisecond}}}}))
	var answers []chan answer
	for i := range 6 {
		c, _ := r.begin("/v1/chat/completions", chatBody(`,"seed":`+itoa(i)))
		answers = append(answers, c)
		r.until("it has arrived", func() bool {
			return r.gate.Waiting()+len(r.sim.Prefill(0).Requests()) > i
		})
	}
	for _, c := range answers {
		if a := <-c; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for i, q := range r.sim.Prefill(0).Requests() {
		if !strings.Contains(string(q.Body), `"seed":`+itoa(i)) {
			t.Errorf("the %d. in prefill is %s", i, q.Body)
		}
	}
	r.settled()
	if peak := r.sim.Prefill(0).Stats().PeakPrefilling; peak != 1 {
		t.Errorf("%d were in prefill at once", peak)
	}
}
