//go:build linux && !race

package server

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pagesReleasable: the memory of a block can be returned to the system while its
// addresses stay mapped.
const pagesReleasable = true

// mapBlock maps n bytes of addresses outside the Go heap; nil if that fails. A page takes
// memory once it is written to. Blocks are never unmapped, so that a read after release
// sees zeros or another body and does not crash the process.
func mapBlock(n int64) []byte {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil
	}
	b := unsafe.Slice((*byte)(p), n)
	// A huge page would be 2 MiB of memory for one byte. A kernel without them says
	// that it does not know the advice.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	return b
}

// releasePages gives the memory of b, which begins and ends with a page, back to the
// system.
func releasePages(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) } // fails only for what is not mapped
