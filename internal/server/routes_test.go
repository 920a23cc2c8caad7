package server

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

func TestRoutesServeBothModes(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 2
				}
			})
			for path, body := range map[string]string{
				"/v1/chat/completions": chat,
				"/v1/completions":      `{"model":"sim-model","prompt":"hello","max_tokens":3}`,
				"/generate":            `{"text":"hello","sampling_params":{"max_new_tokens":3}}`,
			} {
				a := r.do("POST", path, body)
				if a.status != 200 || !strings.Contains(a.body, " t3") || a.header.Get("X-Request-Id") == "" {
					t.Errorf("%s: status %d: %s", path, a.status, a.body)
				}
				stream := r.do("POST", path, body[:len(body)-1]+`,"stream":true}`)
				if stream.status != 200 || stream.header.Get("Content-Type") != "text/event-stream" && !strings.HasPrefix(stream.header.Get("Content-Type"), "text/event-stream;") ||
					!strings.HasSuffix(stream.body, "data: [DONE]\n\n") {
					t.Errorf("%s: status %d: %v: %s", path, stream.status, stream.header, stream.body)
				}
			}
			for _, path := range []string{"/health", "/livez", "/liveness", "/readyz", "/readiness", "/v1/models", "/workers"} {
				get, head := r.do("GET", path, ""), r.do("HEAD", path, "")
				if get.status != 200 || head.status != 200 || head.body != "" || get.body == "" {
					t.Errorf("%s: GET %d, HEAD %d %q", path, get.status, head.status, head.body)
				}
			}
			if got := r.metric(`sluice_requests_total{reason="ok",route="chat_completions",status="200"}`); got != 2 {
				t.Errorf("%v chat requests are counted, want 2", got)
			}
		})
	}
}

// An outage of the model list, or of one worker, must not be one of the list.
func TestModelListDoesNotDependOnAnyWorker(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 3
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = []string{"m0", "m1", "org/m2"}[i] }
	})
	names := func() []string {
		a := r.do("GET", "/v1/models", "")
		var list struct {
			Object string
			Data   []struct {
				ID, Object string
				Created    *int64
				OwnedBy    string `json:"owned_by"`
			}
		}
		if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != 200 || list.Object != "list" {
			t.Fatalf("status %d: %v: %s", a.status, err, a.body)
		}
		var ids []string
		for _, m := range list.Data {
			if m.Object != "model" || m.Created == nil || m.OwnedBy == "" {
				t.Errorf("not a model: %+v", m)
			}
			ids = append(ids, m.ID)
		}
		return ids
	}
	r.waitFor("all three models", func() bool { return len(names()) == 3 })
	r.sim.Regular(0).Kill()
	r.sim.Regular(1).Freeze()
	defer r.sim.Regular(1).Thaw()
	for range 20 {
		if got := strings.Join(names(), " "); got != "m0 m1 org/m2" {
			t.Fatalf("models %s", got)
		}
	}
}

func TestReadinessFollowsTheWorkersOfBothRoles(t *testing.T) {
	r := start(t, nil)
	ready := func(status int, missing string) {
		t.Helper()
		var a answer
		r.waitFor("readiness "+missing, func() bool {
			a = r.do("GET", "/readyz", "")
			return a.status == status && strings.Contains(a.body, missing)
		})
		if alive := r.status("GET", "/livez", ""); alive != 200 {
			t.Errorf("liveness is %d while readiness is %d", alive, a.status)
		}
	}
	ready(200, "ready")
	r.sim.Prefill(0).Kill()
	ready(503, `"missing":["prefill"]`)
	r.sim.Decode(0).Kill()
	ready(503, `"missing":["prefill","decode"]`)
	if err := r.sim.Prefill(0).Restart(); err != nil {
		t.Fatal(err)
	}
	ready(503, `"missing":["decode"]`)
	if err := r.sim.Decode(0).Restart(); err != nil {
		t.Fatal(err)
	}
	ready(200, "ready")
	if got := r.status("POST", "/v1/chat/completions", chat); got != 200 {
		t.Errorf("status %d after both came back", got)
	}
}

