package dispatch

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

const tooLong = `{"object":"error","message":"the input is longer than the context length","type":"BadRequestError","param":null,"code":400}`

// transferBroke is how an engine reports a broken hand-off.
const transferBroke = `{"object":"error","message":"KV transfer failed for room 7","type":"InternalServerError","param":null,"code":500}`

// both runs f for a plain and for a streamed request.
func both(t *testing.T, f func(t *testing.T, extra string)) {
	t.Run("plain", func(t *testing.T) { t.Parallel(); f(t, "") })
	t.Run("streamed", func(t *testing.T) { t.Parallel(); f(t, streamed) })
}

// Prefill refused the request, decode waited for KV that never came, and the
// client hung until the longest of all limits.
func TestPrefillRefusesWhileDecodeIsSilent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, extra string) {
		r := newRig(t, pd(rigOptions{retries: 5, breaker: firstFault}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 400, Delay: 100 * time.Millisecond, Body: tooLong, Header: http.Header{"Retry-After": {"7"}}})
		start := time.Now()
		a := r.chat(extra)
		r.soon("the client had its answer", start)
		if a.status != 400 || a.body != tooLong || a.header.Get("Retry-After") != "7" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("got %d %q %v", a.status, a.body, a.header)
		}
		r.settled()
		r.soon("decode was told", start)
		r.outcomes(r.sim.Decode(0), sim.ClientGone)
		if n := len(r.sim.Prefill(0).Requests()); n != 1 {
			t.Errorf("prefill was asked %d times", n)
		}
		r.charged()
	})
}

// Decode failed at transport level; the prefill leg could never finish and was
// left open.
func TestDecodeFailsAtTransport(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		damage func(w *sim.Worker)
	}{
		{"refuses", func(w *sim.Worker) { w.Kill() }},
		{"resets before the body", func(w *sim.Worker) { w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtRequest}) }},
		{"resets after the body", func(w *sim.Worker) { w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody}) }},
		{"closes after the body", func(w *sim.Worker) { w.SetFault(sim.Fault{Do: sim.Close, At: sim.AtBody}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, pd(rigOptions{health: rarely, breaker: config.CircuitBreaker{Disabled: true}}))
			tc.damage(r.sim.Decode(0))
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 30 {
				wg.Go(func() {
					a := r.chat([]string{"", streamed}[i%2])
					if a.status != 502 || a.code() != "upstream_failed" && a.code() != "502" || !strings.Contains(a.body, "decode") {
						t.Errorf("got %d %s %v", a.status, a.body, a.err)
					}
				})
			}
			wg.Wait()
			r.settled()
			r.soon("all ended", start)
			for i, q := range r.over(r.sim.Prefill(0)) {
				if q.Outcome != sim.ClientGone {
					t.Errorf("prefill's request %d ended as %q", i, q.Outcome)
				}
			}
		})
	}
}

// The prefill leg ran in the background and its failure was only counted.
func TestPrefillFailsInTheBackground(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		status int
		body   string
	}{
		{"500 late", sim.Fault{Status: 500, Delay: 300 * time.Millisecond, Body: `{"message":"out of memory"}`}, 500, "out of memory"},
		{"reset at once", sim.Fault{Do: sim.Reset, At: sim.AtBody}, 502, "prefill"},
		{"reset late", sim.Fault{Do: sim.Reset, At: sim.AtHeaders, EarlyHeaders: true, Delay: 300 * time.Millisecond}, 502, "prefill"},
		{"closed late", sim.Fault{Do: sim.Close, At: sim.AtHeaders, EarlyHeaders: true, Delay: 300 * time.Millisecond}, 502, "prefill"},
		{"error event", sim.Fault{Kind: sim.ErrorEvent}, 500, "simulated engine failure"},
		{"error in a 200", sim.Fault{Kind: sim.ErrorInside200}, 502, "simulated engine failure"},
		{"503", sim.Fault{Status: 503, Body: "busy"}, 503, "busy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			both(t, func(t *testing.T, extra string) {
				r := newRig(t, pd(rigOptions{breaker: firstFault}))
				r.sim.Prefill(0).SetFault(tc.fault)
				start := time.Now()
				a := r.chat(extra)
				r.soon("the client knew", start)
				if a.status != tc.status || !strings.Contains(a.body, tc.body) {
					t.Errorf("got %d %s %v, want %d", a.status, a.body, a.err, tc.status)
				}
				r.settled()
				for _, q := range r.over(r.sim.Decode(0)) { // none, if it was stopped before it had left
					if q.Outcome != sim.ClientGone {
						t.Errorf("decode's request ended as %q", q.Outcome)
					}
				}
				if tc.status == 503 {
					r.charged()
				} else {
					r.charged(r.sim.Prefill(0))
				}
			})
		})
	}
}

