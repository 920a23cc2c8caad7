package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What sluice will not start with, each with a message that names the option and
// its value, and nothing listening.
func TestStartupRefusals(t *testing.T) {
	t.Parallel()
	pd := []string{"--pd-disaggregation", "--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9/d"}
	const limit = "--prefill-max-inflight-requests-per-worker"
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"queue size without a limit", append([]string{"--prefill-queue-size", "7"}, pd...), []string{"prefill-queue-size", "prefill-max-inflight-requests-per-worker", "7"}},
		{"queue timeout without a limit", append([]string{"--prefill-queue-timeout-secs", "7"}, pd...), []string{"prefill-queue-timeout-secs", "prefill-max-inflight-requests-per-worker", "7"}},
		{"queue size with the limit off", append([]string{limit, "0", "--prefill-queue-size", "7"}, pd...), []string{"prefill-queue-size", "prefill-max-inflight-requests-per-worker"}},
		{"a limit without prefill workers", []string{limit, "3", "--worker-urls", "http://127.0.0.1:9"}, []string{"prefill-max-inflight-requests-per-worker", "3", "pd-disaggregation"}},
		{"a zero timeout with a queue", append([]string{limit, "3", "--prefill-queue-timeout-secs", "0"}, pd...), []string{"prefill-queue-timeout-secs", "0"}},
		{"a negative size", append([]string{limit, "3", "--prefill-queue-size", "-4"}, pd...), []string{"prefill-queue-size", "-4"}},
		{"a fractional size", append([]string{limit, "3", "--prefill-queue-size", "1.5"}, pd...), []string{"prefill-queue-size", "1.5"}},
		{"a fractional timeout", append([]string{limit, "3", "--prefill-queue-timeout-secs", "1.5"}, pd...), []string{"prefill-queue-timeout-secs", "1.5"}},
		{"the priority scheduler", append([]string{"--priority-scheduler-enabled"}, pd...), []string{"priority-scheduler-enabled"}},
		{"an unknown policy", append([]string{"--policy", "best_guess"}, pd...), []string{"policy", "best_guess", "power_of_two"}},
		{"an unknown flag", []string{"--no-such-flag"}, []string{"no-such-flag"}},
		{"a worker that is no URL", []string{"--worker-urls", "ftp://10.0.0.1"}, []string{"workers[0].url", "ftp://10.0.0.1"}},
		{"a port out of range", []string{"--port", "70000"}, []string{"port", "70000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := sluice(t, append([]string{"serve"}, c.args...)...)
			if code != 1 && code != 2 {
				t.Errorf("exit code %d, want 1 or 2", code)
			}
			for _, w := range c.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("%q is not in what it says: %s", w, clip(stderr))
				}
			}
			if strings.Contains(stderr, "serving") || strings.Contains(stderr, "goroutine") || stdout != "" {
				t.Errorf("stdout %q, stderr %s", stdout, clip(stderr))
			}
		})
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	const key = "a-key-nobody-may-see"
	good := writeFile(t, "auth: {api_key: "+key+"}\nadmission: {prefill_max_inflight_requests_per_worker: 2, prefill_queue_size: 5}\n"+
		"fleet: {pd_disaggregation: true}\nworkers:\n  - {url: \"http://10.0.0.1:30000\", worker_type: prefill}\n  - {url: \"http://10.0.0.2:30000\", worker_type: decode}\n")
	code, stdout, stderr := sluice(t, "check-config", good)
	if code != 0 || !strings.Contains(stdout, "prefill_queue_size: 5") || !strings.Contains(stdout, "10.0.0.1:30000") {
		t.Errorf("code %d, stdout %s, stderr %s", code, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, key) {
		t.Error("a key is shown")
	}
	bad := writeFile(t, "admission: {prefill_queue_size: \"5\"}\nrouting: {policy: x, polcy: y}\nserver: {port: 1000000}\n")
	code, _, stderr = sluice(t, "check-config", bad)
	if code != 1 {
		t.Errorf("code %d, want 1", code)
	}
	for _, want := range []string{"prefill_queue_size", "polcy", "port", "1000000"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("the mistake %q is not named: %s", want, stderr)
		}
	}
	if code, _, _ := sluice(t, "check-config", good+".missing"); code != 1 {
		t.Errorf("code %d for a file that is not there, want 1", code)
	}
}

