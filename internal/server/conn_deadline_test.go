package server

import (
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// When a handler ends, net/http breaks off its read of one byte with a deadline
// in the past, and takes the deadline back. If the client's next request begins
// just then, reading ahead met that deadline and handed it to the read of the next
// request, which so was cut off with a reset before anybody had seen it.
func TestReadingAheadForgetsADeadlineThatWasTakenBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var open, ahead atomic.Int64
	c := &clientConn{TCPConn: accepted.(*net.TCPConn), listener: &clientListener{open: &open, ahead: &ahead}}
	defer c.Close()
	write := func(b string) {
		if _, err := peer.Write([]byte(b)); err != nil {
			t.Error(err)
		}
	}
	buf := make([]byte, 16)
	for i := range 20_000 {
		write("P")
		if n, err := c.Read(buf[:1]); n != 1 || err != nil {
			t.Fatalf("round %d: %d, %v", i, n, err)
		}
		_ = c.SetReadDeadline(time.Unix(1, 0))
		_ = c.SetReadDeadline(time.Time{})
		wrote := make(chan struct{})
		go func() { defer close(wrote); write("O") }()
		if n, err := c.Read(buf); n != 1 || err != nil {
			t.Fatalf("round %d: the next request's read: %d, %v", i, n, err)
		}
		<-wrote
	}
}
