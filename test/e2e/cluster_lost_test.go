//go:build linux

package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A member that was killed and does not come back holds nothing any more after lost-secs.
func TestClusterMemberStaysAway(t *testing.T) {
	t.Parallel()
	longCluster(t)
	c := startCluster(t, clusterForm{lost: 4})
	load := c.startLoad(4)
	load.goesOn(5)
	for _, role := range []int{1, 0} { // the standby, and then the keeper of the two that are left
		m := c.role(role)
		t.Logf("the %s, member %d, is killed", roleNames[role], m.index)
		m.kill()
		load.goesOn(5)
		eventually(t, "nothing is set aside any more", func() string {
			for _, m := range c.members {
				if m.start() == nil {
					continue
				}
				d, err := m.doc()
				if err != nil || !d.Deciding || len(d.Claims) > 0 || len(d.Members) != c.running() {
					return fmt.Sprintf("%+v %v", d, err)
				}
			}
			return ""
		})
		load.goesOn(5)
	}
	load.end()
	c.judge(0)
}

// running counts the members that run.
func (c *routerCluster) running() (n int) {
	for _, m := range c.members {
		if m.start() != nil {
			n++
		}
	}
	return n
}

// A process that is frozen for about lost-secs. What it holds is not counted after that, and
// what it was granted before is not used when it runs again.
func TestClusterFrozenUntilLost(t *testing.T) {
	t.Parallel()
	longCluster(t)
	const lost = 4
	for role := range 3 {
		t.Run(roleNames[role], func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, clusterForm{lost: lost, patience: 20})
			// What was in prefill when it froze is ended when it runs again.
			load := c.startLoad(4, "upstream_failed", "gate_unavailable")
			load.goesOn(5)
			for _, more := range []time.Duration{-300 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second} {
				m := c.role(role)
				d := lost*time.Second + more
				t.Logf("the %s, member %d, is frozen for %v", roleNames[role], m.index, d)
				s := m.start()
				m.freeze(d)
				s.forgot = append(s.forgot, frozenSpan{s.frozen, s.frozen + lost*time.Second})
				c.together()
				load.goesOn(5)
			}
			load.end()
			c.judge(0)
		})
	}
}

// A member that is cut off ends its prefill requests before the others use their room: none
// is in prefill beyond the limit, neither by the logs nor at the engines.
func TestClusterCutOffUntilLost(t *testing.T) {
	t.Parallel()
	longCluster(t)
	for _, fallback := range []string{"refuse", "share"} {
		t.Run(fallback, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, clusterForm{lost: 4, patience: 2, fallback: fallback, timeout: 60,
				prefill: []string{"--prefill", "2", "--decode", "1", "--prefill-time", "9s", "--load"}})
			load := c.startLoad(2, "gate_unavailable", "upstream_failed")
			time.Sleep(time.Second) // the prefill requests of all have begun
			m := c.role(2)
			t.Logf("member %d is cut off", m.index)
			done := c.fault(-1)
			c.links.cutOff(m.index)
			time.Sleep(6 * time.Second)
			if fallback == "share" { // after lost-secs it may use its share besides
				c.links.heal()
				c.links.hangUp()
				c.together()
			}
			time.Sleep(4 * time.Second)
			load.stop.Store(true)
			c.links.heal()
			c.links.hangUp()
			c.together()
			done()
			load.end()
			more := 0
			if fallback == "share" {
				more = 1 // its share of a worker
			}
			c.judge(more)
		})
	}
}

