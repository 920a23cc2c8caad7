package upstream

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func post(b string) *Request {
	return &Request{Method: "POST", Path: "/v1/x", Header: Header{{"Content-Type", "application/json"}}, Body: [][]byte{[]byte(b)}}
}

// kindOf is "" for nil.
func kindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if err != nil {
		return "not an *Error: " + Kind(err.Error())
	}
	return ""
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// Every odd but whole answer, and whether the connection may be used again.
func TestOddAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, method, answer string
		hangup               bool // the engine closes behind the answer
		surplus              bool // more comes than was announced
		status               int
		body                 string
		reuse                bool
	}{
		{name: "length", answer: okAnswer, status: 200, body: "ok", reuse: true},
		{name: "informational first", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okAnswer, status: 200, body: "ok", reuse: true},
		{name: "HTTP/1.0", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "HTTP/1.0 to the end", answer: "HTTP/1.0 200 OK\r\n\r\nall of it", hangup: true, status: 200, body: "all of it"},
		{name: "to the end", answer: "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nall of it", hangup: true, status: 200, body: "all of it"},
		{name: "connection close", answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "empty", answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, reuse: true},
		{name: "HEAD", method: "HEAD", answer: "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", status: 200, reuse: true},
		{name: "204", answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, reuse: true},
		{name: "204 with a length", surplus: true, answer: "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", status: 204},
		{name: "304", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", status: 304, reuse: true},
		{name: "chunked", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\no\r\n1\r\nk\r\n0\r\nX-T: v\r\n\r\n", status: 200, body: "ok", reuse: true},
		{name: "bare LF", answer: "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", status: 200, body: "ok", reuse: true},
		{name: "surplus behind a length", surplus: true, answer: okAnswer + "x", status: 200, body: "ok"},
		{name: "surplus behind chunks", surplus: true, answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n\r\n", status: 200, body: "ok"},
		{name: "a second answer", surplus: true, answer: okAnswer + okAnswer, status: 200, body: "ok"},
		{name: "head over the buffer", answer: "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 20000) + "\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", reuse: true},
		{name: "body over the buffer", answer: "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("0123456789", 30000), status: 200, body: strings.Repeat("0123456789", 30000), reuse: true},
		{name: "chunks over the buffer", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n" + strings.Repeat("0123456789", 10000) + "\r\n0\r\n\r\n", status: 200, body: strings.Repeat("0123456789", 10000), reuse: true},
	} {
		for _, pace := range []string{"at once", "byte by byte"} {
			if pace == "byte by byte" && (len(tc.answer) > 1000 || tc.surplus) {
				continue // surplus that comes after the next request cannot be known as such
			}
			t.Run(tc.name+"/"+pace, func(t *testing.T) {
				s := script(t, func(n int, p *peer) {
					for {
						if _, _, ok := p.request(); !ok {
							return
						}
						if pace == "at once" {
							p.say(tc.answer)
						} else {
							for i := range len(tc.answer) {
								p.say(tc.answer[i : i+1])
							}
						}
						if tc.hangup {
							return
						}
					}
				})
				e := endpoint(t, Config{}, s.url)
				for i := range 2 {
					req := post("{}")
					if tc.method != "" {
						req = &Request{Method: tc.method, Path: "/"}
					}
					resp, err := e.Do(context.Background(), req)
					if err != nil {
						t.Fatal(err)
					}
					if got := body(t, resp); resp.Status != tc.status || got != tc.body {
						t.Fatalf("status %d body %.40q (%d)", resp.Status, got, len(got))
					}
					if i == 1 && resp.Reused != tc.reuse {
						t.Errorf("reused %t", resp.Reused)
					}
				}
				if n := e.Stats().Active; n != 0 {
					t.Errorf("%d active", n)
				}
			})
		}
	}
}

// An engine that does not speak HTTP is told apart by its kind, at once and without
// reading for ever, and its connection is never used again.
func TestBrokenAnswers(t *testing.T) {
	const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	endless := func(first, again string) func(p *peer) {
		return func(p *peer) {
			again = strings.Repeat(again, 1+4096/len(again))
			for p.say(first) == nil {
				first = again
			}
		}
	}
	answer := func(a string) func(p *peer) {
		return func(p *peer) { p.say(a); p.gone() }
	}
	cut := func(a string) func(p *peer) {
		return func(p *peer) { p.say(a) }
	}
	for _, tc := range []struct {
		name string
		do   func(p *peer)
		op   Op
		kind Kind
	}{
		{"garbage", answer("\x16\x03\x01 hello"), OpHeader, KindMalformed},
		{"another protocol", answer("SSH-2.0-x\r\n"), OpHeader, KindMalformed},
		{"old http", answer("HTTP/0.9 200 OK\r\n\r\n"), OpHeader, KindMalformed},
		{"no answer", cut(""), OpHeader, KindClosed},
		{"half a head", cut("HTTP/1.1 200 OK\r\nA: b"), OpHeader, KindClosed},
		{"both framings", answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), OpHeader, KindMalformed},
		{"two lengths", answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"), OpHeader, KindMalformed},
		{"folded", answer("HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n"), OpHeader, KindMalformed},
		{"upgrade", answer("HTTP/1.1 101 Switching Protocols\r\n\r\n"), OpHeader, KindMalformed},
		{"endless informational", endless("", "HTTP/1.1 100 Continue\r\n\r\n"), OpHeader, KindMalformed},
		{"endless status line", endless("HTTP/1.1 200 ", "x"), OpHeader, KindTooLarge},
		{"header of a megabyte", answer("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"), OpHeader, KindTooLarge},
		{"too many headers", answer("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 300) + "\r\n"), OpHeader, KindTooLarge},
		{"length not reached", cut("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), OpBody, KindClosed},
		{"chunks not ended", cut(chunkedHead + "5\r\nhello\r\n"), OpBody, KindClosed},
		{"trailer not ended", cut(chunkedHead + "5\r\nhello\r\n0\r\n"), OpBody, KindClosed},
		{"chunk size garbage", answer(chunkedHead + "5\r\nhello\r\nzz\r\n"), OpBody, KindMalformed},
		{"endless chunk line", endless(chunkedHead+"5\r\nhello\r\n", "1"), OpBody, KindTooLarge},
		{"endless extension", endless(chunkedHead+"5;", "x"), OpBody, KindTooLarge},
		{"endless trailer", endless(chunkedHead+"0\r\n", "A: b\r\n"), OpBody, KindTooLarge},
		{"reset", func(p *peer) { p.SetLinger(0) }, OpHeader, KindReset},
		{"reset in the body", func(p *peer) {
			p.say(chunkedHead + "5\r\nhello\r\n")
			p.br.ReadByte() // until the client tells that it has read this
			p.SetLinger(0)
		}, OpBody, KindReset},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := script(t, func(n int, p *peer) {
				if _, _, ok := p.request(); ok {
					tc.do(p)
				}
			})
			e := endpoint(t, Config{}, s.url)
			resp, err := e.Do(context.Background(), post("{}"))
			if tc.op == OpBody {
				if err != nil {
					t.Fatal(err)
				}
				var got string
				for err == nil {
					var p []byte
					p, err = resp.Body.Next()
					got += string(p)
					if err == nil && tc.kind == KindReset {
						resp.Body.(*exchange).c.nc.Write([]byte("!"))
					}
				}
				if whole := "hello"; !strings.HasPrefix(whole, got) && got != "abc" {
					t.Errorf("payload %.40q", got)
				}
				if _, again := resp.Body.Next(); again != err {
					t.Errorf("then %v", again)
				}
			}
			var ue *Error
			if !errors.As(err, &ue) || ue.Op != tc.op || ue.Kind != tc.kind || !EngineFault(err) {
				t.Fatalf("%v: want %s %s", err, tc.op, tc.kind)
			}
			if !ue.Sent || nothingSent(err) {
				t.Errorf("%v: the engine had it all, but Sent is %t", err, ue.Sent)
			}
			if !strings.Contains(err.Error(), strings.TrimPrefix(s.url, "http://")) {
				t.Errorf("%v does not name the engine", err)
			}
			if st := e.Stats(); st.Active != 0 || st.Idle != 0 || st.Resends != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestTrailer(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7 \r\n\r\n")
		p.gone()
	})
	e := endpoint(t, Config{}, s.url)
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Trailer("x-sum") != "" {
		t.Error("a trailer before its time")
	}
	if body(t, resp) != "ok" || resp.Body.Trailer("x-sum") != "7" || resp.Body.Trailer("y") != "" {
		t.Errorf("trailer %q", resp.Body.Trailer("x-sum"))
	}
}

// What a relay relies on to flush as seldom as possible and as often as needed.
func TestBufferedAndDone(t *testing.T) {
	steps := make(chan string)
	s := script(t, func(n int, p *peer) {
		p.request()
		for a := range steps {
			p.say(a)
		}
		p.gone()
	})
	e := endpoint(t, Config{}, s.url)
	go func() {
		steps <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n5\r\nth"
	}()
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	next := func(want string, buffered int, done bool) {
		t.Helper()
		p, err := resp.Body.Next()
		if err != nil || string(p) != want || resp.Body.Buffered() != buffered || resp.Body.Done() != done {
			t.Errorf("%q %v buffered %d done %t", p, err, resp.Body.Buffered(), resp.Body.Done())
		}
	}
	next("one", 3, false)
	next("two", 2, false)
	next("th", 0, false)
	steps <- "ree\r\n4\r\nfour\r\n0\r\n\r\n"
	if err := resp.Body.WaitReadable(); err != nil || resp.Body.Buffered() != 3 {
		t.Errorf("wait: %v, buffered %d", err, resp.Body.Buffered())
	}
	next("ree", 4, false)
	next("four", 0, true)
	close(steps)
	if _, err := resp.Body.Next(); err != io.EOF {
		t.Error(err)
	}
	if resp.Body.WaitReadable() != io.EOF || e.Stats().Idle != 1 {
		t.Error("not over")
	}
}

// Close after the last piece keeps the connection, Close before it ends it.
func TestCloseBeforeTheEnd(t *testing.T) {
	gone := make(chan struct{}, 2)
	s := script(t, func(n int, p *peer) {
		for {
			r, _, ok := p.request()
			if !ok {
				gone <- struct{}{}
				return
			}
			if r.URL.Path == "/whole" {
				p.say(okAnswer)
			} else {
				p.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok")
			}
		}
	})
	e := endpoint(t, Config{}, s.url)
	for _, path := range []string{"/whole", "/part"} {
		resp, err := e.Do(context.Background(), &Request{Method: "GET", Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := resp.Body.Next(); string(p) != "ok" || err != nil {
			t.Fatal(string(p), err)
		}
		for range 2 {
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := resp.Body.Next(); err == nil {
			t.Error("a piece after Close")
		}
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the connection was not closed")
	}
	if n := s.accepted(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
