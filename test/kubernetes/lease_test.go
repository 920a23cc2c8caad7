//go:build kubernetes

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/lease"
	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

const leases = "/apis/coordination.k8s.io/v1/namespaces/"

// grantLeases gives the account what docs/cluster-stores.md says.
func (b *bed) grantLeases() {
	b.t.Helper()
	meta := object{"name": "sluice-gate"}
	must(b.t, admin.Create(b.t.Context(), rbac+b.namespace+"/roles", object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta,
		"rules": []object{{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": []string{"get", "create", "update"}}},
	}))
	must(b.t, admin.Create(b.t.Context(), rbac+b.namespace+"/rolebindings", object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
		"subjects": []object{{"kind": "ServiceAccount", "name": "sluice", "namespace": b.namespace}},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sluice-gate"},
	}))
}

// lease opens a store of the namespace through an address.
func (b *bed) lease(t testing.TB, address, name, token string) store.Store {
	t.Helper()
	u, err := url.Parse(admin.base)
	must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []object{{"name": "test", "cluster": object{
			"server": "https://" + address, "tls-server-name": u.Hostname(),
			"certificate-authority-data": base64.StdEncoding.EncodeToString(cluster.certs.authority)}}},
		"users":    []object{{"name": "test", "user": object{"token": token}}},
		"contexts": []object{{"name": "test", "context": object{"cluster": "test", "user": "test"}}},
	})
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	s, err := lease.New(lease.Options{Cluster: name, Namespace: b.namespace, Kubeconfig: file, Holder: func([]byte) string { return "router-0" }, UserAgent: "sluice/test"})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// leaseFaults are those of one API server, and of the Leases of one namespace.
type leaseFaults struct {
	*APIServer
	b *bed
}

func (f leaseFaults) Start() { must(f.b.t, f.APIServer.Start(f.b.t.Context())) }

func (f leaseFaults) Freeze() { must(f.b.t, f.APIServer.Freeze()) }

func (f leaseFaults) Thaw() { must(f.b.t, f.APIServer.Thaw()) }

func (f leaseFaults) list() (list struct{ Items []object }) {
	must(f.b.t, admin.do(f.b.t.Context(), http.MethodGet, leases+f.b.namespace+"/leases", "", nil, &list))
	return list
}

// Wipe implements storetest.Faults.
func (f leaseFaults) Wipe() {
	for _, o := range f.list().Items {
		must(f.b.t, admin.Delete(f.b.t.Context(), leases+f.b.namespace+"/leases/"+o["metadata"].(object)["name"].(string), 0, ""))
	}
}

// Backup implements storetest.Faults.
func (f leaseFaults) Backup() string {
	text, err := json.Marshal(f.list())
	must(f.b.t, err)
	return string(text)
}

// Restore implements storetest.Faults. What an object was is made anew.
func (f leaseFaults) Restore(backup string) {
	f.Wipe()
	var list struct{ Items []object }
	must(f.b.t, json.Unmarshal([]byte(backup), &list))
	for _, o := range list.Items {
		meta := o["metadata"].(object)
		o["metadata"] = object{"name": meta["name"], "annotations": meta["annotations"]}
		must(f.b.t, admin.Create(f.b.t.Context(), leases+f.b.namespace+"/leases", o))
	}
}

// The record of a cluster in a Lease, through an API server of its own that is killed and
// frozen.
func TestLeaseStore(t *testing.T) {
	t.Parallel()
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	defer server.Kill()
	b := newBareBed(t)
	b.grantLeases()
	u, err := url.Parse(server.URL)
	must(t, err)
	storetest.Run(t, &storetest.Bed{
		Open: func(t testing.TB, address, name string) store.Store {
			return b.lease(t, address, name, b.token)
		},
		Address: u.Host, Faults: leaseFaults{server, b}, ReadsFirst: true,
	})
}

