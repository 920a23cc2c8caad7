package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// nextBinary builds the program that speaks the next version of the protocol between
// members: it says what today's skips, and, when all speak it, what today's refuses.
func nextBinary(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice-next")
	args := []string{"build", "-tags", "sluice_nextprotocol", "-o", path}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(t.Context(), "go", append(args, "../../cmd/sluice")...).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot build the next version: %v\n%s", err, out)
	}
	return path
}

// Three members under load are replaced one after another by a build that speaks the next
// version of the protocol, and then back. No request fails, the limit holds, and the newer
// version is spoken only while all members' builds have it.
func TestClusterRollingUpgrade(t *testing.T) {
	t.Parallel()
	next := nextBinary(t)
	fleet := startSim(t, shortPrefill...)
	g := startMembers(t, storetest.StartRedis(t), fleet, 3, gateOfTwo...)
	load := g.balance(12, brief)
	load.more(30)
	const changed = "the version of the protocol that is spoken has changed"
	for _, program := range []string{next, ""} {
		for i, old := range slices.Clone(g.list) {
			load.to(append(slices.Clone(g.list[:i]), g.list[i+1:]...))
			old.stop()
			// Its successor has the same address, as a pod of a set has.
			m := &gateMember{name: old.name, program: program}
			g.list[i] = m
			g.startAll([]*gateMember{m})
			newest := uint32(1)
			if program == next && i == len(g.list)-1 {
				newest = 2
			}
			g.joinedAs(func(d memberView) string {
				if d.Protocol.Min != 1 || d.Protocol.Max != newest {
					return fmt.Sprintf("want the version %d", newest)
				}
				return ""
			})
			load.to(g.list)
			load.more(30)
			for _, x := range g.list {
				if newest == 1 && program == next && strings.Contains(x.stderr.String(), changed) {
					t.Errorf("%s speaks another version while there are members that do not", x.name)
				}
				if newest == 2 {
					eventually(t, "the newer version is spoken", func() string {
						if !strings.Contains(x.stderr.String(), changed+`","version":2`) {
							return x.name + " does not"
						}
						return ""
					})
				}
			}
		}
	}
	load.allServed()
	g.limitHeld(2)
	g.nobodyLost()
	for _, x := range g.list {
		if strings.Contains(x.stderr.String(), "cannot be read") {
			t.Errorf("%s was sent what it does not know", x.name)
		}
	}
}

// While a rollout changes classes, members differ: what the highest generation says is in
// force for all, and who has something else is told of.
func TestClusterRolloutOfClasses(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
	fleet := startSim(t, shortPrefill...)
	configuration := func(generation int, class string) string {
		classes := filepath.Join(t.TempDir(), "classes.yaml")
		replaceText(t, classes, strings.ReplaceAll(twoClasses, "never", class))
		return writeFile(t, fmt.Sprintf("config_generation: %d\nadmission:\n  router_policy_config: %s\n", generation, classes))
	}
	before, after := configuration(1, "never"), configuration(2, "later")
	g := startMembers(t, storetest.StartRedis(t), fleet, 0, gateOfTwo...)
	for range 3 {
		g.list = append(g.list, &gateMember{args: []string{"--config", before}})
	}
	g.startAll(g.list)
	g.joined()
	load := g.balance(8, brief)
	load.more(30)
	for i, old := range slices.Clone(g.list) {
		load.to(append(slices.Clone(g.list[:i]), g.list[i+1:]...))
		old.stop()
		m := &gateMember{name: old.name, args: []string{"--config", after}}
		g.list[i] = m
		g.startAll([]*gateMember{m})
		g.joinedAs(func(d memberView) string {
			for j, x := range g.list {
				if slices.Contains(d.Differs, x.name) != (j > i) {
					return fmt.Sprintf("%d are replaced", i+1)
				}
			}
			if !slices.ContainsFunc(g.list[:i+1], func(x *gateMember) bool { return x.name == d.SettingsOf }) {
				return "the settings are of one that was not replaced"
			}
			return ""
		})
		load.to(g.list)
		load.more(30)
		for j, x := range g.list {
			differs := 0.0
			if j > i {
				differs = 1
			}
			x.waitMetric("sluice_cluster_config_differs", differs)
			eventually(t, "the classes of the newest are in force at all", func() string {
				if _, body := x.get("/admission"); !strings.Contains(body, `"later"`) || strings.Contains(body, `"never"`) {
					return clip(body)
				}
				return ""
			})
			if k, _ := g.keeper(); j > i && x != k {
				eventually(t, "the log says that the configuration differs", func() string {
					if !strings.Contains(x.stderr.String(), "the configuration of this router is not the one in force") {
						return x.name + " does not"
					}
					return ""
				})
			}
		}
	}
	load.allServed()
	g.limitHeld(2)
	g.nobodyLost()
}
