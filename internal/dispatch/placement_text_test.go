package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/tokenizer/queue"
)

// byteReader is a model whose tokens are the bytes of the text, and whose template is
// nothing.
type byteReader struct {
	// before is called before each text is read; its error is the reader's.
	before func(ctx context.Context) error
	reads  atomic.Int64
}

func (r *byteReader) texts(ctx context.Context, p *openai.Peeked, turn Turn) (all [][]uint32, err error) {
	r.reads.Add(1)
	err = turn(ctx, len(p.Body), func(ctx context.Context) (err error) {
		all, err = r.read(ctx, p)
		return err
	})
	return all, err
}

func (r *byteReader) read(ctx context.Context, p *openai.Peeked) (all [][]uint32, err error) {
	if r.before != nil {
		if err := r.before(ctx); err != nil {
			return nil, err
		}
	}
	var in struct {
		Prompt   json.RawMessage
		Input    string
		Messages []struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(p.Body, &in); err != nil {
		return nil, err
	}
	var texts []string
	var text string
	for _, m := range in.Messages {
		var s string
		_ = json.Unmarshal(m.Content, &s)
		text += s
	}
	if text += in.Input; json.Unmarshal(in.Prompt, &texts) != nil {
		var s string
		_ = json.Unmarshal(in.Prompt, &s)
		texts = []string{text + s}
	} else if in.Prompt == nil {
		texts = []string{text}
	}
	for _, text := range texts {
		ids := []uint32{}
		for _, b := range []byte(text) {
			ids = append(ids, uint32(b))
		}
		all = append(all, ids)
	}
	return all, nil
}

func (r *byteReader) Read(ctx context.Context, p *openai.Peeked, name string, turn Turn) (*generate.Request, error) {
	ids, err := r.texts(ctx, p, turn)
	if err != nil {
		return nil, err
	}
	return &generate.Request{Route: p.Route, Model: p.Model, Prompts: ids, Samples: p.N, Stream: p.Stream}, nil
}

func (r *byteReader) Count(ctx context.Context, p *openai.Peeked, turn Turn) ([][]uint32, error) {
	return r.texts(ctx, p, turn)
}

func (r *byteReader) Answer(ctx context.Context, p *openai.Peeked, turn Turn) ([]byte, error) {
	ids, err := r.texts(ctx, p, turn)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"count":%d}`, len(ids[0])), nil
}

// textRig has engines that take the tokens of a byteReader: a pair, or one for whole requests.
func textRig(t *testing.T, pair bool, text Text, change func(o *rigOptions)) (*rig, *fakeEngines) {
	t.Helper()
	text.TakesTokens = true
	d := fakeDialect{shape: engine.Together, field: openai.FieldTransferID, tokens: true}
	engines := &fakeEngines{field: d.field.String(), legs: map[string]chan struct{}{}, saw: map[string][]string{}}
	o := rigOptions{pd: pair, dialects: engine.NewRegistry(d)}
	o.bounds.Texts = func(string) Text { return text }
	if change != nil {
		change(&o)
	}
	r := newRig(t, o)
	roles := map[string]config.WorkerType{"prefill": config.WorkerPrefill, "decode": config.WorkerDecode}
	if !pair {
		roles = map[string]config.WorkerType{"regular": config.WorkerRegular}
	}
	for role, typ := range roles {
		s := httptest.NewServer(engines.serve(role))
		t.Cleanup(s.Close)
		if _, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: s.URL, Type: typ, Backend: "fake", ModelID: "sim-model"}); err != nil {
			t.Fatal(err)
		}
	}
	r.until("all are candidates", func() bool {
		return r.gate.Candidates(typRole(roles)) > 0 && (!pair || r.gate.Candidates(admission.RoleDecode) > 0)
	})
	return r, engines
}

func typRole(roles map[string]config.WorkerType) admission.Role {
	if _, pair := roles["prefill"]; pair {
		return admission.RolePrefill
	}
	return admission.RoleRegular
}

// A request of each API goes in tokens to engines that take them, and its answer is that of
// the API, in pairs and where one worker runs all of it, streamed and not.
func TestTokensGoToEnginesThatTakeThem(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":3%s}`,
		"/v1/completions":      `{"model":"sim-model","prompt":"hi","max_tokens":3%s}`,
		"/v1/messages":         `{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":3%s}`,
		"/v1/responses":        `{"model":"sim-model","input":"hi","max_output_tokens":3%s}`,
	} {
		for _, pair := range []bool{false, true} {
			for _, extra := range []string{"", streamed} {
				t.Run(fmt.Sprint(path, " pair=", pair, extra), func(t *testing.T) {
					t.Parallel()
					r, engines := textRig(t, pair, Text{Reader: new(byteReader)}, nil)
					a := r.do(t.Context(), path, fmt.Sprintf(body, extra))
					if a.status != http.StatusOK || a.err != nil || !saidMet(path, a.body) {
						t.Fatalf("%d %v %s", a.status, a.err, a.body)
					}
					rec := r.waitRecord(0)
					if rec.Reason != reasonOK || rec.Encoded <= 0 || rec.TTFT == 0 {
						t.Errorf("%+v", rec)
					}
					r.idle()
					engines.mu.Lock()
					defer engines.mu.Unlock()
					for role, bodies := range engines.saw {
						// The frame is the transfer's id and two ids of four bytes each.
						if len(bodies) != 1 || len(bodies[0]) != 40 || bodies[0][32] != 'h' || bodies[0][36] != 'i' {
							t.Errorf("%s was sent %q", role, bodies)
						}
					}
				})
			}
		}
	}
}

