//go:build realengine

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
	"sync/atomic"
	"testing"
	"time"
)

// route is one of the inference APIs: how a request is written in it and where
// the text is in its answers.
type route struct {
	name, path string
	// fields are those besides model, stream and temperature.
	fields func(prompt string, tokens int) map[string]any
	text   func(answer) string // of a whole answer
	delta  func(event) string  // of an event
	last   string              // what ends a stream: [DONE], or the type of the last event
	usage  func(answer) (prompt, output int)
}

func message(prompt string) []any {
	return []any{map[string]any{"role": "user", "content": prompt}}
}

var (
	chat = &route{
		name: "chat", path: "/v1/chat/completions", last: "[DONE]",
		fields: func(prompt string, tokens int) map[string]any {
			return map[string]any{"messages": message(prompt), "max_tokens": tokens}
		},
		text:  func(a answer) string { return at(a.json, "choices", 0, "message", "content") },
		delta: func(e event) string { return at(e.json, "choices", 0, "delta", "content") },
		usage: func(a answer) (int, int) {
			return number(a.json, "usage", "prompt_tokens"), number(a.json, "usage", "completion_tokens")
		},
	}
	completions = &route{
		name: "completions", path: "/v1/completions", last: "[DONE]",
		fields: func(prompt string, tokens int) map[string]any {
			return map[string]any{"prompt": prompt, "max_tokens": tokens}
		},
		text:  func(a answer) string { return at(a.json, "choices", 0, "text") },
		delta: func(e event) string { return at(e.json, "choices", 0, "text") },
		usage: chat.usage,
	}
	responses = &route{
		name: "responses", path: "/v1/responses", last: "response.completed",
		fields: func(prompt string, tokens int) map[string]any {
			return map[string]any{"input": prompt, "max_output_tokens": tokens, "store": false}
		},
		text: func(a answer) string {
			text := ""
			output, _ := a.json["output"].([]any)
			for i := range output {
				text += at(a.json, "output", i, "content", 0, "text")
			}
			return text
		},
		delta: func(e event) string {
			if at(e.json, "type") != "response.output_text.delta" {
				return ""
			}
			return at(e.json, "delta")
		},
		usage: func(a answer) (int, int) {
			return number(a.json, "usage", "input_tokens"), number(a.json, "usage", "output_tokens")
		},
	}
	messages = &route{
		name: "messages", path: "/v1/messages", last: "message_stop",
		fields: func(prompt string, tokens int) map[string]any {
			return map[string]any{"messages": message(prompt), "max_tokens": tokens}
		},
		text:  func(a answer) string { return at(a.json, "content", 0, "text") },
		delta: func(e event) string { return at(e.json, "delta", "text") },
		// The counts of a prompt stand apart: what was cached, what is from now on, the rest.
		usage: func(a answer) (int, int) {
			in, out := responses.usage(a)
			for _, name := range []string{"cache_read_input_tokens", "cache_creation_input_tokens"} {
				in += max(0, number(a.json, "usage", name))
			}
			return in, out
		},
	}
	routes = []*route{chat, completions, responses, messages}
)

// at is the string at a path of keys and indices, "" if there is none.
func at(v any, path ...any) string {
	s, _ := find(v, path).(string)
	return s
}

func number(v any, path ...any) int {
	f, ok := find(v, path).(float64)
	if !ok {
		return -1
	}
	return int(f)
}

