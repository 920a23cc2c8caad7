package http1

import (
	"io"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// body is a request's body. It is read by the handler's goroutine.
type body struct {
	c       *conn
	chunked bool
	left    int64 // of a body framed by its length
	chunks  wire.Chunks
	// expects: the client waits for 100 Continue before it sends the body.
	expects  bool
	closed   bool // by the handler
	err      error
	deadline time.Time
}

func (b *body) begin(h head) {
	*b = body{c: b.c, chunked: h.chunked, left: h.length, expects: h.expect}
}

// ended reports whether all of the body was read from the connection.
func (b *body) ended() bool { return b.err == io.EOF || b.err == nil && !b.chunked && b.left == 0 }

// Read returns io.EOF together with the last bytes, as net/http does. The errors
// are io.ErrUnexpectedEOF for a body that is cut off, os.ErrDeadlineExceeded, one
// about the form of a chunked body, and the socket's.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.err != nil:
		return 0, b.err
	case b.ended():
		b.err = io.EOF
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if b.expects {
		b.expects = false
		if err := b.c.x.resp.sayContinue(); err != nil {
			b.err = err
			return 0, err
		}
	}
	b.c.inBody.Store(true)
	n, err := b.read(p)
	b.c.inBody.Store(false)
	if err == nil && b.chunked && b.chunks.Done() || err == nil && !b.chunked && b.left == 0 {
		err = io.EOF
	}
	if err != nil {
		if !isTimeout(err) {
			b.err = err
		}
		b.c.releaseBuffer()
	}
	if err == io.EOF {
		b.c.peek.bodyEnded()
	}
	return n, err
}

func (b *body) read(p []byte) (int, error) {
	if b.chunked {
		return b.readChunked(p)
	}
	p = p[:min(int64(len(p)), b.left)]
	n, err := b.payload(p)
	b.left -= int64(n)
	return n, err
}

// payload copies buffered bytes to p, or else reads into p directly.
func (b *body) payload(p []byte) (int, error) {
	in := &b.c.in
	if in.Len() > 0 {
		n := copy(p, in.B[in.R:in.W])
		in.R += n
		return n, nil
	}
	n, err := b.c.readInto(p, b.deadline)
	return n, cutOff(err)
}

// cutOff turns io.EOF in the middle of a body into io.ErrUnexpectedEOF.
func cutOff(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readChunked fills p from buffered bytes, and waits only if there are none.
func (b *body) readChunked(p []byte) (int, error) {
	in := &b.c.in
	total := 0
	for {
		k, err := b.chunks.Advance(in.B[in.R:in.W])
		in.R += k
		switch {
		case err != nil:
			return total, err
		case b.chunks.Done() || total == len(p):
			return total, nil
		case b.chunks.Left > 0 && (in.Len() > 0 || total == 0):
			n, err := b.payload(p[total:][:min(int64(len(p)-total), b.chunks.Left)])
			b.chunks.Left -= int64(n)
			total += n
			if err != nil {
				return total, err
			}
		case total > 0:
			return total, nil
		default:
			if err := b.c.fill(b.deadline); err != nil {
				return total, cutOff(err)
			}
		}
	}
}

// Close makes further reads fail; the rest of the body is discarded after the handler.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// maxDiscard is how much of a body that the handler left unread is read to keep the
// connection, in bytes, and discardTime how long that may take.
const (
	maxDiscard  = 256 << 10
	discardTime = 5 * time.Second
)

// discard reads the rest of the body. It returns false if that would take more than
// maxDiscard or discardTime, and the connection must be closed instead.
func (b *body) discard() bool {
	if b.ended() {
		return true
	}
	if b.err != nil || b.expects || !b.chunked && b.left > maxDiscard {
		return false
	}
	b.closed = false
	b.deadline = time.Now().Add(discardTime)
	buf := wire.GetBuf()
	defer wire.PutBuf(buf)
	for left := maxDiscard; left > 0; {
		n, err := b.Read(buf[:])
		left -= n
		if err != nil {
			return err == io.EOF
		}
	}
	return false
}
