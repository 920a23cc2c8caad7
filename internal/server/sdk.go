package server

import (
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
)

// sdkMethods are the methods of the resources of OpenAI's and Anthropic's SDKs for
// Python, a line each: SDK, method, and the first request that it sends. Those of
// the APIs for administrators stand together as "*".
//
//go:embed sdkmethods.txt
var sdkMethods string

// sdkMethod is one line of sdkMethods.
type sdkMethod struct {
	sdk, name  string
	verb, path string // with "{…}" in the place of names
}

func readSDKMethods() (all []sdkMethod) {
	for line := range strings.Lines(sdkMethods) {
		f := strings.Fields(line)
		if len(f) != 4 {
			panic("BUG: not a method of an SDK: " + line)
		}
		all = append(all, sdkMethod{f[0], f[1], f[2], f[3]})
	}
	return all
}

// example is the path with each placeholder replaced by a name.
func (m *sdkMethod) example() string {
	var b strings.Builder
	for rest := m.path; rest != ""; {
		before, after, ok := strings.Cut(rest, "{")
		b.WriteString(before)
		if !ok {
			break
		}
		b.WriteString("x1")
		_, rest, _ = strings.Cut(after, "}")
	}
	path, _, _ := strings.Cut(b.String(), "?")
	return path
}

// unsupportedPaths are the parts of APIs that sluice does not serve, by design, with hints
// on what to use instead.
var unsupportedPaths = []struct {
	prefixes []string
	hint     string
}{
	{[]string{"/v1/files", "/v1/uploads", "/v1/vector_stores", "/v1/containers", "/v1/skills", "/v1/memory_stores", "/v1/vaults", "/v1/conversations"},
		"sluice stores nothing; send the content itself in the request, or run a separate store for it"},
	{[]string{"/v1/batches", "/v1/messages/batches"},
		"there are no batches; send the requests one by one, in a class that may wait (docs/classes.md)"},
	{[]string{"/v1/assistants", "/v1/threads", "/v1/agents", "/v1/sessions", "/v1/environments", "/v1/chatkit", "/v1/deployments", "/v1/deployment_runs", "/v1/dreams", "/v1/tunnels"},
		"agents are run by the client; use /v1/responses, /v1/chat/completions or /v1/messages with the whole conversation"},
	{[]string{"/v1/responses/input_tokens"}, "count with /tokenize or /v1/messages/count_tokens"},
	{[]string{"/v1/responses"}, "of a stored response only GET /v1/responses/{id} and POST /v1/responses/{id}/cancel are served, in aggregated mode"},
	{[]string{"/v1/chat/completions"}, "chat completions are not stored"},
	{[]string{"/v1/models"}, "models are added and removed with the workers that serve them"},
	{[]string{"/v1/fine_tuning", "/v1/evals"}, "models are trained and evaluated elsewhere; load an adapter into the workers and name it as the model"},
	{[]string{"/v1/images", "/v1/videos", "/v1/moderations", "/v1/content_provenance_checks", "/v1/safety", "/v1/decisions",
		"/v1/audio/speech", "/v1/audio/voices", "/v1/audio/voice_consents"},
		"the engines behind sluice serve language models; send these to a server of their own"},
	{[]string{"/v1/realtime", "/v1/live"}, "there are no WebSockets or calls; use /v1/responses with \"stream\": true"},
	{[]string{"/v1/organization", "/v1/organizations", "/v1/projects", "/v1/compliance", "/v1/user_profiles"},
		"sluice manages no accounts, keys or usage; keys are set with --api-key, usage is on /metrics"},
	{[]string{"/v1/complete"}, "the Text Completions API has ended; use /v1/messages or /v1/completions"},
	// routes of other routers
	{[]string{"/list_workers", "/add_worker", "/remove_worker"},
		"use GET /workers, POST /workers with {\"url\": …}, and DELETE /workers/{id}"},
}

// unsupportedHint is the hint for a path that is known and not served, "" for others.
func unsupportedHint(path string) string {
	for _, n := range unsupportedPaths {
		for _, prefix := range n.prefixes {
			if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/' && len(rest) > 1) {
				return n.hint
			}
		}
	}
	return ""
}

// outcome returns the status with which an SDK's method is refused and why, or 0 if it is
// served.
func (s *Server) outcome(m *sdkMethod) (status int, note string) {
	path := m.example()
	rt := s.match(path)
	if rt == nil {
		return http.StatusNotFound, unsupportedHint(path)
	}
	if _, ok := rt.access[m.verb]; !ok {
		return http.StatusMethodNotAllowed, unsupportedHint(path)
	}
	switch {
	case rt.api == openai.RouteStoredResponse:
		return 0, "in aggregated mode, by the worker that stores the response; else 404 `response_not_found`"
	case rt.passthrough:
		return 0, "by workers that have the route"
	}
	return 0, ""
}

// WriteClients writes docs/clients.md: which methods of SDKs are served.
func WriteClients(w io.Writer) error {
	s := &Server{}
	s.routes = s.newRoutes()
	var b strings.Builder
	b.WriteString(clientsHead)
	type row struct{ sdk, resource, what, note string }
	var rows []row
	methods := map[row][]string{}
	for _, m := range readSDKMethods() {
		dot := strings.LastIndexByte(m.name, '.')
		status, note := s.outcome(&m)
		what := "served"
		if status != 0 {
			what = fmt.Sprintf("%d by design", status)
		}
		r := row{m.sdk, m.name[:dot], what, note}
		if len(methods[r]) == 0 {
			rows = append(rows, r)
		}
		if name := m.name[dot+1:]; !slices.Contains(methods[r], name) {
			methods[r] = append(methods[r], name)
		}
	}
	sdk := ""
	for _, r := range rows {
		if r.sdk != sdk {
			sdk = r.sdk
			fmt.Fprintf(&b, "\n## `%s`\n\n| resource | methods | | |\n|---|---|---|---|\n", sdk)
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", r.resource, strings.Join(methods[r], "`, `"), r.what, r.note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const clientsHead = `# Clients

<!-- Written by "make docs" from internal/server/sdkmethods.txt and the routes. Do not edit. -->

What becomes of the methods of OpenAI's and Anthropic's SDKs for Python when their base URL is a sluice: ` + "`http://HOST:PORT/v1`" + ` for the first, ` + "`http://HOST:PORT`" + ` for the second. Methods that only wrap others (streams, parsers, polling) stand with the request that they send first. "By design" is refused in the API's own form, with the hint that stands here. SDKs for other languages send the same requests.
`
