//go:build linux

package e2e

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// isWrite tells whether a piece of what a member says to the store writes the record.
func isWrite(b []byte) bool { return bytes.Contains(b, []byte(`"renewals":`)) }

func sortDurations(d []time.Duration) { slices.Sort(d) }

// The store is away, frozen, emptied, restored from old data, and split in two: the gate goes
// on, and a keeper that is lost afterwards is followed by another.
func TestClusterStoreIsLost(t *testing.T) {
	t.Parallel()
	longCluster(t)
	type kind struct {
		name  string
		start func(testing.TB, ...string) *storetest.Server
	}
	for _, k := range []kind{{"etcd", storetest.StartEtcd}, {"redis", storetest.StartRedis}, {"valkey", storetest.StartValkey}} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, clusterForm{store: k.start, patience: 30})
			server := c.stores[0]
			load := c.startLoad(3)
			load.goesOn(3)

			backup := server.Backup()
			t.Log("the store is killed")
			server.Kill()
			load.goesOn(40) // longer than a lease
			server.Start()
			c.together()

			t.Log("the store is frozen")
			server.Freeze()
			load.goesOn(40)
			server.Thaw()
			c.together()

			t.Log("the store is emptied, and the keeper killed")
			server.Wipe()
			keeper := c.role(0)
			keeper.kill()
			load.goesOn(3)
			keeper.launch()
			c.together()

			t.Log("the store is restored from old data, and the keeper killed")
			server.Restore(backup)
			keeper = c.role(0)
			keeper.kill()
			load.goesOn(3)
			keeper.launch()
			c.together()
			load.end()
			c.judge(0)
		})
	}
}

// The store gives itself out as two that know nothing of each other.
func TestClusterStoreIsSplit(t *testing.T) {
	t.Parallel()
	longCluster(t)
	c := startCluster(t, clusterForm{patience: 30})
	c.stores = append(c.stores, storetest.StartRedis(t))
	load := c.startLoad(3)
	load.goesOn(3)
	give := func(m *clusterMember, store int) {
		c.mu.Lock()
		c.store[m.index] = store
		c.mu.Unlock()
		c.links.hangUp()
	}
	for role := range 3 {
		m := c.role(role)
		t.Logf("the %s, member %d, has a store of its own", roleNames[role], m.index)
		give(m, 1)
		load.goesOn(40)
		give(m, 0)
		c.together()
		load.goesOn(3)
	}

	keeper, standby, other := c.roles()
	t.Logf("the keeper, member %d, is killed, and the others, cut from each other, have a store each", keeper.index)
	done := c.fault(-1)
	give(standby, 1)
	c.links.cut(standby.index, other.index)
	c.links.cut(other.index, standby.index)
	keeper.kill()
	time.Sleep(clusterLease * 7 / 2)
	give(standby, 0)
	c.links.heal()
	c.links.hangUp()
	keeper.launch()
	c.together()
	done()
	load.goesOn(3)
	load.end()
	c.judge(0)
}