// Decode's report of a broken hand-off is often the echo of the real failure:
// prefill's own one is what the client is told.
func TestTransferFailureWaitsForThePrefillsVerdict(t *testing.T) {
	t.Parallel()
	t.Run("its own failure wins", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{VerdictWait: patience}}))
		r.sim.Decode(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 422, Delay: 30 * time.Millisecond, Body: tooLong})
		if a := r.chat(""); a.status != 422 || a.body != tooLong {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.settled()
		r.charged()
	})
	t.Run("without one decode's passes", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{VerdictWait: 20 * time.Millisecond}}))
		r.sim.Decode(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
		start := time.Now()
		if a := r.chat(""); a.status != 500 || a.body != transferBroke {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.soon("it passed", start)
		r.settled()
		r.aborted(r.sim.Prefill(0), 1)
		r.charged()
	})
	t.Run("prefill's report waits for decode's own", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{VerdictWait: patience}}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
		r.sim.Decode(0).SetFault(sim.Fault{Status: 500, Delay: 30 * time.Millisecond, Body: `{"message":"out of memory"}`})
		if a := r.chat(""); a.status != 500 || !strings.Contains(a.body, "out of memory") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.settled()
		r.charged(r.sim.Decode(0))
	})
	t.Run("both report the other", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
		r.sim.Decode(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
		if a := r.chat(""); a.status != 500 || a.body != transferBroke {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.settled()
		r.charged()
	})
	t.Run("as the first event of a stream", func(t *testing.T) {
		// Decode gives the meeting up by itself and says so in its stream.
		r := newRig(t, pd(rigOptions{breaker: firstFault, sim: sim.Options{
			Each: func(role sim.Role, _ int, o *sim.WorkerOptions) {
				if role == sim.Decode {
					o.BootstrapTimeout = 50 * time.Millisecond
				}
			}}}))
		r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtBody})
		a := r.chat(streamed)
		if a.status != 500 || !strings.Contains(a.body, "KV transfer failed") || !strings.HasPrefix(a.body, `{"error"`) {
			t.Errorf("got %d %s %v", a.status, a.body, a.err)
		}
		r.idle()
		r.outcomes(r.sim.Prefill(0), sim.ClientGone)
		r.charged()
	})
}

// slowDecode streams for as long as a test needs.
var slowDecode = sim.Timing{DecodeStep: 5 * time.Millisecond}

// A prefill that fails after decode has begun must be seen by the client: what
// it has is not what the engine would have said.
func TestLatePrefillFailureEndsTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, retries: 3, health: rarely, sim: sim.Options{Worker: sim.WorkerOptions{Timing: slowDecode}}}))
	r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtHeaders})
	s := r.open("/v1/chat/completions", bodyFor("", 1_000_000, streamed))
	for range 3 {
		s.event()
	}
	r.sim.Prefill(0).Kill()
	all, err := s.rest()
	if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `data: {"error"`) || !strings.Contains(all, "prefill") {
		t.Errorf("err %v, the end is %q", err, all[max(0, len(all)-300):])
	}
	r.settled()
	r.outcomes(r.sim.Decode(0), sim.ClientGone)
	r.charged(r.sim.Prefill(0))
	if rec := r.waitRecord(0); rec.Attempts != 1 || rec.Reason == reasonOK || rec.Status != 200 {
		t.Errorf("recorded %+v", rec)
	}
}

