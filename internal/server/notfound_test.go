package server

import (
	"strings"
	"testing"
)

// A path that is no route is told apart from one that no worker serves, with what
// was most likely meant.
func TestUnknownPathsSuggestARoute(t *testing.T) {
	r := start(t, nil)
	_, metricsPort, _ := strings.Cut(r.srv.MetricsAddr().String(), ":")
	const list = "; docs/http.md lists the routes"
	for path, want := range map[string]string{
		"/chat/completions":             `; did you mean "/v1/chat/completions"?`,
		"/v1/chat/completion":           `; did you mean "/v1/chat/completions"?`,
		"/v1/chat/completions/":         `; did you mean "/v1/chat/completions"?`,
		"/v1/v1/chat/completions":       `; did you mean "/v1/chat/completions"?`,
		"//v1//models":                  `; did you mean "/v1/models"?`,
		"/openai/v1/embeddings":         `; did you mean "/v1/embeddings"?`,
		"/V1/Models":                    `; did you mean "/v1/models"?`,
		"/messages":                     `; did you mean "/v1/messages"?`,
		"/chat/completion":              `; did you mean "/v1/chat/completions"?`,
		"/healthz":                      `; did you mean "/health"?`,
		"/worker":                       `; did you mean "/workers"?`,
		"/workers/":                     `; did you mean "/workers"?`,
		"/metrics":                      ` on this port; it is on port ` + metricsPort + ` (--prometheus-port)`,
		"/":                             list,
		"/favicon.ico":                  list,
		"/v1/files":                     ": sluice stores nothing; send the content itself in the request, or run a separate store for it",
		"/" + strings.Repeat("v1/", 60): list,
	} {
		for _, method := range []string{"GET", "POST"} {
			e := r.do(method, path, "").refused(t, 404, "route_not_found")
			if begin := "sluice has no route \"" + path[:min(len(path), 100)]; !strings.HasPrefix(e.Message, begin) || !strings.HasSuffix(e.Message, want) {
				t.Errorf("%s %s: %q, want …%q", method, path, e.Message, want)
			}
		}
	}
}
