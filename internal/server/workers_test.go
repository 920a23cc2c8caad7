package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/fleet"
)

type workerList struct {
	Workers []fleet.Info
	Total   int
	Stats   map[string]int
}

func (r *rig) workers() workerList {
	r.t.Helper()
	var l workerList
	if err := json.Unmarshal([]byte(r.do("GET", "/workers", "").body), &l); err != nil {
		r.t.Fatal(err)
	}
	return l
}

func TestWorkersComeAndGo(t *testing.T) {
	r := start(t, func(s *setup) { s.late = true })
	p, d := r.sim.Prefill(0), r.sim.Decode(0)
	if l := r.workers(); l.Total != 0 || len(l.Workers) != 0 {
		t.Errorf("%+v", l)
	}
	add := func(body string) (id string) {
		t.Helper()
		a := r.do("POST", "/workers", body)
		var got map[string]string
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 202 || got["status"] != "accepted" ||
			got["worker_id"] == "" || got["location"] != "/workers/"+got["worker_id"] || a.header.Get("Location") != got["location"] {
			t.Fatalf("status %d: %s: %v", a.status, a.body, err)
		}
		return got["worker_id"]
	}
	pid := add(fmt.Sprintf(`{"url":%q,"worker_type":"prefill","bootstrap_port":%d}`, p.URL(), p.BootstrapPort()))
	did := add(fmt.Sprintf(`{"url":%q,"worker_type":"decode"}`, d.URL()+"/"))
	if again := add(fmt.Sprintf(`{"url":%q,"worker_type":"decode","bootstrap_port":null}`, d.URL())); again != did {
		t.Errorf("the same URL is now %s, was %s", again, did)
	}
	status := func(id string) string {
		a := r.do("GET", "/workers/"+id, "")
		if a.status == 404 {
			a.refused(t, 404, "worker_not_found")
			return "gone"
		}
		var i fleet.Info
		if err := json.Unmarshal([]byte(a.body), &i); err != nil || i.ID != id {
			t.Fatalf("%s: %v", a.body, err)
		}
		return string(i.Status)
	}
	r.waitFor("both to be ready", func() bool { return status(pid) == "ready" && status(did) == "ready" })
	if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	l := r.workers()
	if l.Total != 2 || l.Stats["prefill_count"] != 1 || l.Stats["decode_count"] != 1 || l.Stats["healthy_count"] != 2 ||
		l.Workers[0].ID != pid || l.Workers[0].WorkerType != "prefill" || l.Workers[0].ModelID != "sim-model" || !l.Workers[0].IsHealthy {
		t.Errorf("%+v", l)
	}

	// A worker with a request drains, and is gone when that is over.
	d.SetTiming(endless)
	c := r.dial()
	c.post("/v1/chat/completions", len(chat)+12, strings.Replace(chat, `"max_tokens":3`, `"max_tokens":100000`, 1)+strings.Repeat(" ", 7))
	if err := d.WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	a := r.do("DELETE", "/workers/"+did, "")
	if a.status != 202 || !strings.Contains(a.body, `"worker_id":"`+did+`"`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if got := status(did); got != "draining" {
		t.Errorf("it is %s", got)
	}
	if got := r.status("GET", "/readyz", ""); got != 503 {
		t.Errorf("readiness %d without a decode worker", got)
	}
	_ = c.Close()
	r.waitFor("its end", func() bool { return status(did) == "gone" })
	// One line says who ordered it and how many requests it had, one that it is gone.
	// The log is written by a goroutine of its own.
	var said []string
	r.waitFor("two lines of its removal", func() bool {
		said = said[:0]
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, "remove") && strings.Contains(line, d.URL()) && strings.HasSuffix(line, "\n") {
				said = append(said, line)
			}
		}
		return len(said) >= 2
	})
	if len(said) != 2 || !strings.Contains(said[0], " client=127.0.0.1 ") || !strings.Contains(said[0], " requests=1\n") ||
		!strings.Contains(said[0], " request="+a.header.Get("X-Request-Id")+" ") || !strings.Contains(said[1], " requests=0\n") {
		t.Errorf("the log says of the removal:\n%s", strings.Join(said, ""))
	}
	r.do("DELETE", "/workers/"+did, "").refused(t, 404, "worker_not_found")
	r.do("GET", "/workers/"+strings.Repeat("x", 5000), "").refused(t, 404, "worker_not_found")
}