// The client's first byte was held back until prefill's body, or its headers,
// were there, though decode was already producing.
func TestFirstByteWaitsForDecodeOnly(t *testing.T) {
	t.Parallel()
	t.Run("prefill sends headers and no body", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{bounds: Options{PrefillGrace: 100 * time.Millisecond}, breaker: firstFault}))
			r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtHeaders})
			if a := r.chat(extra); a.status != 200 || a.err != nil || !strings.Contains(a.body, " t3") {
				t.Errorf("got %d %s %v", a.status, a.body, a.err)
			}
			r.settled()
			r.outcomes(r.sim.Prefill(0), sim.ClientGone)
			r.charged()
		})
	})
	t.Run("prefill sends nothing", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			let := make(chan struct{})
			r := newRig(t, pd(rigOptions{breaker: firstFault, sim: sim.Options{Each: func(role sim.Role, _ int, o *sim.WorkerOptions) {
				if role == sim.Prefill {
					o.Wrap = func(_ *sim.Worker, next http.Handler) http.Handler { return lateHeaders(let, next) }
				}
			}}}))
			a := r.chat(extra)
			close(let)
			if a.status != 200 || a.err != nil || !strings.Contains(a.body, " t3") {
				t.Errorf("got %d %s %v", a.status, a.body, a.err)
			}
			r.settled()
			r.outcomes(r.sim.Prefill(0), sim.Complete)
		})
	})
	t.Run("prefill keeps its connection alive", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{bounds: Options{PrefillGrace: 50 * time.Millisecond}}))
		r.sim.Prefill(0).SetFault(sim.Fault{KeepAlive: 5 * time.Millisecond, FirstByte: forever})
		if a := r.chat(streamed); a.status != 200 || a.err != nil || !strings.HasSuffix(a.body, "[DONE]\n\n") || strings.Contains(a.body, "keep-alive") {
			t.Errorf("got %d %s %v", a.status, a.body, a.err)
		}
		r.settled()
	})
}

// lateHeaders holds the answers of generation routes back until let is closed,
// the engine itself goes on.
func lateHeaders(let <-chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w = &heldWriter{ResponseWriter: w, let: let, gone: r.Context().Done()}
		}
		next.ServeHTTP(w, r)
	})
}

type heldWriter struct {
	http.ResponseWriter
	let, gone <-chan struct{}
}

func (h *heldWriter) WriteHeader(status int) {
	select {
	case <-h.let:
	case <-h.gone:
	}
	h.ResponseWriter.WriteHeader(status)
}

func (h *heldWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// A prefill leg that is left open once decode is over is cancelled after the
// grace; its slot is the next one's then.
func TestPrefillLeftOpenIsCancelledAfterTheGrace(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{PrefillGrace: 200 * time.Millisecond},
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 5, QueueTimeout: time.Minute}}))
	r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtHeaders, Count: 1})
	first := r.chat("")
	ended := time.Now()
	second := r.chat("")
	if first.status != 200 || second.status != 200 {
		t.Errorf("got %d %s, %d %s", first.status, first.body, second.status, second.body)
	}
	r.soon("the slot was free", ended)
	if rec := r.waitRecord(1); rec.Queued == 0 {
		t.Error("the second did not wait for the slot")
	}
	r.settled()
	r.outcomes(r.sim.Prefill(0), sim.ClientGone, sim.Complete)
	r.charged()
}

// A streamed pair was cut off because the session was closed before its answer
// was relayed; a later version collected all of it first.
func TestPairStreamsEventByEvent(t *testing.T) {
	t.Parallel()
	gates := make(chan struct{})
	r := newRig(t, pd(rigOptions{sim: sim.Options{Each: func(role sim.Role, _ int, o *sim.WorkerOptions) {
		if role == sim.Decode {
			o.Wrap = func(_ *sim.Worker, next http.Handler) http.Handler { return stepped(gates, 50, next) }
		}
	}}}))
	s := r.open("/v1/chat/completions", chatBody(streamed))
	for i := range 50 {
		if e, want := s.event(), fmt.Sprintf("data: {\"n\":%d}\n\n", i); e != want {
			t.Fatalf("event %d is %q, want %q", i, e, want)
		}
		gates <- struct{}{} // the engine sends the next only now
	}
	if all, err := s.rest(); err != nil || !strings.HasSuffix(all, "data: [DONE]\n\n") {
		t.Errorf("err %v, the end is %q", err, all[max(0, len(all)-100):])
	}
	r.settled()
}

// stepped answers generation routes with n events and waits for a step after
// each, so that one which is held back anywhere is never followed by another.
// The engine runs beside it to keep prefill company.
func stepped(steps <-chan struct{}, n int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&mute{header: http.Header{}}, r)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-steps:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
}

// mute swallows an answer.
type mute struct{ header http.Header }

func (m *mute) Header() http.Header         { return m.header }
func (m *mute) WriteHeader(int)             {}
func (m *mute) Write(p []byte) (int, error) { return len(p), nil }
func (m *mute) FlushError() error           { return nil }
