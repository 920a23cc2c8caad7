package sim

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"
)

// unpacked decodes msgpack: maps become maps of names, integers int64 or uint64 as they
// were written.
func unpacked(t *testing.T, b []byte) any {
	t.Helper()
	v, rest := unpack(t, b)
	if len(rest) > 0 {
		t.Fatalf("%d bytes are left", len(rest))
	}
	return v
}

func unpack(t *testing.T, b []byte) (any, []byte) {
	t.Helper()
	c := b[0]
	b = b[1:]
	list := func(n int) (any, []byte) {
		out := make([]any, n)
		for i := range out {
			out[i], b = unpack(t, b)
		}
		return out, b
	}
	dict := func(n int) (any, []byte) {
		out := map[string]any{}
		for range n {
			var k any
			k, b = unpack(t, b)
			out[k.(string)], b = unpack(t, b)
		}
		return out, b
	}
	switch {
	case c < 0x80:
		return uint64(c), b
	case c < 0x90:
		return dict(int(c & 15))
	case c < 0xa0:
		return list(int(c & 15))
	case c < 0xc0:
		return string(b[:c&31]), b[c&31:]
	case c >= 0xe0:
		return int64(int8(c)), b
	}
	switch c {
	case 0xc0:
		return nil, b
	case 0xc2, 0xc3:
		return c == 0xc3, b
	case 0xc4:
		return b[1 : 1+b[0]], b[1+b[0]:]
	case 0xcb:
		return math.Float64frombits(binary.BigEndian.Uint64(b)), b[8:]
	case 0xcc:
		return uint64(b[0]), b[1:]
	case 0xcd:
		return uint64(binary.BigEndian.Uint16(b)), b[2:]
	case 0xce:
		return uint64(binary.BigEndian.Uint32(b)), b[4:]
	case 0xcf:
		return binary.BigEndian.Uint64(b), b[8:]
	case 0xd0:
		return int64(int8(b[0])), b[1:]
	case 0xd1:
		return int64(int16(binary.BigEndian.Uint16(b))), b[2:]
	case 0xd2:
		return int64(int32(binary.BigEndian.Uint32(b))), b[4:]
	case 0xd3:
		return int64(binary.BigEndian.Uint64(b)), b[8:]
	case 0xd9:
		return string(b[1 : 1+b[0]]), b[1+b[0]:]
	case 0xdc:
		n := int(binary.BigEndian.Uint16(b))
		b = b[2:]
		return list(n)
	case 0xdd:
		n := int(binary.BigEndian.Uint32(b))
		b = b[4:]
		return list(n)
	}
	t.Fatalf("no msgpack: %x", c)
	return nil, nil
}

// peer is a client of a publisher: a SUB socket, or a DEALER for replays.
type peer struct {
	t    *testing.T
	w    *Worker // that it subscribes to
	conn net.Conn
	r    *bufio.Reader
}

func connect(t *testing.T, endpoint, socket string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p := &peer{t: t, conn: c, r: bufio.NewReader(c)}
	if err := zmtpHandshake(c, p.r, socket); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return p
}

// subscribe connects to a rank's events, and waits until the publisher knows.
func subscribe(t *testing.T, w *Worker, rank int, topic string) *peer {
	t.Helper()
	n := w.Stats().Subscribers
	p := connect(t, w.KVEndpoint(rank), "SUB")
	p.w = w
	p.send(append([]byte{1}, topic...))
	if err := w.Wait(testContext(t), func(s Stats) bool { return s.Subscribers > n }); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) send(frames ...[]byte) {
	p.t.Helper()
	if _, err := p.conn.Write(appendMessage(nil, frames)); err != nil {
		p.t.Fatal(err)
	}
}

// frames reads a message.
func (p *peer) frames() [][]byte {
	p.t.Helper()
	f, err := p.read()
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

func (p *peer) read() ([][]byte, error) {
	var out [][]byte
	for {
		flags, err := p.r.ReadByte()
		if err != nil {
			return nil, err
		}
		var n uint64
		if flags&zmtpLong != 0 {
			var b [8]byte
			_, err = io.ReadFull(p.r, b[:])
			n = binary.BigEndian.Uint64(b[:])
		} else {
			var b byte
			b, err = p.r.ReadByte()
			n = uint64(b)
		}
		if err != nil {
			return nil, err
		}
		if n > 1<<30 {
			return nil, fmt.Errorf("a frame of %d bytes", n)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(p.r, body); err != nil {
			return nil, err
		}
		out = append(out, body)
		if flags&zmtpMore == 0 {
			return out, nil
		}
	}
}

// batch is a batch as it came, its events as maps or lists.
type batch struct {
	topic  string
	seq    uint64
	time   float64
	events []any
	rank   any
}

func (p *peer) batch() batch {
	p.t.Helper()
	f := p.frames()
	if len(f) != 3 || len(f[1]) != 8 {
		p.t.Fatalf("a batch of %d frames", len(f))
	}
	v := unpacked(p.t, f[2]).([]any)
	return batch{string(f[0]), binary.BigEndian.Uint64(f[1]), v[0].(float64), v[1].([]any), v[2]}
}

// kinds are the types of a batch's events, each with the number of its hashes.
func (b batch) kinds() string {
	var out []string
	for _, e := range b.events {
		name, n := "", 0
		switch e := e.(type) {
		case map[string]any:
			name = e["type"].(string)
			if h, ok := e["block_hashes"].([]any); ok {
				n = len(h)
			}
		case []any:
			name = e[0].(string)
			if len(e) > 1 {
				n = len(e[1].([]any))
			}
		}
		out = append(out, fmt.Sprintf("%s %d", name, n))
	}
	return strings.Join(out, ", ")
}

// event is an event that is a map.
func (b batch) event(i int) map[string]any { return b.events[i].(map[string]any) }

// idsBody is a completion of n token ids from first on.
func idsBody(first, n int, extra string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, first+i)
	}
	return `{"model":"sim-model","max_tokens":1,"prompt":[` + b.String() + `]` + extra + `}`
}

func complete(t *testing.T, w *Worker, body string) {
	t.Helper()
	if r := post(testContext(t), client(t), w.URL()+"/v1/completions", body); r.status != 200 {
		t.Fatalf("%s: %+v", body, r)
	}
}

func eventFleet(t *testing.T, o WorkerOptions) *Worker {
	t.Helper()
	if o.KVEvents == nil {
		o.KVEvents = &KVEvents{}
	}
	def(&o.Backend, VLLM)
	o.HealthDelay = -1
	return start(t, Options{Regular: 1, Worker: o}).Regular(0)
}
