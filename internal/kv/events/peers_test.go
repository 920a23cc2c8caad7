package events

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Peers that never let a connection come to something. None of them holds the stream up for
// longer than the time limits, and none ends it.
func TestPeersThatAreNoPublishers(t *testing.T) {
	ready := appendProperty([]byte("\x05READY"), "Socket-Type", "PUB")
	for _, c := range []struct {
		name string
		talk func(p peer)
		want string
	}{
		{"says nothing and reads nothing", func(p peer) { time.Sleep(time.Hour) }, "i/o timeout"},
		{"closes at once", func(peer) {}, "closed pipe"},
		{"HTTP", func(p peer) {
			go func() { _, _ = io64(p) }()
			_, _ = p.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}, "does not speak ZMTP"},
		{"ZMTP 2", func(p peer) {
			_, _ = io64(p)
			g := greeting
			g[10] = 1
			_, _ = p.Write(g[:])
		}, "does not speak ZMTP 3"},
		{"wants a password", func(p peer) {
			_, _ = io64(p)
			g := greeting
			copy(g[12:], "CURVE")
			_, _ = p.Write(g[:])
		}, `"CURVE"`},
		{"a byte a second", func(p peer) {
			_, _ = io64(p)
			for _, b := range greeting {
				_, _ = p.Write([]byte{b})
				time.Sleep(time.Second)
			}
		}, "i/o timeout"},
		{"another socket", func(p peer) { _ = p.handshake("PUSH") }, `socket of type "PUSH"`},
		{"no socket type", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(flagCommand, []byte("\x05READY")) }, `socket of type ""`},
		{"a message in place of READY", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(0, ready) }, "a message before it"},
		{"an error", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(flagCommand, []byte("\x05ERROR\x04busy")) }, "busy"},
		{"properties cut short", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(flagCommand, ready[:len(ready)-2]) }, "unexpected EOF"},
		{"a large command", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(flagCommand, make([]byte, maxCommand+1)) }, "a command of"},
		{"a command without a name", func(p peer) { _ = p.greet(); _, _ = p.read(); p.frame(flagCommand, []byte{9, 'R'}) }, "without a name"},
		{"does not read the subscription", func(p peer) { _ = p.handshake("PUB"); time.Sleep(time.Hour) }, "i/o timeout"},
		{"flags that do not exist", subscribed(func(p peer) { p.frame(0x80, nil) }), "flags 0x80"},
		{"a command with more to come", subscribed(func(p peer) { p.frame(flagCommand|flagMore, nil) }), "flags 0x5"},
		{"a command within a message", subscribed(func(p peer) { p.frame(flagMore, nil); p.frame(flagCommand, ready) }), "within a message"},
		{"nine frames", subscribed(func(p peer) { p.message(make([][]byte, 9)...) }), "more than 8 frames"},
		{"frames without end", subscribed(func(p peer) {
			for p.frame(flagMore, nil) == nil {
			}
		}), "more than 8 frames"},
		{"a frame of 8 EiB", subscribed(func(p peer) { _, _ = p.Write([]byte{flagLong, 0x7f, 255, 255, 255, 255, 255, 255, 255}) }), "at most"},
		{"a frame of 16 EiB", subscribed(func(p peer) { _, _ = p.Write([]byte{flagLong, 255, 255, 255, 255, 255, 255, 255, 255}) }), "at most"},
		{"a message over the bound", subscribed(func(p peer) {
			part := make([]byte, maxFrame)
			p.message(part, part, part)
		}), "at most 33554432 bytes together"},
		{"closed in a frame", subscribed(func(p peer) { _, _ = p.Write([]byte{0, 100, 1, 2}) }), "unexpected EOF"},
		{"closed between frames", subscribed(func(p peer) { p.frame(flagMore, nil) }), "unexpected EOF"},
		{"a message of a byte a second", subscribed(func(p peer) {
			_, _ = p.Write([]byte{0, 100})
			for {
				if _, err := p.Write([]byte{0}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}), "i/o timeout"},
		{"pings, and reads no answer", subscribed(func(p peer) {
			p.frame(flagCommand, []byte("\x04PING\x00\x00context"))
			time.Sleep(time.Hour)
		}), "i/o timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *Stream
				failed := make(chan string, 1)
				ctx, cancel := context.WithCancel(t.Context())
				dials := 0
				s, err := New(Options{Endpoint: atEvents, Dial: func(context.Context, string, string) (net.Conn, error) {
					if dials++; dials == 2 {
						failed <- s.Snapshot().LastError
						cancel()
					}
					ours, theirs := net.Pipe()
					go func() {
						defer ours.Close()
						c.talk(peer{ours})
					}()
					return theirs, nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				go s.Run(ctx, &recorder{})
				if e := <-failed; !strings.Contains(e, c.want) {
					t.Errorf("%q, want %q", e, c.want)
				}
				if d := time.Since(began); d > messageTimeout+connectTimeout {
					t.Errorf("held up for %v", d)
				}
				time.Sleep(2 * time.Hour) // the peers end
			})
		})
	}
}

func io64(p peer) ([]byte, error) {
	b := make([]byte, 64)
	n := 0
	for n < len(b) {
		m, err := p.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += m
	}
	return b, nil
}

func subscribed(f func(p peer)) func(p peer) {
	return func(p peer) {
		if p.handshake("PUB") == nil {
			_, _ = p.read()
			f(p)
		}
	}
}

func TestPingsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		answered := make(chan string, 1)
		s, err := New(Options{Endpoint: atEvents, Dial: func(context.Context, string, string) (net.Conn, error) { return theirs, nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx, &recorder{})
		p := peer{ours}
		subscribed(func(p peer) {
			time.Sleep(time.Hour)
			p.frame(flagCommand, []byte("\x04PING\x00\x0acontext"))
			b, _ := p.read()
			answered <- string(b)
		})(p)
		if a := <-answered; a != "\x04PONGcontext" {
			t.Errorf("%q", a)
		}
		cancel()
		synctest.Wait()
	})
}

// What a length announces costs nothing before it arrives.
func TestMemoryGrowsWithWhatArrives(t *testing.T) {
	buffers = sync.Pool{} // those of other tests may be large
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		defer ours.Close()
		p := peer{ours}
		_ = p.handshake("PUB")
		_, _ = p.Write([]byte{flagLong, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3}) // 16 MiB
	}()
	z, err := handshake(theirs, "SUB", "PUB")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.next(time.Minute); err == nil {
		t.Fatal("no error")
	}
	if cap(z.buf) > 2*growStep {
		t.Errorf("%d bytes for a frame of which 3 came", cap(z.buf))
	}
}
