package server

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// Server answers clients. Make one with New, then Listen and Run it.
type Server struct {
	// immutable
	opts     Options
	cfg      *config.Config // as it was at the start; keys have what a reload changes
	peek     openai.PeekOptions
	log      *telemetry.Log
	routes   map[string]*route
	main     clientServer
	scrapes  *http.Server
	scrapers *scrapers
	// base is the parent of all requests' contexts; end ends it.
	base context.Context
	end  context.CancelCauseFunc

	buffers buffers
	hashes  *prefixHashes // nil: the access log has none

	// set by Listen
	listener, metricsListener *net.TCPListener

	keyUses *prometheus.CounterVec // immutable

	// atomic
	keys  atomic.Pointer[keyring]
	conns atomic.Int64 // clients' connections
	// clients' connections that were closed to make room
	evicted atomic.Int64
	legs    atomic.Int64 // engines' connections that running requests take
	active  atomic.Int64 // requests that may reach dispatch
	phase   atomic.Int32
	// when a shortage of files was last logged, and how many refusals were not logged since
	filesShortAt, filesShortMore atomic.Int64

	idle chan struct{} // of one: active fell to 0 during a drain
}

// Phases of a server, in their order.
const (
	phaseServing  int32 = iota
	phaseNotReady       // takes requests, says it is not ready
	phaseDraining       // takes none
	phaseAborted        // takes none, and answers nobody
)

// route is one path.
type route struct {
	name   string
	access map[string]access // by method; HEAD goes with GET
	allow  []string
	serve  func(q *request)
	// api is the route's API where requests go on to dispatch.
	api openai.Route
	// passthrough: requests go unchanged to one worker. pattern is the path where it
	// has variable parts.
	passthrough bool
	pattern     string
	// bothAPIs: the path is in OpenAI's and in Anthropic's API.
	bothAPIs bool
	// quiet: no access log line is written. polled: none is written for successful
	// reads, as clients poll the route.
	quiet, polled bool
}

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: o, cfg: o.Config, log: o.Log,
		buffers: buffers{limit: o.Config.Server.MaxBufferedBytes}, idle: make(chan struct{}, 1),
	}
	s.base, s.end = context.WithCancelCause(context.Background())
	s.registerMetrics(o.Registry)
	s.Reload(o.Config)
	s.routes = s.newRoutes()
	if l := &o.Config.Log; l.AccessPrefixHashes {
		s.hashes = newPrefixHashes(string(l.AccessHashKey))
	}
	s.peek.Refuse = openai.ControlledFields
	if s.cfg.Server.TrustUpstream && !s.cfg.Fleet.PDDisaggregation {
		s.peek.Refuse = 0
	}
	s.main = s.newClients()
	s.opts.Engines.BeforeDial(func() { s.filesShort() })
	s.scrapers = newScrapers(maxScrapers(s.opts.MaxFiles))
	s.scrapes = &http.Server{
		Handler:           s.scrapers.busy(s.metricsHandler()),
		ConnContext:       s.scrapers.accepted,
		ConnState:         s.scrapers.changed,
		ReadHeaderTimeout: s.cfg.Timeouts.ClientHeader,
		IdleTimeout:       s.cfg.Timeouts.ClientIdle,
		WriteTimeout:      writeLimit,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          netHTTPLog(s.log),
		BaseContext:       func(net.Listener) context.Context { return s.base },
	}
	return s, nil
}

// The first group of paths goes on to the engines; the others are the router's own.
const (
	pathChatCompletions = "/v1/chat/completions"
	pathCompletions     = "/v1/completions"
	pathGenerate        = "/generate"
	pathResponses       = "/v1/responses"
	pathMessages        = "/v1/messages"
	pathModels          = "/v1/models"
	pathWorkers         = "/workers"
	pathKVMatch         = "/kv/match"
	pathMetrics         = "/metrics" // on a port of its own
)

