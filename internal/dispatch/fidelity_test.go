package dispatch

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

// stripped is what an engine was sent without the fields that sluice puts in, as
// raw members in their order.
func stripped(t *testing.T, body []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		switch name {
		case "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank":
			continue
		}
		out = append(out, name.(string)+":"+string(v))
	}
	return strings.Join(out, "\n")
}

// passes checks that both legs of a pair, and an aggregated worker, get a body's
// own bytes.
func passes(t *testing.T, path, body string) {
	t.Helper()
	for _, o := range []rigOptions{pd(rigOptions{}), {sim: sim.Options{Regular: 1}}} {
		r := newRig(t, o)
		for _, w := range r.sim.Workers() {
			w.SetFault(sim.Fault{Status: 418}) // what they make of it does not matter
		}
		if a := r.do(t.Context(), path, body); a.status != 418 {
			t.Errorf("got %d %s for %s", a.status, a.body, body)
		}
		r.settled()
		for _, w := range r.sim.Workers() {
			for _, q := range r.over(w) {
				if len(q.Body) != q.BodySize || q.BodySize == 0 {
					continue // stopped by its peer's failure on the way
				}
				if !o.pd && string(q.Body) != body {
					t.Errorf("%s was sent\n%s\nwant\n%s", w.ID(), q.Body, body)
				}
				// Each run of the client's bytes between two members is there.
				if got, want := stripped(t, q.Body), stripped(t, []byte(body)); got != want {
					t.Errorf("%s was sent\n%s\nwant\n%s", w.ID(), got, want)
				}
			}
		}
	}
}

// The body was decoded and written anew, so that integers above 2^53 and the
// spelling of numbers changed.
func TestNumbersPassDigitForDigit(t *testing.T) {
	t.Parallel()
	passes(t, "/v1/chat/completions", `{ "seed" : 9007199254740993, "model":"sim-model","temperature":1e3 ,"top_p":0.10,"x":1e400,"y":-0,"z":1.0,
		"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":9223372036854775807}}}],
		"metadata":{"user":12345678901234567890},"messages":[{"role":"user","content":"hi"}]}`)
}

// Fields that the router does not know were dropped.
func TestUnknownFieldsPass(t *testing.T) {
	t.Parallel()
	passes(t, "/v1/chat/completions", `{"model":"sim-model","chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":true,
		"made_up":{"a":[1,{"b":null}]},"made_up":"twice","messages":[{"role":"user","content":"\ud800 lone","made_up":[]}],"tools":[{"made_up":{}}],"logprobs":false}`)
}

