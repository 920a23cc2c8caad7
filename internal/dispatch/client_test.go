package dispatch

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// stream is an answer that is read as it comes.
type stream struct {
	r     *rig
	resp  *http.Response
	leave context.CancelFunc
	br    *bufio.Reader
	got   bytes.Buffer
}

// open sends a request and returns once the answer's headers are here.
func (r *rig) open(path, body string, header ...string) *stream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cancel(); resp.Body.Close() })
	return &stream{r: r, resp: resp, leave: cancel, br: bufio.NewReader(resp.Body)}
}

// event reads on to the end of the next event, comments before it included.
// "" is the end of the body, whole or not.
func (s *stream) event() string {
	var e []byte
	for {
		line, err := s.br.ReadBytes('\n')
		s.got.Write(line)
		e = append(e, line...)
		if err != nil {
			return ""
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 && bytes.Contains(e, []byte("data")) {
			return string(e)
		}
	}
}

// rest reads to the end and returns all there was, from the beginning.
func (s *stream) rest() (string, error) {
	_, err := io.Copy(&s.got, s.br)
	return s.got.String(), err
}

// begin sends a request in the background.
func (r *rig) begin(path, body string, header ...string) (answers chan answer, leave context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	answers = make(chan answer, 1)
	go func() {
		answers <- r.do(ctx, path, body, header...)
		cancel()
	}()
	return answers, cancel
}

// settled waits for the end of all work and checks that nothing is left of it:
// no hold, no room, no request on an engine, no misuse of the protocol.
func (r *rig) settled() {
	r.t.Helper()
	r.idle()
	r.noViolations()
	r.until("no meeting is open", func() bool { return r.sim.OpenRooms() == 0 })
	r.until("no room is in use", func() bool { return r.d.rooms.Live() == 0 })
	for _, s := range r.gate.Stats().Ranks {
		if s.PrefillSlots != 0 || s.PrefillLegs != 0 || s.PendingDecode != 0 || s.ActiveDecode != 0 {
			r.t.Errorf("a hold is left: %+v", s)
		}
	}
}

// soon checks that what a leaving or a failure set off came at once. The bound
// only tells "at once" from a wait for a time limit: those of the rig are above
// patience.
func (r *rig) soon(what string, since time.Time) {
	r.t.Helper()
	if took := time.Since(since); took > patience/2 {
		r.t.Errorf("%s after %s", what, took)
	}
}

// wait waits for a state of a simulated worker.
func (r *rig) wait(w *sim.Worker, what string, cond func(sim.Stats) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Wait(ctx, cond); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) working(w *sim.Worker, n int) {
	r.t.Helper()
	r.wait(w, "requests arrive", func(s sim.Stats) bool { return s.Inflight == n })
}

// of are the gate's figures of a simulated worker, its ranks together.
func (r *rig) of(w *sim.Worker) (sum admission.RankStats) {
	sum.State.Breaker = admission.BreakerClosed
	for _, s := range r.gate.Stats().Ranks {
		if s.Worker != w.URL() {
			continue
		}
		sum.PrefillSlots += s.PrefillSlots
		sum.PrefillLegs += s.PrefillLegs
		sum.PendingDecode += s.PendingDecode
		sum.ActiveDecode += s.ActiveDecode
		sum.Candidate = sum.Candidate || s.Candidate
		if s.State.Breaker != admission.BreakerClosed {
			sum.State.Breaker = s.State.Breaker
		}
	}
	return sum
}

// charged checks who was charged: with firstFault the breakers of exactly these
// are open, or half-open at once where the worker is the last of its role.
func (r *rig) charged(want ...*sim.Worker) {
	r.t.Helper()
	for _, w := range r.sim.Workers() {
		should := false
		for _, x := range want {
			should = should || x == w
		}
		if should {
			r.until(w.ID()+" is charged", func() bool { return r.of(w).State.Breaker != admission.BreakerClosed })
		} else if b := r.of(w).State.Breaker; b != admission.BreakerClosed {
			r.t.Errorf("%s was charged: its breaker is %s", w.ID(), b)
		}
	}
}

// over are a worker's requests, once all are over: one that was given up at
// once may reach it after all else is done.
func (r *rig) over(w *sim.Worker) (all []sim.Request) {
	r.t.Helper()
	r.until("all requests of "+w.ID()+" end", func() bool {
		all = w.Requests()
		for _, q := range all {
			if q.Outcome == "" {
				return false
			}
		}
		return true
	})
	return all
}

// outcomes checks how a worker's requests ended, from its own point of view.
func (r *rig) outcomes(w *sim.Worker, want ...sim.Outcome) {
	r.t.Helper()
	got := r.over(w)
	if len(got) != len(want) {
		r.t.Errorf("%s had %d requests, want %d", w.ID(), len(got), len(want))
		return
	}
	for i, q := range got {
		if q.Outcome != want[i] {
			r.t.Errorf("%s: request %d ended as %q (%s), want %q", w.ID(), i, q.Outcome, q.Error, want[i])
		}
	}
}

// aborted checks that a worker's requests were all stopped: it saw its client
// go, or heard from its peer, which had seen so first.
func (r *rig) aborted(w *sim.Worker, n int) {
	r.t.Helper()
	got := r.over(w)
	if len(got) != n {
		r.t.Errorf("%s had %d requests, want %d", w.ID(), len(got), n)
	}
	for i, q := range got {
		if q.Outcome != sim.ClientGone && q.Error == "" {
			r.t.Errorf("%s: request %d ended as %q", w.ID(), i, q.Outcome)
		}
	}
}

// worker finds the fleet's entry of a simulated worker.
func (r *rig) worker(w *sim.Worker) *fleet.Worker {
	r.t.Helper()
	fw, ok := r.fleet.Get(w.URL())
	if !ok {
		r.t.Fatalf("%s is not registered", w.ID())
	}
	return fw
}

// counted is the value of a counter or the count of a histogram, summed over the
// children with these label values ("name", "value", …).
func (r *rig) counted(family string, labels ...string) (sum float64) {
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
	children:
		for _, m := range f.GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			for i := 0; i+1 < len(labels); i += 2 {
				if has[labels[i]] != labels[i+1] {
					continue children
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// bodyFor is a body for a route, with so many tokens and whatever else.
func bodyFor(path string, tokens int, extra string) string {
	n := itoa(tokens)
	switch path {
	case "/v1/completions":
		return `{"model":"sim-model","prompt":"hi","max_tokens":` + n + extra + `}`
	case "/generate":
		return `{"text":"hi","sampling_params":{"max_new_tokens":` + n + `}` + extra + `}`
	}
	return `{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":` + n + extra + `}`
}

var routes = []string{"/v1/chat/completions", "/v1/completions", "/generate"}

const streamed = `,"stream":true`
