//go:build kubernetes

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is what a client got.
type answer struct {
	id     string // of the request
	status int    // 0: no answer at all
	text   string
	failed string // an error in the body, or the event that says one
	done   bool   // the answer says that it is whole
	err    error  // of the connection
	took   time.Duration
}

func (a *answer) String() string {
	return fmt.Sprintf("request %s: status %d after %s, done %t, error %q (%v), text %q", a.id, a.status, a.took.Round(time.Millisecond), a.done, clip(a.failed), a.err, clip(a.text))
}

// question is what a client asks for.
type question struct {
	tokens int // of the answer
	stream bool
	prompt string // "": one that names the request
	model  string // "": sim-model
}

// ask sends a request and waits for its end. Every token of the answer carries the
// request's id. It checks what every answer must be: whole, with the text of this request
// and no other, or an error that the client can see.
func (r *router) ask(ctx context.Context, client *http.Client, q question) (*answer, error) {
	a := &answer{id: rand.Text()[:12]}
	start := time.Now()
	var want strings.Builder
	fault := make([]string, q.tokens)
	for i := range fault {
		token := fmt.Sprintf("%s-%d.", a.id, i)
		want.WriteString(token)
		fault[i] = "token=" + token
	}
	if q.prompt == "" {
		q.prompt = "Say " + a.id + "."
	}
	if q.model == "" {
		q.model = "sim-model"
	}
	body, err := json.Marshal(object{"model": q.model, "stream": q.stream, "max_tokens": q.tokens, "sim": strings.Join(fault, ","),
		"messages": []object{{"role": "user", "content": q.prompt}}})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", a.id)
	defer func() { a.took = time.Since(start) }()
	resp, err := client.Do(req)
	if err != nil {
		a.err = err
		return a, fmt.Errorf("no answer: %w", err)
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.readStream(resp.Body)
	} else {
		a.readWhole(resp.Body)
	}
	switch {
	case a.failed != "":
		// A stream that has begun is cut behind its error event.
		if !strings.HasPrefix(want.String(), a.text) {
			return a, errors.New("text of another request")
		}
	case a.err != nil:
		return a, fmt.Errorf("the connection broke off: %w", a.err)
	case a.status != http.StatusOK:
		return a, errors.New("a failure that says nothing")
	case !a.done:
		return a, errors.New("the answer ended without an end")
	case a.text != want.String():
		return a, fmt.Errorf("the text should be %q", want.String())
	}
	return a, nil
}

// whole tells whether the client has all of its answer.
func (a *answer) whole() bool {
	return a.status == http.StatusOK && a.failed == "" && a.err == nil && a.done
}

type choices struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

func (a *answer) readWhole(body io.Reader) {
	b, err := io.ReadAll(body)
	if err != nil {
		a.err = err
		return
	}
	var v choices
	if err := json.Unmarshal(b, &v); err != nil {
		a.err = fmt.Errorf("%w: %s", err, clip(string(b)))
		return
	}
	a.failed = string(v.Error)
	for _, c := range v.Choices {
		a.text, a.done = a.text+c.Message.Content, true
	}
}

func (a *answer) readStream(body io.Reader) {
	for in := bufio.NewScanner(body); ; {
		if !in.Scan() {
			a.err = in.Err()
			return
		}
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var v choices
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			a.err = fmt.Errorf("%w: %s", err, clip(data))
			return
		}
		if v.Error != nil {
			a.failed = string(v.Error)
		}
		for _, c := range v.Choices {
			a.text += c.Delta.Content
		}
	}
}

// one sends a request and waits for its answer, which must be whole.
func (r *router) one(q question) {
	r.t.Helper()
	a, err := r.ask(r.t.Context(), probeClient, q)
	if err != nil || !a.whole() {
		r.t.Errorf("no whole answer: %v: %s", err, a)
	}
}

// load is a number of clients that send one request after another.
type load struct {
	r    *router
	stop context.CancelFunc
	over sync.WaitGroup

	mu    sync.Mutex
	whole int       // answers
	ended []*answer // with an error that the client saw
	wrong []string  // what no answer may be
}

// clients is how many send at one time.
const clients = 4

// load starts clients, half of whose answers are streams.
func (r *router) load() *load {
	ctx, stop := context.WithCancel(r.t.Context())
	l := &load{r: r, stop: stop}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	for i := range clients {
		l.over.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				// Not ctx: what is under way comes to its end.
				a, err := r.ask(context.Background(), client, question{tokens: 2 + n%10, stream: n%2 == 0})
				l.count(a, err)
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	r.t.Cleanup(func() {
		stop()
		l.over.Wait()
		client.CloseIdleConnections()
	})
	return l
}

func (l *load) count(a *answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.wrong = append(l.wrong, fmt.Sprintf("%v: %s", err, a))
	case a.whole():
		l.whole++
	default:
		l.ended = append(l.ended, a)
	}
}

// more waits until so many further requests have had whole answers.
func (l *load) more(n int) {
	l.r.t.Helper()
	at := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.whole
	}
	from := at()
	eventually(l.r.t, fmt.Sprintf("%d requests more", n), func() string {
		if now := at(); now < from+n {
			return fmt.Sprintf("%d were answered", now-from)
		}
		return ""
	})
}

// good ends the load and checks that every answer was whole.
func (l *load) good() {
	l.r.t.Helper()
	if ended := l.visible(); len(ended) > 0 {
		l.r.t.Errorf("%d requests failed, the first: %s", len(ended), ended[0])
	}
}

// begun ends the load and checks that only streams that had begun have failed: what the
// client was sent nothing of is tried again elsewhere.
func (l *load) begun() {
	l.r.t.Helper()
	for _, a := range l.visible() {
		if a.text == "" {
			l.r.t.Errorf("a request that had not begun failed: %s", a)
		}
	}
}

// visible ends the load, checks that every answer was whole or a failure that the client
// saw, and returns the latter.
func (l *load) visible() []*answer {
	l.r.t.Helper()
	l.stop()
	l.over.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrong) > 0 {
		l.r.t.Errorf("%d answers are wrong, the first: %s", len(l.wrong), l.wrong[0])
	}
	l.r.t.Logf("%d whole answers, %d failures that the client saw", l.whole, len(l.ended))
	return l.ended
}

// stream is a long answer under way.
type stream struct {
	t    testing.TB
	done chan struct{}
	a    *answer
	err  error
}

// stream starts a request for a stream of so many tokens.
func (r *router) stream(tokens int) *stream {
	s := &stream{t: r.t, done: make(chan struct{})}
	client := &http.Client{Timeout: 2 * patience, Transport: &http.Transport{}}
	go func() {
		defer close(s.done)
		defer client.CloseIdleConnections()
		s.a, s.err = r.ask(context.Background(), client, question{tokens: tokens, stream: true})
	}()
	return s
}

// end waits for the answer, which is whole or fails visibly.
func (s *stream) end() *answer {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(2 * patience):
		s.t.Fatal("a stream does not end")
	}
	if s.err != nil {
		s.t.Errorf("%v: %s", s.err, s.a)
	}
	return s.a
}
