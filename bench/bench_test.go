package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers every request on every connection with the bytes that answer
// gives for it.
func serve(t *testing.T, answer func(body string) string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-conns })
	go func() {
		defer close(conns)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					if _, err := io.WriteString(c, answer(string(body))); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func counted(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body)
}

// chunked cuts the body into chunks of so many bytes.
func chunked(body string, size int) string {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	b.WriteString("0\r\n\r\n")
	return b.String()
}

func events(n int) string {
	return strings.Repeat("data: {\"x\":1}\n\n", n-1) + ": a comment is no event\n\n" + "data: [DONE]\n\n"
}

var (
	jsonShape   = shape{tokens: 3}
	streamShape = shape{tokens: 3, stream: true}
)

const rightJSON = `{"usage":{"completion_tokens":3,"x":1}}`

// What counts as a right answer, and what does not: a harness that takes a
// broken answer for a fast one measures nothing.
func TestAnswersAreJudged(t *testing.T) {
	right := events(eventsOf(3))
	for _, c := range []struct {
		name   string
		shape  shape
		answer string
		err    string // part of it; "" means right
	}{
		{"json", jsonShape, counted(200, rightJSON), ""},
		{"json in chunks", jsonShape, chunked(rightJSON, 7), ""},
		{"json of other length", jsonShape, counted(200, strings.Replace(rightJSON, "3", "4", 1)), "completion_tokens"},
		{"error", jsonShape, counted(503, `{"error":"no"}`), "status 503"},
		{"stream", streamShape, chunked(right, 1<<10), ""},
		{"stream byte by byte", streamShape, chunked(right, 1), ""},
		{"stream cut anywhere", streamShape, chunked(right, 11), ""},
		{"stream with a length", streamShape, counted(200, right), ""},
		{"an event less", streamShape, chunked(events(eventsOf(3)-1), 64), "5 events, want 6"},
		{"no end", streamShape, chunked(strings.TrimSuffix(right, "data: [DONE]\n\n"), 64), "[DONE]"},
		{"error to a stream", streamShape, counted(429, `{"error":"full"}`), "status 429"},
		{"no framing", jsonShape, "HTTP/1.1 200 OK\r\n\r\n{}", "neither length nor chunks"},
		{"no status", jsonShape, "HTTP/1.1 OK\r\n\r\n", "status line"},
		{"bad length", jsonShape, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "header line"},
		{"bad chunk", streamShape, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunk size"},
		{"endless header", jsonShape, "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2*maxHeader), "header of more"},
		{"endless chunk line", streamShape, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1", 2*readBuffer), "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := serve(t, func(string) string { return c.answer })
			call := routerTarget("x", addr, nil).caller(0, c.shape, time.Now().Add(30*time.Second))
			defer call.close()
			_, _, err := call.call()
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
		})
	}
}

// A connection that ends in the middle of an answer is a wrong answer.
func TestCutAnswerIsWrong(t *testing.T) {
	whole := chunked(events(eventsOf(3)), 40)
	for n := range len(whole) {
		client, server := net.Pipe()
		go func() {
			_, _ = io.WriteString(server, whole[:n])
			server.Close()
		}()
		c := newConn(client)
		if _, err := c.receive(&answer{want: streamShape.want()}); err == nil {
			t.Fatalf("an answer cut after %d of %d bytes was taken", n, len(whole))
		}
		client.Close()
	}
}

func TestClosedLoop(t *testing.T) {
	addr := serve(t, func(body string) string {
		if strings.Contains(body, `"stream":true`) {
			return chunked(events(eventsOf(3)), 100)
		}
		return counted(200, rightJSON)
	})
	for _, l := range []load{
		{shape: jsonShape, clients: 3, window: 50 * time.Millisecond},
		{shape: streamShape, clients: 3, window: 50 * time.Millisecond},
		{shape: streamShape, clients: 3, rate: 300, window: 50 * time.Millisecond},
	} {
		r, err := l.run(t.Context(), routerTarget("x", addr, nil))
		if err != nil {
			t.Fatal(err)
		}
		if r.errors > 0 {
			t.Errorf("%+v: %d errors, the first: %v", l, r.errors, r.firstErr)
		}
		if len(r.first) != r.requests || len(r.total) != r.requests {
			t.Errorf("%+v: %d first bytes and %d ends of %d requests", l, len(r.first), len(r.total), r.requests)
		}
		for i := range r.total {
			if r.first[i] <= 0 || i > 0 && r.total[i] < r.total[i-1] {
				t.Fatalf("%+v: times %v %v", l, r.first, r.total)
			}
		}
	}
}

// A router that only fails ends the run soon, with its first error.
func TestFailuresEndClients(t *testing.T) {
	addr := serve(t, func(string) string { return counted(500, "broken") })
	r, err := load{shape: jsonShape, clients: 2, window: 300 * time.Millisecond}.run(t.Context(), routerTarget("x", addr, nil))
	if err != nil {
		t.Fatal(err)
	}
	if r.errors == 0 || r.errors > 2*maxFailures || r.firstErr == nil {
		t.Fatalf("%d errors, the first: %v", r.errors, r.firstErr)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	addr := serve(t, func(string) string { return counted(200, rightJSON) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := load{shape: jsonShape, clients: 2, window: time.Hour}.run(ctx, routerTarget("x", addr, nil))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
}

// Both legs carry the same room, and each request a new one.
func TestDirectSendsBothLegs(t *testing.T) {
	rooms := make(chan string, 100)
	engine := func(role string) func(string) string {
		return func(body string) string {
			_, room, _ := strings.Cut(body, `"bootstrap_room":`)
			room, _, _ = strings.Cut(room, "}")
			if !strings.Contains(body, `"bootstrap_host":"127.0.0.1","bootstrap_port":8998,`) {
				room = "no bootstrap: " + body
			}
			rooms <- role + room
			return counted(200, rightJSON)
		}
	}
	f := &simFleet{
		prefill: []worker{{addr: serve(t, engine("p")), bootstrapPort: 8998}},
		decode:  []worker{{addr: serve(t, engine("d"))}},
	}
	call := directTarget(f).caller(0, jsonShape, time.Now().Add(30*time.Second))
	defer call.close()
	seen := map[string]bool{}
	for range 5 {
		if _, _, err := call.call(); err != nil {
			t.Fatal(err)
		}
		legs := map[byte]string{}
		for range 2 {
			x := <-rooms
			legs[x[0]] = x[1:]
		}
		if legs['p'] != legs['d'] || len(legs['p']) != roomDigits || seen[legs['p']] {
			t.Fatalf("rooms %q after %v", legs, seen)
		}
		seen[legs['p']] = true
	}
}

func TestStreamsStayOpen(t *testing.T) {
	addr := serve(t, func(string) string { return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n" })
	open, err := openStreams(addr, streamShape, 50)
	if err != nil || len(open) != 50 {
		t.Fatalf("%d streams, error %v", len(open), err)
	}
	for _, c := range open {
		c.Close()
	}
}

func TestScenarios(t *testing.T) {
	names := map[string]bool{}
	all := scenarios()
	for _, s := range all {
		if names[s.name] || s.name == "" {
			t.Errorf("scenario %q twice", s.name)
		}
		names[s.name] = true
		if (s.kind == kindGrowth) != (s.few != size{}) {
			t.Errorf("%s compares %v workers with %v", s.name, s.size, s.few)
		}
	}
	n := 0
	for _, g := range grouped(all) {
		n += len(g)
		for _, s := range g {
			if s.setup != g[0].setup || s.fresh() && len(g) > 1 {
				t.Errorf("%s shares routers with %s", s.name, g[0].name)
			}
		}
	}
	if n != len(all) {
		t.Errorf("%d scenarios in groups, want %d", n, len(all))
	}
}

// The tables tell medians of rounds, ratios within rounds, and of each goal
// whether it was met.
func TestReport(t *testing.T) {
	of := func(name string, x ...sample) *outcome {
		for _, s := range scenarios() {
			if s.name == name {
				return &outcome{scenario: s, samples: map[string][]sample{ours: x[:len(x)/3], peer: x[len(x)/3 : 2*len(x)/3], direct: x[2*len(x)/3:]}}
			}
		}
		t.Fatalf("no scenario %s", name)
		return nil
	}
	cpu := func(x float64) sample { return sample{cpu: x, perSecond: 1000, total50: x / 100} }
	first := func(x float64) sample { return sample{first50: x, first99: 2 * x} }
	growth := of("growth/256", cpu(50), cpu(90), cpu(0), cpu(200), cpu(300), cpu(0), cpu(0), cpu(0), cpu(0))
	growth.samples[withFew(ours)] = []sample{cpu(40), cpu(45), cpu(100)}
	growth.samples[ours] = []sample{cpu(50), cpu(60), cpu(150)}
	var b strings.Builder
	write(&b, environment{date: "today"}, []*outcome{
		of("pd-small/2", cpu(50), cpu(60), cpu(1000), cpu(200), cpu(240), cpu(2000), cpu(0), cpu(0), cpu(0)),
		growth,
		of("first-1/2", first(0.3), first(0.9), first(0.1)),
		of("streams-1000/2", sample{memory: 41}, sample{memory: 100}, sample{}),
		of("idle/500", sample{memory: 50, cpu: 1}, sample{memory: 90, cpu: 7}, sample{}),
	})
	report := strings.Join(strings.Fields(b.String()), " ") // columns are as wide as they are
	for _, want := range []string{
		"| 2+2 | 32 | 1000 | 1000 | 1000 | 60 | 240 | 0.25 | ≤ 0.4 |",
		"| pd-small/2: CPU per request, of smg's | 0.4 | 0.25 | yes |",
		"| 2+2, 256+256 | 45 | 60 | 1.33 |",
		"| growth/256: CPU per request with 256+256 workers, of that with 2+2 | 1.25 | 1.33 | no |",
		"| first-1/2: added first byte p50, of smg's | 0.5 | 0.25 | yes |",
		"| streams-1000/2: KiB per silent stream | 40 | 41.00 | no |",
		"| idle/500: % of a core at rest | 2 | 1.00 | yes |",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in", want)
		}
	}
	if t.Failed() {
		t.Log(b.String())
	}
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-rounds", "0"}, {"-duration", "0s"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"-list", "-scenario", "^idle"}, &out, io.Discard); err != nil || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("list %q, error %v", out.String(), err)
	}
	if err := run(t.Context(), []string{"-scenario", "none such"}, io.Discard, io.Discard); err == nil {
		t.Error("a scenario that does not exist was taken")
	}
}
