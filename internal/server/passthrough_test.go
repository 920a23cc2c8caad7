package server

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/sim"
)

// recording answers every POST with 200 and remembers what came. It is for requests
// one after the other.
func recording(seen *[]string) func(*sim.Worker, http.Handler) http.Handler {
	return func(_ *sim.Worker, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "POST" && !strings.HasPrefix(r.URL.Path, "/v1/responses/") {
				next.ServeHTTP(w, r)
				return
			}
			b, _ := io.ReadAll(r.Body)
			*seen = append(*seen, r.Method+" "+r.URL.RequestURI()+" "+string(b))
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"seen":true}`)
		})
	}
}

// having serves some paths and answers 404 for the rest as both engines do.
func having(count *atomic.Int64, paths ...string) func(*sim.Worker, http.Handler) http.Handler {
	return func(_ *sim.Worker, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "POST" {
				next.ServeHTTP(w, r)
				return
			}
			count.Add(1)
			w.Header().Set("Content-Type", "application/json")
			if slices.Contains(paths, r.URL.Path) {
				_, _ = io.WriteString(w, `{"served":true}`)
				return
			}
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		})
	}
}

// Routes that the engines have were 404 at the router.
func TestPassThroughRoutes(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			var seen []string
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
				}
				s.sim.Worker.Wrap = recording(&seen)
			})
			for path := range passthroughRoutes {
				if strings.Contains(path, "/audio/") {
					continue
				}
				uri, body := path+"?a=b%20c&d", `{ "model" : "sim-model" , "x" : 1e400, "input":"é", "x":2 }`
				a := r.do("POST", uri, body)
				if a.status != 200 || a.body != `{"seen":true}` {
					t.Errorf("%s: status %d: %s", path, a.status, a.body)
				}
				if got, want := seen[len(seen)-1], "POST "+uri+" "+body; got != want {
					t.Errorf("the engine saw %q, want %q", got, want)
				}
				if a := r.do("GET", path, ""); a.status != 405 || a.header.Get("Allow") != "POST" {
					t.Errorf("GET %s: status %d", path, a.status)
				}
			}
			n := len(seen)
			for _, method := range []string{"GET", "POST", "PUT"} {
				e := r.do(method, "/v1/no/such", "").refused(t, 404, "route_not_found")
				if !strings.Contains(e.Message, "/v1/no/such") {
					t.Errorf("%s", e.Message)
				}
			}
			if len(seen) != n {
				t.Errorf("an engine was asked for an unknown path: %v", seen[n:])
			}
		})
	}
}

// A 404 of an engine that does not have a route is not one of the fleet: another may
// have it. What nobody has is told so, and nobody is asked again for a while.
func TestRoutesThatOnlySomeWorkersHave(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			var count atomic.Int64
			has := having(&count, "/v1/rerank")
			lacks := having(&count)
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 3
				} else {
					s.sim.Prefill, s.sim.Decode = 1, 2
				}
				s.sim.Each = func(role sim.Role, i int, o *sim.WorkerOptions) {
					o.Wrap = lacks
					if role == sim.Prefill || role == sim.Regular && i == 2 {
						o.Wrap = has
					}
				}
			})
			for range 6 {
				if a := r.do("POST", "/v1/rerank", `{"model":"sim-model","query":"q"}`); a.status != 200 || a.body != `{"served":true}` {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
			if n := count.Load(); n > 8 {
				t.Errorf("engines were asked %d times for 6 requests: those without the route are to be asked once", n)
			}
			count.Store(0)
			for range 5 {
				r.do("POST", "/v1/score", `{"model":"sim-model"}`).refused(t, 404, "route_not_found")
			}
			if n := count.Load(); n != 3 {
				t.Errorf("engines were asked %d times for a route that none has, want each once", n)
			}
		})
	}
}

// Where a request that passes ran is told by the worker's role, in the access line
// as in the answer's header.
func TestPassThroughRequestIsLoggedByWorkerRole(t *testing.T) {
	var count atomic.Int64
	r := start(t, func(s *setup) {
		s.sim.Each = func(role sim.Role, _ int, o *sim.WorkerOptions) {
			o.Wrap = having(&count, "/v1/score")
			if role == sim.Prefill {
				o.Wrap = having(&count, "/v1/score", "/v1/rerank")
			}
		}
	})
	for path, want := range map[string]string{
		"/v1/rerank": " prefill=" + r.sim.Prefill(0).URL(), // the decode worker is asked first
		"/v1/score":  " decode=" + r.sim.Decode(0).URL(),
	} {
		a := r.do("POST", path, `{"model":"sim-model","query":"q"}`)
		header := "X-Sluice-Prefill-Worker"
		if strings.HasPrefix(want, " decode") {
			header = "X-Sluice-Decode-Worker"
		}
		if a.status != 200 || a.header.Get(header) == "" {
			t.Errorf("%s: status %d, headers %v", path, a.status, a.header)
		}
		l := r.line(a.header.Get("X-Request-Id"))
		if !strings.Contains(l, want+" ") || strings.Contains(l, " prefill=") && strings.Contains(l, " decode=") {
			t.Errorf("%s: the access line is %q, want%s alone", path, l, want)
		}
	}
}

// The 404 of an unknown model is the engine's to tell, and says nothing of the route.
func TestModelNotFoundIsNotAMissingRoute(t *testing.T) {
	body := `{"error":{"message":"The model x does not exist.","type":"NotFoundError","param":"model","code":404}}`
	r := start(t, func(s *setup) { s.sim.Regular = 1 })
	r.sim.Regular(0).SetFault(sim.Fault{Path: "/v1/chat", Status: 404, Body: body, Count: 1})
	if a := r.do("POST", "/v1/chat/completions", chat); a.status != 404 || a.body != body {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// Requests that hold no KV cache do not wait behind prompts where prefill is bounded.
func TestPassThroughRoutesWithoutKVTakeNoSlot(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	r := start(t, func(s *setup) {
		s.limits = admission.Limits{PrefillSlots: 1, QueueSize: 0}
		s.sim.Worker.Timing = endless
		s.sim.Worker.Timing.PrefillTime = patience
		s.sim.Worker.Wrap = func(w *sim.Worker, next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/tokenize" {
					next.ServeHTTP(rw, req)
					return
				}
				mu.Lock()
				asked[string(w.Role())]++
				mu.Unlock()
				_, _ = io.WriteString(rw, `{"tokens":[1]}`)
			})
		}
	})
	c := r.dial()
	c.post("/v1/chat/completions", len(chatStream), chatStream)
	if err := r.sim.Prefill(0).WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.do("POST", "/v1/chat/completions", chat).refused(t, 429, "pd_prefill_queue_full")
	for range 4 {
		if a := r.do("POST", "/tokenize", `{"prompt":"hello"}`); a.status != 200 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if asked[string(sim.Decode)] != 4 || len(asked) != 1 {
		t.Errorf("asked %v, want the decode worker only", asked)
	}
	_ = c.Close() // it leaves
	r.nobodyWorks()
}

// form is an upload as clients make them.
func form(t *testing.T, model string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file, err := w.CreateFormFile("file", "a.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write([]byte("RIFF\x00\xff\r\n--not a boundary\r\n"))
	if model != "" {
		_ = w.WriteField("model", model)
	}
	_ = w.WriteField("user", "u")
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// An upload has no JSON: routing by session must not stumble over that.
func TestUploadsArePassedThrough(t *testing.T) {
	var seen []string
	r := start(t, func(s *setup) {
		s.sim.Regular = 2
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) { o.Model = fmt.Sprint("m", i) }
		s.sim.Worker.Wrap = recording(&seen)
	})
	for _, headers := range [][]string{{}, {dispatch.HeaderRoutingKey, "k"}, {"X-Session-Id", "s"}} {
		contentType, body := form(t, "m1")
		a := r.do("POST", "/v1/audio/transcriptions", body, append(headers, "Content-Type", contentType)...)
		if a.status != 200 || seen[len(seen)-1] != "POST /v1/audio/transcriptions "+body {
			t.Errorf("status %d: %s; the engine saw %q", a.status, a.body, seen)
		}
	}
	n := len(seen)
	contentType, body := form(t, "")
	r.do("POST", "/v1/audio/transcriptions", body, "Content-Type", contentType).refused(t, 400, "invalid_request") // two models, none named
	contentType, body = form(t, "m7")
	r.do("POST", "/v1/audio/transcriptions", body, "Content-Type", contentType).refused(t, 404, "model_not_found")
	contentType, body = form(t, "m1")
	r.do("POST", "/v1/audio/transcriptions", body[:len(body)/2], "Content-Type", contentType).refused(t, 400, "invalid_request")
	r.do("POST", "/v1/audio/transcriptions", body, "Content-Type", "multipart/form-data").refused(t, 400, "invalid_request")
	if len(seen) != n {
		t.Errorf("the engines saw %q", seen[n:])
	}
}

// The key was dropped on the way, and a compressed answer had the wrong length.
func TestUploadsKeepWorkerKeyAndAnswer(t *testing.T) {
	const words = `{"text":"Grüße, 世界"}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, words)
	_ = z.Close()
	r := start(t, func(s *setup) {
		s.sim.Regular = 1
		s.sim.Worker.Wrap = func(_ *sim.Worker, next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != "POST" {
					next.ServeHTTP(w, r)
					return
				}
				if _, err := r.MultipartReader(); err != nil || r.Header.Get("Authorization") != "Bearer secret" {
					w.WriteHeader(401)
					return
				}
				w.Header().Set("Content-Encoding", "gzip")
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(packed.Bytes())
			})
		}
	})
	contentType, body := form(t, "sim-model")
	for _, key := range [][]string{{"Authorization", "Bearer secret"}, {"X-Api-Key", "secret"}} {
		a := r.do("POST", "/v1/audio/transcriptions", body, append(key, "Content-Type", contentType, "Accept-Encoding", "identity")...)
		if a.status != 200 || a.body != packed.String() || a.header.Get("Content-Length") != fmt.Sprint(packed.Len()) || a.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("status %d, %v: %q", a.status, a.header, a.body)
		}
	}
}

