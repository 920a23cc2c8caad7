package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rawConn is a client that does to its connection what it likes.
type rawConn struct {
	*net.TCPConn
	t  testing.TB
	in *bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	return &rawConn{TCPConn: c.(*net.TCPConn), t: t, in: bufio.NewReader(c)}
}

func (c *rawConn) send(s string) {
	c.t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		c.t.Errorf("cannot send: %v", err)
	}
}

// post is a request as sent.
func post(path, id, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n%s\r\n%s",
		path, id, len(body), strings.Join(append(headers, ""), "\r\n"), body)
}

// response reads one answer's head.
func (c *rawConn) response() *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return resp
}

// answer reads one answer whole.
func (c *rawConn) answer() *answer {
	c.t.Helper()
	resp := c.response()
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header, streams: strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")}
	a.read(resp.Body, func() {})
	return a
}

// leaving is a way to leave.
type leaving struct {
	name  string
	leave func(c *rawConn)
}

var leavings = []leaving{
	{"close", func(c *rawConn) { _ = c.Close() }},
	{"reset", reset},
	{"half-close", func(c *rawConn) { _ = c.CloseWrite() }},
	{"stray byte, then close", func(c *rawConn) { c.send("\n"); _ = c.Close() }},
	{"stray bytes, later reset", func(c *rawConn) {
		c.send("\r\n")
		c.send("POST /v1/chat/compl")
		reset(c)
	}},
}

func reset(c *rawConn) {
	_ = c.SetLinger(0) // then Close sends a reset
	_ = c.Close()
}
