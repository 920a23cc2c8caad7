package upstream

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/wire"
)

func TestParseHead(t *testing.T) {
	ok := func(method, in string, status int, length int64, f framing, closing bool) {
		t.Helper()
		scanned := 0
		if n := wire.HeadEnd([]byte(in), &scanned); n != len(in) {
			t.Errorf("%q: head ends at %d", in, n)
			return
		}
		h, err := parseHead([]byte(in), method)
		if err != nil || h.status != status || h.length != length || h.framing != f || h.close != closing {
			t.Errorf("%q: %+v %v", in, h, err)
		}
	}
	ok("GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5, framedLength, false)
	ok("GET", "HTTP/1.1 200\r\nContent-Length:0\r\n\r\n", 200, 0, framedNone, false)
	ok("GET", "HTTP/1.1 200 \nContent-Length:\t 007 \n\n", 200, 7, framedLength, false)
	ok("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\n", 200, 5, framedLength, false)
	ok("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", 200, -1, framedChunked, false)
	ok("GET", "HTTP/1.1 200 OK\r\n\r\n", 200, -1, framedEOF, true)
	ok("GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n", 200, 1, framedLength, true)
	ok("GET", "HTTP/1.1 200 OK\r\nConnection: foo , CLOSE\r\nContent-Length: 1\r\n\r\n", 200, 1, framedLength, true)
	ok("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 200, 9, framedNone, false)
	ok("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, -1, framedNone, false)
	ok("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, -1, framedNone, false)
	ok("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", 204, 3, framedNone, true)
	ok("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", 304, 3, framedNone, false)
	ok("GET", "HTTP/1.1 200 OK\r\nX: caf\xe9\r\n\r\n", 200, -1, framedEOF, true)

	bad := func(lines string) {
		t.Helper()
		if h, err := parseHead([]byte(strings.ReplaceAll(lines, "|", "\r\n")), "GET"); err == nil {
			t.Errorf("%q was taken: %+v", lines, h)
		}
	}
	bad("HTTP/1.1 20 OK||")
	bad("HTTP/1.1 2000 OK||")
	bad("HTTP/1.1 099 No||")
	bad("HTTP/1.1 600 No||")
	bad("HTTP/1.1  200 OK||")
	bad("HTTP/1.2 200 OK||")
	bad("HTTP/2.0 200 OK||")
	bad("http/1.1 200 OK||")
	bad("HTTP/1.1 200OK||")
	bad("HTTP/1.1 200 O\x00K||")
	bad("HTTP/1.1 200 OK| folded: x||")
	bad("HTTP/1.1 200 OK|A: 1| folded||")
	bad("HTTP/1.1 200 OK|A : 1||")
	bad("HTTP/1.1 200 OK|A||")
	bad("HTTP/1.1 200 OK|: 1||")
	bad("HTTP/1.1 200 OK|A: 1\r2||")
	bad("HTTP/1.1 200 OK|A: 1\x002||")
	bad("HTTP/1.1 200 OK|Content-Length: 1|Content-Length: 2||")
	bad("HTTP/1.1 200 OK|Content-Length: 1, 1||")
	bad("HTTP/1.1 200 OK|Content-Length: +1||")
	bad("HTTP/1.1 200 OK|Content-Length: -1||")
	bad("HTTP/1.1 200 OK|Content-Length:||")
	bad("HTTP/1.1 200 OK|Content-Length: 9223372036854775808||")
	bad("HTTP/1.1 200 OK|Content-Length: 0x1||")
	bad("HTTP/1.1 200 OK|Content-Length: 1|Transfer-Encoding: chunked||")
	bad("HTTP/1.1 200 OK|Transfer-Encoding: gzip, chunked||")
	bad("HTTP/1.1 200 OK|Transfer-Encoding: identity||")
	bad("HTTP/1.1 200 OK|Transfer-Encoding: chunked|Transfer-Encoding: chunked||")
	bad("HTTP/1.0 200 OK|Transfer-Encoding: chunked||")
	bad("HTTP/1.1 200 OK|" + strings.Repeat("A: 1|", maxHeaderLines+1) + "|")
}
