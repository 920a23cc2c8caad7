package dispatch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

const (
	token     = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n"
	abortLast = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n"
	abortJSON = `{"choices":[{"index":0,"message":{"content":"half"},"finish_reason":"stop"},{"index":1,"message":{},"finish_reason":"error"}]}`
)

// write answers with the pieces, each flushed.
func write(w http.ResponseWriter, contentType string, pieces ...string) {
	w.Header().Set("Content-Type", contentType)
	for _, p := range pieces {
		fmt.Fprint(w, p)
		_ = http.NewResponseController(w).Flush()
	}
}

// An engine that aborts a request says so in the finish reason of a 200. Before
// anything was sent it is a failure like any other; later the stream does not look
// well ended.
func TestAbortsInAnswers(t *testing.T) {
	t.Parallel()
	t.Run("nothing sent", func(t *testing.T) {
		for _, extra := range []string{"", streamed} {
			var calls atomic.Int32
			r := newRig(t, rigOptions{retries: 2, breaker: noBreaker, sim: sim.Options{Regular: 2, Worker: answering(
				func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
					if calls.Add(1) > 1 {
						return false
					}
					if extra == "" {
						write(w, "application/json", abortJSON)
					} else {
						write(w, typeEventStream, abortLast+doneEvent)
					}
					return true
				})}})
			if a := r.chat(extra); a.status != 200 || a.err != nil || strings.Contains(a.body, "abort") || strings.Contains(a.body, "half") {
				t.Errorf("%d %v %s", a.status, a.err, a.body)
			}
			if rec := r.waitRecord(0); rec.Attempts != 2 {
				t.Errorf("%d attempts", rec.Attempts)
			}
		}
	})
	t.Run("begun", func(t *testing.T) {
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				write(w, typeEventStream, token+token, token+abortLast+doneEvent)
				return true
			})}})
		a := r.chat(streamed)
		if a.status != 200 || a.err == nil || strings.Contains(a.body, "DONE") || strings.Contains(a.body, `"abort"`) ||
			strings.Count(a.body, `"content":"a"`) != 3 || !strings.Contains(a.body, `"error"`) {
			t.Errorf("%d %v %s", a.status, a.err, a.body)
		}
		if rec := r.waitRecord(0); rec.Reason != reasonEngineError || rec.Err == nil || rec.Usage.PromptTokens != 7 {
			t.Errorf("recorded %+v", rec)
		}
	})
	t.Run("a large answer", func(t *testing.T) {
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				write(w, "application/json", `{"choices":[{"index":0,"message":{"content":"`+strings.Repeat("x", 3<<20)+`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":8}}`)
				return true
			})}})
		if a := r.chat(""); a.status != 200 || a.err != nil {
			t.Errorf("%d %v", a.status, a.err)
		}
		if rec := r.waitRecord(0); rec.Usage.PromptTokens != 7 || rec.Usage.CompletionTokens != 8 {
			t.Errorf("recorded %+v", rec.Usage)
		}
	})
}

// Decode would go on with KV cache that is not there.
func TestPrefillThatAnswersWithAnAbort(t *testing.T) {
	t.Parallel()
	const meta = `{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"prompt is too long","status_code":400}}}`
	for name, c := range map[string]struct {
		path, body, contentType, answer string
		status                          int
	}{
		"generate": {"/generate", `{"text":"x","sampling_params":{"max_new_tokens":5}}`, "application/json", meta, 400},
		"far behind": {"/generate", `{"text":"x","sampling_params":{"max_new_tokens":5}}`, "application/json",
			`{"output_ids":[` + strings.Repeat("1,", 10_000) + `1],` + meta[1:len(meta)-2] + `,"x":[` + strings.Repeat("1,", 10_000) + `1]}}`, 400},
		"of a list": {"/generate", `{"text":["x","y"],"sampling_params":{"max_new_tokens":5}}`, "application/json",
			`[{"text":"` + strings.Repeat("x", 10_000) + `","meta_info":{"finish_reason":{"type":"stop"}}},` + meta + `]`, 400},
		"generate sse":  {"/generate", `{"text":"x","stream":true}`, typeEventStream, "data: " + meta + "\n\n" + doneEvent, 400},
		"chat":          {"/v1/chat/completions", chatBody(""), "application/json", abortJSON, 500},
		"chat streamed": {"/v1/chat/completions", chatBody(streamed), typeEventStream, abortLast + doneEvent, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Prefill answers when decode has begun: before that its leg need not be sent at all.
			begun, closed := make(chan struct{}), make(chan struct{})
			r := newRig(t, pd(rigOptions{breaker: noBreaker, sim: sim.Options{Worker: answering(
				func(worker *sim.Worker, w http.ResponseWriter, req *http.Request) bool {
					if worker.Role() == sim.Prefill {
						<-begun
						write(w, c.contentType, c.answer)
					} else {
						close(begun)
						_, _ = io.Copy(io.Discard, req.Body) // only then a server sees its client leave
						<-req.Context().Done()
						close(closed)
					}
					return true
				})}}))
			a := r.do(context.Background(), c.path, c.body)
			if a.status != c.status || c.status == 400 && !strings.Contains(a.body, "prompt is too long") {
				t.Errorf("%d %v %s", a.status, a.err, a.body)
			}
			<-closed
		})
	}
}

