package open_test

import (
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/open"
)

// Nothing is asked yet, and no secret is in what logs say.
func TestStoresByURL(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://me:hush@127.0.0.1:1,127.0.0.1:2": "etcd://127.0.0.1:1,127.0.0.1:2 /sluice/gate/gate",
		"rediss://:hush@localhost/2":             "rediss://localhost:6379/2 sluice:gate:gate",
		"valkey://localhost":                     "redis://localhost:6379 sluice:gate:gate",
	} {
		s, err := open.Store(open.Options{URL: url, Cluster: "gate"})
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
	for _, o := range []open.Options{{URL: "zk://a", Cluster: "gate"}, {URL: "etcd://a", Cluster: "A/B"}, {URL: "redis://a"}} {
		if s, err := open.Store(o); err == nil || s != nil {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}
