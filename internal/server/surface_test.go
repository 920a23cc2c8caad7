package server

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

const (
	messagesBody  = `{"model":"sim-model","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`
	responsesBody = `{"model":"sim-model","max_output_tokens":3,"input":"hello"}`
)

func streamed(body string) string { return body[:len(body)-1] + `,"stream":true}` }

// answerText is what an answer of any of the three APIs says.
func answerText(t *testing.T, body string) string {
	t.Helper()
	var a struct {
		Choices []struct{ Message struct{ Content string } }
		Content []struct{ Text string }
		Output  []struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	switch {
	case len(a.Choices) > 0:
		return a.Choices[0].Message.Content
	case len(a.Content) > 0:
		return a.Content[0].Text
	case len(a.Output) > 0 && len(a.Output[0].Content) > 0:
		return a.Output[0].Content[0].Text
	}
	t.Fatalf("no text: %s", body)
	return ""
}

// streamText is what a stream of events says in its deltas.
func streamText(body string) string {
	var all strings.Builder
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		var e struct {
			Type  string
			Delta json.RawMessage
		}
		if !ok || json.Unmarshal([]byte(data), &e) != nil {
			continue
		}
		var s string
		var o struct{ Text string }
		switch e.Type {
		case "response.output_text.delta":
			_ = json.Unmarshal(e.Delta, &s)
		case "content_block_delta":
			_ = json.Unmarshal(e.Delta, &o)
		}
		all.WriteString(s + o.Text)
	}
	return all.String()
}

// The room by which prefill and decode meet was put into the bodies of chat and
// completions only: messages went through bare and were refused.
func TestMessagesAndResponsesRunInPairs(t *testing.T) {
	r := start(t, nil)
	want := answerText(t, r.do("POST", "/v1/chat/completions", chat).body)
	for path, body := range map[string]string{"/v1/messages": messagesBody, "/v1/messages?beta=true": messagesBody, "/v1/responses": responsesBody} {
		a := r.do("POST", path, body)
		if a.status != 200 || answerText(t, a.body) != want || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: status %d, %v: %s; want the text %q", path, a.status, a.header, a.body, want)
		}
		s := r.do("POST", path, streamed(body))
		end := "event: message_stop\n"
		if strings.Contains(path, "responses") {
			end = "event: response.completed\n"
			if strings.Contains(s.body, "event: response.incomplete\n") { // it ended for its length
				end = "event: response.incomplete\n"
			}
		}
		if s.status != 200 || streamText(s.body) != want || strings.Contains(s.body, "[DONE]") || !strings.Contains(s.body[strings.LastIndex(s.body, "event: "):], end) {
			t.Errorf("%s: status %d: %s; want the text %q", path, s.status, s.body, want)
		}
	}
	rooms := map[string]bool{}
	for _, q := range r.sim.Prefill(0).Requests() {
		var b struct {
			Room json.Number `json:"bootstrap_room"`
		}
		if err := json.Unmarshal(q.Body, &b); err != nil || q.Path != "/v1/chat/completions" || b.Room == "" || rooms[b.Room.String()] {
			t.Errorf("prefill was asked %s: %v %s", q.Path, err, q.Body)
		}
		rooms[b.Room.String()] = true
	}
	if got := r.metric(`sluice_requests_total{reason="ok",route="messages",status="200"}`); got != 4 {
		t.Errorf("%v messages requests are counted, want 4", got)
	}
}

// vLLM's pairs serve both APIs themselves: what cannot be translated for SGLang's
// goes to them only.
func TestMixedFleetServesBothAPIs(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode = 2, 2
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) {
			if i == 0 {
				o.Backend = sim.VLLM
			}
		}
	})
	for _, body := range []string{messagesBody, responsesBody} {
		path := "/v1/messages"
		if body == responsesBody {
			path = "/v1/responses"
		}
		for range 4 {
			if a := r.do("POST", path, body); a.status != 200 || answerText(t, a.body) == "" {
				t.Errorf("%s: status %d: %s", path, a.status, a.body)
			}
			if a := r.do("POST", path, streamed(body)); a.status != 200 || streamText(a.body) == "" || strings.Contains(a.body, "[DONE]") {
				t.Errorf("%s: status %d: %s", path, a.status, a.body)
			}
		}
	}
	if n := len(r.sim.Prefill(1).Requests()); n != 8 {
		t.Errorf("SGLang's prefill worker had %d of 16 requests, want half", n)
	}
	for range 4 {
		a := r.do("POST", "/v1/responses", responsesBody[:len(responsesBody)-1]+`,"truncation":"auto"}`)
		if a.status != 200 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if n := len(r.sim.Prefill(1).Requests()); n != 8 {
		t.Errorf("SGLang's prefill worker had %d requests that it cannot serve", n-8)
	}
}

