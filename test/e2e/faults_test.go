package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// crowd are clients that send one request after another, streamed and not.
type crowd struct {
	t        *testing.T
	r        *router
	stop     atomic.Bool
	wg       sync.WaitGroup
	http     *http.Client
	extra    string
	mu       sync.Mutex // guards answers
	answers  []*answer
	watching chan struct{}
	watched  sync.WaitGroup
	finish   func() // ends all that, once
}

// startCrowd starts n clients; every other request is streamed.
func startCrowd(t *testing.T, r *router, n int, extra string) *crowd {
	c := &crowd{t: t, r: r, http: clients(t), extra: extra, watching: make(chan struct{})}
	for i := range n {
		c.wg.Go(func() {
			for k := i; !c.stop.Load(); k++ {
				fields := extra
				if k%2 == 0 {
					fields = streamed + extra
				}
				a := r.chat(c.http, fields).wait(t)
				c.mu.Lock()
				c.answers = append(c.answers, a)
				c.mu.Unlock()
			}
		})
	}
	c.finish = sync.OnceFunc(func() {
		c.stop.Store(true)
		c.wg.Wait()
		close(c.watching)
		c.watched.Wait()
	})
	t.Cleanup(c.finish)
	return c
}

// served is how many answers came so far.
func (c *crowd) served() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.answers)
}

// more waits for n more answers.
func (c *crowd) more(n int) {
	c.t.Helper()
	want := c.served() + n
	eventually(c.t, "answers", func() string {
		if got := c.served(); got < want {
			return fmt.Sprintf("%d of %d", got, want)
		}
		return ""
	})
}

// watch looks all the time whether workers that are well are treated so.
func (c *crowd) watch(well []string) {
	c.watched.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-c.watching:
				return
			case <-tick.C:
			}
			for _, id := range well {
				if w := c.r.worker(id); w.Status != "ready" || w.Breaker != "closed" || !w.Healthy {
					c.t.Errorf("%s is well and is blamed: %+v", id, w)
					return
				}
			}
		}
	})
}

// end lets the clients finish and returns all answers.
func (c *crowd) end() []*answer {
	c.finish()
	return c.answers
}

// blow is what happens to a worker under load.
type blow struct {
	name   string
	strike func(f *simFleet, id string)
	// noticed: the router is to find out, that is, to give it no more work.
	noticed bool
	mend    func(f *simFleet, id string)
}

var blows = []blow{
	{"kill", func(f *simFleet, id string) { f.do(id, "kill", "") }, true,
		func(f *simFleet, id string) { f.do(id, "restart", "") }},
	{"hang", func(f *simFleet, id string) { f.do(id, "freeze", "") }, true,
		func(f *simFleet, id string) { f.do(id, "thaw", "") }},
	{"restart", func(f *simFleet, id string) { f.do(id, "kill", ""); f.do(id, "restart", "") }, false, nil},
	{"slow", func(f *simFleet, id string) {
		f.do(id, "timing", `{"prefill_time":"1200ms","decode_step":"100ms","output_tokens":12}`)
	}, false, func(f *simFleet, id string) {
		f.do(id, "timing", loadTiming)
	}},
	{"refuse", func(f *simFleet, id string) { f.do(id, "refuse", "") }, false, // what it has open goes on

		func(f *simFleet, id string) { f.do(id, "admit", "") }},
	{"cut connections", func(f *simFleet, id string) { f.fault(id, "reset=body,count=4") }, false, nil},
}

// loadTiming lets each request spend a good part of its life in each phase.
const loadTiming = `{"prefill_time":"120ms","decode_step":"25ms","output_tokens":12}`

// One of three prefill or of two decode workers is struck in the middle of
// queued, prefilling and streaming requests. Every request is answered; only a
// stream that had begun on the struck decode worker may break, and says so; the
// other workers are not blamed; nothing stays booked; and a worker that comes
// back is used again.
func TestWorkerRemovedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, b := range blows {
		for _, id := range []string{"prefill-1", "decode-0"} {
			if !full && (b.name == "refuse" || b.name == "cut connections") {
				continue
			}
			t.Run(b.name+" "+id, func(t *testing.T) {
				t.Parallel()
				strike(t, b, id)
			})
		}
	}
}

