package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/discovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nameServer answers from a script.
type nameServer struct {
	t       *testing.T
	address string
	asked   atomic.Int64
	overTCP atomic.Int64

	mu sync.Mutex
	// guarded by mu
	records   map[string][]dns.RR // by name and type, such as "e.test. A"
	rcodes    map[string]int      // by name and type
	authority dns.RR              // of answers without records; may be nil
	silent    bool
	noEDNS    bool
	cutTCP    bool // answers over TCP are marked as cut
	cutUDP    bool
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	s := &nameServer{t: t, records: map[string][]dns.RR{}, rcodes: map[string]int{}}
	pc, l := listen(t)
	s.address = pc.LocalAddr().String()
	for _, server := range []*dns.Server{{PacketConn: pc, Handler: s}, {Listener: l, Handler: s}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = server.ActivateAndServe() // ends with Shutdown
		}()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-over
		})
	}
	return s
}

// listen takes one port for UDP and TCP.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 100 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, l
		}
		_ = pc.Close() // the port is another one's over TCP
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

// has gives a name records of a type.
func (s *nameServer) has(name, kind string, ttl int, values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := name + " " + kind
	s.records[key] = nil
	delete(s.rcodes, key)
	for _, v := range values {
		s.records[key] = append(s.records[key], s.record(fmt.Sprintf("%s %d IN %s %s", name, ttl, kind, v)))
	}
}

// record reads a line of a zone.
func (s *nameServer) record(line string) dns.RR {
	r, err := dns.NewRR(line)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *nameServer) answers(name, kind string, rcode int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rcodes[name+" "+kind] = rcode
}

func (s *nameServer) set(change func(s *nameServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	tcp := w.RemoteAddr().Network() == "tcp"
	if tcp {
		s.overTCP.Add(1)
	}
	if s.silent {
		return
	}
	r := new(dns.Msg).SetReply(q)
	asked := q.Question[0]
	key := strings.ToLower(asked.Name) + " " + dns.TypeToString[asked.Qtype]
	r.Answer = s.records[key]
	if len(r.Answer) == 0 && s.authority != nil {
		r.Ns = []dns.RR{s.authority}
	}
	switch rcode, set := s.rcodes[key]; {
	case s.noEDNS && q.IsEdns0() != nil:
		r.Rcode = dns.RcodeFormatError
	case set:
		r.Rcode = rcode
	}
	if !tcp && len(r.Answer) > 30 {
		r.Answer, r.Truncated = r.Answer[:30], true
	} else if tcp && s.cutTCP || !tcp && s.cutUDP {
		r.Truncated = true
	}
	r.Compress = true
	_ = w.WriteMsg(r) // the test that wants it fails then
}

func (s *nameServer) source(t *testing.T, name string) *Source {
	t.Helper()
	list, err := New(configtest.New(func(c *config.Config) {
		c.Discovery.DNSServer, c.Discovery.DNSNames, c.Discovery.DNSInterval = s.address, []config.DNSName{config.DNSName(name)}, 10*time.Millisecond
		c.Fleet.PDDisaggregation = strings.Contains(name, "worker_type")
	}))
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func urls(r discovery.Reading) string {
	var list []string
	for _, w := range r.Workers {
		list = append(list, w.URL)
	}
	return strings.Join(list, " ")
}

func TestAddressesAreWorkers(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 30, "10.0.0.2", "10.0.0.1", "10.0.0.1")
	s.has("e.test.", "AAAA", 20, "fd00::1")
	for family, want := range map[string]string{
		"auto": "https://10.0.0.1:8000 https://10.0.0.2:8000",
		"ipv4": "https://10.0.0.1:8000 https://10.0.0.2:8000",
		"ipv6": "https://[fd00::1]:8000",
		"both": "https://10.0.0.1:8000 https://10.0.0.2:8000 https://[fd00::1]:8000",
	} {
		src := s.source(t, "e.test:8000,scheme=https,worker_type=decode,labels.zone=a,family="+family)
		r, ttl := src.look(t.Context())
		if r.Err != nil || urls(r) != want || len(r.Warnings) > 0 {
			t.Errorf("%s: %s, %q, %v", family, urls(r), r.Warnings, r.Err)
			continue
		}
		if w := r.Workers[0]; w.Type != config.WorkerDecode || w.Labels["zone"] != "a" || w.TLS.ServerName != "e.test" || w.Origin != "name e.test" {
			t.Errorf("%s: %+v", family, w)
		}
		if least := map[string]time.Duration{"ipv4": 30 * time.Second}[family]; ttl != max(least, 20*time.Second) {
			t.Errorf("%s: good for %s", family, ttl)
		}
	}
}

func TestOnlyIPv6Addresses(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "AAAA", 20, "fd00::1")
	if r, _ := s.source(t, "e.test:8000").look(t.Context()); r.Err != nil || urls(r) != "http://[fd00::1]:8000" {
		t.Errorf("%s, %v", urls(r), r.Err)
	}
}

