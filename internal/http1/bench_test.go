package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// benchServers runs a benchmark in front of this package's server and of net/http's,
// with the same handler and the same client, whose own cost is in both figures. The
// client is as plain as can be.
func benchServers(b *testing.B, handler http.HandlerFunc, exchange func(b *testing.B, c net.Conn, r *bufio.Reader)) {
	b.Run("http1", func(b *testing.B) { benchAt(b, start(b, handler).addr, exchange) })
	b.Run("nethttp", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		defer func() {
			s.Close()
			<-done
		}()
		benchAt(b, l.Addr().String(), exchange)
	})
}

func benchAt(b *testing.B, addr string, exchange func(b *testing.B, c net.Conn, r *bufio.Reader)) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }() // all was read
	r := bufio.NewReaderSize(c, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		exchange(b, c, r)
	}
}

const benchHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: router:8080\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n" +
	"Authorization: Bearer 0123456789abcdef\r\nContent-Type: application/json\r\nContent-Length: "

// skipHead reads an answer's head.
func skipHead(b *testing.B, r *bufio.Reader) (length int) {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			b.Fatal(err)
		}
		if len(line) == 2 {
			return length
		}
		const name = "Content-Length: "
		if len(line) > len(name) && string(line[:len(name)]) == name {
			for _, c := range line[len(name) : len(line)-2] {
				length = 10*length + int(c-'0')
			}
		}
	}
}

// A small request and a small answer on a connection that is kept.
func BenchmarkRequest(b *testing.B) {
	request := []byte(fmt.Sprint(benchHead, 300, "\r\n\r\n", numbered(300)))
	reply := []byte(numbered(400))
	length := []string{strconv.Itoa(len(reply))}
	kind := []string{"application/json"}
	var body [512]byte // there is one connection
	handler := func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.ReadFull(r.Body, body[:]); n != 300 || err != io.ErrUnexpectedEOF {
			b.Errorf("%d %v", n, err)
		}
		w.Header()["Content-Type"], w.Header()["Content-Length"] = kind, length
		_, _ = w.Write(reply) // the client counts
	}
	benchServers(b, handler, func(b *testing.B, c net.Conn, r *bufio.Reader) {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		if n, err := r.Discard(skipHead(b, r)); n != len(reply) || err != nil {
			b.Fatal(n, err)
		}
	})
}

// A stream of events, each on its way at once. The client sends the next request
// when it has read the last chunk.
func BenchmarkStream(b *testing.B) {
	request := []byte(fmt.Sprint(benchHead, 300, "\r\n\r\n", numbered(300)))
	event := []byte("data: " + numbered(200) + "\n\n")
	kind := []string{"text/event-stream"}
	var body [512]byte // there is one connection
	handler := func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.ReadFull(r.Body, body[:]); n != 300 || err != io.ErrUnexpectedEOF {
			b.Errorf("%d %v", n, err)
		}
		w.Header()["Content-Type"] = kind
		rc := http.NewResponseController(w)
		for range 16 {
			_, _ = w.Write(event) // the client counts
			if err := rc.Flush(); err != nil {
				b.Error(err)
			}
		}
	}
	benchServers(b, handler, func(b *testing.B, c net.Conn, r *bufio.Reader) {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		skipHead(b, r)
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				b.Fatal(err)
			}
			size, err := strconv.ParseUint(string(line[:len(line)-2]), 16, 31)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := r.Discard(int(size) + 2); err != nil {
				b.Fatal(err)
			}
			if size == 0 {
				return
			}
		}
	})
}
