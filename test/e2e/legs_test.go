package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

// ended waits until a request's legs are over and returns them.
func (f *simFleet) ended(id string) []sim.Request {
	f.t.Helper()
	var legs []sim.Request
	within(f.t, leaveWithin, "the legs of "+id+" are over", func() string {
		legs = f.legs(id)
		for _, l := range legs {
			if l.Outcome == "" {
				return l.Worker + " still works"
			}
		}
		return ""
	})
	return legs
}

// One leg fails while the other waits for it: the client has the failure, in the
// failing engine's words, in no time, and the other engine is told to stop.
func TestOneLegFails(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--disable-retries")
	for _, c := range []struct {
		name, fields string
		status       int
		words        string
	}{
		{"prefill refuses", `"sim":"on=prefill,delay=100ms,status=400,body={\"error\":{\"message\":\"too long\"}}",`, 400, "too long"},
		{"prefill fails", `"sim":"on=prefill,delay=300ms,status=500,body=out of memory",`, 500, "out of memory"},
		{"prefill is overloaded", `"sim":"on=prefill,status=429,retry_after=7,body=later",`, 429, "later"},
		{"prefill breaks off", `"sim":"on=prefill,delay=500ms,reset=body",`, 502, "upstream_failed"},
		{"decode refuses", `"sim":"on=decode,delay=100ms,status=422,body=no",`, 422, "no"},
		{"decode breaks off", `"sim":"on=decode,reset=body",`, 502, "upstream_failed"},
	} {
		for _, mode := range []string{"", streamed} {
			a := r.ask(mode + c.fields)
			if a.status != c.status || !strings.Contains(a.body, c.words) {
				t.Errorf("%s: %s", c.name, a)
			}
			if a.took > soon {
				t.Errorf("%s: it took %s", c.name, a.took)
			}
			if c.status == 429 && a.header.Get("Retry-After") != "7" {
				t.Errorf("%s: Retry-After %q", c.name, a.header.Get("Retry-After"))
			}
			fleet.ended(a.id)
			within(t, leaveWithin, c.name+": holds", r.held)
		}
	}
	for _, w := range r.workers() {
		if w.Breaker != "closed" || !w.Healthy {
			t.Errorf("blamed: %+v", w)
		}
	}
	r.ask(brief).good(t)
}

// Decode streams while the prefill leg's body goes on: nobody waits for it
// (sgl-project/sglang#37961), and each event comes when it was sent
// (vllm-project/production-stack#952).
func TestEventsArriveAsTheyAreSent(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet)
	c := dialRaw(t, r.addr)
	// The engine is silent after five events: they must be with the client.
	c.send(post("/v1/chat/completions", "paced", chatBody(streamed+`"max_tokens":10,"sim":"on=decode,do=freeze,at=event,after=5",`)))
	resp := c.response()
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for a := (&answer{status: resp.StatusCode, streams: true}); a.events < 5; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%d events, then %v", a.events, err)
		}
		a.line(line)
	}
	c.Close()
	fleet.ended("paced")
	// The prefill leg's body takes long after its engine is done.
	early := r.ask(streamed + `"max_tokens":2,"sim":"on=prefill,keep_alive=100ms,first_byte=1h",`)
	early.good(t)
	for _, l := range fleet.legs(early.id) {
		if l.Worker == "prefill-0" && l.Outcome != "" {
			t.Errorf("the client's answer, whole after %s, waited for the prefill leg's body", early.took)
		}
	}
	r.idle()
}

// A failed attempt is tried again elsewhere under a new identity: a fresh room, a
// request id of its own, and the first pair is ended (sgl-project/sglang#34570).
func TestRetryHasItsOwnRequestIDAndRoom(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "2")
	r := startRouter(t, fleet)
	for i, fault := range []string{"reset=body,count=1", "reset=accept,count=1", "status=503,count=1", "status=500,count=1"} {
		for _, role := range []string{"prefill", "decode"} {
			for _, k := range []string{"0", "1"} {
				fleet.fault(role+"-"+k, fault)
			}
			id := fmt.Sprintf("retry-%d-%s", i, role)
			a := r.ask(brief, "X-Request-Id", id)
			legs := fleet.ended(id)
			fleet.heal("all")
			if !a.whole() {
				// Both workers of the role fail once, so the second attempt can
				// meet the other's fault; 500 is tried once more only.
				if !strings.HasPrefix(fault, "status=500") || a.status != 500 {
					t.Errorf("%s on %s: %s", fault, role, a)
					showLegs(t, fleet, id)
				}
			}
			rooms, ids := map[int64]string{}, map[string]bool{}
			for _, l := range legs {
				got := l.Header.Get("X-Request-Id")
				ids[got] = true
				if room := l.Room(); room != 0 {
					if first, ok := rooms[room]; ok && first != got {
						t.Errorf("room %d is used by %s and by %s", room, first, got)
					}
					rooms[room] = got
				}
			}
			if len(ids) < 2 && !strings.HasPrefix(fault, "reset=accept") {
				t.Errorf("%s on %s: attempts %v", fault, role, ids)
			}
		}
	}
}

