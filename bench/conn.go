package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Bounds of what the client takes from a server.
const (
	readBuffer = 16 << 10
	maxHeader  = readBuffer
	maxJSON    = 1 << 20
)

// conn is one kept-alive HTTP/1.1 connection of the load client. It is lean,
// not lenient: the client shares its cores with what it measures, and reads
// only the answers that engines and routers give. It belongs to one goroutine.
type conn struct {
	c    net.Conn
	buf  []byte // buf[r:w] is read and not used yet
	r, w int
	// closing is set when the server said that this was the last answer.
	closing bool
	// answers is how many it has brought.
	answers int
}

func newConn(c net.Conn) *conn { return &conn{c: c, buf: make([]byte, readBuffer)} }

func dial(addr string, deadline time.Time) (*conn, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	if err := c.SetDeadline(deadline); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot set deadline of %s: %w", addr, err)
	}
	return newConn(c), nil
}

func (c *conn) send(request []byte) error {
	if _, err := c.c.Write(request); err != nil {
		return fmt.Errorf("cannot send request: %w", err)
	}
	return nil
}

// receive reads one whole answer into a, which judges it. The returned time is
// when the first byte of its body was there.
func (c *conn) receive(a *answer) (first time.Time, err error) {
	length, chunked, err := c.header(a)
	if err != nil {
		return first, err
	}
	a.begin()
	if chunked {
		first, err = c.chunks(a)
	} else {
		first, err = c.counted(a, length)
	}
	if err != nil {
		return first, err
	}
	return first, a.end()
}

// receiveFirst reads the header and the first byte of the body, and leaves the
// rest unread.
func (c *conn) receiveFirst(a *answer) error {
	if _, _, err := c.header(a); err != nil {
		return err
	}
	if a.status != 200 {
		return fmt.Errorf("status %d", a.status)
	}
	if c.r == c.w {
		return c.fill()
	}
	return nil
}

// fill reads more. A full buffer of unused bytes is an error.
func (c *conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		if c.r == 0 {
			return fmt.Errorf("line or header of more than %d bytes", len(c.buf))
		}
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.c.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

var headerEnd = []byte("\r\n\r\n")

// header reads the status line and the header fields that frame the body.
func (c *conn) header(a *answer) (length int, chunked bool, err error) {
	end := -1
	for {
		if end = bytes.Index(c.buf[c.r:c.w], headerEnd); end >= 0 {
			break
		}
		if c.w-c.r >= maxHeader {
			return 0, false, fmt.Errorf("header of more than %d bytes", maxHeader)
		}
		if err := c.fill(); err != nil {
			return 0, false, fmt.Errorf("cannot read header: %w", err)
		}
	}
	head := c.buf[c.r : c.r+end+2]
	c.r += end + len(headerEnd)
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, false, fmt.Errorf("status line %q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, false, fmt.Errorf("status line %q", line)
	}
	length = -1
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch len(name) {
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("Content-Length")) {
				if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
					return 0, false, fmt.Errorf("header line %q", line)
				}
			}
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				chunked = bytes.EqualFold(value, []byte("chunked"))
			}
		case len("Connection"):
			if bytes.EqualFold(name, []byte("Connection")) && bytes.EqualFold(value, []byte("close")) {
				c.closing = true
			}
		}
	}
	if !chunked && length < 0 {
		return 0, false, errors.New("answer with neither length nor chunks")
	}
	return length, chunked, nil
}

// counted reads a body of known length.
func (c *conn) counted(a *answer, length int) (first time.Time, err error) {
	for length > 0 {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return first, fmt.Errorf("cannot read body: %w", err)
			}
		}
		if first.IsZero() {
			first = time.Now()
		}
		n := min(length, c.w-c.r)
		if err := a.feed(c.buf[c.r : c.r+n]); err != nil {
			return first, err
		}
		c.r += n
		length -= n
	}
	return first, nil
}

// chunks reads a chunked body.
func (c *conn) chunks(a *answer) (first time.Time, err error) {
	for {
		line, err := c.line()
		if err != nil {
			return first, err
		}
		size, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return first, fmt.Errorf("chunk size %q", line)
		}
		if size == 0 {
			break
		}
		if first.IsZero() {
			first = time.Now()
		}
		if _, err := c.counted(a, int(size)); err != nil {
			return first, err
		}
		if line, err = c.line(); err != nil {
			return first, err
		}
		if len(line) > 0 {
			return first, fmt.Errorf("%q after a chunk", line)
		}
	}
	for { // trailers
		line, err := c.line()
		if err != nil || len(line) == 0 {
			return first, err
		}
	}
}

// line reads up to a line break and returns what is before it, valid until the
// next read.
func (c *conn) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(c.buf[c.r:c.w], '\n'); i >= 0 {
			line := c.buf[c.r : c.r+i]
			c.r += i + 1
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		if err := c.fill(); err != nil {
			return nil, fmt.Errorf("cannot read chunk: %w", err)
		}
	}
}