func TestWorkerDescriptionsThatAreRefused(t *testing.T) {
	r := start(t, func(s *setup) { s.late = true })
	for _, tc := range []struct{ body, param, says string }{
		{`{"worker_type":"decode"}`, "url", "missing"},
		{`{"url":"ftp://x","worker_type":"decode"}`, "url", "http"},
		{`{"url":"http://","worker_type":"decode"}`, "url", ""},
		{`{"url":"http://a b","worker_type":"decode"}`, "url", ""},
		{`{"url":"http://x:99999","worker_type":"decode"}`, "url", ""},
		{`{"url":"http://user:secret@x","worker_type":"decode"}`, "url", ""},
		{`{"url":"` + strings.Repeat("x", 3000) + `","worker_type":"decode"}`, "url", ""},
		{`{"url":"http://x"}`, "worker_type", "prefill or decode"},
		{`{"url":"http://x","worker_type":"regular"}`, "worker_type", "prefill or decode"},
		{`{"url":"http://x","worker_type":"boss"}`, "worker_type", ""},
		{`{"url":"http://x","worker_type":"prefill","bootstrap_port":0}`, "bootstrap_port", ""},
		{`{"url":"http://x","worker_type":"prefill","bootstrap_port":70000}`, "bootstrap_port", ""},
		{`{"url":"http://x","worker_type":"prefill","bootstrap_port":"8998"}`, "bootstrap_port", ""},
		{`{"url":"http://x","worker_type":"decode","bootstrap_port":8998}`, "bootstrap_port", "prefill"},
		{`{"url":"http://x","worker_type":"decode","cost":1}`, "", "cost"},
		{`{"url":"http://x","worker_type":"decode","priority":-1}`, "priority", "between 0 and 1000"},
		{`{"url":"http://x","worker_type":"decode","priority":"high"}`, "priority", "whole number"},
		{`{"url":"http://x","worker_type":"decode","prefill_max_inflight_requests":-1}`, "prefill_max_inflight_requests", "between"},
		{`{"URL":"http://x","worker_type":"decode"}`, "", `did you mean "url"?`},
		{`{"url":"http://x","Worker_Type":"decode"}`, "", `did you mean "worker_type"?`},
		{`{"url":"http://x","worker_type":"decode","url":"http://y"}`, "", `"url" is given twice`},
		{`{"url":"http://x","worker_type":"decode","labels":{"a":"b","\u0061":"c"}}`, "", `"a" is given twice`},
		{`{"url":"http://x","worker_type":"decode","model-id":"m"}`, "", `unknown field "model-id"; did you mean "model_id"?`},
		{`{"url":"http://x","worker_tpye":"decode"}`, "", `unknown field "worker_tpye"; did you mean "worker_type"?`},
		{`{"url":"http://x","worker_type":"Decode"}`, "worker_type", `worker_type is "Decode"; it must be prefill or decode`},
		{`{"url":"http://x","worker_type":"Decode"}`, "worker_type", `did you mean "decode"?`},
		{`{"url":"http://x","worker_type":"decode","block_size":"16"}`, "block_size", "block_size must be a whole number, not a string"},
		{`{"url":"http://x","worker_type":"decode","block_size":1.5}`, "block_size", "block_size must be a whole number, not 1.5"},
		{`{"url":"http://x","worker_type":"decode","labels":{"a":1}}`, "labels", "a value in labels must be a string, not a number"},
		{`{"url":"http://x","worker_type":"decode","adapters":[1]}`, "adapters", "a value in adapters must be a string, not a number"},
		{`{"url":"http://x","worker_type":"decode","adapters":{}}`, "adapters", "adapters must be an array of strings, not an object"},
		{`{"url":7}`, "url", "url must be a string, not a number"},
		{`[]`, "", "the request body is an array; it must be a JSON object"},
		{``, "", "the request body is empty; send a JSON object"},
		{`url=http://x`, "", `the request body is not valid JSON: unexpected "u" at byte 0`},
		{`{"url":"http://x"`, "", "ends unfinished"},
		{`{} {}`, "", "more data after the JSON object"},
		{`{"url":"http://x","worker_type":"decode"}]`, "", ""},
	} {
		e := r.do("POST", "/workers", tc.body).refused(t, 400, "invalid_request")
		if tc.param == "" && e.Param != nil || tc.param != "" && (e.Param == nil || *e.Param != tc.param) || !strings.Contains(e.Message, tc.says) || strings.Contains(e.Message, "secret") {
			t.Errorf("%.80s: param %v: %s", tc.body, e.Param, e.Message)
		}
	}
	r.do("POST", "/workers", `{"url":"`+strings.Repeat("x", maxWorkerBody)).refused(t, 413, "request_too_large")
	if l := r.workers(); l.Total != 0 {
		t.Errorf("%d workers were registered", l.Total)
	}
}

