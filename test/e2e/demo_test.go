package e2e

import (
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// The first thing a newcomer runs.
func TestDemo(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil, "demo", "--keep")
	_, ok := p.stdout.wait(2*patience, p.done, func(line string) bool { return strings.HasPrefix(line, "Ctrl-C") })
	out := p.stdout.String()
	if !ok {
		t.Fatalf("the demo does not come to its end:\n%s", out)
	}
	for _, want := range []string{"(in prefill 1, waiting 2)", "429 pd_prefill_queue_full", "429 pd_prefill_queue_timeout", "4. A flood"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the demo's output", want)
		}
	}
	for _, row := range []string{
		`(?m)^ +request 1 +200 +\d`, `(?m)^ +request 2 +429 +\S+ +\d+ +pd_prefill_queue_timeout$`, `(?m)^ +request 3 +429 +\S+ +\d+ +pd_prefill_queue_full$`,
		`(?m)^ +request 3 +200 +\d`, `(?m)^ +long 6 +200 +\d`, `(?m)^ +short 3 +200 +\d`,
	} {
		if !regexp.MustCompile(row).MatchString(out) {
			t.Errorf("no row of the tables is like %s", row)
		}
	}
	_, command, ok := strings.Cut(out, "  curl -i ")
	command, _, ok2 := strings.Cut(command, "\n  curl ")
	if !ok || !ok2 {
		t.Fatal("no curl command is printed")
	}
	url, _, _ := strings.Cut(command, " ")
	if path, err := exec.LookPath("curl"); err == nil {
		got, err := exec.Command("sh", "-c", path+" -sS -i "+command).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") || !strings.Contains(string(got), "data: [DONE]") {
			t.Errorf("the printed command gives %v: %s", err, clip(string(got)))
		}
	} else {
		send(probeClient, "POST", url, chatBody(streamed)).wait(t).good(t)
	}
	p.signal(syscall.SIGINT)
	if code := p.exit(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if out = p.stdout.String(); !strings.Contains(out, "All results are as they must be.") {
		t.Error("the demo does not say that all went well")
	}
	if t.Failed() {
		t.Log(out)
	}
}

// Who stops the demo is not told that something failed.
func TestDemoIsStopped(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil, "demo")
	if _, ok := p.stdout.wait(patience, p.done, func(line string) bool { return strings.Contains(line, "in prefill") }); !ok {
		t.Fatalf("the demo does not begin:\n%s", p.stdout.String())
	}
	p.signal(syscall.SIGINT)
	if code := p.exit(patience); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if out := p.stdout.String() + p.stderr.String(); strings.Contains(out, "failed") || strings.Contains(out, "canceled") || !strings.Contains(out, "stopped") {
		t.Errorf("a stopped demo says:\n%s", out)
	}
}
