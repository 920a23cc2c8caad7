package server

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/suggest"
	"github.com/sluice-router/sluice/internal/text"
)

// noRoute is 404 route_not_found for a path that sluice does not serve. No worker was
// asked, so the message does not mention workers.
func (s *Server) noRoute(path string) *openai.Error {
	e := openai.RouteNotFound(path)
	e.Message = fmt.Sprintf("sluice has no route %q", text.Line(path))
	switch near, hint := s.nearRoute(path), unsupportedHint(path); {
	case hint != "" && (near == "" || !strings.HasSuffix(path, near)):
		e.Message += ": " + hint
	case path == pathMetrics:
		e.Message += " on this port; it is on " + s.metricsPort()
	case near != "":
		e.Message += fmt.Sprintf("; did you mean %q?", near)
	default:
		e.Message += "; docs/http.md lists the routes"
	}
	return e
}

// metricsPort names the port of /metrics.
func (s *Server) metricsPort() string {
	if s.metricsListener != nil {
		if a, ok := s.metricsListener.Addr().(*net.TCPAddr); ok {
			return fmt.Sprintf("port %d (--prometheus-port)", a.Port)
		}
	}
	return "that of --prometheus-port"
}

// maxNearPath bounds the paths that are compared with routes, in bytes.
const maxNearPath = 128

// nearRoute is the route that the client most likely meant, or "". Usual mistakes in
// base URLs of SDKs are tried first: /v1 left out, given twice, or after another prefix,
// and a slash too many.
func (s *Server) nearRoute(path string) string {
	if len(path) > maxNearPath {
		return ""
	}
	clean := "/" + strings.Join(strings.FieldsFunc(path, func(c rune) bool { return c == '/' }), "/")
	is := func(p string) bool { return s.match(p) != nil }
	for _, p := range []string{clean, "/v1" + clean} {
		if is(p) {
			return p
		}
	}
	for rest := clean; ; {
		i := strings.IndexByte(rest[1:], '/')
		if i < 0 {
			break
		}
		if rest = rest[1+i:]; is(rest) {
			return rest
		}
	}
	routes := slices.Sorted(maps.Keys(s.routes))
	if near := suggest.Nearest(strings.ToLower(clean), routes); near != "" {
		return near
	}
	return suggest.Nearest(strings.ToLower("/v1"+clean), routes)
}
