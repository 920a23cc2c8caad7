package sim

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	plain  = `{"messages":[{"role":"user","content":"x"}],"max_tokens":4}`
	stream = `{"messages":[{"role":"user","content":"x"}],"max_tokens":4,"stream":true}`
)

// with adds the field "sim" to a body.
func with(body, fault string) string {
	return strings.TrimSuffix(body, "}") + `,"sim":"` + fault + `"}`
}

func TestFaultsBreakAnswersWhereTheySay(t *testing.T) {
	f := start(t, Options{Regular: 1})
	ctx, w := testContext(t), f.Regular(0)
	for _, x := range []struct {
		fault, body string
		status      int // 0: no answer comes
		err         error
		events      int
		outcome     Outcome
	}{
		{"reset=request", plain, 0, syscall.ECONNRESET, 0, Faulted},
		{"reset=body", plain, 0, syscall.ECONNRESET, 0, Faulted},
		{"close=body", plain, 0, io.EOF, 0, Faulted},
		{"reset=headers", stream, 200, syscall.ECONNRESET, 0, Faulted},
		{"do=reset,at=event,after=3", stream, 200, syscall.ECONNRESET, 3, Faulted},
		{"do=close,at=event,after=3", stream, 200, io.ErrUnexpectedEOF, 3, Faulted},
		{"do=end,at=event,after=3", stream, 200, nil, 3, Faulted},
		{"do=close,at=inside,after=2", stream, 200, io.ErrUnexpectedEOF, 2, Faulted},
		{"do=end,at=end", stream, 200, nil, 6, Faulted},
		{"close=inside", plain, 200, io.ErrUnexpectedEOF, 0, Faulted},
		{"status=503,retry_after=7", stream, 503, nil, 0, Complete},
		{"kind=garbage", plain, 0, nil, 0, Faulted},
		{"kind=truncated", plain, 200, io.ErrUnexpectedEOF, 0, Faulted},
		{"kind=huge-header", plain, 200, nil, 0, Faulted},
		{"kind=eof", plain, 200, nil, 0, Faulted},
		{"kind=error-in-200", plain, 200, nil, 0, Complete},
		{"kind=error-event", stream, 200, nil, 1, Complete},
		{"kind=events-for-json", plain, 200, nil, 6, Complete},
		{"kind=json-for-events", stream, 200, nil, 0, Complete},
		{"kind=1xx", plain, 200, nil, 0, Complete},
		{"write_size=1", stream, 200, nil, 6, Complete},
	} {
		t.Run(x.fault, func(t *testing.T) {
			w.ResetLog()
			c := client(t)
			c.Transport.(*http.Transport).MaxResponseHeaderBytes = 4 << 20
			// In a header, so that it applies before the body is read.
			req, _ := http.NewRequestWithContext(ctx, "POST", w.URL()+chatPath, strings.NewReader(x.body))
			req.Header.Set("X-Sim-Fault", x.fault)
			var got reply
			resp, err := c.Do(req)
			if err != nil {
				got.err = err
			} else {
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				got = reply{resp.StatusCode, resp.Header, string(b), err}
			}
			if got.status != x.status || (x.err != nil && !errors.Is(got.err, x.err)) || (x.err == nil && x.status > 0 && got.err != nil) {
				t.Errorf("status %d, error %v; want %d, %v", got.status, got.err, x.status, x.err)
			}
			if n := strings.Count(got.body, "data: {"); x.err != syscall.ECONNRESET && !strings.Contains(x.fault, "inside") && n != x.events {
				t.Errorf("%d events in %q, want %d", n, got.body, x.events)
			}
			if err := w.WaitEnded(ctx, 1); err != nil {
				t.Fatal(err)
			}
			if r := w.Requests()[0]; r.Outcome != x.outcome || r.Events != x.events || r.Fault != x.fault {
				t.Errorf("log: outcome %q, %d events, fault %q", r.Outcome, r.Events, r.Fault)
			}
			if strings.Contains(x.fault, "retry_after") && got.header.Get("Retry-After") != "7" {
				t.Errorf("headers %v", got.header)
			}
		})
	}
}

