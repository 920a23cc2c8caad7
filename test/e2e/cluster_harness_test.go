//go:build linux

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

// clusterForm is what a cluster of routers is made of.
type clusterForm struct {
	store    func(testing.TB, ...string) *storetest.Server // nil: Redis, which starts soonest
	members  int                                           // 0: 3
	fallback string                                        // "": refuse
	patience int                                           // seconds; 0: 10, which no election takes
	lost     int                                           // seconds; 0: 60
	timeout  int                                           // of the queue, in seconds; 0: 30
	prefill  []string                                      // arguments of the fleet
	args     []string                                      // of all members
}

// Times of all clusters: the shortest lease that there is.
const (
	clusterLease = 2 * time.Second
	clusterLimit = 2 // requests in prefill on each worker
)

// routerCluster is a running cluster of routers before one simulated fleet, with proxies
// between its members, and between them and the store.
type routerCluster struct {
	t       testing.TB
	form    clusterForm
	fleet   *simFleet
	links   *links
	members []*clusterMember

	mu sync.Mutex
	// guarded by mu
	stores []*storetest.Server
	store  map[int]int // which of them a member has; 0 at first
	faults []clusterFault
}

// clusterFault is a time in which something was done to a member (-1: to all).
type clusterFault struct {
	member   int
	from, to time.Duration // since the machine started; to 0: until the end
}

// clusterMember is one place in a cluster, in which processes follow each other.
type clusterMember struct {
	c      *routerCluster
	index  int
	name   string // the address at which the others reach it: that of a proxy
	listen string
	store  string // the address of its proxy to the store

	mu sync.Mutex
	// guarded by mu
	starts  []*clusterStart
	ready   *clusterStart // takes requests of clients
	leaving bool
}

// clusterStart is one of them.
type clusterStart struct {
	*router
	died   time.Duration // when it was killed, since the machine started; 0: it was not
	frozen time.Duration // when it was frozen last
	// spans in which it was frozen for so long that what it held before is not counted
	forgot []frozenSpan
}

// frozenSpan: what was granted before from does not count after to.
type frozenSpan struct{ from, to time.Duration }

// longCluster leaves out a test that takes long, and shows nothing else with another HTTP
// stack or under the race detector, unless it is asked for by name.
func longCluster(t testing.TB) {
	t.Helper()
	if !full || stack != "" || raceEnabled && flag.Lookup("test.run").Value.String() == "" {
		t.Skip("a longer test: SLUICE_E2E_FULL=1")
	}
}

// sinceBoot is the time since the machine started, which all processes read alike.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// startCluster starts a fleet, a store and the members, and waits until all are one gate.
func startCluster(t testing.TB, form clusterForm) *routerCluster {
	t.Helper()
	if form.store == nil {
		form.store = storetest.StartRedis
	}
	if form.members == 0 {
		form.members = 3
	}
	if form.fallback == "" {
		form.fallback = "refuse"
	}
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&form.patience, 10)
	set(&form.lost, 60)
	set(&form.timeout, 30)
	if form.prefill == nil {
		form.prefill = []string{"--prefill", "2", "--decode", "1", "--prefill-time", "100ms", "--load"}
	}
	c := &routerCluster{t: t, form: form, store: map[int]int{}}
	c.stores = []*storetest.Server{form.store(t)}
	c.fleet = startSim(t, form.prefill...)
	c.links = newLinks(t, form.members, func(i int) int {
		if s := c.members[i].start(); s != nil {
			return s.cmd.Process.Pid
		}
		return 0
	})
	for i := range form.members {
		m := &clusterMember{c: c, index: i, listen: storetest.FreeAddress(t)}
		m.name = c.links.proxy(nobody, i, func() string { return m.listen })
		m.store = c.links.proxy(i, toStore, func() string {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.stores[c.store[i]].Address
		})
		c.members = append(c.members, m)
	}
	var launching sync.WaitGroup
	for _, m := range c.members {
		launching.Go(m.launch)
	}
	launching.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c.together()
	return c
}

// launch starts a process in the member's place.
func (m *clusterMember) launch() {
	m.c.t.Helper()
	f := &m.c.form
	args := append(m.c.fleet.flags(),
		"--cluster", m.c.stores[0].Scheme+"://"+m.store, "--cluster-listen", m.listen, "--cluster-advertise", m.name,
		"--cluster-lease-secs", fmt.Sprint(clusterLease.Seconds()), "--cluster-patience-secs", fmt.Sprint(f.patience),
		"--cluster-lost-secs", fmt.Sprint(f.lost), "--cluster-fallback", f.fallback,
		"--prefill-max-inflight-requests-per-worker", fmt.Sprint(clusterLimit), "--prefill-queue-size", "100",
		"--prefill-queue-timeout-secs", fmt.Sprint(f.timeout), "--log-level", "debug")
	r := launchRouter(m.c.t, m.c.fleet, nil, nil, append(args, f.args...)...)
	s := &clusterStart{router: r}
	m.mu.Lock()
	m.starts, m.leaving = append(m.starts, s), false
	m.mu.Unlock()
	r.waitReady()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = s
}

