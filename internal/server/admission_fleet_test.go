package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/sim"
)

// registerAs adds a simulated worker as a client would, with further fields.
func (r *rig) registerAs(w *sim.Worker, extra string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"url":%q,"worker_type":%q%s}`, w.URL(), w.Role(), extra)
	if a := r.do("POST", "/workers", body); a.status != 202 {
		r.t.Fatalf("status %d: %s", a.status, a.body)
	}
}

// ranOn are the simulated workers that an answer names.
func (r *rig) ranOn(a answer) string {
	r.t.Helper()
	name := func(header string) string {
		for _, i := range r.fleet.Infos() {
			if i.ID != a.header.Get(header) {
				continue
			}
			for _, w := range r.sim.Workers() {
				if w.URL() == i.URL {
					return w.ID()
				}
			}
		}
		return "nobody"
	}
	if a.status != 200 {
		return fmt.Sprintf("status %d: %s", a.status, a.body)
	}
	return name(dispatch.HeaderPrefillWorker) + " " + name(dispatch.HeaderDecodeWorker)
}

// everyPair runs some requests and tells on which pairs they ran.
func (r *rig) everyPair(body string, headers ...string) map[string]int {
	r.t.Helper()
	pairs := map[string]int{}
	for range 8 {
		pairs[r.ranOn(r.do("POST", completions, body, headers...))]++
	}
	return pairs
}

func only(pairs map[string]int, want ...string) error {
	seen := 0
	for _, w := range want {
		if pairs[w] > 0 {
			seen++
		}
	}
	if seen != len(want) || len(pairs) != len(want) {
		return fmt.Errorf("ran on %v, want all of %q and nothing else", pairs, want)
	}
	return nil
}

// fourWorkers are two prefill and two decode workers, number 0 of each in zone a
// and number 1 in zone b, for labels and for the transfer of KV.
func fourWorkers(t *testing.T, change func(*setup)) *rig {
	t.Helper()
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode, s.late = 2, 2, true
		smallKV(s)
		if change != nil {
			change(s)
		}
	})
	for _, w := range r.sim.Workers() {
		zone := map[byte]string{'0': "a", '1': "b"}[w.ID()[len(w.ID())-1]]
		r.registerAs(w, fmt.Sprintf(`,"labels":{"zone":%q,"team":"x"},"topology_domain":%q`, zone, "rack-"+zone))
	}
	r.waitFor("all workers", func() bool {
		doc := r.admission()
		n := 0
		for _, k := range doc.Ranks {
			if k.Candidate && k.Capacity.KVBlocks > 0 {
				n++
			}
		}
		return n == 4
	})
	return r
}

// Labels that are required leave the workers that have them all; those that are
// preferred decide among workers with room.
func TestLabelsNarrowTheChoice(t *testing.T) {
	r := fourWorkers(t, nil)
	const require, prefer = dispatch.HeaderRequireLabels, dispatch.HeaderPreferLabels
	body := promptOf(10, "")
	if pairs := r.everyPair(body); len(pairs) < 2 {
		t.Errorf("without labels: %v", pairs)
	}
	for _, tc := range []struct {
		headers []string
		want    string
	}{
		{[]string{require, "zone=a"}, "prefill-0 decode-0"},
		{[]string{require, " zone=b , team=x"}, "prefill-1 decode-1"},
		{[]string{require, "team=x", require, "zone=b"}, "prefill-1 decode-1"},
		{[]string{prefer, "zone=b"}, "prefill-1 decode-1"},
		{[]string{prefer, "zone=a;w=1, zone=b;w=5"}, "prefill-1 decode-1"},
		{[]string{prefer, "zone=c, zone=a"}, "prefill-0 decode-0"},
		{[]string{require, "zone=a", prefer, "zone=b"}, "prefill-0 decode-0"},
	} {
		if err := only(r.everyPair(body, tc.headers...), tc.want); err != nil {
			t.Errorf("%q: %v", tc.headers, err)
		}
	}
	for _, bad := range [][]string{{require, "zone"}, {require, "=a"}, {require, "zone=a;w=3"}, {prefer, "zone=a;w=0"}, {prefer, "zone=a;w=x"}, {prefer, "zone=a;w=99999999"}, {require, strings.Repeat("a=b,", 17)}} {
		e := r.do("POST", completions, body, bad...).refused(t, 400, "invalid_request")
		if !strings.Contains(e.Message, bad[0]) {
			t.Errorf("%q: %s", bad, e.Message)
		}
	}
	// Nobody has them: said at once, with what was asked for.
	a := r.do("POST", completions, body, require, "zone=c")
	if v := a.refusal(t, 503, "no_available_workers"); !strings.Contains(v.Error.Message, require) || v.Error.Admission.Resource != "worker" {
		t.Errorf("%s", a.body)
	}
}

// A pin and labels that contradict each other, or a pair of pins that may not be
// paired, are told so; neither waits.
func TestImpossibleTargets(t *testing.T) {
	r := fourWorkers(t, func(s *setup) { s.cfg.Fleet.KVTransferTopology = "required" })
	body := promptOf(10, "")
	if err := only(r.everyPair(body), "prefill-0 decode-0", "prefill-1 decode-1"); err != nil {
		t.Errorf("one domain: %v", err)
	}
	p, d := dispatch.HeaderTargetWorker, dispatch.HeaderTargetDecode
	if err := only(r.everyPair(body, p, "1"), "prefill-1 decode-1"); err != nil {
		t.Errorf("pinned prefill: %v", err)
	}
	if err := only(r.everyPair(body, d, r.sim.Decode(0).URL()), "prefill-0 decode-0"); err != nil {
		t.Errorf("pinned decode: %v", err)
	}
	for _, headers := range [][]string{
		{p, "0", d, "1"},
		{p, "0", dispatch.HeaderRequireLabels, "zone=b"},
	} {
		v := r.do("POST", completions, body, headers...).refusal(t, 503, "no_available_workers")
		if !strings.Contains(v.Error.Message, p) {
			t.Errorf("%q: %s", headers, v.Error.Message)
		}
	}
	for _, headers := range [][]string{{p, "7"}, {p, "http://nobody:1"}, {d, "0@3"}, {p, r.sim.Decode(0).URL()}} {
		e := r.do("POST", completions, body, headers...).refused(t, 400, "invalid_target")
		if !strings.Contains(e.Message, headers[1]) {
			t.Errorf("%q: %s", headers, e.Message)
		}
	}
}

// With a preferred domain pairs are in one while there is room, and across domains
// otherwise: the gate does not wait for it.
func TestTopologyPreferred(t *testing.T) {
	r := fourWorkers(t, func(s *setup) { s.cfg.Fleet.KVTransferTopology = "preferred" })
	r.gate.SetClasses(classes(admission.Class{Name: "normal", DecodeBusyFrac: ptr(0.5)}))
	body := promptOf(200, "")
	if err := only(r.everyPair(body), "prefill-0 decode-0", "prefill-1 decode-1"); err != nil {
		t.Error(err)
	}
	full := r.block(r.sim.Decode(0), 400, dispatch.HeaderTargetDecode, "0")
	if err := only(r.everyPair(body, dispatch.HeaderTargetWorker, "0"), "prefill-0 decode-1"); err != nil {
		t.Errorf("decode-0 full: %v", err)
	}
	full.leave()
}

// A request for a LoRA adapter runs where the adapter is, in both roles: as the
// workers tell of it, or as they were registered.
func TestAdaptersNarrowTheChoice(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode, s.late = 2, 2, true
		s.sim.Each = func(_ sim.Role, i int, o *sim.WorkerOptions) {
			if i == 1 {
				o.Adapters = []string{"told"}
			}
		}
	})
	for _, w := range r.sim.Workers() {
		extra := ""
		if strings.HasSuffix(w.ID(), "0") {
			extra = `,"adapters":["registered"]`
		}
		r.registerAs(w, extra)
	}
	r.waitFor("adapters", func() bool {
		n := 0
		for _, i := range r.fleet.Infos() {
			if i.IsHealthy {
				n += len(i.Adapters)
			}
		}
		return n == 4
	})
	body := func(model string) string { return strings.Replace(promptOf(10, ""), "sim-model", model, 1) }
	for model, want := range map[string]string{"told": "prefill-1 decode-1", "registered": "prefill-0 decode-0", "sim-model:told": "prefill-1 decode-1"} {
		if err := only(r.everyPair(body(model)), want); err != nil {
			t.Errorf("%s: %v", model, err)
		}
	}
	r.do("POST", completions, body("unheard-of")).refused(t, 404, "model_not_found")
	v := r.do("POST", completions, body("told"), dispatch.HeaderTargetWorker, "0").refusal(t, 503, "no_available_workers")
	if !strings.Contains(v.Error.Message, "told") || !strings.Contains(v.Error.Message, dispatch.HeaderTargetWorker) {
		t.Errorf("%s", v.Error.Message)
	}
	if a := r.do("GET", "/v1/models", ""); !strings.Contains(a.body, `"told"`) || !strings.Contains(a.body, `"registered"`) {
		t.Errorf("models %s", a.body)
	}
}

// Reject thresholds can be read and changed while the router runs, and what is
// refused by them is refused at once.
func TestBusyThreshold(t *testing.T) {
	r := startClasses(t, classes(admission.Class{Name: "normal"}), nil)
	get := func() (d thresholdsDoc) {
		t.Helper()
		a := r.do("GET", "/busy_threshold", "")
		if err := json.Unmarshal([]byte(a.body), &d); err != nil || a.status != 200 || strings.Count(a.body, "threshold") != 3 {
			t.Fatalf("status %d, %v: %s", a.status, err, a.body)
		}
		return d
	}
	if d := get(); d != (thresholdsDoc{}) {
		t.Errorf("at the start %+v", d)
	}
	full := r.block(r.sim.Decode(0), 600)
	for _, bad := range []string{
		``, `7`, `[]`, `{"active_decode_blocks_threshold":1.5}`, `{"active_decode_blocks_threshold":-0.1}`, `{"active_decode_blocks_threshold":"0.5"}`,
		`{"active_prefill_tokens_threshold":-1}`, `{"active_prefill_tokens_threshold":1.5}`, `{"active_prefill_tokens_threshold_frac":-1}`,
		`{"active_decode_threshold":0.5}`, `{"active_decode_blocks_threshold":0.5}{}`, `{"active_decode_blocks_threshold":0.5,"model":"m"}`,
	} {
		r.do("POST", "/busy_threshold", bad).refused(t, 400, "invalid_request")
	}
	if d := get(); d != (thresholdsDoc{}) {
		t.Errorf("after bad ones %+v", d)
	}
	if a := r.do("POST", "/busy_threshold", `{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":100}`); a.status != 200 || !strings.Contains(a.body, `"active_decode_blocks_threshold":0.5`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	v := r.do("POST", completions, promptOf(10, "")).refusal(t, 429, "all_workers_overloaded")
	if v.Error.Admission.Resource != "overloaded" || v.Error.Details != nil {
		t.Errorf("%+v", v.Error)
	}
	if d := r.rank("decode"); !d.Overloaded || r.rank("prefill").Overloaded {
		t.Errorf("rank %+v", d)
	}
	if n := r.metric(`sluice_admission_rejections_total{class="normal",reason="all_workers_overloaded"}`); n != 1 {
		t.Errorf("%v rejections counted", n)
	}
	// One that is refused changes nothing of those in force, nor does a good one
	// change what the configuration holds.
	own := ptr(0.5)
	r.gate.SetRejectThresholds(admission.RejectThresholds{ActiveDecodeBlocks: own, ActivePrefillTokens: ptr(int64(100))})
	r.do("POST", "/busy_threshold", `{"active_decode_blocks_threshold":7}`).refused(t, 400, "invalid_request")
	r.do("POST", "/busy_threshold", `{"active_decode_blocks_threshold":0.9,"unknown":1}`).refused(t, 400, "invalid_request")
	if d := get(); d.DecodeBlocks == nil || *d.DecodeBlocks != 0.5 {
		t.Errorf("a refused change is in force: %+v", d)
	}
	if a := r.do("POST", "/busy_threshold", `{"active_decode_blocks_threshold":0.4}`); a.status != 200 || *own != 0.5 || *get().DecodeBlocks != 0.4 {
		t.Errorf("status %d, %v is in the configuration: %s", a.status, *own, a.body)
	}
	// An absent field stays, null takes away.
	if a := r.do("POST", "/busy_threshold", `{"active_decode_blocks_threshold":null}`); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if d := get(); d.DecodeBlocks != nil || d.PrefillTokens == nil || *d.PrefillTokens != 100 {
		t.Errorf("after null %+v", d)
	}
	if d := r.admission().Thresholds; d.DecodeBlocks != nil || d.PrefillTokens == nil {
		t.Errorf("/admission tells %+v", d)
	}
	if a := r.do("POST", completions, promptOf(10, "")); a.status != 200 {
		t.Errorf("with room: status %d: %s", a.status, a.body)
	}
	full.leave()
	if n := r.status("DELETE", "/busy_threshold", ""); n != 405 {
		t.Errorf("DELETE: %d", n)
	}
}

