package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// decoding makes the decode worker of a pair of SGLang answer chat requests by answer,
// with breakers that open at the first failure and retries that would be seen.
func decoding(answer http.HandlerFunc) func(*setup) {
	return func(s *setup) {
		s.cfg.Retry = config.Retry{MaxRetries: 3, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond, BackoffMultiplier: 1}
		s.cfg.CircuitBreaker.FailureThreshold, s.cfg.CircuitBreaker.TimeoutDuration = 1, time.Hour
		s.sim.Worker.Wrap = func(w *sim.Worker, next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				switch {
				case req.URL.Path != "/v1/chat/completions":
					next.ServeHTTP(rw, req)
				case w.Role() == sim.Decode:
					answer(rw, req)
				default:
					_, _ = io.Copy(io.Discard, req.Body)
					rw.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(rw, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"length"}]}`)
				}
			})
		}
	}
}

// event writes one event of a chat stream and sends it; choice is what a choice has.
func event(w http.ResponseWriter, choice string) {
	_, _ = fmt.Fprintf(w, "data: {\"model\":\"m\",\"choices\":[{\"index\":0,%s}]}\n\n", choice)
	_ = http.NewResponseController(w).Flush()
}

// What the model said is no fault of the engine: one attempt, nobody is charged, and
// the outcome does not depend on whether it is streamed.
func TestModelOutputIsNotAnEngineFailure(t *testing.T) {
	call := func(index int, more string) string {
		return fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,%s}]}`, index, more)
	}
	for _, c := range []struct {
		name, whole string
		events      []string
		messages    string // how its answers end
		responses   string
	}{
		{"broken arguments", `"message":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"x\":"}}]},"finish_reason":"tool_calls"`,
			[]string{call(0, `"id":"c","function":{"name":"f","arguments":"{\"x\":"}`), `"delta":{},"finish_reason":"tool_calls"`}, "tool_use", "completed"},
		{"arguments cut by the limit", `"message":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"x\":"}}]},"finish_reason":"length"`,
			[]string{call(0, `"id":"c","function":{"name":"f","arguments":"{\"x\":"}`), `"delta":{},"finish_reason":"length"`}, "max_tokens", "incomplete"},
		{"no object", `"message":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"rm"}}]},"finish_reason":"tool_calls"`,
			[]string{call(0, `"id":"c","function":{"name":"f","arguments":"rm"}`), `"delta":{},"finish_reason":"tool_calls"`}, "tool_use", "completed"},
		{"calls in turns", `"message":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"d","function":{"name":"g","arguments":"{\"y\":2}"}}]},"finish_reason":"tool_calls"`,
			[]string{`"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"x\":"}},{"index":1,"id":"d","function":{"name":"g","arguments":"{\"y\":"}}]}`,
				`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"index":1,"function":{"arguments":"2}"}}]}`, `"delta":{},"finish_reason":"tool_calls"`}, "tool_use", "completed"},
		{"no name", `"message":{"tool_calls":[{"id":"c","function":{"arguments":"{}"}}]},"finish_reason":"tool_calls"`,
			[]string{call(0, `"id":"c","function":{"arguments":"{}"}`), `"delta":{},"finish_reason":"tool_calls"`}, "tool_use", "completed"},
		{"an unknown finish", `"message":{"content":"a"},"finish_reason":"eureka"`,
			[]string{`"delta":{"content":"a"}`, `"delta":{},"finish_reason":"eureka"`}, "end_turn", "completed"},
		{"a finish that is an object", `"message":{"content":"a"},"finish_reason":{"type":"length","length":3}`,
			[]string{`"delta":{"content":"a"}`, `"delta":{},"finish_reason":{"type":"length","length":3}`}, "max_tokens", "incomplete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int32
			r := start(t, decoding(func(w http.ResponseWriter, req *http.Request) {
				asked.Add(1)
				b, _ := io.ReadAll(req.Body)
				if !strings.Contains(string(b), `"stream":true`) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{"model":"m","choices":[{"index":0,%s}]}`, c.whole)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				for _, e := range c.events {
					event(w, e)
				}
				_, _ = io.WriteString(w, "data:\n\ndata: [DONE]\n\n")
			}))
			for path, body := range map[string]string{"/v1/messages": messagesBody, "/v1/responses": responsesBody} {
				for _, body := range []string{body, streamed(body)} {
					a := r.do("POST", path, body)
					end := `"stop_reason":"` + c.messages + `"`
					if path == "/v1/responses" {
						end = `"status":"` + c.responses + `","error":null`
					}
					if a.status != 200 || !strings.Contains(a.body, end) || strings.Contains(a.body, "event: error") || strings.Contains(a.body, "response.failed") {
						t.Errorf("%s: status %d, want %s: %s", path, a.status, end, a.body)
					}
				}
			}
			if n := asked.Load(); n != 4 {
				t.Errorf("decode was asked %d times for 4 requests", n)
			}
		})
	}
}

// A bound of the router's own ends a request in one attempt, charged to nobody.
func TestTranslationLimitsOpenNoBreaker(t *testing.T) {
	var asked atomic.Int32
	r := start(t, decoding(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: "+strings.Repeat("x", 2<<20))
	}))
	for i, path := range []string{"/v1/messages", "/v1/responses", "/v1/messages"} {
		body := messagesBody
		if path == "/v1/responses" {
			body = responsesBody
		}
		a := r.do("POST", path, streamed(body))
		if a.status != 500 || a.header.Get("X-Smg-Error-Code") != "router_limit" || !strings.Contains(a.body, "1048576 bytes") || int(asked.Load()) != i+1 {
			t.Errorf("%s: status %d, asked %d times: %s", path, a.status, asked.Load(), a.body)
		}
	}
}

// What a translated stream keeps is memory like that of bodies: the arguments of a call
// until they have ended, and the output that the last event of a response repeats.
func TestMemoryOfTranslatedStreamsIsCounted(t *testing.T) {
	var asked atomic.Int32
	r := start(t, func(s *setup) {
		decoding(func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"x\":\""}}]}`)
			for range 40 {
				event(w, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"`+strings.Repeat("x", 100<<10)+`"}}]}`)
			}
			event(w, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"}"}}]},"finish_reason":"tool_calls"`)
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})(s)
		s.cfg.Server.MaxBufferedBytes = 2 << 20
	})
	for path, body := range map[string]string{"/v1/messages": messagesBody, "/v1/responses": responsesBody} {
		asked.Store(0)
		a := r.do("POST", path, streamed(body))
		if a.status != 200 || !strings.Contains(a.body, "--max-buffered-bytes") || strings.Contains(a.body, "message_stop") || strings.Contains(a.body, "response.completed") || asked.Load() != 1 {
			t.Errorf("%s: status %d, asked %d times: …%s", path, a.status, asked.Load(), a.body[max(0, len(a.body)-500):])
		}
		r.waitFor("the memory", func() bool { return r.metric("sluice_buffered_bytes") == 0 })
	}
}

