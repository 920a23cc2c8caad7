package e2e

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// Requests of these tests spend their time in prefill, on two workers, so that the limit
// counts.
var shortPrefill = []string{"--prefill", "2", "--decode", "1", "--prefill-time", "30ms"}

// A gate grows from one member to three and shrinks again under load. Every request is
// served, and the limit holds all the time.
func TestClusterGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, shortPrefill...)
	g := startMembers(t, storetest.StartRedis(t), fleet, 1, gateOfTwo...)
	load := g.balance(12, brief)
	load.more(20)
	for range 2 {
		g.add()
		g.joined()
		load.to(g.list)
		load.more(20)
	}
	for len(g.list) > 1 {
		// The keeper goes first, so that another one has to take over each time.
		k, _ := g.keeper()
		g.remove(k)
		load.to(g.list)
		k.stop()
		g.joined()
		load.more(20)
	}
	load.allServed()
	g.limitHeld(2)
	g.nobodyLost()
}

// The store loses all it has while the members run, then all members are killed and start
// again, at the same instant. The first costs nobody anything.
func TestClusterStartsAgain(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, shortPrefill...)
	store := storetest.StartRedis(t)
	g := startMembers(t, store, fleet, 2, gateOfTwo...)
	load := g.balance(8, brief)
	load.more(20)
	k, _ := g.keeper()
	epoch := k.cluster().Epoch.Number
	store.Wipe()
	load.more(50)
	g.joined()
	if again, _ := g.keeper(); again != k || k.cluster().Epoch.Number != epoch {
		t.Errorf("the store was emptied, and the keeper is %s of epoch %d after %s of epoch %d", again.name, again.cluster().Epoch.Number, k.name, epoch)
	}
	// The record is there again: another one can join.
	g.add()
	g.joined()
	load.to(g.list)
	load.more(30)
	load.allServed()
	g.limitHeld(2)

	var dying sync.WaitGroup
	for _, m := range g.list {
		m.over = true
		dying.Go(m.kill)
	}
	dying.Wait()
	g.startAll(g.list)
	g.joined()
	load = g.balance(8, brief)
	load.more(30)
	load.allServed()
}

// A member that is told to end serves who waits at the gate of all and who streams, and is
// gone for the others at once; if it decided, another one takes over meanwhile.
func TestClusterMemberDrains(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	for _, role := range []string{"keeper", "another"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, "--prefill", "1", "--decode", "1", "--prefill-time", "700ms")
			g := startMembers(t, storetest.StartRedis(t), fleet, 3, gateOfTwo...)
			k, others := g.keeper()
			m, other := others[0], others[1]
			if role == "keeper" {
				m = k
			}
			client := clients(t)
			streaming := m.chat(client, streamed+`"max_tokens":8,"sim":"on=decode,event_delay=500ms",`)
			<-streaming.begun
			var calls []*call
			for range 4 {
				calls = append(calls, m.chat(client, streamed+brief), other.chat(client, brief))
			}
			eventually(t, "requests wait", func() string {
				if d := m.gate(); d.Waiting < 4 {
					return fmt.Sprint(d.Waiting)
				}
				return ""
			})
			m.over = true
			m.signal(syscall.SIGTERM)
			for _, c := range append(calls, streaming) {
				c.wait(t).good(t)
			}
			if code := m.exit(patience); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			g.remove(m)
			g.joined() // without it
			g.nobodyLost()
			g.limitHeld(2)
		})
	}
}

// A reload of limits at one member counts for all, since it is the last that was loaded;
// those whose file says something else are told of.
func TestClusterReloadAtOneMember(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, "--prefill", "1", "--decode", "1", "--prefill-time", "200ms")
	file := writeFile(t, "admission:\n  prefill_max_inflight_requests_per_worker: 2\n")
	g := startMembers(t, storetest.StartRedis(t), fleet, 2, slices.Concat([]string{"--config", file}, gateOfTwo[2:])...)
	own := writeFile(t, "admission:\n  prefill_max_inflight_requests_per_worker: 2\n")
	one := g.add("--config", own)
	g.joined()
	load := g.balance(12, brief)
	load.more(20)
	g.limitHeld(2)
	replaceText(t, own, "admission:\n  prefill_max_inflight_requests_per_worker: 4\n")
	one.signal(syscall.SIGHUP)
	g.joinedAs(func(d memberView) string {
		if d.SettingsOf != one.name || len(d.Differs) != 2 {
			return "differs"
		}
		return ""
	})
	load.more(40)
	load.allServed()
	if s := fleet.stats("prefill-0"); s.PeakPrefilling < 3 || s.PeakPrefilling > 4 {
		t.Errorf("%d requests in prefill at once after a reload, want 3 or 4", s.PeakPrefilling)
	}
	for _, m := range g.list {
		want := 1.0
		if m == one {
			want = 0
		}
		m.waitMetric("sluice_cluster_config_differs", want)
	}
	// The others follow.
	replaceText(t, file, "admission:\n  prefill_max_inflight_requests_per_worker: 4\n")
	for _, m := range g.list {
		m.signal(syscall.SIGHUP)
	}
	g.joinedAs(func(d memberView) string {
		if len(d.Differs) != 0 {
			return "differs"
		}
		return ""
	})
}