// A request that SGLang's pair failed moves to vLLM's as the client sent it, not as
// it was translated for the first.
func TestRetryAtTheOtherEngineIsUntranslated(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode = 2, 2
		s.cfg.Retry = config.Retry{MaxRetries: 3, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond, BackoffMultiplier: 1}
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) {
			if i == 0 {
				o.Backend = sim.VLLM
			}
		}
	})
	r.sim.Prefill(1).SetFault(sim.Fault{Status: 503})
	for range 4 {
		for path, body := range map[string]string{"/v1/messages": messagesBody, "/v1/responses": responsesBody} {
			if a := r.do("POST", path, body); a.status != 200 || answerText(t, a.body) == "" {
				t.Errorf("%s: status %d: %s", path, a.status, a.body)
			}
		}
	}
	if len(r.sim.Prefill(1).Requests()) == 0 {
		t.Error("no request began at SGLang's pair")
	}
	for _, q := range r.sim.Prefill(0).Requests() {
		if strings.HasPrefix(q.Path, "/v1/chat") {
			t.Errorf("vLLM was asked %s: %s", q.Path, q.Body)
		}
	}
}

// What cannot be said to the engine is refused before it waits or anybody is asked,
// in the API's own form.
func TestUntranslatableIsRefusedAtOnce(t *testing.T) {
	r := start(t, nil)
	for _, tc := range []struct{ path, body, says string }{
		{"/v1/messages", `{"model":"sim-model","max_tokens":3,"messages":[{"role":"user","content":[{"type":"container_upload","file_id":"f"}]}]}`, "container_upload"},
		{"/v1/messages", `{"model":"sim-model","messages":[{"role":"user","content":"hi"}]}`, "max_tokens"},
		{"/v1/responses", `{"model":"sim-model","input":"hi","previous_response_id":"resp_1"}`, "previous_response_id"},
		{"/v1/responses", `{"model":"sim-model","input":"hi","background":true}`, "background"},
		{"/v1/responses", `{"model":"sim-model","input":"hi","tools":[{"type":"web_search"}],"tool_choice":"required"}`, "web_search"},
	} {
		a := r.do("POST", tc.path, tc.body)
		if a.status != 400 || !strings.Contains(a.body, tc.says) {
			t.Errorf("%s: status %d: %s", tc.body, a.status, a.body)
		}
		if tc.path == "/v1/messages" && !strings.HasPrefix(a.body, `{"type":"error","error":{"type":"invalid_request_error",`) {
			t.Errorf("not in the form of the Messages API: %s", a.body)
		}
	}
	for path, method := range map[string]string{"/v1/responses/resp_1": "GET", "/v1/responses/resp_1/cancel": "POST"} {
		r.do(method, path, "").refused(t, 404, "response_not_found")
	}
	if n := len(r.sim.Prefill(0).Requests()) + len(r.sim.Decode(0).Requests()); n != 0 {
		t.Errorf("engines were asked %d times", n)
	}
}

// Anthropic's SDK has its tool runner begin a thread unasked and then send the last turn
// alone; no engine knows the field, so that the model was shown results of tools and
// nothing else. With this error the SDK goes on without a thread.
func TestUnknownConversationsAreRefusedInEveryMode(t *testing.T) {
	for name, change := range map[string]func(*setup){"pairs": nil, "aggregated": func(s *setup) { s.sim.Regular = 1 }} {
		t.Run(name, func(t *testing.T) {
			r := start(t, change)
			for thread, status := range map[string]int{`{"type":"create"}`: 400, `{"type":"continue","previous_message_id":"msg_1"}`: 400, `null`: 200} {
				a := r.do("POST", "/v1/messages?beta=true", `{"model":"sim-model","max_tokens":3,"messages":[{"role":"user","content":"hi"}],"thread":`+thread+`}`)
				if a.status != status || status == 400 && !strings.Contains(a.body, `"details":{"error_code":"thread_unsupported_request"}`) {
					t.Errorf("%s: status %d: %s", thread, a.status, a.body)
				}
			}
			for conversation, status := range map[string]int{`"conv_1"`: 400, `{"id":"conv_1"}`: 400, `null`: 200} {
				a := r.do("POST", "/v1/responses", `{"model":"sim-model","max_output_tokens":3,"input":"hi","conversation":`+conversation+`}`)
				if a.status != status || status == 400 && !strings.Contains(a.body, `"param":"conversation"`) {
					t.Errorf("%s: status %d: %s", conversation, a.status, a.body)
				}
			}
		})
	}
}