// The threshold's status can be the one that clients of policy classes know.
func TestOverloadedWithStatus529(t *testing.T) {
	r := start(t, func(s *setup) { smallKV(s); s.cfg.Admission.OverloadStatus = 529 })
	r.waitCapacity()
	r.gate.SetRejectThresholds(admission.RejectThresholds{ActivePrefillTokens: ptr(int64(5))})
	full := r.block(r.sim.Prefill(0), 6)
	if v := r.do("POST", completions, promptOf(1, "")).refusal(t, 529, "all_workers_overloaded"); v.Error.Type != "overloaded_error" {
		t.Errorf("%+v", v.Error)
	}
	full.leave()
}

// reloads is a Reloader that a test holds in its hands.
type reloads struct {
	err   error
	times int
}

func (r *reloads) Reload() error { r.times++; return r.err }

func (r *reloads) State() ReloadState {
	s := ReloadState{Generation: 1 + r.times, Trigger: "request", Warnings: []string{"careful"}}
	if r.err != nil {
		s.Error = r.err.Error()
	}
	return s
}

func TestReloadRoute(t *testing.T) {
	h := &reloads{}
	r := start(t, func(s *setup) { s.server.Reload = h })
	if a := r.do("POST", "/admission/reload", ""); a.status != 200 || !strings.Contains(a.body, `"generation":2`) || !strings.Contains(a.body, "careful") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	h.err = errors.New("policy_classes[0].quantum: must be more")
	e := r.do("POST", "/admission/reload", "").refused(t, 400, "invalid_request")
	if !strings.Contains(e.Message, "policy_classes[0].quantum") || !strings.Contains(e.Message, "last good one") {
		t.Errorf("%s", e.Message)
	}
	if doc := r.admission(); doc.Reload == nil || !strings.Contains(doc.Reload.Error, "quantum") {
		t.Errorf("the document tells %+v", doc.Reload)
	}
	if n := r.status("GET", "/admission/reload", ""); n != 405 {
		t.Errorf("GET: %d", n)
	}
	plain := start(t, nil)
	plain.do("POST", "/admission/reload", "").refused(t, 400, "invalid_request")
}

// Who may look and who may change.
func TestKeysOfAdmissionRoutes(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Auth.APIKeys, s.cfg.Auth.AdminAPIKey, s.server.Reload = []config.Secret{"user"}, "boss", &reloads{}
	})
	for _, tc := range []struct {
		method, path string
		user         int
	}{{"GET", "/admission", 200}, {"GET", "/busy_threshold", 200}, {"POST", "/busy_threshold", 401}, {"POST", "/admission/reload", 401}} {
		for key, want := range map[string]int{"": 401, "user": tc.user, "boss": 200, "other": 401} {
			if got := r.status(tc.method, tc.path, map[string]string{"POST": "{}"}[tc.method], "Authorization", "Bearer "+key); got != want {
				t.Errorf("%s %s with key %q: %d, want %d", tc.method, tc.path, key, got, want)
			}
		}
	}
}
