//go:build realengine

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	if err := killCore(grpcDecode); err != nil {
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

// killCore kills the process that computes, and leaves that which speaks gRPC.
func killCore(e *Engine) error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 3 || f[2] != strconv.Itoa(e.pid) || !strings.Contains(s, "EngineCor") { // names are cut
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	}
	return fmt.Errorf("%s has no process of a core", e.Role)
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
