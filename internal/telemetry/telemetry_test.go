package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// blockable is an output like a terminal that was stopped: it takes nothing
// until it is let go.
type blockable struct {
	entered chan struct{} // of one: a write has begun
	let     chan struct{} // closed: writes pass

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func newBlockable() *blockable {
	return &blockable{entered: make(chan struct{}, 1), let: make(chan struct{})}
}

func (b *blockable) Write(p []byte) (int, error) {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.let
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *blockable) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String()
}

// A blocked standard error once stalled every request that wanted to log.
func TestBlockedOutputStallsNobodyAndDropsAreCounted(t *testing.T) {
	out := newBlockable()
	l := NewLog(LogOptions{Out: out, MaxPending: 2000})
	l.Info("first")
	<-out.entered
	for range 100 {
		l.Info("a line of some length, to fill what may be pending")
	}
	if l.Dropped() == 0 || l.Dropped() == 100 {
		t.Fatalf("dropped %d of 100 lines, want some of them", l.Dropped())
	}
	if got := testutil.ToFloat64(l); got != float64(l.Dropped()) {
		t.Errorf("the metric says %v, dropped are %d", got, l.Dropped())
	}
	dropped := l.Dropped()
	close(out.let)
	if !l.Close(10 * time.Second) {
		t.Fatal("the log did not close")
	}
	if got := uint64(strings.Count(out.String(), "a line of some length")); got+dropped != 100 {
		t.Errorf("%d lines written and %d dropped, want 100 together", got, dropped)
	}
	if got := strings.Count(out.String(), "msg=first"); got != 1 {
		t.Errorf("the first line is there %d times", got)
	}
	l.Info("after the end")
	if strings.Contains(out.String(), "after the end") {
		t.Error("a closed log wrote a line")
	}
}

// Who has no metrics must learn of the gap from the log itself.
func TestDroppedLinesAreToldOnceTheOutputTakesLinesAgain(t *testing.T) {
	out := newBlockable()
	l := NewLog(LogOptions{Out: out, MaxPending: 300})
	l.Info("first")
	<-out.entered
	for range 20 {
		l.Info("a line of some length, to fill what may be pending")
	}
	dropped := l.Dropped()
	close(out.let)
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(out.String(), "log lines were dropped") {
		if time.Now().After(deadline) {
			t.Fatalf("%d lines were dropped and the log does not say so:\n%s", dropped, out)
		}
		time.Sleep(time.Millisecond)
	}
	l.Close(10 * time.Second)
}

func TestCloseDoesNotWaitForAnOutputThatHangs(t *testing.T) {
	out := newBlockable()
	l := NewLog(LogOptions{Out: out})
	l.Info("first")
	<-out.entered
	if l.Close(time.Millisecond) {
		t.Error("Close says that all is written, while the output hangs")
	}
	close(out.let)
	<-l.w.ended
}

func TestAccessLine(t *testing.T) {
	a := AccessLine{
		ID: "abc", Method: "POST", Route: "chat_completions", Model: "m\nfake=1", Prefill: "http://p@0", Decode: "http://d",
		Attempts: 2, Queued: 1500 * time.Microsecond, Encoded: 2 * time.Millisecond, TTFT: 20 * time.Millisecond, Total: 3 * time.Second,
		Status: 502, Reason: "upstream_failed", BytesIn: 10, BytesOut: 20, Err: errors.New("it broke"),
		PromptTokens: 30, OutputTokens: 4, CacheWhy: "load", CacheBest: 25, CacheChosen: 16, CacheReported: -1,
		PrefixHashes: []byte("a-_9"),
	}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		l := NewLog(LogOptions{Out: &out, JSON: asJSON})
		l.Access(&a)
		l.Access(&AccessLine{Level: slog.LevelDebug})
		l.Close(10 * time.Second)
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("want one line, got %q", out.String())
		}
		if !asJSON {
			want := `msg=request id=abc method=POST route=chat_completions model="m fake=1" prefill=http://p@0 decode=http://d attempts=2 queue_ms=1.5 encode_ms=2 ttft_ms=20 total_ms=3000 status=502 reason=upstream_failed bytes_in=10 bytes_out=20 prompt_tokens=30 output_tokens=4 cache_why=load cache_best=25 cache_chosen=16 prefix_hashes=a-_9 error="it broke"` + "\n"
			if !strings.HasSuffix(out.String(), want) {
				t.Errorf("got  %s\nwant …%s", out.String(), want)
			}
			continue
		}
		var m map[string]any
		if err := json.Unmarshal(out.Bytes(), &m); err != nil || m["queue_ms"] != 1.5 || m["prefix_hashes"] != "a-_9" || m["prompt_tokens"] != 30.0 || m["status"] != 502.0 {
			t.Errorf("%v: %v", err, m)
		}
	}
}

