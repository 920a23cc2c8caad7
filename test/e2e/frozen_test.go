//go:build linux

package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFrozenProcess keeps away requests that sit in an engine that accepts and never
// answers: it becomes suspect and dead, its request is served elsewhere, and it is
// taken back when it answers again. How fast that goes is a matter of unit tests in
// virtual time.
func TestFrozenProcess(t *testing.T) {
	fleet := startSim(t, "--regular", "1", "--prefill", "0", "--decode", "0", "--load")
	other := startSim(t, "--regular", "1", "--prefill", "0", "--decode", "0", "--load")
	r := startRouter(t, fleet, "--worker-urls", other.worker("regular-0").URL, "--policy", "round_robin",
		"--health-check-interval-secs", "1", "--health-check-timeout-secs", "1", "--health-failure-threshold", "2")
	r.waitReady()
	frozen := fleet.cmd.Process
	if err := frozen.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = frozen.Signal(syscall.SIGCONT) }()
	for range 2 { // one of them begins at the frozen one
		client := http.Client{Timeout: time.Minute}
		resp, err := client.Post(r.url()+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"sim-model","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	said := func(what string) bool { return strings.Contains(strings.Join(r.stderr.all(), "\n"), what) }
	hear := func(what string) {
		t.Helper()
		eventually(t, what, func() string {
			if !said(what) {
				return "not said"
			}
			return ""
		})
	}
	hear("worker is suspect")
	hear("worker is dead")
	if _, list := r.get("/workers"); !strings.Contains(list, `"suspect"`) {
		t.Errorf("nobody is suspect: %s", list)
	}
	if err := frozen.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hear("worker is no longer suspect")
}