func strike(t *testing.T, b blow, id string) {
	fleet := startSim(t, "--prefill", "3", "--decode", "2")
	fleet.do("all", "timing", loadTiming)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "2", "--stream-idle-timeout-secs", "20",
		"--retry-initial-backoff-ms", "20", "--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1")
	c := startCrowd(t, r, 24, "")
	var well []string
	for _, w := range fleet.workers {
		if w.ID != id {
			well = append(well, w.ID)
		}
	}
	c.watch(well)
	c.more(24)
	// In the middle of all phases, on the worker itself too.
	eventually(t, "requests in all phases", func() string {
		q, s := r.metric(metricQueued), fleet.stats(id)
		if q > 0 && (s.Prefilling > 0 || s.Decoding > 0 && s.Receiving > 0) {
			return ""
		}
		return fmt.Sprintf("queued %v, %s %+v", q, id, s)
	})
	b.strike(fleet, id)
	if b.noticed {
		eventually(t, "the router finds out", func() string {
			if w := r.worker(id); w.Status == "ready" && w.Breaker == "closed" {
				return fmt.Sprintf("%+v", w)
			}
			return ""
		})
	}
	c.more(24) // all goes on
	if b.mend != nil {
		b.mend(fleet, id)
	}
	before := fleet.stats(id).Requests
	eventually(t, id+" is used again", func() string {
		if n := fleet.stats(id).Requests; n <= before {
			return fmt.Sprintf("%d requests, %+v", n, r.worker(id))
		}
		return ""
	})
	if full {
		c.more(100)
	}
	answers := c.end()
	broken := 0
	for _, a := range answers {
		if a.whole() {
			continue
		}
		// A stream that had begun on the decode worker that was struck.
		if a.status == http.StatusOK && a.streams && a.events > 0 && a.failed != "" && !a.done &&
			strings.HasPrefix(id, "decode") && r.accessLine(a.id)["decode"] == fleet.worker(id).URL {
			broken++
			continue
		}
		t.Errorf("%s\n%v", a, r.accessLine(a.id))
		if t.Failed() && len(answers) > 0 {
			showLegs(t, fleet, a.id)
			break
		}
	}
	t.Logf("%d answers, %d streams broke off on %s", len(answers), broken, id)
	r.idle()
	for _, w := range fleet.workers {
		fleet.waitStats(w.ID, "is idle", func(s sim.Stats) bool { return s.Inflight == 0 })
	}
	for _, w := range r.workers() {
		if w.Breaker != "closed" && w.URL != fleet.worker(id).URL {
			t.Errorf("breaker of a worker that was well: %+v", w)
		}
	}
}

func showLegs(t *testing.T, fleet *simFleet, id string) {
	for _, l := range fleet.legs(id) {
		t.Logf("leg on %s (%s): room %v, status %d, outcome %s, %d events, error %q, fault %q, %s to %s", l.Worker, l.Header.Get("X-Request-Id"), l.Rooms, l.Status, l.Outcome, l.Events, l.Error, l.Fault,
			l.Arrived.Format("05.000"), l.Ended.Format("05.000"))
	}
}

// Workers join and leave while requests run, and those that leave go silent
// (ai-dynamo/dynamo#13088: requests vanished without an error or a timeout).
func TestWorkersJoinAndLeaveUnderLoad(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "4", "--decode", "4")
	fleet.do("all", "timing", loadTiming)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "4", "--no-worker-wait-secs", "10", "--stream-idle-timeout-secs", "20", "--retry-initial-backoff-ms", "20")
	c := startCrowd(t, r, 16, "")
	rounds := 4
	if full {
		rounds = 20
	}
	for i := range rounds {
		for _, role := range []string{"prefill", "decode"} {
			id := fmt.Sprintf("%s-%d", role, i%4)
			name := r.worker(id).ID
			r.removeWorker(name)
			fleet.do(id, "freeze", "")
			c.more(4)
			fleet.do(id, "thaw", "")
			r.addWorker(id)
		}
	}
	for _, a := range c.end() {
		broken := a.status == 200 && a.streams && a.failed != "" && !a.done
		if !a.whole() && !broken {
			t.Errorf("%s", a)
			showLegs(t, fleet, a.id)
			break
		}
	}
}

