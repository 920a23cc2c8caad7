package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// forever is longer than any test: what waits for it waits for an abort.
const forever = time.Hour

// moment is a point in a request's life at which its client leaves.
type moment struct {
	name   string
	timing sim.Timing
	fault  sim.Fault // of the answering worker
	stream bool
	// reach returns once the moment has come, with the way to leave.
	reach func(r *rig, path string, body string, answering *sim.Worker) (leave func())
}

func moments() []moment {
	many := sim.Timing{DecodeStep: 5 * time.Millisecond}
	inBackground := func(cond func(sim.Stats) bool) func(*rig, string, string, *sim.Worker) func() {
		return func(r *rig, path, body string, answering *sim.Worker) func() {
			_, leave := r.begin(path, body)
			for _, w := range r.sim.Workers() {
				r.wait(w, "it has arrived", func(s sim.Stats) bool { return s.Requests == 1 })
			}
			r.wait(answering, "the engine is there", cond)
			return leave
		}
	}
	arrived := func(s sim.Stats) bool { return s.Inflight == 1 }
	afterEvents := func(n int) func(*rig, string, string, *sim.Worker) func() {
		return func(r *rig, path, body string, _ *sim.Worker) func() {
			s := r.open(path, body)
			for range n {
				if e := s.event(); e == "" {
					r.t.Fatalf("%s: the stream ended: %q", path, s.got.String())
				}
			}
			return s.leave
		}
	}
	return []moment{
		{"prefill computes, plain", sim.Timing{PrefillTime: forever}, sim.Fault{}, false, inBackground(arrived)},
		{"prefill computes, streamed", sim.Timing{PrefillTime: forever}, sim.Fault{}, true, inBackground(arrived)},
		{"decode is silent, plain", sim.Timing{FirstToken: forever}, sim.Fault{}, false,
			inBackground(func(s sim.Stats) bool { return s.Decoding == 1 })},
		{"decode is silent before the first event", sim.Timing{FirstToken: forever}, sim.Fault{}, true,
			inBackground(func(s sim.Stats) bool { return s.Decoding == 1 })},
		{"decode is silent after the first event", sim.Timing{DecodeStep: forever}, sim.Fault{}, true, afterEvents(1)},
		{"headers and comments, no event", sim.Timing{FirstToken: forever},
			sim.Fault{EarlyHeaders: true, KeepAlive: 5 * time.Millisecond}, true, afterEvents(0)},
		{"mid-stream", many, sim.Fault{}, true, afterEvents(5)},
		{"mid-stream, large events", many, sim.Fault{TokenSize: 64 << 10}, true, afterEvents(3)},
	}
}

// leaveAt runs one moment and checks what must follow.
func leaveAt(t *testing.T, m moment, pair bool, path string) {
	o := rigOptions{sim: sim.Options{Regular: 1}, retries: 3, breaker: firstFault}
	if pair {
		o = pd(rigOptions{retries: 3, breaker: firstFault})
	}
	o.sim.Worker.Timing = m.timing
	r := newRig(t, o)
	answering := r.sim.Workers()[len(r.sim.Workers())-1]
	answering.SetFault(m.fault)
	extra := ""
	if m.stream {
		extra = streamed
	}
	leave := m.reach(r, path, bodyFor(path, 1_000_000, extra), answering)
	left := time.Now()
	leave()
	r.settled()
	r.soon("all was given back", left)
	rec := r.waitRecord(0)
	if rec.Reason != reasonClientGone || rec.Attempts != 1 {
		t.Errorf("recorded as %q after %d attempts: %+v", rec.Reason, rec.Attempts, rec)
	}
	r.aborted(answering, 1)
	if pair && m.timing.PrefillTime > 0 {
		r.aborted(r.sim.Prefill(0), 1)
	}
	r.charged()
}

// A client that leaves was noticed on the streamed path only: for a plain answer
// the engine went on to the end.
func TestLeavingStopsTheEngines(t *testing.T) {
	t.Parallel()
	for _, m := range moments() {
		if strings.HasPrefix(m.name, "mid-stream") {
			continue
		}
		for _, pair := range []bool{true, false} {
			t.Run(m.name+map[bool]string{true: "/pair", false: "/aggregated"}[pair], func(t *testing.T) {
				t.Parallel()
				leaveAt(t, m, pair, "/v1/chat/completions")
			})
		}
	}
}

