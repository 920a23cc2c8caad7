//go:build !linux || race

package server

// pagesReturn: see mmap_linux.go. Here blocks are the collector's; the race detector
// knows no other memory.
const pagesReturn = false

func mapBlock(n int64) []byte { return make([]byte, n) }

func dropPages([]byte) {}
