// Package kv knows which ranks hold the beginnings of which prompts in their KV caches.
//
// A prompt is a chain of blocks. Each block has a [Key] that stands for it and all before
// it, so that a rank that holds a block of a key holds the same beginning of the prompt.
// Keys of different models, adapters, salts, forms of API and sizes of blocks never meet.
// A [Hasher] makes them, with a secret, while the prompt is read.
//
// What ranks hold is told in two ways. The approximate feed records the prompts that a rank
// was sent, as if its engine kept what was used last ([Index.Record], [Index.Undo]), and
// corrects how much that is by what engines report ([Index.Correct]). The exact one follows
// the events of its engine ([Exact]). Both keep their blocks in an [Index], which
// [Index.Match] asks.
//
// An index has a table of keys with the ranks that hold each (table.go, arena.go for long
// lists), which readers read without a lock, and for each rank the set of its blocks in the
// order of use (set.go). The table is what a lookup needs, the set what eviction and removals
// need. Memory is bounded for each rank by what its engine can hold, and as a whole
// (bound.go), whenever something is stored.
//
// It knows no requests, workers or policies; package events reads the engines' streams.
package kv
