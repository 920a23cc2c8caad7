package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within is how long a test waits for what has to come.
const within = 20 * time.Second

// world is a cluster of nodes in this process, each with a gate and a log of its own, on one
// store and one fleet: a prefill rank with two slots, and a decode rank.
type world struct {
	t     testing.TB
	store store.Memory
	links links

	lease time.Duration
	slots int
	ranks int // pairs of a prefill and a decode rank
}

func newWorld(t testing.TB) *world { return &world{t: t, lease: time.Second, slots: 2, ranks: 1} }

// process is one member of a world.
type process struct {
	*Node
	gate *admission.Gate
	log  *logged
}

// start starts a member; change may alter its options.
func (w *world) start(name string, change func(*Options)) *process {
	w.t.Helper()
	p, err := w.make(name, change)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) make(name string, change func(*Options)) (*process, error) {
	clock := NewClock()
	gateOptions := w.gateOptions()
	p := &process{gate: admission.NewGate(gateOptions, clock, nil), log: &logged{}}
	o := Options{
		Machine: cluster.Options{
			Cluster: "test", Self: cluster.Member{Name: name}, Lease: w.lease, Lost: 3 * w.lease, Patience: 10 * w.lease,
			Gate: gateOptions, Random: rand.Uint64,
		},
		Store: w.store.Open(), Listen: "127.0.0.1:0", Clock: clock, Gate: p.gate,
		Log:  slog.New(slog.NewTextHandler(p.log, nil)),
		Dial: w.links.dialer(name),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if p.Node, err = New(o); err != nil {
		return nil, err
	}
	w.links.name(p.Self().Address, name)
	w.t.Cleanup(func() {
		p.Close()
		p.gate.Close()
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", name, p.log.String())
		}
	})
	p.gate.SetRemote(p.Node)
	p.gate.Apply(w.fleet()...)
	return p, p.Start(w.t.Context(), false)
}

func (w *world) gateOptions() admission.Options {
	return admission.Options{Limits: admission.Limits{PrefillSlots: w.slots, QueueSize: 20000, QueueTimeout: time.Minute}}
}

// fleet are the ranks of the world.
func (w *world) fleet() (changes []admission.Change) {
	for i := range w.ranks {
		for _, role := range []admission.Role{admission.RolePrefill, admission.RoleDecode} {
			id := fmt.Sprintf("http://%s%d", role, i)
			changes = append(changes, admission.Change{Op: admission.AddRank, Rank: admission.NewRank(admission.RankSpec{
				ID: id, Worker: id, Role: role, Models: []string{"m"}, State: admission.RankState{Healthy: true},
			})})
		}
	}
	return changes
}

// ticket asks for both legs of a request.
func (p *process) ticket() *admission.Ticket {
	return &admission.Ticket{Target: p.gate.Resolve(admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}), PromptTokens: 100}
}

// acquire takes a grant, or fails the test.
func (p *process) acquire(t testing.TB) *admission.Ticket {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	k := p.ticket()
	if err := p.gate.Acquire(ctx, k); err != nil {
		t.Fatalf("%s is not granted anything: %v", p.Self().Name, err)
	}
	return k
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not come: %s", what)
		}
	}
}

// keeperOf waits until one of the members decides for as many as there are, and returns it.
func (w *world) keeperOf(members ...*process) (keeper *process) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("a keeper of %d", len(members)), func() bool {
		for _, p := range members {
			if s := p.Status(); s.Role == cluster.RoleKeeper && s.View != nil && s.View.Deciding && answering(s.View) == len(members) {
				keeper = p
				return true
			}
		}
		return false
	})
	return keeper
}

func answering(v *cluster.ClusterView) (n int) {
	for _, m := range v.Members {
		if m.State == "answering" {
			n++
		}
	}
	return n
}

// others are the members but one.
func others(but *process, all ...*process) (rest []*process) {
	for _, p := range all {
		if p != but {
			rest = append(rest, p)
		}
	}
	return rest
}

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// says waits for a line.
func (l *logged) says(t testing.TB, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q in the log", text), func() bool { return strings.Contains(l.String(), text) })
}

// links are what connects the members. Each way between two of them can be cut: what is
// sent there is lost without a word, and so is what was on the way.
type links struct {
	mu    sync.Mutex
	names map[string]string // by address
	cut   map[[2]string]bool
	conns map[*link]bool
}

func (l *links) name(address, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names, l.cut, l.conns = map[string]string{}, map[[2]string]bool{}, map[*link]bool{}
	}
	l.names[address] = name
}

// set cuts the way from one member to another, or mends it. Connections that were cut stay
// of no use.
func (l *links) set(from, to string, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut[[2]string{from, to}] = cut
	for c := range l.conns {
		if cut && (c.from == from && c.to == to || c.from == to && c.to == from) {
			c.mu.Lock()
			c.lostOut = c.lostOut || c.from == from
			c.lostIn = c.lostIn || c.from == to
			c.mu.Unlock()
		}
	}
}

func (l *links) isCut(from, to string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut[[2]string{from, to}] || l.cut[[2]string{to, from}]
}

func (l *links) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		l.mu.Lock()
		to := l.names[address]
		l.mu.Unlock()
		if l.isCut(from, to) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		k := &link{Conn: c, l: l, from: from, to: to}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns[k] = true
		return k, nil
	}
}

// link is the end of a connection at the member that dialled.
type link struct {
	net.Conn
	l        *links
	from, to string
	mu       sync.Mutex
	lostIn   bool
	lostOut  bool
}

func (c *link) Write(b []byte) (int, error) {
	c.mu.Lock()
	lost := c.lostOut
	c.mu.Unlock()
	if lost {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *link) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.mu.Lock()
		lost := c.lostIn
		c.mu.Unlock()
		if err != nil || !lost {
			return n, err
		}
	}
}

func (c *link) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