// A worker for each role is not enough where the two cannot be paired.
func TestNotReadyWithoutAPair(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Fleet.PairLabel = "gen" })
	label := func(role, gen string) {
		t.Helper()
		for _, w := range r.fleet.List() {
			if w.Role().String() == role {
				r.change("PATCH", "/workers/"+w.ID(), `{"labels":{"gen":"`+gen+`"}}`, 200)
			}
		}
	}
	label("prefill", "1")
	if a := r.do("GET", "/readyz", ""); a.status != 503 || !strings.Contains(a.body, `"missing":["pair"]`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	label("decode", "1")
	if a := r.do("GET", "/readyz", ""); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

func TestNotReadyWithoutAnyWorker(t *testing.T) {
	r := start(t, func(s *setup) { s.late = true })
	a := r.do("GET", "/readiness", "")
	if a.status != 503 || !strings.Contains(a.body, "no prefill and no decode worker") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if got := r.status("GET", "/health", ""); got != 200 {
		t.Errorf("liveness %d", got)
	}
	if got := r.metric("sluice_ready"); got != 0 {
		t.Errorf("sluice_ready %v", got)
	}
}

// A router that starts only when all workers are there cannot be the one to
// report that they are not.
func TestServesWithTheWorkersThatAreUp(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 3, true })
	r.sim.Regular(2).Kill()
	for _, w := range r.sim.Workers() {
		r.register(w, "")
	}
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
	for range 6 {
		if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if err := r.sim.Regular(2).Restart(); err != nil {
		t.Fatal(err)
	}
	r.waitFor("a request at the worker that was down", func() bool {
		r.status("POST", "/v1/chat/completions", chat)
		return len(r.sim.Regular(2).Requests()) > 0
	})
}

func TestAllWorkersDownIs503(t *testing.T) {
	r := start(t, func(s *setup) { s.unready = true; s.late = true })
	for _, w := range r.sim.Workers() {
		w.Kill()
		r.register(w, "")
	}
	a := r.do("POST", "/v1/chat/completions", chat)
	a.refused(t, 503, "no_available_workers")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// "Busy" sends a client into a retry loop where "nobody is here" would have told
// it to go elsewhere.
func TestNoWorkerIs503NotBusy(t *testing.T) {
	r := start(t, func(s *setup) {
		s.late = true
		s.limits.PrefillSlots, s.limits.QueueSize = 1, 10
	})
	for range 200 {
		if a := r.do("POST", "/v1/chat/completions", chat); a.status != 503 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	r.do("POST", "/v1/chat/completions", chat).refused(t, 503, "no_available_workers")
}

func TestOtherMethodsAreNotAllowed(t *testing.T) {
	r := start(t, nil)
	const post, get = "POST", "GET, HEAD"
	for _, tc := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"OPTIONS", "/v1/chat/completions", 204, post},
		{"OPTIONS", "/workers", 204, "GET, HEAD, POST"},
		{"HEAD", "/v1/chat/completions", 405, post},
		{"GET", "/v1/chat/completions", 405, post},
		{"PUT", "/generate", 405, post},
		{"FOOBAR", "/v1/models", 405, get},
		{"POST", "/health", 405, get},
		{"POST", "/workers/w1", 405, "GET, HEAD, PUT, PATCH, DELETE"},
		{"OPTIONS", "/nowhere", 404, ""},
		{"GET", "/metrics", 404, ""},
	} {
		a := r.do(tc.method, tc.path, "", "Origin", "http://page.example", "Access-Control-Request-Method", "POST")
		if a.status != tc.status || a.header.Get("Allow") != tc.allow || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: status %d, Allow %q; want %d, %q", tc.method, tc.path, a.status, a.header.Get("Allow"), tc.status, tc.allow)
		}
		switch {
		case tc.method == "HEAD" || a.status == 204:
			if a.body != "" {
				t.Errorf("%s %s: body %q", tc.method, tc.path, a.body)
			}
		case a.status == 405:
			a.refused(t, 405, "method_not_allowed")
		default:
			a.refused(t, 404, "route_not_found")
		}
	}
}

