//go:build !linux || race

package server

// pagesReturn: see mmap_linux.go. Here blocks lie in the Go heap; the race detector
// handles no other memory.
const pagesReturn = false

func mapBlock(n int64) []byte { return make([]byte, n) }

func dropPages([]byte) {}
