package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

func TestRouteMissing(t *testing.T) {
	f := func(body string, want bool) {
		t.Helper()
		if got := routeMissing([]byte(body)); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
	f(`{"detail":"Not Found"}`, true)
	f(` { "detail" : "Not Found" } `, true)
	f(`{"detail":"The model x does not exist"}`, false)
	f(`{"detail":"Not Found","model":"x"}`, false)
	f(`{"error":{"message":"The model x does not exist","code":404}}`, false)
	f(`{"object":"error","message":"Not Found","code":404}`, false)
	f(`<html>404</html>`, false)
	f(`null`, false)
	f(``, false)
}

func TestAnthropicError(t *testing.T) {
	f := func(body string, want bool) {
		t.Helper()
		if got := anthropicError([]byte(body)); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
	f(`{"type":"error","error":{"type":"api_error","message":"m"}}`, true)
	f(`{"error":{"message":"m","type":"error"}}`, false)
	f(`{"type":"error","error":"m"}`, false)
	f(`{"detail":"error"}`, false)
	f(`no "error"`, false)
}

// handClock is a clock that a test turns.
type handClock struct{ now admission.Instant }

func (c *handClock) Now() admission.Instant { return c.now }

func (c *handClock) AfterFunc(time.Duration, func()) func() bool { panic("not used") }

// What a worker lacks is forgotten after a while, and what is remembered is bounded.
func TestRouteMemory(t *testing.T) {
	r := newRig(t, pd(rigOptions{}))
	w := r.fleet.List()[0]
	c := &handClock{}
	m := newRouteMemory(c)
	m.note(w, "/v1/rerank")
	if !m.lacks(w, "/v1/rerank") || m.lacks(w, "/v1/score") || m.lacks(r.fleet.List()[1], "/v1/rerank") {
		t.Error("not what was noted")
	}
	c.now = c.now.Add(routeMemoryFor)
	if m.lacks(w, "/v1/rerank") || m.any() {
		t.Error("it is not forgotten")
	}
	for i := range 3 * routeMemoryMax {
		c.now = c.now.Add(time.Microsecond)
		m.note(w, fmt.Sprint("/", i))
		if len(m.until) > routeMemoryMax {
			t.Fatalf("%d are remembered", len(m.until))
		}
	}
}
