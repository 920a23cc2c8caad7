package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// scripted is a server that does exactly what f says with each connection, and
// counts the connections and requests it has seen.
type scripted struct {
	url string
	ln  net.Listener
	wg  sync.WaitGroup
	end chan struct{}

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

// script serves every connection with f, n counting from 0. The connection is
// closed when f returns.
func script(t testing.TB, f func(n int, c *peer)) *scripted {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{url: "http://" + ln.Addr().String(), ln: ln, end: make(chan struct{})}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				defer c.Close()
				f(n, &peer{TCPConn: c.(*net.TCPConn), br: bufio.NewReader(c), end: s.end})
			}()
		}
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *scripted) stop() {
	close(s.end)
	s.ln.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *scripted) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// peer is the server's end of a connection.
type peer struct {
	*net.TCPConn
	br  *bufio.Reader
	end chan struct{} // closed when the test is over
}

// head reads a request's head; nil if the connection ended.
func (p *peer) head() *http.Request {
	r, err := http.ReadRequest(p.br)
	if err != nil {
		return nil
	}
	return r
}

// request reads a request with its body.
func (p *peer) request() (*http.Request, string, bool) {
	r := p.head()
	if r == nil {
		return nil, "", false
	}
	b, err := io.ReadAll(r.Body)
	return r, string(b), err == nil
}

func (p *peer) say(s string) error {
	_, err := io.WriteString(p.TCPConn, s)
	return err
}

// gone waits until the client has closed or reset the connection.
func (p *peer) gone() {
	for {
		if _, err := p.br.ReadByte(); err != nil {
			return
		}
	}
}

// nothingSent reports whether err says that nothing of the request can have reached
// the engine, so that it can be sent again without the risk that it runs twice.
func nothingSent(err error) bool {
	var e *Error
	return errors.As(err, &e) && !e.Sent && e.Kind != KindCanceled && e.Kind != KindInvalid
}
