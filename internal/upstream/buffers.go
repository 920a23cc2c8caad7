package upstream

import "sync"

// Buffer sizes of a connection. An event of a token stream is a few hundred bytes,
// a plain answer a few thousand; a body that fills the small buffer in one read is
// a big one, and saves system calls with the large one.
const (
	bufSize      = 4 << 10
	largeBufSize = 32 << 10
)

var (
	bufPool      = sync.Pool{New: func() any { return new([bufSize]byte) }}
	largeBufPool = sync.Pool{New: func() any { return new([largeBufSize]byte) }}
)

func getBuf() *[bufSize]byte  { return bufPool.Get().(*[bufSize]byte) }
func putBuf(b *[bufSize]byte) { bufPool.Put(b) }

// readBuf holds bytes read and not yet taken: b[r:w]. It borrows its memory and
// gives it back when it is empty and told so.
type readBuf struct {
	b     []byte
	r, w  int
	small *[bufSize]byte
	large *[largeBufSize]byte
	wide  bool // the last read filled the buffer: borrow a large one next
}

func (b *readBuf) len() int { return b.w - b.r }

// room makes space behind w: it borrows, moves the rest to the front, or, if that
// is full, takes more memory, which the caller bounds by what it lets pile up.
func (b *readBuf) room() {
	switch {
	case b.r == b.w:
		b.r, b.w = 0, 0
		if b.b != nil && (!b.wide || b.large != nil) {
			return
		}
		b.drop()
		if b.wide {
			b.large = largeBufPool.Get().(*[largeBufSize]byte)
			b.b = b.large[:]
		} else {
			b.small = getBuf()
			b.b = b.small[:]
		}
	case b.w < len(b.b):
	case b.r > 0:
		b.w = copy(b.b, b.b[b.r:b.w])
		b.r = 0
	default:
		more := make([]byte, 2*len(b.b))
		n := copy(more, b.b)
		b.drop()
		b.b, b.r, b.w = more, 0, n
	}
}

// filled takes note of n bytes read behind w.
func (b *readBuf) filled(n int) {
	b.w += n
	b.wide = b.w == len(b.b)
}

// drop gives the memory back; what was in it is gone.
func (b *readBuf) drop() {
	if b.small != nil {
		putBuf(b.small)
	}
	if b.large != nil {
		largeBufPool.Put(b.large)
	}
	b.b, b.small, b.large, b.r, b.w = nil, nil, nil, 0, 0
}
