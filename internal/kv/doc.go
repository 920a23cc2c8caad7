// Package kv knows which ranks hold the beginnings of which prompts in their KV caches.
//
// A prompt is a chain of blocks. Each block has a [Key] that stands for it and all before
// it, so that a rank that holds a block of a key holds the same beginning of the prompt.
// Keys of different models, adapters, salts, forms of API and sizes of blocks never meet.
//
// What ranks hold is told in two ways. The approximate feed records the prompts that a rank
// was sent; the exact one follows the events of its engine. Both keep their blocks here.
//
// It knows no requests, workers or policies; package events reads the engines' streams.
package kv
