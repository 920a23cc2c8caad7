//go:build realengine

package main

import (
	"net/http"
	"syscall"
	"testing"
	"time"
)

// An engine's core that dies leaves its gRPC server behind, which says so. What ran there
// fails, what follows goes elsewhere or is refused, until an engine is back at the address.
func TestGRPCDecodeKilled(t *testing.T) {
	pair := startGRPCPair(t, seesSoon...)
	// The same engine beside another one: each runs whole requests.
	both := startRouter(t, append([]string{"--worker-urls", grpcOne.URL(), grpcDecode.URL()}, seesSoon...)...)
	both.waitExact()
	known := ofIDs(ids(6 * BlockSize))
	known.on(grpcDecode.URL()).good(t, both.url)
	both.holds(known, grpcDecode.URL(), 6*BlockSize)

	long := request{route: chat, prompt: prompt(60), tokens: 800, stream: true}
	begun := long.send(t, pair.url)
	whole := request{route: chat, prompt: prompt(60), tokens: 800}.send(t, pair.url)
	begun.waitEvents(3)
	waitBusy(t, grpcDecode, 2)
	if err := syscall.Kill(grpcDecode.core(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if a := begun.wait(); a.status != http.StatusOK || a.failed() == "" {
		t.Errorf("the stream: %s", a)
	} else {
		report.say(t, "the stream ends %s after the kill: %s", time.Since(killed).Round(10*time.Millisecond), clip(a.failed()))
	}
	if a := whole.wait(); a.status < 500 {
		t.Errorf("the call that does not stream: %s", a)
	} else {
		report.say(t, "the call that does not stream: %d %s", a.status, a.code())
	}
	refused := func(when string) {
		t.Helper()
		for range 4 { // at once, whatever is known by then
			q := request{route: chat, prompt: prompt(40), tokens: 8}
			if a := q.ask(t, pair.url); a.status < 500 || a.code() == "" {
				t.Errorf("%s the pair answers %s", when, a)
			}
			sameText(t, q, both.url)
		}
		eventually(t, "the pair refuses", func() string {
			if a := (request{route: chat, prompt: prompt(40), tokens: 8}).ask(t, pair.url); a.status != http.StatusServiceUnavailable {
				return a.String()
			}
			return ""
		})
	}
	refused("with a dead core")
	if !grpcDecode.Running() {
		t.Log("the server ended with its core")
	}
	both.forgets(known, grpcDecode.URL())
	grpcDecode.Kill()
	refused("with a dead engine")
	restart(t, &grpcDecode)
	back := time.Now()
	pair.waitReady()
	both.waitReady()
	eventually(t, "the pair serves", func() string {
		return request{route: chat, prompt: prompt(60), tokens: 16}.ask(t, pair.url).whole(chat)
	})
	sameText(t, request{route: chat, prompt: prompt(60), tokens: 16, stream: true}, pair.url)
	both.waitExact()
	both.creditsNothing(known, grpcDecode.URL())
	report.say(t, "served again %s after it was back", time.Since(back).Round(10*time.Millisecond))
}

// A prefill engine that is killed and comes back is another one: what it hands over names its
// new id, and decode fetches from it. What decode has begun goes on meanwhile.
func TestGRPCPrefillKilled(t *testing.T) {
	r := startGRPCPair(t, seesSoon...)
	q := request{route: chat, prompt: prompt(60), tokens: 700, stream: true}
	c := q.send(t, r.url)
	c.waitEvents(3)
	grpcPrefill.Kill()
	if a := (request{route: chat, prompt: prompt(40), tokens: 8}).ask(t, r.url); a.status < 500 || a.code() == "" {
		t.Errorf("without prefill: %s", a)
	}
	a := c.wait()
	if missing := a.whole(chat); missing != "" {
		t.Error(missing)
	}
	q.stream = false
	if want := q.ask(t, one.URL()).text(chat); a.text(chat) != want {
		t.Errorf("the request in decode says %q, the engine itself %q", clip(a.text(chat)), clip(want))
	}
	restart(t, &grpcPrefill)
	back := time.Now()
	r.waitReady()
	for range 3 {
		sameText(t, request{route: chat, prompt: prompt(60), tokens: 16, stream: true}, r.url)
	}
	report.say(t, "served again %s after it was back", time.Since(back).Round(10*time.Millisecond))
}

// An engine whose core is stopped, while its gRPC server says that it serves, is found; so is
// one that is stopped whole. What it has not begun to answer is served elsewhere, and it is
// used again when it goes on.
func TestGRPCWedgedEngine(t *testing.T) {
	for name, which := range map[string]func() int{
		"its core alone": func() int { return grpcDecode.core(t) },
		"all of it":      func() int { return -grpcDecode.pid },
	} {
		t.Run(name, func(t *testing.T) {
			r := startRouter(t, "--worker-urls", grpcOne.URL(), grpcDecode.URL(), "--policy", "round_robin", "--worker-wedge-secs", "3")
			stream := request{route: chat, prompt: prompt(20), tokens: 900, stream: true}.on(grpcDecode.URL()).send(t, r.url)
			stream.waitEvents(3)
			pid := which()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // or it has ended
			defer goOn()
			stopped := time.Now()
			asked := make([]request, 8)
			calls := make([]*call, len(asked))
			for i := range asked {
				asked[i] = request{route: chat, prompt: prompt(60), tokens: 16, stream: i%2 == 0}
				calls[i] = asked[i].send(t, r.url)
			}
			for i, c := range calls {
				a := c.wait()
				q := asked[i]
				q.stream = false
				if want := q.ask(t, one.URL()).text(chat); a.whole(chat) != "" || a.text(chat) != want {
					t.Errorf("a request: %s, want %q", a, want)
				}
			}
			moved := time.Since(stopped).Round(10 * time.Millisecond)
			if a := stream.wait(); a.whole(chat) == "" {
				t.Errorf("the stream of the stopped engine is whole: %s", a)
			}
			report.say(t, "%s stopped: requests were served elsewhere after %s, the engine's stream ended after %s", name, moved, time.Since(stopped).Round(10*time.Millisecond))
			goOn()
			r.waitReady()
			waitBusy(t, grpcDecode, 0)
			sameText(t, request{route: chat, prompt: prompt(60), tokens: 16}.on(grpcDecode.URL()), r.url)
		})
	}
}

// A burst wider than the window of prefill: each request has its own text.
func TestGRPCBurst(t *testing.T) {
	r := startGRPCPair(t, "--prefill-max-inflight-requests-per-worker", "8")
	asked := make([]request, 64)
	calls := make([]*call, len(asked))
	for i := range asked {
		asked[i] = request{route: completions, prompt: prompt(40), tokens: 8, stream: i%2 == 0}
		calls[i] = asked[i].send(t, r.url)
	}
	for i, c := range calls {
		a := c.wait()
		q := asked[i]
		q.stream = false
		if want := q.ask(t, one.URL()).text(completions); a.whole(completions) != "" || a.text(completions) != want {
			t.Errorf("%s, want %q", a, want)
		}
	}
	waitBusy(t, grpcPrefill, 0)
	waitBusy(t, grpcDecode, 0)
}

// What engines tell of their caches by gRPC is where requests go, and what they report is what
// the router believed.
func TestGRPCCaches(t *testing.T) {
	r := startRouter(t, "--worker-urls", grpcOne.URL(), grpcDecode.URL())
	r.waitExact()
	pair := startGRPCPair(t)
	pair.waitExact()
	for _, holder := range []*Engine{grpcOne, grpcDecode} {
		for name, q := range map[string]request{
			"ids": ofIDs(ids(6*BlockSize + 5)), "text": {route: completions, prompt: prompt(120), tokens: 4}, "chat": {route: chat, prompt: prompt(120), tokens: 4},
			"responses": {route: responses, prompt: prompt(120), tokens: 4}, "messages": {route: messages, prompt: prompt(120), tokens: 4},
		} {
			first := q.on(holder.URL()).good(t, r.url)
			n, _ := q.route.usage(first)
			whole := n / BlockSize * BlockSize
			lookup := q
			if q.route == responses || q.route == messages { // those are looked up by their text
				lookup.route = chat
			}
			r.holds(lookup, holder.URL(), whole)
			second := q.good(t, r.url)
			got := r.logged(second)
			if prefilledBy(second) != r.id(holder.URL()) || got.Why != "holder" || got.Chosen != whole || *got.Reported != whole || cached(second) != whole {
				t.Errorf("%s: on %s, logged as %+v; %d of %d tokens are reported", name, prefilledBy(second), got, cached(second), n)
			}
		}
	}
	q := request{route: chat, prompt: prompt(120), tokens: 4}
	n, _ := chat.usage(q.good(t, pair.url))
	whole := n / BlockSize * BlockSize
	pair.holds(q, grpcPrefill.URL(), whole)
	if got := pair.logged(q.good(t, pair.url)); got.Why != "holder" || got.Chosen != whole {
		t.Errorf("the pair: %+v", got)
	}
}
