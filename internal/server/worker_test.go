package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
)

type changedDoc struct {
	Status   string
	WorkerID string `json:"worker_id"`
	URL      string
	Location string
	Worker   fleet.Info
}

// change sends a request that changes a worker and reads the answer.
func (r *rig) change(method, path, body string, status int) (doc changedDoc) {
	r.t.Helper()
	a := r.do(method, path, body)
	if a.status != status {
		r.t.Fatalf("%s %s: status %d: %s", method, path, a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || doc.WorkerID == "" || doc.Location != "/workers/"+doc.WorkerID || doc.Worker.ID != doc.WorkerID {
		r.t.Fatalf("%s %s: %s: %v", method, path, a.body, err)
	}
	return doc
}

func TestPutReplacesAllSettings(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 2, true })
	w := r.sim.Regular(0)
	// The id is made of the URL, so that a PUT can be repeated by whoever knows the URL.
	made := r.change("PUT", "/workers/"+w.URL(), fmt.Sprintf(`{"url":%q,"labels":{"zone":"x"},"max_running_requests":9}`, w.URL()+"/v1"), 201)
	if made.Status != "created" || made.Worker.Labels["zone"] != "x" {
		t.Errorf("%+v", made)
	}
	again := r.change("PUT", "/workers/"+made.WorkerID, fmt.Sprintf(`{"url":%q,"labels":{"tier":"gold"}}`, w.URL()), 200)
	if again.Status != "updated" || again.WorkerID != made.WorkerID || len(again.Worker.Labels) != 1 || again.Worker.Labels["tier"] != "gold" {
		t.Errorf("%+v", again)
	}
	// Without a URL it is the worker of the path.
	again = r.change("PUT", "/workers/"+made.WorkerID, `{"model_id":"other"}`, 200)
	if len(again.Worker.Labels) != 0 || again.Worker.ModelID != "other" {
		t.Errorf("%+v", again.Worker)
	}
	if l := r.workers(); l.Total != 1 {
		t.Errorf("%d workers", l.Total)
	}
	e := r.do("PUT", "/workers/"+made.WorkerID, fmt.Sprintf(`{"url":%q}`, r.sim.Regular(1).URL())).refused(t, 400, "invalid_request")
	if e.Param == nil || *e.Param != "url" {
		t.Errorf("another URL: %+v", e)
	}
	e = r.do("PUT", "/workers/"+made.WorkerID, `{"worker_type":"decode"}`).refused(t, 400, "invalid_request")
	if e.Param == nil || *e.Param != "worker_type" {
		t.Errorf("a role of the other mode: %+v", e)
	}
	r.do("PUT", "/workers/"+made.WorkerID, `{"colour":"red"}`).refused(t, 400, "invalid_request")
	r.do("PUT", "/workers/w0", `{}`).refused(t, 404, "worker_not_found")
	// What is wrong with a body is said also where it would register a worker.
	other := r.sim.Regular(1).URL()
	r.do("PUT", "/workers/"+other, fmt.Sprintf(`{"url":%q,"tls":{}}`, other)).refused(t, 400, "invalid_request")
	r.do("PUT", "/workers/w0", fmt.Sprintf(`{"url":%q}`, w.URL())).refused(t, 404, "worker_not_found")
	r.do("PUT", "/workers/"+made.WorkerID, strings.Repeat(" ", maxWorkerBody+1)).refused(t, 413, "request_too_large")
	if i := r.info(made.WorkerID); i.ModelID != "other" {
		t.Errorf("after what was refused: %+v", i)
	}
}

func (r *rig) info(id string) (i fleet.Info) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.do("GET", "/workers/"+id, "").body), &i); err != nil {
		r.t.Fatal(err)
	}
	return i
}

