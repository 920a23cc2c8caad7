package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/node"
	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/open"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/telemetry"
)

const (
	// handOverLimit is how long a keeper that is to end waits for another to take over. The
	// drain goes on meanwhile.
	handOverLimit = 5 * time.Second
	// leaveLimit is how long the goodbye to the other members may take.
	leaveLimit = 2 * time.Second
)

// newClusterClock is the clock of a router: in a cluster it is one that counts suspends.
func newClusterClock(cfg *config.Config) (clock admission.Clock, member *node.Clock) {
	if !cfg.Cluster.Enabled() {
		return admission.NewSystemClock(), nil
	}
	c := node.NewClock()
	return c, c
}

// storeOpener makes the store that the members of a cluster find each other in.
type storeOpener func(*config.Config, *telemetry.Log) (store.Store, error)

// openStore is the store that the members of the cluster find each other in. It is not
// asked yet.
func openStore(cfg *config.Config, log *telemetry.Log) (store.Store, error) {
	v, _ := built()
	s, err := open.Store(open.Options{
		URL: cfg.Cluster.URL.Reveal(), Cluster: cfg.Cluster.Name, Holder: node.KeeperOf,
		Kubeconfig: cfg.Kubernetes.Kubeconfig, UserAgent: "sluice/" + v, Log: log.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("--cluster: %w", err)
	}
	return s, nil
}

// joinCluster makes the gate that of a member of the cluster. The member listens, and does
// nothing else before it is started.
func (r *router) joinCluster(cfg *config.Config, clock *node.Clock, gate admission.Options, s store.Store) error {
	c := &cfg.Cluster
	v, _ := built()
	fallback := cluster.FallbackShare
	if c.Fallback == config.ClusterFallbackRefuse {
		fallback = cluster.FallbackRefuse
	}
	n, err := node.New(node.Options{
		Machine: cluster.Options{
			Cluster: c.Name, Self: cluster.Member{Build: v},
			Lease: c.Lease, Patience: c.Patience, Lost: c.Lost, Fallback: fallback,
			Gate: gate, Generation: uint64(cfg.Generation), Random: random,
		},
		Store: s, Listen: c.Listen, Advertise: c.Advertise,
		Security: node.Security{Secret: string(c.Secret), Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA},
		Clock:    clock, Gate: r.gate, Log: r.log.Logger,
		Documents: func(list []cluster.Document) { r.fleet.TakeDocuments(list) },
		Ranks:     func(each func(func(*cluster.Row))) { r.fleet.TakeRows(each) },
	})
	if err != nil {
		_ = s.Close() // nothing was asked of it
		return err
	}
	r.node = n
	r.member.Status = n.Status
	r.gate.SetRemote(n)
	return nil
}

// startMember begins to look for the other members. The router serves whether it finds
// them or not.
func (r *router) startMember(ctx context.Context, cfg *config.Config) error {
	if r.node == nil {
		return nil
	}
	if err := r.node.Start(ctx, cfg.Cluster.Required); err != nil {
		return fmt.Errorf("--cluster-required: %w", err)
	}
	self := r.node.Self()
	r.log.Info("cluster: this router is a member", "cluster", cfg.Cluster.Name, "store", cfg.Cluster.URL.String(),
		"name", self.Name, "incarnation", self.Incarnation.String(), "lease", cfg.Cluster.Lease, "fallback", cfg.Cluster.Fallback)
	return nil
}

// handOver gives the office of the keeper to another member, if this one has it, since
// this router is about to end.
func (r *router) handOver() {
	if r.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverLimit)
	defer cancel()
	_ = r.node.HandOver(ctx) // it is not the keeper, or there is nobody else
}

// leaveCluster says goodbye to the other members.
func (r *router) leaveCluster() {
	if r.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	r.node.Leave(ctx)
}

// random is a number that nobody can foresee.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
