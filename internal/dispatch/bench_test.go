//go:build unix

package dispatch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
)

// cannedEngine answers every POST with the same bytes, every GET with an empty
// object, and does next to nothing else, so that what is measured is the router.
func cannedEngine(b *testing.B, answer string) string {
	info := []byte("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
	canned := []byte(answer)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			reply, length := info, 0
			for {
				line, err := in.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(line) == 2 {
					break
				}
				if bytes.HasPrefix(line, []byte("POST")) {
					reply = canned
				}
				if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
					length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
				}
			}
			if _, err := in.Discard(length); err != nil {
				return
			}
			if _, err := c.Write(reply); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + ln.Addr().String()
}

// sink is a client that takes everything at once.
type sink struct {
	header http.Header
	bytes  int
}

func (s *sink) Header() http.Header               { return s.header }
func (s *sink) WriteHeader(int)                   {}
func (s *sink) Write(p []byte) (int, error)       { s.bytes += len(p); return len(p), nil }
func (s *sink) FlushError() error                 { return nil }
func (s *sink) SetWriteDeadline(time.Time) error  { return nil }
func (s *sink) SetReadDeadline(_ time.Time) error { return nil }

// BenchmarkRelay is one request in a pair, from its peeked body to the last byte
// handed to the client's connection: the gate, both legs over loopback and the
// relay of the answer. The CPU time has the engines' part in it, the same
// everywhere; what a further event costs is the difference between streams.
func BenchmarkRelay(b *testing.B) {
	plain := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\ndate: Sat, 01 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%s", len(body), body)
	}
	const reply = `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`
	stream := func(events int) string {
		const event = "3e\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n\r\n"
		return "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n" +
			strings.Repeat(event, events) + "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
	}
	for _, shape := range []struct{ name, extra, prefill, decode string }{
		{"plain", "", plain(reply), plain(reply)},
		{"stream16", `,"stream":true`, stream(1), stream(16)},
		{"stream256", `,"stream":true`, stream(1), stream(256)},
	} {
		for _, o := range []struct {
			name string
			cannedOptions
		}{
			{shape.name, cannedOptions{}},
			{shape.name + "/caches", cannedOptions{caches: true}},
			{shape.name + "/caches/aggregated", cannedOptions{caches: true, aggregated: true}},
			{shape.name + "/aggregated", cannedOptions{aggregated: true}},
		} {
			b.Run(o.name, func(b *testing.B) {
				benchmarkRelay(b, cannedRouter(b, shape.prefill, shape.decode, o.cannedOptions), shape.extra)
			})
		}
	}
}

func benchmarkRelay(b *testing.B, d *Dispatcher, extra string) {
	body := []byte(chatBody(extra))
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
	w := &sink{header: http.Header{}}
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"bench"}}
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		p, err := openai.Peek(openai.RouteChatCompletions, body, openai.PeekOptions{Refuse: openai.ControlledFields})
		if err != nil {
			b.Fatal(err)
		}
		clear(w.header)
		call := &Call{Route: openai.RouteChatCompletions, Path: "/v1/chat/completions", Header: header, Peeked: p,
			Free: p.Release, ID: "0123456789abcdef", Arrived: time.Now()}
		d.Serve(w, r, call)
		if call.Record.Status != http.StatusOK || call.Record.Reason != reasonOK {
			b.Fatalf("%+v", call.Record)
		}
	}
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(w.bytes)/float64(b.N), "answer-B/op")
}

// cannedOptions are which router stands before canned engines.
type cannedOptions struct {
	caches     bool // it knows what they have cached, and chooses by it
	aggregated bool // one engine runs whole requests
}

// cannedRouter is a dispatcher before canned engines, one for each leg.
func cannedRouter(b *testing.B, prefill, decode string, o cannedOptions) *Dispatcher {
	name, index := policy.RoundRobin, (*kv.Index)(nil)
	if o.caches {
		name, index = policy.CacheAware, kv.New(kv.Options{})
	}
	newPolicy, err := policy.New(name, 1)
	if err != nil {
		b.Fatal(err)
	}
	clock := admission.NewSystemClock()
	gate := admission.NewGate(admission.Options{Limits: admission.Limits{PrefillSlots: 64, QueueSize: 100, QueueTimeout: time.Minute},
		NewPolicy: newPolicy, HealthInterval: time.Second}, clock, nil)
	cfg := configtest.New(func(c *config.Config) {
		c.Fleet.PDDisaggregation, c.Admission.PrefillMaxInflight, c.Admission.ReserveOutputTokens = !o.aggregated, 64, 0
		c.Health.Interval, c.Timeouts.Request, c.Server.SSEKeepalive, c.Retry.Disabled = time.Hour, time.Hour, 0, true
	})
	fl := fleet.New(gate, fleet.Options{Config: cfg, Index: index}, clock)
	d := New(gate, clock, fl, Options{Config: cfg, Index: index},
		NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	b.Cleanup(func() {
		if err := d.Wait(context.Background()); err != nil {
			b.Error(err)
		}
		fl.Close()
		gate.Close()
	})
	specs := []fleet.WorkerSpec{
		{URL: cannedEngine(b, prefill), Type: config.WorkerPrefill, ModelID: "sim-model", BootstrapPort: 8998},
		{URL: cannedEngine(b, decode), Type: config.WorkerDecode, ModelID: "sim-model"},
	}
	serve := func() bool {
		return gate.Candidates(admission.RolePrefill) > 0 && gate.Candidates(admission.RoleDecode) > 0
	}
	if o.aggregated {
		specs = []fleet.WorkerSpec{{URL: cannedEngine(b, decode), Type: config.WorkerRegular, ModelID: "sim-model"}}
		serve = func() bool { return gate.Candidates(admission.RoleRegular) > 0 }
	}
	for _, s := range specs {
		if _, _, err := fl.Add(context.Background(), s); err != nil {
			b.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); !serve(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the engines are no candidates")
		}
	}
	return d
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
