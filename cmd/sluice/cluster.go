package main

import (
	"fmt"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// clusterOptions are what a member of a cluster is started with.
type clusterOptions struct {
	store, name, listen, advertise string
	secret                         config.Secret
	cert, key, ca                  string
	lease, patience, lost          time.Duration
	refuse, required               bool
	generation                     int64
}

func newClusterOptions(cfg *config.Config) clusterOptions {
	c := cfg.Cluster
	return clusterOptions{
		store: c.URL.String(), name: c.Name, listen: c.Listen, advertise: c.Advertise,
		secret: c.Secret, cert: c.TLSCert, key: c.TLSKey, ca: c.TLSCA,
		lease: c.Lease, patience: c.Patience, lost: c.Lost,
		refuse: c.Fallback == config.ClusterFallbackRefuse, required: c.Required,
		generation: cfg.Generation,
	}
}

// checkCluster refuses to start as a member of a cluster, which the parts that decide
// cannot be yet: limits that look shared and are not would be worse.
func checkCluster(cfg *config.Config) error {
	if !cfg.Cluster.Enabled() {
		return nil
	}
	o := newClusterOptions(cfg)
	return fmt.Errorf("--cluster %s: this version cannot be a member of a cluster (%s) yet", o.store, o.name)
}
