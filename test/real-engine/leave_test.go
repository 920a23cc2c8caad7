//go:build realengine

package main

import (
	"fmt"
	"testing"
	"time"
)

// A client that leaves in the middle of its stream frees the engine at once, on
// every API.
func TestWholeClientLeaves(t *testing.T) {
	leaves(t, startWhole(t), one)
}

// The same where decode runs the request by then.
func TestPairClientLeaves(t *testing.T) {
	needPair(t)
	leaves(t, startPair(t), decode)
}

func leaves(t *testing.T, r *router, e *Engine) {
	for _, route := range routes {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", route.name, stream), func(t *testing.T) {
				waitIdle(t, e)
				before := scrape(t, e.URL())
				// About three seconds of output.
				q := request{route: route, prompt: prompt(60), tokens: 800, stream: stream}
				c := q.send(t, r.url)
				if stream {
					c.waitBegun()
					if c.over() {
						t.Fatalf("it ended: %s", c.wait())
					}
				} else {
					eventually(t, "the engine runs it", func() string {
						if c.over() {
							t.Fatalf("it ended: %s", c.wait())
						}
						if n := scrape(t, e.URL())[running]; n != 1 {
							return fmt.Sprintf("%v run", n)
						}
						return ""
					})
				}
				c.leave()
				left := time.Now()
				waitIdle(t, e)
				took := time.Since(left)
				c.wait()
				// vLLM 0.32 does not count requests that ended so as aborted.
				d := scrape(t, e.URL()).since(before, generated)
				if d[generated] >= 800 {
					t.Error("the engine generated all that was asked for")
				}
				report.say(t, "%s is idle %s after the client left; %s of 800", e.Role, took.Round(10*time.Millisecond), d)
			})
		}
	}
}
