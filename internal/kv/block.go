package kv

// BlockBytes is the length of a block of text, in bytes: the Size of Scopes of text.
const BlockBytes = 256
