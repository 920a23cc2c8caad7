package kv

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/zeebo/xxh3"
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

// FormTokens is the Form of prompts that are token ids. Forms of API are other numbers.
const FormTokens byte = 't'

// secret is what all keys of a process are made with, so that nobody outside can make two
// prompts of equal keys.
type secret struct{ seed, left, right uint64 }

var secrets atomic.Pointer[secret]

// placing says where a rank's blocks lie in its set: engines choose their hashes.
var placing = *newSecret(randomKey())

func init() { SetHashKey(randomKey()) }

func randomKey() []byte {
	key := make([]byte, 32)
	_, _ = crand.Read(key) // never fails
	return key
}

// SetHashKey makes keys depend on a secret that is the same in each process that is given it,
// instead of on a random one, so that keys can be compared across restarts. Keys that were
// made before never meet those made after: it is called before the first prompt.
func SetHashKey(key []byte) { secrets.Store(newSecret(key)) }

func newSecret(key []byte) *secret {
	h := sha256.Sum256(key)
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(h[8*i:]) }
	return &secret{seed: word(0), left: word(1), right: word(2)}
}

// root returns the key that stands before the first block of a prompt.
func (s *secret) root(c Scope) Key {
	k := Key(s.seed)
	for _, w := range [...]string{c.Model, c.Adapter, c.Salt} {
		k = s.next(k, xxh3.HashStringSeed(w, s.seed))
	}
	return s.next(k, uint64(c.Size)<<8|uint64(c.Form))
}

// block returns the hash of what a block holds, whatever is before it.
func (s *secret) block(b []byte) uint64 { return xxh3.HashSeed(b, s.seed) }

// next returns the key of a block after the one of key k.
func (s *secret) next(k Key, block uint64) Key {
	hi, lo := bits.Mul64(uint64(k)^s.left, block^s.right)
	return Key(hi ^ lo)
}

// Hasher makes the keys of one prompt. It may be fed the prompt in pieces, as they come, and
// allocates nothing once its buffers have grown. The zero value is not usable; see Reset.
type Hasher struct {
	// Limit is how many keys are made at most; zero is no limit. What is written after that is
	// ignored.
	Limit int

	secret *secret
	last   Key
	size   int    // bytes of a block
	part   []byte // of the block that is not whole yet
	keys   []Key
}

// Reset begins a prompt. The keys of the one before are not valid any more.
func (h *Hasher) Reset(s Scope) {
	h.secret = secrets.Load()
	h.part, h.keys = h.part[:0], h.keys[:0]
	h.size = max(s.Size, 1)
	if s.Form == FormTokens {
		h.size *= tokenBytes
	}
	h.last = h.secret.root(s)
}

// tokenBytes is the length of a token id where it is hashed: 32 bits, little-endian.
const tokenBytes = 4

// Write adds bytes of a prompt whose blocks are of Size bytes.
func (h *Hasher) Write(b []byte) {
	if len(h.part) > 0 {
		n := min(len(b), h.size-len(h.part))
		h.part = append(h.part, b[:n]...)
		b = b[n:]
		if len(h.part) < h.size {
			return
		}
		h.end(h.part)
		h.part = h.part[:0]
	}
	for len(b) >= h.size && !h.full() {
		h.end(b[:h.size])
		b = b[h.size:]
	}
	if !h.full() {
		h.part = append(h.part, b...)
	}
}

// WriteItem adds something that counts as weight bytes of the prompt, at least 8, and is told
// apart by ref: an image by its address or its data, where it is what the model sees of
// the image that takes room in the cache, and not ref.
func (h *Hasher) WriteItem(ref []byte, weight int) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], h.secret.block(ref))
	h.Write(word[:])
	for weight -= len(word); weight > 0 && !h.full(); {
		n := min(weight, len(filling))
		h.Write(filling[:n])
		weight -= n
	}
}

// filling is written after the hash of an item.
var filling [256]byte

// WriteTokens adds ids of a prompt whose blocks are of Size tokens, if the Form is FormTokens.
func (h *Hasher) WriteTokens(ids []uint32) {
	for _, id := range ids {
		if h.full() {
			return
		}
		h.part = binary.LittleEndian.AppendUint32(h.part, id)
		if len(h.part) == h.size {
			h.end(h.part)
			h.part = h.part[:0]
		}
	}
}

func (h *Hasher) full() bool { return h.Limit > 0 && len(h.keys) >= h.Limit }

func (h *Hasher) end(block []byte) {
	h.last = h.secret.next(h.last, h.secret.block(block))
	h.keys = append(h.keys, h.last)
}

// Keys returns the keys of the whole blocks so far. They are valid until Reset; more may be
// written after it.
func (h *Hasher) Keys() []Key { return h.keys }
