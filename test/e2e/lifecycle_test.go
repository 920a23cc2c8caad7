package e2e

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A rolling update cuts nothing (inference-gateway/inference-gateway#133): after
// SIGTERM the router is not ready but alive, refuses what is new in words, serves
// who waits and who streams, and ends with 0; its port is free at once.
func TestDrainServesRunningAndWaitingRequests(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill-time", "1s")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--pre-drain-wait", "1")
	client := clients(t)
	const slow = `"max_tokens":8,"sim":"on=decode,event_delay=500ms",` + streamed
	streaming := r.chat(client, slow)
	select {
	case <-streaming.begun:
	case <-time.After(patience):
		t.Fatal("no stream begins")
	}
	inPrefill := r.chat(client, streamed+brief)
	r.waitMetric(metricInflight, 1)
	waiting := r.chat(client, brief)
	r.waitMetric(metricQueued, 1)

	r.signal(syscall.SIGTERM)
	r.over = true
	// During the pre-drain wait balancers are told to go elsewhere, and nobody
	// who comes all the same is turned away.
	eventually(t, "readyz fails", func() string {
		if status, _ := r.get("/readyz"); status != 503 {
			return fmt.Sprint(status)
		}
		return ""
	})
	latecomer := r.chat(client, brief)
	eventually(t, "draining begins", func() string {
		if !strings.Contains(r.stderr.String(), "draining: new requests are refused") {
			return "not in the log"
		}
		return ""
	})
	a := r.ask(brief)
	a.refused(t, 503, "draining")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q, want 1", a.header.Get("Retry-After"))
	}
	if status, _ := r.get("/livez"); status != 200 {
		t.Errorf("livez %d while draining, want 200", status)
	}
	if status, body := r.get("/readyz"); status != 503 {
		t.Errorf("readyz %d %s while draining, want 503", status, body)
	}
	for _, c := range []*call{streaming, inPrefill, waiting, latecomer} {
		c.wait(t).good(t)
	}
	if code := r.exit(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if s := fleet.stats("decode-0"); s.Gone != 0 || s.Completed != 4 {
		t.Errorf("decode completed %d requests and saw %d clients go, want 4 and 0", s.Completed, s.Gone)
	}
	rebind(t, r.addr)
	rebind(t, r.metrics)
}

// rebind checks that the next process could have the port.
func rebind(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Errorf("the port is not free: %v", err)
		return
	}
	_ = l.Close()
}

// Requests that are running at the drain timeout end with an error.
func TestDrainTimeoutEndsRunningRequests(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--drain-timeout", "1")
	client := clients(t)
	streaming := r.chat(client, `"max_tokens":500,"sim":"on=decode,event_delay=200ms",`+streamed)
	select {
	case <-streaming.begun:
	case <-time.After(patience):
		t.Fatal("no stream begins")
	}
	r.waitMetric(metricInflight, 0)
	silent := r.chat(client, `"sim":"on=prefill,delay=1h",`)
	r.waitMetric(metricInflight, 1)
	waiting := r.chat(client, streamed)
	r.waitMetric(metricQueued, 1)

	start := time.Now()
	r.signal(syscall.SIGTERM)
	r.over = true
	if code := r.exit(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if d := took(start); d < time.Second || d > soon {
		t.Errorf("the end took %s, want a little over 1s", d)
	}
	waiting.wait(t).refused(t, 503, "draining")
	silent.wait(t).refused(t, 503, "draining")
	if a := streaming.wait(t); a.status != 200 || a.failed == "" || a.done || !strings.Contains(a.failed, "draining") {
		t.Errorf("a stream must be seen to be cut off: %s", a)
	}
	// The engines' requests are aborted too.
	for _, id := range []string{"prefill-0", "decode-0"} {
		within(t, soon, id+" is told", func() string {
			if s := fleet.stats(id); s.Inflight != 0 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
}

// Who cannot wait sends a second signal.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, second syscall.Signal
		code          int
	}{{syscall.SIGTERM, syscall.SIGTERM, 143}, {syscall.SIGINT, syscall.SIGINT, 130}, {syscall.SIGTERM, syscall.SIGINT, 130}} {
		t.Run(c.first.String()+" "+c.second.String(), func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t)
			r := startRouter(t, fleet)
			stuck := r.chat(clients(t), `"sim":"on=prefill,delay=1h",`)
			eventually(t, "the request runs", func() string { return moreThanZero(fleet.stats("prefill-0").Inflight) })
			r.over = true
			r.signal(c.first)
			if _, ok := r.stderr.wait(patience, r.done, func(line string) bool { return strings.Contains(line, "draining:") }); !ok {
				t.Fatal("it does not drain")
			}
			start := time.Now()
			r.signal(c.second)
			if code := r.exit(patience); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if d := took(start); d > soon {
				t.Errorf("the end took %s", d)
			}
			if a := stuck.wait(t); a.whole() {
				t.Errorf("a whole answer from nowhere: %s", a)
			}
			rebind(t, r.addr)
		})
	}
}

func moreThanZero(n int) string {
	if n > 0 {
		return ""
	}
	return "none yet"
}

// The next process takes the port over while the clients of the last one are
// still around, as in a restart by a supervisor.
func TestNextProcessTakesThePort(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet)
	client := clients(t)
	r.chat(client, brief).wait(t).good(t) // keeps its connection
	r.over = true
	r.signal(syscall.SIGTERM)
	if code := r.exit(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	next := startRouter(t, fleet, "--port", port)
	if next.addr != r.addr {
		t.Errorf("the next one is at %s, want %s", next.addr, r.addr)
	}
	next.chat(client, brief).wait(t).good(t)
}