func find(v any, path []any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

// event is one of an event stream.
type event struct {
	name string // of the field "event"
	data string
	json map[string]any // nil for [DONE]
}

// answer is what a client got.
type answer struct {
	id      string
	status  int // 0: none
	header  http.Header
	body    string
	json    map[string]any // of a whole answer
	events  []event
	comment int   // lines of comments in the stream
	err     error // of the connection
	took    time.Duration
}

func (a answer) String() string {
	if a.streams() {
		n := len(a.events)
		tail := ""
		for _, e := range a.events[max(0, n-2):] {
			tail += " | " + clip(e.data)
		}
		return fmt.Sprintf("%s: status %d after %s, %d events%s, %v", a.id, a.status, a.took.Round(time.Millisecond), n, tail, a.err)
	}
	return fmt.Sprintf("%s: status %d after %s, %v: %s", a.id, a.status, a.took.Round(time.Millisecond), a.err, clip(a.body))
}

func (a answer) streams() bool {
	return strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream")
}

// text is what the model said.
func (a answer) text(r *route) string {
	if !a.streams() {
		return r.text(a)
	}
	var s strings.Builder
	for _, e := range a.events {
		s.WriteString(r.delta(e))
	}
	return s.String()
}

// whole tells what is missing from a good and complete answer, "" if nothing is.
func (a answer) whole(r *route) string {
	switch {
	case a.err != nil || a.status != http.StatusOK:
		return a.String()
	case a.failed() != "":
		return "it has an error event: " + a.String()
	case a.streams() && (len(a.events) == 0 || !a.events[len(a.events)-1].is(r.last)):
		return "it does not end with " + r.last + ": " + a.String()
	}
	return ""
}

func (e event) is(last string) bool {
	kind := at(e.json, "type")
	// What reached its limit is incomplete, which vLLM itself does not say.
	return e.data == last || kind == last || last == "response.completed" && kind == "response.incomplete"
}

// failed is the stream's error event, "" if it has none.
func (a answer) failed() string {
	for _, e := range a.events {
		if e.json["error"] != nil || e.name == "error" || at(e.json, "type") == "error" || at(e.json, "type") == "response.failed" {
			return e.data
		}
	}
	return ""
}

// code is that of an error, of the answer or of its error event.
func (a answer) code() string {
	v := a.json
	if a.streams() {
		v = nil
		_ = json.Unmarshal([]byte(a.failed()), &v) // or there is none
	}
	switch code := find(v, []any{"error", "code"}).(type) {
	case string:
		return code
	case float64:
		return fmt.Sprint(code)
	}
	return ""
}

// request is a request to be sent.
type request struct {
	route  *route
	prompt string
	tokens int
	stream bool
	extra  map[string]any // further fields; a nil value takes one away
	header map[string]string
}

func (q request) body() string {
	fields := q.route.fields(q.prompt, q.tokens)
	fields["model"] = Model
	fields["temperature"] = 0
	if q.stream {
		fields["stream"] = true
	}
	for k, v := range q.extra {
		if v == nil {
			delete(fields, k)
		} else {
			fields[k] = v
		}
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// call is a request on its way.
type call struct {
	t     testing.TB
	leave context.CancelFunc
	begun chan struct{} // closed at the first event, or at the end
	done  chan struct{}
	seen  atomic.Int64 // events so far
	got   answer
}

// client takes a connection of its own for each request, so that leaving is
// closing it.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, MaxIdleConnsPerHost: -1}}

// patience is how long anything may take on a machine that does much else.
const patience = time.Minute

// send starts a request to a router or an engine.
func (q request) send(t testing.TB, base string) *call {
	return raw(t, http.MethodPost, base+q.route.path, q.body(), q.header)
}

// ask sends a request and waits for its end.
func (q request) ask(t testing.TB, base string) answer {
	t.Helper()
	return q.send(t, base).wait()
}

func raw(t testing.TB, method, url, body string, header map[string]string) *call {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	c := &call{t: t, leave: cancel, begun: make(chan struct{}), done: make(chan struct{})}
	a := &c.got
	a.id = "t-" + strings.ToLower(rand.Text()[:12])
	go func() {
		defer close(c.done)
		defer cancel()
		start := time.Now()
		defer func() { a.took = time.Since(start) }()
		begin := sync.OnceFunc(func() { close(c.begun) })
		defer begin()
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			a.err = err
			return
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", a.id)
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := client.Do(req)
		if err != nil {
			a.err = err
			return
		}
		defer resp.Body.Close()
		a.status, a.header = resp.StatusCode, resp.Header
		if a.streams() {
			a.readEvents(resp.Body, func() { c.seen.Add(1); begin() })
			return
		}
		b, err := io.ReadAll(resp.Body)
		a.body, a.err = string(b), err
		_ = json.Unmarshal(b, &a.json) // what is no object stays nil
	}()
	return c
}

func (a *answer) readEvents(body io.Reader, seen func()) {
	in := bufio.NewReader(body)
	var e event
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return
		}
		line = strings.TrimRight(line, "\r\n")
		switch {
		case line == "":
			if e.data != "" {
				a.events = append(a.events, e)
				seen()
			}
			e = event{}
		case strings.HasPrefix(line, ":"):
			a.comment++
		case strings.HasPrefix(line, "event:"):
			e.name = strings.TrimSpace(line[len("event:"):])
		case strings.HasPrefix(line, "data:"):
			e.data = strings.TrimSpace(line[len("data:"):])
			_ = json.Unmarshal([]byte(e.data), &e.json) // [DONE] is none
		}
	}
}

// wait waits for the end of the answer.
func (c *call) wait() answer {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(3 * patience):
		c.t.Fatalf("request %s has no end", c.got.id)
	}
	return c.got
}

// waitBegun waits for the first event.
func (c *call) waitBegun() {
	c.t.Helper()
	select {
	case <-c.begun:
	case <-time.After(patience):
		c.t.Fatalf("request %s: nothing within %s", c.got.id, patience)
	}
}

// waitEvents waits until so many events have come.
func (c *call) waitEvents(n int64) {
	c.t.Helper()
	eventually(c.t, "events come", func() string {
		if c.over() {
			c.t.Fatalf("it ended: %s", c.got)
		}
		if got := c.seen.Load(); got < n {
			return fmt.Sprint(got)
		}
		return ""
	})
}

// over tells whether the answer has ended.
func (c *call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// prompt is one that nobody has asked before, so that no cache can help: about
// words times two tokens.
func prompt(words int) string {
	var s strings.Builder
	s.WriteString("Tell me about " + rand.Text())
	for s.Len() < words*5 {
		s.WriteString(" and the river " + rand.Text()[:5])
	}
	return s.String()
}

// clip shortens what a failure shows.
func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 400 {
		return s[:400] + "…"
	}
	return s
}

// eventually waits until check returns "". What it returned last is in the failure.
func eventually(t testing.TB, what string, check func() string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		last := check()
		if last == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s: %s", what, patience, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
