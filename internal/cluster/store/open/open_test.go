package open_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/open"
)

// Nothing is asked yet, and no secret is in what logs say.
func TestStoresByURL(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "namespace": "mine"}}], "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"etcd://me:hush@127.0.0.1:1,127.0.0.1:2": "etcd://127.0.0.1:1,127.0.0.1:2 /sluice/gate/gate",
		"rediss://:hush@localhost/2":             "rediss://localhost:6379/2 sluice:gate:gate",
		"kubernetes://serving":                   "kubernetes://serving lease gate",
		"kubernetes://":                          "kubernetes://mine lease gate",
		"valkey://localhost":                     "valkey://localhost:6379 sluice:gate:gate",
	} {
		s, err := open.Store(open.Options{URL: url, Cluster: "gate", Kubeconfig: kubeconfig})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := s.String(); got != want {
			t.Errorf("%s is %q, want %q", url, got, want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, o := range []open.Options{{URL: "zk://a", Cluster: "gate"}, {URL: "etcd://a", Cluster: "A/B"}, {URL: "redis://a"}, {URL: "kubernetes://a", Cluster: "gate", Kubeconfig: kubeconfig + "x"}} {
		if s, err := open.Store(o); err == nil || s != nil {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}
