package upstream

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// fed is a connection whose engine has said data, in pieces of step bytes, and then
// closed.
type fed struct {
	net.Conn // nil: nothing else is used
	data     []byte
	step     int
}

func (f *fed) Read(p []byte) (int, error) {
	if len(f.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.data[:min(f.step, len(f.data))])
	f.data = f.data[n:]
	return n, nil
}

func (f *fed) Write(p []byte) (int, error)     { return len(p), nil }
func (f *fed) Close() error                    { return nil }
func (f *fed) SetReadDeadline(time.Time) error { return nil }

// told is what a client made of an answer.
type told struct {
	status  int
	header  []string // sorted, names in lower case
	body    string
	trailer []string
}

func ownReading(t *testing.T, data []byte, step int, method string) (got told, reusable bool, err error) {
	e := &Endpoint{cfg: Config{MaxHeaderBytes: DefaultMaxHeaderBytes, MaxIdleConns: 1}, addr: "engine:1"}
	o := newOwn(e, nil)
	o.pool.limit = time.Hour
	defer o.close()
	f := &fed{data: bytes.Clone(data), step: step}
	x := &exchange{own: o, c: newConn(f, f, nil), ctx: context.Background()}
	if err := x.run(&Request{Method: method, Path: "/"}); err != nil {
		return got, false, err
	}
	got.status = x.resp.Status
	x.resp.Each(func(n, v string) bool {
		if first := x.resp.Values(n); len(first) == 0 || x.resp.Get(n) != first[0] {
			t.Errorf("Get and Values of %q differ from Each", n)
		}
		got.header = append(got.header, strings.ToLower(n)+"="+v)
		return true
	})
	slices.Sort(got.header)
	for {
		left := x.Buffered()
		p, err := x.Next()
		if len(p) == 0 && err == nil {
			t.Error("neither payload nor error")
		}
		if left > 0 && (err != nil || len(p) != left) {
			t.Errorf("%d buffered, then %d %v", left, len(p), err)
		}
		got.body += string(p)
		if err == io.EOF {
			break
		}
		if err != nil {
			return got, false, err
		}
	}
	eachLine(string(x.chunks.Trailers()), func(n, v string) bool {
		got.trailer = append(got.trailer, strings.ToLower(n)+"="+v)
		return true
	})
	slices.Sort(got.trailer)
	if n := e.n.active.Load(); n != 0 {
		t.Errorf("%d active", n)
	}
	return got, o.idle() == 1, nil
}

func netHTTPReading(data []byte, method string) (got told, rest int, err error) {
	src := bytes.NewReader(data)
	br := bufio.NewReader(src)
	req := &http.Request{Method: method}
	var resp *http.Response
	for {
		if resp, err = http.ReadResponse(br, req); err != nil {
			return got, 0, err
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == 101 {
			break
		}
	}
	body, err := io.ReadAll(resp.Body)
	got.status, got.body = resp.StatusCode, string(body)
	flat := func(h http.Header) (out []string) {
		for k, vs := range h {
			for _, v := range vs {
				out = append(out, strings.ToLower(k)+"="+v)
			}
		}
		slices.Sort(out)
		return out
	}
	got.header, got.trailer = flat(resp.Header), flat(resp.Trailer)
	return got, br.Buffered() + src.Len(), err
}

// framingHeader names what net/http takes out of the headers, or adds to them.
func framingHeader(line string) bool {
	n, _, _ := strings.Cut(line, "=")
	return n == "content-length" || n == "transfer-encoding" || n == "connection" || n == "trailer"
}

// FuzzResponse holds the parser against net/http's. What the own client takes,
// net/http must take, and see the same in it: then no engine, and nobody who can
// put bytes into an engine's answer, can make the two differ about where an answer
// ends. The reverse need not hold, the own one may be stricter. Besides, the result
// must not depend on how the bytes are cut into reads.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		okAnswer,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5;ext=1\r\nhello\r\n3 \r\nabc\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\nContent-Length: 1\n\nxsurplus",
		"HTTP/1.0 200 OK\r\n\r\nto the end",
		"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\nA:\r\n\r\n",
		"HTTP/1.1 200 OK\r\nconnection: close, x\r\ntransfer-encoding: chunked\r\n\r\n1\nx\n0\n\n",
		"HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\nContent-Length: 00\r\n\r\n",
	} {
		f.Add([]byte(s), uint16(1), false)
		f.Add([]byte(s), uint16(1000), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, step uint16, isHead bool) {
		method := "GET"
		if isHead {
			method = "HEAD"
		}
		got, reusable, err := ownReading(t, data, int(step)+1, method)
		again, reusable2, err2 := ownReading(t, data, len(data)+1, method)
		// Surplus that was not read with the answer cannot be seen by looking at the
		// buffer, so reuse may differ.
		if (err == nil) != (err2 == nil) || err == nil && (fmt.Sprint(got) != fmt.Sprint(again) || reusable2 && !reusable) {
			t.Fatalf("in pieces of %d: %+v %t %v\nat once: %+v %t %v", step+1, got, reusable, err, again, reusable2, err2)
		}
		if err != nil {
			return
		}
		want, rest, err := netHTTPReading(data, method)
		if err != nil {
			t.Fatalf("net/http refuses what is taken: %v", err)
		}
		got.header = slices.DeleteFunc(got.header, framingHeader)
		want.header = slices.DeleteFunc(want.header, framingHeader)
		if got.status != want.status || got.body != want.body || !slices.Equal(got.header, want.header) {
			t.Fatalf("own: %+v\nnet/http: %+v", got, want)
		}
		for _, line := range want.trailer {
			if n, v, _ := strings.Cut(line, "="); v != "" && !slices.Contains(got.trailer, line) {
				t.Fatalf("trailer %q lost: %q", n, got.trailer)
			}
		}
		if reusable2 && len(data) < wire.BufSize && rest != 0 {
			t.Fatalf("the connection is kept although %d bytes are left", rest)
		}
	})
}
