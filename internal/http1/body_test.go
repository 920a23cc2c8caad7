package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/http1/http1test"
)

const expecting = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"

func TestContinueIsSentWhenTheBodyIsRead(t *testing.T) {
	t.Parallel()
	c := start(t, echo).dial()
	for range 2 {
		c.send(expecting)
		c.want(100, "")
		c.send("body")
		if a := c.want(200, "body"); a.Close {
			t.Error("the connection ends")
		}
	}
	// Who does not wait for it is served all the same.
	c.send(expecting + "body" + get("/"))
	c.want(100, "")
	c.want(200, "body")
	c.want(200, "")
}

func TestContinueIsNotSentToHTTP10(t *testing.T) {
	t.Parallel()
	c := start(t, echo).dial()
	c.send("POST / HTTP/1.0\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody")
	c.want(200, "body")
	c.ended()
}

// The client may send the body or not: nobody knows what comes next.
func TestConnectionClosesAfterABodyWithoutContinue(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"nothing done": func(http.ResponseWriter, *http.Request) {},
		"refused":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) },
		"flushed":      func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() },
		"closed":       func(_ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, handler).dial()
			c.send(expecting)
			if a := c.want(200, ""); !a.Close {
				t.Error("the answer does not say that the connection ends")
			}
			c.send("body" + get("/smuggled"))
			c.ended()
		})
	}
}

// A client that saw the final status may still send its body.
func TestBodyAfterAFinalStatusWithoutContinue(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // the client reads on below
		b, err := io.ReadAll(r.Body)
		got <- fmt.Sprint(string(b), err)
	}).dial()
	c.send(expecting)
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	c.send("body")
	if g := receive(t, "the body", got); g != "body<nil>" {
		t.Error(g)
	}
	c.ended0(resp)
}

// ended0 reads a body that is empty, and then the connection's end.
func (c *raw) ended0(resp *http.Response) {
	c.t.Helper()
	if b, err := io.ReadAll(resp.Body); len(b) > 0 || err != nil {
		c.t.Errorf("%q %v", b, err)
	}
	c.ended()
}