func TestVersionHelpCompletion(t *testing.T) {
	t.Parallel()
	code, stdout, _ := sluice(t, "version")
	if code != 0 || !strings.HasPrefix(stdout, "sluice ") || !strings.Contains(stdout, "go1.") {
		t.Errorf("code %d, %q", code, stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, stdout, stderr := sluice(t, "completion", shell)
		if code != 0 || !strings.Contains(stdout, "sluice") || stderr != "" {
			t.Errorf("%s: code %d, stderr %q", shell, code, stderr)
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.Command(path, "-n")
			check.Stdin = strings.NewReader(stdout)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s does not understand the script: %v %s", shell, err, clip(string(out)))
			}
		}
	}
	if code, stdout, _ := sluice(t, "serve", "--help"); code != 0 || !strings.Contains(stdout, "--prefill-queue-size") {
		t.Errorf("code %d, help %s", code, clip(stdout))
	}
	if code, _, stderr := sluice(t, "no-such-command"); code != 2 || !strings.Contains(stderr, "no-such-command") {
		t.Errorf("code %d, %q", code, stderr)
	}
}

// A port in use is named, for either listener, and the process ends.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--port", port, "--prometheus-port", "0"}, {"--port", "0", "--prometheus-port", port}} {
		args = append([]string{"serve", "--host", "127.0.0.1", "--prometheus-host", "127.0.0.1", "--worker-urls", "http://127.0.0.1:9"}, args...)
		code, _, stderr := sluice(t, args...)
		if code != 1 || !strings.Contains(stderr, port) || !strings.Contains(stderr, "in use") {
			t.Errorf("code %d: %s", code, clip(stderr))
		}
	}
}

// A router must start whatever is down, serve with what is up, and take the rest
// in when it comes (sgl-project/sglang#3802: it refused to start).
func TestWorkersDownAtStart(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "3")
	for _, id := range []string{"prefill-0", "prefill-1", "prefill-2"} {
		fleet.do(id, "kill", "")
	}
	r := launchRouter(t, fleet, nil, nil, fleet.flags()...)
	if status, _ := r.get("/livez"); status != 200 {
		t.Errorf("livez %d", status)
	}
	eventually(t, "decode is seen", func() string { return r.worker("decode-0").notReady() })
	if status, body := r.get("/readyz"); status != 503 || !strings.Contains(body, "prefill") {
		t.Errorf("readyz %d %s", status, body)
	}
	a := r.ask(brief)
	a.refused(t, 503, "no_available_workers")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	fleet.do("prefill-1", "restart", "")
	eventually(t, "the first worker is taken in", func() string {
		if status, body := r.get("/readyz"); status != 200 {
			return body
		}
		return ""
	})
	for range 5 {
		r.ask(brief).good(t)
	}
	fleet.do("prefill-0", "restart", "")
	fleet.do("prefill-2", "restart", "")
	r.waitReady()
	r.ask(brief).good(t)
}

// No worker at all is a state, not an error: they come by POST /workers.
func TestNoWorkersAtStart(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "1")
	r := launchRouter(t, fleet, nil, nil)
	if status, _ := r.get("/readyz"); status != 503 {
		t.Errorf("readyz %d, want 503", status)
	}
	r.ask(brief).refused(t, 503, "no_available_workers")
	if status, body := r.change("POST", "/workers", `{"url":"`+fleet.worker("regular-0").URL+`","worker_type":"regular"}`); status != 202 {
		t.Fatalf("POST /workers: %d %s", status, body)
	}
	r.waitReady()
	r.ask(brief).good(t)
}

func (w worker) notReady() string {
	if w.Status == "ready" {
		return ""
	}
	return w.URL + " is " + w.Status
}
