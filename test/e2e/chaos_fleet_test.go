package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// engine is one of the simulated engines of a run.
type engine struct {
	name       string // "vllm-a/decode-1"
	url        string
	role       string
	bootstrap  int
	generation string // only engines of one process know each other
	source     string // who declares it
	said       said
	faults     []deed // what may happen to it; none: it only ever behaves

	fleet *simFleet   // of the admin API
	id    string      // there
	tls   *sim.Worker // behind TLS, in this process
	certs *certificates
	ca    string
	http2 bool
}

// do does a deed of engineFaults or tlsFaults.
func (e *engine) do(t testing.TB, what string) {
	t.Helper()
	kind, spec, _ := strings.Cut(what, " ")
	if e.tls != nil {
		switch what {
		case "kill":
			e.tls.Kill()
			return
		case "another certificate":
			e.certs.present(true)
		case "a certificate nobody trusts":
			e.certs.present(false)
		}
		if err := e.tls.Restart(); err != nil {
			t.Fatal(err)
		}
		return
	}
	switch kind {
	case "slow":
		e.fleet.do(e.id, "timing", `{"prefill_time":"700ms","decode_step":"120ms"}`)
	case "fast":
		e.fleet.do(e.id, "timing", chaosTiming)
	case "fault":
		e.fleet.fault(e.id, spec)
	case "heal":
		e.fleet.heal(e.id)
	default:
		e.fleet.do(e.id, kind, "")
	}
}

// chaosTiming lets a request spend a part of its life in each phase.
const chaosTiming = `{"prefill_time":"30ms","decode_step":"12ms"}`

// chaosTimingFlags are the same for a process that is started.
var chaosTimingFlags = []string{"--prefill-time", "30ms", "--decode-step", "12ms"}

// engineProcess is a process of engines that is stopped and killed as a whole, and started
// again at the same addresses.
type engineProcess struct {
	t     testing.TB
	name  string
	args  []string
	fleet *simFleet
}

func startEngines(t testing.TB, name string, args ...string) *engineProcess {
	t.Helper()
	p := &engineProcess{t: t, name: name}
	p.args = append(append([]string{"--load", "--port", fmt.Sprint(portsInARow(t, 8)), "--bootstrap-port", fmt.Sprint(portsInARow(t, 8))}, chaosTimingFlags...), args...)
	p.start("sim-model")
	return p
}

func (p *engineProcess) start(model string) {
	p.t.Helper()
	p.fleet = startSim(p.t, append([]string{"--model", model}, p.args...)...)
	p.fleet.prefillDies = true
}

// do does a deed of processFaults.
func (p *engineProcess) do(what string) {
	p.t.Helper()
	switch what {
	case "SIGSTOP":
		p.fleet.signal(syscall.SIGSTOP)
	case "SIGCONT":
		p.fleet.signal(syscall.SIGCONT)
	case "SIGKILL":
		p.fleet.kill()
	case "start", "start with another model":
		if p.fleet.running() {
			p.fleet.kill()
		}
		p.start(map[bool]string{true: "sim-model", false: otherModel}[what == "start"])
	}
}

var nextPort atomic.Int32

// portsInARow returns the first of n ports in a row that nobody uses, outside of the range
// from which the system takes ports.
func portsInARow(t testing.TB, n int) int {
	t.Helper()
	nextPort.CompareAndSwap(0, 18000+int32(syscall.Getpid()%400)*32)
	for range 500 {
		first := int(nextPort.Add(int32(n))) - n
		if first+n > 32000 {
			nextPort.Store(18000)
			continue
		}
		free := true
		for i := range n {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(first+i)))
			if free = free && err == nil; err == nil {
				_ = l.Close()
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

// certificates are those that an engine may present.
type certificates struct {
	good, bad *authority
	current   atomic.Pointer[tls.Certificate]
}

func newCertificates(t testing.TB, good, bad *authority) *certificates {
	c := &certificates{good: good, bad: bad}
	c.present(true)
	return c
}

// present makes a new certificate, by the authority that the router trusts or by another one.
func (c *certificates) present(trusted bool) {
	by := c.bad
	if trusted {
		by = c.good
	}
	by.issue("engine", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, by)
	pair, err := tls.LoadX509KeyPair(by.file("engine.pem"), by.file("engine.key"))
	if err != nil {
		by.t.Fatal(err)
	}
	c.current.Store(&pair)
}

func (c *certificates) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil }}
}

// chaosFleet are the engines and processes of a run.
type chaosFleet struct {
	engines   []*engine
	processes []*engineProcess // that are stopped and killed as a whole
	sims      []*engineProcess // all
}

// sources are the names of all sources, in the order in which engines are given to them.
var chaosSources = []string{"configuration", "file", "requests", "dns", "kubernetes"}

func (f *chaosFleet) add(p *engineProcess, generation string, fates func(i int) []deed) {
	for i, w := range p.fleet.workers {
		role := w.Role
		e := &engine{name: p.name + "/" + w.ID, url: w.URL, role: role, bootstrap: w.BootstrapPort, generation: generation,
			source: chaosSources[len(f.engines)%len(chaosSources)], said: said{listed: true}, fleet: p.fleet, id: w.ID, faults: fates(i)}
		f.engines = append(f.engines, e)
	}
	f.sims = append(f.sims, p)
}

// byGRPC are the arguments for engines by gRPC.
var byGRPC = slices.Clip([]string{"--grpc"})

