package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/wire"
)

// numbered is n bytes in which every place can be told from others.
func numbered(n int) string {
	b := make([]byte, 0, n+8)
	for i := 0; len(b) < n; i++ {
		b = strconv.AppendInt(b, int64(i), 36)
		b = append(b, ' ')
	}
	return string(b[:n])
}

// Every size around that of the buffer, in each framing: what is sent is what was
// written, and the connection can be used on.
func TestSizesAroundTheBuffer(t *testing.T) {
	t.Parallel()
	all := numbered(3 * wire.BufSize)
	for _, framing := range []string{"undecided", "length", "chunks", "1.0", "HEAD"} {
		t.Run(framing, func(t *testing.T) {
			t.Parallel()
			pieces := map[string]func(w http.ResponseWriter, n int){
				"/one": func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, all[:n]) },
				"/two": func(w http.ResponseWriter, n int) {
					_, _ = io.WriteString(w, all[:1])
					_, _ = io.WriteString(w, all[1:n])
				},
				"/last": func(w http.ResponseWriter, n int) {
					_, _ = io.WriteString(w, all[:n-1])
					_, _ = io.WriteString(w, all[n-1:n])
				},
			}
			r := start(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.URL.RawQuery)
				switch framing {
				case "length":
					w.Header().Set("Content-Length", r.URL.RawQuery)
				case "chunks":
					_ = http.NewResponseController(w).Flush() // the client counts
				}
				pieces[r.URL.Path](w, n)
			})
			for path := range pieces {
				var c *raw
				for n := wire.BufSize - 300; n < wire.BufSize+20; n++ {
					if c == nil || framing == "1.0" {
						c = r.dial()
					}
					method, version := "GET", "1.1"
					switch framing {
					case "1.0":
						version = "1.0"
					case "HEAD":
						method = "HEAD"
					}
					c.send(fmt.Sprintf("%s %s?%d HTTP/%s\r\nHost: h\r\n\r\n", method, path, n, version))
					want := all[:n]
					if framing == "HEAD" {
						want = ""
					}
					if a := c.read(method); a.body != want || a.StatusCode != 200 {
						t.Fatalf("%s, %d bytes: status %d, %d bytes", path, n, a.StatusCode, len(a.body))
					}
				}
			}
		})
	}
}

func TestLargeHeaders(t *testing.T) {
	t.Parallel()
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.RawQuery)
		for i := range n / 1000 {
			w.Header().Set(fmt.Sprint("X-", i), numbered(1000))
		}
		w.Header().Set("X-Rest", numbered(n%1000))
		if r.URL.Path == "/flushed" {
			_ = http.NewResponseController(w).Flush() // the client counts
		}
		_, _ = io.WriteString(w, "body") // the client counts
	})
	for _, path := range []string{"/", "/flushed"} {
		c := r.dial()
		for _, n := range []int{3800, 3900, 3950, 4000, 4090, 4096, 4100, 5000, 100000} {
			c.send(get(fmt.Sprint(path, "?", n)))
			a := c.want(200, "body")
			if len(a.Header) < n/1000 || a.Header.Get("X-Rest") != strings.TrimSpace(numbered(n%1000)) {
				t.Errorf("%d bytes: %d headers", n, len(a.Header))
			}
		}
	}
}

