package storetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy passes connections on to a server, and loses what it is told to.
type Proxy struct {
	// Address is where it listens.
	Address string

	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	mode  Mode                  // guarded by mu
	conns map[net.Conn]struct{} // both ends; guarded by mu
	ended bool                  // guarded by mu
}

// Mode is what a proxy does with what it gets.
type Mode int

// The modes of a Proxy. They hold for connections that are there too.
const (
	// Pass passes everything on.
	Pass Mode = iota
	// CutAnswers cuts a connection when the server says something on it, and loses that.
	CutAnswers
	// CutOneAnswer does that once, and passes everything on afterwards.
	CutOneAnswer
	// Swallow takes what both sides say, and loses it.
	Swallow
	// Refuse cuts new connections at once.
	Refuse
)

// StartProxy starts a proxy in front of a server. It ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Address: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]struct{}{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Set changes what is done from now on.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
}

func (p *Proxy) now() Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// next is the mode for what was just read.
func (p *Proxy) next(answer bool) Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mode
	if m == CutOneAnswer && answer {
		p.mode = Pass
	}
	return m
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.now() == Refuse {
			client.Close()
			continue
		}
		p.keep(client)
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.close(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.keep(server)
	defer p.close(server)
	var up sync.WaitGroup
	up.Go(func() {
		p.copy(server, client, false)
		server.Close()
	})
	p.copy(client, server, true)
	client.Close()
	server.Close()
	up.Wait()
}

// copy passes on until one side ends.
func (p *Proxy) copy(to io.Writer, from io.Reader, answers bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		switch m := p.next(answers); {
		case m == Swallow:
			continue
		case answers && (m == CutAnswers || m == CutOneAnswer):
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		c.Close()
	}
	p.conns[c] = struct{}{}
}

func (p *Proxy) close(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Close()
	delete(p.conns, c)
}
