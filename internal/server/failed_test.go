package server

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// TestLogNamesWhoFailed keeps away a log that calls a request good, or names the worker
// that answered, while another fails everything that it gets; and a breaker that opens
// without a word of why.
func TestLogNamesWhoFailed(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode = 2, 1
		s.cfg.Retry.Disabled, s.cfg.Retry.MaxRetries, s.cfg.Retry.InitialBackoff = false, 5, time.Millisecond
		s.cfg.CircuitBreaker.FailureThreshold, s.cfg.CircuitBreaker.TimeoutDuration = 3, time.Hour
	})
	bad := r.sim.Prefill(0)
	bad.SetFault(sim.Fault{Path: "/v1/chat", Status: 500, Body: `{"object":"error","message":"CUDA error: out of luck","code":500}`})
	retried := ""
	for n := range 20 {
		id := "n" + strconv.Itoa(n)
		if a := r.do("POST", "/v1/chat/completions", chat, withID, id); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if field(r.line(id), "attempts") == "2" {
			retried = id
		}
	}
	if line := r.line(retried); !strings.Contains(line, ` failed="`+bad.URL()+` 500"`) || field(line, "status") != "200" || field(line, "attempts") != "2" {
		t.Errorf("who failed is not told in %s", line)
	}
	const cause = `"the prefill engine answered with status 500: CUDA error: out of luck"`
	var attempts, breaker string
	for _, l := range strings.Split(r.log.String(), "\n") {
		switch {
		case strings.Contains(l, `msg="attempt failed"`):
			attempts += l + "\n"
		case strings.Contains(l, `msg="circuit breaker changed state"`):
			breaker += l + "\n"
		}
	}
	for _, want := range []string{"level=DEBUG", "id=" + retried + " attempt=1 rank=" + bad.URL() + " ", "error=" + cause} {
		if !strings.Contains(attempts, want) {
			t.Errorf("no %s of a failed attempt in\n%s", want, attempts)
		}
	}
	if want := "rank=" + bad.URL() + " state=open failures=3 cause=" + cause; !strings.Contains(breaker, want) {
		t.Errorf("no %s in\n%s", want, breaker)
	}
	// Clients may see the fleet: not what an engine said of another client's request.
	doc := r.do("GET", "/workers", "").body
	if n := strings.Count(doc, `"breaker_reason":"the prefill engine answered with status 500"`); n != 1 || strings.Contains(doc, "CUDA") ||
		!strings.Contains(doc, `"last_failure":{"what":"the prefill engine answered with status 500","age_secs":`) {
		t.Errorf("%d breakers with their reason in %s", n, doc)
	}

	// Who failed is told of requests that nobody could serve too, and which leg it was.
	r.sim.Prefill(1).SetFault(sim.Fault{Path: "/v1/chat", Status: 500, Body: `{"detail":"no luck"}`})
	if a := r.do("POST", "/v1/chat/completions", chat, withID, "lost"); a.status != 500 {
		t.Fatalf("status %d", a.status)
	}
	if line := r.line("lost"); !strings.Contains(line, `error="the prefill engine answered with status 500: no luck"`) || !strings.Contains(line, r.sim.Prefill(1).URL()+" 500") {
		t.Errorf("which leg failed is not told in %s", line)
	}
}

// TestClientFaultsAreNotLoggedInTheEnginesWords: what an engine says of a bad request may
// repeat the prompt, and the worker has not failed.
func TestClientFaultsAreNotLoggedInTheEnginesWords(t *testing.T) {
	r := start(t, nil)
	r.sim.Decode(0).SetFault(sim.Fault{Path: "/v1/chat", Status: 400, Body: `{"error":{"message":"bad prompt: SECRET"}}`})
	if a := r.do("POST", "/v1/chat/completions", chat, withID, "fault"); a.status != 400 || !strings.Contains(a.body, "SECRET") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if line := r.line("fault"); !strings.Contains(line, `error="the decode engine answered with status 400"`) || strings.Contains(line, "failed=") || strings.Contains(r.log.String(), "SECRET") || strings.Contains(r.do("GET", "/workers", "").body, "last_failure") {
		t.Errorf("in the log: %s", line)
	}
}

// TestAccessLineOfAClientsFault: the line says what was wrong, and nothing of what the
// client sent.
func TestAccessLineOfAClientsFault(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.APIKeys = []config.Secret{"key"} })
	for id, c := range map[string]struct{ key, path, body, want string }{
		"json":  {"key", "/v1/chat/completions", `{"messages":"SECRET`, `error="the request body is not valid JSON: …"`},
		"type":  {"key", "/v1/chat/completions", `{"model":"sim-model","stream":"SECRET"}`, `error="stream is …; it must be true or false (param stream)"`},
		"model": {"key", "/v1/chat/completions", strings.Replace(chat, "sim-model", "other", 1), `error="the model … is not served here; GET /v1/models lists those that are (param model)"`},
		"key":   {"SECRET", "/v1/chat/completions", chat, `error="this route needs a client's API key (--api-key), and it is missing or wrong; send it as … or …"`},
		"route": {"key", "/v1/nowhere", `{"x":"SECRET"}`, `error="sluice has no route …; docs/http.md lists the routes"`},
		"block": {"key", "/v1/messages", `{"model":"sim-model","max_tokens":1,"messages":[{"role":"SECRET","content":"SECRET"}]}`, `(param messages[0].role)"`},
	} {
		r.do("POST", c.path, c.body, withID, id, "Authorization", "Bearer "+c.key)
		if line := r.line(id); !strings.Contains(line, c.want) || field(line, "level") != "INFO" {
			t.Errorf("no %s in %s", c.want, line)
		}
	}
	if strings.Contains(r.log.String(), "SECRET") {
		t.Error("what a client sent is in the log")
	}
}