// A replacement was once a removal and a registration, and requests in between found no
// worker; an update was once accepted and then failed unseen.
func TestChangesLeaveNoGap(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 1, true })
	w := r.sim.Regular(0)
	id := r.change("PUT", "/workers/"+w.URL(), fmt.Sprintf(`{"url":%q}`, w.URL()), 201).WorkerID
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
	stop, bad := make(chan struct{}), make(chan string)
	go func() {
		defer close(bad)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
				bad <- fmt.Sprintf("%d %s", a.status, a.body)
				return
			}
		}
	}()
	for i := range 200 {
		r.change("PUT", "/workers/"+id, fmt.Sprintf(`{"labels":{"n":"%d"}}`, i), 200)
		if doc := r.change("PATCH", "/workers/"+id, fmt.Sprintf(`{"priority":%d,"labels":{"patched":"yes"}}`, i), 200); len(doc.Worker.Labels) != 2 {
			t.Errorf("labels %v", doc.Worker.Labels)
		}
	}
	close(stop)
	for b := range bad {
		t.Errorf("a request failed: %s", b)
	}
}

func TestPatchChangesWhatItNames(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 1, true })
	w := r.sim.Regular(0)
	id := r.change("PUT", "/workers/"+w.URL(), fmt.Sprintf(`{"url":%q,"labels":{"a":"1","b":"2"},"block_size":32}`, w.URL()), 201).WorkerID
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
	doc := r.change("PATCH", "/workers/"+id, `{"labels":{"a":null,"c":"3"},"max_running_requests":4,"adapters":["lora"]}`, 200)
	i := doc.Worker
	if len(i.Labels) != 2 || i.Labels["b"] != "2" || i.Labels["c"] != "3" || i.Ranks[0].BlockSize != 32 || i.Ranks[0].MaxRunningRequests != 4 || len(i.Adapters) != 1 {
		t.Errorf("%+v", i)
	}
	i = r.change("PATCH", "/workers/"+id, `{"labels":null,"block_size":null}`, 200).Worker
	if len(i.Labels) != 0 || i.Ranks[0].BlockSize == 32 || i.Ranks[0].MaxRunningRequests != 4 {
		t.Errorf("%+v", i)
	}
	r.change("PATCH", "/workers/"+id, `{}`, 200)
	for _, tc := range []struct{ body, param, says string }{
		{`{"url":"http://x"}`, "url", "PUT"},
		{`{"worker_type":"decode"}`, "worker_type", "PUT"},
		{`{"model_id":null}`, "model_id", "PUT"},
		{`{"colour":"red"}`, "", `unknown field "colour"`},
		{`{"priorty":1}`, "", `did you mean "priority"?`},
		{`{"priority":"high"}`, "priority", "whole number"},
		{`{"priority":1001}`, "priority", "between 0 and 1000"},
		{`{"labels":["a"]}`, "labels", "object"},
		{`{"labels":{"a":1}}`, "labels", "must be a string"},
		{`{"labels":{"a\n":"b"}}`, "labels", "control character"},
		{`{"max_running_requests":-1}`, "max_running_requests", "between"},
		{`{"max_running_requests":1.5}`, "max_running_requests", "whole number"},
		{`{"kv_connector":"carrier-pigeon"}`, "kv_connector", "must be one of"},
		{`{"block_size":1,"block_size":2}`, "", "given twice"},
		{`[]`, "", "JSON object"},
		{``, "", "empty"},
	} {
		e := r.do("PATCH", "/workers/"+id, tc.body).refused(t, 400, "invalid_request")
		if (e.Param == nil) != (tc.param == "") || e.Param != nil && *e.Param != tc.param || !strings.Contains(e.Message, tc.says) {
			t.Errorf("%s: %+v", tc.body, e)
		}
	}
	r.do("PATCH", "/workers/none", `{}`).refused(t, 404, "worker_not_found")
	r.do("PATCH", "/workers/"+id, `{"labels":{"a":"`+strings.Repeat("x", maxWorkerBody)).refused(t, 413, "request_too_large")
}