// An answer without a length that just stops looks like an end.
func TestAnswersWithoutALength(t *testing.T) {
	t.Parallel()
	for whole, end := range map[bool]string{true: `"}}]}`, false: ""} {
		r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Transfer-Encoding", "identity") // ends with its connection
				write(w, "application/json", `{"choices":[{"index":0,"message":{"content":"a`+end)
				return true
			})}})
		a := r.chat("")
		rec := r.waitRecord(0)
		if whole && (a.status != 200 || a.err != nil) || !whole && (a.status != 502 || rec.Reason != reasonBrokenOff) {
			t.Errorf("whole %v: %d %v %s, %s", whole, a.status, a.err, a.body, rec.Reason)
		}
	}
}

// The end marker as the last bytes of a stream is its end, without an empty line too.
func TestEndMarkerWithoutAnEmptyLine(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"data: [DONE]", "data: [DONE]\n"} {
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				write(w, typeEventStream, token, last)
				return true
			})}})
		a := r.chat(streamed)
		if a.err != nil || a.body != token+doneEvent {
			t.Errorf("%v %q", a.err, a.body)
		}
		if rec := r.waitRecord(0); rec.Reason != reasonOK {
			t.Errorf("%s %v", rec.Reason, rec.Err)
		}
	}
}

// A vLLM prefill leg neither fails on a forced tool call, nor does a decode leg with
// fetched KV cache get asked for log probabilities of the prompt.
func TestVLLMLegsAreNotAskedForTheImpossible(t *testing.T) {
	t.Parallel()
	var prefills, bad atomic.Int32
	o := answering(func(worker *sim.Worker, w http.ResponseWriter, req *http.Request) bool {
		body, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		b := string(body)
		if worker.Role() == sim.Prefill {
			prefills.Add(1)
			if strings.Contains(b, `"required"`) {
				http.Error(w, `{"error":{"message":"cannot parse"}}`, 400)
				return true
			}
		} else if strings.Contains(b, "prompt_logprobs") && strings.Contains(b, "kv_transfer_params") {
			bad.Add(1)
		}
		return false
	})
	o.Backend = sim.VLLM
	r := newRig(t, pd(rigOptions{sim: sim.Options{Worker: o}}))
	for _, extra := range []string{"", streamed} {
		if a := r.chat(extra + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`); a.status != 200 || a.err != nil {
			t.Errorf("%d %v %s", a.status, a.err, a.body)
		}
	}
	before := prefills.Load()
	if a := r.chat(`,"prompt_logprobs":1`); a.status != 200 || a.err != nil {
		t.Errorf("%d %v %s", a.status, a.err, a.body)
	}
	if bad.Load() != 0 || before < 2 || prefills.Load() != before {
		t.Errorf("%d prefill legs before and %d after, %d bad decode legs", before, prefills.Load(), bad.Load())
	}
}

// An engine that still has the attempt before refuses a second request of its id.
func TestRIDIsMarkedInFurtherAttempts(t *testing.T) {
	t.Parallel()
	for rid, want := range map[string]string{`"c"`: `"rid":"r1-c"`, `["a","b"]`: `"rid":["r1-a","r1-b"]`} {
		var first, calls atomic.Int32
		var second atomic.Value
		r := newRig(t, rigOptions{retries: 1, breaker: noBreaker, sim: sim.Options{Regular: 2, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, req *http.Request) bool {
				body, _ := io.ReadAll(req.Body)
				if strings.Contains(string(body), `"rid":`+rid) {
					first.Add(1)
				}
				if calls.Add(1) == 1 {
					http.Error(w, "{}", http.StatusServiceUnavailable)
					return true
				}
				second.Store(string(body))
				write(w, "application/json", `{"choices":[]}`)
				return true
			})}})
		if a := r.chat(`,"rid":` + rid); a.status != 200 {
			t.Errorf("%d %v %s", a.status, a.err, a.body)
		}
		if got, _ := second.Load().(string); first.Load() != 1 || !strings.Contains(got, want) {
			t.Errorf("%d first, then %s", first.Load(), got)
		}
	}
}

// A rank that gives up every request, in the middle of its answer or before, is out
// after the threshold; requests that are given up everywhere put nobody out.
func TestAbortsCountAsCuts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, last string }{
		"abort after content":     {token, abortLast + doneEvent},
		"error 503 after content": {token, `data: {"error":{"message":"no","code":503}}` + "\n\n" + doneEvent},
		"abort before content":    {"", abortLast + doneEvent},
	} {
		for _, all := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/everywhere=%t", name, all), func(t *testing.T) {
				t.Parallel()
				heard := make(chan struct{})
				r := newRig(t, rigOptions{retries: 1, breaker: config.CircuitBreaker{FailureThreshold: 4}, health: rarely, sim: sim.Options{Regular: 2, Worker: answering(
					func(worker *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
						if !all && worker.ID() != "regular-0" {
							write(w, typeEventStream, token, doneEvent)
							return true
						}
						if c.first != "" {
							write(w, typeEventStream, c.first)
							<-heard
						}
						write(w, typeEventStream, c.last)
						return true
					})}})
				for range 20 {
					s := r.open("/v1/chat/completions", chatBody(streamed))
					s.event()
					select {
					case heard <- struct{}{}:
						_, _ = s.rest() // cut
						<-r.ended
					case <-r.ended: // the other's, or one that was refused
					}
				}
				r.settled()
				if all {
					r.charged()
				} else {
					r.charged(r.sim.Regular(0))
				}
			})
		}
	}
}

// The log says what the engine said, cut short, unless it may be the client's own words.
func TestAbortsAreLoggedWithTheirReason(t *testing.T) {
	t.Parallel()
	for _, status := range []int{503, 400} {
		r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1}})
		r.sim.Regular(0).SetFault(sim.Fault{Events: []string{token, fmt.Sprintf(
			`data: {"choices":[{"index":0,"delta":{},"finish_reason":{"type":"abort","message":"out of luck%s","status_code":%d}}]}`+"\n\n", strings.Repeat("é", 1000), status)}})
		r.chat(streamed)
		rec := r.waitRecord(0)
		if text := rec.Err.Error(); rec.Reason != reasonEngineError || strings.Contains(text, "out of luck") != (status == 503) ||
			!strings.Contains(text, fmt.Sprint(status)) || len(text) > 400 || !utf8.ValidString(text) {
			t.Errorf("%s: %s", rec.Reason, text)
		}
	}
}

// What nobody reads is bounded too.
func TestPrefillAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, retries: 2, bounds: Options{MaxLogprobBody: 1 << 20}, sim: sim.Options{Worker: answering(
		func(worker *sim.Worker, w http.ResponseWriter, req *http.Request) bool {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", typeJSON)
			for worker.Role() == sim.Prefill {
				if _, err := io.WriteString(w, `{"a":[`+strings.Repeat("1,", 1000)); err != nil {
					return true
				}
			}
			<-req.Context().Done()
			return true
		})}}))
	a := r.chat("")
	if rec := r.waitRecord(0); a.status != 500 || a.code() != "router_limit" || rec.Attempts != 1 {
		t.Errorf("%d %v %s, %d attempts", a.status, a.err, a.body, rec.Attempts)
	}
	r.charged()
}

// An abort in the beginning of an answer that is too large to be collected is seen too.
func TestAbortInALargeAnswer(t *testing.T) {
	t.Parallel()
	large := `{"text":"` + strings.Repeat("x", 2<<20) + `"}`
	for _, c := range []struct{ body, path string }{
		{`{"choices":[{"index":0,"finish_reason" : "abort"},` + large + `]}`, "/v1/chat/completions"},
		{`[{"text":"","meta_info":{"finish_reason":{"message":"no","type":"abort"}}},` + large + `]`, "/generate"},
	} {
		r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1}})
		r.sim.Regular(0).SetFault(sim.Fault{Path: c.path, Status: 200, Body: c.body, ContentType: typeJSON})
		if a := r.do(t.Context(), c.path, bodyFor(c.path, 5, "")); a.status != 503 {
			t.Errorf("%s: %d %v, %d bytes", c.path, a.status, a.err, len(a.body))
		}
	}
}