// Engines that are found out to take tokens only while the request waits for them get it in
// tokens all the same.
func TestTokensForEnginesThatWereNotKnown(t *testing.T) {
	t.Parallel()
	for _, pair := range []bool{false, true} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			var asked atomic.Int64
			text := Text{TakesTokens: true, Reader: new(byteReader)}
			r, _ := textRig(t, pair, text, func(o *rigOptions) {
				o.bounds.Texts = func(string) Text {
					if asked.Add(1) == 1 {
						return Text{}
					}
					return text
				}
			})
			if a := r.do(t.Context(), path, chatBody("")); a.status != http.StatusOK || !saidMet(path, a.body) {
				t.Errorf("pair %t, %s: %d %s", pair, path, a.status, a.body)
			}
			if n := asked.Load(); n < 2 {
				t.Errorf("asked %d times", n)
			}
		}
	}
}

// saidMet tells whether an answer has the fake engine's text, which comes in three pieces.
func saidMet(path, body string) bool {
	at := 0
	whole := strings.Contains(body, `"met"`)
	for _, piece := range []string{`"m"`, `"e"`, `"t"`} {
		i := strings.Index(body[at:], piece)
		if i < 0 {
			return whole
		}
		at += i
	}
	return path != ""
}

// The gate books the tokens that were counted, for engines that take tokens and for others.
func TestCountedTokensAreBooked(t *testing.T) {
	t.Parallel()
	prompt := strings.Repeat("x", 6000) // about 1500 tokens by the estimate
	for name, path := range map[string]string{"chat": "/v1/chat/completions", "batch": "/v1/completions"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := new(byteReader)
			r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, bounds: Options{Texts: func(string) Text { return Text{Reader: reader} }}})
			body, want := `{"model":"sim-model","messages":[{"role":"user","content":"`+prompt+`"}],"max_tokens":2}`, int64(6000)
			if name == "batch" {
				body, want = `{"model":"sim-model","prompt":["`+prompt+`","`+prompt+`"],"n":2,"max_tokens":2}`, 12_000
			}
			x := placed(t, r, path, body)
			if x.ticket.PromptTokens != want || !x.prompt.IsExact() {
				t.Errorf("%d tokens, exact: %v, want %d", x.ticket.PromptTokens, x.prompt.IsExact(), want)
			}
			if x.plan.counted != nil || x.answers.Load() != 0 {
				t.Errorf("%d bytes of ids are kept", x.answers.Load())
			}
			x.leave()
			if reader.reads.Load() != 1 {
				t.Errorf("it was read %d times", reader.reads.Load())
			}
		})
	}
}

// placed is a request that was placed and did not go to the gate.
func placed(t *testing.T, r *rig, path, body string) *request {
	t.Helper()
	route := map[string]openai.Route{"/v1/chat/completions": openai.RouteChatCompletions, "/v1/completions": openai.RouteCompletions}[path]
	p := mustPeekRoute(t, route, body)
	x := &request{d: &r.d.services, call: &Call{Route: route, Path: path, Peeked: p, Header: http.Header{}, Arrived: time.Now(), Memory: &countedMemory{limit: 1 << 20}}}
	x.refs.Store(1)
	x.bodyRefs.Store(1)
	if f := place(x); f != nil {
		t.Fatal(f)
	}
	return x
}

