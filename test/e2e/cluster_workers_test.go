package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// knows waits until each member has a worker, ready, or has it not.
func (g *gateMembers) knows(id string, has bool) {
	g.t.Helper()
	for _, m := range g.list {
		eventually(g.t, "the members know of "+id, func() string {
			if w := m.worker(id); has && w.Status != "ready" || !has && w.Status != "gone" {
				return fmt.Sprintf("%s says %+v, want it: %t", m.name, w, has)
			}
			return ""
		})
	}
}

// usedBy waits until a worker serves what comes in at a member.
func (g *gateMembers) usedBy(m *gateMember, id string) {
	g.t.Helper()
	before := g.fleet.stats(id).Requests
	client := clients(g.t)
	eventually(g.t, id+" serves", func() string {
		a := m.chat(client, brief).wait(g.t)
		if a.good(g.t); g.t.Failed() {
			g.t.FailNow()
		}
		return moreThanZero(g.fleet.stats(id).Requests - before)
	})
}

// A worker that is registered at one member is used by all, and outlives that member's
// death and its return; removed at another one it is gone at all, and stays so.
func TestClusterWorkerRegisteredAtOneMember(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "1")
	first := fleet.worker("prefill-0")
	configured := []string{"--pd-disaggregation", "--prefill", first.URL, fmt.Sprint(first.BootstrapPort), "--decode", fleet.worker("decode-0").URL, withoutWorkers}
	g := startMembers(t, storetest.StartRedis(t), fleet, 0, gateOfTwo...)
	state := filepath.Join(t.TempDir(), "workers.json")
	g.list = []*gateMember{{args: slices.Concat(configured, []string{"--workers-state", state})}, {args: configured}, {args: configured}}
	g.startAll(g.list)
	g.joined()
	a, b, c := g.list[0], g.list[1], g.list[2]
	a.addWorker("prefill-1")
	g.knows("prefill-1", true)
	for _, m := range g.list {
		g.usedBy(m, "prefill-1")
	}

	a.die()
	g.list = []*gateMember{b, c}
	g.joinedWithout()
	g.knows("prefill-1", true)
	g.usedBy(b, "prefill-1")

	c.removeWorker(c.worker("prefill-1").ID)
	g.knows("prefill-1", false)
	g.list = []*gateMember{a, b, c}
	g.startAll([]*gateMember{a}) // its file has the worker still
	g.joined()
	for range 20 {
		a.ask(brief).good(t)
	}
	g.knows("prefill-1", false)

	// Registered once more, at yet another one, it is back everywhere.
	b.addWorker("prefill-1")
	g.knows("prefill-1", true)
	g.usedBy(c, "prefill-1")
}

// What the file of one member lists is used by all; what it lists no more is gone at all.
func TestClusterWorkersOfOneMembersFile(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, "--prefill", "2", "--decode", "1")
	first, second := fleet.worker("prefill-0"), fleet.worker("prefill-1")
	configured := []string{"--pd-disaggregation", "--prefill", first.URL, fmt.Sprint(first.BootstrapPort), "--decode", fleet.worker("decode-0").URL, withoutWorkers}
	g := startMembers(t, storetest.StartRedis(t), fleet, 0, gateOfTwo...)
	file := filepath.Join(t.TempDir(), "workers.yaml")
	replaceText(t, file, fmt.Sprintf("workers:\n  - {url: %q, worker_type: prefill, bootstrap_port: %d}\n", second.URL, second.BootstrapPort))
	g.list = []*gateMember{{args: slices.Concat(configured, []string{"--discovery-file", file, "--discovery-check-interval-secs", "0.3", "--source-hold-secs", "0.5"})}, {args: configured}}
	g.startAll(g.list)
	g.joined()
	g.knows("prefill-1", true)
	g.usedBy(g.list[1], "prefill-1")
	replaceText(t, file, "workers: []\n")
	g.knows("prefill-1", false)
	if status, body := g.list[1].get("/readyz"); status != http.StatusOK {
		t.Errorf("readyz %d %s", status, body)
	}
}
