package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/http1/http1test"
	"github.com/sluice-router/sluice/internal/wire"
)

// A head's status: 200 where it reaches the handler.
func TestHeads(t *testing.T) {
	t.Parallel()
	for _, c := range http1test.Heads(maxHeaderLines) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r := start(t, echo)
			s := r.dial()
			s.send(c.Text())
			_ = s.CloseWrite() // the answer tells
			a := s.read("")
			if a.StatusCode != c.Status {
				t.Errorf("status %d %s, want %d", a.StatusCode, a.body, c.Status)
			}
			if c.Status != 200 && !a.Close {
				t.Error("the connection stays")
			}
			s.ended()
		})
	}
}

// A request that is none has its end: what follows it is not looked at.
func TestNothingBehindAMalformedHeadIsServed(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n",
		"\r\r\n\r\n",
		"\rGET / HTTP/1.1\r\nHost: h\r\n\r\n",
		strings.Repeat("\r\n", maxLeadingLines) + get("/"),
	} {
		c := r.dial()
		c.send(head + get("/smuggled"))
		if a := c.read(""); a.StatusCode != 400 {
			t.Errorf("%q: status %d", head, a.StatusCode)
		}
		c.ended()
	}
}

// A HEAD's answer has no body, whatever is wrong with the request.
func TestRefusedHEADHasNoBody(t *testing.T) {
	t.Parallel()
	c := start(t, echo).dial()
	c.send("HEAD / HTTP/1.1\r\n\r\n")
	if a := c.read("HEAD"); a.StatusCode != 400 {
		t.Errorf("status %d", a.StatusCode)
	}
	c.ended()
}

func TestEmptyLinesBeforeARequestAreSkipped(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	for _, lines := range []string{"\n", "\r\n", "\r\n\r\n", "\n\r\n\n"} {
		for _, apart := range []bool{false, true} {
			c := r.dial()
			for range 3 {
				if apart {
					for i := range lines {
						c.send(lines[i : i+1])
					}
				} else {
					c.send(lines)
				}
				c.send(post("/", "x"))
				c.want(200, "x")
			}
		}
	}
}

// A head may come in any pieces.
func TestHeadsByteByByte(t *testing.T) {
	t.Parallel()
	const all = "\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nA: b\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: h\n\n"
	for step := 1; step <= len(all); step++ {
		c := fedConn([]byte(all), step)
		for i, path := range []string{"/a", "/2"} {
			head, p, err := c.readHead(time.Hour)
			if p != nil || err != nil {
				t.Fatalf("step %d, request %d: %v %v", step, i, p, err)
			}
			if p := c.x.begin(head); p != nil || c.x.req.URL.Path != path {
				t.Fatalf("step %d, request %d: %v %v", step, i, p, c.x.req.URL)
			}
			if !c.x.body.discard() {
				t.Fatalf("step %d: a body without an end", step)
			}
			c.x.reset()
			c.state.Store(stateIdle)
		}
		if _, _, err := c.readHead(time.Hour); err != io.EOF {
			t.Fatalf("step %d: at the end %v", step, err)
		}
	}
}

// Looking for a head's end must not begin anew with each byte.
func TestHeadEndIsSearchedOnce(t *testing.T) {
	t.Parallel()
	head := []byte("GET / HTTP/1.1\r\n" + strings.Repeat("A: "+strings.Repeat("b", 100)+"\r\n", 500) + "\r\n")
	scanned, looked := 0, 0
	for i := 1; i < len(head); i++ {
		looked += i - scanned
		if n := wire.HeadEnd(head[:i], &scanned); n != -1 {
			t.Fatalf("an end at %d", n)
		}
	}
	if looked > 3*len(head) {
		t.Errorf("%d bytes were looked at of %d", looked, len(head))
	}
	if n := wire.HeadEnd(head, &scanned); n != len(head) {
		t.Errorf("the end is at %d of %d", n, len(head))
	}
}

func TestSlowHeadIs408(t *testing.T) {
	t.Parallel()
	r := start(t, echo, func(s *Server) { s.HeaderTimeout = 50 * time.Millisecond })
	for _, sent := range []string{"G", "GET / HTTP/1.1\r\nHost: h\r\n"} {
		c := r.dial()
		c.send(sent)
		if a := c.read(""); a.StatusCode != 408 || !a.Close {
			t.Errorf("status %d", a.StatusCode)
		}
		c.ended()
	}
	// On a kept connection the time runs from the first byte of the request.
	c := r.dial()
	c.send(get("/"))
	c.want(200, "")
	c.send("\r\nGET")
	if a := c.read(""); a.StatusCode != 408 {
		t.Errorf("status %d", a.StatusCode)
	}
	c.ended()
}

