package server

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pageBytes = 4 << 10
	// Blocks of addresses have pageBytes times a power of four.
	blockClasses = 13 // to 64 GiB
	// slabBytes is the size of the mappings that smaller blocks are cut from.
	slabBytes = 1 << 20
	// maxPromised is the largest block that a body gets for its Content-Length alone, in
	// bytes; larger blocks are given for bytes that were received.
	maxPromised = 1 << 20

	// keepWarm is how much memory of free blocks is kept for the next bodies, in bytes,
	// as far as the limit has room for it.
	keepWarm = 16 << 20
	// garbageStep is how much released heap memory, in bytes, may wait for the garbage
	// collector before a collection is started.
	garbageStep = 16 << 20
	// collectShare bounds the time that such collections take: 1/collectShare of all.
	collectShare = 5
	// trimEvery is how often unused memory is returned to the system.
	trimEvery = 10 * time.Second
	// trimHeap is how much the heap may have grown since it was last trimmed.
	trimHeap = 16 << 20
)

// buffers allocates the memory of request bodies and counts all memory that requests
// hold, in whole pages, against --max-buffered-bytes.
//
// Bodies lie outside the Go heap where possible, so that their memory is returned to the
// system as soon as they are released. Other memory that is counted lies in the heap; when
// released, it stays counted until the garbage collector has run, which is started when
// there is much of it or when it stands in the way of a new request.
type buffers struct {
	limit   int64
	used    atomic.Int64 // in use now
	garbage atomic.Int64 // released, but not collected yet
	warm    atomic.Int64 // kept for reuse

	classes [blockClasses]blockList

	mu sync.Mutex // held while a collection that was started here runs
	// guarded by mu
	nextCollect time.Time
	collecting  atomic.Bool // a background goroutine collects
}

// blockList are the free blocks of a class.
type blockList struct {
	mu sync.Mutex
	// guarded by mu
	warm []warmBlock // the last one in is the first one out
	cold [][]byte    // without memory
	low  int         // the smallest len(warm) since the last trim
}

type warmBlock struct {
	b        []byte
	resident int64
}

// buffer is memory from buffers: a block of addresses of which the first room bytes may
// be written. The zero value is no buffer.
type buffer struct {
	b    []byte
	room int64 // whole pages; counted
	// kept is how much of room had memory when the buffer was allocated, in bytes.
	kept  int64
	class int8
}

func blockSize(class int) int64 { return pageBytes << (2 * class) }

func classOf(n int64) int {
	class := 0
	for blockSize(class) < n {
		class++
	}
	return class
}

func pages(n int64) int64 { return (n + pageBytes - 1) &^ (pageBytes - 1) }

// get allocates n bytes, in a block that may grow to whole bytes without a copy. ok is
// false if that would exceed the limit.
func (p *buffers) get(n, whole int64) (b buffer, ok bool) {
	room := max(pages(n), pageBytes)
	if !p.reserve(room) {
		return buffer{}, false
	}
	if !pagesReleasable {
		return buffer{b: mapBlock(room), room: room}, true
	}
	for class := classOf(max(room, whole)); blockSize(class) >= room; class-- {
		if block, resident := p.take(class); block != nil {
			b = buffer{b: block, room: room, class: int8(class)}
			p.keepResident(&b, resident)
			return b, true
		}
		if class == 0 {
			break
		}
	}
	p.release(room)
	return buffer{}, false
}

// keepResident handles a block with more resident memory than b.room: the excess is
// counted if there is plenty of room, else returned to the system.
func (p *buffers) keepResident(b *buffer, resident int64) {
	more := resident - b.room
	if more <= 0 {
		b.kept = resident
		return
	}
	if p.used.Load() < p.limit/2 && p.reserve(more) {
		b.room, b.kept = resident, resident
		return
	}
	releasePages(b.b[b.room:resident])
	b.kept = b.room
}

// take finds a free block, warm ones first, or makes one.
func (p *buffers) take(class int) (block []byte, resident int64) {
	l := &p.classes[class]
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.warm); n > 0 {
		w := l.warm[n-1]
		l.warm = l.warm[:n-1]
		l.low = min(l.low, n-1)
		p.warm.Add(-w.resident)
		return w.b, w.resident
	}
	size := blockSize(class)
	if len(l.cold) == 0 {
		slab := mapBlock(max(size, slabBytes))
		for ; len(slab) > 0; slab = slab[size:] {
			l.cold = append(l.cold, slab[:size:size])
		}
	}
	if n := len(l.cold); n > 0 {
		block = l.cold[n-1]
		l.cold = l.cold[:n-1]
	}
	return block, 0
}

// grow gives b room for n bytes, of which the first length are in use. It returns false
// if that would exceed the limit. whole is as for get.
func (p *buffers) grow(b *buffer, length int, n, whole int64) bool {
	room := pages(n)
	if room <= int64(len(b.b)) {
		if !p.reserve(room - b.room) {
			return false
		}
		b.room = room
		return true
	}
	larger, ok := p.get(n, whole)
	if !ok {
		return false
	}
	copy(larger.b, b.b[:length])
	p.put(b)
	*b = larger
	return true
}

