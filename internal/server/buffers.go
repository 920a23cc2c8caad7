package server

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	minBufferBits = 12 // 4 KiB
	maxBufferBits = 26 // 64 MiB; larger ones are made to measure and not kept
	// firstBuffer is the most memory a request gets for the length it announces;
	// more only as its bytes arrive.
	firstBuffer = 64 << 10
	// firstUnknown is what a body of unknown length begins with.
	firstUnknown = 16 << 10
	// oddStep is what lengths beyond the classes are rounded up to.
	oddStep = 1 << 20
)

// buffers lends memory for request bodies in sizes that are powers of two, and
// bounds all that is lent out at one time.
type buffers struct {
	limit int64
	used  atomic.Int64
	pools [maxBufferBits - minBufferBits + 1]sync.Pool
}

// buffer is memory on loan. Its length is its capacity.
type buffer struct{ b []byte }

// get lends at least n bytes, or nil if that would be over the limit.
func (p *buffers) get(n int64) *buffer {
	class := -1
	size := (n + oddStep - 1) / oddStep * oddStep
	if n <= 1<<maxBufferBits {
		class = 0
		if n > 1<<minBufferBits {
			class = bits.Len64(uint64(n-1)) - minBufferBits
		}
		size = 1 << (class + minBufferBits)
	}
	if !p.reserve(size) {
		return nil
	}
	if class >= 0 {
		if b, ok := p.pools[class].Get().(*buffer); ok {
			return b
		}
	}
	return &buffer{b: make([]byte, size)}
}

// reserve takes memory into account that is not lent from here, until release.
func (p *buffers) reserve(n int64) bool {
	if p.used.Add(n) > p.limit {
		p.used.Add(-n)
		return false
	}
	return true
}

func (p *buffers) release(n int64) { p.used.Add(-n) }

// put takes a buffer back. It must not be used any more.
func (p *buffers) put(b *buffer) {
	size := len(b.b)
	p.used.Add(-int64(size))
	if size <= 1<<maxBufferBits {
		p.pools[bits.Len(uint(size))-1-minBufferBits].Put(b)
	}
}