func TestAggregatedRouterTakesRegularWorkersOnly(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 1, true })
	e := r.do("POST", "/workers", `{"url":"http://x","worker_type":"decode"}`).refused(t, 400, "invalid_request")
	if !strings.Contains(e.Message, "--pd-disaggregation") {
		t.Errorf("message %s", e.Message)
	}
	e = r.do("POST", "/workers", `{"url":"http://x","worker_type":"boss"}`).refused(t, 400, "invalid_request")
	if e.Message != `worker_type is "boss"; it must be regular, or absent: prefill and decode workers need --pd-disaggregation` {
		t.Errorf("message %s", e.Message)
	}
	if got := r.status("POST", "/workers", fmt.Sprintf(`{"url":%q}`, r.sim.Regular(0).URL())); got != 202 {
		t.Errorf("status %d", got)
	}
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
}

// Entries of an earlier registration once lived on beside the new ones.
func TestSameURLWithOtherSettingsReplacesTheWorker(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Prefill, s.sim.Decode, s.late = 1, 2, true
		s.sim.Worker.Disable = []string{"/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"}
	})
	p, x, d := r.sim.Prefill(0), r.sim.Decode(0), r.sim.Decode(1)
	add := func(url, role, model string) {
		t.Helper()
		body := fmt.Sprintf(`{"url":%q,"worker_type":%q,"model_id":%q}`, url, role, model)
		if role == "prefill" {
			body = strings.Replace(body, "}", fmt.Sprintf(`,"bootstrap_port":%d}`, p.BootstrapPort()), 1)
		}
		if a := r.do("POST", "/workers", body); a.status != 202 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	add(x.URL(), "prefill", "m0")
	add(x.URL(), "decode", "m1")
	add(p.URL(), "prefill", "m1")
	add(d.URL(), "decode", "m1")
	ask := func(model string) answer {
		return r.do("POST", "/v1/chat/completions", strings.Replace(chat, "sim-model", model, 1))
	}
	r.waitFor("m1", func() bool { return ask("m1").status == 200 && r.workers().Stats["healthy_count"] == 3 })
	ask("m0").refused(t, 404, "model_not_found")
	l := r.workers()
	if l.Total != 3 || l.Workers[0].URL != x.URL() || l.Workers[0].WorkerType != "decode" || l.Workers[0].ModelID != "m1" {
		t.Errorf("%+v", l)
	}
	x.ResetLog()
	d.ResetLog()
	for range 10 {
		if a := ask("m1"); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	if a, b := len(x.Requests()), len(d.Requests()); a != 5 || b != 5 {
		t.Errorf("the decode workers got %d and %d of 10 requests", a, b)
	}
}

// Labels, adapters, topology and capacities of a worker can be set with its
// registration, and are shown.
func TestWorkerSettings(t *testing.T) {
	r := start(t, func(s *setup) { s.late = true })
	d := r.sim.Decode(0)
	body := `{"url":"` + d.URL() + `","worker_type":"decode","labels":{"tier":"gold"},"topology_domain":"rack-1","adapters":["lora"],` +
		`"max_num_batched_tokens":4096,"total_kv_blocks":1000,"block_size":32,"max_running_requests":9,"backend":"vllm","kv_connector":"NixlConnector"}`
	if a := r.do("POST", "/workers", body); a.status != 202 {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	w := r.workers().Workers[0]
	rank := w.Ranks[0]
	if w.Labels["tier"] != "gold" || w.Backend != "vllm" || w.Connector != "nixl" || w.TopologyDomain != "rack-1" || len(w.Adapters) != 1 || len(w.MissingCapacity) > 0 ||
		rank.MaxBatchedTokens != 4096 || rank.TotalKVBlocks != 1000 || rank.BlockSize != 32 || rank.MaxRunningRequests != 9 {
		t.Errorf("%+v", w)
	}
	for param, part := range map[string]string{
		"backend": `"trt"`, "kv_connector": `"fax"`, "topology_domain": `"a\n"`, "adapters": `[""]`, "max_num_batched_tokens": "-1", "total_kv_blocks": "-1", "block_size": "65537", "max_running_requests": "-1",
	} {
		a := r.do("POST", "/workers", `{"url":"http://a","worker_type":"decode","`+param+`":`+part+`}`)
		a.refused(t, 400, "invalid_request")
		if !strings.Contains(a.body, `"param":"`+param+`"`) {
			t.Errorf("%s: %s", param, a.body)
		}
	}
	if a := r.do("POST", "/workers", `{"url":"http://a","worker_type":"decode","block_size":"16"}`); a.status != 400 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}
