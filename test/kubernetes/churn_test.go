//go:build kubernetes

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// churnTime is how long TestChurn makes changes, CHURN_SECS sets another time.
const churnTime = 10 * time.Second

// leeway is by how much the numbers of goroutines and of files vary at rest.
const leeway = 8

// churn makes changes at random.
type churn struct {
	*bed
	rng *rand.Rand
	// next makes a pod, but for its name; one that gets the address of old, unless that is
	// nil, is of its kind: that it is another pod is not seen at once.
	next func(old *Pod) pod
	made int
	pods []string // names of those that may be changed
	log  []string // what was done, for a failure
}

// Pods that are created, deleted in peace and by force, created again at the same address,
// turned NotReady, relabelled, whose engines crash, at random and fast, while the API server
// is killed and the history is forgotten: in the end the workers are the pods, and of the
// requests only those have failed whose answers had begun.
func TestChurn(t *testing.T) {
	t.Parallel()
	c := newChurn(t)
	stable := c.start(regular("stable"))
	c.next = func(*Pod) pod {
		p := regular("")
		if c.rng.IntN(3) > 0 {
			p = p.inside("sglang", "regular")
		}
		return p
	}
	c.run(stable, c.selects)
}

// The same with prefill and decode apart, in two generations that are never paired.
func TestChurnOfPairs(t *testing.T) {
	t.Parallel()
	c := newChurn(t)
	var stable []*Pod
	for _, role := range []string{"prefill", "decode"} {
		stable = append(stable, c.start(pdPod(sim.SGLang, "r1", role, 0), pdPod(sim.SGLang, "r2", role, 0))...)
	}
	c.next = func(old *Pod) pod {
		if old != nil {
			return pdPod(sim.SGLang, old.Metadata.Labels[revision], old.Metadata.Labels["role"], c.made)
		}
		return pdPod(sim.SGLang, []string{"r1", "r2"}[c.rng.IntN(2)], []string{"prefill", "decode"}[c.rng.IntN(2)], c.made)
	}
	c.run(stable, func(server *APIServer) []string {
		return append(c.selectsPairs(server), "--pair-label", revision)
	})
	checkPairs(t, node.Fleet(c.namespace, sim.SGLang), 2)
}

func newChurn(t testing.TB) *churn {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("CHURN_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("CHURN_SEED=%d", seed)
	c := &churn{bed: newBed(t), rng: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what was done:\n%s", strings.Join(c.log, ""))
		}
	})
	return c
}

// run makes changes beside stable, which are left alone, and checks what became of it.
func (c *churn) run(stable []*Pod, flags func(*APIServer) []string) {
	t := c.t
	length := churnTime
	if secs, err := strconv.Atoi(os.Getenv("CHURN_SECS")); err == nil {
		length = time.Duration(secs) * time.Second
	}
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	t.Cleanup(server.Kill)
	// So many pods change while the server is away that the list after it is held back.
	r := startRouter(t, append(flags(server), "--source-hold-secs", "3")...)
	r.sees(stable...)
	l := r.load()
	l.more(40)
	l.good()
	goroutines, files := r.own(t, "go_goroutines"), r.own(t, "process_open_fds")
	l = r.load()

	restarts := make(chan error, 1)
	end := time.Now().Add(length)
	go func() {
		// The server is away for as long as it takes to start.
		for time.Now().Before(end) {
			time.Sleep(length / 5)
			server.Kill()
			if err := cluster.Compact(t.Context()); err != nil {
				restarts <- err
				return
			}
			if err := server.Start(t.Context()); err != nil {
				restarts <- err
				return
			}
		}
		restarts <- nil
	}()
	for time.Now().Before(end) {
		c.change()
		time.Sleep(time.Duration(c.rng.IntN(100)) * time.Millisecond)
	}
	must(t, <-restarts)
	r.agrees(c.bed)
	l.more(20)
	l.begun()
	t.Logf("%d changes", len(c.log))

	// What the changes have cost is given back.
	for _, name := range slices.Clone(c.pods) {
		c.remove(name, -1)
	}
	r.agrees(c.bed)
	_, metrics := get("http://" + r.metrics + "/metrics")
	if !strings.Contains(metrics, stable[0].url()) {
		t.Errorf("no metric of %s", stable[0].url())
	}
	for line := range strings.Lines(metrics) {
		if strings.Contains(line, "http://") && !slices.ContainsFunc(stable, func(p *Pod) bool { return strings.Contains(line, p.url()) }) {
			t.Errorf("a metric of a worker that is gone: %s", line)
			break
		}
	}
	eventually(t, "goroutines and files are given back", func() string {
		g, f := r.own(t, "go_goroutines"), r.own(t, "process_open_fds")
		if g > goroutines+leeway || f > files+leeway {
			return fmt.Sprintf("%v goroutines and %v files, and before the changes %v and %v", g, f, goroutines, files)
		}
		return ""
	})
}