// Members that do not hear each other decide alone on their shares, which are not more than
// the limits together, and become one gate again.
func TestClusterShares(t *testing.T) {
	t.Parallel()
	longCluster(t)
	c := startCluster(t, clusterForm{fallback: "share", patience: 2,
		prefill: []string{"--prefill", "3", "--decode", "1", "--prefill-time", "100ms", "--load"}})
	load := c.startLoad(4, "gate_unavailable")
	load.goesOn(5)
	for range 3 {
		done := c.fault(-1)
		for i := range c.members {
			c.links.cutOff(i)
			c.links.cut(i, toStore)
			c.links.cut(toStore, i)
		}
		eventually(t, "all decide alone", func() string {
			for _, m := range c.members {
				if d, err := m.doc(); err != nil || d.Role != "alone" {
					return fmt.Sprintf("member %d: %+v %v", m.index, d, err)
				}
			}
			return ""
		})
		time.Sleep(2 * time.Second)
		c.links.heal()
		c.links.hangUp()
		c.together()
		done()
		load.goesOn(5)
	}
	load.end()
	c.judge(0)
	alone := 0
	for _, w := range c.waits() {
		if w.alone {
			alone++
		}
	}
	if t.Logf("%d were granted without a keeper", alone); alone == 0 {
		t.Error("nobody was granted anything without a keeper")
	}
}

// While there is no keeper a wait ends when it would have ended.
func TestClusterWaitsEndWithoutKeeper(t *testing.T) {
	t.Parallel()
	longCluster(t)
	c := startCluster(t, clusterForm{timeout: 1})
	load := c.startLoad(fewClients, "pd_prefill_queue_timeout")
	load.goesOn(5)
	keeper := c.role(0)
	keeper.kill()
	load.goesOn(5)
	keeper.launch()
	c.together() // what it held before is free then
	load.end()
	c.judge(0)
	ended := 0
	for _, w := range c.waits() {
		if w.reason == "queue_timeout" {
			ended++
		}
	}
	if ended == 0 {
		t.Error("no wait ended")
	}
}

// Several things at once.
func TestClusterLosesSeveral(t *testing.T) {
	t.Parallel()
	longCluster(t)
	for _, l := range []struct {
		name string
		lose func(c *routerCluster, load *clusterLoad)
	}{
		{"keeper and standby killed", func(c *routerCluster, load *clusterLoad) {
			k, s, _ := c.roles()
			k.kill()
			s.kill()
			k.launch()
			s.launch()
		}},
		{"keeper and store killed", func(c *routerCluster, load *clusterLoad) {
			k := c.role(0)
			c.stores[0].Kill()
			k.kill()
			time.Sleep(clusterLease * 3 / 2)
			c.stores[0].Start()
			load.goesOn(3)
			k.launch()
		}},
		{"all frozen", func(c *routerCluster, load *clusterLoad) {
			done := c.fault(-1)
			for _, m := range c.members {
				m.start().signal(syscall.SIGSTOP)
			}
			time.Sleep(clusterLease * 3 / 2)
			for i := range c.members { // the last one first
				c.members[len(c.members)-1-i].start().signal(syscall.SIGCONT)
				time.Sleep(200 * time.Millisecond)
			}
			c.together()
			done()
		}},
		{"keeper leaves while the standby is frozen", func(c *routerCluster, load *clusterLoad) {
			k, s, _ := c.roles()
			var freezing sync.WaitGroup
			freezing.Go(func() { s.freeze(clusterLease * 3 / 2) })
			time.Sleep(100 * time.Millisecond)
			k.stop()
			freezing.Wait()
			load.goesOn(3)
			k.launch()
		}},
		{"standby killed, and the keeper cut off", func(c *routerCluster, load *clusterLoad) {
			k, s, _ := c.roles()
			done := c.fault(-1)
			s.kill()
			c.links.cutOff(k.index)
			time.Sleep(clusterLease * 3)
			c.links.heal()
			c.links.hangUp()
			s.launch()
			c.together()
			done()
		}},
		{"keeper frozen, and the store emptied", func(c *routerCluster, load *clusterLoad) {
			k := c.role(0)
			var freezing sync.WaitGroup
			freezing.Go(func() { k.freeze(clusterLease * 5 / 2) })
			time.Sleep(100 * time.Millisecond)
			c.stores[0].Wipe()
			freezing.Wait()
		}},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, clusterForm{patience: 30})
			load := c.startLoad(fewClients)
			load.goesOn(3)
			for range 2 {
				l.lose(c, load)
				c.together()
				load.goesOn(3)
			}
			load.end()
			c.judge(0)
		})
	}
}
