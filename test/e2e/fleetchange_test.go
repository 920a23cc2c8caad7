package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// addWorker registers a simulated worker by POST /workers and returns its id.
func (r *router) addWorker(id string) string {
	r.t.Helper()
	w := r.fleet.worker(id)
	body := fmt.Sprintf(`{"url":%q,"worker_type":%q}`, w.URL, w.Role)
	if w.Role == "prefill" {
		body = fmt.Sprintf(`{"url":%q,"worker_type":%q,"bootstrap_port":%d}`, w.URL, w.Role, w.BootstrapPort)
	}
	status, answer := r.change("POST", "/workers", body)
	var v struct {
		Status   string `json:"status"`
		ID       string `json:"worker_id"`
		URL      string `json:"url"`
		Location string `json:"location"`
	}
	if err := json.Unmarshal([]byte(answer), &v); status != http.StatusAccepted || err != nil || v.Status != "accepted" || v.URL != w.URL || v.Location != "/workers/"+v.ID {
		r.t.Fatalf("POST /workers %s: %d %s (%v)", body, status, answer, err)
	}
	return v.ID
}

func (r *router) removeWorker(id string) {
	r.t.Helper()
	if status, body := r.change("DELETE", "/workers/"+id, ""); status != http.StatusAccepted {
		r.t.Fatalf("DELETE /workers/%s: %d %s", id, status, body)
	}
}

func (r *router) waitGone(id string) {
	r.t.Helper()
	eventually(r.t, "worker "+id+" is gone", func() string {
		if status, body := r.get("/workers/" + id); status != http.StatusNotFound {
			return fmt.Sprint(status, " ", body)
		}
		return ""
	})
}

// Workers come and go while requests wait: a new one takes from the queue at
// once, one that goes finishes what it has and gets nothing more.
func TestFleetChangesUnderAFullQueue(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--prefill-time", "700ms")
	first, second := fleet.worker("prefill-0"), fleet.worker("prefill-1")
	r := launchRouter(t, fleet, nil, nil, "--pd-disaggregation", "--prefill", first.URL, fmt.Sprint(first.BootstrapPort),
		"--decode", fleet.worker("decode-0").URL, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "8")
	r.waitReady()
	client := clients(t)
	var calls []*call
	for range 9 {
		calls = append(calls, r.chat(client, brief))
	}
	r.waitMetric(metricInflight, 1)
	r.waitMetric(metricQueued, 8)
	r.ask(brief).refused(t, 429, "pd_prefill_queue_full")

	id := r.addWorker("prefill-1")
	if again := r.addWorker("prefill-1"); again != id {
		t.Errorf("the same URL is worker %s and then %s", id, again)
	}
	eventually(t, "the new worker takes from the queue", func() string {
		return moreThanZero(fleet.stats("prefill-1").Requests)
	})
	r.removeWorker(r.worker("prefill-0").ID)
	served := fleet.stats("prefill-0").Requests
	for _, c := range calls {
		c.wait(t).good(t)
	}
	if n := fleet.stats("prefill-0").Requests; n > served+1 { // one may have been on its way
		t.Errorf("the removed worker got %d more requests", n-served)
	}
	eventually(t, "the removed worker is gone", func() string {
		if w := r.worker("prefill-0"); w.Status != "gone" {
			return w.Status
		}
		return ""
	})
	if s := fleet.stats("prefill-0"); s.Gone != 0 {
		t.Errorf("%d requests were taken from the worker that drained", s.Gone)
	}
	// Its series end with it.
	if v := r.metric(fmt.Sprintf("%s{worker=%q}", metricInflight, first.URL)); v == v {
		t.Errorf("the removed worker still has a series: %v", v)
	}
	if v := r.metric(fmt.Sprintf("%s{worker=%q}", metricInflight, second.URL)); v != 0 {
		t.Errorf("the new worker has %v in flight", v)
	}
	// The last worker of a role goes: who waits learns it at once.
	fleet.fault("prefill-1", "delay=1s")
	running := r.chat(client, brief)
	r.waitMetric(metricInflight, 1)
	waiting := r.chat(client, brief)
	r.waitMetric(metricQueued, 1)
	r.removeWorker(id)
	start := time.Now()
	waiting.wait(t).refused(t, 503, "no_available_workers")
	if d := took(start); d > soon {
		t.Errorf("who waited for nothing learned it after %s", d)
	}
	if status, _ := r.get("/readyz"); status != 503 {
		t.Errorf("readyz %d without prefill workers", status)
	}
	running.wait(t).good(t)
	r.waitGone(id)
}

