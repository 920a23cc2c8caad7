package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// gateMembers are routers that share a gate.
type gateMembers struct {
	t     testing.TB
	store *storetest.Server
	fleet *simFleet
	args  []string // of all
	list  []*gateMember
	ever  []*gateMember // with those that were replaced
}

// gateMember is a router that is a member of a gate.
type gateMember struct {
	*router
	name    string // its address for the others
	program string // "": the one under test
	args    []string
}

// memberView is what GET /cluster tells, as far as these tests look.
type memberView struct {
	Role     string `json:"role"`
	Fallback string `json:"fallback"`
	Deciding bool   `json:"deciding"`
	Keeper   string `json:"keeper"`
	Standby  string `json:"standby"`
	WhyNot   string `json:"why_not"`
	Epoch    struct {
		Number uint64 `json:"number"`
	} `json:"epoch"`
	ViewAge *int64 `json:"view_age_ms"`
	Members []struct {
		Name    string `json:"name"`
		State   string `json:"state"`
		Differs bool   `json:"config_differs"`
	} `json:"members"`
	Protocol struct {
		Min, Max uint32
	} `json:"protocol"`
	Differs    []string `json:"config_differs"`
	SettingsOf string   `json:"settings_of"`
}

// gateOfTwo are the flags of a gate whose limit is 2 in prefill on each worker. The lease
// is long enough for a busy machine.
var gateOfTwo = []string{
	"--prefill-max-inflight-requests-per-worker", "2", "--prefill-queue-size", "500", "--prefill-queue-timeout-secs", "60",
	"--cluster-lease-secs", "5", "--cluster-patience-secs", "20", "--cluster-lost-secs", "10", "--cluster-fallback", "refuse",
}

// startMembers starts n routers on a fleet, all at the same instant, and waits until they
// are one gate.
func startMembers(t testing.TB, store *storetest.Server, fleet *simFleet, n int, args ...string) *gateMembers {
	t.Helper()
	g := &gateMembers{t: t, store: store, fleet: fleet, args: args}
	for range n {
		g.list = append(g.list, &gateMember{})
	}
	g.startAll(g.list)
	g.joined()
	return g
}

// startAll starts members at the same instant.
func (g *gateMembers) startAll(list []*gateMember) {
	g.t.Helper()
	for _, m := range list {
		if m.name == "" {
			m.name = storetest.FreeAddress(g.t)
		}
		m.launch(g)
	}
	for _, m := range list {
		m.serving()
		m.waitReady()
	}
}

// add starts one more member with flags of its own.
func (g *gateMembers) add(args ...string) *gateMember {
	g.t.Helper()
	m := &gateMember{args: args}
	g.list = append(g.list, m)
	g.startAll([]*gateMember{m})
	return m
}

// launch starts the process of m.
func (m *gateMember) launch(g *gateMembers) {
	g.t.Helper()
	args := []string{"serve", "--pre-drain-wait", "0.3", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
		"--log-json", "--access-log", "failures", "--cluster", g.store.URL(), "--cluster-listen", m.name}
	args = slices.Concat(args, quickHealth, g.args, m.args)
	if g.fleet != nil && !slices.Contains(m.args, withoutWorkers) {
		args = append(args, g.fleet.flags()...)
	} else {
		args = slices.DeleteFunc(args, func(s string) bool { return s == withoutWorkers })
	}
	prepare := func(cmd *exec.Cmd) {
		if m.program != "" {
			cmd.Path, cmd.Args[0] = m.program, m.program
		}
	}
	g.ever = append(g.ever, m)
	m.router = &router{process: spawnWith(g.t, prepare, nil, args...), fleet: g.fleet}
}

// withoutWorkers, as a flag of a member, lets it start without any worker.
const withoutWorkers = "--without-workers"

// serving waits until m tells its addresses.
func (m *gateMember) serving() {
	m.t.Helper()
	line, ok := m.stderr.wait(patience, m.done, func(line string) bool { return strings.Contains(line, `"msg":"serving"`) })
	if !ok {
		m.t.Fatalf("the router does not serve: %s", m.stderr.String())
	}
	m.read(line)
	m.t.Cleanup(m.finish)
}

// stop ends a member as a rollout does, and waits for its end.
func (m *gateMember) stop() {
	m.t.Helper()
	m.over = true
	m.signal(syscall.SIGTERM)
	if code := m.exit(patience); code != 0 {
		m.t.Errorf("exit code %d, want 0", code)
	}
}

// die ends a member without a word.
func (m *gateMember) die() { m.over = true; m.kill() }

// remove leaves a member out that has ended.
func (g *gateMembers) remove(m *gateMember) {
	g.list = slices.DeleteFunc(g.list, func(x *gateMember) bool { return x == m })
}

// cluster is what m tells of its cluster.
func (m *gateMember) cluster() (d memberView) {
	m.t.Helper()
	status, body := m.get("/cluster")
	if err := json.Unmarshal([]byte(body), &d); status != http.StatusOK || err != nil {
		m.t.Fatalf("GET /cluster: %d, %v: %s", status, err, clip(body))
	}
	return d
}