// TestAccessModes: each mode writes the lines that its name says, whatever the log's
// level.
func TestAccessModes(t *testing.T) {
	for mode, want := range map[AccessMode]int{"": 3, AccessAll: 3, AccessFailures: 1, AccessOff: 0} {
		var out bytes.Buffer
		l := NewLog(LogOptions{Out: &out, Level: slog.LevelDebug, Access: mode})
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
			l.Access(&AccessLine{ID: "a", Level: level})
		}
		l.Close(10 * time.Second)
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("mode %q: %d lines, want %d", mode, got, want)
		}
	}
}

// TestTimesInJSON: slog would write nanoseconds, which nobody reads as such.
func TestTimesInJSON(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(LogOptions{Out: &out, JSON: true})
	l.Info("a", "timeout", 1500*time.Millisecond)
	l.Close(10 * time.Second)
	if !strings.Contains(out.String(), `"timeout":1.5}`) {
		t.Error(out.String())
	}
}

// Whatever a client calls itself, a line stays one line of its form.
func TestAccessLineOfHostileText(t *testing.T) {
	hostile := "a\"b\\c=d e\n\x00\x7f\xff\u2028💧" + strings.Repeat("x", 300)
	a := AccessLine{ID: "id", Method: hostile, Route: hostile, Model: hostile, Reason: "ok", Err: errors.New(hostile)}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		l := NewLog(LogOptions{Out: &out, JSON: asJSON})
		l.Access(&a)
		l.Close(10 * time.Second)
		if got := out.String(); strings.Count(got, "\n") != 1 || strings.ContainsAny(strings.TrimSuffix(got, "\n"), "\x00\x7f\r\n") {
			t.Errorf("got %q", got)
		}
		var m map[string]any
		if err := json.Unmarshal(out.Bytes(), &m); asJSON && (err != nil || m["id"] != "id" || m["msg"] != "request") {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}

func TestParseLevel(t *testing.T) {
	for s, want := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		if got, err := ParseLevel(s); got != want || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if _, err := ParseLevel("loud"); err == nil || !strings.Contains(err.Error(), `"loud"`) {
		t.Errorf("loud: %v", err)
	}
}

func TestMetricsPage(t *testing.T) {
	reg := NewRegistry()
	l := Discard()
	reg.MustRegister(NewLog(LogOptions{Out: io.Discard}).closed(t))
	w := httptest.NewRecorder()
	MetricsHandler(reg, l.Logger).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, name := range []string{"go_goroutines", "process_cpu_seconds_total", "sluice_log_lines_dropped_total 0"} {
		if !strings.Contains(w.Body.String(), "\n"+name) {
			t.Errorf("%s is missing in the page", name)
		}
	}
}

func (l *Log) closed(t *testing.T) *Log {
	t.Cleanup(func() { l.Close(10 * time.Second) })
	return l
}

func BenchmarkAccess(b *testing.B) {
	l := NewLog(LogOptions{Out: io.Discard})
	defer l.Close(time.Second)
	a := AccessLine{ID: "0123456789abcdef", Method: "POST", Route: "chat_completions", Model: "meta/llama", Prefill: "http://10.0.0.1:30000",
		Decode: "http://10.0.0.2:30000", Attempts: 1, Queued: time.Microsecond, TTFT: time.Millisecond, Total: time.Second, Status: 200, Reason: "ok"}
	b.ReportAllocs()
	for b.Loop() {
		l.Access(&a)
	}
}

// brokenWriter is a client that left.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A scraper that leaves was a warning for each family of metrics.
func TestACutScrapeIsOneLine(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	scrapes(NewRegistry(), log).ServeHTTP(brokenWriter{httptest.NewRecorder()}, r)
	if n := strings.Count(out.String(), "\n"); n != 1 || strings.Contains(out.String(), "WARN") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}
