package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// logged waits until a router's log has a line with all that.
func (r *router) logged(parts ...string) {
	r.t.Helper()
	eventually(r.t, "the log has "+strings.Join(parts, " … "), func() string {
		if slices.ContainsFunc(r.stderr.all(), func(line string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
		}) {
			return ""
		}
		return "it has not"
	})
}

// impatient is gateOfTwo with the shortest patience.
func impatient() []string {
	args := slices.Clone(gateOfTwo)
	args[slices.Index(args, "--cluster-patience-secs")+1] = "5"
	return args
}

// secretFile is a file with a secret.
func secretFile(t testing.TB, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(strings.Repeat(secret, 16)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Processes that may not be members are told why, as are the members, whose requests go on.
func TestClusterRefusesStrangers(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, shortPrefill...)
	g := startMembers(t, storetest.StartRedis(t), fleet, 2, slices.Concat(impatient(), []string{"--cluster-secret-file", secretFile(t, "a")})...)
	load := g.balance(6, brief)
	load.more(20)
	k, _ := g.keeper()
	members := slices.Clone(g.list)
	epoch := k.cluster().Epoch.Number
	start := func(what string, args ...string) *gateMember {
		m := &gateMember{args: args}
		g.startAll([]*gateMember{m}) // it is ready all the same: readiness does not depend on others
		t.Logf("%s is %s", what, m.name)
		return m
	}

	other := start("with another secret", "--cluster-secret-file", secretFile(t, "b"))
	other.logged("another secret", "--cluster-secret-file")
	other.ask(brief).refused(t, 503, "gate_unavailable")

	double := start("with a name that is taken", "--cluster-advertise", k.name)
	const answers = "answers already"
	k.logged("is not taken as a member", answers)
	double.logged(answers, k.name)
	double.ask(brief).refused(t, 503, "gate_unavailable")

	load.more(30)
	g.list = members
	g.joined()
	if again, _ := g.keeper(); again != k || k.cluster().Epoch.Number != epoch {
		t.Errorf("the keeper is %s of epoch %d after %s of epoch %d", again.name, again.cluster().Epoch.Number, k.name, epoch)
	}
	load.allServed()
	g.limitHeld(2)
	g.nobodyLost()
}

// A router that cannot reach the store starts and says so, unless it is told not to; it
// joins when the store is there.
func TestClusterStoreIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, shortPrefill...)
	store := storetest.StartRedis(t)
	store.Kill()
	args := append([]string{"serve", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
		"--cluster", store.URL(), "--cluster-listen", storetest.FreeAddress(t), "--cluster-required"}, fleet.flags()...)
	if code, _, stderr := sluice(t, args...); code == 0 || !strings.Contains(stderr, "--cluster-required") || !strings.Contains(stderr, store.Address) {
		t.Errorf("exit code %d: %s", code, clip(stderr))
	}
	g := &gateMembers{t: t, store: store, fleet: fleet, args: impatient()}
	m := g.add()
	m.logged("store", "refused")
	eventually(t, "requests are refused", func() string {
		if a := m.ask(brief); a.code() != "gate_unavailable" {
			return fmt.Sprint(a.status, a.code())
		}
		return ""
	})
	store.Start()
	g.joined()
	m.ask(brief).good(t)
}