// The proxy stopped reading but kept the engine's connection open, so that the
// engine blocked on full buffers or finished into nothing.
func TestLeavingMidStreamClosesTheConnection(t *testing.T) {
	t.Parallel()
	for _, m := range moments() {
		if !strings.HasPrefix(m.name, "mid-stream") {
			continue
		}
		for _, pair := range []bool{true, false} {
			t.Run(m.name+map[bool]string{true: "/pair", false: "/aggregated"}[pair], func(t *testing.T) {
				t.Parallel()
				leaveAt(t, m, pair, "/v1/chat/completions")
			})
		}
	}
}

// Disconnects were handled on one route only.
func TestLeavingOnEveryRoute(t *testing.T) {
	t.Parallel()
	for _, path := range routes[1:] {
		for _, m := range moments() {
			if !strings.Contains(m.name, "stream") && !strings.Contains(m.name, "event") {
				continue
			}
			t.Run(path[1:]+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				leaveAt(t, m, true, path)
			})
		}
	}
}

// A write error towards a departed client was taken for an engine's failure and
// carried to the other engines.
func TestDepartedClientIsNoFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 3, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: time.Millisecond}}},
		retries: 5, breaker: firstFault})
	for range 10 {
		s := r.open("/v1/chat/completions", bodyFor("", 100_000, streamed))
		for range 3 {
			s.event()
		}
		s.leave()
	}
	r.settled()
	n := 0
	for _, w := range r.sim.Workers() {
		n += len(w.Requests())
	}
	if n != 10 {
		t.Errorf("%d requests reached the engines, want 10", n)
	}
	if got := r.counted("sluice_retries_total"); got != 0 {
		t.Errorf("%v retries", got)
	}
	r.charged()
}

// A client leaves while it waits for a slot: its place is free, no engine hears
// of it, and those behind it are served.
func TestLeavingTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 10, QueueTimeout: time.Minute},
		sim:    sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}},
	}))
	_, leaveFirst := r.begin("/v1/chat/completions", chatBody(""))
	r.working(r.sim.Prefill(0), 1)
	_, leaveSecond := r.begin("/v1/chat/completions", chatBody(""))
	r.until("the second waits", func() bool { return r.gate.Waiting() == 1 })
	third, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.until("the third waits", func() bool { return r.gate.Waiting() == 2 })
	left := time.Now()
	leaveSecond()
	r.until("the second is gone", func() bool { return r.gate.Waiting() == 1 })
	r.soon("the place was free", left)
	if rec := r.waitRecord(0); rec.Reason != reasonClientGone || rec.Attempts != 0 {
		t.Errorf("recorded as %q after %d attempts", rec.Reason, rec.Attempts)
	}
	r.sim.Prefill(0).SetTiming(sim.Timing{})
	leaveFirst()
	if a := <-third; a.status != 200 {
		t.Errorf("the third: %d %s %v", a.status, a.body, a.err)
	}
	if n := len(r.sim.Decode(0).Requests()); n != 2 {
		t.Errorf("decode saw %d requests, want 2", n)
	}
	r.settled()
}

// Many leave at once at every moment; nothing is left of them.
func TestCrowdLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{sim: sim.Options{Prefill: 2, Decode: 2, Worker: sim.WorkerOptions{
		Timing: sim.Timing{PrefillTime: 20 * time.Millisecond, DecodeStep: 2 * time.Millisecond}}},
		limits: admission.Limits{PrefillSlots: 4, QueueSize: 1000, QueueTimeout: time.Minute}, retries: 2, breaker: firstFault}))
	var all []chan answer
	for i := range 80 {
		extra := ""
		if i%2 == 0 {
			extra = streamed
		}
		answers, leave := r.begin(routes[i%3], bodyFor(routes[i%3], 1_000_000, extra))
		time.AfterFunc(time.Duration(i%7)*15*time.Millisecond, leave)
		all = append(all, answers)
	}
	// On a busy machine all of these may have left before the router has read a byte.
	stays, leave := r.begin(routes[0], bodyFor(routes[0], 1_000_000, ""))
	r.until("one has come", func() bool { return r.counted("sluice_requests_in_flight") > 0 })
	leave()
	for _, answers := range append(all, stays) {
		<-answers // by its own context, whatever the router does
	}
	r.settled()
	r.until("every request is over", func() bool { return r.counted("sluice_requests_in_flight") == 0 })
	r.charged()
	if n := r.counted("sluice_requests_total"); n == 0 || n != r.counted("sluice_requests_total", "reason", reasonClientGone) {
		t.Errorf("%v requests counted, not all as left by their client", n)
	}
	if n := r.counted("sluice_retries_total"); n != 0 {
		t.Errorf("%v retries", n)
	}
}
