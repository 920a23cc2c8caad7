// Package open makes the store that a URL names. It is apart from package store so that
// who uses a store does not import the libraries of all of them.
package open

import (
	"log/slog"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/etcd"
	"github.com/sluice-router/sluice/internal/cluster/store/lease"
	"github.com/sluice-router/sluice/internal/cluster/store/redis"
)

// Options of a store.
type Options struct {
	URL     string // see store.URL
	Cluster string // its name, see store.CheckName

	// Holder says who is the keeper by a record: Kubernetes shows it.
	Holder func(value []byte) string
	// Kubeconfig is the file with the address of the API server of Kubernetes. Without
	// it: the one that KUBECONFIG names, else the service account of the pod.
	Kubeconfig string
	// UserAgent is the name by which that server knows the client.
	UserAgent string
	Log       *slog.Logger
}

// Store makes the store. The coordinator is not asked yet: one that cannot be reached is
// no error here, and a member starts without it. The error says what of the options is
// wrong.
func Store(o Options) (store.Store, error) {
	u, err := store.ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	switch u.Kind {
	case store.Etcd:
		return keep(etcd.New(u, o.Cluster))
	case store.Redis:
		return keep(redis.New(u, o.Cluster))
	}
	return keep(lease.New(lease.Options{
		Cluster: o.Cluster, Namespace: u.Namespace, Kubeconfig: o.Kubeconfig, Holder: o.Holder, UserAgent: o.UserAgent, Log: o.Log,
	}))
}

// keep makes no store of none.
func keep[S store.Store](s S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