// joined waits until all members agree that each of them answers and who decides.
func (g *gateMembers) joined() { g.t.Helper(); g.joinedAs(func(memberView) string { return "" }) }

// joinedAs waits until more is content, too.
func (g *gateMembers) joinedAs(more func(memberView) string) {
	g.t.Helper()
	g.joinedOf(len(g.list), more)
}

// joinedWithout is joined for those that are left; others may be known as lost.
func (g *gateMembers) joinedWithout() {
	g.t.Helper()
	g.joinedOf(1000, func(memberView) string { return "" })
}

func (g *gateMembers) joinedOf(most int, more func(memberView) string) {
	g.t.Helper()
	eventually(g.t, "the members are one gate", func() string {
		keeper := ""
		for _, m := range g.list {
			d := m.cluster()
			answering := 0
			for _, x := range d.Members {
				if x.State == "answering" {
					answering++
				}
			}
			if keeper == "" {
				keeper = d.Keeper
			}
			if !d.Deciding || d.ViewAge == nil || answering != len(g.list) || len(d.Members) > most || d.Keeper != keeper || d.Fallback != "" {
				return fmt.Sprintf("%s says %+v", m.name, d)
			}
			if s := more(d); s != "" {
				return fmt.Sprintf("%s says %+v: %s", m.name, d, s)
			}
		}
		return ""
	})
}

// keeper is the member that decides, others are the rest.
func (g *gateMembers) keeper() (keeper *gateMember, others []*gateMember) {
	g.t.Helper()
	name := g.list[0].cluster().Keeper
	for _, m := range g.list {
		if m.name == name {
			keeper = m
		} else {
			others = append(others, m)
		}
	}
	if keeper == nil {
		g.t.Fatalf("no member is the keeper %q", name)
	}
	return keeper, others
}

// nobodyLost checks that no member that left by plan counted as lost, and that no keeper
// waited for one.
func (g *gateMembers) nobodyLost() {
	g.t.Helper()
	for _, m := range g.ever {
		for _, line := range m.stderr.all() {
			if strings.Contains(line, "a member is lost") || strings.Contains(line, "the gate waits for the reports") {
				g.t.Errorf("%s: %s", m.name, line)
			}
		}
	}
}

// limitHeld checks what the engines recorded.
func (g *gateMembers) limitHeld(limit int) {
	g.t.Helper()
	for _, w := range g.fleet.workers {
		if s := g.fleet.stats(w.ID); w.Role == "prefill" && s.PeakPrefilling > limit {
			g.t.Errorf("%s had %d requests in prefill at once, want %d at most", w.ID, s.PeakPrefilling, limit)
		}
	}
}

// balancer sends requests of clients to the members in turn that it knows, as a load
// balancer does that has heard of who ends.
type balancer struct {
	t       testing.TB
	mu      sync.Mutex
	members []*gateMember // guarded by mu
	next    int           // guarded by mu

	stop    atomic.Bool
	wg      sync.WaitGroup
	answers []*answer // guarded by mu
	by      []string  // guarded by mu: who gave each of them
}

// balance starts n clients that send one request after another.
func (g *gateMembers) balance(n int, extra string) *balancer {
	b := &balancer{t: g.t, members: slices.Clone(g.list)}
	client := clients(g.t)
	for i := range n {
		b.wg.Go(func() {
			for k := i; !b.stop.Load(); k++ {
				fields := extra
				if k%2 == 0 {
					fields = streamed + extra
				}
				m := b.pick()
				a := m.chat(client, fields).wait(g.t)
				b.mu.Lock()
				b.answers, b.by = append(b.answers, a), append(b.by, m.name)
				b.mu.Unlock()
			}
		})
	}
	g.t.Cleanup(b.finish)
	return b
}

func (b *balancer) pick() *gateMember {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return b.members[b.next%len(b.members)]
}

func (b *balancer) to(list []*gateMember) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = slices.Clone(list)
}

func (b *balancer) finish() { b.stop.Store(true); b.wg.Wait() }

// more waits for n more answers.
func (b *balancer) more(n int) {
	b.t.Helper()
	count := func() int { b.mu.Lock(); defer b.mu.Unlock(); return len(b.answers) }
	want := count() + n
	eventually(b.t, "answers", func() string {
		if got := count(); got < want {
			return strconv.Itoa(got) + " of " + strconv.Itoa(want)
		}
		return ""
	})
}

// allServed ends the load; each request must have been served.
func (b *balancer) allServed() {
	b.t.Helper()
	b.finish()
	failed := 0
	var longest time.Duration
	for i, a := range b.answers {
		longest = max(longest, a.took)
		if !a.whole() {
			if failed++; failed <= 5 {
				b.t.Errorf("a request failed at %s: %s", b.by[i], a)
			}
		}
	}
	b.t.Logf("%d requests, %d failed, the longest took %s", len(b.answers), failed, longest.Round(time.Millisecond))
}

// replaceText gives a file another content at once.
func replaceText(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}
