package server

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// sdkCall is what an SDK sends for a method, and what its answer must have in it.
type sdkCall struct {
	body, stream string // members of a JSON body; stream: of a streamed one, "" if the method has none
	want, events string // in the answer, and in its events
}

const (
	sdkChat      = `"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":3`
	sdkResponses = `"model":"sim-model","input":"hi"`
)

// sdkCalls are the requests of the served methods, by the request that stands in the
// table of methods.
var sdkCalls = map[string]sdkCall{
	"POST /v1/chat/completions": {sdkChat + `,"logprobs":true,"top_logprobs":2`, `,"stream":true,"stream_options":{"include_usage":true}`,
		`"top_logprobs":[{"token":`, "data: [DONE]\n\n"},
	"POST /v1/completions":           {`"model":"sim-model","prompt":"hi","max_tokens":3,"logprobs":2`, `,"stream":true`, `"token_logprobs":[-0.5,-0.5,-0.5]`, "data: [DONE]\n\n"},
	"POST /v1/responses":             {sdkResponses, `,"stream":true`, `"output_text"`, "event: response.completed\n"},
	"POST /v1/responses?beta=true":   {sdkResponses, `,"stream":true`, `"output_text"`, "event: response.completed\n"},
	"POST /v1/messages":              {sdkChat, `,"stream":true`, `"stop_reason":"max_tokens"`, "event: message_stop\n"},
	"POST /v1/messages/count_tokens": {`"model":"sim-model","messages":[{"role":"user","content":"hi"}]`, "", `"input_tokens":`, ""},
	"POST /v1/embeddings":            {`"model":"sim-model","input":["hi","there"],"encoding_format":"base64"`, "", `"embedding":"`, ""},
	"POST /v1/audio/transcriptions":  {"", "", `"text":"heard sim-model"`, ""},
	"POST /v1/audio/translations":    {"", "", `"text":"heard sim-model"`, ""},
	"GET /v1/models":                 {"", "", `"id":"sim-model"`, ""},
	"GET /v1/models/{}":              {"", "", `"id":"sim-model"`, ""},

	"GET /v1/responses/{}":                   {"", "", `"id":"x1"`, ""},
	"POST /v1/responses/{}/cancel":           {"", "", `"id":"x1"`, ""},
	"GET /v1/responses/{}?beta=true":         {"", "", `"id":"x1"`, ""},
	"POST /v1/responses/{}/cancel?beta=true": {"", "", `"id":"x1"`, ""},
}

// keeps answers for what the simulator has not: uploads and stored responses.
func keeps(_ *sim.Worker, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v1/audio/"):
			if err := r.ParseMultipartForm(1 << 20); err != nil {
				http.Error(w, err.Error(), 400)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"text":"heard `+r.FormValue("model")+`"}`)
		case strings.HasPrefix(r.URL.Path, "/v1/responses/"):
			id, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"`+id+`","object":"response"}`)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Every method that the documentation calls served is, over each kind of engine,
// streamed and not, as the SDKs send it.
func TestMethodsThatAreServed(t *testing.T) {
	for name, change := range map[string]func(*setup){
		"whole requests on SGLang": func(s *setup) { s.sim.Regular = 1 },
		"whole requests on vLLM":   func(s *setup) { s.sim.Regular = 1; s.sim.Worker.Backend = sim.VLLM },
		"pairs of SGLang":          func(s *setup) { s.sim.Worker.Responses = true },
		"pairs of vLLM":            func(s *setup) { s.sim.Worker.Backend = sim.VLLM },
	} {
		t.Run(name, func(t *testing.T) {
			pairs := strings.HasPrefix(name, "pairs")
			r := start(t, func(s *setup) {
				s.sim.Worker.Pooling, s.sim.Worker.Wrap = true, keeps
				change(s)
			})
			r.waitFor("the model", func() bool { return strings.Contains(r.do("GET", "/v1/models", "").body, "sim-model") })
			unused := map[string]bool{}
			for k := range sdkCalls {
				unused[k] = true
			}
			for _, m := range readSDKMethods() {
				if status, _ := r.srv.outcome(&m); status != 0 {
					continue
				}
				key := m.verb + " " + braces(m.path)
				c, ok := sdkCalls[key]
				if delete(unused, key); !ok {
					t.Errorf("%s %s is served and not driven here: %s", m.sdk, m.name, key)
					continue
				}
				headers := []string{"Authorization", "Bearer x", "X-Stainless-Lang", "python", "User-Agent", "OpenAI/Python"}
				if m.sdk == "anthropic" {
					headers = []string{"x-api-key", "x", "anthropic-version", "2023-06-01", "anthropic-beta", "x-2025-01-01"}
				}
				path := strings.ReplaceAll(m.example(), "/v1/models/x1", "/v1/models/sim-model")
				if strings.HasSuffix(m.path, "?beta=true") {
					path += "?beta=true"
				}
				body := ""
				switch {
				case strings.Contains(path, "/audio/"):
					var kind string
					kind, body = form(t, "sim-model")
					headers = append(headers, "Content-Type", kind)
				case c.body != "":
					body = "{" + c.body + "}"
					headers = append(headers, "Content-Type", "application/json")
				}
				a := r.do(m.verb, path, body, headers...)
				if pairs && strings.HasPrefix(path, "/v1/responses/") {
					a.refused(t, 404, "response_not_found")
					continue
				}
				if a.status != 200 || !strings.Contains(a.body, c.want) || !json.Valid([]byte(a.body)) {
					t.Errorf("%s %s: status %d, want %q in: %s", m.sdk, m.name, a.status, c.want, a.body)
				}
				if strings.HasSuffix(path, "/embeddings") {
					checkPacked(t, a.body)
				}
				if c.stream == "" {
					continue
				}
				a = r.do(m.verb, path, "{"+c.body+c.stream+"}", headers...)
				if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") || !strings.Contains(a.body, c.events) {
					t.Errorf("%s %s, streamed: status %d, want %q in: %s", m.sdk, m.name, a.status, c.events, a.body)
				}
				if path == "/v1/chat/completions" && strings.Count(a.body, `"logprobs":{"content":[{"token":`) != 3 {
					t.Errorf("%s %s, streamed: not the logprobs of three tokens: %s", m.sdk, m.name, a.body)
				}
			}
			if len(unused) > 0 {
				t.Errorf("no method sends %v", unused)
			}
		})
	}
}

// braces are the places for names in a path, without the names.
func braces(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if rest, ok := strings.CutPrefix(p, "{"); ok {
			_, after, _ := strings.Cut(rest, "}")
			parts[i] = "{}" + after
		}
	}
	return strings.Join(parts, "/")
}

// checkPacked checks that embeddings are 32-bit floats in base64, which SDKs ask for
// by themselves.
func checkPacked(t *testing.T, body string) {
	t.Helper()
	var e struct {
		Data []struct{ Embedding string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Data) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	if slices.ContainsFunc(e.Data, func(d struct{ Embedding string }) bool {
		raw, err := base64.StdEncoding.DecodeString(d.Embedding)
		return err != nil || len(raw) == 0 || len(raw)%4 != 0
	}) {
		t.Errorf("not packed: %s", body)
	}
}
