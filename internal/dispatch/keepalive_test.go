package dispatch

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// halves answers generation routes with half an event, then silence until step,
// then the rest.
func halves(step <-chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := func(s string) {
			fmt.Fprint(w, s)
			_ = http.NewResponseController(w).Flush()
		}
		flush("id: 1\ndata: {\"n\":1}\n\nid: 2\ndata: {\"n\"")
		<-step
		flush(":2}\n\n")
		<-step
		flush(doneEvent)
	})
}

// A comment that a gateway added ended with an empty line, which one widely used
// client takes for an empty event.
func TestCommentsWhileAStreamIsSilent(t *testing.T) {
	t.Parallel()
	steps := make(chan struct{})
	r := newRig(t, rigOptions{config: func(c *config.Config) { c.Server.SSEKeepalive = 20 * time.Millisecond }, sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{
		Wrap: func(_ *sim.Worker, next http.Handler) http.Handler { return halves(steps, next) }}}})
	s := r.open("/v1/chat/completions", chatBody(streamed))
	if e := s.event(); e != "id: 1\ndata: {\"n\":1}\n\n" {
		t.Fatalf("%q", e)
	}
	time.AfterFunc(150*time.Millisecond, func() { steps <- struct{}{} }) // seven comments' time inside the event
	if e := s.event(); e != "id: 2\ndata: {\"n\":2}\n\n" {
		t.Fatalf("%q", e)
	}
	for range 3 {
		if line, err := s.br.ReadString('\n'); err != nil || line != comment {
			t.Fatalf("%q %v", line, err)
		}
	}
	steps <- struct{}{}
	all, err := s.rest()
	if err != nil || !strings.HasSuffix(all, doneEvent) {
		t.Errorf("%v %q", err, all)
	}
	if strings.Contains(all, comment+"\n") {
		t.Errorf("a comment makes an empty event: %q", all)
	}
	r.settled()
}

// A client hears that its request lives before there is an answer; the answer
// may then still come from another engine, and a failure is told in the stream.
func TestCommentsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	t.Run("then retried", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{retries: 2, breaker: noBreaker, config: func(c *config.Config) { c.Server.SSEKeepalive = 10 * time.Millisecond }, sim: sim.Options{Prefill: 2}}))
		for i := range 2 {
			r.sim.Prefill(i).SetFault(sim.Fault{Status: 503, Delay: 100 * time.Millisecond, Count: 1})
		}
		a := r.chat(streamed)
		if a.status != 200 || a.err != nil || !strings.HasPrefix(a.body, comment) || !strings.HasSuffix(a.body, doneEvent) ||
			strings.Count(a.body, `"role":"assistant"`) != 1 || a.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("got %d %v %v %s", a.status, a.err, a.header, a.body)
		}
		r.settled()
		if rec := r.waitRecord(0); rec.Attempts < 2 {
			t.Errorf("%d attempts", rec.Attempts)
		}
	})
	t.Run("then refused", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{config: func(c *config.Config) { c.Server.SSEKeepalive = 10 * time.Millisecond }}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 400, Delay: 100 * time.Millisecond, Body: tooLong})
		a := r.chat(streamed)
		if a.status != 200 || a.err == nil || !strings.HasPrefix(a.body, comment) || strings.Contains(a.body, "[DONE]") ||
			!strings.HasSuffix(a.body, "data: "+tooLong+"\n\n") {
			t.Errorf("got %d %v %s", a.status, a.err, a.body)
		}
		r.settled()
	})
	t.Run("never in a plain answer", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{config: func(c *config.Config) { c.Server.SSEKeepalive = 5 * time.Millisecond }, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{FirstToken: 50 * time.Millisecond}}}}))
		if a := r.chat(""); a.status != 200 || strings.Contains(a.body, "keep-alive") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.settled()
	})
	t.Run("several samples", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{config: func(c *config.Config) { c.Server.SSEKeepalive = 5 * time.Millisecond }, sim: sim.Options{Worker: sim.WorkerOptions{
			Timing: sim.Timing{FirstToken: 50 * time.Millisecond, DecodeStep: 20 * time.Millisecond}}}}))
		a := r.chat(`,"n":3` + streamed)
		if a.status != 200 || a.err != nil || !strings.Contains(a.body, comment) || strings.Contains(a.body, comment+"\n") || !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("got %d %v %s", a.status, a.err, a.body)
		}
		for _, e := range strings.Split(a.body, "\n\n") {
			for strings.HasPrefix(e, comment) {
				e = strings.TrimPrefix(e, comment)
			}
			if e != "" && !strings.HasPrefix(e, "data: {") && e != "data: [DONE]" {
				t.Errorf("odd event %q", e)
			}
		}
		r.settled()
	})
}

// A drain whose time is over tells each request so; it is no client that left.
func TestShutdownTellsItsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{limits: oneSlot(), breaker: firstFault, retries: 3,
		sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}}))
	s := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	s.event()
	r.sim.Prefill(0).SetTiming(sim.Timing{PrefillTime: forever})
	prefilling, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.wait(r.sim.Prefill(0), "it is in prefill", func(s sim.Stats) bool { return s.Prefilling == 1 })
	waiting, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.until("it waits", func() bool { return r.gate.Waiting() == 1 })
	at := time.Now()
	r.end()
	for _, c := range []chan answer{prefilling, waiting} {
		if a := <-c; a.status != 503 || a.code() != "draining" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %s %v", a.status, a.body, a.header)
		}
	}
	all, err := s.rest()
	if err == nil || !strings.Contains(all, `"draining"`) || strings.Contains(all, "[DONE]") {
		t.Errorf("the stream: %v %q", err, all)
	}
	r.settled()
	r.soon("all ended", at)
	r.charged()
	for i := range 3 {
		if rec := r.waitRecord(i); rec.Reason != reasonDraining {
			t.Errorf("recorded %+v", rec)
		}
	}
}

// The body is given back once the answer has begun and nothing can need it, so
// that a long stream does not hold its prompt.
func TestBodyIsGivenBackEarly(t *testing.T) {
	t.Parallel()
	for _, pair := range []bool{true, false} {
		o := rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}}
		if pair {
			o = pd(rigOptions{sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}})
		}
		r := newRig(t, o)
		body := `{"model":"sim-model","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`
		s := r.open("/v1/chat/completions", body)
		s.event()
		r.until("the body is given back while the stream goes on", func() bool { return r.freed.Load() == 1 })
		s.leave()
		r.settled()
		for _, w := range r.sim.Workers() {
			if q := w.Requests()[0]; q.BodySize < len(body) || strings.Contains(string(q.Body[:100]), "!") {
				t.Errorf("%s was sent %d bytes: %.100s", w.ID(), q.BodySize, q.Body)
			}
		}
	}
}
