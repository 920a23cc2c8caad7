package dispatch

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	oneEvent  = `data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"}}]}` + "\n\n"
	usageLast = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":11,"total_tokens":18,"completion_tokens":7}}` + "\n\n"
	doneEvent = "data: [DONE]\n\n"
)

// sends checks that a scripted stream reaches the client byte for byte, whole
// and in pieces of one byte, from either mode, and returns the last record.
func sends(t *testing.T, pair bool, writeSize int, events ...string) (Record, *rig) {
	t.Helper()
	o := rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault}
	if pair {
		o = pd(rigOptions{breaker: firstFault})
	}
	r := newRig(t, o)
	answering := r.sim.Workers()[len(r.sim.Workers())-1]
	answering.SetFault(sim.Fault{Events: events, WriteSize: writeSize})
	a := r.chat(streamed)
	if want := strings.Join(events, ""); a.status != 200 || a.body != want || a.err != nil {
		t.Errorf("got %d %v\n%.2000q\nwant\n%.2000q", a.status, a.err, a.body, want)
	}
	r.settled()
	return r.waitRecord(0), r
}

// everyWay runs f for both modes, whole and one byte at a time.
func everyWay(t *testing.T, f func(t *testing.T, pair bool, writeSize int)) {
	for _, pair := range []bool{true, false} {
		for _, size := range []int{0, 1, 7} {
			t.Run(fmt.Sprintf("pair=%v/write=%d", pair, size), func(t *testing.T) {
				t.Parallel()
				f(t, pair, size)
			})
		}
	}
}

// An event with usage and no choices crashed the relay near the end.
func TestEmptyChoices(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, pair bool, size int) {
		for _, first := range []string{`{"choices":[]}`, `{}`, `{"choices":null}`} {
			rec, r := sends(t, pair, size, "data: "+first+"\n\n", oneEvent, usageLast, doneEvent)
			if rec.Usage.PromptTokens != 11 || rec.Usage.CompletionTokens != 7 || rec.Reason != reasonOK {
				t.Errorf("recorded %+v", rec)
			}
			r.charged()
			if n := r.counted("sluice_tokens_total", "kind", "completion"); n != 7 {
				t.Errorf("%v completion tokens counted", n)
			}
		}
	})
}

// Each read was parsed by itself, so that an event cut across reads lost its
// usage.
func TestUsageAcrossReads(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 13, 50} {
		t.Run(itoa(size), func(t *testing.T) {
			t.Parallel()
			rec, _ := sends(t, true, size, oneEvent, oneEvent, usageLast, doneEvent)
			if rec.Usage.PromptTokens != 11 || rec.Usage.CompletionTokens != 7 {
				t.Errorf("recorded %+v", rec.Usage)
			}
		})
	}
}

// A character of several bytes that was cut across reads turned into
// replacement characters.
func TestCharactersAcrossReads(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, pair bool, size int) {
		sends(t, pair, size,
			`data: {"choices":[{"delta":{"content":"你好，世界"}}]}`+"\n\n",
			`data: {"choices":[{"delta":{"content":"Привет 🚀👩‍👩‍👧"}}]}`+"\n\n",
			"data: {\"bad\":\"\xff\xfe\"}\n\n", doneEvent)
	})
}

// Odd but valid framing passes as it is.
func TestOddEventsPass(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, pair bool, size int) {
		sends(t, pair, size,
			"\n\n", "event: message\r\nid: 7\r\nretry: 10\r\ndata: {\"a\":1}\r\n\r\n",
			"data: one\ndata: two\ndata:\n\n", "data:{\"tight\":1}\n\n", ":\n\n", "data\n\n",
			"unknown: field\n\n", oneEvent, "data:[DONE]\n\n")
	})
}

// Large events pass whatever the size of buffers on the way.
func TestLargeEventsPass(t *testing.T) {
	t.Parallel()
	for _, pair := range []bool{true, false} {
		large := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 64<<10) + `"}}]}` + "\n\n"
		rec, _ := sends(t, pair, 0, large, large, oneEvent, strings.Repeat(large, 20), usageLast, doneEvent)
		if rec.Usage.CompletionTokens != 7 || rec.Bytes < 22*64<<10 {
			t.Errorf("recorded %+v", rec)
		}
	}
}

