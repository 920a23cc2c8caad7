package server

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
)

// field is the value of one field of a line of the log in text, "" if it has none.
func field(line, name string) string {
	_, v, _ := strings.Cut(line, " "+name+"=")
	v, _, _ = strings.Cut(v, " ")
	return v
}

// TestAccessLineOfARefusal keeps away a refusal of which the log tells neither the
// class nor what was lacking, in another word than the client's, and at a level
// that production does not log.
func TestAccessLineOfARefusal(t *testing.T) {
	r := startClasses(t, classes(
		admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5), PrefillBusyFrac: ptr(0.1)},
		admission.Class{Name: "never", DecodeBusyFrac: ptr(0.5), RequestLimitPerWorker: ptr(0.0)},
	), func(s *setup) { s.sim.Regular = 1 })
	w := r.sim.Regular(0)
	full := r.block(w, 101)
	waited := r.fly(promptOf(10, ""), withID, "waited")
	r.waitDepth("normal", 1)
	full.leave()
	waited.good(t)
	full = r.block(w, 450)
	r.do("POST", completions, promptOf(100, ""), append(class("never"), withID, "refused")...).refusal(t, 429, "policy_class_queue_full")
	full.leave()

	want := map[string]map[string]string{
		"refused": {"level": "WARN", "class": "never", "resource": "decode_blocks", "status": "429", "reason": "policy_class_queue_full", "client": "127.0.0.1"},
		"waited":  {"level": "INFO", "class": "normal", "resource": "prefill_tokens", "status": "200", "reason": "ok", "decode": w.URL(), "client": "127.0.0.1"},
	}
	for id, fields := range want {
		line := r.line(id)
		for name, v := range fields {
			if got := field(line, name); got != v {
				t.Errorf("%s: %s is %q, want %q in %s", id, name, got, v, line)
			}
		}
	}
	if got := r.metric(`sluice_requests_total{reason="policy_class_queue_full",route="completions",status="429"}`); got != 1 {
		t.Errorf("the metric counts %v by the client's word", got)
	}
}

// TestWorkerHasOneNameInLogAndHeaders keeps away the dictionary between what a client was told
// and what log and metrics say, which is gone when the worker is.
func TestWorkerHasOneNameInLogAndHeaders(t *testing.T) {
	r := start(t, nil)
	a := r.do("POST", "/v1/chat/completions", chat, withID, "named")
	line := r.line("named")
	for leg, header := range map[string]string{"prefill": "X-Sluice-Prefill-Worker", "decode": "X-Sluice-Decode-Worker"} {
		id := a.header.Get(header)
		if id == "" || strings.Contains(id, "127.0.0.1") {
			t.Fatalf("%s is %q", header, id)
		}
		url := field(line, leg)
		if got := field(line, leg+"_id"); got != id {
			t.Errorf("the log calls the %s worker %q, the client was told %q", leg, got, id)
		}
		if got := r.metric(`sluice_worker_up{role="` + leg + `",worker="` + url + `",worker_id="` + id + `"}`); got != 1 {
			t.Errorf("no metric has both names of the %s worker", leg)
		}
		if doc := r.do("GET", "/admission", "").body; !strings.Contains(doc, `"id":"`+url+`","worker_id":"`+id+`"`) {
			t.Errorf("/admission has not both names of the %s worker: %s", leg, doc)
		}
	}
}

// TestReadsOfOperatorsAreNotLoggedAtInfo keeps away a log that fills with whoever
// watches it.
func TestReadsOfOperatorsAreNotLoggedAtInfo(t *testing.T) {
	r := start(t, nil)
	for path, level := range map[string]string{
		"/workers": "DEBUG", "/admission": "DEBUG", "/busy_threshold": "DEBUG", "/livez": "DEBUG", "/readyz": "DEBUG",
		"/v1/models": "INFO", "/workers/nobody": "INFO", "/nowhere": "INFO",
	} {
		id := "read" + strings.ReplaceAll(path, "/", "-")
		r.do("GET", path, "", withID, id)
		if got := field(r.line(id), "level"); got != level {
			t.Errorf("GET %s is logged at %s, want %s", path, got, level)
		}
	}
}