// What is small and not flushed has a length; what was flushed is in chunks.
func TestFraming(t *testing.T) {
	t.Parallel()
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for _, step := range strings.Split(r.URL.RawQuery, ",") {
			if n, err := strconv.Atoi(step); err == nil && n >= 200 {
				w.WriteHeader(n)
				continue
			}
			switch step {
			case "w":
				_, _ = io.WriteString(w, "abc") // the client counts
			case "f":
				_ = rc.Flush() // the client counts
			case "l":
				w.Header().Set("Content-Length", "6")
			}
		}
	})
	for _, c := range []struct {
		method, version, steps string
		status                 int
		length, coding, body   string
		close                  bool
	}{
		{"GET", "1.1", "", 200, "0", "", "", false},
		{"GET", "1.1", "404", 404, "0", "", "", false},
		{"GET", "1.1", "w,w", 200, "6", "", "abcabc", false},
		{"GET", "1.1", "w,f", 200, "", "chunked", "abc", false},
		{"GET", "1.1", "f", 200, "", "chunked", "", false},
		{"GET", "1.1", "f,f,w,f,f,w", 200, "", "chunked", "abcabc", false},
		{"GET", "1.1", "l,w,w", 200, "6", "", "abcabc", false},
		{"GET", "1.1", "l,f,w,f,w,f", 200, "6", "", "abcabc", false},
		{"GET", "1.1", "204,w", 204, "", "", "", false},
		{"GET", "1.1", "l,204,w,f", 204, "", "", "", false},
		{"GET", "1.1", "304,w,f", 304, "", "", "", false},
		{"GET", "1.1", "l,304", 304, "6", "", "", false},
		{"GET", "1.1", "201,404,w,500", 201, "3", "", "abc", false},
		{"HEAD", "1.1", "", 200, "", "", "", false},
		{"HEAD", "1.1", "w,f,w", 200, "", "", "", false},
		{"HEAD", "1.1", "l,w,w,w,w", 200, "6", "", "", false},
		{"GET", "1.0", "w", 200, "3", "", "abc", true},
		{"GET", "1.0", "w,f,w", 200, "", "", "abcabc", true},
		{"GET", "1.0", "f", 200, "", "", "", true},
		{"GET", "1.0", "l,f,w,w", 200, "6", "", "abcabc", true},
		{"HEAD", "1.0", "w,f", 200, "", "", "", true},
	} {
		s := r.dial()
		s.send(fmt.Sprintf("%s /?%s HTTP/%s\r\nHost: h\r\n\r\n", c.method, c.steps, c.version))
		resp, err := http.ReadResponse(s.r, &http.Request{Method: c.method})
		if err != nil {
			t.Fatal(err)
		}
		coding := strings.Join(resp.TransferEncoding, ",")
		b, err := io.ReadAll(resp.Body)
		if err != nil || string(b) != c.body || resp.StatusCode != c.status || resp.Header.Get("Content-Length") != c.length || coding != c.coding || resp.Close != c.close {
			t.Errorf("%s %s %s: status %d, length %q, coding %q, close %v, %q, %v", c.method, c.version, c.steps, resp.StatusCode, resp.Header.Get("Content-Length"), coding, resp.Close, b, err)
		}
		if c.close {
			s.ended()
			continue
		}
		s.send(get("/"))
		s.want(200, "")
	}
}

// Nothing that a handler puts into a header may become another line, or say
// something about the framing.
func TestHeadersCannotBreakTheAnswer(t *testing.T) {
	t.Parallel()
	c := start(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["A"] = []string{"b\r\nEvil: 1", "\r\n\r\nbody", "\nc\x00d\x7f", " \t trimmed \t", "\xff"}
		h["B\r\nEvil"] = []string{"1"}
		h["C: d\r\nEvil"] = []string{"1"}
		h[""] = []string{"1"}
		h["D "] = []string{"1"}
		h["content-length"] = []string{"1"}
		h["CONTENT-LENGTH"] = []string{"2"}
		h["transfer-encoding"] = []string{"gzip"}
		h["Transfer-Encoding"] = []string{"identity"}
		h["connection"] = []string{"close"}
		h["Connection"] = []string{"X-Evil"}
		h[http.TrailerPrefix+"T"] = []string{"1"}
		_, _ = io.WriteString(w, "abc") // the client counts
	}).dial()
	for range 2 {
		c.send(get("/"))
		a := c.want(200, "abc")
		a.Header.Del("Date")
		if len(a.Header) != 2 || a.ContentLength != 3 || a.TransferEncoding != nil || a.Close ||
			!slices.Equal(a.Header["A"], []string{"b  Evil: 1", "body", "c d", "trimmed", "\xff"}) {
			t.Errorf("%q", a.Header)
		}
	}
}

// A length that is none is not passed on.
func TestBrokenContentLengthOfAHandler(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{{"+3"}, {"-1"}, {" 3"}, {""}, {"x"}, {"3", "3"}, {"9223372036854775808"}, nil} {
		c := start(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Length"] = values
			_, _ = io.WriteString(w, "abc") // the client counts
		}).dial()
		c.send(get("/"))
		if a := c.want(200, "abc"); !slices.Equal(a.Header["Content-Length"], []string{"3"}) {
			t.Errorf("%q: %q", values, a.Header)
		}
	}
}

