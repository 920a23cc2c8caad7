package wire

import "sync"

// Buffer sizes of a connection. An event of a token stream is a few hundred bytes,
// a plain answer a few thousand; a body that fills the small buffer in one read is
// a big one, and saves system calls with the large one.
const (
	BufSize      = 4 << 10
	largeBufSize = 32 << 10
)

var (
	bufPool      = sync.Pool{New: func() any { return new([BufSize]byte) }}
	largeBufPool = sync.Pool{New: func() any { return new([largeBufSize]byte) }}
)

// GetBuf lends a small buffer.
func GetBuf() *[BufSize]byte { return bufPool.Get().(*[BufSize]byte) }

// PutBuf takes a buffer back from GetBuf.
func PutBuf(b *[BufSize]byte) { bufPool.Put(b) }

// ReadBuf holds bytes read and not yet taken: B[R:W]. It borrows its memory and
// returns it by Drop.
type ReadBuf struct {
	B     []byte
	R, W  int
	small *[BufSize]byte
	large *[largeBufSize]byte
	wide  bool // the last read filled the buffer: borrow a large one next
}

// Len is how many bytes are not taken yet.
func (b *ReadBuf) Len() int { return b.W - b.R }

// Room makes space behind W: it borrows, moves the rest to the front, or, if that
// is full, takes more memory, which the caller bounds by what it lets pile up.
func (b *ReadBuf) Room() {
	switch {
	case b.R == b.W:
		b.R, b.W = 0, 0
		if b.B != nil && (!b.wide || b.large != nil) {
			return
		}
		b.Drop()
		if b.wide {
			b.large = largeBufPool.Get().(*[largeBufSize]byte)
			b.B = b.large[:]
		} else {
			b.small = GetBuf()
			b.B = b.small[:]
		}
	case b.W < len(b.B):
	case b.R > 0:
		b.W = copy(b.B, b.B[b.R:b.W])
		b.R = 0
	default:
		more := make([]byte, 2*len(b.B))
		n := copy(more, b.B)
		b.Drop()
		b.B, b.R, b.W = more, 0, n
	}
}

// Filled advances W by n bytes that were read there.
func (b *ReadBuf) Filled(n int) {
	b.W += n
	b.wide = b.W == len(b.B)
}

// Drop returns the memory to its pool and discards its contents.
func (b *ReadBuf) Drop() {
	if b.small != nil {
		PutBuf(b.small)
	}
	if b.large != nil {
		largeBufPool.Put(b.large)
	}
	b.B, b.small, b.large, b.R, b.W = nil, nil, nil, 0, 0
}
