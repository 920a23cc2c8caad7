package upstream

import "sync"

// bufSize is what a connection reads into: an event of a token stream is a few
// hundred bytes, a plain answer a few thousand.
const bufSize = 4 << 10

var bufPool = sync.Pool{New: func() any { return new([bufSize]byte) }}

func getBuf() *[bufSize]byte  { return bufPool.Get().(*[bufSize]byte) }
func putBuf(b *[bufSize]byte) { bufPool.Put(b) }