func TestRequestID(t *testing.T) {
	r := start(t, nil)
	long := strings.Repeat("x", 129)
	for _, tc := range []struct {
		name string
		sent []string
		kept bool
	}{
		{"one", []string{"my-id_1/2"}, true},
		{"of 128", []string{long[:128]}, true},
		{"none", nil, false},
		{"of 129", []string{long}, false},
		{"two", []string{"a", "b"}, false},
		{"empty", []string{""}, false},
		{"with a space", []string{"a b"}, false},
		{"with a line break escape", []string{"a%0d%0ab"}, true},
		{"not ASCII", []string{"ä"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.sim.Prefill(0).ResetLog()
			r.sim.Decode(0).ResetLog()
			var headers []string
			for _, v := range tc.sent {
				headers = append(headers, "X-Request-Id", v)
			}
			a := r.do("POST", "/v1/chat/completions", chat, headers...)
			id := a.header.Get("X-Request-Id")
			if len(a.header.Values("X-Request-Id")) != 1 || tc.kept && id != tc.sent[0] || !tc.kept && len(id) != 26 {
				t.Fatalf("the id is %q", a.header.Values("X-Request-Id"))
			}
			for _, w := range r.sim.Workers() {
				if got := w.Requests()[0].Header.Values("X-Request-Id"); len(got) != 1 || got[0] != id {
					t.Errorf("%s was sent the ids %q, want %q", w.ID(), got, id)
				}
			}
			if l := r.line(id); !strings.Contains(l, "status=200") {
				t.Errorf("access line %s", l)
			}
		})
	}
	if a := r.do("POST", "/nope", "", "X-Request-Id", "err-1"); a.header.Get("X-Request-Id") != "err-1" {
		t.Errorf("an error has the id %q", a.header.Get("X-Request-Id"))
	}
	c := r.dial()
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + strings.Repeat("x", 1<<20))
	if a := c.read(); a.status != 431 {
		t.Errorf("an id of 1 MiB: status %d", a.status)
	}
}

func TestUnknownAndMalformedModels(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = []string{"m0", "org/m 2ü"}[i] }
	})
	r.waitFor("both models", func() bool { return strings.Count(r.do("GET", "/v1/models", "").body, `"model"`) == 2 })
	body := func(model string, stream bool) string {
		s := `{"messages":[]`
		if model != "" {
			s += `,"model":` + model
		}
		if stream {
			s += `,"stream":true`
		}
		return s + "}"
	}
	for _, stream := range []bool{false, true} {
		f := func(model string, status int, code string) {
			t.Helper()
			r.do("POST", "/v1/chat/completions", body(model, stream)).refused(t, status, code)
		}
		f(`"m9"`, 404, "model_not_found")
		f(`"org/m9"`, 404, "model_not_found")
		f(`"m 9 ü"`, 404, "model_not_found")
		f(`"`+strings.Repeat("m", 10<<10)+`"`, 404, "model_not_found")
		f(`""`, 400, "invalid_request")
		f(`null`, 400, "invalid_request")
		f(``, 400, "invalid_request")
		f(`7`, 400, "invalid_request")
		f(`["m0"]`, 400, "invalid_request")
		if got := r.status("POST", "/v1/chat/completions", body(`"org/m 2ü"`, stream)); got != 200 {
			t.Errorf("a known name: status %d", got)
		}
	}
	if n, m := len(r.sim.Regular(0).Requests()), len(r.sim.Regular(1).Requests()); n != 0 || m != 2 {
		t.Errorf("the workers saw %d and %d requests, want 0 and 2", n, m)
	}
}

// "Not found" makes a client give up on a model that is back in a minute.
func TestKnownModelWithoutUsableWorkerIs503(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.cfg.Health.FailureThreshold = 1
	})
	for _, w := range r.sim.Workers() {
		w.Kill()
	}
	r.waitFor("both to be unhealthy", func() bool { return r.status("GET", "/readyz", "") == 503 })
	a := r.do("POST", "/v1/chat/completions", chat)
	a.refused(t, 503, "no_available_workers")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	r.do("POST", "/v1/chat/completions", strings.Replace(chat, "sim-model", "m9", 1)).refused(t, 404, "model_not_found")
}

// breakerOf is the state of a worker's breaker.
func breakerOf(r *rig, w *sim.Worker) string {
	for _, i := range r.fleet.Infos() {
		if i.URL == w.URL() {
			return i.Breaker
		}
	}
	return ""
}

// With open breakers workers are known, and come back. The last one is not closed.
func TestOpenBreakersAre503(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.cfg.CircuitBreaker.FailureThreshold = 1
	})
	bad, last := r.sim.Regular(0), r.sim.Regular(1)
	to := func(w *sim.Worker) answer {
		return r.do("POST", "/v1/chat/completions", chat, "X-SMG-Target-Worker", w.URL())
	}
	bad.SetFault(sim.Fault{Status: 500})
	for served := 0; breakerOf(r, bad) == "closed"; served++ {
		if served > 100 {
			t.Fatal("a worker that fails everything stays")
		}
		r.status("POST", "/v1/chat/completions", chat)
	}
	to(bad).refused(t, 503, "no_available_workers")
	last.SetFault(sim.Fault{Status: 500})
	for range 3 {
		if got := r.status("POST", "/v1/chat/completions", chat); got != 500 {
			t.Errorf("status %d, want that of the last worker", got)
		}
	}
}