// A small rest is read so that the connection can be kept; it must not be taken
// for a request.
func TestUnreadBodies(t *testing.T) {
	t.Parallel()
	ignore := func(w http.ResponseWriter, _ *http.Request) { w.Header()["X"] = []string{"y"} }
	some := func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.ReadFull(r.Body, make([]byte, 10)); n != 10 || err != nil {
			t.Errorf("%d %v", n, err)
		}
	}
	closed := func(_ http.ResponseWriter, r *http.Request) {
		_ = r.Body.Close()
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != http.ErrBodyReadAfterClose {
			t.Errorf("after Close: %d %v", n, err)
		}
	}
	chunked := func(body string) string {
		var b strings.Builder
		b.WriteString("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
		for len(body) > 0 {
			n := min(len(body), 1000)
			fmt.Fprintf(&b, "%x;ext\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		return b.String() + "0\r\nTrailer: x\r\n\r\n"
	}
	for name, handler := range map[string]http.HandlerFunc{"ignored": ignore, "begun": some, "closed": closed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, handler)
			for _, n := range []int{10, 11, 4000, 5000, 100 << 10, maxDiscard} {
				body := strings.Repeat(get("/smuggled"), n/len(get("/smuggled"))+1)[:n]
				for _, req := range []string{post("/", body), chunked(body)} {
					c := r.dial()
					sent := make(chan error, 1)
					go func() {
						_, err := io.WriteString(c, req+post("/", "12345678901"))
						sent <- err
					}()
					for range 2 {
						if a := c.want(200, ""); a.Close {
							t.Errorf("%d bytes: the connection ends", n)
						}
					}
					if err := receive(t, "the writer", sent); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// What is too much to be read costs the connection, but never the answer.
func TestEndlessUnreadBodiesEndTheConnection(t *testing.T) {
	t.Parallel()
	r := start(t, func(http.ResponseWriter, *http.Request) {})
	piece := strings.Repeat("x", 1<<10)
	for name, head := range map[string]string{
		"length":          "Content-Length: 1000000000000\r\n\r\n",
		"chunked":         "Transfer-Encoding: chunked\r\n\r\n",
		"chunks of one":   "Transfer-Encoding: chunked\r\n\r\n",
		"extensions only": "Transfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := r.dial()
			over := make(chan struct{})
			go func() {
				defer close(over)
				_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\n"+head)
				for err == nil {
					switch name {
					case "length":
						_, err = io.WriteString(c, piece)
					case "chunked":
						_, err = io.WriteString(c, "400\r\n"+piece+"\r\n")
					case "chunks of one":
						_, err = io.WriteString(c, strings.Repeat("1\r\nx\r\n", 100))
					case "extensions only":
						_, err = io.WriteString(c, "1;"+piece[:1000]+"\r\nx\r\n")
					}
				}
			}()
			c.want(200, "")
			receive(t, "the writer's end", over)
		})
	}
}

func TestTruncatedBodies(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 1)
	r := start(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		errs <- err
		_, again := r.Body.Read(make([]byte, 1))
		errs <- again
	})
	const chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, sent := range []string{
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcd",
		chunked, chunked + "5", chunked + "5\r\nabc", chunked + "5\r\nabcde", chunked + "5\r\nabcde\r\n",
		chunked + "0\r\n", chunked + "0\r\nA: b\r\n", chunked + "0\r\n\r",
	} {
		for _, how := range []string{"half-close", "reset"} {
			c := r.dial()
			c.send(sent)
			if how == "half-close" {
				_ = c.CloseWrite() // what the handler sees tells
			} else {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
			for range 2 {
				if err := receive(t, "the handler", errs); err == nil || err == io.EOF || how == "half-close" && err != io.ErrUnexpectedEOF {
					t.Errorf("%q, then %s: %v", sent, how, err)
				}
			}
			if how == "half-close" {
				if a, err := c.tryRead(""); err == nil && a.StatusCode != 200 {
					t.Errorf("status %d", a.StatusCode)
				}
				c.ended()
			}
		}
	}
}

func TestBrokenChunksAreErrors(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	for _, body := range append(http1test.BrokenChunks(), http1test.OddChunks()...) {

		c := r.dial()
		c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body + get("/smuggled"))
		if a := c.read(""); a.StatusCode != 400 {
			t.Errorf("%.40q: status %d", body, a.StatusCode)
		}
		c.ended()
	}
}

// A deadline of a request's body is told in time, leaves the answer alone, and is
// no matter of the next request.
func TestReadDeadlines(t *testing.T) {
	t.Parallel()
	reading := make(chan struct{}, 1)
	var by time.Time
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		b := make([]byte, 10)
		switch r.URL.Path {
		case "/late":
			_ = rc.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // it is always one of ours
			if n, err := r.Body.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d %v", n, err)
			}
			w.WriteHeader(408)
			_ = rc.Flush() // the client reads it
		case "/again":
			_ = rc.SetReadDeadline(time.Now().Add(-time.Second)) // it is always one of ours
			if n, err := r.Body.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d %v", n, err)
			}
			_ = rc.SetReadDeadline(time.Time{}) // it is always one of ours
			reading <- struct{}{}
			echo(w, r)
		case "/armed":
			by = time.Now().Add(50 * time.Millisecond)
			_ = rc.SetReadDeadline(by) // it is always one of ours
			reading <- struct{}{}
			_, _ = r.Body.Read(b) // too late only on a slow machine
		case "/free":
			reading <- struct{}{}
			echo(w, r)
		}
	}).dial()
	half := func(path, body string) { c.send(strings.TrimSuffix(post(path, body), body)) }

	half("/late", "body")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 408 {
		t.Fatal(resp, err)
	}
	c.send("body")
	if b, err := io.ReadAll(resp.Body); len(b) > 0 || err != nil {
		t.Errorf("%q %v", b, err)
	}
	half("/again", "body")
	receive(t, "the handler", reading)
	c.send("body")
	c.want(200, "body")
	half("/armed", "body")
	receive(t, "the handler", reading)
	c.send("body")
	c.want(200, "")
	half("/free", "body")
	receive(t, "the handler", reading)
	time.Sleep(time.Until(by) + 10*time.Millisecond) // the old deadline must have passed
	c.send("body")
	c.want(200, "body")
}