// Nothing is tried again once the client has a byte (apache/shenyu#6647: the
// stream began anew).
func TestNoRetryAfterTheFirstByte(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "2")
	r := startRouter(t, fleet)
	a := r.ask(streamed + `"max_tokens":20,"sim":"reset=event,after=5",`)
	if a.status != 200 || a.events != 5 || a.failed == "" || a.done {
		t.Errorf("%s", a)
	}
	if legs := fleet.ended(a.id); len(legs) != 1 {
		t.Errorf("%d attempts, want 1", len(legs))
	}
}

// A client's own fault and an overloaded engine are no reason to leave a worker
// alone (sgl-project/sglang#25811, #39464).
func TestClientErrorsAndOverloadOpenNoBreaker(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "2")
	r := startRouter(t, fleet, "--cb-failure-threshold", "3", "--retry-initial-backoff-ms", "1")
	for _, fault := range []string{"status=400", "status=422", "status=429", "status=503"} {
		for range 20 {
			a := r.ask(`"sim":"` + fault + `,body={\"error\":{\"message\":\"as it is\"}}",`)
			if !strings.HasSuffix(fault, fmt.Sprint(a.status)) || !strings.Contains(a.body, "as it is") {
				t.Errorf("%s: %s", fault, a)
			}
		}
	}
	for _, w := range r.workers() {
		if w.Breaker != "closed" {
			t.Errorf("%+v", w)
		}
	}
	for range 10 {
		r.ask(brief).good(t)
	}
}

// An open breaker of the only prefill worker keeps decode out of it too, and a
// worker that is well again is found to be (sgl-project/sglang#31206: half-open
// for ever; defilantech/LLMKube#453).
func TestBreakerOpensAndCloses(t *testing.T) {
	t.Parallel()
	// The last worker of a role is never closed, so there are two.
	fleet := startSim(t, "--prefill", "2")
	r := startRouter(t, fleet, "--disable-retries", "--cb-failure-threshold", "5", "--cb-timeout-duration-secs", "1", "--cb-success-threshold", "2", "--disable-health-check")
	fleet.fault("prefill-0", "status=500")
	eventually(t, "the breaker opens", func() string {
		r.ask(brief)
		if b := r.worker("prefill-0").Breaker; b != "open" {
			return b
		}
		return ""
	})
	before := fleet.stats("decode-0").Requests
	if r.worker("prefill-0").Breaker == "open" {
		a := r.ask(brief, "X-SMG-Target-Worker", fleet.worker("prefill-0").URL)
		if r.worker("prefill-0").Breaker == "open" {
			a.refused(t, 503, "no_available_workers")
			if n := fleet.stats("decode-0").Requests; n != before {
				t.Errorf("decode got %d requests without a prefill", n-before)
			}
		}
	}
	if b := r.worker("decode-0").Breaker; b != "closed" {
		t.Errorf("decode's breaker is %s", b)
	}
	fleet.heal("prefill-0")
	eventually(t, "the breaker closes", func() string {
		r.ask(brief)
		if b := r.worker("prefill-0").Breaker; b != "closed" {
			return b
		}
		return ""
	})
	r.ask(brief).good(t)
}