func TestMetricSeriesAreBounded(t *testing.T) {
	r := start(t, nil)
	hit := func(n int) {
		for i := range n {
			x := strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26)
			r.do("POST", "/v1/chat/completions", `{"model":"`+x+`","messages":[]}`).refused(t, 404, "model_not_found")
			r.do("FOO"+strings.ToUpper(x), "/"+x+".php", "", "X-Smg-Routing-Key", x, "X-Tenant", x).refused(t, 404, "route_not_found")
			r.do("BAR"+strings.ToUpper(x), "/generate", "", "X-Session-Id", x).refused(t, 405, "method_not_allowed")
		}
	}
	hit(1)
	series := func() int { return strings.Count(r.metricsPage(), "\n") }
	before := series()
	hit(150)
	if after := series(); after != before {
		t.Errorf("%d lines of metrics became %d", before, after)
	}
	for _, s := range []string{
		`sluice_requests_total{reason="model_not_found",route="chat_completions",status="404"}`,
		`sluice_requests_total{reason="route_not_found",route="other",status="404"}`,
		`sluice_requests_total{reason="method_not_allowed",route="generate",status="405"}`,
	} {
		if got := r.metric(s); got != 151 {
			t.Errorf("%s is %v, want 151", s, got)
		}
	}
}

func TestMetricsPortHasNothingElse(t *testing.T) {
	r := start(t, nil)
	r.url = "http://" + r.srv.MetricsAddr().String()
	for _, tc := range []struct {
		method, path string
		status       int
	}{{"GET", "/metrics", 200}, {"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"GET", "/", 404}, {"POST", "/v1/chat/completions", 404}, {"GET", "/workers", 404}} {
		if got := r.status(tc.method, tc.path, ""); got != tc.status {
			t.Errorf("%s %s: status %d, want %d", tc.method, tc.path, got, tc.status)
		}
	}
	if page := r.metricsPage(); !strings.Contains(page, "smg_pd_prefill_admission_queued 0") || !strings.Contains(page, "sluice_buffered_bytes 0") {
		t.Error("the page lacks series that must be there from the start")
	}
}

// A worker that accepts and never answers is nobody else's problem.
func TestHungWorkerDoesNotStallOthers(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = []string{"a", "b"}[i] }
		s.cfg.Timeouts.Request = 2 * time.Second
		s.cfg.Health.Disabled = true
	})
	r.waitFor("both models", func() bool { return strings.Count(r.do("GET", "/v1/models", "").body, `"model"`) == 2 })
	r.sim.Regular(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtBody})
	var hung []*raw
	for range 100 {
		c := r.dial()
		body := strings.Replace(chat, "sim-model", "a", 1)
		c.post("/v1/chat/completions", len(body), body)
		hung = append(hung, c)
	}
	// Not all at one time: on a busy machine the first may have timed out by then.
	r.waitFor("all of them at the hung worker", func() bool { return r.sim.Regular(0).Stats().Requests >= 100 })
	for range 100 {
		if a := r.do("POST", "/v1/chat/completions", strings.Replace(chat, "sim-model", "b", 1)); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	for _, c := range hung {
		c.read().refused(t, 504, "upstream_timeout")
	}
}

// SDKs ask for one model by its path; ids have slashes in them, escaped or not.
func TestOneModel(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = []string{"m0", "org/m 1"}[i] }
	})
	r.waitFor("both models", func() bool { return strings.Count(r.do("GET", "/v1/models", "").body, `"object":"model"`) == 2 })
	for _, path := range []string{"org/m%201", "org%2Fm%201", "org%2fm%201"} {
		a := r.do("GET", "/v1/models/"+path, "")
		if a.status != 200 || !strings.HasPrefix(a.body, `{"id":"org/m 1","object":"model","created":`) {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
		head := r.do("HEAD", "/v1/models/"+path, "")
		if head.status != 200 || head.body != "" {
			t.Errorf("HEAD %s: status %d: %s", path, head.status, head.body)
		}
	}
	for _, path := range []string{"m", "m0/", "m0/x", "org", "..", "%00", "M0", strings.Repeat("x", 4000)} {
		e := r.do("GET", "/v1/models/"+path, "").refused(t, 404, "model_not_found")
		if e.Param == nil || *e.Param != "model" {
			t.Errorf("%s: %+v", path, e)
		}
	}
	if a := r.do("DELETE", "/v1/models/m0", ""); a.status != 405 || a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("status %d, %v", a.status, a.header)
	}
}

