package dispatch

import (
	"net/http"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

const statusNotFound = http.StatusNotFound

// routeMissing tells a 404 that means the route (as the frameworks of both engines
// have it) from one that means the model or something else.
func routeMissing(body []byte) bool {
	var e map[string]any
	return len(body) <= 256 && unmarshal(body, &e) && len(e) == 1 && e["detail"] == "Not Found"
}

// modelMissing tells an engine's 404 that means the model. The router sends a request only
// where its model is served, so such an engine has been started with another one since it
// was last asked.
func modelMissing(body []byte) bool {
	type reason struct{ Param, Code, Type any }
	var e struct {
		Error reason
		reason
	}
	if len(body) > 4096 || !unmarshal(body, &e) {
		return false
	}
	for _, r := range [...]reason{e.Error, e.reason} {
		if r.Param == "model" || r.Code == "model_not_found" || r.Type == "not_found_error" {
			return true
		}
	}
	return false
}

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