// serving is the process to which clients are sent, as by a load balancer that asks it
// whether it is ready, or nil.
func (m *clusterMember) serving() *clusterStart {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready == nil || m.ready.died != 0 {
		return nil
	}
	return m.ready
}

// start is the process that runs there now, or nil.
func (m *clusterMember) start() *clusterStart {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.starts); n > 0 && m.starts[n-1].died == 0 {
		return m.starts[n-1]
	}
	return nil
}

// kill ends the member's process at once.
func (m *clusterMember) kill() {
	if s := m.start(); s != nil {
		m.killed(s)
	}
}

func (m *clusterMember) killed(s *clusterStart) {
	s.over = true
	s.process.kill()
	m.mu.Lock()
	s.died = sinceBoot()
	m.mu.Unlock()
}

// freeze stops the member's process for a time.
func (m *clusterMember) freeze(d time.Duration) {
	m.c.t.Helper()
	s, touches := m.start(), m.index
	if doc, err := m.doc(); err == nil && doc.Keeper == m.name {
		touches = -1
	}
	done := m.c.fault(touches)
	s.frozen = sinceBoot()
	s.signal(syscall.SIGSTOP)
	time.Sleep(d)
	s.signal(syscall.SIGCONT)
	done()
}

// fault tells that something is done to a member (-1: to all) until the function that it
// returns is called.
func (c *routerCluster) fault(member int) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.faults)
	c.faults = append(c.faults, clusterFault{member: member, from: sinceBoot()})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faults[i].to = sinceBoot()
	}
}

// clusterDoc is what GET /cluster tells.
type clusterDoc struct {
	Role     string `json:"role"`
	Fallback string `json:"fallback"`
	Keeper   string `json:"keeper"`
	Standby  string `json:"standby"`
	Deciding bool   `json:"deciding"`
	WhyNot   string `json:"why_not"`
	Epoch    struct {
		Number uint64 `json:"number"`
	} `json:"epoch"`
	Waiting int `json:"waiting"`
	Members []struct {
		Name  string `json:"name"`
		State string `json:"state"`
		Holds int    `json:"holds"`
	} `json:"members"`
	Claims []json.RawMessage `json:"claims"`
}

func (m *clusterMember) doc() (d clusterDoc, err error) {
	s := m.start()
	if s == nil {
		return d, fmt.Errorf("member %d is down", m.index)
	}
	status, body := s.get("/cluster")
	if status != http.StatusOK {
		return d, fmt.Errorf("member %d: %d %s", m.index, status, clip(body))
	}
	return d, json.Unmarshal([]byte(body), &d)
}

// apart tells why those that run are not one gate, "" if they are.
func (c *routerCluster) apart() string {
	running := 0
	for _, m := range c.members {
		if m.start() != nil {
			running++
		}
	}
	keeper := ""
	for _, m := range c.members {
		if m.start() == nil {
			continue
		}
		d, err := m.doc()
		if err != nil {
			return err.Error()
		}
		answering := 0
		for _, x := range d.Members {
			if x.State == "answering" {
				answering++
			}
		}
		standby := running == 1 || d.Standby != ""
		if !d.Deciding || answering != running || !standby || d.Fallback != "" || keeper != "" && keeper != d.Keeper {
			return fmt.Sprintf("member %d: %+v", m.index, d)
		}
		keeper = d.Keeper
	}
	return ""
}

// together waits until all that run are one gate.
func (c *routerCluster) together() {
	c.t.Helper()
	eventually(c.t, "the members are one gate", c.apart)
}

// named is the member of that name.
func (c *routerCluster) named(name string) *clusterMember {
	c.t.Helper()
	i := slices.IndexFunc(c.members, func(m *clusterMember) bool { return m.name == name })
	if i < 0 {
		c.t.Fatalf("no member is named %q", name)
	}
	return c.members[i]
}

// roles are the keeper, the standby, and the first of the others, of a cluster that is one gate.
func (c *routerCluster) roles() (keeper, standby, other *clusterMember) {
	c.t.Helper()
	c.together()
	for _, m := range c.members {
		if m.start() == nil {
			continue
		}
		d, err := m.doc()
		if err != nil {
			c.t.Fatal(err)
		}
		keeper = c.named(d.Keeper)
		if d.Standby != "" {
			standby = c.named(d.Standby)
		}
		break
	}
	for _, m := range c.members {
		if m != keeper && m != standby && m.start() != nil {
			other = m
			break
		}
	}
	return keeper, standby, other
}

// role is the keeper (0), the standby (1) or another member (2).
func (c *routerCluster) role(i int) *clusterMember {
	keeper, standby, other := c.roles()
	return []*clusterMember{keeper, standby, other}[i]
}

var roleNames = []string{"keeper", "standby", "member"}