func TestBodyReadsEndWithTheBaseContext(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "during", "after"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			begun, errs, goOn := make(chan struct{}), make(chan error, 1), make(chan struct{})
			r := start(t, func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				if when != "during" {
					<-goOn
				}
				_, err := io.ReadAll(r.Body)
				errs <- err
				<-r.Context().Done()
				w.WriteHeader(503)
			})
			c := r.dial()
			c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")
			receive(t, "the handler", begun)
			switch when {
			case "before":
				r.end()
				close(goOn)
			case "during":
				waitFor(t, "a read", func() bool {
					for _, c := range r.srv.all() {
						return c.inBody.Load()
					}
					return false
				})
				r.end()
			case "after":
				c.send("body")
				close(goOn)
			}
			err := receive(t, "the read", errs)
			r.end()
			if when == "after" && err != nil || when != "after" && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the read ended with %v", err)
			}
			if a := c.read(""); a.StatusCode != 503 {
				t.Errorf("status %d", a.StatusCode)
			}
		})
	}
}

// A handler may answer while the body still comes.
func TestReadAndWriteAtOnce(t *testing.T) {
	t.Parallel()
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		b := make([]byte, 100)
		for {
			n, err := r.Body.Read(b)
			_, _ = w.Write(b[:n]) // the client counts
			_ = rc.Flush()
			if err != nil {
				return
			}
		}
	})
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n00\r\n")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	for i := range 50 {
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != fmt.Sprintf("%02d", i) {
			t.Fatalf("%d: %q %v", i, b, err)
		}
		if i < 49 {
			c.send(fmt.Sprintf("2\r\n%02d\r\n", i+1))
		}
	}
	c.send("0\r\n\r\n" + get("/"))
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	c.want(200, "")
}

// readAll reads a body with a buffer of so many bytes.
func readAll(r io.Reader, size int) ([]byte, error) {
	var all []byte
	for b := make([]byte, size); ; {
		n, err := r.Read(b)
		if all = append(all, b[:n]...); err == io.EOF {
			return all, nil
		} else if err != nil {
			return all, err
		} else if n == 0 {
			return all, io.ErrNoProgress
		}
	}
}

// A chunked body that is whole here is whole for net/http, with the same payload
// and the same bytes behind it, whatever pieces it comes and is taken in.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		"5\r\nabcde\r\n0\r\n\r\nGET", "5;ext=\"a\"\r\nabcde\r\nA \r\n0123456789\r\n000\r\nA: b\r\nC:\t d\r\n\r\n\r\n", "0\r\n\r\n",
		"1\r\na\r\n1\r\nb\r\n0;x\r\n\r\n5\r\n", "7fffffffffffffff\r\nabc", "5\r\nabcdef\r\n0\r\n\r\n", "0\r\nA: b\n\r\n\r\n",
		"1001\r\n" + strings.Repeat("x", 0x1001) + "\r\n0\r\n\r\n",
	} {
		f.Add([]byte(s), uint16(1), uint16(1))
		f.Add([]byte(s), uint16(5000), uint16(5000))
	}
	f.Fuzz(func(t *testing.T, data []byte, step, size uint16) {
		const head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
		own := func(step, size int) (payload []byte, behind int, err error) {
			c := fedConn(append([]byte(head), data...), step)
			h, p, err := c.readHead(time.Hour)
			if p != nil || err != nil || c.x.begin(h) != nil {
				t.Fatal("the head is refused")
			}
			payload, err = readAll(c.x.req.Body, size)
			for behind = c.in.Len(); err == nil; {
				c.in.R = c.in.W
				if c.fill(time.Time{}) != nil {
					break
				}
				behind += c.in.Len()
			}
			return payload, behind, err
		}
		payload, behind, err := own(len(head)+max(1, int(step)), max(1, int(size)))
		payload1, _, err1 := own(1, 1)
		if !bytes.Equal(payload, payload1) || (err == nil) != (err1 == nil) {
			t.Fatalf("%q %v, byte by byte %q %v", payload, err, payload1, err1)
		}
		if err != nil {
			return
		}
		r := bufio.NewReaderSize(bytes.NewReader(append([]byte(head), data...)), 64<<10)
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(req.Body)
		if err != nil {
			t.Fatalf("net/http: %v", err)
		}
		left, err := io.Copy(io.Discard, r)
		if err != nil || !bytes.Equal(payload, want) || int64(behind) != left {
			t.Fatalf("%q and %d bytes behind it, want %q and %d", payload, behind, want, left)
		}
	})
}