// A bad URL, an unknown worker, an unknown field: the client's fault, said so.
func TestWorkersRefusals(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet)
	for _, body := range []string{`{"url":"not a url","worker_type":"prefill"}`, `{"url":"ftp://x","worker_type":"decode"}`, `{"worker_type":"decode"}`,
		`{"url":"http://127.0.0.1:1","worker_type":"nonsense"}`, `{"url":"http://127.0.0.1:1","worker_type":"decode","bootstrap_port":70000}`,
		`[]`, `{`, ``, `{"url":"http://127.0.0.1:1","worker_type":"decode","polcy":1}`} {
		if status, answer := r.change("POST", "/workers", body); status != 400 {
			t.Errorf("%s: %d %s, want 400", body, status, clip(answer))
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		if status, _ := r.change(method, "/workers/nobody", ""); status != 404 {
			t.Errorf("%s of an unknown worker: %d, want 404", method, status)
		}
	}
	if n := len(r.workers()); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
}

// A request pinned by URL waits for that worker, and follows it to a new
// registration at the same URL.
func TestPinFollowsAReaddedWorker(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--no-worker-wait-secs", "20")
	pin := fleet.worker("prefill-1").URL
	client := clients(t)
	fleet.fault("prefill-1", "delay=1500ms,count=1")
	running := r.chat(client, brief, "X-SMG-Target-Worker", pin)
	r.waitMetric(metricInflight, 1)
	waiting := r.chat(client, brief, "X-SMG-Target-Worker", pin)
	r.waitMetric(metricQueued, 1)
	id := r.worker("prefill-1").ID
	r.removeWorker(id)
	if again := r.addWorker("prefill-1"); again != id {
		t.Errorf("the worker is %s and then %s", id, again)
	}
	running.wait(t).good(t)
	a := waiting.wait(t)
	a.good(t)
	if n := fleet.stats("prefill-0").Requests; n != 0 {
		t.Errorf("the other worker got %d of the pinned requests", n)
	}
	r.ask(brief, "X-SMG-Target-Worker", "http://127.0.0.1:1").refused(t, 400, "invalid_target")
}

// An operator changes, replaces, drains and removes workers while clients ask: no request
// fails, and nothing is left of it.
func TestOperatorsChangeWorkersUnderLoad(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "2", "--prefill-time", "5ms")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "4", "--model-alias", "gpt=sim-model")
	client := clients(t)
	stop, over := make(chan struct{}), make(chan int)
	for range 4 {
		go func() {
			n := 0
			defer func() { over <- n }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				r.chat(client, brief).wait(t).good(t)
				n++
			}
		}()
	}
	change := func(method, path, body string, want int) {
		t.Helper()
		if status, answer := r.change(method, path, body); status != want {
			t.Errorf("%s %s %s: %d %s", method, path, body, status, clip(answer))
		}
	}
	for i, id := range []string{"prefill-0", "decode-1", "prefill-1", "decode-0"} {
		w := r.worker(id)
		path := "/workers/" + w.ID
		for n := range 5 {
			change("PATCH", path, fmt.Sprintf(`{"priority":%d,"labels":{"n":"%d"},"max_running_requests":%d}`, 40+5*n, n, 1+n), 200)
		}
		change("PATCH", path, `{"priority":null,"labels":null,"max_running_requests":null}`, 200)
		change("POST", path+"/drain", "", 200)
		served := fleet.stats(id).Requests
		eventually(t, "the drained worker has nothing left", func() string {
			if l := r.worker(id).Load; l != 0 {
				return fmt.Sprint(l)
			}
			return ""
		})
		if s := fleet.stats(id); s.Gone != 0 || s.Requests > served+8 { // some were on their way
			t.Errorf("%s: %d requests were taken from it, %d came after its drain", id, s.Gone, s.Requests-served)
		}
		change("POST", path+"/undrain", "", 200)
		settings := fmt.Sprintf(`{"worker_type":%q,"labels":{"put":"%d"}}`, w.Type, i)
		if w.Type == "prefill" {
			settings = fmt.Sprintf(`{"worker_type":"prefill","bootstrap_port":%d,"labels":{"put":"%d"}}`, w.Bootstrap, i)
		}
		change("PUT", path, settings, 200)
	}
	w := r.worker("prefill-1")
	change("DELETE", "/workers/"+w.ID+"?timeout=20", "", 202)
	r.waitGone(w.ID)
	change("PUT", "/workers/"+w.ID, fmt.Sprintf(`{"url":%q,"worker_type":"prefill","bootstrap_port":%d}`, w.URL, w.Bootstrap), 201)
	eventually(t, "it gets requests again", func() string {
		if v := r.metric(fmt.Sprintf("sluice_rank_warming{rank=%q,role=\"prefill\"}", w.URL)); v != 1 {
			return fmt.Sprint("warming up: ", v)
		}
		return moreThanZero(r.worker("prefill-1").Load + int(r.metric(fmt.Sprintf("sluice_worker_prefills_total{worker=%q}", w.URL))))
	})
	close(stop)
	all := 0
	for range 4 {
		all += <-over
	}
	if all == 0 {
		t.Error("nobody asked for anything")
	}
	r.idle()
}