func TestDrainAndUndrain(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 1, true })
	w := r.sim.Regular(0)
	id := r.change("PUT", "/workers/"+w.URL(), fmt.Sprintf(`{"url":%q}`, w.URL()), 201).WorkerID
	ask := func() answer { return r.do("POST", "/v1/chat/completions", chat) }
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
	if doc := r.change("POST", "/workers/"+id+"/drain", "", 200); doc.Status != "drained" || doc.Worker.Status != fleet.StatusDrained || !doc.Worker.Drained {
		t.Errorf("%+v", doc)
	}
	ask().refused(t, 503, "no_available_workers")
	if l := r.workers(); l.Total != 1 || l.Stats["healthy_count"] != 1 {
		t.Errorf("%+v", l)
	}
	r.change("POST", "/workers/"+id+"/drain", "", 200) // again
	if doc := r.change("POST", "/workers/"+w.URL()+"/undrain", "", 200); doc.Status != "undrained" || doc.Worker.Status != fleet.StatusReady {
		t.Errorf("%+v", doc)
	}
	if a := ask(); a.status != 200 { // at once
		t.Errorf("%d %s", a.status, a.body)
	}
	r.do("POST", "/workers/none/drain", "").refused(t, 404, "worker_not_found")
	if a := r.do("GET", "/workers/"+id+"/drain", ""); a.status != 405 || a.header.Get("Allow") != "POST" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestRemovalWithATimeout(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular, s.late = 1, true })
	w := r.sim.Regular(0)
	w.SetTiming(endless)
	id := r.change("PUT", "/workers/"+w.URL(), fmt.Sprintf(`{"url":%q}`, w.URL()), 201).WorkerID
	r.waitFor("readiness", func() bool { return r.status("GET", "/readyz", "") == 200 })
	ended := make(chan answer, 1)
	go func() {
		ended <- r.do("POST", "/v1/chat/completions", strings.Replace(chat, `"max_tokens":3`, `"max_tokens":100000`, 1))
	}()
	if err := w.WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "soon", "-1", "1e99", "NaN", "Inf"} {
		e := r.do("DELETE", "/workers/"+id+"?timeout="+bad, "").refused(t, 400, "invalid_request")
		if e.Param == nil || *e.Param != "timeout" {
			t.Errorf("%q: %+v", bad, e)
		}
	}
	r.do("DELETE", "/workers/"+id+"?timeout_secs=3", "").refused(t, 400, "invalid_request")
	r.do("DELETE", "/workers/"+id+"?timeout=3&timeout=4", "").refused(t, 400, "invalid_request")
	r.do("POST", "/workers/"+id+"/drain?timeout=3", "").refused(t, 400, "invalid_request")
	if a := r.do("DELETE", "/workers/"+id+"?timeout=3600", ""); a.status != 202 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.do("PATCH", "/workers/"+id, `{"priority":1}`).refused(t, 409, "worker_leaving")
	r.do("POST", "/workers/"+id+"/undrain", "").refused(t, 409, "worker_leaving")
	if a := r.do("DELETE", "/workers/"+id+"?timeout=0", ""); a.status != 202 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := <-ended; !strings.Contains(a.body, "error") {
		t.Errorf("its request ended as %d %s", a.status, a.body)
	}
	r.do("GET", "/workers/"+id, "").refused(t, 404, "worker_not_found")
}

func TestChangesOfWorkersNeedTheAdminKey(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular = 1
		s.cfg.Auth.AdminAPIKey, s.cfg.Auth.APIKeys = "boss", []config.Secret{"k"}
	})
	var l workerList
	if err := json.Unmarshal([]byte(r.do("GET", "/workers", "", "Authorization", "Bearer boss").body), &l); err != nil {
		t.Fatal(err)
	}
	id := l.Workers[0].ID
	for _, q := range []struct{ method, path, body string }{
		{"PUT", "/workers/" + id, `{}`}, {"PATCH", "/workers/" + id, `{}`}, {"POST", "/workers/" + id + "/drain", ""},
		{"POST", "/workers/" + id + "/undrain", ""}, {"DELETE", "/workers/" + id + "?timeout=0", ""},
	} {
		r.do(q.method, q.path, q.body, "Authorization", "Bearer k").refused(t, 401, "invalid_api_key")
		if a := r.do(q.method, q.path, q.body, "Authorization", "Bearer boss"); a.status/100 != 2 {
			t.Errorf("%s with the key: %d %s", q.method, a.status, a.body)
		}
	}
}
