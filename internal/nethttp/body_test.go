package nethttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/http1/http1test"
)

func TestBrokenChunksAreErrors(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	for _, body := range http1test.BrokenChunks() {
		c := r.dial()
		c.send(chunked + body + get("/smuggled"))
		_ = c.CloseWrite() // net/http may wait for more of it
		a := c.head()
		if b, err := io.ReadAll(a.Body); a.StatusCode != http.StatusBadRequest || err != nil {
			t.Errorf("%.40q: status %d %q (%v)", body, a.StatusCode, b, err)
		}
		c.ended()
	}
}

// Nothing behind a body that another reader may see the end of elsewhere is served.
func TestNothingIsServedBehindOddChunks(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	for _, body := range http1test.OddChunks() {
		c := r.dial()
		c.send(chunked + body + get("/smuggled"))
		_, _ = io.Copy(io.Discard, c.head().Body) // net/http decides about this one
		c.ended()
	}
}

// A body that ends too early is an error for the handler, never a whole one.
func TestTruncatedBodies(t *testing.T) {
	t.Parallel()
	begun, errs := make(chan struct{}, 1), make(chan error, 1)
	r := start(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		_, err := io.ReadAll(r.Body)
		errs <- err
	})
	const length = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
	for _, sent := range []string{length, length + "abcd", chunked, chunked + "5", chunked + "5\r\nabc", chunked + "5\r\nabcde\r\n", chunked + "0\r\n"} {
		for _, how := range []string{"half-close", "reset"} {
			c := r.dial()
			c.send(sent)
			receive(t, "the handler", begun) // a reset may destroy a head that was not read
			if how == "half-close" {
				_ = c.CloseWrite() // what the handler sees tells
			} else {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
			if err := receive(t, "the end of the body", errs); err == nil || how == "half-close" && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q, then %s: %v", sent, how, err)
			}
		}
	}
}

// A small rest of a body is read so that the connection can be kept, and is not taken for a
// request. A large or endless one costs the connection, but not the answer.
func TestUnreadBodies(t *testing.T) {
	t.Parallel()
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "0") // so that the answer is whole before the rest is read
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
	})
	for _, n := range []int{11, 5000, maxDiscard} {
		c := r.dial()
		body := strings.Repeat(get("/smuggled"), n/len(get("/smuggled"))+1)[:n]
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(c, post("/", body)+post("/", "12345678901"))
			sent <- err
		}()
		for range 2 {
			if a := c.want(http.StatusOK, ""); a.Close {
				t.Errorf("%d bytes: the connection ends", n)
			}
		}
		if err := receive(t, "the writer", sent); err != nil {
			t.Error(err)
		}
	}

	c := r.dial()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", 1<<40)
		for err == nil {
			_, err = io.WriteString(c, strings.Repeat("x", 1<<10))
		}
	}()
	c.want(http.StatusOK, "")
	receive(t, "the end of the connection", over)

	c = r.dial()
	c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\n12345678901")
	c.want(http.StatusOK, "") // before the rest, which does not come
	_ = c.CloseWrite()
	c.ended()
}

// Reads of bodies end with the base context, as a stop of the server does it.
func TestBodyReadsEndWithTheBaseContext(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 1)
	r := start(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		errs <- err
	})
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc")
	r.waitFor("the handler", func() bool {
		for _, c := range r.srv.all() {
			if c.inBody.Load() {
				return true
			}
		}
		return false
	})
	r.end()
	if err := receive(t, "the handler", errs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read ended with %v", err)
	}
	if err := r.srv.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}