func TestChunkLineFaultSendsUntilTheClientCloses(t *testing.T) {
	f := start(t, Options{Regular: 1})
	ctx, w := testContext(t), f.Regular(0)
	got := post(ctx, client(t), w.URL()+chatPath, with(plain, "kind=chunk-line"))
	if got.status != 200 || got.err == nil {
		t.Errorf("a client took %+v", got)
	}
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestFaultAppliesByCountSkipAndRole(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	w.SetFault(Fault{Status: 503, Skip: 1, Count: 2, BodySize: 5 << 20})
	var got []int
	for range 5 {
		r := post(ctx, c, w.URL()+chatPath, plain)
		got = append(got, r.status)
		if r.status == 503 && len(r.body) != 5<<20 {
			t.Errorf("error body of %d bytes", len(r.body))
		}
	}
	if want := []int{200, 503, 503, 200, 200}; !equal(got, want) {
		t.Errorf("statuses %v, want %v", got, want)
	}
	if r := post(ctx, c, w.URL()+chatPath, with(plain, "on=prefill,status=500")); r.status != 200 {
		t.Errorf("another role's fault struck: %+v", r)
	}
	w.SetFault(Fault{Path: "/model_info", Status: 404})
	if r := get(ctx, c, w.URL()+"/model_info"); r.status != 404 {
		t.Errorf("model_info: %+v", r)
	}
	w.ClearFaults()
	if r := get(ctx, c, w.URL()+"/model_info"); r.status != 200 {
		t.Errorf("model_info: %+v", r)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func get(ctx context.Context, c *http.Client, url string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return reply{err: err}
	}
	return send(c, req)
}

func TestFaultsOfNewConnections(t *testing.T) {
	f := start(t, Options{Regular: 1})
	ctx, w := testContext(t), f.Regular(0)
	w.SetFault(Fault{Do: Reset, At: AtAccept, Count: 1})
	if r := get(ctx, client(t), w.URL()+"/model_info"); r.err == nil {
		t.Errorf("a connection reset at accept answered %+v", r)
	}
	w.SetFault(Fault{Do: Freeze, At: AtAccept, Count: 1})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if r := get(short, client(t), w.URL()+"/model_info"); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("a frozen connection answered %+v", r)
	}
	if r := get(ctx, client(t), w.URL()+"/model_info"); r.status != 200 {
		t.Errorf("the next connection: %+v", r)
	}
}

func TestEarlyAnswerWithoutReadingTheBody(t *testing.T) {
	f := start(t, Options{Regular: 1})
	w := f.Regular(0)
	w.SetFault(Fault{Status: 413, Early: true})
	c, err := net.Dial("tcp", w.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	// The body never comes.
	if _, err := io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 413 {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestFreezeRequestIsSilentUntilTheClientLeaves(t *testing.T) {
	f := start(t, Options{Regular: 1})
	ctx, w := testContext(t), f.Regular(0)
	gone, leave := context.WithCancel(ctx)
	ch := make(chan reply, 1)
	c := client(t)
	go func() { ch <- post(gone, c, w.URL()+chatPath, with(stream, "do=freeze,at=event,after=2")) }()
	if err := w.WaitRequests(ctx, 1); err != nil {
		t.Fatal(err)
	}
	leave()
	<-ch
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if r := w.Requests()[0]; r.Outcome != ClientGone {
		t.Errorf("log: %+v", r)
	}
}

func TestFrozenWorkerAcceptsAndSaysNothing(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{HealthDelay: -1}})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	if r := get(ctx, c, w.URL()+"/health"); r.status != 200 {
		t.Fatal(r)
	}
	w.Freeze()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if r := get(short, c, w.URL()+"/health"); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("a frozen worker answered %+v", r)
	}
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, w.URL()+chatPath, plain) }()
	if err := w.Wait(ctx, func(s Stats) bool { return s.Conns >= 1 }); err != nil {
		t.Fatal(err)
	}
	w.Thaw()
	if r := <-ch; r.status != 200 {
		t.Errorf("after the thaw: %+v", r)
	}
	// A frozen worker can be killed.
	w.Freeze()
	go func() { ch <- post(ctx, c, w.URL()+chatPath, plain) }()
	if err := w.Wait(ctx, func(s Stats) bool { return s.Conns >= 1 }); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	if r := <-ch; r.err == nil {
		t.Errorf("a killed worker answered %+v", r)
	}
}

