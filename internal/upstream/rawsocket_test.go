package upstream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// A raw socket gives and takes the bytes, ends and deadlines that its connection does.
func TestRawSocketIsAConnection(t *testing.T) {
	if !wire.RawIO {
		t.Skip("sockets are not read around net.Conn here")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c := newRawSocket(&countedConn{Conn: dialed, open: new(atomic.Int64)})
	if _, ok := c.(*rawSocket); !ok {
		t.Fatalf("got %T", c)
	}

	sent := bytes.Repeat([]byte("0123456789abcdef_"), 1<<20) // more than a socket takes
	wrote := make(chan error, 1)
	go func() {
		n, err := c.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		wrote <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what was written did not arrive: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}

	go func() { _, _ = other.Write(sent) }()
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what was sent was not read: %v", err)
	}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("behind its deadline a read gives %d, %v", n, err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := other.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(got); n != 0 || err != io.EOF {
		t.Errorf("at the end a read gives %d, %v", n, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed one is read with %v", err)
	}
	if _, err := c.Write(got[:1]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed one is written with %v", err)
	}
}