func TestAddressesOfNoHostAreLeftOut(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 20, "0.0.0.0", "10.0.0.1", "224.0.0.1", "255.255.255.255")
	s.has("e.test.", "AAAA", 20, "::", "ff02::1", "fd00::1")
	r, _ := s.source(t, "e.test:8000,family=both").look(t.Context())
	if urls(r) != "http://10.0.0.1:8000 http://[fd00::1]:8000" || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "has 5 addresses that are not those of one host") {
		t.Errorf("%s, %q, %v", urls(r), r.Warnings, r.Err)
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "CNAME", 7, "f.test.")
	s.mu.Lock()
	s.records["e.test. A"] = append(s.records["e.test. CNAME"], s.record("f.test. 60 IN A 10.0.0.9"))
	s.mu.Unlock()
	r, ttl := s.source(t, "E.test:8000").look(t.Context())
	if r.Err != nil || urls(r) != "http://10.0.0.9:8000" || ttl != 7*time.Second {
		t.Errorf("%s, good for %s, %v", urls(r), ttl, r.Err)
	}
}

// No such name, or a name without addresses, is a set of no workers; a server that cannot
// answer is a failure.
func TestEmptyIsNotFailed(t *testing.T) {
	s := newNameServer(t)
	src := s.source(t, "e.test:8000,family=ipv4")
	s.answers("e.test.", "A", dns.RcodeNameError)
	if r, ttl := src.look(t.Context()); r.Err != nil || len(r.Workers) != 0 || ttl != unsaidTTL {
		t.Errorf("no such name: %v, good for %s, %v", r.Workers, ttl, r.Err)
	}
	s.has("e.test.", "A", 10)
	if r, _ := src.look(t.Context()); r.Err != nil || len(r.Workers) != 0 {
		t.Errorf("no addresses: %v, %v", r.Workers, r.Err)
	}
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused} {
		s.answers("e.test.", "A", rcode)
		if r, _ := src.look(t.Context()); r.Err == nil || !strings.Contains(r.Err.Error(), dns.RcodeToString[rcode]) {
			t.Errorf("rcode %d: error %v", rcode, r.Err)
		}
	}
}

