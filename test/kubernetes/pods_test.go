//go:build kubernetes

package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Pods that come are served at once, pods that are deleted leave without a failure.
func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, b.selects(cluster.Server(0))...)
	if w := r.workers(); len(w) != 0 {
		t.Fatalf("workers before there are pods: %s", w)
	}
	pods := b.start(regular("a"), regular("b"))
	seen := time.Now()
	r.sees(pods...)
	t.Logf("pods that are ready were ready workers %s later", time.Since(seen).Round(time.Millisecond))
	for _, p := range pods {
		labels := r.worker(p.url()).Labels
		if labels["smg.ai/pod-name"] != p.Metadata.Name || labels["smg.ai/pod-uid"] != p.Metadata.UID {
			t.Errorf("the labels of %s are %v", p.Name(), labels)
		}
	}

	l := r.load()
	l.more(20)
	pods = append(pods, b.start(regular("c"))...)
	r.sees(pods...)
	eventually(t, "the new pod is used", func() string {
		if n, _ := pods[2].served(t); n == 0 {
			return "it is not"
		}
		return ""
	})
	b.delete("a", -1)
	b.gone("a")
	r.sees(pods[1:]...)
	l.more(20)
	l.good()
}

// A pod whose engine loads for a while is a worker as soon as the pod is ready, and not
// only when it is due for its next check.
func TestPodThatLoadsIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, b.selects(cluster.Server(0))...)
	b.create(regular("a").with(annotationLoads, "9"))
	p := b.ready("a")[0]
	ready := time.Now()
	r.sees(p)
	took := time.Since(ready).Round(time.Millisecond)
	t.Logf("a pod that is ready was a ready worker %s later", took)
	if took > 3*time.Second {
		t.Errorf("a pod that is ready was a ready worker only %s later", took)
	}
}

// A pod that turns NotReady gets nothing new, and nothing that is known of it is
// forgotten: it is the same worker when it is ready again, and is used at once.
func TestNotReadyIsNotChosen(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	l := r.load()
	for range 3 {
		b.setReady("a", false)
		r.becomes(pods[0], "not_ready")
		pods[0].getsNothing(t, l)
		before, _ := pods[0].served(t)
		b.setReady("a", true)
		r.sees(pods...)
		eventually(t, "the pod is used again", func() string {
			if now, _ := pods[0].served(t); now == before {
				return "it is not"
			}
			return ""
		})
	}
	l.good()
	// A worker that was removed and added would be registered again, and asked again for
	// what it serves.
	for _, text := range []string{`"msg":"worker registered"`, `"msg":"worker is healthy"`} {
		if lines := r.lines(text); len(lines) != len(pods) {
			t.Errorf("the log has %d lines with %s, want one for each pod: %s", len(lines), text, lines)
		}
	}
}

// getsNothing checks that a pod serves nothing of a load that goes on.
func (p *Pod) getsNothing(t testing.TB, l *load) {
	t.Helper()
	eventually(t, p.Metadata.Name+" has nothing more to do", func() string {
		if _, running := p.served(t); running > 0 {
			return fmt.Sprintf("%d requests run", running)
		}
		return ""
	})
	before, _ := p.served(t)
	l.more(40)
	if after, _ := p.served(t); after != before {
		t.Errorf("%s got %d requests more", p.Metadata.Name, after-before)
	}
}

// whoRuns is the pod that runs the one request under way.
func whoRuns(t testing.TB, pods ...*Pod) (it *Pod) {
	t.Helper()
	eventually(t, "a pod runs a request", func() string {
		for _, p := range pods {
			if _, running := p.served(t); running == 1 {
				it = p
				return ""
			}
		}
		return "none does"
	})
	return it
}

// A pod that no selector matches any more gets nothing new, though it goes on serving;
// what it has begun comes to its end. With the label back it is a worker again.
func TestRelabelledPodIsLeft(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	s := r.stream(400)
	it := whoRuns(t, pods...)
	other := pods[0]
	if other == it {
		other = pods[1]
	}
	b.label(it.Metadata.Name, "app", nil)
	eventually(t, "the pod without the label is no candidate", func() string {
		if w := r.worker(it.url()); w.Status == "ready" {
			return w.String()
		}
		return ""
	})
	l := r.load()
	l.more(40)
	if n, _ := it.served(t); n != 1 {
		t.Errorf("the pod without the label has got %d requests, want its first alone", n)
	}
	if a := s.end(); !a.whole() {
		t.Errorf("its stream was not ended in peace: %s", a)
	}
	r.sees(other)
	b.label(it.Metadata.Name, "app", "engine")
	r.sees(pods...)
	l.more(20)
	l.good()
}