func TestCutOffHeadIs400(t *testing.T) {
	t.Parallel()
	r := start(t, echo)
	c := r.dial()
	c.send("GET / HTTP/1.1\r\nHost:")
	_ = c.CloseWrite() // the answer tells
	if a := c.read(""); a.StatusCode != 400 {
		t.Errorf("status %d", a.StatusCode)
	}
	c.ended()
}

// Nobody is told anything who said nothing.
func TestSilentConnectionsAreClosedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := start(t, echo, func(s *Server) { s.HeaderTimeout, s.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond })
	for _, sent := range []string{"", "\r\n", "\r"} {
		c := r.dial()
		c.send(sent)
		c.ended()
	}
	c := r.dial()
	c.send(get("/"))
	c.want(200, "")
	c.ended()
	c = r.dial()
	_ = c.CloseWrite() // the end tells
	c.ended()
}

// Nothing of a request may be seen by the next one, whatever a handler did with it.
func TestRequestsOnOneConnectionDoNotMix(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	seen := make(chan http.Request, 1)
	mux.HandleFunc("/first/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.Form.Get("a") != "1" {
			t.Errorf("%v %v", r.Form, err)
		}
		r.SetPathValue("mine", "x")
		r.Header.Add("A", "another")
		r.Header["B"] = append(r.Header["B"], "another")
		r.Header = http.Header{"Its": {"own"}}
		r.Trailer = http.Header{"T": nil}
		w.Header().Set("X-First", "1")
		w.Header().Set("Connection", "keep-alive")
	})
	mux.HandleFunc("/second", func(w http.ResponseWriter, r *http.Request) {
		s := *r
		s.Header, s.URL = r.Header.Clone(), &url.URL{Host: r.URL.Host}
		seen <- s
		if r.PathValue("id") != "" || r.PathValue("mine") != "" || r.Pattern != "/second" {
			t.Errorf("path values %q %q, pattern %q", r.PathValue("id"), r.PathValue("mine"), r.Pattern)
		}
		if err := r.ParseForm(); err != nil || r.Form.Get("a") != "" || r.Form.Get("b") != "2" {
			t.Errorf("%v %v", r.Form, err)
		}
	})
	c := start(t, mux.ServeHTTP).dial()
	c.send("POST http://other/first/7?a=1 HTTP/1.1\r\nHost: h\r\nA: 1\r\nA: 2\r\nB: 1\r\nConnection: x\r\nExpect: 100-continue\r\n" +
		"Content-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nc=3\r\n0\r\n\r\n")
	a := c.read("")
	if a.StatusCode == 100 {
		a = c.read("")
	}
	if a.StatusCode != 200 {
		t.Fatalf("status %d", a.StatusCode)
	}
	c.send("GET /second?b=2 HTTP/1.1\r\nhost: h2\r\nB: 2\r\n\r\n")
	if a = c.read(""); a.StatusCode != 200 || a.Header.Get("X-First") != "" || a.Close {
		t.Errorf("status %d %v", a.StatusCode, a.Header)
	}
	second := <-seen
	if want := (http.Header{"B": {"2"}}); !reflect.DeepEqual(second.Header, want) {
		t.Errorf("header %v, want %v", second.Header, want)
	}
	if second.Host != "h2" || second.ContentLength != 0 || second.TransferEncoding != nil || second.Close || second.Body != http.NoBody ||
		second.Trailer != nil || second.RequestURI != "/second?b=2" || second.URL.Host != "" || second.Method != "GET" || second.RemoteAddr != c.LocalAddr().String() {
		t.Errorf("%+v", second)
	}
}

