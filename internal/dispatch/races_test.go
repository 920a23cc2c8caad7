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

// answering makes workers whose POST routes are answered by h; it returns false for
// what the simulated engine is to answer.
func answering(h func(w *sim.Worker, rw http.ResponseWriter, r *http.Request) bool) sim.WorkerOptions {
	return sim.WorkerOptions{Wrap: func(worker *sim.Worker, next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || !h(worker, rw, r) {
				next.ServeHTTP(rw, r)
			}
		})
	}}
}

// A comment may begin an event stream between the head of an answer and its first
// byte: lines of another form must not follow it and look like a whole answer.
func TestLinesBehindACommentAreRefused(t *testing.T) {
	t.Parallel()
	step := make(chan struct{})
	r := newRig(t, rigOptions{config: func(c *config.Config) { c.Server.SSEKeepalive = time.Millisecond }, sim: sim.Options{Regular: 1, Worker: answering(
		func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-ndjson")
			_ = http.NewResponseController(w).Flush()
			<-step
			fmt.Fprint(w, "{\"a\":\"R0\"}\n{\"done\":true}\n")
			return true
		})}})
	s := r.open("/v1/chat/completions", chatBody(streamed))
	if line, err := s.br.ReadString('\n'); err != nil || line != comment {
		t.Fatalf("%q %v", line, err)
	}
	close(step)
	all, err := s.rest()
	if err == nil || strings.Contains(all, "R0") || !strings.Contains(all, `"error"`) {
		t.Errorf("error %v, body %q; want an error event and a cut", err, all)
	}
	if rec := r.waitRecord(0); rec.Status != 200 || rec.Reason != reasonUpstream || rec.Err == nil {
		t.Errorf("recorded %d %s %v", rec.Status, rec.Reason, rec.Err)
	}
}

// A stream that a comment began and that then fails was sent status 200.
func TestStatusOfAStreamThatOnlyACommentBegan(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{config: func(c *config.Config) {
		c.Server.SSEKeepalive, c.Timeouts.Request = time.Millisecond, 200*time.Millisecond
	},
		sim: sim.Options{Regular: 1, Worker: answering(func(_ *sim.Worker, _ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		})}})
	if a := r.chat(streamed); a.status != 200 || a.err == nil || !strings.Contains(a.body, `"error"`) {
		t.Errorf("%d %v %q", a.status, a.err, a.body)
	}
	if rec := r.waitRecord(0); rec.Status != 200 || rec.Reason != reasonTimeout || rec.Err == nil {
		t.Errorf("recorded %d %s %v", rec.Status, rec.Reason, rec.Err)
	}
}

// panickingMemory panics in whoever collects more of an answer than is free.
type panickingMemory struct{}

func (panickingMemory) ReserveMemory(int) bool { panic("no account of memory") }
func (panickingMemory) ReleaseMemory(int)      {}

// A panic in a leg's goroutine fails that request and no other: it is no reason to
// end the process, and no engine's fault.
func TestPanicOfALegIsTheRequests(t *testing.T) {
	t.Parallel()
	for _, extra := range []string{"", `,"n":2`, streamed, streamed + `,"n":2`} {
		t.Run(extra, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, pd(rigOptions{breaker: firstFault}))
			r.memory = panickingMemory{}
			// Such a body is collected in the leg's goroutine, and counted as memory.
			if a := r.chat(extra + `,"sim":"on=prefill,status=500,body_size=` + itoa(2*freeAnswer) + `"`); a.status != 500 || a.code() != "internal_error" {
				t.Errorf("%d %s", a.status, a.body)
			}
			r.idle()
			r.memory = nil
			if a := r.chat(extra); a.status != 200 || a.err != nil {
				t.Errorf("after it: %d %v %s", a.status, a.err, a.body)
			}
			if rec := r.waitRecord(0); rec.Status != 500 || rec.Reason != reasonInternal || rec.Err == nil {
				t.Errorf("recorded %d %s %v", rec.Status, rec.Reason, rec.Err)
			}
		})
	}
}
