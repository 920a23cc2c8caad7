package dispatch

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

const statusNotFound = http.StatusNotFound

// method is what the engine is asked with.
func (x *exchange) method() string {
	if x.call.Method == "" {
		return http.MethodPost
	}
	return x.call.Method
}

// path is the engine's path and query.
func (x *exchange) path() string {
	if x.translates() {
		return pathChat // the query belongs to the API that is translated
	}
	return x.call.Path
}

// pattern names the route.
func (x *exchange) pattern() string {
	if x.call.Pattern != "" {
		return x.call.Pattern
	}
	path, _, _ := strings.Cut(x.call.Path, "?")
	return path
}

// besideGate is a request that passes to a worker without a place at the gate:
// where prefill and decode are apart, and it is neither. Tokenizing, say, holds no
// KV cache and must not wait behind prompts. It goes to a decode worker, and to a
// prefill worker only where no decode worker can take it, because the time of those
// is what the gate is there to guard. Otherwise the rules are those of every
// request: pins, labels, adapters, the policy.
type besideGate struct {
	spec admission.TargetSpec // what both roles are asked for, beside pins
	// pinned: only those ranks or workers may serve it that pins name, by role.
	pinned bool
	pins   map[admission.Role]string
	tried  []*admission.Rank
}

// besideRoles are the roles in the order in which they are asked.
var besideRoles = [...]admission.Role{admission.RoleDecode, admission.RolePrefill}

// besideTries bounds how many workers are asked for one request, and so how many
// are found out not to have a route.
const besideTries = 16

// pinned is the worker that the client asks for, "" for none.
func (x *exchange) pinned() string {
	want := x.call.Header.Get(HeaderTargetWorker)
	if want == "" && !x.d.cfg.Fleet.PDDisaggregation {
		want = x.call.Header.Get(HeaderTargetDecode)
	}
	return want
}

// goesBeside tells whether the request needs no admission. A worker for whole
// requests that stood among the others would be booked as ever.
func (x *exchange) goesBeside(pool string) bool {
	return x.call.Passing && x.d.cfg.Fleet.PDDisaggregation && !x.d.gate.Serves(pool, admission.RoleRegular)
}

// placeBeside is place for a request that needs no admission.
func (x *exchange) placeBeside(spec admission.TargetSpec) *failure {
	x.beside = &besideGate{pins: map[admission.Role]string{}}
	x.call.Record.Model = x.pool
	if f := x.labels(&spec); f != nil {
		return f
	}
	// It waits for nobody and has no class, but what cannot be read is refused
	// wherever it is sent.
	headers := classify.Options{}
	if _, bad := headers.Classify(&classify.Facts{Header: x.call.Header}); bad != nil {
		return &failure{reason: reasonBadRequest, local: bad}
	}
	if x.call.Route == openai.RouteStoredResponse {
		return &failure{reason: reasonBadRequest, local: noStoredResponse("no response is stored where prefill and decode are apart")}
	}
	if f := x.hints(x.call.Peeked); f != nil {
		return f
	}
	if !x.d.gate.Serves(x.pool, admission.RoleDecode) && !x.d.gate.Serves(x.pool, admission.RolePrefill) {
		return x.notServed()
	}
	x.beside.spec = spec
	return x.pinBeside(spec.Model)
}

// pinBeside reads the headers that bind the request to a worker: of either role by
// the first, of decode by the second. With one of each, as a client sends them with
// all its requests, each holds for its role.
func (x *exchange) pinBeside(model string) *failure {
	b := x.beside
	want, f := x.steering(HeaderTargetWorker)
	if f != nil {
		return f
	}
	if want != "" {
		role := admission.RolePrefill
		if _, _, ok := x.d.fleet.ResolvePin(want, role); !ok {
			role = admission.RoleDecode
		}
		pin, f := x.resolvePin(want, HeaderTargetWorker, role, model, "")
		if f != nil {
			return f
		}
		b.pins[role], b.pinned = pin, true
	}
	if want, f = x.steering(HeaderTargetDecode); want == "" || f != nil {
		return f
	}
	pin, f := x.resolvePin(want, HeaderTargetDecode, admission.RoleDecode, model, admission.RoleDecode.String()+" ")
	if f != nil {
		return f
	}
	if other := b.pins[admission.RoleDecode]; other != "" && other != pin {
		return twoPins(want)
	}
	b.pins[admission.RoleDecode], b.pinned = pin, true
	return nil
}

func noStoredResponse(why string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "response_not_found",
		Message: "there is no such response here: " + why}
}

// narrow keeps the request from workers that cannot serve it.
func (x *exchange) narrow(spec *admission.TargetSpec) *failure {
	if f := x.refuseHeld(); f != nil {
		return f
	}
	if x.pair {
		return x.narrowPair(spec)
	}
	if f := x.sticky(); f != nil {
		return f
	}
	if x.pinned() != "" || !x.picky() {
		return nil
	}
	able, all := x.able(admission.RoleRegular)
	if len(able) == 0 {
		return x.noRoute(nil)
	}
	if !all {
		spec.Allowed[admission.DecodeLeg] = able
	}
	return nil
}