// newRoutes is the table of all paths but /workers/{id} and below, /v1/models/{id}, /v1/responses/{id}
// and /cluster/members/{name}/ended.
func (s *Server) newRoutes() map[string]*route {
	get := func(name string, a access, serve func(*request)) *route {
		return &route{name: name, access: map[string]access{http.MethodGet: a}, allow: []string{http.MethodGet, http.MethodHead}, serve: serve}
	}
	probe := func(serve func(*request)) *route {
		r := get("health", open, serve)
		r.quiet = true
		return r
	}
	watched := func(r *route) *route {
		r.polled = true
		return r
	}
	post := func(api openai.Route) *route {
		return &route{name: api.String(), access: map[string]access{http.MethodPost: client}, allow: []string{http.MethodPost}, serve: (*request).infer, api: api}
	}
	routes := map[string]*route{
		pathChatCompletions: post(openai.RouteChatCompletions),
		pathCompletions:     post(openai.RouteCompletions),
		pathGenerate:        post(openai.RouteGenerate),
		pathResponses:       post(openai.RouteResponses),
		pathMessages:        post(openai.RouteMessages),

		pathModels: get("models", client, (*request).models),

		"/health":    probe((*request).alive),
		"/livez":     probe((*request).alive),
		"/liveness":  probe((*request).alive),
		"/readyz":    probe((*request).ready),
		"/readiness": probe((*request).ready),

		pathKVMatch: {name: "kv_match", access: map[string]access{http.MethodPost: admin}, allow: []string{http.MethodPost}, serve: (*request).kvMatch},

		pathCluster:  watched(get("cluster", readOnly, (*request).cluster)),
		pathHandOver: handOverRoute,

		"/admission":        watched(get("admission", readOnly, (*request).admission)),
		"/admission/reload": {name: "reload", access: map[string]access{http.MethodPost: admin}, allow: []string{http.MethodPost}, serve: (*request).reload},
		"/busy_threshold": {
			polled: true,
			name:   "busy_threshold",
			access: map[string]access{http.MethodGet: readOnly, http.MethodPost: admin},
			allow:  []string{http.MethodGet, http.MethodHead, http.MethodPost},
			serve:  (*request).busyThreshold,
		},

		pathWorkers: {
			polled: true,
			name:   "workers",
			access: map[string]access{http.MethodGet: readOnly, http.MethodPost: admin},
			allow:  []string{http.MethodGet, http.MethodHead, http.MethodPost},
			serve:  (*request).workers,
		},
	}
	routes[pathModels].bothAPIs = true
	for path, api := range passthroughRoutes {
		routes[path] = passthroughRoute(api, http.MethodPost, "")
	}
	return routes
}

// workerRoute is /workers/{id}.
var workerRoute = &route{
	polled: true,
	name:   "worker",
	access: map[string]access{http.MethodGet: readOnly, http.MethodPut: admin, http.MethodPatch: admin, http.MethodDelete: admin},
	allow:  []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete},
	serve:  (*request).worker,
}

// drainRoute is /workers/{id}/drain and /workers/{id}/undrain.
var drainRoute = &route{
	name:   "worker_drain",
	access: map[string]access{http.MethodPost: admin},
	allow:  []string{http.MethodPost},
	serve:  (*request).drainWorker,
}

const (
	suffixDrain   = "/drain"
	suffixUndrain = "/undrain"
)

// match finds the route of a path, nil if there is none.
func (s *Server) match(path string) *route {
	if rt := s.routes[path]; rt != nil {
		return rt
	}
	if id, ok := strings.CutPrefix(path, pathWorkers+"/"); ok && id != "" {
		if strings.HasSuffix(id, suffixDrain) || strings.HasSuffix(id, suffixUndrain) {
			return drainRoute
		}
		return workerRoute
	}
	if _, ok := endedMember(path); ok {
		return endedRoute
	}
	if id, ok := strings.CutPrefix(path, pathModels+"/"); ok && id != "" {
		return modelRoute
	}
	if rest, ok := strings.CutPrefix(path, pathResponses+"/"); ok {
		return matchResponse(rest)
	}
	return nil
}

// ServeHTTP answers one request of a client.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{s: s, raw: w, r: r}
	q.begin()
	defer q.finish()
	path := r.URL.Path
	q.route = s.match(path)
	if q.shape() == openai.ShapeAnthropic {
		q.raw.Header()[headerRequestIDA] = q.id[:]
	}
	if q.route == nil {
		q.refuse(s.noRoute(path), reasonNoRoute)
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	access, ok := q.route.access[method]
	switch {
	case ok:
	case method == http.MethodOptions:
		// Lists the methods of the path. There are no CORS headers, so that web pages
		// of other origins cannot go on.
		q.out.Header()["Allow"] = []string{strings.Join(q.route.allow, ", ")}
		q.out.WriteHeader(http.StatusNoContent)
		q.reason = reasonOK
		return
	default:
		q.out.Header()["Allow"] = []string{strings.Join(q.route.allow, ", ")}
		e := methodNotAllowed(r.Method, path, q.route.allow)
		if hint := unsupportedHint(path); hint != "" {
			e.Message += "; " + hint
		}
		q.refuse(e, reasonMethod)
		return
	}
	if e, reason := q.authorize(access); e != nil {
		if e.Status == http.StatusUnauthorized {
			q.out.Header()["Www-Authenticate"] = []string{"Bearer"}
		}
		q.refuse(e, reason)
		return
	}
	q.route.serve(q)
}

// enter counts a request that may reach dispatch. It returns false when the server
// is draining and takes no more.
func (s *Server) enter() bool {
	s.active.Add(1)
	// The order matters: the request is counted before the phase is read, so that
	// none starts after a drain has found no active requests.
	if s.phase.Load() >= phaseDraining {
		s.leave()
		return false
	}
	return true
}

func (s *Server) leave() {
	if s.active.Add(-1) == 0 && s.phase.Load() >= phaseDraining {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}
