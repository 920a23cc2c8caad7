package nethttp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/http1"
)

// A client that disconnects while its request runs is noticed, in each of the ways there
// are, also behind up to 16 KiB that were not read.
func TestClientDisconnectIsNoticed(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 1)
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wait" {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(w).Flush() // the client may be gone
		<-r.Context().Done()
		gone <- struct{}{}
	})
	for _, req := range []string{get("/wait"), post("/wait", "xxxx"), post("/wait", strings.Repeat("x", 100000))} {
		for _, behind := range []string{"", get("/"), strings.Repeat(get("/"), 200)} {
			for _, how := range []string{"close", "half-close", "reset"} {
				c := r.dial()
				c.send(req + behind)
				if resp := c.head(); resp.StatusCode != http.StatusOK {
					t.Fatal(resp.Status)
				}
				switch how {
				case "half-close":
					_ = c.CloseWrite() // what the handler sees tells
				case "reset":
					_ = c.SetLinger(0)
					fallthrough
				default:
					_ = c.Close()
				}
				receive(t, "the end of the request's context: "+how, gone)
			}
		}
	}
}

// A request behind one that runs is served after it.
func TestRequestsBehindALongOneAreServed(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			begun <- struct{}{}
			<-goOn
		}
		echo(w, r)
	})
	c := r.dial()
	c.send(post("/wait", "first"))
	receive(t, "the handler", begun)
	c.send(post("/", "second") + post("/", "third"))
	close(goOn)
	c.want(http.StatusOK, "first")
	c.want(http.StatusOK, "second")
	c.want(http.StatusOK, "third")
}

// A drain closes idle connections; the others end with their current request, and their
// answers say so.
func TestDrain(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			begun <- struct{}{}
			<-goOn
		}
		echo(w, r)
	})
	idle, busy := r.dial(), r.dial()
	idle.send(get("/"))
	idle.want(http.StatusOK, "")
	busy.send(post("/wait", "x"))
	receive(t, "the handler", begun)

	r.srv.Drain()
	idle.ended()
	late := r.dial()
	late.send(post("/", "y"))
	if a := late.want(http.StatusOK, "y"); !a.Close {
		t.Error("a new connection stays")
	}
	late.ended()
	close(goOn)
	if a := busy.want(http.StatusOK, "x"); !a.Close {
		t.Error("the answer does not say that the connection ends")
	}
	busy.ended()
}

// Shutdown closes the port and the connections without a request, and waits for the
// others.
func TestShutdownWaitsForAnswers(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(begun)
			<-goOn
		}
		echo(w, r)
	})
	fresh, idle, busy := r.dial(), r.dial(), r.dial()
	idle.send(get("/"))
	idle.want(http.StatusOK, "")
	busy.send(post("/wait", "x"))
	receive(t, "the handler", begun)
	over := make(chan error, 2)
	for range 2 { // twice is no more than once
		go func() { over <- r.srv.Shutdown(context.Background()) }()
	}
	fresh.ended()
	idle.ended()
	r.waitFor("the port to be closed", func() bool {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			_ = c.Close() // accepted by the kernel alone
		}
		return err != nil
	})
	select {
	case err := <-over:
		t.Fatalf("Shutdown did not wait: %v", err)
	default:
	}
	close(goOn)
	busy.want(http.StatusOK, "x")
	for range 2 {
		if err := receive(t, "Shutdown", over); err != nil {
			t.Error(err)
		}
	}
}

// What hangs is cut at the end of the drain, and no answer looks whole by that.
func TestShutdownCutsHangingConnections(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 2)
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half") // the client counts
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- struct{}{}
	})
	var answers []*http.Response
	for _, version := range []string{"1.0", "1.1"} {
		c := r.dial()
		c.send("GET / HTTP/" + version + "\r\nHost: h\r\n\r\n")
		answers = append(answers, c.head())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.srv.Shutdown(ctx); err != context.Canceled {
		t.Error(err)
	}
	for _, a := range answers {
		receive(t, "the handler", ended)
		if b, err := io.ReadAll(a.Body); err == nil {
			t.Errorf("%q looks whole", b)
		}
	}
}

// A handler that panics costs its connection, and its answer does not look whole. Any value
// but http.ErrAbortHandler is reported.
func TestPanics(t *testing.T) {
	t.Parallel()
	reports := make(chan string, 2)
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half") // the client counts
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		panic("oops")
	}, func(s *http1.Server) { s.Report = func(what string, err any) { reports <- fmt.Sprint(what, err) } })
	for _, path := range []string{"/abort", "/oops"} {
		for _, version := range []string{"1.0", "1.1"} {
			c := r.dial()
			c.send("GET " + path + " HTTP/" + version + "\r\nHost: h\r\n\r\n")
			if b, err := io.ReadAll(c.head().Body); err == nil {
				t.Errorf("%s %s: %q looks whole", path, version, b)
			}
			if path == "/oops" {
				if said := receive(t, "the report", reports); !strings.Contains(said, "oops") {
					t.Error(said)
				}
			}
		}
	}
	select {
	case said := <-reports:
		t.Errorf("reported %s", said)
	default:
	}
}