// Unknown models were an internal error. On every route they are 404 or 400 in the
// API's form, and no worker is asked.
func TestUnknownModelsOnEveryRoute(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			var count atomic.Int64
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
				}
				s.sim.Worker.Wrap = having(&count)
			})
			bodies := map[string]string{"/v1/messages": messagesBody, "/v1/responses": responsesBody, "/v1/chat/completions": chat}
			for path := range passthroughRoutes {
				bodies[path] = `{"model":"sim-model","input":"x"}`
			}
			for path, body := range bodies {
				for model, status := range map[string]int{`"other"`: 404, `"a/b c é"`: 404, `""`: 400, `7`: 400, `["m"]`: 400, `"` + strings.Repeat("x", 10<<10) + `"`: 404} {
					a := r.do("POST", path, strings.Replace(body, `"sim-model"`, model, 1))
					if a.status != status || !strings.Contains(a.body, `"error"`) {
						t.Errorf("%s %.40s: status %d, want %d: %.200s", path, model, a.status, status, a.body)
					}
				}
			}
			if n := count.Load(); n != 0 {
				t.Errorf("engines were asked %d times", n)
			}
		})
	}
}

// Engines keep responses in their own memory: where there are several, only the
// client can say which one is meant.
func TestStoredResponses(t *testing.T) {
	var seen []string
	r := start(t, func(s *setup) {
		s.sim.Regular = 1
		s.sim.Worker.Wrap = recording(&seen)
	})
	follow := `{"model":"sim-model","input":"x","previous_response_id":"resp_1"}`
	for _, q := range []string{"GET /v1/responses/resp_1?stream=false ", "POST /v1/responses/resp_1/cancel ", "POST /v1/responses " + follow} {
		method, rest, _ := strings.Cut(q, " ")
		path, body, _ := strings.Cut(rest, " ")
		if a := r.do(method, path, body); a.status != 200 || seen[len(seen)-1] != q {
			t.Errorf("%s: status %d: %s; the engine saw %v", q, a.status, a.body, seen)
		}
	}
	for _, path := range []string{"/v1/responses/..", "/v1/responses/a%2fb", "/v1/responses/a/b", "/v1/responses/", "/v1/responses/a/cancel/b"} {
		if a := r.do("POST", path, ""); a.status != 404 && a.status != 405 && a.status != 301 {
			t.Errorf("%s: status %d", path, a.status)
		}
	}
	w, err := r.sim.Add(sim.Regular)
	if err != nil {
		t.Fatal(err)
	}
	r.register(w, "sim-model")
	r.waitFor("the second worker", func() bool { return r.gate.Candidates(admission.RoleRegular) == 2 })
	n := len(seen)
	r.do("GET", "/v1/responses/resp_1", "").refused(t, 400, "invalid_request")
	e := r.do("POST", "/v1/responses", follow).refused(t, 400, "invalid_request")
	if !strings.Contains(e.Message, dispatch.HeaderTargetWorker) || len(seen) != n {
		t.Errorf("%s; the engines saw %v", e.Message, seen[n:])
	}
	for range 4 {
		if a := r.do("POST", "/v1/responses", follow, dispatch.HeaderTargetWorker, "0"); a.status != 200 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
}

// The fields that pair the legs passed in forms, on every passing route, and so did
// JSON that was said to be a form: nobody looked into it.
func TestFormFieldsAreChecked(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			var seen []string
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
				}
				s.sim.Worker.Wrap = recording(&seen)
			})
			const audio, kind = "/v1/audio/transcriptions", "multipart/form-data; boundary=b"
			field := func(name string) string {
				return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\nsim-model\r\n"
			}
			hidden := `{"model":"sim-model","kv_transfer_params":{"a":1},"x":"\r\n--b--\r\n"}`
			for path := range passthroughRoutes {
				want := 415
				if strings.Contains(path, "/audio/") {
					want = 400
				}
				if a := r.do("POST", path, hidden, "Content-Type", kind); a.status != want {
					t.Errorf("%s: status %d, want %d: %s", path, a.status, want, a.body)
				}
			}
			r.do("POST", "/v1/embeddings", field("model")+"--b--\r\n", "Content-Type", kind).refused(t, 415, "unsupported_media_type")
			r.do("POST", audio, field("model")+field("kv_transfer_params")+"--b--\r\n", "Content-Type", kind).refused(t, 400, "invalid_request")
			r.do("POST", audio, field("model")+field("model")+"--b--\r\n", "Content-Type", kind).refused(t, 400, "invalid_request")
			r.do("POST", audio, field("model"), "Content-Type", kind).refused(t, 400, "invalid_request")
			if len(seen) != 0 {
				t.Errorf("the engines saw %q", seen)
			}
			if a := r.do("POST", audio, strings.Repeat(field("x"), 64)+field("model")+"--b--\r\n", "Content-Type", kind); a.status != 200 {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
}