// Comments came out as data lines and broke the client's parser.
func TestCommentsStayComments(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, pair bool, size int) {
		sends(t, pair, size, ": processing\n\n", ": processing\n", ": again\n\n", oneEvent, ": processing\n\n", oneEvent, doneEvent)
	})
	t.Run("at once, and no first token", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{FirstToken: forever}}}}))
		r.sim.Decode(0).SetFault(sim.Fault{EarlyHeaders: true, KeepAlive: 5 * time.Millisecond, Comment: ": processing\n\n"})
		s := r.open("/v1/chat/completions", chatBody(streamed))
		for range 6 {
			if line, err := s.br.ReadString('\n'); err != nil || line != ": processing\n" && line != "\n" {
				t.Fatalf("%q, %v", line, err)
			}
		}
		s.leave()
		r.settled()
		if rec := r.waitRecord(0); rec.TTFT != 0 {
			t.Errorf("a comment counted as the first token: %+v", rec)
		}
	})
}

// The end marker was parsed as JSON, which gave an error for each good stream.
func TestEndMarkerIsNoError(t *testing.T) {
	t.Parallel()
	rec, r := sends(t, true, 0, oneEvent, usageLast, doneEvent)
	if rec.Reason != reasonOK || rec.Err != nil || rec.TTFT == 0 {
		t.Errorf("recorded %+v", rec)
	}
	if n := r.counted("sluice_requests_total", "status", "200", "reason", "ok"); n != 1 || r.counted("sluice_requests_total") != 1 {
		t.Errorf("counted %v as good", n)
	}
}

// A plain copy into the response writer collected some 4 KB, so that tokens came
// in lumps.
func TestEachEventAtOnce(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "application/x-ndjson"} {
		t.Run(contentType, func(t *testing.T) {
			steps := make(chan struct{})
			r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{
				Wrap: func(_ *sim.Worker, next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						if req.Method != http.MethodPost {
							next.ServeHTTP(w, req)
							return
						}
						w.Header().Set("Content-Type", contentType)
						for i := range 30 {
							fmt.Fprintf(w, "data: %d\n\n", i)
							_ = http.NewResponseController(w).Flush()
							<-steps
						}
						fmt.Fprint(w, doneEvent)
					})
				}}}})
			s := r.open("/v1/chat/completions", chatBody(streamed))
			for i := range 30 {
				if e := s.event(); e != fmt.Sprintf("data: %d\n\n", i) {
					t.Fatalf("event %d is %q", i, e)
				}
				steps <- struct{}{}
			}
			if _, err := s.rest(); err != nil || s.resp.Header.Get("Content-Type") != contentType {
				t.Errorf("%v %v", err, s.resp.Header)
			}
			r.settled()
		})
	}
}

// Answers lacked the headers that tell proxies in front not to collect them.
func TestStreamHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	a := r.chat(streamed)
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	r.sim.Decode(0).SetFault(sim.Fault{Header: http.Header{"Cache-Control": {"no-store"}, "X-Accel-Buffering": {"yes"}, "X-Engine": {"a"}}})
	a = r.chat(streamed)
	if h := a.header; h.Get("Cache-Control") != "no-store" || h.Get("X-Accel-Buffering") != "yes" || h.Get("X-Engine") != "a" {
		t.Errorf("the engine's own values are lost: %v", h)
	}
	r.sim.Decode(0).ClearFaults()
	if a := r.chat(""); a.header.Get("X-Accel-Buffering") != "" || a.header.Get("Cache-Control") != "" {
		t.Errorf("a plain answer has a stream's headers: %v", a.header)
	}
	r.settled()
}