// Errors of the router and of engines have the form of the API that was asked, or
// its SDK raises none of its own exceptions.
func TestErrorsHaveTheFormOfTheAPI(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.APIKeys = []config.Secret{"k"} })
	anthropic := func(a answer, status int, kind string) {
		t.Helper()
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != status || e.Type != "error" || e.Error.Type != kind || e.Error.Message == "" {
			t.Errorf("status %d, want %d %s: %s", a.status, status, kind, a.body)
		}
	}
	anthropic(r.do("POST", "/v1/messages", messagesBody), 401, "authentication_error")
	anthropic(r.do("POST", "/v1/messages", messagesBody, "X-Api-Key", "other"), 401, "authentication_error")
	anthropic(r.do("POST", "/v1/messages/count_tokens", messagesBody), 401, "authentication_error")
	if a := r.do("POST", "/v1/messages", messagesBody, "X-Api-Key", "k"); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	key := []string{"Authorization", "Bearer k"}
	anthropic(r.do("POST", "/v1/messages", strings.Replace(messagesBody, "sim-model", "other", 1), key...), 404, "not_found_error")
	r.sim.Prefill(0).SetFault(sim.Fault{Status: 400, Body: `{"object":"error","message":"the prompt is too long","type":"BadRequestError","param":null,"code":400}`})
	a := r.do("POST", "/v1/messages", messagesBody, key...)
	anthropic(a, 400, "invalid_request_error")
	if !strings.Contains(a.body, "the prompt is too long") {
		t.Errorf("%s", a.body)
	}
	var nested struct{ Error struct{ Message string } }
	a = r.do("POST", "/v1/responses", responsesBody, key...)
	if err := json.Unmarshal([]byte(a.body), &nested); err != nil || a.status != 400 || nested.Error.Message != "the prompt is too long" {
		t.Errorf("status %d: %v: %s", a.status, err, a.body)
	}
}

// A stream that breaks after it has begun ends with the API's own error event, and
// ends whole: SDKs raise a cut rather than the failure that they were told.
func TestBrokenStreamsEndInTheFormOfTheAPI(t *testing.T) {
	for _, mode := range []string{"pd", "aggregated"} {
		t.Run(mode, func(t *testing.T) {
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
					s.sim.Worker.Wrap = breaking
				}
			})
			if mode == "pd" {
				r.sim.Decode(0).SetFault(sim.Fault{Do: "close", At: "event", After: 2})
			}
			for path, want := range map[string]string{"/v1/messages": "event: error\ndata: {\"type\":\"error\",", "/v1/responses": "event: "} {
				body := messagesBody
				if path == "/v1/responses" {
					body = responsesBody
				}
				a := r.do("POST", path, streamed(body)) // fails where the end is a cut
				got := a.body
				last := got[strings.LastIndex(got, "event: "):]
				if !strings.HasPrefix(last, want) || path == "/v1/responses" && !strings.HasPrefix(last, "event: response.failed\n") && !strings.HasPrefix(last, "event: error\ndata: {\"type\":\"error\",") {
					t.Errorf("%s ended with %q", path, last)
				}
			}
		})
	}
}

// breaking serves both APIs natively and breaks off after its first output.
func breaking(_ *sim.Worker, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
}