// More than was announced is not sent; less is a connection that breaks.
func TestWrongContentLength(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 1)
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		_, err := io.WriteString(w, r.URL.RawQuery)
		errs <- err
	})
	for _, more := range []string{"abcd", numbered(10000)} {
		c := r.dial()
		c.send(get("/?"+strings.ReplaceAll(more, " ", "_")) + get("/smuggled"))
		if a, err := c.tryRead(""); err != io.ErrUnexpectedEOF || a.body != "" || a.Header.Get("Content-Length") != "3" {
			t.Errorf("%q %v", a.body, err)
		}
		if err := receive(t, "the handler", errs); err != http.ErrContentLength {
			t.Error(err)
		}
		c.ended()
	}
	for _, less := range []string{"", "ab"} {
		c := r.dial()
		c.send(get("/?"+less) + get("/smuggled"))
		if a, err := c.tryRead(""); err != io.ErrUnexpectedEOF || a.body != less {
			t.Errorf("%q %v", a.body, err)
		}
		if err := receive(t, "the handler", errs); err != nil {
			t.Error(err)
		}
		c.ended()
	}
	c := r.dial()
	c.send(get("/?abc"))
	c.want(200, "abc")
	<-errs
}

func TestBodyWithAStatusThatHasNone(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 1)
	c := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(204)
		_, err := io.WriteString(w, "abc")
		errs <- err
	}).dial()
	c.send(get("/"))
	c.want(204, "")
	if err := <-errs; err != http.ErrBodyNotAllowed {
		t.Error(err)
	}
}

func TestInformationalStatusesAreNotSent(t *testing.T) {
	t.Parallel()
	c := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(102)
		w.WriteHeader(103)
		w.WriteHeader(299)
	}).dial()
	c.send(get("/"))
	if a := c.want(299, ""); a.Status != "299 status code 299" {
		t.Error(a.Status)
	}
}

func TestDateSetByTheHandler(t *testing.T) {
	t.Parallel()
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/own":
			w.Header().Set("Date", "now")
		case "/none":
			w.Header()["Date"] = nil
		}
	}).dial()
	c.send(get("/") + get("/own") + get("/none"))
	if d := c.read("").Header.Get("Date"); d == "" {
		t.Error("no date")
	} else if at, err := http.ParseTime(d); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("%s: %v", d, err)
	}
	if d := c.read("").Header["Date"]; !slices.Equal(d, []string{"now"}) {
		t.Error(d)
	}
	if d := c.read("").Header["Date"]; d != nil {
		t.Error(d)
	}
}

// A connection ends where the client, the handler, or its HTTP says so.
func TestConnectionClose(t *testing.T) {
	t.Parallel()
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			w.Header().Set("Connection", r.URL.RawQuery)
		}
		echo(w, r)
	})
	for req, ends := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n":                                          false,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n":                false,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\n":                     true,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: a\r\nConnection: b ,close\r\n\r\n": true,
		"GET /?close HTTP/1.1\r\nHost: h\r\n\r\n":                                    true,
		"GET /?a,close HTTP/1.1\r\nHost: h\r\n\r\n":                                  true,
		"GET /?keep-alive HTTP/1.1\r\nHost: h\r\n\r\n":                               false,
		"GET / HTTP/1.0\r\nHost: h\r\n\r\n":                                          true,
		"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n":                true,
		"GET /?keep-alive HTTP/1.0\r\nHost: h\r\n\r\n":                               true,
	} {
		c := r.dial()
		c.send(req + get("/"))
		if a := c.want(200, ""); a.Close != ends {
			t.Errorf("%q: close %v", req, a.Close)
		}
		if ends {
			c.ended()
		} else {
			c.want(200, "")
		}
	}
}