func TestEarlyHeadersAndKeepAlive(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	r := room()
	req, _ := http.NewRequestWithContext(ctx, "POST", p.URL()+chatPath,
		strings.NewReader(with(pd(p, r, ""), "early_headers,keep_alive=1ms")))
	resp, err := c.Do(req) // the headers come before the decode leg
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	one := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, one); err != nil || one[0] != ' ' {
		t.Errorf("first byte %q, %v", one, err)
	}
	if x := post(ctx, c, d.URL()+chatPath, pd(p, r, "")); x.status != 200 {
		t.Fatal(x)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || content(t, string(b)) != " t1" {
		t.Errorf("body %q, %v", b, err)
	}
}

func TestFaultSetsTheAnswer(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	odd := "{ \"messages\":[],\"x\":1e3,\"y\":0.10 ,\"sim\":\"echo\"}\n"
	if r := post(ctx, c, w.URL()+chatPath, odd); r.body != odd {
		t.Errorf("echo %q, want %q", r.body, odd)
	}
	if r := post(ctx, c, w.URL()+chatPath, `{"messages":[],"sim":{"tokens":["你","好, \"x\""]}}`); content(t, r.body) != `你好, "x"` {
		t.Errorf("tokens: %+v", r)
	}
	r := post(ctx, c, w.URL()+chatPath, `{"messages":[],"stream":true,"sim":{"events":["data: {\"choices\":[]}\n\n",": note\n\n"]}}`)
	if r.body != "data: {\"choices\":[]}\n\n: note\n\n" {
		t.Errorf("events: %q", r.body)
	}
	if r := post(ctx, c, w.URL()+chatPath, `{"messages":[],"stream":true,"max_tokens":1,"sim":{"token_size":65536}}`); len(r.body) < 65536 {
		t.Errorf("padded token: %d bytes", len(r.body))
	}
}

