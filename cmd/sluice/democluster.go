package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/demo"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// maxDemoRouters bounds the routers of the demo: all run in one process.
const maxDemoRouters = 9

// demoLease is the lease of the demo's cluster, the shortest there is: the demo waits for
// its end.
const demoLease = 2 * time.Second

// demoCluster are the routers of the demo that share one gate, with a store in this
// process.
type demoCluster struct {
	store store.Memory

	mu        sync.Mutex
	addresses map[int]string // for the other members, by number
}

// start starts router i. One that was killed is started again at the same address.
func (c *demoCluster) start(ctx context.Context, i int, o demo.RouterOptions) (*demo.Member, error) {
	cfg, err := demoConfig(o)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	address, again := c.addresses[i]
	c.mu.Unlock()
	if !again {
		address = "127.0.0.1:0"
	}
	cfg.Cluster.URL, cfg.Cluster.Listen = "memory", address
	cfg.Cluster.Lease, cfg.Cluster.Patience = demoLease, demoLease
	open := func(*config.Config, *telemetry.Log) (store.Store, error) { return c.store.Open(), nil }
	r, running, err := runDemoRouter(ctx, cfg, open)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.addresses == nil {
		c.addresses = map[int]string{}
	}
	c.addresses[i] = r.node.Self().Address
	c.mu.Unlock()
	return &demo.Member{
		Router: running,
		View:   func() demo.View { return c.view(r) },
		Kill: func() {
			r.node.Close() // nobody is told
			r.server.Abort()
			running.Stop()
		},
	}, nil
}

// view is what a router knows of the others.
func (c *demoCluster) view(r *router) (v demo.View) {
	st := r.node.Status()
	if !st.Decides() {
		return v
	}
	for _, m := range st.View.Members {
		if m.State == "answering" {
			v.Answering++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, address := range c.addresses {
		if address == st.View.Keeper {
			v.Keeper = fmt.Sprintf("router %d", i+1)
		}
	}
	return v
}