// The values of a header lie in one array as long as they fit it.
func TestAnyNumberOfHeaders(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	c := start(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Clone() }).dial()
	for n := range 40 {
		want := http.Header{}
		var b strings.Builder
		b.WriteString("GET / HTTP/1.1\r\nHost: h\r\n")
		for i := range n {
			for j := range i%3 + 1 {
				name, value := fmt.Sprint("X-", i), fmt.Sprint(n, " ", i, " ", j)
				want.Add(name, value)
				fmt.Fprintf(&b, "%s: %s\r\n", strings.ToLower(name), value)
			}
		}
		c.send(b.String() + "\r\n")
		c.want(200, "")
		if got := <-seen; !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// What a large head took is not kept by a connection that waits.
func TestIdleConnectionKeepsNothingOfALargeHead(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("GET /" + strings.Repeat("a", 10000) + " HTTP/1.1\r\nHost: h\r\n")
	for i := range maxHeaderLines - 1 {
		fmt.Fprintf(&b, "X-%d: %d\r\n", i, i)
	}
	c := fedConn([]byte(b.String()+"\r\n"), 100000)
	head, p, err := c.readHead(time.Hour)
	if p != nil || err != nil {
		t.Fatal(p, err)
	}
	first := c.x.header
	if p := c.x.begin(head); p != nil {
		t.Fatal(p)
	}
	c.releaseBuffer()
	c.x.reset()
	if reflect.ValueOf(c.x.header).Pointer() == reflect.ValueOf(first).Pointer() || reflect.ValueOf(c.x.req.Header).Pointer() != reflect.ValueOf(c.x.header).Pointer() {
		t.Error("the large map is kept")
	}
	if c.in.B != nil || c.x.req.Proto != "" || c.x.req.RequestURI != "" || c.x.url.Path != "" {
		t.Error("a part of the head is kept")
	}
}

// What is taken here, net/http takes too, and sees the same in it. The exceptions:
// empty lines before the request are skipped (as net/http's server does behind a
// POST, and RFC 9112, section 2.2, asks for); HTTP/1.0 has no keep-alive here;
// net/http makes up a Cache-Control for a Pragma; what a Trailer announces is of no
// interest here, as no handler gets to see trailers.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		get("/"), post("/a/b?c=d", "body"),
		"\r\nGET / HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"GET http://a:1/b%41?c#d HTTP/1.1\r\nHost: h\r\nhost: i\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
		"POST //a!%2f? HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\nTrailer: A\n\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\nConnection: a, CLOSE\r\n\r\nabc",
		"GET / HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\nA: b\r\nA: c\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chun\u212aed\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nTrailer: A\r\n\r\n",
		"CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
	} {
		f.Add([]byte(s), 1)
		f.Add([]byte(s), 1000)
	}
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		c := fedConn(data, max(1, step))
		head, p, err := c.readHead(time.Hour)
		if p != nil || err != nil {
			return
		}
		if c.x.begin(head) != nil {
			return
		}
		for len(data) > 0 && (data[0] == '\r' || data[0] == '\n') {
			data = data[1:]
		}
		want, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil && strings.Contains(err.Error(), "bad trailer key") {
			return
		}
		if err != nil {
			t.Fatalf("net/http: %v", err)
		}
		got := c.x.req
		delete(want.Header, "Trailer")
		if got.Method != want.Method || got.RequestURI != want.RequestURI || got.Host != want.Host || got.Proto != want.Proto ||
			got.ProtoMajor != want.ProtoMajor || got.ProtoMinor != want.ProtoMinor || got.ContentLength != want.ContentLength {
			t.Fatalf("\n%+v, want\n%+v", got, want)
		}
		if !reflect.DeepEqual(got.URL, want.URL) {
			t.Fatalf("%#v, want %#v", got.URL, want.URL)
		}
		if !reflect.DeepEqual(got.TransferEncoding, want.TransferEncoding) {
			t.Fatalf("%v, want %v", got.TransferEncoding, want.TransferEncoding)
		}
		if got.ProtoMinor == 1 && got.Close != want.Close || got.ProtoMinor == 0 && !got.Close {
			t.Fatalf("close %v, want %v", got.Close, want.Close)
		}
		if (got.Body == http.NoBody) != (want.Body == http.NoBody) {
			t.Fatal("they differ about there being a body")
		}
		if got.Header["Cache-Control"] == nil && want.Header.Get("Pragma") == "no-cache" {
			delete(want.Header, "Cache-Control")
		}
		if !reflect.DeepEqual(got.Header, want.Header) {
			t.Fatalf("%q, want %q", got.Header, want.Header)
		}
	})
}