// refuseHeld refuses requests that count on the server to hold the conversation. No
// engine does, and one that ignores the field would answer the last turn alone. The
// tool runner of Anthropic's SDK begins a thread unasked, and sends the whole
// conversation itself once it has this error.
func (x *exchange) refuseHeld() *failure {
	held, all, detail := openai.FieldThread, "messages", "thread_unsupported_request"
	switch x.call.Route {
	case openai.RouteMessages:
	case openai.RouteResponses:
		held, all, detail = openai.FieldConversation, "input", ""
	default:
		return nil
	}
	if kind := x.call.Peeked.FieldKind(held); kind == openai.KindAbsent || kind == openai.KindNull {
		return nil
	}
	e := openai.InvalidRequest(held.String(), "%s is not served here: conversations are not stored; send all of it in %s", held, all)
	e.Detail = detail
	return &failure{reason: reasonBadRequest, local: e}
}

// sticky refuses what only the worker can answer that had the request before:
// engines keep responses in their own memory.
func (x *exchange) sticky() *failure {
	p := x.call.Peeked
	switch x.call.Route {
	case openai.RouteStoredResponse:
	case openai.RouteResponses:
		if p.FieldKind(openai.FieldPreviousResponseID) != openai.KindString {
			return nil
		}
	default:
		return nil
	}
	if x.pinned() != "" {
		return nil
	}
	workers := map[*fleet.Worker]bool{}
	for _, s := range x.servants() {
		workers[s.Worker] = true
	}
	if len(workers) <= 1 {
		return nil
	}
	return &failure{reason: reasonBadRequest, local: openai.InvalidRequest(openai.FieldPreviousResponseID.String(),
		"a stored response is known to the worker only that made it, and %d workers serve the model: name that one in the header %s, or send the whole conversation in input",
		len(workers), HeaderTargetWorker)}
}

// pinnedPool is the model of the worker that a request without a body is for.
func (x *exchange) pinnedPool() (pool string, ok bool) {
	if x.call.Route != openai.RouteStoredResponse || x.pinned() == "" {
		return "", false
	}
	_, models, ok := x.d.fleet.ResolvePin(x.pinned(), admission.RoleRegular)
	if !ok || models[0] == "" {
		return "", false
	}
	return models[0], true
}

// servants are the ranks that the request may run on, as far as its model and its
// pins go.
func (x *exchange) servants() []fleet.Serving {
	return slices.DeleteFunc(x.d.fleet.Serving(x.pool), func(s fleet.Serving) bool {
		role := s.Worker.Role()
		if x.beside == nil {
			return role != admission.RoleRegular
		}
		b := x.beside
		pin := b.pins[role]
		return !slices.Contains(besideRoles[:], role) || b.pinned && pin != s.Worker.URL() && pin != s.Rank.ID() ||
			slices.ContainsFunc(b.tried, func(r *admission.Rank) bool { return r.Data() == s.Rank })
	})
}

func (x *exchange) lacks(s *fleet.Serving) bool { return x.d.routes.lacks(s.Worker, x.pattern()) }

// noRoute is the failure of a request that no worker has the route of.
func (x *exchange) noRoute(rank *fleet.Rank) *failure {
	return &failure{leg: admission.DecodeLeg, rank: rank, noRoute: rank != nil, reason: reasonNoRoute, local: openai.RouteNotFound(x.pattern())}
}

// noteRoute learns from an engine's answer that it does not have the route. An
// engine that does not know the model says so in other words.
func (x *exchange) noteRoute(rank *fleet.Rank, f *failure) {
	if f == nil || f.status != statusNotFound || !routeMissing(f.body) {
		return
	}
	x.d.routes.note(rank.Worker(), x.pattern())
	*f = *x.noRoute(rank)
}

// routeElsewhere tells, after a worker turned out not to have the route, whether
// another one may. If only such that are down now may, f says that.
func (x *exchange) routeElsewhere(f *failure) bool {
	if x.attempts >= besideTries || x.beside == nil && x.pinned() != "" {
		return false
	}
	unsure := false
	for _, s := range x.servants() {
		switch {
		case x.lacks(&s) || s.Rank == f.rank:
		case s.Ready:
			return true
		default:
			unsure = true
		}
	}
	if unsure {
		f.reason, f.local = reasonNoWorkers, x.noWorkers().local
	}
	return false
}

// chooseBeside chooses a rank for a request beside the gate, in decode before those
// in prefill.
func (x *exchange) chooseBeside() (*admission.Rank, *failure) {
	b := x.beside
	for _, role := range besideRoles {
		pin := b.pins[role]
		if b.pinned && pin == "" {
			continue
		}
		spec := b.spec
		spec.Pins[admission.DecodeLeg] = pin
		if x.picky() {
			able, all := x.able(role)
			if len(able) == 0 {
				continue
			}
			if !all {
				spec.Allowed[admission.DecodeLeg] = able
			}
		}
		if r := x.d.gate.Pass(spec, role, x.ticket.Hints[admission.DecodeLeg], b.tried...); r != nil {
			return r, nil
		}
	}
	for _, s := range x.servants() {
		if !x.lacks(&s) {
			return nil, x.noWorkers()
		}
	}
	return nil, x.noRoute(nil)
}

