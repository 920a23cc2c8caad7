//go:build realengine

package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// A client that leaves frees the engine at once, on every API, streamed or not.
func TestGRPCWholeClientLeaves(t *testing.T) { leavesGRPC(t, startGRPC(t), grpcOne) }

// The same where decode runs the request by then.
func TestGRPCPairClientLeaves(t *testing.T) { leavesGRPC(t, startGRPCPair(t), grpcDecode) }

func leavesGRPC(t *testing.T, r *router, e *Engine) {
	const limit = 500 * time.Millisecond
	for _, route := range routes {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", route.name, stream), func(t *testing.T) {
				// On a busy machine the engine may be asked late.
				var took time.Duration
				for range 4 {
					waitBusy(t, e, 0)
					c := request{route: route, prompt: prompt(60), tokens: 800, stream: stream}.send(t, r.url)
					if stream {
						c.waitBegun()
					}
					waitBusy(t, e, 1)
					if c.over() {
						t.Fatalf("it ended: %s", c.wait())
					}
					c.leave()
					left := time.Now()
					waitBusy(t, e, 0)
					took = time.Since(left)
					c.wait()
					if took <= limit {
						report.say(t, "%s is idle %s after the client left", e.Role, took.Round(10*time.Millisecond))
						return
					}
				}
				t.Errorf("%s was idle %s after the client had left", e.Role, took)
			})
		}
	}
}

// A client that leaves while prefill computes: no decode follows, and prefill is free.
func TestGRPCLeavesInPrefill(t *testing.T) {
	r := startGRPCPair(t, "--disable-health-check")
	thaw := freeze(t, grpcPrefill)
	c := request{route: chat, prompt: prompt(60), tokens: 800, stream: true}.send(t, r.url)
	r.waitFor("sluice_requests_in_flight", 1)
	c.leave()
	r.waitFor("sluice_requests_in_flight", 0)
	thaw()
	c.wait()
	waitBusy(t, grpcPrefill, 0)
	waitBusy(t, grpcDecode, 0)
	sameText(t, request{route: chat, prompt: prompt(60), tokens: 16}, r.url)
}

// A request that somebody else aborts at the engine ends there as if it were whole: with OK
// and what there is so far. The client is told that it is not.
func TestGRPCAborted(t *testing.T) {
	p := startGRPCProxy(t, grpcOne)
	r := startRouter(t, "--worker-urls", p.url, "--disable-retries")
	conn, err := grpcOne.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, stream := range []bool{true, false} {
		waitBusy(t, grpcOne, 0)
		before := p.asked()
		c := request{route: chat, prompt: prompt(60), tokens: 800, stream: stream}.send(t, r.url)
		eventually(t, "the engine is asked", func() string {
			if p.asked() == before {
				return "not yet"
			}
			return ""
		})
		waitBusy(t, grpcOne, 1)
		if stream {
			c.waitBegun()
		}
		if _, err := vllmpb.NewVllmEngineClient(conn).Abort(t.Context(), &vllmpb.AbortRequest{RequestIds: []string{p.asked()}}); err != nil {
			t.Fatal(err)
		}
		a := c.wait()
		if stream && (a.status != http.StatusOK || a.failed() == "") || !stream && a.status < 500 {
			t.Errorf("streamed: %v: %s", stream, a)
		}
		report.say(t, "streamed %v: %s", stream, clip(a.failed()+a.body))
	}
}
