package events

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what a peer may send. Memory grows with what has arrived, never with a length
// that was announced.
const (
	maxFrame   = 16 << 20 // bytes
	maxFrames  = 8        // a message
	maxMessage = 32 << 20 // bytes of all frames
	maxCommand = 4 << 10  // bytes
	maxPerSec  = 100      // commands in a second
	growStep   = 64 << 10 // bytes, at first
	keepBuffer = 1 << 20  // a larger buffer is not used again
	maxLarge   = 1 << 28  // bytes of all larger buffers together
)

const (
	connectTimeout = 5 * time.Second  // connection and handshake together
	writeTimeout   = 5 * time.Second  // of anything that is sent
	messageTimeout = 10 * time.Second // from the first byte of a message to its last
)

// errIdle: no message came in the time that was given; the connection is as it was.
var errIdle = errors.New("no message came")

// zconn is a connection that speaks ZMTP 3, the protocol of ZeroMQ, with the mechanism NULL.
// It is for one goroutine.
type zconn struct {
	c net.Conn
	r *bufio.Reader

	size  [8]byte // of a frame, as it is sent
	buf   []byte  // the frames of the message
	box   *[]byte // what buf was in, among buffers
	parts [][]byte
	large int64 // what buf is counted as in large

	second   time.Time // in which commands came
	commands int
}

// buffers are for the messages of all connections, as few of them have one at a time.
var buffers sync.Pool // of *[]byte

// large is what the buffers larger than keepBuffer take: few messages need one, and many peers
// that begin one together would take all memory there is.
var large atomic.Int64

// grow makes room for n more bytes, if there is as much.
func (z *zconn) grow(n int) error {
	z.buf = slices.Grow(z.buf, n)
	if cap(z.buf) <= keepBuffer {
		return nil
	}
	more := int64(cap(z.buf)) - z.large
	z.large += more
	if all := large.Add(more); all > maxLarge {
		return fmt.Errorf("messages of %d bytes are being read from all engines together: at most %d are allowed", all, maxLarge)
	}
	return nil
}

func (z *zconn) takeBuffer() {
	if b, ok := buffers.Get().(*[]byte); ok {
		z.buf, z.box = *b, b
	}
}

func (z *zconn) giveBuffer() {
	if z.buf != nil && cap(z.buf) <= keepBuffer {
		if z.box == nil {
			z.box = new([]byte)
		}
		*z.box = z.buf[:0]
		buffers.Put(z.box)
	}
	z.buf, z.box, z.parts = nil, nil, z.parts[:0]
	large.Add(-z.large)
	z.large = 0
}

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// greeting announces version 3.0, whose peers take subscriptions as messages, and NULL.
var greeting = [64]byte{0: 0xff, 9: 0x7f, 10: 3, 12: 'N', 13: 'U', 14: 'L', 15: 'L'}

// handshake makes a connection of c, as a socket of type self ("SUB", "DEALER") to one of the
// types in peers. The time limit is the caller's, by c's deadline.
func handshake(c net.Conn, self string, peers ...string) (*zconn, error) {
	z := &zconn{c: c, r: bufio.NewReaderSize(c, 16<<10), parts: make([][]byte, 0, maxFrames)}
	if _, err := c.Write(greeting[:]); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	var theirs [64]byte
	if _, err := io.ReadFull(z.r, theirs[:1]); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	if theirs[0] != 0xff {
		return nil, errors.New("greeting: the peer does not speak ZMTP")
	}
	if _, err := io.ReadFull(z.r, theirs[1:]); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	if theirs[9]&1 != 1 || theirs[10] < 3 {
		return nil, errors.New("greeting: the peer does not speak ZMTP 3")
	}
	if m := string(bytes.TrimRight(theirs[12:32], "\x00")); m != "NULL" {
		return nil, fmt.Errorf("greeting: the peer wants the security mechanism %q, only NULL is supported", m)
	}

	ready := []byte("\x05READY")
	ready = appendProperty(ready, "Socket-Type", self)
	if self == "DEALER" {
		ready = appendProperty(ready, "Identity", "")
	}
	if err := z.write(flagCommand, ready); err != nil {
		return nil, fmt.Errorf("READY: %w", err)
	}
	flags, size, err := z.frameHead()
	if err != nil {
		return nil, fmt.Errorf("READY: %w", err)
	}
	if flags&flagCommand == 0 {
		return nil, errors.New("READY: the peer sent a message before it")
	}
	name, body, err := z.command(size)
	if err != nil {
		return nil, fmt.Errorf("READY: %w", err)
	}
	if name != "READY" {
		return nil, fmt.Errorf("READY: the peer sent %.20q: %.100q", name, body)
	}
	peer, err := property(body, "Socket-Type")
	if err != nil {
		return nil, fmt.Errorf("READY: %w", err)
	}
	if !slices.Contains(peers, peer) {
		return nil, fmt.Errorf("READY: the peer is a socket of type %.20q, not %s", peer, strings.Join(peers, " or "))
	}
	return z, nil
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// property finds a property of a READY command; it is empty if there is none of that name.
func property(b []byte, name string) (string, error) {
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+4 {
			return "", io.ErrUnexpectedEOF
		}
		key := string(b[1 : 1+n])
		size := binary.BigEndian.Uint32(b[1+n:])
		b = b[1+n+4:]
		if uint64(size) > uint64(len(b)) {
			return "", io.ErrUnexpectedEOF
		}
		if strings.EqualFold(key, name) {
			return string(b[:size]), nil
		}
		b = b[size:]
	}
	return "", nil
}