// A panic never looks like a whole answer, is told of unless it is the one that is
// no mistake, and costs its connection only.
func TestPanics(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.1", "1.0"} {
		for stage, before := range map[string]func(http.ResponseWriter){
			"at once":           func(http.ResponseWriter) {},
			"after the status":  func(w http.ResponseWriter) { w.WriteHeader(200) },
			"after a write":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, "abc") },
			"after a flush":     func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
			"in the middle":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, "abc"); w.(http.Flusher).Flush() },
			"after all of it":   func(w http.ResponseWriter) { w.Header().Set("Content-Length", "3"); _, _ = io.WriteString(w, "abc") },
			"after a large one": func(w http.ResponseWriter) { _, _ = io.WriteString(w, numbered(10000)) },
			"by its status":     func(w http.ResponseWriter) { w.WriteHeader(1000) },
		} {
			for what, value := range map[string]any{"abort": http.ErrAbortHandler, "string": "the reason", "slice": []int{1}, "error": io.EOF, "exit": nil} {
				t.Run(version+" "+stage+" "+what, func(t *testing.T) {
					t.Parallel()
					r := start(t, func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/ok" {
							return
						}
						before(w)
						if value == nil {
							runtime.Goexit()
						}
						panic(value)
					})
					c := r.dial()
					c.send("GET / HTTP/" + version + "\r\nHost: h\r\n\r\n")
					if a, err := c.tryRead(""); err == nil {
						t.Errorf("status %d %q looks whole", a.StatusCode, a.body)
					}
					c.ended()
					told := len(r.reported())
					if (what == "abort" || what == "exit") && stage != "by its status" {
						if told != 0 {
							t.Error(r.reported())
						}
					} else if told != 1 || !strings.Contains(r.reported()[0], "response_test.go") {
						t.Errorf("%q", r.reported())
					}
					c = r.dial()
					c.send(get("/ok"))
					c.want(200, "")
				})
			}
		}
	}
}

// An answer that ended early is not followed by what was written of it afterwards.
func TestPanicWhileRefusing(t *testing.T) {
	t.Parallel()
	r := start(t, echo, func(s *Server) { s.Refuse = func(http.ResponseWriter, *Problem) { panic("the reason") } })
	c := r.dial()
	c.send("nonsense\r\n\r\n")
	c.ended()
	if told := r.reported(); len(told) != 1 {
		t.Errorf("%q", told)
	}
}

// A client that takes nothing is waited for until the deadline, its answer is not
// collected in memory, and its request's context ends.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("deadline of the handler ", own), func(t *testing.T) {
			t.Parallel()
			type end struct {
				err, again, flush, cause error
				held                     int
			}
			ends := make(chan end, 1)
			r := start(t, func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				if own {
					_ = rc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // it is always one of ours
				}
				var e end
				for b := []byte(numbered(1000)); e.err == nil; {
					if _, e.err = w.Write(b); e.err == nil {
						e.err = rc.Flush()
					}
					e.held = max(e.held, cap(w.(*response).b))
				}
				_, e.again = w.Write([]byte("x"))
				e.flush = rc.Flush()
				e.cause = context.Cause(r.Context())
				ends <- e
			}, func(s *Server) {
				if !own {
					s.WriteTimeout = 100 * time.Millisecond
				}
			})
			c := r.dial()
			_ = c.SetReadBuffer(4 << 10) // the smaller the sooner it is full
			c.send(get("/"))
			e := receive(t, "the handler", ends)
			if !errors.Is(e.err, os.ErrDeadlineExceeded) || e.again != e.err || e.flush != e.err || e.cause != ErrClientGone || e.held > 2*wire.BufSize {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A client that was slow once has all the time again for the next write.
func TestOldWriteDeadlineDoesNotAffectTheNextWrite(t *testing.T) {
	t.Parallel()
	var by time.Time
	filled, goOn := make(chan struct{}), make(chan struct{})
	big := numbered(8 << 20)
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		by = time.Now().Add(2 * time.Second)
		_ = rc.SetWriteDeadline(by) // it is always one of ours
		close(filled)
		if _, err := io.WriteString(w, big); err != nil {
			t.Errorf("the first write: %v", err)
		}
		<-goOn
		_ = rc.SetWriteDeadline(time.Time{}) // it is always one of ours
		if _, err := io.WriteString(w, big); err != nil {
			t.Errorf("the second write: %v", err)
		}
	}).dial()
	c.send(get("/"))
	<-filled
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(big))
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != big {
		t.Fatal(err)
	}
	time.Sleep(time.Until(by) + 10*time.Millisecond) // the old deadline must have passed
	close(goOn)
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != big {
		t.Fatal(len(b), err)
	}
}