// What an engine gets of the client's headers: not those of the connection, nor
// credentials, nor orders to routers (vllm-project/production-stack#201); the
// same request id and trace on both legs (#472, BerriAI/litellm#4419).
func TestForwardedHeaders(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--worker-api-key", "worker-key")
	r := launchRouter(t, fleet, nil, nil, append(fleet.flags(), "--api-key", "client-key", "--worker-api-key", "worker-key")...)
	eventually(t, "it is ready", func() string {
		if status, body := r.get("/readyz"); status != 200 {
			return body
		}
		return ""
	})
	r.over = true // its routes ask for a key
	c := dialRaw(t, r.addr)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c.send(post("/v1/chat/completions", "my-id", chatBody(brief), "Authorization: Bearer client-key", "Traceparent: "+trace, "Tracestate: a=b",
		"Connection: keep-alive, X-Named", "X-Named: 1", "Keep-Alive: 5", "TE: trailers", "Proxy-Authorization: secret", "Forwarded: for=1.2.3.4",
		"X-Forwarded-For: 1.2.3.4", "Accept-Encoding: gzip", "Cookie: a=b", "X-SMG-Routing-Key: k", "X-Mine: kept"))
	a := c.answer()
	a.good(t)
	if got := a.header.Get("X-Request-Id"); got != "my-id" {
		t.Errorf("the answer has id %q", got)
	}
	legs := fleet.ended("my-id")
	if len(legs) != 2 {
		t.Errorf("%d legs", len(legs))
	}
	for _, l := range legs {
		h := l.Header
		for _, gone := range []string{"X-Named", "Keep-Alive", "Te", "Proxy-Authorization", "Forwarded", "X-Forwarded-For", "Accept-Encoding", "Cookie", "X-Smg-Routing-Key"} {
			if v := h.Get(gone); v != "" {
				t.Errorf("%s got %s: %s", l.Worker, gone, v)
			}
		}
		for name, want := range map[string]string{"X-Mine": "kept", "Traceparent": trace, "Tracestate": "a=b", "Authorization": "Bearer worker-key",
			"X-Request-Id": "my-id", "Host": strings.TrimPrefix(fleet.worker(l.Worker).URL, "http://")} {
			if got := h.Get(name); got != want {
				t.Errorf("%s got %s: %q, want %q", l.Worker, name, got, want)
			}
		}
	}
	for _, l := range append(fleet.log("all", "?probes=1"), fleet.requests("all")...) {
		for name, values := range l.Header {
			if strings.Contains(strings.Join(values, " "), "client-key") {
				t.Errorf("%s saw the clients' key in %s of %s", l.Worker, name, l.Path)
			}
		}
	}
	for _, key := range []string{"", "Bearer wrong", "Bearer worker-key", "client-key"} {
		r.ask(brief, "Authorization", key).refused(t, 401, "invalid_api_key")
	}
	if status, _ := r.change("POST", "/workers", `{"url":"http://127.0.0.1:1","worker_type":"decode"}`); status != 401 {
		t.Errorf("a change of the fleet without a key: %d, want 401", status)
	}
	for _, bad := range []string{"client-key", "worker-key", "Why is the sky"} {
		if strings.Contains(r.stderr.String(), bad) {
			t.Errorf("%q is in the log", bad)
		}
	}
	absurd := strings.Repeat("i", 4000)
	if got := r.ask(brief, "Authorization", "Bearer client-key", "X-Request-Id", absurd).header.Get("X-Request-Id"); got == "" || len(got) > 128 {
		t.Errorf("an absurd id becomes %q", got)
	}
}

// Engines close idle connections after some seconds; requests that come just then
// must not meet a dead one (llm-d/llm-d-benchmark#1675), and none is sent twice.
func TestIdleEngineConnections(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--disable-retries", "--worker-idle-timeout-secs", "60", "--health-check-interval-secs", "30")
	client := clients(t)
	pauses := []time.Duration{4990, 5000, 5010}
	if full {
		pauses = append(pauses, 4950, 4995, 5002, 5005, 5050)
	}
	for i, pause := range pauses {
		id := fmt.Sprintf("idle-%d", i)
		var calls []*call
		for k := range 4 {
			calls = append(calls, r.chat(client, brief, "X-Request-Id", fmt.Sprintf("%s-%d", id, k)))
		}
		for _, c := range calls {
			c.wait(t).good(t)
			if legs := fleet.legs(c.id); len(legs) != 2 {
				t.Errorf("%d legs of one request", len(legs))
			}
		}
		if i < len(pauses)-1 {
			time.Sleep(pause * time.Millisecond) // the engines' idle limit is the point
		}
	}
}

// Requests, probes, scrapes and a fleet that changes, all at once under each
// policy: with the race detector this is the test of it (vllm-project/aibrix#1131).
func TestRequestsProbesAndFleetChangesAtOnce(t *testing.T) {
	t.Parallel()
	policies := []string{"power_of_two", "consistent_hashing"}
	if full {
		policies = append(policies, "random", "round_robin", "least_load")
	}
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, "--prefill", "3", "--decode", "3")
			fleet.do("all", "timing", `{"prefill_time":"5ms","decode_step":"2ms","output_tokens":5}`)
			r := startRouter(t, fleet, "--policy", policy, "--prefill-max-inflight-requests-per-worker", "8", "--prefill-queue-size", "1000", "--no-worker-wait-secs", "10")
			c := startCrowd(t, r, 40, "")
			for i := range 6 {
				id := []string{"prefill-2", "decode-2"}[i%2]
				name := r.worker(id).ID
				r.removeWorker(name)
				r.metric(metricQueued)
				c.more(40)
				r.addWorker(id)
				c.more(20)
			}
			for _, a := range c.end() {
				if !a.whole() {
					t.Errorf("%s", a)
					showLegs(t, fleet, a.id)
					break
				}
			}
		})
	}
}

// The model list must not hang on a worker that does (vllm-project/router#135).
func TestModelListWithAHungWorker(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "3")
	r := startRouter(t, fleet)
	fleet.do("regular-0", "kill", "")
	fleet.do("regular-1", "freeze", "")
	for range 20 {
		start := time.Now()
		if status, body := r.get("/v1/models"); status != 200 || !strings.Contains(body, "sim-model") || time.Since(start) > soon {
			t.Fatalf("%d %s after %s", status, body, took(start))
		}
	}
	fleet.do("regular-1", "thaw", "")
}