// write sends one frame of less than 256 bytes.
func (z *zconn) write(flags byte, body []byte) error {
	z.c.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := z.c.Write(append([]byte{flags, byte(len(body))}, body...))
	return err
}

// subscribe asks for all messages whose first frame begins with topic.
func (z *zconn) subscribe(topic string) error {
	return z.write(0, append([]byte{1}, topic...))
}

// next reads a message. If wait is over before anything of one came, or what came was a
// command, the error is errIdle; a message that has begun may take messageTimeout. The frames
// are valid until the next call.
func (z *zconn) next(wait time.Duration) ([][]byte, error) {
	if z.r.Buffered() == 0 || cap(z.buf) > keepBuffer {
		z.giveBuffer()
	}
	if z.r.Buffered() == 0 {
		z.c.SetReadDeadline(time.Now().Add(wait))
		if _, err := z.r.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errIdle
		} else if err != nil {
			return nil, err
		}
	}
	if z.buf == nil {
		z.takeBuffer()
	}
	z.c.SetReadDeadline(time.Now().Add(messageTimeout))
	flags, size, err := z.frameHead()
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 {
		return z.message(flags, size)
	}
	if err := z.answer(size); err != nil {
		return nil, err
	}
	return nil, errIdle
}

// message reads the message whose first frame's head was read.
func (z *zconn) message(flags byte, size int) ([][]byte, error) {
	var ends [maxFrames]int
	z.buf = z.buf[:0]
	n := 0
	for {
		if n == maxFrames {
			return nil, fmt.Errorf("a message of more than %d frames", maxFrames)
		}
		if size > maxFrame {
			return nil, fmt.Errorf("a frame is too long: it may have at most %d bytes", maxFrame)
		}
		if len(z.buf)+size > maxMessage {
			return nil, fmt.Errorf("a message is too long: its frames may have at most %d bytes together", maxMessage)
		}
		if err := z.read(size); err != nil {
			return nil, err
		}
		ends[n] = len(z.buf)
		n++
		if flags&flagMore == 0 {
			break
		}
		var err error
		if flags, size, err = z.frameHead(); err != nil {
			return nil, unexpected(err)
		}
		if flags&flagCommand != 0 {
			return nil, errors.New("a command within a message")
		}
	}
	z.parts = z.parts[:0]
	from := 0
	for _, to := range ends[:n] {
		z.parts = append(z.parts, z.buf[from:to:to])
		from = to
	}
	return z.parts, nil
}

// read appends size bytes to the buffer, which grows as they arrive.
func (z *zconn) read(size int) error {
	for size > 0 {
		at := len(z.buf)
		step := min(size, max(growStep, at))
		if err := z.grow(step); err != nil {
			return err
		}
		z.buf = z.buf[:at+step]
		if n, err := io.ReadFull(z.r, z.buf[at:]); err != nil {
			z.buf = z.buf[:at+n]
			return unexpected(err)
		}
		size -= step
	}
	return nil
}

// frameHead reads the flags and the size of a frame.
func (z *zconn) frameHead() (flags byte, size int, err error) {
	flags, err = z.r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return 0, 0, fmt.Errorf("a frame with flags %#x", flags)
	}
	z.size = [8]byte{}
	if flags&flagLong == 0 {
		z.size[7], err = z.r.ReadByte()
	} else {
		_, err = io.ReadFull(z.r, z.size[:])
	}
	if err != nil {
		return 0, 0, unexpected(err)
	}
	// A size beyond maxFrame is refused by all who read a frame.
	return flags, int(min(binary.BigEndian.Uint64(z.size[:]), maxFrame+1)), nil
}

// command reads the rest of a command. Its body is valid until the next read.
func (z *zconn) command(size int) (name string, body []byte, err error) {
	if size > maxCommand {
		return "", nil, fmt.Errorf("a command of %d bytes or more: at most %d are read", size, maxCommand)
	}
	z.buf = z.buf[:0]
	if err := z.read(size); err != nil {
		return "", nil, err
	}
	if size == 0 || int(z.buf[0]) >= size {
		return "", nil, errors.New("a command without a name")
	}
	n := int(z.buf[0])
	return string(z.buf[1 : 1+n]), z.buf[1+n:], nil
}

// answer reads a command and does what it asks for; those that are unknown are ignored.
func (z *zconn) answer(size int) error {
	if now := time.Now(); now.Sub(z.second) >= time.Second {
		z.second, z.commands = now, 0
	}
	if z.commands++; z.commands > maxPerSec {
		return fmt.Errorf("more than %d commands in a second", maxPerSec)
	}
	name, body, err := z.command(size)
	switch {
	case err != nil:
		return err
	case name == "ERROR":
		return fmt.Errorf("the peer says: %.100q", body)
	case name == "PING" && len(body) >= 2: // a time to live and a context of 16 bytes at most
		return z.write(flagCommand, append([]byte("\x04PONG"), body[2:min(len(body), 18)]...))
	}
	return nil
}

// close ends the connection.
func (z *zconn) close() {
	z.c.Close()
	z.giveBuffer()
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