// picky tells whether some worker may be worse at the route than others.
func (x *exchange) picky() bool {
	return x.d.routes.any() || x.call.Passing && x.d.fleet.AnyRouteFailed()
}

// able are the workers of a role that may have the route. Those that keep failing at
// it are left out as long as there are others.
func (x *exchange) able(role admission.Role) (workers []string, all bool) {
	var failing []string
	lacking := false
	for _, s := range x.servants() {
		switch {
		case s.Worker.Role() != role:
		case x.lacks(&s):
			lacking = true
		case x.call.Passing && s.Rank.RouteOpen(x.pattern()):
			failing = append(failing, s.Worker.URL())
		default:
			workers = append(workers, s.Worker.URL())
		}
	}
	if len(workers) == 0 {
		return failing, !lacking
	}
	return workers, !lacking && len(failing) == 0
}

// runBeside runs a request that the gate does not see.
func (x *exchange) runBeside() {
	if f := x.takeFiles(); f != nil {
		x.answer(f)
		return
	}
	var last *failure
	for {
		chosen, f := x.chooseBeside()
		if f != nil {
			if last != nil {
				f = last
			}
			x.answer(f)
			return
		}
		x.attempts++
		x.call.Record.Attempts = x.attempts
		rank := chosen.Data().(*fleet.Rank)
		x.tellBeside(rank)
		f = x.passTo(chosen, rank)
		if f == nil {
			x.finish(reasonOK, nil)
			return
		}
		x.beside.tried = append(x.beside.tried, chosen)
		again, atOnce := x.retryable(f)
		if !again {
			x.answer(f)
			return
		}
		x.d.metrics.retry(f.reason)
		if !atOnce && !pause(&x.ctx, backoff(&x.d.cfg.Retry, x.attempts)) {
			x.answer(x.clientEnd(x.ctx.ended()))
			return
		}
		last = f
	}
}

// passTo sends the request to the rank that was chosen.
func (x *exchange) passTo(chosen *admission.Rank, rank *fleet.Rank) *failure {
	defer x.d.gate.EndPass(chosen)
	return x.runOn(rank)
}

// tellBeside names the worker in the answer's header, as tellPlace does.
func (x *exchange) tellBeside(rank *fleet.Rank) {
	name := HeaderDecodeWorker
	if rank.Worker().Role() == admission.RolePrefill {
		name = HeaderPrefillWorker
	}
	delete(x.w.Header(), HeaderDecodeWorker)
	delete(x.w.Header(), HeaderPrefillWorker)
	x.setHeader(name, rank.Name())
}

// passed relays an answer of which nothing is known.
func (r *relay) passed(ctx *legContext) *failure {
	if r.sse || strings.HasPrefix(r.resp.Get("Content-Type"), "audio/") {
		return r.lines(ctx)
	}
	return r.plain(ctx)
}

// routeMissing tells a 404 that means the route (as the frameworks of both engines
// have it) from one that means the model or something else.
func routeMissing(body []byte) bool {
	var e map[string]any
	return len(body) <= 256 && unmarshal(body, &e) && len(e) == 1 && e["detail"] == "Not Found"
}

func unmarshal(b []byte, to any) bool { return json.Unmarshal(b, to) == nil }

const (
	// routeMemoryFor is how long it is remembered that a worker lacks a route; it
	// may be replaced by a newer one at the same address.
	routeMemoryFor = 30 * time.Second
	// routeMemoryMax bounds what is remembered.
	routeMemoryMax = 4096
)

// routeMemory remembers which workers answered that they do not have a route.
type routeMemory struct {
	clock admission.Clock

	mu    sync.Mutex
	until map[workerRoute]admission.Instant // guarded by mu
}

type workerRoute struct {
	worker     string
	generation uint64
	pattern    string
}

func newRouteMemory(clock admission.Clock) *routeMemory {
	return &routeMemory{clock: clock, until: map[workerRoute]admission.Instant{}}
}

func keyOf(w *fleet.Worker, pattern string) workerRoute {
	return workerRoute{w.ID(), w.Generation(), pattern}
}

// any tells whether there is anything to be asked for.
func (m *routeMemory) any() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.until) > 0
}

func (m *routeMemory) lacks(w *fleet.Worker, pattern string) bool {
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	k := keyOf(w, pattern)
	until, ok := m.until[k]
	if ok && now >= until {
		delete(m.until, k)
		ok = false
	}
	return ok
}

func (m *routeMemory) note(w *fleet.Worker, pattern string) {
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.until) >= routeMemoryMax {
		for k, until := range m.until {
			if now >= until {
				delete(m.until, k)
			}
		}
		if len(m.until) >= routeMemoryMax {
			clear(m.until)
		}
	}
	m.until[keyOf(w, pattern)] = now.Add(routeMemoryFor)
}