// A worker that takes connections and answers nothing must not stall the others
// (vllm-project/production-stack#749, sgl-project/sglang#4562).
func TestHungWorkerDoesNotStallOthers(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "3")
	r := startRouter(t, fleet)
	fleet.do("regular-1", "freeze", "")
	client := clients(t)
	var calls []*call
	for range 100 {
		calls = append(calls, r.chat(client, brief))
	}
	var took []time.Duration
	for _, c := range calls {
		a := c.wait(t)
		a.good(t)
		took = append(took, a.took)
	}
	slices.Sort(took)
	if d := took[len(took)/3]; d > soon {
		t.Errorf("a third of the requests took more than %s", d)
	}
	eventually(t, "the hung worker leaves rotation", func() string {
		if w := r.worker("regular-1"); w.Healthy {
			return fmt.Sprintf("%+v", w)
		}
		return ""
	})
	start := time.Now()
	for range 20 {
		r.ask(brief).good(t)
	}
	t.Logf("20 requests took %s", time.Since(start))
	fleet.do("regular-1", "thaw", "")
	r.waitReady()
}

// The router is not ready when a role has nobody left, stays alive, and is ready
// again when the worker is back (NVIDIA/TensorRT-LLM#17206).
func TestReadinessFollowsBothRoles(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet)
	for _, id := range []string{"prefill-0", "decode-0"} {
		fleet.do(id, "kill", "")
		eventually(t, "readyz fails without "+id, func() string {
			if status, body := r.get("/readyz"); status != 503 || !strings.Contains(body, fleet.worker(id).Role) {
				return fmt.Sprint(status, body)
			}
			return ""
		})
		if status, _ := r.get("/livez"); status != 200 {
			t.Errorf("livez %d", status)
		}
		r.ask(brief).refused(t, 503, "no_available_workers")
		if status, body := r.get("/v1/models"); status != 200 || !strings.Contains(body, "sim-model") {
			t.Errorf("models: %d %s", status, body)
		}
		fleet.do(id, "restart", "")
		r.waitReady()
		r.ask(brief).good(t)
	}
}

// The engines' /health runs a generation and fails while a long one runs. A worker
// from which bytes come is busy, not sick, and keeps its place; one that only fails
// is out and comes back (rllm-org/rllm#926: declared dead, and the pool answered
// 500 in plain text).
func TestBusyWorkerIsNotUnhealthy(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "1")
	r := startRouter(t, fleet, "--health-check-endpoint", "/health", "--health-check-timeout-secs", "2", "--health-check-interval-secs", "0.3", "--health-failure-threshold", "2")
	client := clients(t)
	running := r.chat(client, streamed+`"max_tokens":60,"sim":"event_delay=100ms",`)
	select {
	case <-running.begun:
	case <-time.After(patience):
		t.Fatal("no stream begins")
	}
	fleet.fault("regular-0", "path=/health,status=503")
	probes := fleet.stats("regular-0").Probes
	eventually(t, "many checks fail", func() string {
		if w := r.worker("regular-0"); w.Status != "ready" {
			t.Fatalf("a worker that is busy is out: %+v", w)
		}
		if n := fleet.stats("regular-0").Probes - probes; n < 6 {
			return fmt.Sprint(n, " probes")
		}
		return ""
	})
	r.chat(client, brief).wait(t).good(t)
	running.wait(t).good(t)
	// Nothing comes from it any more, so it is not excused any more.
	eventually(t, "a worker that only fails its checks is out", func() string {
		if w := r.worker("regular-0"); w.Status != "unhealthy" {
			return w.Status
		}
		return ""
	})
	r.ask(brief).refused(t, 503, "no_available_workers")
	fleet.heal("regular-0")
	r.waitReady()
	r.ask(brief).good(t)
}
