package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
)

func TestKeysOfClients(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.APIKeys = []config.Secret{"key-1", "key-2"} })
	for _, tc := range []struct {
		auth []string
		ok   bool
	}{
		{[]string{"Bearer key-1"}, true},
		{[]string{"Bearer key-2"}, true},
		{[]string{"bearer  key-2 "}, true},
		{nil, false},
		{[]string{""}, false},
		{[]string{"key-1"}, false},
		{[]string{"Basic key-1"}, false},
		{[]string{"Bearer"}, false},
		{[]string{"Bearer "}, false},
		{[]string{"Bearer key-"}, false},
		{[]string{"Bearer key-11"}, false},
		{[]string{"Bearer key-1,key-2"}, false},
		{[]string{"Bearer key-1", "Bearer key-1"}, false},
	} {
		var h []string
		for _, a := range tc.auth {
			h = append(h, "Authorization", a)
		}
		for _, path := range []string{"/v1/chat/completions", "/v1/models", "/workers"} {
			method, body := "GET", ""
			if strings.HasSuffix(path, "completions") {
				method, body = "POST", chat
			}
			a := r.do(method, path, body, h...)
			if tc.ok {
				if a.status != 200 {
					t.Errorf("%q %s: status %d", tc.auth, path, a.status)
				}
				continue
			}
			a.refused(t, 401, "invalid_api_key")
			if a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("WWW-Authenticate is %q", a.header.Get("WWW-Authenticate"))
			}
		}
	}
	for _, path := range []string{"/health", "/livez", "/liveness", "/readyz", "/readiness"} {
		if got := r.status("GET", path, ""); got != 200 {
			t.Errorf("%s without a key: status %d", path, got)
		}
	}
	if l := r.log.String(); strings.Contains(l, "key-1") || strings.Contains(l, "key-2") {
		t.Error("the log has a key in it")
	}
	if p := r.metricsPage(); strings.Contains(p, "key-1") || !strings.Contains(p, `reason="invalid_api_key",route="chat_completions",status="401"`) {
		t.Error("the metrics have a key in them, or lack the refusals")
	}
}

// The client's key for the router is no business of the engines.
func TestClientKeyIsNotForwarded(t *testing.T) {
	const client, worker = "client-key", "worker-key"
	for _, tc := range []struct {
		name      string
		asked     bool   // the router asks for a key
		worker    string // the router has a key for its workers
		wantFirst string
	}{
		{"asked, workers with a key", true, worker, "Bearer " + worker},
		{"asked, workers without", true, "", ""},
		{"not asked, workers with a key", false, worker, "Bearer " + worker},
		{"not asked, workers without", false, "", "Bearer " + client},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, func(s *setup) {
				if tc.asked {
					s.cfg.Auth.APIKeys = []config.Secret{config.Secret(client)}
				}
				s.cfg.Auth.WorkerAPIKey = config.Secret(tc.worker)
				s.sim.Worker.APIKey = tc.worker
			})
			for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/generate"} {
				body := map[string]string{"/v1/chat/completions": chat, "/v1/completions": `{"prompt":"x"}`, "/generate": `{"text":"x"}`}[path]
				if a := r.do("POST", path, body, "Authorization", "Bearer "+client, "X-Api-Key", client, "Cookie", client); a.status != 200 {
					t.Fatalf("%s: status %d: %s", path, a.status, a.body)
				}
			}
			for _, w := range r.sim.Workers() {
				for _, q := range append(w.Requests(), w.Probes()...) {
					want := tc.wantFirst
					if q.Method != http.MethodPost && tc.worker == "" {
						want = "" // a probe is nobody's request
					}
					if got := q.Header.Get("Authorization"); got != want {
						t.Errorf("%s %s %s was sent Authorization %q, want %q", w.ID(), q.Method, q.Path, got, want)
					}
					if q.Header.Get("X-Api-Key") != "" || q.Header.Get("Cookie") != "" {
						t.Errorf("%s %s was sent %v", w.ID(), q.Path, q.Header)
					}
				}
			}
		})
	}
}

func TestAdminKeyGuardsWhatChangesTheFleet(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.AdminAPIKey, s.cfg.Auth.APIKeys = "root", []config.Secret{"k"} })
	w := `{"url":"http://127.0.0.1:9","worker_type":"decode"}`
	// The words say which key is asked for, and nothing of the one that was sent.
	const words = "this route needs the admin key (--admin-api-key), and it is missing or wrong; send it as \"Authorization: Bearer KEY\""
	for _, auth := range []string{"", "Bearer k", "Bearer roo"} {
		for _, a := range []answer{
			r.do("POST", "/workers", w, "Authorization", auth),
			r.do("DELETE", "/workers/w1", "", "Authorization", auth),
			r.do("POST", "/admission/reload", "", "Authorization", auth),
			r.do("POST", "/busy_threshold", "{}", "Authorization", auth),
		} {
			if e := a.refused(t, 401, "invalid_api_key"); e.Message != words {
				t.Errorf("%q: %q", auth, e.Message)
			}
		}
	}
	if got := r.status("POST", "/workers", w, "Authorization", "Bearer root"); got != 202 {
		t.Errorf("status %d", got)
	}
	for auth, want := range map[string]int{"": 401, "Bearer k": 200, "Bearer root": 200} {
		if got := r.status("GET", "/workers", "", "Authorization", auth); got != want {
			t.Errorf("GET with %q: status %d, want %d", auth, got, want)
		}
	}
	r.do("POST", "/v1/chat/completions", chat, "Authorization", "Bearer root").refused(t, 401, "invalid_api_key")
}

