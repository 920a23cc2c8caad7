package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// asSluice makes this test binary be the command, for tests that need a process
// of their own.
const asSluice = "SLUICE_TEST_BINARY_IS_THE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asSluice) != "" {
		var env []string
		for _, e := range os.Environ() {
			if !strings.HasPrefix(e, asSluice) {
				env = append(env, e)
			}
		}
		os.Exit(run(context.Background(), os.Args[1:], env, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must come. It is no measure of
// speed.
const patience = 30 * time.Second

// process is a running "sluice serve".
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	lines   chan string // of its log; closed at its end
	address string
	metrics string
}

// servingLine is the line with the addresses, in either form of the log.
var servingLine = regexp.MustCompile(`msg"?[=:]"?serving.* ?"?address"?[=:]"?([^" ]+)"?[ ,]"?metrics"?[=:]"?([^" ]+)`)

// serve starts "sluice serve" and waits until it says that it serves.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--pre-drain-wait", "0", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
		"--health-check-interval-secs", "0.1"}, args...)
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(), asSluice+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has mostly ended by itself
		_, _ = p.cmd.Process.Wait()
	})
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	m := servingLine.FindStringSubmatch(p.line("serving"))
	if m == nil {
		t.Fatal("the line has no addresses")
	}
	p.address, p.metrics = m[1], m[2]
	return p
}

// line waits for a log line with a text in it.
func (p *process) line(with string) string {
	p.t.Helper()
	late := time.After(patience)
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended without a line with %q", with)
			}
			if strings.Contains(l, with) {
				return l
			}
		case <-late:
			p.t.Fatalf("no line with %q", with)
		}
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ended waits for its end and returns the exit code.
func (p *process) ended() int {
	p.t.Helper()
	for range p.lines {
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) get(path string) (int, string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.address + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (p *process) ready() {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if status, _ := p.get("/readyz"); status == 200 {
			return
		}
		if time.Now().After(end) {
			p.t.Fatal("it does not become ready")
		}
	}
}

// stream starts a long answer and returns it once its first event is there.
func (p *process) stream(tokens int) *bufio.Reader {
	p.t.Helper()
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":%d}`, tokens)
	resp, err := http.Post("http://"+p.address+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() }) // only read
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil || resp.StatusCode != 200 {
		p.t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return r
}

func workers(t *testing.T, o sim.Options) *sim.Fleet {
	t.Helper()
	o.Worker.HealthDelay = -1
	f, err := sim.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func TestServeAndDrain(t *testing.T) {
	f := workers(t, sim.Options{Prefill: 1, Decode: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: 20 * time.Millisecond}}})
	p := serve(t, "--pd-disaggregation", "--prefill", f.Prefill(0).URL(), "--decode", f.Decode(0).URL(),
		"--prefill-max-inflight-requests-per-worker", "2", "--prefill-queue-size", "7")
	if l := p.line("msg=\"admission: on\""); !strings.Contains(l, "prefill_max_inflight_requests_per_worker=2 prefill_queue_size=7 prefill_queue_timeout=1m0s queue_order=strict affinity_lookahead=1") {
		t.Errorf("line %s", l)
	}
	p.ready()
	s := p.stream(30)
	resp, err := http.Get("http://" + p.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // only read
	if err != nil || !strings.Contains(string(page), "sluice_ready 1") || !strings.Contains(string(page), `sluice_admission_prefill_slot_limit{rank="`+f.Prefill(0).URL()+`"} 2`) {
		t.Errorf("%v: %s", err, page)
	}
	p.signal(syscall.SIGTERM)
	p.line("draining")
	if status, _ := p.get("/readyz"); status != 503 {
		t.Errorf("readiness %d while draining", status)
	}
	if status, _ := p.get("/livez"); status != 200 {
		t.Errorf("liveness %d while draining", status)
	}
	rest, err := io.ReadAll(s)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v", err)
	}
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := f.Violated(); n != 0 {
		t.Errorf("violations: %v", f.Violations())
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	f := workers(t, sim.Options{Regular: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: 20 * time.Millisecond}}})
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		p := serve(t, "--worker-urls", f.Regular(0).URL())
		// What it advises must be possible in this mode.
		if l := p.line("admission: off"); strings.Contains(l, "--prefill-") || !strings.Contains(l, "--router-policy-config") {
			t.Errorf("line %s", l)
		}
		p.ready()
		p.stream(1 << 20)
		p.signal(syscall.SIGTERM)
		p.line("draining")
		p.signal(sig)
		if code := p.ended(); code != want {
			t.Errorf("exit code %d after a second signal, %s, want %d", code, sig, want)
		}
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // of no more use
	_, port, _ := net.SplitHostPort(l.Addr().String())
	code, _, stderr := sluice(t, nil, "serve", "--host", "127.0.0.1", "--port", port, "--prometheus-port", "0")
	want := "cannot listen on 127.0.0.1:" + port + " for clients: another process has that port; choose another with --port, or 0 for a free one: address already in use\n"
	if code != exitFailure || !strings.Contains(stderr, want) {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// The workers' settings arrive where they belong.
func TestServeUsesTheConfiguration(t *testing.T) {
	f := workers(t, sim.Options{Regular: 2, Each: func(_ sim.Role, i int, o *sim.WorkerOptions) { o.APIKey = []string{"w0", "w1"}[i] }})
	file := t.TempDir() + "/c.yaml"
	write(t, file, fmt.Sprintf(`
auth: {api_key: client, worker_api_key: w0}
log: {log_json: true}
fleet: {model_id: my-model}
routing: {policy: round_robin}
workers:
  - url: %s
  - {url: %s, api_key: w1}
`, f.Regular(0).URL(), f.Regular(1).URL()))
	p := serve(t, "--config", file)
	p.ready()
	for range 4 {
		req, err := http.NewRequest("POST", "http://"+p.address+"/v1/completions", strings.NewReader(`{"model":"my-model","prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer client")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // its status is enough
		if resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	if status, _ := p.get("/v1/models"); status != 401 {
		t.Errorf("without a key: status %d", status)
	}
	p.signal(syscall.SIGINT)
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestMissingWorkersAreReported(t *testing.T) {
	for args, want := range map[string]string{
		"":                                       "--worker-urls",
		"--worker-urls http://a":                 "",
		"--pd-disaggregation":                    "--prefill and --decode",
		"--pd-disaggregation --prefill http://a": "no decode worker",
		"--pd-disaggregation --decode http://a":  "no prefill worker",
		"--pd-disaggregation --prefill http://a --decode http://b": "",
	} {
		cfg, _, err := config.Load(strings.Fields(args), nil, os.ReadFile)
		if err != nil {
			t.Fatal(err)
		}
		if got := missingWorkers(cfg, rolesOf(cfg.Workers)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}
