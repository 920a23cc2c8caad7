package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/sim"
)

// passes makes workers serve some passing routes.
func passes(s *setup) {
	s.sim.Worker.Wrap = func(w *sim.Worker, next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if passthroughRoutes[r.URL.Path] == 0 || strings.HasPrefix(r.URL.Path, "/pooling") && w.Role() == sim.Decode {
				next.ServeHTTP(rw, r)
				return
			}
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, `{"by":"`+w.ID()+`"}`)
		})
	}
}

// Passing routes stood outside the rules where prefill and decode are apart: labels,
// pins of decode, the routing key and the policy meant nothing, and what could not be
// read was not looked at.
func TestPassThroughRoutesObeyLabelsAndPins(t *testing.T) {
	r := fourWorkers(t, passes)
	const require, prefer, p, d, key = dispatch.HeaderRequireLabels, dispatch.HeaderPreferLabels, dispatch.HeaderTargetWorker, dispatch.HeaderTargetDecode, dispatch.HeaderRoutingKey
	f := func(path string, times int, want string, headers ...string) {
		t.Helper()
		got := map[string]int{}
		for range times {
			a := r.do("POST", path, `{"model":"sim-model","input":"x"}`, headers...)
			if a.status != 200 {
				t.Fatalf("%s %q: status %d: %s", path, headers, a.status, a.body)
			}
			got[strings.TrimSuffix(strings.TrimPrefix(a.body, `{"by":"`), `"}`)]++
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s %q: %v, want %s", path, headers, got, want)
		}
	}
	f("/v1/embeddings", 10, "map[decode-0:5 decode-1:5]")
	f("/v1/embeddings", 4, "map[decode-1:4]", require, "zone=b")
	f("/v1/embeddings", 4, "map[decode-0:4]", prefer, "zone=a")
	f("/v1/embeddings", 4, "map[decode-1:4]", d, "1")
	f("/v1/embeddings", 4, "map[decode-0:4]", d, r.sim.Decode(0).URL())
	f("/v1/embeddings", 4, "map[decode-1:4]", p, r.sim.Decode(1).URL())
	f("/v1/embeddings", 4, "map[prefill-1:4]", p, "1")
	f("/v1/embeddings", 4, "map[decode-0:4]", p, "1", d, "0")
	f("/pooling", 10, "map[prefill-0:5 prefill-1:5]") // which decode workers do not have
	f("/pooling", 4, "map[prefill-1:4]", require, "zone=b")
	f("/pooling", 4, "map[prefill-1:4]", p, "1", d, "0")
	r.do("POST", "/pooling", `{"model":"sim-model"}`, d, "0").refused(t, 404, "route_not_found")

	r.do("POST", "/v1/embeddings", `{"model":"sim-model"}`, require, "zone=nowhere").refused(t, 503, "no_available_workers")
	r.do("POST", "/v1/embeddings", `{"model":"sim-model"}`, p, "1", require, "zone=a").refused(t, 503, "no_available_workers")
	for _, headers := range [][]string{{p, "7"}, {d, "7"}, {d, "rubbish"}, {d, r.sim.Prefill(0).URL()}, {p, r.sim.Decode(0).URL(), d, "1"}} {
		r.do("POST", "/v1/embeddings", `{"model":"sim-model"}`, headers...).refused(t, 400, "invalid_target")
	}
}

func TestPassThroughRoutesObeyTheRoutingKey(t *testing.T) {
	r := start(t, func(s *setup) {
		passes(s)
		s.sim.Prefill, s.sim.Decode = 1, 4
		s.policy = "consistent_hashing"
	})
	by := func(key string) string {
		return r.do("POST", "/tokenize", `{"model":"sim-model","prompt":"x"}`, dispatch.HeaderRoutingKey, key).body
	}
	seen := map[string]bool{}
	for k := range 20 {
		key := fmt.Sprint("key ", k)
		first := by(key)
		seen[first] = true
		if got := by(key); got != first {
			t.Errorf("%s went to %s, then to %s", key, first, got)
		}
	}
	if len(seen) < 3 {
		t.Errorf("20 keys went to %v only", seen)
	}
}

// A header that cannot be read was ignored where nothing went by it: on passing
// routes, and the pin of decode where workers run whole requests.
func TestHeadersThatCannotBeRead(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			r := start(t, func(s *setup) {
				passes(s)
				if mode == "aggregated" {
					s.sim.Regular = 2
				}
			})
			bodies := map[string]string{"/v1/chat/completions": chat, "/v1/messages": messagesBody, "/v1/responses": responsesBody,
				"/v1/completions": `{"model":"sim-model","prompt":"x"}`, "/generate": `{"text":"x"}`}
			for path := range passthroughRoutes {
				bodies[path] = `{"model":"sim-model","input":"x"}`
			}
			for path, body := range bodies {
				for _, headers := range [][]string{
					{dispatch.HeaderRequireLabels, "zone"}, {dispatch.HeaderPreferLabels, "zone=a;w=x"},
					{dispatch.HeaderTargetWorker, "rubbish"}, {dispatch.HeaderTargetDecode, "rubbish"}, {dispatch.HeaderTargetDecode, "0@x"},
					{dispatch.HeaderTargetWorker, "0", dispatch.HeaderTargetWorker, "1"}, {dispatch.HeaderTargetDecode, "0", dispatch.HeaderTargetDecode, "1"},
					{dispatch.HeaderRoutingKey, "a", dispatch.HeaderRoutingKey, "b"},
					{classify.HeaderClass, "a", classify.HeaderClassAlias, "b"},
					{classify.HeaderMaxQueue, "soon"}, {classify.HeaderMaxQueue, "-1"}, {classify.HeaderMaxQueue, "1", classify.HeaderMaxQueue, "2"},
				} {
					if a := r.do("POST", path, body, headers...); a.status != 400 {
						t.Errorf("%s %q: status %d: %s", path, headers, a.status, a.body)
					}
				}
			}
		})
	}
}

// Where workers run whole requests both pins mean the one worker.
func TestDecodePinOfWholeRequests(t *testing.T) {
	r := start(t, func(s *setup) { passes(s); s.sim.Regular = 3 })
	p, d := dispatch.HeaderTargetWorker, dispatch.HeaderTargetDecode
	for path, body := range map[string]string{"/v1/chat/completions": chat, "/v1/embeddings": `{"model":"sim-model","input":"x"}`} {
		id := ""
		for range 4 {
			a := r.do("POST", path, body, d, "1")
			if got := a.header.Get(dispatch.HeaderDecodeWorker); a.status != 200 || id != "" && got != id {
				t.Errorf("%s: status %d, by %s, then by %s: %s", path, a.status, id, got, a.body)
			}
			id = a.header.Get(dispatch.HeaderDecodeWorker)
		}
		if a := r.do("POST", path, body, d, id, p, "1"); a.status != 200 || a.header.Get(dispatch.HeaderDecodeWorker) != id {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
		r.do("POST", path, body, d, id, p, "2").refused(t, 400, "invalid_target")
	}
}
