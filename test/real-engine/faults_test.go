//go:build realengine

package main

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// restart starts an engine anew at its address.
func restart(t testing.TB, e **Engine) {
	t.Helper()
	spec := (*e).Spec
	(*e).Kill()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	fresh, err := home.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	*e = fresh
	if err := fresh.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// seesSoon makes a router see within seconds that a worker is gone.
var seesSoon = []string{"--health-check-interval-secs", "1", "--health-check-timeout-secs", "5"}

// A prefill engine that is killed takes along what it was computing and nothing
// else: the client in decode gets all of its text, those in prefill and in the
// queue an error at once. It is believed to have nothing cached any more. When it is
// back at the same address, requests are served as before.
func TestPairPrefillKilled(t *testing.T) {
	needPair(t)
	r := startPair(t, append(seesSoon, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "5",
		"--prefill-queue-timeout-secs", "120")...)
	r.waitExact()
	known := ofIDs(ids(6 * BlockSize))
	known.good(t, r.url)
	r.holds(known, prefill.URL(), 6*BlockSize)
	inDecode := request{route: chat, prompt: prompt(60), tokens: 600, stream: true}
	first := inDecode.send(t, r.url)
	first.waitBegun()
	thaw := freeze(t, decode)
	freeze(t, prefill)
	inPrefill := request{route: chat, prompt: prompt(60), tokens: 16, stream: true}.send(t, r.url)
	r.waitFor(slotsTaken, 1)
	inQueue := request{route: chat, prompt: prompt(60), tokens: 16}.send(t, r.url)
	r.waitFor(queued, 1)
	if first.over() {
		t.Fatalf("the request in decode ended before prefill was killed: %s", first.wait())
	}
	prefill.Kill()
	killed := time.Now()
	thaw()

	a := first.wait()
	if missing := a.whole(chat); missing != "" {
		t.Errorf("the request in decode: %s", missing)
	}
	direct := inDecode
	direct.stream = false
	if want := direct.ask(t, one.URL()).text(chat); a.text(chat) != want {
		t.Errorf("the request in decode says %q, the engine itself %q", clip(a.text(chat)), clip(want))
	}
	for name, c := range map[string]*call{"in prefill": inPrefill, "in the queue": inQueue} {
		a := c.wait()
		switch {
		case a.status == http.StatusBadGateway && a.code() == "upstream_failed":
		case a.status == http.StatusServiceUnavailable && a.code() == "no_available_workers":
		default:
			t.Errorf("the request %s: %s", name, a)
		}
		report.say(t, "the request %s: %d %s, %s after the kill", name, a.status, a.code(), time.Since(killed).Round(10*time.Millisecond))
	}
	r.forgets(known, prefill.URL())
	restart(t, &prefill)
	back := time.Now()
	r.waitReady()
	r.waitExact()
	r.creditsNothing(known, prefill.URL())
	q := request{route: chat, prompt: prompt(60), tokens: 16, stream: true}
	before := scrape(t, decode.URL())
	n := sameText(t, q, r.url)
	moved := scrape(t, decode.URL()).since(before, externalHits)
	if moved[externalHits] != float64(n) {
		t.Errorf("after the restart decode got %v of %d prompt tokens from prefill", moved[externalHits], n)
	}
	report.say(t, "the request in decode: all %d events; served again %s after prefill was back; decode: %s",
		len(a.events), time.Since(back).Round(10*time.Millisecond), moved)
}

// vLLM ends its engine core on SIGTERM and most times leaves open event streams
// open, silent, for minutes. A router must not.
func TestPairSilentDecode(t *testing.T) {
	needPair(t)
	silent(t, startPair, &decode)
}

// The same where one engine runs whole requests.
func TestWholeSilentEngine(t *testing.T) { silent(t, startWhole, &one) }

func silent(t *testing.T, start func(testing.TB, ...string) *router, e **Engine) {
	byHealth := start(t, append(seesSoon, "--stream-idle-timeout-secs", "0", "--disable-retries")...)
	byIdle := start(t, "--disable-health-check", "--stream-idle-timeout-secs", "5", "--disable-retries")
	for try := 1; ; try++ {
		ended := fallSilent(t, byHealth, byIdle, *e)
		restart(t, e)
		byHealth.waitReady()
		sameText(t, request{route: chat, prompt: prompt(40), tokens: 16}, byHealth.url)
		if *e == decode {
			// A fresh engine has met no other yet, and fetched nothing before.
			if n := scrape(t, decode.URL())[externalHits]; n == 0 {
				t.Error("after its restart decode fetches nothing from prefill")
			}
		}
		if ended || t.Failed() {
			return
		}
		if try == 3 {
			t.Fatal("the engine ended its streams itself each time")
		}
	}
}

// fallSilent ends an engine under two streams and a call that does not stream,
// and tells whether it was left to the routers to end them.
func fallSilent(t *testing.T, byHealth, byIdle *router, e *Engine) bool {
	t.Helper()
	ask := func(r *router, stream bool) *call {
		return request{route: chat, prompt: prompt(40), tokens: 850, stream: stream}.send(t, r.url)
	}
	calls := map[string]*call{
		"the worker's health": ask(byHealth, true),
		"the idle limit":      ask(byIdle, true),
	}
	whole := ask(byHealth, false)
	for _, c := range calls {
		c.waitEvents(60) // an engine that has just begun tends to end the stream itself
	}
	// All of its processes, as a service manager signals them.
	if err := e.SignalAll(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for name, c := range calls {
		a := c.wait()
		if a.status != http.StatusOK || a.failed() == "" {
			t.Errorf("the stream to be ended by %s has no error event: %s", name, a)
		}
		if strings.Contains(a.failed(), "EngineCore") {
			report.say(t, "the engine ended its streams itself: %s", clip(a.failed()))
			return false
		}
		report.say(t, "a silent stream ended by %s %s after it began, %d events: %s", name,
			a.took.Round(100*time.Millisecond), len(a.events), clip(a.failed()))
	}
	a := whole.wait()
	if a.status < 500 || a.code() == "" {
		t.Errorf("the call that does not stream: %s", a)
	}
	report.say(t, "the call that does not stream: %d %s after %s", a.status, a.code(), a.took.Round(100*time.Millisecond))
	return true
}