// TestFailuresAreLoggedAtWarn: what an engine failed is seen where only warnings
// are, and a client's own mistake is not there.
func TestFailuresAreLoggedAtWarn(t *testing.T) {
	r := start(t, nil)
	r.do("POST", "/v1/chat/completions", "{", withID, "mistake")
	for _, w := range r.sim.Workers() {
		w.Kill()
	}
	if a := r.do("POST", "/v1/chat/completions", chat, withID, "broken"); a.status < 500 {
		t.Fatalf("status %d without an engine", a.status)
	}
	for id, level := range map[string]string{"mistake": "INFO", "broken": "WARN"} {
		if line := r.line(id); field(line, "level") != level {
			t.Errorf("want level %s in %s", level, line)
		}
	}
}

func TestPeer(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.1:80": "10.0.0.1", "[::1]:80": "::1", "[fe80::1%eth0]:1": "fe80::1%eth0", "": "", "@": "@"} {
		if got := peer(addr); got != want {
			t.Errorf("peer(%q) is %q, want %q", addr, got, want)
		}
	}
}

// withID names a request of these tests.
const withID = "X-Request-Id"

// TestNamesOfKeys: who sends a request is seen, the key is not, and keys are replaced
// while the router runs.
func TestNamesOfKeys(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Auth.APIKeys, s.cfg.KeyNames = []config.Secret{"secret-1", "secret-2"}, []string{"team-a"}
	})
	ask := func(id, key string) int {
		return r.do("POST", "/v1/chat/completions", chat, withID, id, "Authorization", "Bearer "+key).status
	}
	if got := []int{ask("named", "secret-1"), ask("nameless", "secret-2"), ask("wrong", "secret-3")}; got[0] != 200 || got[1] != 200 || got[2] != 401 {
		t.Fatalf("statuses %v", got)
	}
	for id, name := range map[string]string{"named": "team-a", "nameless": "", "wrong": ""} {
		if got := field(r.line(id), "key"); got != name {
			t.Errorf("the key of %s is called %q, want %q", id, got, name)
		}
	}
	if n := r.metric(`sluice_key_requests_total{key="team-a"}`); n != 1 {
		t.Errorf("%v requests with the key", n)
	}
	r.srv.Reload(configtest.New(func(c *config.Config) {
		c.Auth.APIKeys, c.KeyNames = []config.Secret{"secret-3"}, []string{"team-b"}
	}))
	if got := []int{ask("old", "secret-1"), ask("new", "secret-3")}; got[0] != 401 || got[1] != 200 {
		t.Errorf("statuses %v after the change", got)
	}
	if p := r.metricsPage(); strings.Contains(p, "team-a") || !strings.Contains(p, `sluice_key_requests_total{key="team-b"} 1`) || strings.Contains(p+r.log.String(), "secret-") {
		t.Error("a series outlives its key, or a key is told")
	}
}

// The hashes tell which prompts begin alike, and have the log say nothing else of them. They
// depend on no policy, and are not there unless they are asked for.
func TestAccessLineHasHashesOfThePrompt(t *testing.T) {
	shared := strings.Repeat("What all prompts begin with. ", 160) // 4,640 bytes
	ask := func(r *rig, id, prompt string) string {
		if a := r.do("POST", completions, `{"model":"sim-model","max_tokens":2,"prompt":"`+prompt+`"}`, withID, id); a.status != 200 {
			t.Fatalf("%d: %s", a.status, a.body)
		}
		return r.line(id)
	}
	r := start(t, func(s *setup) { s.cfg.Log.AccessPrefixHashes = true })
	one := ask(r, "one", shared+strings.Repeat("secret ", 500))
	two := ask(r, "two", shared+strings.Repeat("hidden ", 900))
	a, b := field(one, "prefix_hashes"), field(two, "prefix_hashes")
	if len(a) != 32 || len(b) <= len(a) || a[:20] != b[:20] || a[22:32] == b[22:32] {
		t.Errorf("the hashes are %s and %s", a, b)
	}
	for name, least := range map[string]int{"prompt_tokens": 1000, "output_tokens": 2} {
		if n, err := strconv.Atoi(field(one, name)); err != nil || n < least {
			t.Errorf("%s is %q", name, field(one, name))
		}
	}
	if got := field(ask(r, "short", "hello"), "prefix_hashes"); got != "" {
		t.Errorf("a short prompt has the hashes %q", got)
	}
	r = start(t, nil)
	if line := ask(r, "none", shared); strings.Contains(line, "prefix_hashes") {
		t.Errorf("not asked for: %s", line)
	}
}