// The upstream dropped in the middle and the client got a stream of status 200
// that just stopped, which many take for a whole answer.
func TestBrokenStreamIsSeenToBeBroken(t *testing.T) {
	t.Parallel()
	limits := upstream.Limits{StreamIdle: 150 * time.Millisecond}
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		reason string
	}{
		{"reset", sim.Fault{Do: sim.Reset, At: sim.AtEvent, After: 5}, reasonBrokenOff},
		{"close", sim.Fault{Do: sim.Close, At: sim.AtEvent, After: 5}, reasonBrokenOff},
		{"end without the marker", sim.Fault{Do: sim.End, At: sim.AtEvent, After: 5}, reasonBrokenOff},
		{"reset inside an event", sim.Fault{Do: sim.Reset, At: sim.AtInside, After: 5}, reasonBrokenOff},
		{"close inside an event", sim.Fault{Do: sim.Close, At: sim.AtInside, After: 5}, reasonBrokenOff},
		{"end inside an event", sim.Fault{Do: sim.End, At: sim.AtInside, After: 5}, reasonBrokenOff},
		{"silence", sim.Fault{Do: sim.Freeze, At: sim.AtEvent, After: 5}, reasonUpstreamTime},
		{"all but the marker", sim.Fault{Do: sim.End, At: sim.AtEnd}, reasonBrokenOff},
	} {
		for _, pair := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/pair=%v", tc.name, pair), func(t *testing.T) {
				t.Parallel()
				o := rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault, retries: 3}
				if pair {
					o = pd(rigOptions{breaker: firstFault, retries: 3})
				}
				o.config = func(c *config.Config) { setLimits(c, limits) }
				r := newRig(t, o)
				answering := r.sim.Workers()[len(r.sim.Workers())-1]
				answering.SetFault(tc.fault)
				s := r.open("/v1/chat/completions", bodyFor("", 20, streamed))
				all, err := s.rest()
				if err == nil || strings.Contains(all, "[DONE]") {
					t.Errorf("it looks whole: %v %q", err, all)
				}
				i := strings.LastIndex(all, `data: {"error":`)
				if i < 0 || !strings.HasSuffix(all[:i], "\n\n") || !strings.HasSuffix(all, "\n\n") || strings.Count(all, `{"error"`) != 1 {
					t.Errorf("no error event of its own at the end: %q", all)
				}
				if strings.Count(all, " t1\"") != 1 {
					t.Errorf("the first token is not there once: %q", all)
				}
				r.settled()
				if rec := r.waitRecord(0); rec.Reason != tc.reason || rec.Attempts != 1 || rec.Status != 200 {
					t.Errorf("recorded %+v", rec)
				}
				r.charged(answering)
			})
		}
	}
}

// Clients that stream got 200 and then a vague event for a request that could
// never be served.
func TestRealStatusBeforeTheStream(t *testing.T) {
	t.Parallel()
	t.Run("the engine's 400", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{retries: 3, breaker: firstFault}))
			r.sim.Decode(0).SetFault(sim.Fault{Status: 400, Body: tooLong})
			if a := r.chat(extra); a.status != 400 || a.body != tooLong {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.settled()
			r.charged()
		})
	})
	t.Run("nobody serves the model", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{}))
			a := r.do(t.Context(), "/v1/chat/completions", `{"model":"other","messages":[]`+extra+`}`)
			if a.status != 404 || a.code() != "model_not_found" {
				t.Errorf("got %d %s", a.status, a.body)
			}
		})
	})
	t.Run("an error as the first event", func(t *testing.T) {
		everyWay(t, func(t *testing.T, pair bool, size int) {
			const unwell = `{"error":{"message":"the engine is unwell","code":500}}`
			o := rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault}
			if pair {
				o = pd(rigOptions{breaker: firstFault})
			}
			r := newRig(t, o)
			answering := r.sim.Workers()[len(r.sim.Workers())-1]
			answering.SetFault(sim.Fault{Events: []string{"data: " + unwell + "\n\n", doneEvent}, WriteSize: size})
			if a := r.chat(streamed); a.status != 500 || a.body != unwell || a.err != nil {
				t.Errorf("got %d %v %s", a.status, a.err, a.body)
			}
			r.settled()
			if rec := r.waitRecord(0); rec.Reason != reasonEngineError || rec.Status != 500 || rec.Err == nil {
				t.Errorf("recorded %+v", rec)
			}
			r.charged(answering)
		})
	})
}

// A recovering middleware caught the abort of a broken stream and wrote a page of
// its own into it.
func TestNothingAfterTheCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, breaker: firstFault})
	r.sim.Regular(0).SetFault(sim.Fault{Do: sim.Reset, At: sim.AtEvent, After: 5})
	s := r.open("/v1/chat/completions", bodyFor("", 20, streamed))
	all, err := s.rest()
	events := strings.SplitAfter(all, "\n\n")
	if err == nil || len(events) != 7 || !strings.HasPrefix(events[5], `data: {"error":`) || events[6] != "" {
		t.Errorf("%v: %d events: %q", err, len(events)-1, all)
	}
	r.settled()
}

