//go:build realengine

package main

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

// sdk runs the program that drives a router with the official Python SDKs, which
// vLLM brings along.
func sdk(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), home.path("venv", "bin", "python"), append([]string{"-B", "../sdk/router.py"}, args...)...)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		report.say(t, "%s: %s", args[0], strings.TrimSpace(line))
	}
	if err != nil {
		t.Errorf("router.py %s: %v", strings.Join(args, " "), err)
	}
}

func TestWholeSDKs(t *testing.T) {
	r := startWhole(t)
	sdk(t, "serve", r.url)
	sdk(t, "leave", r.url)
	waitIdle(t, one)
}

func TestPairSDKs(t *testing.T) {
	needPair(t)
	r := startPair(t)
	sdk(t, "serve", r.url)
	sdk(t, "leave", r.url)
	waitIdle(t, decode)
}

// What sluice refuses for want of room raises RateLimitError, in both SDKs.
func TestPairSDKsRefused(t *testing.T) {
	needPair(t)
	r := startPair(t, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "0", "--disable-health-check")
	thaw := freeze(t, prefill)
	c := request{route: chat, prompt: prompt(40), tokens: 4}.send(t, r.url)
	r.waitFor(slotsTaken, 1)
	sdk(t, "refused", r.url, "429")
	thaw()
	if missing := c.wait().whole(chat); missing != "" {
		t.Error(missing)
	}
}

// Without a worker that lives they raise what stands for a 503.
func TestSDKsWithoutWorkers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + l.Addr().String()
	l.Close()
	r := launchRouter(t, "--worker-urls", dead)
	sdk(t, "refused", r.url, "503")
}
