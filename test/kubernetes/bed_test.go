//go:build kubernetes

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// bed is a namespace with an account for sluice.
type bed struct {
	t         testing.TB
	namespace string
	token     string // of the account
}

// newBed makes a namespace, and an account in it that has the rights of rights().
func newBed(t testing.TB) *bed {
	t.Helper()
	b := newBareBed(t)
	b.grant()
	return b
}

// newBareBed is newBed without the rights.
func newBareBed(t testing.TB) *bed {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	b := &bed{t: t, namespace: name}
	ctx := t.Context()
	must(t, admin.Create(ctx, "/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}))
	must(t, admin.Create(ctx, "/api/v1/namespaces/"+name+"/serviceaccounts",
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "sluice"}}))
	token, err := admin.Token(ctx, name, "sluice")
	must(t, err)
	b.token = token
	return b
}

const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/"

// grant gives the account the rights in its namespace that docs/kubernetes.md says.
func (b *bed) grant() {
	b.t.Helper()
	for _, m := range documented(b.t) {
		if m.kind == "Role" || m.kind == "RoleBinding" {
			must(b.t, admin.Create(b.t.Context(), m.path(b.namespace), m.in(b.namespace)))
		}
	}
}

// revoke takes the rights away.
func (b *bed) revoke() {
	b.t.Helper()
	must(b.t, admin.Delete(b.t.Context(), rbac+b.namespace+"/rolebindings/sluice", -1, ""))
	must(b.t, admin.Delete(b.t.Context(), rbac+b.namespace+"/roles/sluice", -1, ""))
}

// kubeconfig writes a file with the account's credentials for a server.
func (b *bed) kubeconfig(server *APIServer) string {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), "kubeconfig")
	must(b.t, server.WriteKubeconfig(file, b.namespace, b.token))
	return file
}

// pod is what a pod is made of.
type pod struct {
	name        string
	labels      map[string]string
	annotations map[string]string
	args        []string // of the engine
	grace       int      // seconds; 0: 10
	preStop     int      // seconds of sleep before SIGTERM
	finalizers  []string // keep it when it is deleted
}

// enginePort is the port of all pods' engines.
const enginePort = 8000

// quick are the arguments of an engine that runs whole requests.
var quick = []string{"--regular", "1", "--load", "--prefill-time", "4ms", "--decode-step", "4ms"}

// regular is a pod whose engine runs whole requests. SIGTERM ends that at once, so that it
// has to wait until the router has seen that the pod is deleted.
func regular(name string) pod {
	return pod{name: name, labels: map[string]string{"app": "engine"}, args: quick, preStop: 1}
}

// inside makes it a pod whose engine needs no process of its own.
func (p pod) inside(backend, role string) pod {
	p.annotations = maps.Clone(p.annotations)
	if p.annotations == nil {
		p.annotations = make(map[string]string)
	}
	p.annotations[annotationEngine], p.annotations[annotationRole] = backend, role
	return p
}

// with adds an annotation.
func (p pod) with(key, value string) pod {
	p.annotations = maps.Clone(p.annotations)
	if p.annotations == nil {
		p.annotations = make(map[string]string)
	}
	p.annotations[key] = value
	return p
}

func (b *bed) create(p pod) {
	b.t.Helper()
	must(b.t, b.tryCreate(b.t.Context(), p))
}

func (b *bed) tryCreate(ctx context.Context, p pod) error {
	return admin.Create(ctx, "/api/v1/namespaces/"+b.namespace+"/pods", b.object(p))
}

// object is the pod as the API takes it.
func (b *bed) object(p pod) object {
	grace := p.grace
	if grace == 0 {
		grace = 10
	}
	container := object{"name": "engine", "image": "sluice", "args": p.args,
		"ports": []object{{"name": "http", "containerPort": enginePort}}}
	if p.preStop > 0 {
		container["lifecycle"] = object{"preStop": object{"sleep": object{"seconds": p.preStop}}}
	}
	metadata := object{"labels": p.labels, "annotations": p.annotations}
	if p.finalizers != nil {
		metadata["finalizers"] = p.finalizers
	}
	if p.name != "" {
		metadata["name"] = p.name
	}
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
		"spec": object{"terminationGracePeriodSeconds": grace, "containers": []object{container}},
	}
}

