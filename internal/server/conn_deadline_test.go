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
	send := func(b string) {
		t.Helper()
		if _, err := peer.Write([]byte(b)); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 16)
	send("P")
	if n, err := c.Read(buf[:1]); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	type result struct {
		n   int
		err error
	}
	next := make(chan result, 1)
	a := c.ahead
	go func() {
		n, err := c.Read(buf)
		next <- result{n, err}
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		waits = a.waiting
		a.mu.Unlock()
	}
	// The lock keeps the one who reads ahead from handing on what it met before
	// the deadline is taken back. If the pause is too short for it to meet
	// anything, there is nothing to see.
	a.mu.Lock()
	_ = c.SetReadDeadline(time.Unix(1, 0)) // as net/http does
	time.Sleep(50 * time.Millisecond)
	_ = c.SetReadDeadline(time.Time{})
	a.mu.Unlock()
	send("OST")
	if r := <-next; r.err != nil || string(buf[:r.n]) != "OST" {
		t.Errorf("the next request's read: %q, %v", buf[:r.n], r.err)
	}
}
