//go:build realengine

package main

import (
	endian "encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// eventsProxy stands in front of a port of an engine's KV events.
type eventsProxy struct {
	t        testing.TB
	listener net.Listener
	to       string // host:port
	done     sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	refuses bool
	drop    int // batches that are yet to be dropped
	dropped int
	open    map[net.Conn]bool
}

// startProxy starts one in front of a port of this machine.
func startProxy(t testing.TB, to int) *eventsProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &eventsProxy{t: t, listener: l, to: net.JoinHostPort("127.0.0.1", strconv.Itoa(to)), open: map[net.Conn]bool{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.refuse(true)
		p.done.Wait()
	})
	return p
}

func (p *eventsProxy) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// refuse closes all connections, and new ones at once, or lets them be.
func (p *eventsProxy) refuse(refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses = refuses; refuses {
		for c := range p.open {
			c.Close()
		}
	}
}

// dropNext drops the next batch.
func (p *eventsProxy) dropNext() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop++
}

// waitDropped waits until n batches were dropped in all.
func (p *eventsProxy) waitDropped(n int) {
	p.t.Helper()
	eventually(p.t, "a batch of events is dropped", func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.dropped < n {
			return "none has come"
		}
		return ""
	})
}

func (p *eventsProxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(c) })
	}
}

func (p *eventsProxy) serve(c net.Conn) {
	defer c.Close()
	engine, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer engine.Close()
	if !p.add(c, engine) {
		return
	}
	defer p.remove(c, engine)
	p.done.Go(func() {
		_, _ = io.Copy(engine, c)
		engine.Close()
	})
	_ = p.pass(c, engine) // until one of them is closed
}

func (p *eventsProxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.open[c] = true
	}
	return !p.refuses
}

func (p *eventsProxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.open, c)
	}
}

// The flags of a ZMTP frame, and the length of the greeting before the first.
const (
	frameMore    = 1
	frameLong    = 2
	frameCommand = 4
	greeting     = 64
)

// pass passes on what the engine sends, but for the messages that are dropped.
func (p *eventsProxy) pass(to io.Writer, from io.Reader) error {
	if _, err := io.CopyN(to, from, greeting); err != nil {
		return err
	}
	for {
		var message []byte
		for more := true; more; {
			head := make([]byte, 2, 9)
			if _, err := io.ReadFull(from, head); err != nil {
				return err
			}
			size := uint64(head[1])
			if head[0]&frameLong != 0 {
				head = head[:9]
				if _, err := io.ReadFull(from, head[2:]); err != nil {
					return err
				}
				size = endian.BigEndian.Uint64(head[1:])
			}
			body := make([]byte, size)
			if _, err := io.ReadFull(from, body); err != nil {
				return err
			}
			message = append(append(message, head...), body...)
			more = head[0]&frameMore != 0
			if head[0]&frameCommand != 0 {
				break
			}
		}
		if message[0]&frameCommand == 0 && p.takesOut() {
			continue
		}
		if _, err := to.Write(message); err != nil {
			return err
		}
	}
}

func (p *eventsProxy) takesOut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop == 0 {
		return false
	}
	p.drop--
	p.dropped++
	return true
}