// Without an admin key the connection tells who is here; headers can say
// anything, and a browser or a proxy here speaks for others.
func TestWithoutAdminKeyOnlyThisMachineChangesTheFleet(t *testing.T) {
	r := start(t, nil)
	w := `{"url":"http://127.0.0.1:9","worker_type":"decode"}`
	for _, h := range []string{"Origin", "X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip", "X-Forwarded-Host", "Cf-Connecting-Ip", "Sec-Fetch-Site"} {
		e := r.do("POST", "/workers", w, h, "http://page.example").refused(t, 403, "forbidden")
		if !strings.Contains(e.Message, h) || !strings.Contains(e.Message, "--admin-api-key") {
			t.Errorf("message %s", e.Message)
		}
	}
	if got := r.status("POST", "/workers", w); got != 202 {
		t.Errorf("status %d", got)
	}
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true,
		"10.0.0.1:1": false, "[::ffff:10.0.0.1]:1": false, "[fe80::1%eth0]:1": false, "": false, "@": false,
	} {
		req, err := http.NewRequest("POST", "/workers", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.RemoteAddr, req.Host = addr, "localhost:1"
		if !want { // no header makes anybody local
			req.Header.Set("X-Real-Ip", "127.0.0.1")
			req.Header.Set("Host", "localhost")
		}
		e, _ := (&request{s: r.srv, r: req}).authorize(admin)
		if (e == nil) != want || e != nil && (e.Status != 403 || !strings.Contains(e.Message, "loopback")) {
			t.Errorf("%q: %v", addr, e)
		}
	}
}

// A proxy on this machine that adds no header made everybody local: nginx speaks
// HTTP/1.0 where nothing else is set, others pass the name on that was asked for.
func TestWithoutAdminKeyHeadersOfAQuietProxyAreNotLocal(t *testing.T) {
	r := start(t, nil)
	const body = `{"url":"http://127.0.0.1:9","worker_type":"decode"}`
	for host, want := range map[string]int{
		"localhost": 202, "LOCALHOST:80": 202, "sluice.localhost:1": 202, "localhost.": 202, "127.0.0.1:30000": 202, "127.1.2.3": 202, "[::1]:30000": 202, "[::1]": 202,
		"router.example": 403, "localhost.example": 403, "10.0.0.1": 403, "notlocalhost": 403,
	} {
		for _, version := range []string{"1.1", "1.0"} {
			status := want
			if version == "1.0" {
				status = 403
			}
			c := r.dial()
			c.send(fmt.Sprintf("POST /workers HTTP/%s\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", version, host, len(body), body))
			if a := c.read(); a.status != status {
				t.Errorf("HTTP/%s, Host %s: status %d, want %d: %s", version, host, a.status, status, a.body)
			}
			_ = c.Close()
		}
	}
}

// With keys asked of clients, to be on this machine is not enough.
func TestWithoutAdminKeyClientsKeyIsAskedForToo(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.APIKeys = []config.Secret{"k"} })
	r.do("DELETE", "/workers/w1", "").refused(t, 401, "invalid_api_key")
	r.do("DELETE", "/workers/w1", "", "Authorization", "Bearer k").refused(t, 404, "worker_not_found")
}

// A worker that refuses a client's key is a healthy worker.
func TestUnauthorizedFromAWorkerReachesTheClient(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 1
		s.sim.Worker.APIKey = "w"
		s.cfg.CircuitBreaker.FailureThreshold = 3
	})
	f := func(key string, want int) {
		t.Helper()
		if a := r.do("POST", "/v1/chat/completions", strings.Replace(chat, `"model":"sim-model",`, "", 1), "Authorization", "Bearer "+key); a.status != want {
			t.Errorf("key %s: status %d, want %d: %s", key, a.status, want, a.body)
		}
	}
	f("w", 200)
	for range 10 {
		f("wrong", 401)
	}
	f("w", 200)
	if l := r.workers(); l.Total != 1 || !l.Workers[0].IsHealthy {
		t.Errorf("%+v", l)
	}
}

// A 401 says which kind of key its route takes, whichever was sent.
func TestRefusedKeysSayWhichKindIsNeeded(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Auth.APIKeys, s.cfg.Auth.AdminAPIKey = []config.Secret{"client-key"}, "admin-key"
	})
	const ofClient, ofAdmin = "a client's API key (--api-key)", "the admin key (--admin-api-key)"
	for _, tc := range []struct {
		method, path, body string
		want               []string
		not                string
	}{
		{"POST", "/v1/chat/completions", chat, []string{ofClient}, ofAdmin},
		{"GET", "/v1/models", "", []string{ofClient}, ofAdmin},
		{"GET", "/workers", "", []string{ofClient, ofAdmin}, ""},
		{"GET", "/workers/x", "", []string{ofClient, ofAdmin}, ""},
		{"GET", "/admission", "", []string{ofClient, ofAdmin}, ""},
		{"GET", "/busy_threshold", "", []string{ofClient, ofAdmin}, ""},
		{"POST", "/workers", "{}", []string{ofAdmin}, ofClient},
		{"DELETE", "/workers/x", "", []string{ofAdmin}, ofClient},
		{"POST", "/admission/reload", "", []string{ofAdmin}, ofClient},
	} {
		a := r.do(tc.method, tc.path, tc.body, "Authorization", "Bearer wrong")
		a.refused(t, 401, "invalid_api_key")
		for _, want := range tc.want {
			if !strings.Contains(a.body, want) {
				t.Errorf("%s %s does not say %q: %s", tc.method, tc.path, want, a.body)
			}
		}
		if tc.not != "" && strings.Contains(a.body, tc.not) {
			t.Errorf("%s %s speaks of %q: %s", tc.method, tc.path, tc.not, a.body)
		}
	}
}