// Every failure after the first token was counted as internal, whatever its
// cause.
func TestCausesAfterTheFirstToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: time.Millisecond}}},
		config: func(c *config.Config) { c.Timeouts.StreamIdle = 150 * time.Millisecond }})
	w := r.sim.Regular(0)
	overload := `data: {"error":{"message":"overloaded","type":"overloaded_error","code":503}}` + "\n\n"
	w.SetFault(sim.Fault{Events: []string{oneEvent, oneEvent, oneEvent, overload, doneEvent}, EventDelay: 5 * time.Millisecond})
	if a := r.chat(streamed); a.err != nil || !strings.Contains(a.body, "overloaded") || strings.Contains(a.body, "[DONE]") {
		t.Errorf("%v %s", a.err, a.body)
	}
	w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtEvent, After: 3})
	r.chat(streamed)
	w.SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtEvent, After: 3})
	r.chat(streamed)
	w.ClearFaults()
	s := r.open("/v1/chat/completions", bodyFor("", 1_000_000, streamed))
	for range 3 {
		s.event()
	}
	s.leave()
	r.settled()
	for i, want := range []string{reasonEngineError, reasonBrokenOff, reasonUpstreamTime, reasonClientGone} {
		if rec := r.waitRecord(i); rec.Reason != want {
			t.Errorf("request %d is recorded as %q, want %q", i, rec.Reason, want)
		}
		if n := r.counted("sluice_requests_total", "reason", want); n != 1 {
			t.Errorf("%v counted as %s", n, want)
		}
	}
}

// A client that does not read is given up after the write timeout, and is no
// fault of the engine.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, config: func(c *config.Config) { c.Timeouts.ClientWrite = 200 * time.Millisecond }}))
	r.sim.Decode(0).SetFault(sim.Fault{TokenSize: 1 << 20})
	s := r.open("/v1/chat/completions", bodyFor("", 1000, streamed))
	r.waitRecord(0) // nothing is read meanwhile
	r.settled()
	if rec := r.waitRecord(0); rec.Reason != reasonClientGone {
		t.Errorf("recorded as %q: %v", rec.Reason, rec.Err)
	}
	r.aborted(r.sim.Decode(0), 1)
	r.charged()
	s.leave()
}

// Usage of plain answers is recorded too, however they come.
func TestPlainAnswersPass(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1} {
		for _, path := range routes {
			r := newRig(t, pd(rigOptions{}))
			r.sim.Decode(0).SetFault(sim.Fault{WriteSize: size, Tokens: []string{"你好", "\"quoted\"\n"}, Header: http.Header{"X-Engine": {"a"}}})
			a := r.do(t.Context(), path, bodyFor(path, 5, ""))
			if a.status != 200 || !strings.Contains(a.body, `你好\"quoted\"\n`) || a.header.Get("X-Engine") != "a" ||
				a.header.Get("Content-Length") != itoa(len(a.body)) || a.header.Get("Server") != "" {
				t.Errorf("%s: %d %s %v", path, a.status, a.body, a.header)
			}
			if rec := r.waitRecord(0); path != "/generate" && (rec.Usage.CompletionTokens != 2 || rec.Usage.PromptTokens == 0) {
				t.Errorf("%s: recorded %+v", path, rec)
			}
			r.settled()
		}
	}
}

// The end marker ends a stream for its client. What the engine's connection does
// behind it must not be told after it.
func TestNothingFollowsTheEndMarker(t *testing.T) {
	t.Parallel()
	for _, do := range []sim.Action{sim.Reset, sim.Close} {
		r := newRig(t, pd(rigOptions{}))
		events := []string{"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n", "data: [DONE]\n\n", ": more\n\n"}
		r.sim.Decode(0).SetFault(sim.Fault{Events: events, Do: do, At: sim.AtEvent, After: 2, EventDelay: 20 * time.Millisecond})
		a := r.chat(streamed)
		if a.status != 200 || a.err != nil || !strings.HasSuffix(a.body, "data: [DONE]\n\n") || strings.Contains(a.body, `"error"`) {
			t.Errorf("%s: %d %v %q", do, a.status, a.err, a.body)
		}
		r.idle()
	}
}

// A decode rank that is silent because its prefill hangs has done nothing wrong, in one
// pair or in those of several samples.
func TestHangingPrefillIsNotDecodesFault(t *testing.T) {
	t.Parallel()
	for _, extra := range []string{streamed, `,"n":2` + streamed, `,"n":2`} {
		r := newRig(t, pd(rigOptions{breaker: firstFault, config: func(c *config.Config) { c.Timeouts.FirstByte = 200 * time.Millisecond }}))
		r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtBody})
		if a := r.chat(extra); a.status != 504 {
			t.Errorf("%s: %d %s", extra, a.status, a.body)
		}
		r.charged()
	}
}
