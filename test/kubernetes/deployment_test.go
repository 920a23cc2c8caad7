//go:build kubernetes

package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// controllers starts them for the first test that needs them.
var controllers = sync.OnceValue(func() error { return cluster.StartControllers(context.Background()) })

// workload is a Deployment or a StatefulSet.
type workload struct {
	kind, name string
	replicas   int
	pod        pod // its name does not matter
}

// path is where the API has workloads of its kind.
func (w workload) path(namespace string) string {
	return "/apis/apps/v1/namespaces/" + namespace + "/" + resources[w.kind]
}

// deploy creates it. Its pods are replaced one by one, and a new one must have been ready
// for a second before the next old one goes, as docs/kubernetes.md says.
func (b *bed) deploy(w workload) {
	b.t.Helper()
	must(b.t, controllers())
	template := b.object(w.pod)
	delete(template, "apiVersion")
	delete(template, "kind")
	identity := object{}
	for _, key := range []string{"app", "role"} {
		if v, ok := w.pod.labels[key]; ok {
			identity[key] = v
		}
	}
	spec := object{"replicas": w.replicas, "minReadySeconds": 1, "selector": object{"matchLabels": identity}, "template": template}
	if w.kind == "Deployment" {
		spec["strategy"] = object{"type": "RollingUpdate", "rollingUpdate": object{"maxSurge": 1, "maxUnavailable": 0}}
	} else {
		spec["serviceName"] = w.name
	}
	must(b.t, admin.Create(b.t.Context(), w.path(b.namespace), object{"apiVersion": "apps/v1", "kind": w.kind,
		"metadata": object{"name": w.name}, "spec": spec}))
}

// roll changes the labels of its pods, which replaces all of them.
func (b *bed) roll(w workload, labels object) {
	b.t.Helper()
	must(b.t, admin.Patch(b.t.Context(), w.path(b.namespace)+"/"+w.name, mergePatch,
		object{"spec": object{"template": object{"metadata": object{"labels": labels}}}}))
}

// rolled waits until all its pods are new and available, and no old one is left.
func (b *bed) rolled(w workload) {
	b.t.Helper()
	eventually(b.t, w.name+" has rolled out", func() string {
		var v struct {
			Metadata struct {
				Generation int `json:"generation"`
			} `json:"metadata"`
			Status struct {
				Observed  int `json:"observedGeneration"`
				Replicas  int `json:"replicas"`
				Updated   int `json:"updatedReplicas"`
				Available int `json:"availableReplicas"`
			} `json:"status"`
		}
		must(b.t, admin.do(b.t.Context(), http.MethodGet, w.path(b.namespace)+"/"+w.name, "", nil, &v))
		if s := v.Status; s.Observed < v.Metadata.Generation || s.Replicas != w.replicas || s.Updated != w.replicas || s.Available != w.replicas {
			return fmt.Sprintf("%+v", v)
		}
		return ""
	})
}

// A rollout of prefill and decode by Deployments, which know nothing of each other: no
// request fails, and none is split between two generations.
func TestDeploymentsRollOut(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, append(b.selectsPairs(cluster.Server(0)), "--pair-label", revision)...)
	var both []workload
	for _, role := range []string{"prefill", "decode"} {
		w := workload{kind: "Deployment", name: role, replicas: 2, pod: pdPod(sim.SGLang, "r1", role, 0)}
		b.deploy(w)
		both = append(both, w)
	}
	all := func(generation string) {
		t.Helper()
		for _, w := range both {
			b.rolled(w)
		}
		eventually(t, "the workers are those of "+generation, func() string {
			workers := r.workers()
			for _, w := range workers {
				if w.Status != "ready" || w.Labels[revision] != generation {
					return w.String()
				}
			}
			if len(workers) != 4 {
				return fmt.Sprintf("there are %d", len(workers))
			}
			return ""
		})
	}
	all("r1")
	l := r.load()
	l.more(40)
	for _, generation := range []string{"r2", "r3"} {
		for _, w := range both {
			b.roll(w, object{revision: generation})
		}
		all(generation)
		l.more(20)
	}
	l.good()
	checkPairs(t, node.Fleet(b.namespace, sim.SGLang), 3)
}

// A StatefulSet gives the new pods the names of the old ones.
func TestStatefulSetRollsOut(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := startRouter(t, b.selects(cluster.Server(0))...)
	w := workload{kind: "StatefulSet", name: "engine", replicas: 2, pod: regular("")}
	b.deploy(w)
	b.rolled(w)
	pods := b.ready("engine-0", "engine-1")
	r.sees(pods...)
	l := r.load()
	l.more(20)
	b.roll(w, object{revision: "r2"})
	b.rolled(w)
	after := b.ready("engine-0", "engine-1")
	for i := range pods {
		if after[i].Metadata.UID == pods[i].Metadata.UID {
			t.Errorf("%s is the pod that it was", after[i].Name())
		}
	}
	r.sees(after...)
	l.more(20)
	l.good()
}