// Requests were refused because no field named prompt was found.
func TestPromptsOfEveryForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	for _, tc := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":1}`},
		{"/v1/completions", `{"prompt":"hi","max_tokens":1}`},
		{"/v1/completions", `{"prompt":["hi","ho"],"max_tokens":1}`},
		{"/v1/completions", `{"prompt":[1,2,3],"max_tokens":1}`},
		{"/v1/completions", `{"prompt":[[1,2,3],[4]],"max_tokens":1}`},
		{"/generate", `{"text":"hi","sampling_params":{"max_new_tokens":1}}`},
		{"/generate", `{"text":["hi"],"sampling_params":{"max_new_tokens":1}}`},
		{"/generate", `{"input_ids":[1,2],"sampling_params":{"max_new_tokens":1}}`},
		{"/generate", `{"input_ids":[[1,2],[3]],"sampling_params":{"max_new_tokens":1}}`},
	} {
		if a := r.do(t.Context(), tc.path, tc.body); a.status != 200 {
			t.Errorf("%s %s: %d %s", tc.path, tc.body, a.status, a.body)
		}
	}
	for _, tc := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"max_tokens":1}`}, {"/v1/completions", `{"max_tokens":1}`}, {"/generate", `{}`},
	} {
		if a := r.do(t.Context(), tc.path, tc.body); a.status != 400 || a.code() == "" {
			t.Errorf("%s without a prompt: %d %s", tc.path, a.status, a.body)
		}
	}
	r.settled()
}

// Rooms that clients sent reached the engines, and two with the same one crashed
// both schedulers.
func TestRoomsAreTheRoutersOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{sim: sim.Options{Prefill: 2, Decode: 2}}))
	for _, field := range []string{`"bootstrap_room":7`, `"bootstrap_host":"10.0.0.1"`, `"bootstrap_port":1`} {
		if a := r.chat("," + field); a.status != 400 {
			t.Errorf("%s: %d %s", field, a.status, a.body)
		}
	}
	if n := asked(r.sim.Workers()...); n != 0 {
		t.Errorf("%d requests reached the engines", n)
	}
	var all []chan answer
	for range 50 {
		c, _ := r.begin("/v1/completions", `{"prompt":["a","b","c"],"max_tokens":1}`)
		all = append(all, c)
	}
	for _, c := range all {
		if a := <-c; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	r.settled()
	seen := map[int64]int{}
	for _, w := range r.sim.Workers() {
		for _, q := range w.Requests() {
			for _, room := range q.Rooms {
				if room < 1<<20 {
					t.Errorf("room %d is in the range of the engine's own", room)
				}
				seen[room]++
			}
		}
	}
	if len(seen) != 150 {
		t.Errorf("%d different rooms, want 150", len(seen))
	}
	for room, n := range seen {
		if n != 2 {
			t.Errorf("room %d was seen %d times, want once on each side", room, n)
		}
	}
}

// What an engine is sent of a client's headers.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		r := newRig(t, pd(rigOptions{config: func(c *config.Config) {
			if !pass {
				c.Auth.APIKeys = []config.Secret{"of-clients"}
			}
		}}))
		if a := r.chat("", "Authorization", "Bearer secret", "Traceparent", "00-1-2-01", "X-Custom", "kept", "Cookie", "a=b",
			"X-Forwarded-For", "1.2.3.4", "X-Smg-Anything", "1", "X-Sluice-Anything", "1", "X-Data-Parallel-Rank", "0",
			"Accept-Encoding", "gzip", "Connection", "X-Hop", "X-Hop", "1", "Te", "trailers", "Origin", "http://x"); a.status != 200 {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		r.settled()
		for _, w := range r.sim.Workers() {
			h := w.Requests()[0].Header
			var names []string
			for name := range h {
				names = append(names, name)
			}
			slices.Sort(names)
			want := []string{"Content-Length", "Content-Type", "Host", "Traceparent", "User-Agent", "X-Custom", "X-Request-Id"}
			if pass {
				want = append([]string{"Authorization"}, want...)
			}
			if !slices.Equal(names, want) {
				t.Errorf("%s was sent %q, want %q", w.ID(), names, want)
			}
			if h.Get("Traceparent") != "00-1-2-01" || h.Get("X-Custom") != "kept" {
				t.Errorf("values: %v", h)
			}
		}
	}
}

// What a client is sent of an engine's headers.
func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 422} {
		r := newRig(t, pd(rigOptions{}))
		r.sim.Decode(0).SetFault(sim.Fault{Status: status, Header: http.Header{
			"X-Smg-Error-Code": {"queue_full"}, "X-Sluice-Anything": {"1"}, "Set-Cookie": {"a=b"}, "Alt-Svc": {"h3"}, "X-Request-Id": {"theirs"},
			"Retry-After": {"9"}, "Connection": {"X-Hop, Retry-Elsewhere"}, "X-Hop": {"1"}, "Retry-Elsewhere": {"2"},
		}})
		a := r.chat("")
		for _, name := range []string{"X-Smg-Error-Code", "X-Sluice-Anything", "Set-Cookie", "Alt-Svc", "Server", "X-Hop", "Retry-Elsewhere"} {
			if v := a.header.Get(name); v != "" {
				t.Errorf("status %d: the client was sent %s: %s", a.status, name, v)
			}
		}
		if a.header.Get("X-Request-Id") == "theirs" || a.header.Get("Retry-After") != "9" {
			t.Errorf("status %d: %v", a.status, a.header)
		}
		r.settled()
	}
}

// A bare 502 with no reason while the decode engine is still loading.
func TestLoadingEnginesSaySo(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 2}))
	loading := `{"error":{"message":"the model is still loading","code":503}}`
	r.sim.Decode(0).SetFault(sim.Fault{Status: 503, Body: loading, Header: http.Header{"Retry-After": {"20"}}})
	if a := r.chat(""); a.status != 503 || a.body != loading || a.header.Get("Retry-After") != "20" {
		t.Errorf("got %d %s %v", a.status, a.body, a.header)
	}
	r.settled()
}

// A client library's own limit of some seconds a read made slow generations
// fail, with no word about which limit it was: here each has its name, and
// without one a pause is no fault.
func TestLimitsAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limits upstream.Limits
		fault  sim.Fault
		option string
		stream bool
	}{
		{upstream.Limits{Header: 100 * time.Millisecond}, sim.Fault{Delay: forever}, "--response-header-timeout-secs", false},
		{upstream.Limits{FirstByte: 100 * time.Millisecond}, sim.Fault{EarlyHeaders: true, FirstByte: forever}, "--first-byte-timeout-secs", false},
		{upstream.Limits{FirstByte: 100 * time.Millisecond}, sim.Fault{EarlyHeaders: true, FirstByte: forever}, "--first-byte-timeout-secs", true},
	} {
		r := newRig(t, rigOptions{retries: 3, breaker: firstFault, config: func(c *config.Config) { setLimits(c, tc.limits) }, sim: sim.Options{Regular: 1}})
		r.sim.Regular(0).SetFault(tc.fault)
		extra := ""
		if tc.stream {
			extra = streamed
		}
		start := time.Now()
		a := r.chat(extra)
		if a.status != 504 || a.code() != "upstream_timeout" || !strings.Contains(a.body, tc.option) || !strings.Contains(a.body, "100ms") {
			t.Errorf("%s: got %d %s", tc.option, a.status, a.body)
		}
		r.soon("it was told", start)
		r.settled()
		r.charged(r.sim.Regular(0))
		if n := asked(r.sim.Regular(0)); n != 1 {
			t.Errorf("%s: tried %d times; to wait as long again helps nobody", tc.option, n)
		}
	}
	t.Run("pauses without limits", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault}))
		r.sim.Decode(0).SetFault(sim.Fault{Delay: 150 * time.Millisecond, FirstByte: 150 * time.Millisecond, EventDelay: 100 * time.Millisecond})
		if a := r.chat(streamed); a.status != 200 || a.err != nil || !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("got %d %s %v", a.status, a.body, a.err)
		}
		r.settled()
		r.charged()
	})
}