// Of engines that take text, a prompt that cannot be counted is estimated, whatever the
// reason; of engines that take tokens the request is refused with it.
func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
		code   string
		metric string
	}{
		"the client's fault": {openai.InvalidRequest("messages", "the template says no"), 400, "invalid_request", "refused"},
		"ours":               {errors.New("broken"), 500, "internal_error", "failed"},
		"too many":           {fmt.Errorf("%w: no", queue.ErrFull), 503, "buffer_full", "busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := Text{Reader: &byteReader{before: func(context.Context) error { return c.err }}}
			r, _ := textRig(t, false, text, nil)
			if a := r.chat(""); a.status != c.status || a.code() != c.code {
				t.Errorf("%d %s", a.status, a.body)
			}
			if rec := r.waitRecord(0); rec.Attempts != 0 {
				t.Errorf("%+v", rec)
			}
			plain := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, bounds: Options{Texts: func(string) Text { return text }}})
			if a := plain.chat(""); a.status != 200 {
				t.Errorf("an engine that takes text: %d %s", a.status, a.body)
			}
			if n := plain.counted("sluice_text_uncounted_total", "reason", c.metric); n != 1 {
				t.Errorf("%v are counted as %s", n, c.metric)
			}
		})
	}
}

// A client that leaves ends the reading of its text.
func TestReadingEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]bool{"tokens": true, "text": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reading, ended := make(chan struct{}, 2), make(chan error, 2)
			text := Text{Reader: &byteReader{before: func(ctx context.Context) error {
				reading <- struct{}{}
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return ctx.Err()
			}}}
			var r *rig
			if takes {
				r, _ = textRig(t, true, text, nil)
			} else {
				r = newRig(t, rigOptions{sim: sim.Options{Regular: 1}, bounds: Options{Texts: func(string) Text { return text }}})
			}
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan answer, 1)
			go func() { done <- r.do(ctx, "/v1/chat/completions", chatBody("")) }()
			<-reading
			leave()
			<-ended
			<-done
			if rec := r.waitRecord(0); rec.Reason != reasonClientGone || rec.Attempts != 0 {
				t.Errorf("%+v", rec)
			}
			r.idle()
		})
	}
}

// A client waits for the turn of its text as long as it lets its request wait, and one that
// does not wait at all is served if it need not.
func TestPatienceForTheTurn(t *testing.T) {
	t.Parallel()
	long := `{"model":"sim-model","prompt":"` + strings.Repeat("word ", 2000) + `"}`
	for _, takes := range []bool{true, false} {
		q := queue.New(1, 0)
		change := func(o *rigOptions) { o.bounds.TextQueue = q }
		text := Text{Reader: new(byteReader)}
		var r *rig
		if takes {
			r, _ = textRig(t, true, text, change)
		} else {
			o := rigOptions{sim: sim.Options{Regular: 1}, bounds: Options{Texts: func(string) Text { return text }}}
			change(&o)
			r = newRig(t, o)
		}
		if a := r.do(t.Context(), "/v1/completions", long, "X-Sluice-Max-Queue-Ms", "0"); a.status != http.StatusOK {
			t.Errorf("nobody else has text: %d %s", a.status, a.body)
		}
		begun, end := make(chan struct{}), make(chan struct{})
		go func() {
			_ = q.Do(context.Background(), "other", 1, func(context.Context) error { close(begun); <-end; return nil })
		}()
		<-begun
		for _, ms := range []string{"0", "30"} {
			a := r.do(t.Context(), "/v1/completions", long, "X-Sluice-Max-Queue-Ms", ms)
			if a.status != http.StatusTooManyRequests || a.code() != reasonDeadline {
				t.Errorf("%s ms: %d %s", ms, a.status, a.body)
			}
		}
		close(end)
		r.idle()
	}
}

// The time in which the text became tokens is taken off what the client lets its request
// wait at the gate.
func TestReadingBelongsToTheWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}})
	x := &placement{request: &request{d: &r.d.services, call: &Call{}}}
	x.call.Record.Encoded = 300 * time.Millisecond
	if left := x.waitUntil(time.Second).Sub(r.d.clock.Now()); left > 700*time.Millisecond {
		t.Errorf("%v are left of a second", left)
	}
	if at := x.waitUntil(0); at > r.d.clock.Now() || at <= 0 {
		t.Errorf("nothing is left, and the wait ends at %v", at)
	}
}

