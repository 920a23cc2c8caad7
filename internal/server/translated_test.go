package server

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// Tools that an SGLang pair cannot be told of are left out, visibly, or refused by
// option. vLLM's own routes are sent them.
func TestToolsThatAreLeftOutAreTold(t *testing.T) {
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
	r := start(t, func(s *setup) { s.dispatch.RefuseTools = true })
	for path, body := range bodies {
		if a := r.do("POST", path, body); a.status != 400 || !strings.Contains(a.body, "web_search") {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
}