// get reads a pod; ok is false if there is none of that name.
func (b *bed) get(name string) (p *Pod, ok bool) {
	b.t.Helper()
	p = &Pod{}
	err := admin.do(b.t.Context(), http.MethodGet, podPath(b.namespace, name), "", nil, p)
	if hasCode(err, http.StatusNotFound) {
		return nil, false
	}
	must(b.t, err)
	return p, true
}

// ready waits until pods are ready, and returns them.
func (b *bed) ready(names ...string) []*Pod {
	b.t.Helper()
	pods := make([]*Pod, len(names))
	for i, name := range names {
		eventually(b.t, "pod "+name+" is ready", func() string {
			p, ok := b.get(name)
			if !ok || !p.Ready() {
				return fmt.Sprintf("%+v", p)
			}
			pods[i] = p
			return ""
		})
	}
	return pods
}

// start creates pods and waits until they are ready.
func (b *bed) start(pods ...pod) []*Pod {
	b.t.Helper()
	var names []string
	for _, p := range pods {
		b.create(p)
		names = append(names, p.name)
	}
	return b.ready(names...)
}

// delete deletes a pod, with its own grace period where grace is negative.
func (b *bed) delete(name string, grace int) {
	b.t.Helper()
	must(b.t, admin.Delete(b.t.Context(), podPath(b.namespace, name), grace, ""))
}

// gone waits until there is no pod of that name.
func (b *bed) gone(name string) {
	b.t.Helper()
	eventually(b.t, "pod "+name+" is gone", func() string {
		if p, ok := b.get(name); ok {
			return fmt.Sprintf("%+v", p.Metadata)
		}
		return ""
	})
}

// setReady writes the pod's readiness, as a kubelet does whose probe fails or succeeds.
func (b *bed) setReady(name string, ready bool) {
	b.t.Helper()
	must(b.t, admin.Patch(b.t.Context(), podPath(b.namespace, name)+"/status", strategicPatch, readyStatus(ready, "")))
}

// label sets a pod's label, or takes it away where value is nil.
func (b *bed) label(name, key string, value any) { b.metadata(name, "labels", key, value) }

// annotate does so with an annotation.
func (b *bed) annotate(name, key string, value any) { b.metadata(name, "annotations", key, value) }

func (b *bed) metadata(name, what, key string, value any) {
	b.t.Helper()
	must(b.t, admin.Patch(b.t.Context(), podPath(b.namespace, name), mergePatch, object{"metadata": object{what: object{key: value}}}))
}

// url is that of a pod's engine.
func (p *Pod) url() string {
	return "http://" + net.JoinHostPort(p.Status.PodIP, strconv.Itoa(enginePort))
}

// served is how many requests the engine of a pod that is a process has got, and how
// many of them run.
func (p *Pod) served(t testing.TB) (requests, running int) {
	t.Helper()
	var v struct {
		Workers []struct {
			Stats struct {
				Requests int `json:"requests"`
				Inflight int `json:"inflight"`
			} `json:"stats"`
		} `json:"workers"`
	}
	status, body := get("http://" + net.JoinHostPort(p.Status.PodIP, strconv.Itoa(adminPort)) + "/sim/workers")
	if err := json.Unmarshal([]byte(body), &v); status != http.StatusOK || err != nil || len(v.Workers) != 1 {
		t.Fatalf("cannot ask the engine of %s for its requests: %d %s", p.Name(), status, clip(body))
	}
	return v.Workers[0].Stats.Requests, v.Workers[0].Stats.Inflight
}

var probeClient = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks over a new connection. Status 0: no answer.
func get(url string) (int, string) {
	resp, err := probeClient.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}
