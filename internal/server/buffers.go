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
	// slabBytes is what blocks smaller than that are cut from.
	slabBytes = 1 << 20
	// maxPromised is the largest block that a body gets for what it announces, in
	// bytes; a larger one for what came.
	maxPromised = 1 << 20

	// keepWarm is how much memory of given-up blocks stays at hand for the next
	// bodies, as far as the limit has room for it.
	keepWarm = 16 << 20
	// garbageStep is how much of what the collector has to free is waited for before
	// it is told to.
	garbageStep = 16 << 20
	// collectShare bounds the time that ordered collections take: one part of so many.
	collectShare = 5
	// trimEvery is how often memory is looked through for what is not in use.
	trimEvery = 10 * time.Second
	// trimHeap is how much the heap may have grown since it was last trimmed.
	trimHeap = 16 << 20
)

// buffers is the account of the memory that requests hold, and lends it for their
// bodies. What is counted is what is held, in pages.
//
// Bodies lie beside the collector's heap, where they can be, so that their memory is
// the system's again once they are given up. What else is counted lies in the heap;
// when that is given up it stays in the account until the collector has run, which it
// is told to when that is much or in the way.
type buffers struct {
	limit   int64
	used    atomic.Int64 // in use now
	garbage atomic.Int64 // given up, but not collected
	warm    atomic.Int64 // kept for reuse

	classes [blockClasses]blockList

	mu sync.Mutex // held while a collection that was ordered runs
	// guarded by mu
	nextCollect time.Time
	collecting  atomic.Bool // one is on its way in the background
}

// blockList are the free blocks of a class.
type blockList struct {
	mu sync.Mutex
	// guarded by mu
	warm []warmBlock // the last one in is the first one out
	cold [][]byte    // without memory
	low  int         // the fewest that were warm since the last trim
}

type warmBlock struct {
	b        []byte
	resident int64
}

// buffer is memory on loan: a block of addresses, of which as many bytes as room may
// be written to. The zero value is none.
type buffer struct {
	b    []byte
	room int64 // in pages, and in the account
	// kept is what of room held memory when it was lent.
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

// get lends n bytes, in a block that may grow to whole bytes without being copied. ok
// is false if that would be over the limit.
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

// keepResident makes a block that holds more memory than it has room hold no more
// than is in the account.
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

// grow gives b room for n bytes, of which the first length are in use. It is false
// if that would be over the limit. whole is as for get.
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

// shrink gives up what is beyond the first length bytes, which were never written to.
func (p *buffers) shrink(b *buffer, length int) {
	if room := max(pages(int64(length)), b.kept); pagesReleasable && room < b.room {
		p.release(b.room - room)
		b.room = room
	}
}

// put takes a buffer back, and leaves none. Nobody may use it any more.
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

// reserve takes memory into account that is not lent from here, until release.
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
	dead := p.garbage.Add(n) // first: it is never in neither
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

// collectFor collects if that makes room for n bytes and collections do not take too
// much of the time. Others that want the same wait for it.
func (p *buffers) collectFor(n int64) bool {
	if p.used.Load()+n > p.limit {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used.Load()+p.garbage.Load()+n <= p.limit {
		return true // another one did it
	}
	if time.Now().Before(p.nextCollect) {
		return false
	}
	p.collectLocked()
	return true
}

// collectLocked runs the collector and gives what is free back to the system.
func (p *buffers) collectLocked() {
	dead := p.garbage.Load()
	start := time.Now()
	debug.FreeOSMemory()
	end := time.Now()
	p.garbage.Add(-dead)
	p.nextCollect = end.Add((collectShare - 1) * end.Sub(start))
}

// trim gives memory that was not used of late back to the system, until ctx ends.
func (p *buffers) trim(ctx context.Context) {
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	var after uint64 // what the heap held after the last collection from here
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

// dropWarm takes their memory from free blocks: from all, or from those that nobody
// wanted since the last time.
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

// heapHeld is the memory that the runtime has of the system, in bytes.
func heapHeld() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// What a process holds beside the bodies.
const (
	baseBytes = 64 << 20 // the program, its heap and the garbage in it
	connBytes = 32 << 10 // for each open connection
)

// MemoryBound is the most memory that this process holds with all files in use, in
// bytes.
func (s *Server) MemoryBound() int64 {
	return s.cfg.Server.MaxBufferedBytes + baseBytes + connBytes*int64(s.opts.MaxFiles)
}

// ReserveMemory counts n bytes of the heap until ReleaseMemory. It is false, and counts
// none, if that would be over the limit.
func (s *Server) ReserveMemory(n int) bool { return s.buffers.reserve(int64(n)) }

// ReleaseMemory counts n bytes no more, once the collector has freed them.
func (s *Server) ReleaseMemory(n int) { s.buffers.releaseHeap(int64(n)) }
