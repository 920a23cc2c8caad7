package server

import (
	"encoding/json"
	"strings"
	"testing"
)

// What is not served of the SDKs' methods is refused in the API's form, with the hint
// of the table; nothing of it reaches a worker.
func TestMethodsThatAreNotServed(t *testing.T) {
	r := start(t, nil)
	served := 0
	for _, m := range readSDKMethods() {
		status, hint := r.srv.outcome(&m)
		if status == 0 {
			served++
			continue
		}
		var headers []string
		if m.sdk == "anthropic" {
			headers = []string{"anthropic-version", "2023-06-01"}
		}
		a := r.do(m.verb, m.example(), "{}", headers...)
		var e struct {
			Type  string
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != status || e.Error.Type == "" || (e.Type == "error") != (m.sdk == "anthropic") {
			t.Errorf("%s %s: status %d, want %d: %v: %s", m.sdk, m.name, a.status, status, err, a.body)
		}
		if hint == "" || !strings.Contains(e.Error.Message, hint) {
			t.Errorf("%s %s: %q has not the hint %q", m.sdk, m.name, e.Error.Message, hint)
		}
	}
	if served < 25 {
		t.Errorf("%d methods are served", served)
	}
	for path, hint := range map[string]string{
		"/list_workers": "GET /workers", "/add_worker": "POST /workers", "/remove_worker": "DELETE /workers/{id}",
		"/v1/chat/completions/": `did you mean "/v1/chat/completions"?`, "/openai/v1/embeddings": `did you mean "/v1/embeddings"?`,
	} {
		if e := r.do("POST", path, "{}").refused(t, 404, "route_not_found"); !strings.Contains(e.Message, hint) {
			t.Errorf("%s: %s", path, e.Message)
		}
	}
	for _, path := range []string{"/get_model_info", "/get_server_info"} {
		r.do("GET", path, "").refused(t, 404, "route_not_found")
	}
}