func TestParseFaultRefuses(t *testing.T) {
	for _, s := range []string{"nonsense", "status=99", "delay=fast", "do=explode", "at=moon", "on=encoder", "after=-1", "header=x", "kind=odd", "delay=-1s"} {
		if _, err := ParseFault(s); err == nil {
			t.Errorf("ParseFault(%q) took it", s)
		}
	}
	f, err := ParseFaultJSON([]byte(`{"status":503,"delay":"20ms","header":["A:1","B:2"],"body":"a,b"}`))
	if err != nil || f.Status != 503 || f.Delay != 20*time.Millisecond || f.Header.Get("B") != "2" || f.Body != "a,b" {
		t.Errorf("got %+v, %v", f, err)
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("status=503,retry_after=1,reset=headers", `{"do":"reset","after":3,"events":["a","b"]}`)
	f.Fuzz(func(_ *testing.T, text, object string) {
		_, _ = ParseFault(text)
		_, _ = ParseFaultJSON([]byte(object))
	})
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		plain, stream, `{"prompt":["a",[1,2]],"n":2}`, `{"text":["a"],"bootstrap_room":[1,2]}`, `{"input_ids":[[1],[2]]}`,
		`{"messages":[],"bootstrap_room":9223372036854775807,"bootstrap_port":null}`, `{"messages":[]`, `[[[[`, `{"prompt":[]}`,
		`{"sampling_params":[{"n":2}],"text":"\ud800"}`, "{\"text\":\"\xff\"}", `{"n":1e3,"prompt":""}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, a := range []api{chat, completions, generate} {
			r, err := parseRequest(a, body)
			if err != nil {
				asWire(err).body()
				continue
			}
			if len(r.prompts) == 0 || r.n < 1 {
				t.Errorf("accepted without a prompt: %+v", r)
			}
			_ = r.checkLegs()
			for p := range min(len(r.prompts), 8) {
				r.legs(p, r.n-1, true)
				r.legs(p, 0, false)
			}
		}
	})
}

// A request that is killed with its worker must not be answered with an empty 200,
// which no engine that dies could send.
func TestKilledWorkerAnswersNothing(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{FirstToken: time.Hour}}})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	for range 50 {
		replies := make(chan reply, 20)
		for range cap(replies) {
			go func() { replies <- post(ctx, c, w.URL()+chatPath, plain) }()
		}
		if err := w.WaitInflight(ctx, cap(replies)); err != nil {
			t.Fatal(err)
		}
		w.Kill()
		for range cap(replies) {
			if r := <-replies; r.err == nil {
				t.Fatalf("a killed worker answered %+v", r)
			}
		}
		if err := w.Restart(); err != nil {
			t.Fatal(err)
		}
	}
}

// A wedged scheduler leaves its server alive: what it reported stays as it was, whatever
// comes, and its requests go on when it does.
func TestWedgedSchedulerStandsStillAndItsServerDoesNot(t *testing.T) {
	t.Parallel()
	for _, backend := range []Backend{SGLang, VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend, HealthDelay: 10 * time.Millisecond, HealthTimeout: 50 * time.Millisecond}})
			w := f.Workers()[0]
			health := func() int {
				resp, err := http.Get(w.URL() + "/health")
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				return resp.StatusCode
			}
			report := func() string {
				path := map[Backend]string{SGLang: "/v1/loads", VLLM: "/metrics"}[backend]
				resp, err := http.Get(w.URL() + path)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				return regexp.MustCompile(`"timestamp":[^,]*,`).ReplaceAllString(string(b), "")
			}
			w.Wedge()
			before := report()
			answered := make(chan int, 1)
			go func() {
				resp, err := http.Post(w.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim-model","prompt":"hello","max_tokens":3}`))
				if err != nil {
					answered <- 0
					return
				}
				_ = resp.Body.Close()
				answered <- resp.StatusCode
			}()
			if err := w.WaitInflight(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if after := report(); after != before {
				t.Errorf("its report changed from %s to %s", before, after)
			}
			if got, want := health(), map[Backend]int{SGLang: 503, VLLM: 200}[backend]; got != want {
				t.Errorf("health answers %d, want %d", got, want)
			}
			select {
			case got := <-answered:
				t.Fatalf("it answered %d", got)
			default:
			}
			w.Unwedge()
			if got := <-answered; got != 200 {
				t.Errorf("after that it answered %d", got)
			}
			if health() != 200 || report() == before {
				t.Error("it did not go on")
			}
		})
	}
}

// A prompt longer than a chunk gives signs of life after each: SGLang counts the tokens,
// vLLM fills its cache and counts the prompt at its end.
func TestLongPromptIsComputedInChunks(t *testing.T) {
	t.Parallel()
	for _, backend := range []Backend{SGLang, VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend, ChunkedPrefillSize: 100, Timing: Timing{PrefillTime: 500 * time.Millisecond}}})
			w := f.Workers()[0]
			done := make(chan struct{})
			go func() {
				defer close(done)
				resp, err := http.Post(w.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim-model","max_tokens":1,"prompt":"`+strings.Repeat("abcd", 1000)+`"}`))
				if err == nil {
					_ = resp.Body.Close()
				}
			}()
			seen := map[int]bool{}
			for open := true; open; {
				select {
				case <-done:
					open = false
				case <-time.After(5 * time.Millisecond):
					s := w.scheduled()
					c := s.counts[0]
					if backend == SGLang {
						seen[c.done] = true
					} else if seen[c.uncomputed] = true; c.uncomputed > 0 && c.done > 0 {
						t.Error("a prompt is counted before it is done")
					}
				}
			}
			if len(seen) < 4 {
				t.Errorf("only %d states were seen", len(seen))
			}
		})
	}
}