func TestFamilyThatFails(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 10, "10.0.0.1")
	s.answers("e.test.", "AAAA", dns.RcodeServerFailure)
	if r, _ := s.source(t, "e.test:1").look(t.Context()); r.Err != nil || urls(r) != "http://10.0.0.1:1" {
		t.Errorf("auto: %s, %v", urls(r), r.Err)
	}
	both := s.source(t, "e.test:1,family=both")
	r, ttl := both.look(t.Context())
	if r.Err != nil || urls(r) != "http://10.0.0.1:1" || len(r.Warnings) != 1 || ttl != 0 {
		t.Errorf("both: %s, warnings %q, good for %s, %v", urls(r), r.Warnings, ttl, r.Err)
	}
	// What is known of it stays.
	s.has("e.test.", "AAAA", 10, "fd00::1")
	both.look(t.Context())
	s.answers("e.test.", "AAAA", dns.RcodeServerFailure)
	if r, _ := both.look(t.Context()); urls(r) != "http://10.0.0.1:1 http://[fd00::1]:1" {
		t.Errorf("both, later: %s", urls(r))
	}
	// With auto the IPv6 addresses do not step in for IPv4 addresses that are unknown.
	s.has("e.test.", "AAAA", 10, "fd00::1")
	s.answers("e.test.", "A", dns.RcodeServerFailure)
	if r, _ := s.source(t, "e.test:1").look(t.Context()); r.Err == nil {
		t.Errorf("auto without IPv4: %s", urls(r))
	}
}

func TestLongAnswersComeOverTCP(t *testing.T) {
	s := newNameServer(t)
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
	}
	s.has("e.test.", "A", 10, many...)
	src := s.source(t, "e.test:1,family=ipv4")
	r, _ := src.look(t.Context())
	if r.Err != nil || len(r.Workers) != 1000 || s.overTCP.Load() == 0 {
		t.Errorf("%d workers, %v, %d questions over TCP", len(r.Workers), r.Err, s.overTCP.Load())
	}
}

// Of a name that has more addresses than fit into an answer, those of all answers are
// used: none is gone because it is not in the last one.
func TestAnswersThatAreCut(t *testing.T) {
	s := newNameServer(t)
	s.set(func(s *nameServer) { s.cutTCP = true })
	src := s.source(t, "e.test:1,family=ipv4")
	s.has("e.test.", "A", 10, "10.0.0.2", "10.0.0.3")
	src.look(t.Context())
	s.has("e.test.", "A", 10, "10.0.0.3", "10.0.0.1")
	// The datagram is not cut; the test's server cuts it like the answer over TCP.
	s.set(func(s *nameServer) { s.cutUDP = true })
	r, _ := src.look(t.Context())
	if r.Err != nil || urls(r) != "http://10.0.0.1:1 http://10.0.0.2:1 http://10.0.0.3:1" || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "than fit into an answer") {
		t.Errorf("%s, warnings %q, %v", urls(r), r.Warnings, r.Err)
	}
	s.has("e.test.", "A", 10)
	if r, _ := src.look(t.Context()); r.Err == nil {
		t.Errorf("an answer that is cut and empty: %s", urls(r))
	}
	// It is whole again.
	s.set(func(s *nameServer) { s.cutTCP, s.cutUDP = false, false })
	s.has("e.test.", "A", 10, "10.0.0.4")
	if r, _ := src.look(t.Context()); urls(r) != "http://10.0.0.4:1" {
		t.Errorf("whole: %s, %v", urls(r), r.Err)
	}
}

func TestAddressesAreBounded(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 10, "10.0.0.1")
	src := s.source(t, "e.test:1,family=both")
	s.has("e.test.", "AAAA", 10, manyV6(2000)...)
	s.has("e.test.", "A", 10, manyV4(3500)...)
	r, _ := src.look(t.Context())
	if r.Err != nil || len(r.Workers) != maxAddresses || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "5500 addresses") {
		t.Errorf("%d workers, warnings %q, %v", len(r.Workers), r.Warnings, r.Err)
	}
}

func manyV4(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	return list
}

func manyV6(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("fd00::%x", i+1))
	}
	return list
}

func TestServerThatKnowsNoEDNS(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 10, "10.0.0.1")
	s.set(func(s *nameServer) { s.noEDNS = true })
	if r, _ := s.source(t, "e.test:1,family=ipv4").look(t.Context()); urls(r) != "http://10.0.0.1:1" {
		t.Errorf("%s, %v", urls(r), r.Err)
	}
}

