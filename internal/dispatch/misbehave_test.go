package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// An engine that breaks the rules is told of with a reason; nothing it sends is
// kept without a bound, and nothing is left of it.
func TestMisbehavingEngines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		fault   sim.Fault
		reason  string // of the 502
		streams int    // 0: both forms, 1: only plain, 2: only streamed
	}{
		{"garbage", sim.Fault{Kind: sim.Garbage}, "not valid HTTP", 0},
		{"truncated", sim.Fault{Kind: sim.Truncated}, "before its answer was whole", 1},
		{"endless chunk line", sim.Fault{Kind: sim.ChunkLine}, "", 0},
		{"error object in a 200", sim.Fault{Kind: sim.ErrorInside200}, "simulated engine failure", 1},
		{"nothing in a 200", sim.Fault{Status: 200, Body: "\n"}, "no JSON", 1},
		{"a page in a 200", sim.Fault{Status: 200, Body: "<html>come back later</html>"}, "no JSON", 1},
		{"error object where events were asked", sim.Fault{Kind: sim.ErrorInside200}, "", 2},
		{"events for JSON", sim.Fault{Kind: sim.EventsForJSON}, "an event stream where", 1},
		{"JSON for events", sim.Fault{Kind: sim.JSONForEvents}, "where an event stream", 2},
		{"a page for events", sim.Fault{ContentType: "text/html"}, "something else where an event stream", 2},
		{"no events, no length", sim.Fault{ContentType: "text/plain", Events: []string{}}, "something else where an event stream", 2},
		{"status 204", sim.Fault{Status: 204}, "status 204", 0},
		{"status 302", sim.Fault{Status: 302}, "status 302", 0},
		{"an empty stream", sim.Fault{Do: sim.End, At: sim.AtEvent}, "", 2},
		{"closed before the first event", sim.Fault{Do: sim.Close, At: sim.AtEvent}, "", 2},
		{"cut inside the first event", sim.Fault{Do: sim.Close, At: sim.AtInside}, "", 2},
		{"cut inside the answer", sim.Fault{Do: sim.Close, At: sim.AtInside}, "before its answer was whole", 1},
		{"reset inside the answer", sim.Fault{Do: sim.Reset, At: sim.AtInside}, "", 1},
	} {
		for form, extra := range []string{"", streamed} {
			if tc.streams == 2-form {
				continue
			}
			for _, pair := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/stream=%v/pair=%v", tc.name, form == 1, pair), func(t *testing.T) {
					t.Parallel()
					o := rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault}
					if pair {
						o = pd(rigOptions{breaker: firstFault})
					}
					r := newRig(t, o)
					answering := r.sim.Workers()[len(r.sim.Workers())-1]
					answering.SetFault(tc.fault)
					start := time.Now()
					a := r.chat(extra)
					r.soon("the client was told", start)
					if a.status != 502 || a.code() != "upstream_failed" || !strings.Contains(a.body, tc.reason) || len(a.body) > 8<<10 {
						t.Errorf("got %d %.500s %v", a.status, a.body, a.err)
					}
					r.settled()
					r.charged(answering)
				})
			}
		}
	}
}

// The same from prefill, of which the client sees no byte: its failure is the
// pair's.
func TestMisbehavingPrefill(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		status int
		reason string
	}{
		{"garbage", sim.Fault{Kind: sim.Garbage}, 502, "not valid HTTP"},
		{"truncated", sim.Fault{Kind: sim.Truncated}, 502, "before its answer was whole"},
		{"endless chunk line", sim.Fault{Kind: sim.ChunkLine}, 502, ""},
		{"error object in a 200", sim.Fault{Kind: sim.ErrorInside200}, 502, "simulated engine failure"},
		{"error object in a 200, byte by byte", sim.Fault{Kind: sim.ErrorInside200, WriteSize: 1}, 502, "simulated engine failure"},
		{"error event", sim.Fault{Kind: sim.ErrorEvent, WriteSize: 1}, 500, "simulated engine failure"},
		{"status 204", sim.Fault{Status: 204}, 502, "status 204"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			both(t, func(t *testing.T, extra string) {
				r := newRig(t, pd(rigOptions{breaker: firstFault}))
				r.sim.Prefill(0).SetFault(tc.fault)
				start := time.Now()
				a := r.chat(extra)
				r.soon("the client was told", start)
				if a.status != tc.status || !strings.Contains(a.body, tc.reason) || len(a.body) > 8<<10 {
					t.Errorf("got %d %.500s %v", a.status, a.body, a.err)
				}
				r.settled()
				r.charged(r.sim.Prefill(0))
			})
		})
	}
}

