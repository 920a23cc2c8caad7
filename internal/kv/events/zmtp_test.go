package events

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// wire is a connection whose peer has said all it will ever say.
type wire struct {
	net.Conn
	said bytes.Reader
}

func newWire(said []byte) *wire {
	w := &wire{}
	w.said.Reset(said)
	return w
}

func (w *wire) Read(b []byte) (int, error)       { return w.said.Read(b) }
func (w *wire) Write(b []byte) (int, error)      { return len(b), nil }
func (w *wire) Close() error                     { return nil }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// spoken is what a peer sends: its greeting, READY, and then frames.
func spoken(socket string, frames func(p peer)) []byte {
	var b bytes.Buffer
	p := peer{writer{&b}}
	b.Write(greeting[:])
	p.frame(flagCommand, appendProperty([]byte("\x05READY"), "Socket-Type", socket))
	if frames != nil {
		frames(p)
	}
	return b.Bytes()
}

type writer struct{ *bytes.Buffer }

func (writer) Close() error                     { return nil }
func (writer) LocalAddr() net.Addr              { return nil }
func (writer) RemoteAddr() net.Addr             { return nil }
func (writer) SetDeadline(time.Time) error      { return nil }
func (writer) SetReadDeadline(time.Time) error  { return nil }
func (writer) SetWriteDeadline(time.Time) error { return nil }

func TestMessagesAreReadWhole(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 3*growStep+5)
	z, err := handshake(newWire(spoken("PUB", func(p peer) {
		p.message([]byte("a"), nil, long)
		p.frame(flagCommand, []byte("\x04HINT"))
		p.message(long[:256])
		p.message(make([][]byte, maxFrames)...)
	})), "SUB", "PUB", "XPUB")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][][]byte{{[]byte("a"), {}, long}, nil, {long[:256]}, {{}, {}, {}, {}, {}, {}, {}, {}}} {
		got, err := z.next(time.Second)
		if want == nil {
			if !errors.Is(err, errIdle) {
				t.Fatal(err)
			}
			continue
		}
		if err != nil || len(got) != len(want) {
			t.Fatal(err, len(got))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("frame %d of %d bytes, want %d", i, len(got[i]), len(want[i]))
			}
		}
	}
	if _, err := z.next(time.Second); err == nil {
		t.Error("no error at the end")
	}
}

// What waits for a message holds no memory for it, and a large one leaves none behind.
func TestLargeBuffersAreGivenBack(t *testing.T) {
	z, err := handshake(newWire(spoken("PUB", func(p peer) {
		p.message(make([]byte, 4*keepBuffer))
		p.message([]byte("a"))
	})), "SUB", "PUB")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := z.next(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if cap(z.buf) > keepBuffer {
		t.Errorf("%d bytes are kept", cap(z.buf))
	}
	if _, err := z.next(time.Second); err == nil || z.buf != nil {
		t.Errorf("%v, %d bytes are kept", err, cap(z.buf))
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	z, err := handshake(newWire(spoken("PUB", func(p peer) {
		for range 200 {
			p.message([]byte("kv@"), number(1), make([]byte, 1000))
		}
	})), "SUB", "PUB")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = z.next(time.Second) }); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// A stream over the sockets of the machine, with a peer that is gone in the middle.
func TestAStreamOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			subscribed(func(p peer) {
				p.message(nil, number(0), seenPayload())
			})(peer{c})
			c.Close()
		}
	}()
	s, err := New(Options{Endpoint: "tcp://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx, teller{told})
	}()
	for _, want := range []string{"live", "stored", "degraded", "cleared", "live", "stored"} {
		if got := <-told; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	cancel()
	<-ended
}

type teller struct{ c chan string }

func (t teller) Stored(*Stored)   { t.c <- "stored" }
func (t teller) Removed(*Removed) { t.c <- "removed" }
func (t teller) Cleared()         { t.c <- "cleared" }
func (t teller) State(s State)    { t.c <- map[State]string{Degraded: "degraded", Live: "live"}[s] }

// Whatever comes, a stream ends with an error, and no frame is larger than what came.
func FuzzZMTP(f *testing.F) {
	f.Add(spoken("PUB", func(p peer) { p.message([]byte("t"), number(0), seenPayload()) }))
	f.Add(spoken("XPUB", func(p peer) { p.frame(flagCommand, []byte("\x04PING\x00\x00x")); p.message(nil, nil) }))
	f.Add([]byte("HTTP/1.1 400"))
	f.Fuzz(func(t *testing.T, said []byte) {
		z, err := handshake(newWire(said), "SUB", "PUB", "XPUB")
		for err == nil || errors.Is(err, errIdle) {
			var parts [][]byte
			parts, err = z.next(time.Second)
			total := 0
			for _, p := range parts {
				total += len(p)
			}
			if total > len(said) || len(parts) > maxFrames {
				t.Fatalf("%d frames, %d bytes from %d", len(parts), total, len(said))
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("it waits for what will not come")
		}
	})
}

// Whatever a replay answers, batches are applied in order and once.
func FuzzReplay(f *testing.F) {
	reply := func(frames ...[]byte) []byte {
		return spoken("ROUTER", func(p peer) {
			p.message(frames...)
			p.message(nil, nil, number(endMark), nil)
		})
	}
	f.Add(reply(nil, []byte("t"), number(5), seenPayload()), false)
	f.Add(reply(nil, number(4), seenPayload()), true)
	f.Add(reply(nil, number(7), seenPayload()), true)
	f.Fuzz(func(t *testing.T, said []byte, verify bool) {
		s, err := New(Options{Endpoint: atEvents, Replay: atReplay, Dial: func(context.Context, string, string) (net.Conn, error) { return newWire(said), nil }})
		if err != nil {
			t.Fatal(err)
		}
		s.sink, s.seen = &recorder{}, make([]uint64, remembered)
		s.known, s.next = true, 4
		s.apply(4, seenPayload(), false)
		before := s.Snapshot()
		_ = s.askOnce(t.Context(), replay{until: endMark, verify: verify})
		if now := s.Snapshot(); s.next < 5 || s.next-5 != 0 && now.Batches == before.Batches {
			t.Fatalf("next is %d after %d batches", s.next, now.Batches)
		}
	})
}