// The servers and search domains of resolv.conf are used, and the file is read each time.
func TestResolvConf(t *testing.T) {
	s := newNameServer(t)
	s.has("e.ns.svc.test.", "A", 10, "10.0.0.1")
	host, port, _ := net.SplitHostPort(s.address)
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	text := "search svc.test other.test ns.svc.test\noptions ndots:5\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := asker{conf: conf}
	if _, err := a.ask(t.Context(), "e", false); err == nil || !strings.Contains(err.Error(), "names no server") {
		t.Errorf("error %v", err)
	}
	if err := os.WriteFile(conf, []byte(text+"nameserver "+host+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := a.settings()
	if err != nil {
		t.Fatal(err)
	}
	list := c.NameList("e")
	if !slices.Contains(list, "e.ns.svc.test.") {
		t.Errorf("names %q", list)
	}
	c.Port = port
	got, err := a.askOne(t.Context(), c, "e.ns.svc.test.", dns.TypeA)
	if err != nil || len(got.addresses) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestPauses(t *testing.T) {
	s := &Source{floor: 5 * time.Second, reported: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	for _, c := range []struct {
		failed            bool
		ttl, before, want time.Duration
	}{
		{false, 0, 0, 5 * time.Second},
		{false, 30 * time.Second, 0, 30 * time.Second},
		{false, 24 * time.Hour, 0, maxPause},
		{true, 0, 0, 5 * time.Second},
		{true, 0, 5 * time.Second, 10 * time.Second},
		{true, 0, 50 * time.Second, maxRetryPause},
	} {
		if got := s.pause(c.failed, c.ttl, c.before); got != c.want {
			t.Errorf("failed %v, ttl %s after %s: %s, want %s", c.failed, c.ttl, c.before, got, c.want)
		}
	}
}

// A name is asked for again, and the source ends while a server is silent.
// A name that does not exist for a moment is asked for again before the drop is believed,
// however long the server says that it does not exist.
func TestNameThatIsGoneForAMoment(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 3600, "10.0.0.1", "10.0.0.2")
	src := s.source(t, "e.test:8000,family=ipv4")
	src.hold = time.Minute
	look := func() (string, time.Duration) {
		r, ttl := src.look(t.Context())
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return urls(r), src.pause(false, ttl, 0)
	}
	if got, pause := look(); got != "http://10.0.0.1:8000 http://10.0.0.2:8000" || pause != maxPause {
		t.Fatalf("%s for %s", got, pause)
	}
	s.answers("e.test.", "A", dns.RcodeNameError)
	s.set(func(s *nameServer) {
		s.records["e.test. A"] = nil
		s.authority = s.record("test. 3600 IN SOA ns.test. root.test. 1 2 3 4 3600")
	})
	for i := range confirmations {
		if got, pause := look(); got != "" || pause != src.hold/4 {
			t.Errorf("question %d: %q for %s", i, got, pause)
		}
	}
	if got, pause := look(); got != "" || pause != maxEmptyPause {
		t.Errorf("at last %q for %s", got, pause)
	}
	s.has("e.test.", "A", 3600, "10.0.0.1", "10.0.0.2")
	if got, pause := look(); got == "" || pause != maxPause {
		t.Errorf("back: %q for %s", got, pause)
	}
}

func TestRun(t *testing.T) {
	s := newNameServer(t)
	s.has("e.test.", "A", 0, "10.0.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	readings := make(chan discovery.Reading)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.source(t, "e.test:1,family=ipv4").Run(ctx, func(r discovery.Reading) {
			select {
			case readings <- r:
			case <-ctx.Done():
			}
		})
	}()
	until := func(want string) {
		t.Helper()
		for r := range readings {
			if urls(r) == want {
				return
			}
		}
	}
	until("http://10.0.0.1:1")
	s.has("e.test.", "A", 0, "10.0.0.2")
	until("http://10.0.0.2:1")
	s.set(func(s *nameServer) { s.silent = true })
	asked := s.asked.Load()
	for s.asked.Load() == asked {
		select {
		case <-readings:
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
}