// A chat stream has no event for a failure that all clients know: the cut tells them.
func TestBrokenChatStreamsAreCut(t *testing.T) {
	r := start(t, nil)
	r.sim.Decode(0).SetFault(sim.Fault{Do: "close", At: "event", After: 2})
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(streamed(chat)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if got := string(b); err == nil || !strings.Contains(got[strings.LastIndex(got, "data: "):], `"error"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("%v: %q", err, got)
	}
}

// Handling of clients that leave was added to chat only: on other routes the engines
// went on for nobody.
func TestClientDisconnectsOnEveryStreamingRoute(t *testing.T) {
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) { leaveEverywhere(t, backend) })
	}
}

func leaveEverywhere(t *testing.T, backend sim.Backend) {
	r := start(t, func(s *setup) {
		s.sim.Worker.Timing, s.sim.Worker.Backend = endless, backend
	})
	for path, body := range map[string]string{
		"/v1/messages":  `{"model":"sim-model","max_tokens":1000000,"messages":[{"role":"user","content":"hello"}]}`,
		"/v1/responses": `{"model":"sim-model","max_output_tokens":1000000,"input":"hello"}`,
	} {
		for _, stream := range []bool{true, false} {
			if stream {
				body = streamed(body)
			} else {
				body = strings.Replace(body, `,"stream":true`, "", 1)
			}
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", r.url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if stream {
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "event: ") {
					t.Errorf("%s: %q %v", path, line, err)
				}
				leave()
				_ = resp.Body.Close() // it was left
			} else {
				left := make(chan struct{})
				go func() {
					defer close(left)
					if resp, err := http.DefaultClient.Do(req); err == nil {
						_ = resp.Body.Close() // the test fails below
					}
				}()
				if err := r.sim.Decode(0).WaitInflight(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				leave()
				<-left
			}
			r.nobodyWorks()
		}
	}
}

// The same on routes that pass: the engine sees its client leave.
func TestClientDisconnectsOnPassThroughRoutes(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			left := make(chan struct{}, 1)
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
				}
				s.sim.Worker.Wrap = func(_ *sim.Worker, next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path != "/v1/audio/transcriptions" {
							next.ServeHTTP(w, r)
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = io.WriteString(w, "data: {}\n\n")
						_ = http.NewResponseController(w).Flush()
						<-r.Context().Done()
						left <- struct{}{}
					})
				}
			})
			contentType, body := form(t, "sim-model")
			resp, err := http.Post(r.url+"/v1/audio/transcriptions", contentType, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "data: {}\n" {
				t.Errorf("%q %v", line, err)
			}
			_ = resp.Body.Close() // it is left
			select {
			case <-left:
			case <-time.After(patience):
				t.Error("the engine goes on for nobody")
			}
			r.nobodyWorks()
		})
	}
}

// nobodyWorks waits until no engine has a request and no rank is booked.
func (r *rig) nobodyWorks() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for _, w := range r.sim.Workers() {
		if err := w.WaitIdle(ctx); err != nil {
			r.t.Fatalf("%s is not idle: %v", w.ID(), err)
		}
	}
	r.waitFor("all holds to end", func() bool {
		for _, s := range r.gate.Stats().Ranks {
			if s.PrefillLegs+s.PendingDecode+s.ActiveDecode != 0 {
				return false
			}
		}
		return true
	})
}

// A silent stream of the Messages API is kept alive with its own ping event.
func TestMessagesStreamsArePinged(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Server.SSEKeepalive = 20 * time.Millisecond
		s.sim.Worker.Timing = endless
	})
	r.sim.Decode(0).SetFault(sim.Fault{EventDelay: time.Hour})
	for path, sign := range map[string]string{"/v1/messages": "event: ping\n", "/v1/responses": ": keep-alive\n"} {
		body := messagesBody
		if path == "/v1/responses" {
			body = responsesBody
		}
		resp, err := http.Post(r.url+path, "application/json", strings.NewReader(streamed(body)))
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(resp.Body)
		for seen := 0; seen < 3; {
			line, err := br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == sign {
				seen++
			}
		}
		_ = resp.Body.Close() // it is left
	}
	r.sim.Decode(0).ClearFaults()
	r.nobodyWorks()
}

// Fields by which engines hand KV cache over are none for clients: they would read
// what is another's, or have an engine connect to an address of their choice.
func TestTransferParamsOfClients(t *testing.T) {
	fields := []string{`"kv_transfer_params":{"do_remote_prefill":true}`, `"ec_transfer_params":{}`, `"bootstrap_room":7`, `"bootstrap_host":"h"`, `"bootstrap_port":1`, `"transfer_id":"x"`}
	for _, trusted := range []bool{false, true} {
		var seen []string
		r := start(t, func(s *setup) {
			s.sim.Regular = 1
			s.cfg.Server.TrustUpstream = trusted
			s.sim.Worker.Wrap = recording(&seen)
		})
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"} {
			for _, f := range fields {
				body := `{"model":"sim-model",` + f + `}`
				a := r.do("POST", path, body)
				if trusted {
					if a.status != 200 || seen[len(seen)-1] != "POST "+path+" "+body {
						t.Errorf("%s %s: status %d, the engine saw %v", path, body, a.status, seen)
					}
				} else if a.status != 400 || !strings.Contains(a.body, strings.Split(f, `"`)[1]) {
					t.Errorf("%s %s: status %d: %s", path, body, a.status, a.body)
				}
			}
		}
		if !trusted && len(seen) > 0 {
			t.Errorf("the engine saw %v", seen)
		}
	}
}
