//go:build kubernetes

package main

import (
	"net/http"
	"testing"
)

// The node that the other tests stand on: it runs an engine for a pod, starts it again
// when it ends, and ends it with the pod within the grace period.
func TestNodeRunsPods(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("process"), regular("inside").inside("sglang", "regular"))
	for _, p := range pods {
		if status, body := get(p.url() + "/v1/models"); status != http.StatusOK {
			t.Errorf("the engine of %s: %d %s", p.Name(), status, body)
		}
	}
	p := pods[0]
	if p.Status.PodIP == pods[1].Status.PodIP {
		t.Errorf("both pods have the address %s", p.Status.PodIP)
	}

	node.mu.Lock()
	run := node.pods[p.Metadata.UID]
	node.mu.Unlock()
	first := run.running()
	first.kill()
	eventually(t, "the engine is started again", func() string {
		if now := run.running(); now == first || now == nil {
			return "it is not"
		}
		return ""
	})
	b.ready("process")

	b.delete("process", -1)
	if p, ok := b.get("process"); ok && p.Metadata.DeletionTimestamp == nil {
		t.Error("a deleted pod has no time of its deletion")
	}
	b.gone("process")
	if status, _ := get(p.url() + "/v1/models"); status != 0 {
		t.Errorf("the engine of a pod that is gone answers %d", status)
	}
}

// An account sees what it was given the right to, and nothing else.
func TestAccountHasLeastRights(t *testing.T) {
	t.Parallel()
	b := newBareBed(t)
	account := cluster.Server(0).Client(b.token)
	list := func(kind string) error {
		return account.do(t.Context(), http.MethodGet, "/api/v1/namespaces/"+b.namespace+"/"+kind, "", nil, nil)
	}
	if err := list("pods"); !hasCode(err, http.StatusForbidden) {
		t.Errorf("pods without a role: %v, want 403", err)
	}
	b.grant()
	eventually(t, "the rights are in force", func() string {
		if err := list("pods"); err != nil {
			return err.Error()
		}
		return ""
	})
	if err := list("secrets"); !hasCode(err, http.StatusForbidden) {
		t.Errorf("secrets: %v, want 403", err)
	}
}