// Only long texts wait for others, each client for itself.
func TestLongTextsAreQueued(t *testing.T) {
	t.Parallel()
	q := &queueLog{}
	r, _ := textRig(t, true, Text{Reader: new(byteReader)}, func(o *rigOptions) { o.bounds.TextQueue = q })
	long := strings.Repeat("word ", 2000)
	for _, body := range []string{`{"model":"sim-model","prompt":"hi"}`, `{"model":"sim-model","prompt":"` + long + `"}`} {
		if a := r.do(t.Context(), "/v1/completions", body, "X-Client", "a"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) != 1 || !strings.HasPrefix(q.calls[0], "a 10") {
		t.Errorf("queued: %q", q.calls)
	}
}

type queueLog struct {
	mu    sync.Mutex
	calls []string // guarded by mu
}

func (q *queueLog) Do(ctx context.Context, key string, bytes int, work func(ctx context.Context) error) error {
	q.mu.Lock()
	q.calls = append(q.calls, fmt.Sprint(key, " ", bytes))
	q.mu.Unlock()
	return work(ctx)
}

// What is asked of the model's files alone is answered without an engine; what engines that
// take tokens do not have is refused, in pairs and otherwise.
func TestRoutesOfEnginesThatTakeTokens(t *testing.T) {
	t.Parallel()
	for _, pair := range []bool{false, true} {
		t.Run(fmt.Sprint("pair=", pair), func(t *testing.T) {
			t.Parallel()
			r, engines := textRig(t, pair, Text{Reader: new(byteReader)}, nil)
			for path, want := range map[string]struct {
				status int
				body   string
			}{
				"/tokenize":                 {200, `{"count":5}`},
				"/detokenize":               {200, `{"count":5}`},
				"/v1/messages/count_tokens": {200, `{"count":5}`},
				"/rerank":                   {404, "speak gRPC"},
				"/generate":                 {404, "speak gRPC"},
				"/v1/audio/transcriptions":  {404, "speak gRPC"},
			} {
				a := r.do(t.Context(), path, `{"model":"sim-model","prompt":"hello"}`)
				if a.status != want.status || !strings.Contains(a.body, want.body) {
					t.Errorf("%s: %d %s", path, a.status, a.body)
				}
			}
			r.idle()
			engines.mu.Lock()
			defer engines.mu.Unlock()
			if len(engines.saw) != 0 {
				t.Errorf("engines were sent %q", engines.saw)
			}
		})
	}
}

// Without the model's files nothing is served, and the client is told why and to come again.
func TestWithoutText(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"", "its tokenizer is not one that is known here"} {
		r, _ := textRig(t, true, Text{Missing: missing}, nil)
		for _, path := range []string{"/v1/chat/completions", "/tokenize", "/v1/embeddings"} {
			a := r.do(t.Context(), path, chatBody(""))
			if a.status != http.StatusServiceUnavailable || a.code() != "no_available_workers" || a.header.Get("Retry-After") == "" ||
				!strings.Contains(a.body, "tokenizer") || !strings.Contains(a.body, missing) {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
}

// Ids of a prompt are memory of their request until its end.
func TestTokenIDsAreCounted(t *testing.T) {
	t.Parallel()
	r, _ := textRig(t, true, Text{Reader: new(byteReader)}, nil)
	mem := &countedMemory{limit: 100 << 10}
	r.memory = mem
	body := func(n int) string { return `{"model":"sim-model","prompt":"` + strings.Repeat("a", n) + `"}` }
	if a := r.do(t.Context(), "/v1/completions", body(20<<10)); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	r.idle()
	r.until("all is given back", func() bool { return mem.held.Load() == 0 })
	if peak := mem.peak.Load(); peak < 80<<10 {
		t.Errorf("%d bytes at most", peak)
	}
	if a := r.do(t.Context(), "/v1/completions", body(30<<10)); a.status != 503 || a.code() != reasonBufferFull {
		t.Errorf("%d %s", a.status, a.body)
	}
}

type countedMemory struct {
	limit      int64
	held, peak atomic.Int64
}

func (m *countedMemory) ReserveMemory(n int) bool {
	held := m.held.Add(int64(n))
	if held > m.limit {
		m.held.Add(int64(-n))
		return false
	}
	for peak := m.peak.Load(); held > peak && !m.peak.CompareAndSwap(peak, held); peak = m.peak.Load() {
	}
	return true
}

func (m *countedMemory) ReleaseMemory(n int) { m.held.Add(int64(-n)) }
