//go:build realengine

package main

import (
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// freeze stops an engine's processes and lets them go on with the test's end, or
// when the function it returns is called.
func freeze(t testing.TB, e *Engine) (thaw func()) {
	t.Helper()
	if err := e.SignalAll(syscall.SIGSTOP); err != nil {
		t.Fatalf("cannot freeze %s: %v", e.Role, err)
	}
	thaw = func() { _ = e.SignalAll(syscall.SIGCONT) } // or it has ended
	t.Cleanup(thaw)
	return thaw
}

// One request at a time is in prefill, two wait and the fourth is refused at
// once, for as long as prefill takes; then all that were taken are answered, each
// with its text.
func TestPairQueue(t *testing.T) {
	needPair(t)
	r := startPair(t, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "2",
		"--prefill-queue-timeout-secs", "120", "--disable-health-check")
	thaw := freeze(t, prefill)
	var taken []request
	var calls []*call
	for i := range 3 {
		q := request{route: chat, prompt: prompt(60), tokens: 16, stream: i == 1}
		taken, calls = append(taken, q), append(calls, q.send(t, r.url))
		r.waitFor(slotsTaken, 1)
		r.waitFor(queued, float64(i))
	}
	fourth := request{route: chat, prompt: prompt(60), tokens: 16}.ask(t, r.url)
	if fourth.status != http.StatusTooManyRequests || fourth.code() != "pd_prefill_queue_full" {
		t.Errorf("the fourth: %s", fourth)
	}
	if n, err := strconv.Atoi(fourth.header.Get("Retry-After")); err != nil || n < 1 {
		t.Errorf("Retry-After is %q", fourth.header.Get("Retry-After"))
	}
	thaw()
	for i, c := range calls {
		a := c.wait()
		if missing := a.whole(chat); missing != "" {
			t.Errorf("request %d: %s", i, missing)
			continue
		}
		direct := taken[i]
		direct.stream = false
		if want := direct.ask(t, one.URL()).text(chat); a.text(chat) != want {
			t.Errorf("request %d says %q, the engine itself %q", i, a.text(chat), want)
		}
	}
	report.say(t, "1 in prefill, 2 waiting, the fourth refused with %d %s; then 3 right answers; rejections %v",
		fourth.status, fourth.code(), r.counters()[rejections])
}

// The limit holds while two dozen clients ask at once: prefill never has more
// than one, decode has many. Without the limit prefill has several.
func TestPairLimitUnderLoad(t *testing.T) {
	needPair(t)
	free, _ := load(t, startPair(t))
	if free < 2 {
		t.Errorf("without a limit prefill is seen with %v requests: the test shows nothing", free)
	}
	r := startPair(t, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "100", "--prefill-queue-timeout-secs", "120")
	inPrefill, inDecode := load(t, r)
	if inPrefill > 1 {
		t.Errorf("with a limit of 1, prefill had %v requests", inPrefill)
	}
	report.say(t, "24 requests at once: at most %v in prefill, without a limit %v; at most %v in decode", inPrefill, free, inDecode)
}

// load sends 24 requests at once and returns the most that the engines had at one
// time, as they tell.
func load(t *testing.T, r *router) (inPrefill, inDecode float64) {
	t.Helper()
	waitIdle(t, prefill)
	waitIdle(t, decode)
	var calls []*call
	for i := range 24 {
		q := request{route: routes[i%2], prompt: prompt(380), tokens: 60, stream: i%3 == 0}
		calls = append(calls, q.send(t, r.url))
	}
	for over := 0; over < len(calls); {
		p, d := scrape(t, prefill.URL()), scrape(t, decode.URL())
		inPrefill = max(inPrefill, p[running]+p[waiting])
		inDecode = max(inDecode, d[running])
		over = 0
		for _, c := range calls {
			if c.over() {
				over++
			}
		}
	}
	for i, c := range calls {
		if missing := c.wait().whole(routes[i%2]); missing != "" {
			t.Errorf("request %d: %s", i, missing)
		}
	}
	return inPrefill, inDecode
}

// The whole choice: several samples of one prompt have one hand-off between them,
// which only one may use.
func TestPairSamples(t *testing.T) {
	needPair(t)
	r := startPair(t)
	a := request{route: chat, prompt: prompt(60), tokens: 8, extra: map[string]any{"n": 3, "temperature": 1}}.ask(t, r.url)
	choices, _ := a.json["choices"].([]any)
	if a.status != http.StatusOK || len(choices) != 3 {
		t.Fatal(a)
	}
	for i := range choices {
		if at(a.json, "choices", i, "message", "content") == "" {
			t.Errorf("sample %d is empty: %s", i, a)
		}
	}
	report.say(t, "n=3: 3 samples after %s", fmt.Sprint(a.took.Round(time.Millisecond)))
}
