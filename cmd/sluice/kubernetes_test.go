package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// podCluster is an API server with pods, as far as sluice asks it.
type podCluster struct {
	mu      sync.Mutex
	version int
	pods    map[string]map[string]any
	events  []string      // of all times
	more    chan struct{} // closed at the next event
	failing bool
}

// put stores a pod whose engine is at a URL of this machine.
func (c *podCluster) put(name, engine string, labels map[string]string, ready bool, deleteAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, err := url.Parse(engine)
	if err != nil {
		panic(err)
	}
	status := map[bool]string{true: "True", false: "False"}[ready]
	meta := map[string]any{"namespace": "llm", "name": name, "uid": "uid-" + name, "labels": labels,
		"annotations": map[string]string{"smg.ai/worker-ports": u.Port()}}
	if !deleteAt.IsZero() {
		meta["deletionTimestamp"] = deleteAt.UTC().Format(time.RFC3339)
	}
	pod := map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": meta, "status": map[string]any{
		"phase": "Running", "podIP": u.Hostname(), "conditions": []map[string]string{{"type": "Ready", "status": status, "message": "not yet"}}}}
	typ := "ADDED"
	if c.pods[name] != nil {
		typ = "MODIFIED"
	}
	c.pods[name] = pod
	c.tell(typ, pod)
}

func (c *podCluster) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell("DELETED", c.pods[name])
	delete(c.pods, name)
}

func (c *podCluster) tell(typ string, pod map[string]any) {
	c.version++
	b, err := json.Marshal(map[string]any{"type": typ, "object": pod})
	if err != nil {
		panic(err)
	}
	c.events = append(c.events, string(b)+"\n")
	close(c.more)
	c.more = make(chan struct{})
}

// setFailing also ends the watches.
func (c *podCluster) setFailing(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = on
	close(c.more)
	c.more = make(chan struct{})
}

// ServeHTTP serves lists and watches. Events that were before a watch are not shown.
func (c *podCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failing || r.URL.Path != "/api/v1/namespaces/llm/pods" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		items := []any{}
		for _, p := range c.pods {
			items = append(items, p)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": fmt.Sprint(c.version)}, "items": items})
		return
	}
	var since int
	_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &since)
	for !c.failing {
		for ; since < len(c.events); since++ {
			_, _ = fmt.Fprint(w, c.events[since])
		}
		w.(http.Flusher).Flush()
		more := c.more
		c.mu.Unlock()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		c.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

// startCluster starts an API server and returns a file with its address.
func startCluster(t *testing.T) (c *podCluster, kubeconfig string) {
	t.Helper()
	c = &podCluster{pods: map[string]map[string]any{}, more: make(chan struct{})}
	server := httptest.NewServer(c)
	t.Cleanup(func() {
		c.setFailing(true)
		server.Close()
	})
	kubeconfig = t.TempDir() + "/kubeconfig"
	write(t, kubeconfig, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
clusters: [{name: k, cluster: {server: "`+server.URL+`"}}], users: [{name: u, user: {}}]}`)
	return c, kubeconfig
}

func TestWorkersOfKubernetes(t *testing.T) {
	f := workers(t, sim.Options{Regular: 2})
	a, b := f.Regular(0).URL(), f.Regular(1).URL()
	c, kubeconfig := startCluster(t)
	app, never := map[string]string{"app": "engine"}, time.Time{}
	c.put("a", a, app, true, never)
	p := serve(t, "--service-discovery", "--selector", "app=engine", "tier!=x", "--service-discovery-namespace", "llm", "--kubeconfig", kubeconfig)
	want := map[string]string{a: "kubernetes ready", "source configuration": "ok", "source kubernetes": "ok"}
	p.untilListed(want)

	c.put("b", b, app, false, never)
	want[b] = "kubernetes not_ready"
	p.untilListed(want)
	c.put("b", b, app, true, never)
	want[b] = "kubernetes ready"
	p.untilListed(want)
	c.put("b", b, app, false, never)
	want[b] = "kubernetes not_ready"
	p.untilListed(want)

	// The API server is away: nothing changes.
	c.setFailing(true)
	want["source kubernetes"] = "failing"
	p.untilListed(want)
	p.line("cannot list pods in namespace llm")
	c.setFailing(false)
	want["source kubernetes"] = "ok"
	p.untilListed(want)

	// The last pods go, and nobody holds them for a mistake.
	c.put("a", a, app, true, time.Now().Add(time.Minute))
	delete(want, a)
	p.untilListed(want)
	c.put("b", b, map[string]string{"app": "other"}, true, never)
	delete(want, b)
	p.untilListed(want)
	c.remove("a")
	c.put("b", b, app, true, never)
	want[b] = "kubernetes ready"
	p.untilListed(want)
}

// Two generations of pairs: no request is split between them.
func TestPairLabelOfPods(t *testing.T) {
	f := workers(t, sim.Options{Prefill: 2, Decode: 2})
	c, kubeconfig := startCluster(t)
	generation := map[string]string{}
	for i := range 2 {
		rev := fmt.Sprint("rev", i)
		for role, engine := range map[string]string{"prefill": f.Prefill(i).URL(), "decode": f.Decode(i).URL()} {
			c.put(role+rev, engine, map[string]string{"app": "engine", "role": role, "rev": rev}, true, time.Time{})
			generation[engine] = rev
		}
	}
	p := serve(t, "--service-discovery", "--pd-disaggregation", "--prefill-selector", "app=engine", "role=prefill", "--decode-selector", "role in (decode)",
		"--pair-label", "rev", "--service-discovery-namespace", "llm", "--kubeconfig", kubeconfig)
	p.ready()
	for range 40 {
		status, body := p.post("/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":1}`)
		if status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
		line := p.line("msg=request")
		m := pairOfLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no pair in %s", line)
		}
		prefill, decode := m[1], m[2]
		if generation[prefill] == "" || generation[prefill] != generation[decode] {
			t.Fatalf("prefill at %q and decode at %q: %s", prefill, decode, line)
		}
	}
}

var pairOfLine = regexp.MustCompile(` prefill=(\S+) .*\bdecode=(\S+)`)