// shrink releases what is beyond the first length bytes, which was never written to.
func (p *buffers) shrink(b *buffer, length int) {
	if room := max(pages(int64(length)), b.kept); pagesReleasable && room < b.room {
		p.release(b.room - room)
		b.room = room
	}
}

// put releases a buffer and sets *b to its zero value. Its memory must not be used any
// more.
func (p *buffers) put(b *buffer) {
	block, room, class := b.b, b.room, b.class
	*b = buffer{}
	if !pagesReleasable {
		p.releaseHeap(room)
		return
	}
	l := &p.classes[class]
	if warm := p.warm.Add(room); warm <= min(keepWarm, p.limit/8) && p.used.Load()+p.garbage.Load()+warm <= p.limit {
		l.mu.Lock()
		l.warm = append(l.warm, warmBlock{block, room})
		l.mu.Unlock()
		p.release(room)
		return
	}
	p.warm.Add(-room)
	releasePages(block[:room])
	p.release(room) // after its memory is gone
	l.mu.Lock()
	l.cold = append(l.cold, block)
	l.mu.Unlock()
}

// reserve counts n bytes of memory that is allocated elsewhere, until release. It returns
// false if that would exceed the limit.
func (p *buffers) reserve(n int64) bool {
	if p.fits(n) {
		return true
	}
	return p.garbage.Load() > 0 && p.collectFor(n) && p.fits(n)
}

func (p *buffers) fits(n int64) bool {
	held := p.used.Add(n) + p.garbage.Load()
	if held > p.limit {
		p.used.Add(-n)
		return false
	}
	if warm := p.warm.Load(); warm > 0 && held+warm > p.limit {
		p.dropWarm(false)
	}
	return true
}

func (p *buffers) release(n int64) { p.used.Add(-n) }

// releaseHeap is release for memory that the collector has to free first.
func (p *buffers) releaseHeap(n int64) {
	if n == 0 {
		return
	}
	dead := p.garbage.Add(n) // before used is lowered: it is counted at all times
	p.used.Add(-n)
	if dead >= min(garbageStep, p.limit/8) && p.collecting.CompareAndSwap(false, true) {
		go func() {
			defer p.collecting.Store(false)
			p.mu.Lock()
			defer p.mu.Unlock()
			if !time.Now().Before(p.nextCollect) {
				p.collectLocked()
			}
		}()
	}
}

// collectFor runs a collection if that makes room for n bytes and collections have not
// taken too much time. Concurrent callers wait for it.
func (p *buffers) collectFor(n int64) bool {
	if p.used.Load()+n > p.limit {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used.Load()+p.garbage.Load()+n <= p.limit {
		return true // another goroutine did it
	}
	if time.Now().Before(p.nextCollect) {
		return false
	}
	p.collectLocked()
	return true
}

// collectLocked runs the garbage collector and returns free memory to the system.
func (p *buffers) collectLocked() {
	dead := p.garbage.Load()
	start := time.Now()
	debug.FreeOSMemory()
	end := time.Now()
	p.garbage.Add(-dead)
	p.nextCollect = end.Add((collectShare - 1) * end.Sub(start))
}

// trim returns memory that was not used recently to the system, every trimEvery until
// ctx ends.
func (p *buffers) trim(ctx context.Context) {
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	var after uint64 // size of the heap after the last collection
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		p.dropWarm(true)
		held := heapHeld()
		if p.garbage.Load() == 0 && held < after+trimHeap {
			after = min(after, held)
			continue
		}
		p.mu.Lock()
		p.collectLocked()
		p.mu.Unlock()
		after = heapHeld()
	}
}

// dropWarm returns the memory of free blocks to the system: of all, or with unwanted of
// those that were not needed since the last trim.
func (p *buffers) dropWarm(unwanted bool) {
	for i := range p.classes {
		l := &p.classes[i]
		l.mu.Lock()
		n := len(l.warm)
		if unwanted {
			n = min(l.low, n)
		}
		for _, w := range l.warm[:n] {
			releasePages(w.b[:w.resident])
			p.warm.Add(-w.resident)
			l.cold = append(l.cold, w.b)
		}
		l.warm = append(l.warm[:0], l.warm[n:]...)
		clear(l.warm[len(l.warm):cap(l.warm)])
		l.low = len(l.warm)
		l.mu.Unlock()
	}
}

// heapHeld is the memory that the Go runtime holds, in bytes.
func heapHeld() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// Memory of the process beside the bodies.
const (
	baseBytes = 64 << 20 // the program, its heap and the garbage in it
	connBytes = 32 << 10 // for each open connection
)

// MemoryBound is the most memory that this process holds with all files in use, in
// bytes.
func (s *Server) MemoryBound() int64 {
	return s.cfg.Server.MaxBufferedBytes + s.cfg.KV.IndexMemory + baseBytes + connBytes*int64(s.opts.MaxFiles)
}

// ReserveMemory counts n bytes of the heap until ReleaseMemory. It returns false and
// counts none if that would exceed the limit.
func (s *Server) ReserveMemory(n int) bool { return s.buffers.reserve(int64(n)) }

// ReleaseMemory releases n bytes, which stay counted until the garbage collector has run.
func (s *Server) ReleaseMemory(n int) { s.buffers.releaseHeap(int64(n)) }