// A pod whose label says another role is a worker of that role, and of no other.
func TestPodChangesRole(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, b.selectsPairs(cluster.Server(0))...)
	var pods []*Pod
	for _, role := range []string{"prefill", "decode"} {
		p := regular(role).inside("sglang", role)
		p.labels = map[string]string{"app": "engine", "role": role}
		pods = append(pods, b.start(p)...)
	}
	roles := func(want ...string) {
		t.Helper()
		eventually(t, "roles", func() string {
			var got []string
			for _, p := range pods {
				for _, w := range r.workers() {
					if w.URL == p.url() {
						got = append(got, w.Type)
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Sprintf("%v, want %v", got, want)
			}
			return ""
		})
	}
	roles("prefill", "decode")
	b.label("prefill", "role", "decode")
	roles("decode", "decode")
	b.label("prefill", "role", "prefill")
	b.label("decode", "role", "prefill")
	roles("prefill", "prefill")
	b.label("decode", "role", "decode")
	roles("prefill", "decode")
	r.sees(pods...)
	r.one(question{tokens: 3})
}

// Pods that are no workers though a selector matches them: one that was evicted, with and
// without an address, one that is no leader of its group, and one that has not begun.
func TestPodsThatAreNoWorkers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	follower, pending := regular("follower"), regular("pending")
	follower.labels = map[string]string{"app": "engine", "leaderworkerset.sigs.k8s.io/worker-index": "1"}
	leader := regular("leader")
	leader.labels = map[string]string{"app": "engine", "leaderworkerset.sigs.k8s.io/worker-index": "0"}
	canary := regular("canary")
	canary.labels = map[string]string{"app": "engine", "canary": "yes"}
	pods := b.start(leader, follower, canary, regular("evicted").with(annotationGhost, "true"), regular("cleared").with(annotationGhost, "true"))
	b.create(pending.with(annotationLoads, "300"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	eventually(t, "the pending pod is a worker that is not chosen", func() string {
		for _, w := range r.workers() {
			if w.Labels["smg.ai/pod-name"] == "pending" && w.Status == "pending" {
				return ""
			}
		}
		return fmt.Sprint(r.workers())
	})
	b.delete("pending", 0)
	r.sees(pods[0], pods[3], pods[4])
	l := r.load()
	l.more(10)
	evicted := object{"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
	must(t, admin.Patch(t.Context(), podPath(b.namespace, "evicted")+"/status", mergePatch, object{"status": evicted}))
	evicted["podIP"], evicted["podIPs"] = nil, nil
	must(t, admin.Patch(t.Context(), podPath(b.namespace, "cleared")+"/status", mergePatch, object{"status": evicted}))
	r.sees(pods[0])
	l.more(20)
	l.begun() // the engines of pods that have ended are gone
	for _, p := range pods[1:3] {
		if n, _ := p.served(t); n > 0 {
			t.Errorf("%s served %d requests", p.Metadata.Name, n)
		}
	}
}

// Ports and bootstrap ports follow the annotations of a living pod. One that says no port
// is told of with the pod's name, and does no harm.
func TestAnnotationsOfLivingPods(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	two := regular("a")
	two.args = append([]string{"--regular", "2"}, quick[2:]...)
	p := b.start(two)[0]
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(p)
	second := strings.Replace(p.url(), fmt.Sprint(enginePort), fmt.Sprint(enginePort+1), 1)
	both := func(want string) {
		t.Helper()
		eventually(t, "the worker at the second port", func() string {
			if w := r.worker(second); w.Status != want {
				return w.String()
			}
			return ""
		})
		if w := r.worker(p.url()); w.Status != "ready" {
			t.Errorf("the worker at the first port: %s", w)
		}
	}
	l := r.load()
	b.annotate("a", "smg.ai/worker-ports", fmt.Sprintf("%d,%d", enginePort, enginePort+1))
	both("ready")
	l.more(20)
	b.annotate("a", "smg.ai/worker-ports", "http, or so")
	both("gone")
	if len(r.lines("a: ")) == 0 || len(r.lines("worker-ports")) == 0 {
		t.Errorf("no line of the log names the annotation and the pod")
	}
	b.annotate("a", "smg.ai/worker-ports", nil)
	r.sees(p)
	l.good()
}

// The bootstrap port of a prefill pod follows its annotation.
func TestBootstrapPortOfLivingPod(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, b.selectsPairs(cluster.Server(0))...)
	p := regular("p").inside("sglang", "prefill").with("sglang.ai/bootstrap-port", "9001")
	p.labels = map[string]string{"app": "engine", "role": "prefill"}
	made := b.start(p)[0]
	for _, port := range []int{9001, 9002} {
		b.annotate("p", "sglang.ai/bootstrap-port", fmt.Sprint(port))
		eventually(t, "the bootstrap port", func() string {
			if w := r.worker(made.url()); w.Bootstrap != port {
				return w.String()
			}
			return ""
		})
	}
}

// Pods of other namespaces are workers only where all namespaces are asked for.
func TestForeignNamespace(t *testing.T) {
	t.Parallel()
	b, foreign := newBed(t), &bed{t: t, namespace: "foreign-namespace"}
	ctx := t.Context()
	must(t, admin.Create(ctx, "/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": foreign.namespace}}))
	label := map[string]string{"app": "engine", "fleet": "wide"}
	near, far := regular("near"), regular("far")
	near.labels, far.labels = label, label
	pods := append(b.start(near), foreign.start(far)...)

	const cluster1 = "/apis/rbac.authorization.k8s.io/v1/"
	must(t, admin.Create(ctx, cluster1+"clusterroles", object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": object{"name": "wide"},
		"rules": []object{{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get", "list", "watch"}}}}))
	must(t, admin.Create(ctx, cluster1+"clusterrolebindings", object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": "wide"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "wide"},
		"subjects": []object{{"kind": "ServiceAccount", "name": "sluice", "namespace": b.namespace}}}))

	own := startRouter(t, b.selects(cluster.Server(0))...)
	wide := startRouter(t, "--kubeconfig", b.kubeconfig(cluster.Server(0)), "--selector", "fleet=wide")
	wide.sees(pods...)
	own.sees(pods[0])
}

// Two hundred pods at once (BURST_PODS sets another number), all of which turn NotReady and
// back, and their end.
func TestBurst(t *testing.T) {
	t.Parallel()
	pods := 200
	if n, err := strconv.Atoi(os.Getenv("BURST_PODS")); err == nil {
		pods = n
	}
	b := newBed(t)
	r := startRouter(t, b.selects(cluster.Server(0))...)
	begin := time.Now()
	each := func(do func(name string) error) {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for n := i; n < pods; n += 8 {
					if err := do(fmt.Sprintf("p%d", n)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	each(func(name string) error {
		return b.tryCreate(t.Context(), regular(name).inside("sglang", "regular"))
	})
	count := func(status string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d workers are %s", want, status), func() string {
			n, all := 0, r.workers()
			for _, w := range all {
				if w.Status == status {
					n++
				}
			}
			if n != want || len(all) != want {
				return fmt.Sprintf("%d of %d are", n, len(all))
			}
			return ""
		})
	}
	took := func(what string) {
		t.Helper()
		t.Logf("%s: %s, and the router used %s of a processor and has %d MiB", what, time.Since(begin).Round(10*time.Millisecond), r.processorTime(t), r.memory(t)>>20)
		begin = time.Now()
	}
	count("ready", pods)
	took(fmt.Sprintf("%d pods were created and are workers", pods))
	for _, ready := range []bool{false, true} {
		each(func(name string) error {
			return admin.Patch(t.Context(), podPath(b.namespace, name)+"/status", strategicPatch, readyStatus(ready, ""))
		})
		count(map[bool]string{false: "not_ready", true: "ready"}[ready], pods)
		took(fmt.Sprintf("all of them were set to ready=%t", ready))
	}
	l := r.load()
	l.more(20)
	l.good()

	must(t, admin.do(t.Context(), http.MethodDelete, "/api/v1/namespaces/"+b.namespace+"/pods", "", nil, nil))
	eventually(t, "no pod is left", func() string {
		var list struct {
			Items []Pod `json:"items"`
		}
		must(t, admin.do(t.Context(), http.MethodGet, "/api/v1/namespaces/"+b.namespace+"/pods", "", nil, &list))
		if n := len(list.Items); n > 0 {
			return fmt.Sprintf("%d are", n)
		}
		return ""
	})
	took("all of them were deleted and gone")
	count("ready", 0)
	took("no worker was left")
}