// What passes a limit of the router's own is nobody's fault, and is not tried again:
// a client's error that repeats its prompt of a megabyte closed the fleet.
func TestLimitsOfTheRouterChargeNobody(t *testing.T) {
	t.Parallel()
	long := `{"error":{"message":"the prompt \u00e4 ` + strings.Repeat("is too long ", 200_000) + `"}}`
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		status int
		words  string
	}{
		{"head", sim.Fault{Kind: sim.HugeHeader}, 500, "over the bound of 65536 bytes"},
		{"error body", sim.Fault{Status: 500, BodySize: 5 << 20}, 500, "larger than the 1048576 bytes"},
		{"error body of an engine that is busy", sim.Fault{Status: 503, BodySize: 5 << 20}, 503, "larger than the 1048576 bytes"},
		{"client's error", sim.Fault{Status: 400, Body: long}, 400, "the prompt ä is too long"},
		{"client's error without JSON", sim.Fault{Status: 422, Body: strings.Repeat("no ", 500_000)}, 422, "no no no"},
	} {
		for on := range 2 {
			t.Run(tc.name+[]string{"/prefill", "/decode"}[on], func(t *testing.T) {
				both(t, func(t *testing.T, extra string) {
					r := newRig(t, pd(rigOptions{retries: 3, breaker: firstFault, sim: sim.Options{Prefill: 2, Decode: 2}}))
					for _, w := range r.sim.Workers()[2*on : 2*on+2] {
						w.SetFault(tc.fault)
					}
					a := r.chat(extra)
					if a.status != tc.status || !strings.Contains(a.body, tc.words) || len(a.body) > 8<<10 || a.code() == "upstream_failed" {
						t.Errorf("got %d %.500s %v", a.status, a.body, a.err)
					}
					r.settled()
					r.charged()
					if n := r.waitRecord(0).Attempts; n != 1 {
						t.Errorf("%d attempts", n)
					}
				})
			})
		}
	}
}

// A client's error is one however its body ends.
func TestBrokenErrorBodyKeepsItsStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 3, breaker: firstFault, sim: sim.Options{Regular: 2}})
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Status: 400, Body: `{"error":{"message":"bad prompt, and so on"}}`, Do: sim.Close, At: sim.AtInside})
	}
	if a := r.chat(""); a.status != 400 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.settled()
	r.charged()
}

// What is unusual but right passes.
func TestUnusualEnginesPass(t *testing.T) {
	t.Parallel()
	for _, kind := range []sim.Kind{sim.EOFDelimited, sim.Surplus, sim.Informational} {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault})
			r.sim.Regular(0).SetFault(sim.Fault{Kind: kind})
			for range 3 {
				if a := r.chat(extra); a.status != 200 || a.err != nil || !strings.Contains(a.body, " t1") || strings.Contains(a.body, "extra") {
					t.Errorf("%s: got %d %s %v", kind, a.status, a.body, a.err)
				}
			}
			r.settled()
			r.charged()
		})
	}
}

// An answer beyond what is collected passes all the same, and when it breaks off
// its client sees that.
func TestLargePlainAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{MaxBufferedAnswer: 4 << 10}}))
	d := r.sim.Decode(0)
	d.SetFault(sim.Fault{TokenSize: 1000})
	a := r.do(t.Context(), "/v1/chat/completions", bodyFor("", 3000, ""))
	if a.status != 200 || a.err != nil || len(a.body) < 3_000_000 || a.header.Get("Content-Length") != itoa(len(a.body)) {
		t.Errorf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
	}
	d.SetFault(sim.Fault{TokenSize: 1000, Do: sim.Reset, At: sim.AtInside})
	a = r.do(t.Context(), "/v1/chat/completions", bodyFor("", 3000, ""))
	if a.err == nil || strings.Contains(a.body, `"error"`) {
		t.Errorf("a broken answer looks whole: %d bytes", len(a.body))
	}
	r.settled()
	r.charged(d)
}