// The client hears what the engine says at once, even what its API has no event for:
// nothing else comes from this engine until the client has heard it.
func TestEngineEventsReachTheClientAtOnce(t *testing.T) {
	for _, c := range []struct{ name, says, messages, responses string }{
		{"a comment before all", ": ping\n\n", "event: ping", ":"},
		{"a role with a call", "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
			"event: content_block_start", "event: response.output_item.added"},
		{"a role", "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", "event: message_start", "event: response.created"},
	} {
		for path, body := range map[string]string{"/v1/messages": messagesBody, "/v1/responses": responsesBody, "/v1/chat/completions": chat} {
			if path == "/v1/chat/completions" && c.name == "a role" {
				continue // engines send it before they have begun
			}
			t.Run(c.name+path, func(t *testing.T) {
				heard := make(chan struct{})
				r := start(t, decoding(func(w http.ResponseWriter, req *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, c.says)
					_ = http.NewResponseController(w).Flush()
					select {
					case <-heard:
					case <-req.Context().Done():
						return
					}
					event(w, `"delta":{"content":"a"},"finish_reason":"stop"`)
					_, _ = io.WriteString(w, "data: [DONE]\n\n")
				}))
				resp, err := http.Post(r.url+path, "application/json", strings.NewReader(streamed(body)))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }() // only read
				want := c.messages
				switch path {
				case "/v1/responses":
					want = c.responses
				case "/v1/chat/completions":
					want = strings.TrimRight(c.says, "\n")
				}
				in := bufio.NewReader(resp.Body)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						t.Fatalf("ended without %q: %v", want, err)
					}
					if strings.HasPrefix(line, want) {
						break
					}
				}
				close(heard)
				rest, err := io.ReadAll(in)
				if err != nil || !strings.Contains(string(rest), "message_stop") && !strings.Contains(string(rest), "response.completed") && !strings.Contains(string(rest), "[DONE]") {
					t.Errorf("%v: %s", err, rest)
				}
			})
		}
	}
}

// Tools that an SGLang pair cannot be told of are left out, visibly, or refused by
// option. vLLM's own routes are sent them.
func TestOmittedToolsAreReported(t *testing.T) {
	const tools = `,"tools":[{"type":"web_search","name":"w"},`
	bodies := map[string]string{
		"/v1/messages":  strings.TrimSuffix(messagesBody, "}") + tools + `{"name":"f","input_schema":{"type":"object"}}]}`,
		"/v1/responses": strings.TrimSuffix(responsesBody, "}") + tools + `{"type":"function","name":"f"}]}`,
	}
	const note = "tools left out: web_search (w)"
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		r := start(t, func(s *setup) { s.sim.Worker.Backend = backend })
		for path, body := range bodies {
			for _, body := range []string{body, streamed(body)} {
				a := r.do("POST", path, body)
				want := note
				if backend == sim.VLLM {
					want = ""
				}
				if a.status != 200 || a.header.Get("X-Sluice-Note") != want {
					t.Errorf("%s on %s: status %d, note %q: %s", path, backend, a.status, a.header.Get("X-Sluice-Note"), a.body)
				}
			}
		}
		r.waitFor("four access lines", func() bool { return strings.Count(r.log.String(), "msg=request") >= 4 })
		if got := strings.Contains(r.log.String(), note); got != (backend == sim.SGLang) {
			t.Errorf("%s: the access log has the note: %t", backend, got)
		}
	}
	r := start(t, func(s *setup) { s.cfg.Server.UntranslatableTools = "refuse" })
	for path, body := range bodies {
		if a := r.do("POST", path, body); a.status != 400 || !strings.Contains(a.body, "web_search") {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
}
