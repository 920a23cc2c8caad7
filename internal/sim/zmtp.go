package sim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// ZMTP 3.1, the protocol of ZeroMQ, as far as a publisher (PUB) and the socket that
// repeats batches (ROUTER) need it, with the NULL mechanism.

// Flags of a frame.
const (
	zmtpMore    = 1 // the message has more frames
	zmtpLong    = 2 // the length has eight bytes, not one
	zmtpCommand = 4
)

// most that a peer may send in a frame, and frames in a message.
const (
	mostZMTPFrame  = 64 << 10
	mostZMTPFrames = 16
)

// zmtpGreeting is what both sides begin with.
func zmtpGreeting() []byte {
	g := make([]byte, 64)
	g[0], g[8], g[9] = 0xff, 1, 0x7f
	g[10], g[11] = 3, 1 // version
	copy(g[12:32], "NULL")
	return g
}

// appendFrame appends a frame.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		return append(append(b, flags, byte(len(body))), body...)
	}
	b = append(b, flags|zmtpLong)
	return append(binary.BigEndian.AppendUint64(b, uint64(len(body))), body...)
}

// appendMessage appends a message of frames.
func appendMessage(b []byte, frames [][]byte) []byte {
	for i, f := range frames {
		flags := byte(zmtpMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// appendCommand appends a command of a name and what follows it.
func appendCommand(b []byte, name string, rest []byte) []byte {
	body := append([]byte{byte(len(name))}, name...)
	return appendFrame(b, zmtpCommand, append(body, rest...))
}

// appendProperty appends a property of a READY command.
func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// zmtpHandshake greets a peer and tells it the type of this socket.
func zmtpHandshake(c net.Conn, r *bufio.Reader, socket string) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(zmtpGreeting()); err != nil {
		return err
	}
	var g [64]byte
	if _, err := io.ReadFull(r, g[:]); err != nil {
		return err
	}
	if g[0] != 0xff || g[9] != 0x7f || g[10] < 3 {
		return errors.New("the peer does not speak ZMTP 3")
	}
	ready := appendProperty(nil, "Socket-Type", socket)
	if socket != "PUB" {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := c.Write(appendCommand(nil, "READY", ready)); err != nil {
		return err
	}
	flags, body, err := readFrame(r)
	if err != nil {
		return err
	}
	if name, _ := splitCommand(body); flags&zmtpCommand == 0 || name != "READY" {
		return fmt.Errorf("the peer said %q instead of READY", name)
	}
	return c.SetDeadline(time.Time{})
}

// readFrame reads a frame.
func readFrame(r *bufio.Reader) (flags byte, body []byte, err error) {
	if flags, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	var n uint64
	if flags&zmtpLong != 0 {
		var b [8]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return 0, nil, err
		}
		n = binary.BigEndian.Uint64(b[:])
	} else {
		b, err := r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		n = uint64(b)
	}
	if n > mostZMTPFrame {
		return 0, nil, fmt.Errorf("the peer's frame has %d bytes, more than %d", n, mostZMTPFrame)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return flags, body, err
}

// splitCommand splits a command's body into its name and the rest.
func splitCommand(body []byte) (name string, rest []byte) {
	if len(body) == 0 || 1+int(body[0]) > len(body) {
		return "", nil
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:]
}

// readMessage reads the frames of the next message. It hands commands to command.
func readMessage(r *bufio.Reader, command func(name string, rest []byte) error) ([][]byte, error) {
	var frames [][]byte
	for {
		flags, body, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		if flags&zmtpCommand != 0 {
			if err := command(splitCommand(body)); err != nil {
				return nil, err
			}
			continue
		}
		if frames = append(frames, body); len(frames) > mostZMTPFrames {
			return nil, fmt.Errorf("the peer's message has more than %d frames", mostZMTPFrames)
		}
		if flags&zmtpMore == 0 {
			return frames, nil
		}
	}
}
