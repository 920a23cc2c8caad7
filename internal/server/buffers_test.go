package server

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
)

func (p *buffers) mustGet(t *testing.T, n, whole int64) *buffer {
	t.Helper()
	b, ok := p.get(n, whole)
	if !ok {
		t.Fatalf("get(%d) with %d of %d bytes in use", n, p.used.Load(), p.limit)
	}
	return &b
}

// What is counted is what is held, and not the next power of two.
func TestBuffers(t *testing.T) {
	p := &buffers{limit: 200 << 20}
	for _, tc := range []struct{ n, size int64 }{
		{0, 4 << 10}, {1, 4 << 10}, {4 << 10, 4 << 10}, {4<<10 + 1, 8 << 10}, {1 << 20, 1 << 20}, {1<<20 + 1, 1<<20 + 4<<10},
		{64 << 20, 64 << 20}, {64<<20 + 1, 64<<20 + 4<<10}, {100 << 20, 100 << 20},
	} {
		b := p.mustGet(t, tc.n, tc.n)
		if b.room != tc.size || int64(len(b.b)) < b.room || p.used.Load() != tc.size {
			t.Errorf("get(%d): %d bytes, %d accounted for, want %d", tc.n, b.room, p.used.Load(), tc.size)
		}
		p.put(b)
		if p.used.Load() != 0 || b.b != nil {
			t.Errorf("get(%d): %d bytes are left", tc.n, p.used.Load())
		}
		p.garbage.Store(0) // as if they had been collected, where they are the collector's
	}
	a := p.mustGet(t, 150<<20, 0)
	if _, ok := p.get(51<<20, 0); ok || p.used.Load() != 150<<20 {
		t.Errorf("%d bytes of %d", p.used.Load(), p.limit)
	}
	p.put(a)
}

// Bytes survive every step of growing, and no two blocks on loan overlap.
func TestBuffersGrow(t *testing.T) {
	p := &buffers{limit: 64 << 20}
	var held []*buffer
	for i := range 8 {
		b := p.mustGet(t, 1, 1)
		fill := byte('a' + i)
		length := 0
		for _, n := range []int64{3000, 5000, 70000, 300000, 1<<20 + 1, 2<<20 + 5} {
			if !p.grow(b, length, n, n) {
				t.Fatalf("no room for %d", n)
			}
			for ; length < int(n); length++ {
				b.b[length] = fill
			}
		}
		p.shrink(b, length)
		if want := pages(2<<20 + 5); b.room != want && pagesReleasable {
			t.Errorf("room %d, want %d", b.room, want)
		}
		held = append(held, b)
	}
	for i, b := range held {
		if n := bytes.Count(b.b[:2<<20+5], []byte{byte('a' + i)}); n != 2<<20+5 {
			t.Errorf("block %d: %d bytes are its own", i, n)
		}
		p.put(b)
	}
	if p.used.Load() != 0 {
		t.Errorf("%d bytes are left", p.used.Load())
	}
}

// Bodies that were given up must not hold memory beside the account, whatever sizes
// follow one another: a pool of each size would keep as much as all of them held.
func TestReleasedMemoryIsReturnedToTheSystem(t *testing.T) {
	if !pagesReleasable {
		t.Skip("blocks are the collector's here")
	}
	const limit = 96 << 20
	p := &buffers{limit: limit}
	before := resident(t)
	for _, size := range []int64{8 << 20, 4 << 20, 16 << 20, 2 << 20, 32 << 20, 90 << 20, 64 << 10, 16 << 10, 4 << 10, 1 << 20, 200 << 10} {
		var held []*buffer
		for range 90 << 20 / size {
			b := p.mustGet(t, size, size)
			for i := int64(0); i < size; i += pageBytes {
				b.b[i] = 1
			}
			held = append(held, b)
		}
		if grown := resident(t) - before; grown > limit+32<<20 {
			t.Errorf("bodies of %d bytes: %d MiB beyond the start, and the limit is %d MiB", size, grown>>20, limit>>20)
		}
		for _, b := range held {
			p.put(b)
		}
		if grown := resident(t) - before; grown > keepWarm+32<<20 {
			t.Errorf("bodies of %d bytes: %d MiB are left of them", size, grown>>20)
		}
	}
	p.dropWarm(true)
	p.dropWarm(true)
	if p.warm.Load() != 0 {
		t.Errorf("%d bytes stay warm with nobody to use them", p.warm.Load())
	}
}

// resident is the memory of this process, in bytes.
func resident(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}

// What the collector has to free stays counted until it has.
func TestMemoryOfTheHeapIsCountedUntilItIsFree(t *testing.T) {
	p := &buffers{limit: 8 << 20}
	if !p.reserve(900 << 10) {
		t.Fatal("no room")
	}
	p.releaseHeap(900 << 10)
	if used, dead := p.used.Load(), p.garbage.Load(); used != 0 || dead != 900<<10 {
		t.Errorf("%d bytes in use, %d to be freed", used, dead)
	}
	if !p.reserve(8 << 20) {
		t.Error("memory that nobody uses is refused")
	}
	if p.garbage.Load() != 0 {
		t.Errorf("%d bytes are held beside a full account", p.garbage.Load())
	}
}
