//go:build !linux || race

package server

// pagesReleasable: see mmap_linux.go. Here blocks lie in the Go heap; the race detector
// handles no other memory.
const pagesReleasable = false

func mapBlock(n int64) []byte { return make([]byte, n) }

func releasePages([]byte) {}
