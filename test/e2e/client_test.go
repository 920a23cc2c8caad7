package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is what a client got.
type answer struct {
	id      string // of the request, as sent
	status  int    // 0: none
	header  http.Header
	body    string
	err     error // of the connection
	took    time.Duration
	first   time.Duration // until the first byte of the body
	streams bool          // an event stream
	events  int           // with data, errors and [DONE] not counted
	failed  string        // the error event
	done    bool          // [DONE] came
}

func (a *answer) String() string {
	return fmt.Sprintf("request %s: status %d after %s, %d events, done %t, error event %q, %v: %s", a.id, a.status, a.took.Round(time.Millisecond), a.events, a.done, clip(a.failed), a.err, clip(a.body))
}

// whole tells whether the client has all of a good answer.
func (a *answer) whole() bool {
	return a.status == http.StatusOK && a.err == nil && a.failed == "" && (!a.streams || a.done)
}

// code is the error code in the body.
func (a *answer) code() string {
	var v struct {
		Error struct {
			Code any `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(a.body), &v) != nil || v.Error.Code == nil {
		return ""
	}
	return fmt.Sprint(v.Error.Code)
}

// refused checks an error of the router's own.
func (a *answer) refused(t testing.TB, status int, code string) {
	t.Helper()
	if a.status != status || a.code() != code || a.header.Get("X-Smg-Error-Code") != code {
		t.Errorf("want %d %s, got %s (header %q)", status, code, a, a.header.Get("X-Smg-Error-Code"))
	}
}

// good checks a whole answer.
func (a *answer) good(t testing.TB) {
	t.Helper()
	if !a.whole() {
		t.Errorf("not a whole answer: %s", a)
	}
}

// clients is one transport for all clients of a test.
func clients(t testing.TB) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: patience}).DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 2 * time.Minute}
}

// call is one client request under way.
type call struct {
	id     string
	cancel context.CancelFunc
	begun  chan struct{} // closed at the first byte of the body, or the end
	done   chan struct{}
	answer answer // once done
}

func (c *call) wait(t testing.TB) *answer {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(2 * patience):
		t.Fatalf("request %s has no answer", c.id)
	}
	return &c.answer
}

// send starts a request. headers are name, value, ….
func send(client *http.Client, method, url, body string, headers ...string) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{id: rand.Text()[:12], cancel: cancel, begun: make(chan struct{}), done: make(chan struct{})}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "X-Request-Id" {
			c.id = headers[i+1]
		}
	}
	go func() {
		defer close(c.done)
		defer cancel()
		a := &c.answer
		start := time.Now()
		a.id = c.id
		begin := sync.OnceFunc(func() { a.first = time.Since(start); close(c.begun) })
		defer begin()
		defer func() { a.took = time.Since(start) }()
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			a.err = err
			return
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", c.id)
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			a.err = err
			return
		}
		defer resp.Body.Close()
		a.status, a.header = resp.StatusCode, resp.Header
		a.streams = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
		a.read(resp.Body, begin)
	}()
	return c
}

// read reads the body: whole, or event by event.
func (a *answer) read(body io.Reader, begin func()) {
	in := bufio.NewReader(body)
	var text strings.Builder
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			begin()
			if text.Len() < 1<<26 {
				text.WriteString(line)
			}
			a.line(line)
		}
		if err != nil {
			a.body = text.String()
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return
		}
	}
}

func (a *answer) line(line string) {
	data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
	switch {
	case !a.streams || !ok:
	case data == "[DONE]":
		a.done = true
	case strings.HasPrefix(data, `{"error"`):
		a.failed = data
	default:
		a.events++
	}
}

// chatBody is a chat request; extra are further fields, each with a comma behind.
func chatBody(extra string) string {
	return `{"model":"sim-model",` + extra + `"messages":[{"role":"user","content":"Why is the sky blue?"}]}`
}

// Fields of chatBody.
const (
	streamed = `"stream":true,`
	brief    = `"max_tokens":1,`
)

// chat starts a chat request.
func (r *router) chat(client *http.Client, extra string, headers ...string) *call {
	return send(client, "POST", r.url()+"/v1/chat/completions", chatBody(extra), headers...)
}

// ask sends a chat request and waits for its end.
func (r *router) ask(extra string, headers ...string) *answer {
	r.t.Helper()
	return r.chat(probeClient, extra, headers...).wait(r.t)
}