// Anthropic's SDKs have the list in a form of their own, with pages.
func TestModelsInAnthropicsForm(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 3
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = []string{"m0", "m1", "m2"}[i] }
	})
	r.waitFor("the models", func() bool { return strings.Count(r.do("GET", "/v1/models", "").body, `"object":"model"`) == 3 })
	f := func(query, ids string, more bool) {
		t.Helper()
		a := r.do("GET", "/v1/models"+query, "", "anthropic-version", "2023-06-01")
		var page struct {
			Data []struct {
				Type, ID, DisplayName string
				CreatedAt             time.Time `json:"created_at"`
			}
			HasMore bool    `json:"has_more"`
			FirstID *string `json:"first_id"`
			LastID  *string `json:"last_id"`
		}
		if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != 200 || a.header.Get("Request-Id") != a.header.Get("X-Request-Id") {
			t.Fatalf("%s: status %d, %v: %s", query, a.status, err, a.body)
		}
		var got []string
		for _, m := range page.Data {
			if m.Type != "model" || m.CreatedAt.IsZero() {
				t.Errorf("%s: not a model: %+v", query, m)
			}
			got = append(got, m.ID)
		}
		if strings.Join(got, " ") != ids || page.HasMore != more || (page.FirstID == nil) != (len(got) == 0) || len(got) > 0 && (*page.FirstID != got[0] || *page.LastID != got[len(got)-1]) {
			t.Errorf("%s: %s, want %s, more %t", query, a.body, ids, more)
		}
	}
	f("", "m0 m1 m2", false)
	f("?limit=2", "m0 m1", true)
	f("?limit=2&after_id=m1", "m2", false)
	f("?limit=1&before_id=m2", "m1", true)
	f("?before_id=m1", "m0", false)
	f("?after_id=m2", "", false)
	f("?after_id=gone", "", false)
	for _, query := range []string{"?limit=0", "?limit=x", "?limit=1001"} {
		if a := r.do("GET", "/v1/models"+query, "", "anthropic-version", "2023-06-01"); a.status != 400 || !strings.Contains(a.body, `"type":"error"`) {
			t.Errorf("%s: status %d: %s", query, a.status, a.body)
		}
	}
	if a := r.do("GET", "/v1/models/m1", "", "anthropic-version", "2023-06-01"); a.status != 200 || !strings.HasPrefix(a.body, `{"type":"model","id":"m1"`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// Anthropic's SDKs read the request's id from a header and a member of their own.
func TestRequestIDInAnthropicsForm(t *testing.T) {
	r := start(t, nil)
	messages := func(stream string) string { return messagesBody[:len(messagesBody)-1] + stream + "}" }
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/messages", messages(""), 200},
		{"POST", "/v1/messages", messages(`,"stream":true`), 200},
		{"POST", "/v1/messages", strings.Replace(messages(""), "sim-model", "other", 1), 404},
		{"POST", "/v1/messages", "{", 400},
		{"POST", "/v1/messages/count_tokens", "{", 400},
		{"GET", "/v1/messages", "", 405},
		{"POST", "/v1/messages/batches", "{}", 404},
		{"GET", "/v1/models/other", "", 404},
		{"POST", "/v1/complete", "{}", 404},
	} {
		a := r.do(tc.method, tc.path, tc.body, "X-Request-Id", "id-7", "anthropic-version", "2023-06-01")
		if a.status != tc.status || a.header.Get("Request-Id") != "id-7" || a.header.Get("X-Request-Id") != "id-7" {
			t.Errorf("%s: status %d, want %d, %v", tc.path, a.status, tc.status, a.header)
		}
		if isError := strings.HasPrefix(a.body, `{"type":"error",`) && strings.HasSuffix(strings.TrimSpace(a.body), `,"request_id":"id-7"}`); isError != (tc.status != 200) {
			t.Errorf("%s: %s", tc.path, a.body)
		}
	}
	if a := r.do("POST", "/v1/chat/completions", chat); a.header.Get("Request-Id") != "" {
		t.Errorf("%v", a.header)
	}
}
