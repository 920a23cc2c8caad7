package kv

import (
	"encoding/binary"
	"hash/maphash"
)

// Scope is what the keys of prompts are apart by beside their contents.
type Scope struct {
	// Model is the base model, Adapter the LoRA adapter, Salt the cache salt that the client
	// gave; empty: none.
	Model, Adapter, Salt string
	// Form tells apart prompts whose bytes mean something else: the form of the API, or token
	// ids.
	Form byte
	// Size is the length of a block: bytes of the body, or tokens.
	Size int
}

var seed = maphash.MakeSeed()

// Hasher makes the keys of one prompt. It may be fed the prompt in pieces, as they come. The
// zero value is not usable; see Reset.
type Hasher struct {
	scope Scope
	last  Key
	part  []byte
	keys  []Key
}

// Reset begins a prompt. The keys of the one before are not valid any more.
func (h *Hasher) Reset(s Scope) {
	h.scope, h.part, h.keys = s, h.part[:0], h.keys[:0]
	var m maphash.Hash
	m.SetSeed(seed)
	for _, w := range [...]string{s.Model, s.Adapter, s.Salt} {
		_ = binary.Write(&m, binary.LittleEndian, int64(len(w)))
		_, _ = m.WriteString(w)
	}
	_ = binary.Write(&m, binary.LittleEndian, int64(s.Size))
	_ = m.WriteByte(s.Form)
	h.last = Key(m.Sum64())
}

// Write adds bytes of a prompt whose blocks are of Size bytes.
func (h *Hasher) Write(b []byte) {
	for len(b) > 0 {
		n := min(len(b), h.scope.Size-len(h.part))
		h.part = append(h.part, b[:n]...)
		b = b[n:]
		if len(h.part) == h.scope.Size {
			h.end()
		}
	}
}

// WriteTokens adds ids of a prompt whose blocks are of Size tokens.
func (h *Hasher) WriteTokens(ids []uint32) {
	for _, id := range ids {
		h.part = binary.LittleEndian.AppendUint32(h.part, id)
		if len(h.part) == 4*h.scope.Size {
			h.end()
		}
	}
}

func (h *Hasher) end() {
	h.last = h.last.next(h.part)
	h.keys = append(h.keys, h.last)
	h.part = h.part[:0]
}

func (k Key) next(block []byte) Key {
	var m maphash.Hash
	m.SetSeed(seed)
	_ = binary.Write(&m, binary.LittleEndian, uint64(k))
	_, _ = m.Write(block)
	return Key(m.Sum64())
}

// Keys returns the keys of the whole blocks so far. They are valid until Reset.
func (h *Hasher) Keys() []Key { return h.keys }