func TestLeaseStoreRights(t *testing.T) {
	t.Parallel()
	b := newBareBed(t)
	u, err := url.Parse(admin.base)
	must(t, err)
	refused := func(what string, s store.Store) {
		t.Helper()
		if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: a read: %v", what, err)
		}
		if _, err := s.Write(t.Context(), []byte("x"), ""); !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: a write: %v", what, err)
		}
	}
	s := b.lease(t, u.Host, "gate", b.token)
	refused("no rights", s)
	refused("a wrong token", b.lease(t, u.Host, "gate", "wrong"))
	b.grantLeases()
	eventually(t, "the rights are there", func() string {
		if _, err := s.Read(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	})
	// An object made beforehand, by a chart for example, becomes the record.
	must(t, admin.Create(t.Context(), leases+b.namespace+"/leases", object{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": object{"name": "gate", "labels": object{"app": "sluice"}},
	}))
	revision, err := s.Write(t.Context(), []byte("one"), "")
	must(t, err)
	_, err = s.Write(t.Context(), make([]byte, store.MaxValue), revision)
	must(t, err)
	var o struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct{ HolderIdentity, AcquireTime, RenewTime string }
	}
	must(t, admin.do(t.Context(), http.MethodGet, leases+b.namespace+"/leases/gate", "", nil, &o))
	if o.Metadata.Labels["app"] != "sluice" || o.Spec.HolderIdentity != "router-0" || o.Spec.AcquireTime == "" || o.Spec.RenewTime <= o.Spec.AcquireTime {
		t.Errorf("the Lease is %+v", o)
	}
	// Somebody else's is left alone.
	must(t, admin.Create(t.Context(), leases+b.namespace+"/leases", object{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": object{"name": "controller"}, "spec": object{"holderIdentity": "a-controller"},
	}))
	if _, err := b.lease(t, u.Host, "controller", b.token).Write(t.Context(), []byte("x"), ""); !errors.Is(err, store.ErrForeign) {
		t.Errorf("a write over another's Lease: %v", err)
	}
}

// clusterView is GET /cluster of a router.
type clusterView struct {
	Keeper   string `json:"keeper"`
	Deciding bool   `json:"deciding"`
	Store    struct {
		URL, Error string
	} `json:"store"`
	Members []struct{ Name, State string } `json:"members"`
}

func (v *clusterView) answering() (n int) {
	for _, m := range v.Members {
		if m.State == "answering" {
			n++
		}
	}
	return n
}

func (r *router) cluster() (v clusterView) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.addr + "/cluster")
	must(r.t, err)
	defer resp.Body.Close()
	must(r.t, json.NewDecoder(resp.Body).Decode(&v))
	return v
}

// Routers find each other by a Lease, which says who decides. An API server that is frozen
// for longer than their lease stops nobody; a keeper that is killed is replaced.
func TestClusterByLease(t *testing.T) {
	t.Parallel()
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	defer server.Kill()
	b := newBed(t)
	b.grantLeases()
	pods := b.start(regular("a"))
	holder := func() (who string) {
		var o struct {
			Spec struct{ HolderIdentity string }
		}
		must(t, admin.do(t.Context(), http.MethodGet, leases+b.namespace+"/leases/sluice", "", nil, &o))
		return o.Spec.HolderIdentity
	}
	routers := map[string]*router{}
	for range 2 {
		at := storetest.FreeAddress(t)
		r := startRouter(t, append(b.selects(server), "--cluster", "kubernetes://"+b.namespace, "--cluster-listen", at,
			"--cluster-lease-secs", "3", "--cluster-patience-secs", "30")...)
		r.sees(pods...)
		routers[at] = r
	}
	var keeper string
	for name, r := range routers {
		eventually(t, "both are members", func() string {
			v := r.cluster()
			if keeper = v.Keeper; !v.Deciding || v.answering() != 2 || routers[keeper] == nil || holder() != keeper {
				return fmt.Sprintf("%s: %+v, the Lease is held by %s", name, v, holder())
			}
			return ""
		})
	}

	for name, r := range routers {
		must(t, server.Freeze())
		eventually(t, "the store is missed", func() string {
			if v := r.cluster(); v.Store.Error == "" {
				return fmt.Sprintf("%s: %+v", name, v)
			}
			return ""
		})
		if v := r.cluster(); !v.Deciding || v.Keeper != keeper {
			t.Errorf("%s, without the store: %+v", name, v)
		}
		must(t, server.Thaw())
	}

	routers[keeper].Kill()
	delete(routers, keeper)
	for name, r := range routers {
		eventually(t, "the other one is the keeper", func() string {
			if v := r.cluster(); v.Keeper != name || !v.Deciding || holder() != name {
				return fmt.Sprintf("%+v, the Lease is held by %s", v, holder())
			}
			return ""
		})
	}
}