// Signs of life come from a timer's goroutine, under the handler's lock.
func TestHelperWritesUnderTheHandlersLock(t *testing.T) {
	t.Parallel()
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					mu.Lock()
					_, _ = io.WriteString(w, "x") // the client counts
					_ = rc.Flush()
					mu.Unlock()
				}
			})
		}
		if b, err := io.ReadAll(r.Body); string(b) != "body" || err != nil { // while the others write
			t.Errorf("%q %v", b, err)
		}
		wg.Wait()
	}).dial()
	for range 5 {
		c.send(post("/", "body"))
		c.want(200, strings.Repeat("x", 200))
		c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
		c.send("4\r\nbody\r\n0\r\n\r\n")
		c.want(200, strings.Repeat("x", 200))
	}
}

// step is something that a handler does.
type step struct {
	write  int // bytes; -1: it is none
	status int // 0: it is none; else flush
	flush  bool
}

// script is an answer as a handler makes it.
type script struct {
	method, version string
	length          int // announced; -1: none
	steps           []step
}

func drawScript(t *rapid.T) script {
	s := script{
		method:  rapid.SampledFrom([]string{"GET", "GET", "HEAD", "POST"}).Draw(t, "method"),
		version: rapid.SampledFrom([]string{"1.1", "1.1", "1.1", "1.0"}).Draw(t, "version"),
		length:  -1,
	}
	size := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(wire.BufSize-400, wire.BufSize+100), rapid.IntRange(0, 100000))
	total := 0
	for range rapid.IntRange(0, 8).Draw(t, "steps") {
		one := step{write: -1}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			one.status = rapid.SampledFrom([]int{200, 201, 204, 304, 404, 500}).Draw(t, "status")
		case 1, 2, 3:
			one.flush = true
		default:
			one.write = size.Draw(t, "size")
			total += one.write
		}
		s.steps = append(s.steps, one)
	}
	switch rapid.IntRange(0, 5).Draw(t, "length") {
	case 0, 1:
		s.length = total
	case 2:
		s.length = rapid.IntRange(0, total+10).Draw(t, "wrong length")
	}
	return s
}

// expected is what a client must make of an answer.
type expected struct {
	status  int
	body    string
	length  string // the header, where it is certain
	whole   bool   // the answer has its end
	flushed bool   // before all was written
	errs    []error
}

// expect is the model: net/http's documented behaviour.
func (s *script) expect(all string) expected {
	e := expected{whole: true}
	left, written := s.length, 0
	none := func() bool { return e.status == 204 || e.status == 304 }
	for _, step := range s.steps {
		if e.status == 0 {
			e.status = 200
			if step.status != 0 {
				e.status = step.status
			}
		}
		if step.flush {
			e.flushed = true
		}
		if step.write < 0 {
			continue
		}
		p := all[written : written+step.write]
		written += step.write
		var err error
		switch {
		case len(p) == 0:
		case s.method == "HEAD":
		case none():
			err = http.ErrBodyNotAllowed
		case s.length >= 0 && len(p) > left:
			err = http.ErrContentLength
		default:
			left -= len(p)
			e.body += p
		}
		e.errs = append(e.errs, err)
	}
	if e.status == 0 {
		e.status = 200
	}
	if s.length >= 0 {
		e.length = strconv.Itoa(s.length)
		e.whole = none() || s.method == "HEAD" || left == 0
	} else if !e.flushed && len(e.body) < wire.BufSize/2 && s.method != "HEAD" {
		e.length = strconv.Itoa(len(e.body))
	}
	if e.status == 204 || e.status == 304 && s.length < 0 {
		e.length = ""
	}
	return e
}