// change makes one change.
func (c *churn) change() {
	c.t.Helper()
	if len(c.pods) < 3 || len(c.pods) < 12 && c.rng.IntN(3) == 0 {
		c.add(nil)
		return
	}
	name := c.pods[c.rng.IntN(len(c.pods))]
	switch n := c.rng.IntN(8); n {
	case 0, 1:
		c.note("delete", name)
		c.remove(name, -1)
	case 2:
		c.note("delete by force", name)
		c.remove(name, 0)
	case 3:
		p, ok := c.get(name)
		if !ok || p.Status.PodIP == "" || p.Metadata.Annotations[annotationGhost] != "" {
			return
		}
		c.note("create again", name)
		c.remove(name, 0)
		c.add(p)
	case 4:
		ready := c.rng.IntN(2) == 0
		c.note("ready", name, ready)
		c.may(admin.Patch(c.t.Context(), podPath(c.namespace, name)+"/status", strategicPatch, readyStatus(ready, "")))
	case 5:
		var app any = "engine"
		if c.rng.IntN(2) == 0 {
			app = nil
		}
		c.note("label", name, app)
		c.may(admin.Patch(c.t.Context(), podPath(c.namespace, name), mergePatch, object{"metadata": object{"labels": object{"app": app}}}))
	case 6:
		c.note("ports", name)
		ports := []any{nil, "nonsense", strconv.Itoa(enginePort)}[c.rng.IntN(3)]
		c.may(admin.Patch(c.t.Context(), podPath(c.namespace, name), mergePatch,
			object{"metadata": object{"annotations": object{"smg.ai/worker-ports": ports}}}))
	case 7:
		c.note("crash", name)
		if p, ok := c.get(name); ok {
			node.crash(p)
		}
	}
}

func (c *churn) note(what ...any) {
	c.log = append(c.log, time.Now().Format("05.000 ")+fmt.Sprintln(what...))
}

// may is for a change of a pod that may have ended meanwhile.
func (c *churn) may(err error) {
	c.t.Helper()
	if !hasCode(err, http.StatusNotFound) {
		must(c.t, err)
	}
}

// add creates a pod, at the address of old unless that is nil.
func (c *churn) add(old *Pod) {
	c.t.Helper()
	c.made++
	p := c.next(old)
	p.name = fmt.Sprintf("p%d", c.made)
	p.grace = 1 + c.rng.IntN(4)
	if old != nil {
		p = p.with(annotationAddress, old.Status.PodIP)
	} else if c.rng.IntN(4) == 0 {
		p = p.with(annotationGhost, "true")
	}
	c.note("create", p.name, p.labels, p.annotations)
	c.create(p)
	c.pods = append(c.pods, p.name)
}

func (c *churn) remove(name string, grace int) {
	c.t.Helper()
	c.pods = slices.DeleteFunc(c.pods, func(n string) bool { return n == name })
	c.may(admin.Delete(c.t.Context(), podPath(c.namespace, name), grace, ""))
}

// crash ends a pod's engine, which the node starts again.
func (n *Node) crash(p *Pod) {
	n.mu.Lock()
	r := n.pods[p.Metadata.UID]
	n.mu.Unlock()
	if r == nil {
		return
	}
	if e := r.running(); e != nil {
		e.kill()
	}
}

// agrees waits until the workers are the pods that the API has, each in its state.
func (r *router) agrees(b *bed) {
	r.t.Helper()
	eventually(r.t, "the workers are the pods of the API", func() string {
		var list struct {
			Items []Pod `json:"items"`
		}
		must(r.t, admin.do(r.t.Context(), http.MethodGet, "/api/v1/namespaces/"+b.namespace+"/pods?labelSelector=app%3Dengine", "", nil, &list))
		want := make(map[string]bool) // by URL: ready
		for _, p := range list.Items {
			if p.Metadata.DeletionTimestamp != nil {
				return p.Metadata.Name + " is being deleted"
			}
			want[p.url()] = p.Ready()
		}
		workers := r.workers()
		for _, w := range workers {
			ready, ok := want[w.URL]
			if !ok || ready != (w.Status == "ready") {
				return fmt.Sprintf("the pod's readiness is %t (%t), and the worker is %s", ready, ok, w)
			}
		}
		if len(workers) != len(want) {
			return fmt.Sprintf("%d workers, %d pods", len(workers), len(want))
		}
		return ""
	})
}