// startPairs starts prefill and decode engines of both kinds: for each kind a process whose
// engines have faults one by one, but for the first prefill and decode engine, which only
// ever behave, with two data-parallel ranks each, and one that is stopped and killed as a whole.
func startPairs(t testing.TB, form chaosForm) *chaosFleet {
	f := &chaosFleet{}
	if form.grpc {
		f.add(startEngines(t, "grpc-a", append(byGRPC, "--dp-size", "2", "--prefill", "3", "--decode", "3")...), "grpc-a", func(i int) []deed {
			if i%3 == 0 {
				return nil
			}
			return grpcFaults
		})
		b := startEngines(t, "grpc-b", append(byGRPC, "--prefill", "2", "--decode", "2")...)
		f.add(b, "grpc-b", func(int) []deed { return nil })
		f.processes = append(f.processes, b)
		return f
	}
	for _, kind := range []string{"sglang", "vllm"} {
		f.add(startEngines(t, kind+"-a", "--backend", kind, "--dp-size", "2", "--prefill", "3", "--decode", "3"), kind+"-a", func(i int) []deed {
			if i%3 == 0 {
				return nil
			}
			return engineFaults
		})
		b := startEngines(t, kind+"-b", "--backend", kind, "--prefill", "2", "--decode", "2")
		f.add(b, kind+"-b", func(int) []deed { return nil })
		f.processes = append(f.processes, b)
	}
	return f
}

// startWhole starts engines that run whole requests: for each kind a process whose engines
// have faults one by one, but for the first two, with two data-parallel ranks each, three
// processes of one engine each, and two engines behind TLS, one of them with HTTP/2.
func startWhole(t testing.TB, form chaosForm) *chaosFleet {
	f := &chaosFleet{}
	if form.grpc {
		f.add(startEngines(t, "grpc-a", append(byGRPC, "--dp-size", "2", "--regular", "5")...), "grpc", func(i int) []deed {
			if i < 2 {
				return nil
			}
			return grpcFaults
		})
		for i := range 3 {
			p := startEngines(t, fmt.Sprint("grpc-", i), append(byGRPC, "--regular", "1")...)
			f.add(p, "grpc", func(int) []deed { return nil })
			f.processes = append(f.processes, p)
		}
		return f
	}
	for _, kind := range []string{"sglang", "vllm"} {
		f.add(startEngines(t, kind+"-a", "--backend", kind, "--dp-size", "2", "--prefill", "0", "--decode", "0", "--regular", "5"), kind, func(i int) []deed {
			if i < 2 {
				return nil
			}
			return engineFaults
		})
		for i := range 3 {
			p := startEngines(t, fmt.Sprint(kind, "-", i), "--backend", kind, "--prefill", "0", "--decode", "0", "--regular", "1")
			f.add(p, kind, func(int) []deed { return nil })
			f.processes = append(f.processes, p)
		}
	}
	good, bad := newAuthority(t), newAuthority(t)
	for i, source := range []string{"configuration", "file", "configuration", "file"} {
		kind := []sim.Backend{sim.SGLang, sim.VLLM}[i%2]
		certs := newCertificates(t, good, bad)
		fleet, err := sim.Start(sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: kind, TLS: certs.config(), HTTP2: i >= 2, HealthDelay: -1, LogRequests: -1, LogBodyBytes: -1,
			Timing: sim.Timing{PrefillTime: 30e6, DecodeStep: 12e6}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fleet.Close)
		w := fleet.Regular(0)
		f.engines = append(f.engines, &engine{name: fmt.Sprint("tls-", i, "/regular-0"), url: w.URL(), role: "regular", generation: string(kind), source: source,
			said: said{listed: true}, faults: tlsFaults, tls: w, certs: certs, ca: good.file("ca.pem"), http2: i >= 2})
	}
	return f
}

// targets are all that deeds may be done to.
func (f *chaosFleet) targets() []target {
	var out []target
	for _, e := range f.engines {
		own := sourceUpkeep
		if e.source == "dns" { // which knows no models
			own = own[:2]
		}
		t := target{e.name, [][]deed{upkeep, own}}
		if e.faults != nil {
			t.groups = append(t.groups, e.faults, e.faults)
		}
		out = append(out, t)
	}
	for _, p := range f.processes {
		for range 3 { // its deeds are those of some engines
			out = append(out, target{p.name, [][]deed{processFaults}})
		}
	}
	for _, s := range []string{"file", "dns", "kubernetes"} {
		out = append(out, target{"source " + s, [][]deed{sourceFaults}})
	}
	return out
}

// behaves tells whether nothing ever happens to an engine for which it could be blamed.
func (f *chaosFleet) behaves(e *engine) bool {
	for _, p := range f.processes {
		if strings.HasPrefix(e.name, p.name+"/") {
			return false
		}
	}
	return e.faults == nil
}

// ask asks the router to change a worker, which may be removed or about to be.
func (c *chaos) ask(e *engine, method, path, body string) {
	c.t.Helper()
	switch status, answer := c.r.change(method, path, body); status {
	case http.StatusOK, http.StatusNotFound, http.StatusConflict:
	default:
		c.t.Errorf("%s %s of %s: %d %s", method, path, e.name, status, clip(answer))
	}
}

// keep does a deed of upkeep or sourceUpkeep.
func (c *chaos) keep(e *engine, what string) {
	c.t.Helper()
	path := "/workers/" + url.PathEscape(e.url)
	switch what {
	case "drain", "undrain":
		c.ask(e, "POST", path+"/"+what, "")
	case "patch":
		c.ask(e, "PATCH", path, `{"max_running_requests":64}`)
	case "remove":
		e.said.listed = false
	case "add":
		e.said.listed = true
		e.said.uid++
	case "another model":
		e.said.model = otherModel
	case "its model":
		e.said.model = ""
	}
	switch what {
	case "remove", "add", "another model", "its model":
		c.sources[e.source].declare(c.r, ofSource(c.engines, e.source), e)
	}
}