// Whatever a handler does, its client gets what net/http's documentation says.
func TestAnswersModel(t *testing.T) {
	t.Parallel()
	all := numbered(900000)
	scripts, errs := make(chan script, 1), make(chan []error, 1)
	r := start(t, func(w http.ResponseWriter, _ *http.Request) {
		s := <-scripts
		var got []error
		defer func() { errs <- got }()
		if s.length >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(s.length))
		}
		written := 0
		for _, step := range s.steps {
			switch {
			case step.status != 0:
				w.WriteHeader(step.status)
			case step.flush:
				w.(http.Flusher).Flush()
			default:
				_, err := io.WriteString(w, all[written:written+step.write])
				written += step.write
				got = append(got, err)
			}
		}
	})
	var c *raw
	rapid.Check(t, func(t *rapid.T) {
		if c == nil {
			sock, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = sock.SetDeadline(time.Now().Add(patience))
			c = &raw{sock.(*net.TCPConn), r.t, bufio.NewReader(sock)}
		}
		s := drawScript(t)
		want := s.expect(all)
		scripts <- s
		c.send(s.method + " / HTTP/" + s.version + "\r\nHost: h\r\n\r\n")
		a, err := c.tryRead(s.method)
		kept := want.whole && s.version == "1.1"
		// A failure must not leave the next try with half a connection.
		this := c
		if c = nil; kept && err == nil {
			c = this
		} else {
			defer func() { _ = this.Close() }() // only read
		}
		got := <-errs
		switch {
		case !slices.Equal(got, want.errs):
			t.Fatalf("the writes returned %v, want %v", got, want.errs)
		case (err == nil) != want.whole:
			t.Fatalf("reading: %v, want it whole: %v", err, want.whole)
		case a.Response == nil:
			t.Fatal(err)
		}
		body := want.body
		if s.method == "HEAD" {
			body = ""
		}
		if a.StatusCode != want.status || a.body != body || a.Close != (s.version == "1.0") {
			t.Fatalf("status %d, %d bytes, close %v; want %d, %d bytes", a.StatusCode, len(a.body), a.Close, want.status, len(body))
		}
		if l := a.Header.Get("Content-Length"); want.length != "" && l != want.length || want.length == "" && s.length < 0 && want.flushed && l != "" {
			t.Fatalf("Content-Length %q, want %q", l, want.length)
		}
	})
	if c != nil {
		_ = c.Close() // only read
	}
}

// How requests are cut into packets, and what their bodies are framed by, is no
// matter: all are answered, in order and whole.
func TestPipelineModel(t *testing.T) {
	t.Parallel()
	all := numbered(200000)
	r := start(t, echo)
	rapid.Check(t, func(t *rapid.T) {
		sock, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = sock.SetDeadline(time.Now().Add(patience))
		c := &raw{sock.(*net.TCPConn), r.t, bufio.NewReader(sock)}
		defer func() { _ = c.Close() }() // only read

		var out strings.Builder
		var want []string
		size := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(3900, 4200), rapid.IntRange(0, 100000))
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			at := rapid.IntRange(0, 100000).Draw(t, "at")
			body := all[at : at+size.Draw(t, "size")]
			want = append(want, body)
			switch rapid.IntRange(0, 3).Draw(t, "framing") {
			case 0:
				out.WriteString("\r\n")
				fallthrough
			case 1:
				out.WriteString(post("/", body))
			default:
				out.WriteString("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
				for len(body) > 0 {
					n := min(len(body), 1+size.Draw(t, "chunk"))
					fmt.Fprintf(&out, "%x\r\n%s\r\n", n, body[:n])
					body = body[n:]
				}
				out.WriteString("0\r\n\r\n")
			}
		}
		rest := out.String()
		var packets []string
		for packet := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 100), rapid.IntRange(1, 70000)); len(rest) > 0; {
			n := len(rest)
			if len(packets) < 200 {
				n = min(n, packet.Draw(t, "packet"))
			}
			packets = append(packets, rest[:n])
			rest = rest[n:]
		}
		sent := make(chan error, 1)
		go func() {
			var err error
			for _, p := range packets {
				if err == nil {
					_, err = io.WriteString(c, p)
				}
			}
			sent <- err
		}()
		for i, body := range want {
			a, err := c.tryRead("")
			if err != nil || a.StatusCode != 200 || a.body != body || a.Close {
				t.Fatalf("answer %d of %d: %v", i, len(want), err)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	})
}
