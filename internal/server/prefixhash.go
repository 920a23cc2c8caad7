package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/sluice-router/sluice/internal/kv"
)

// prefixHashes writes the hashes of prompts for the access log. The keys of the index stand
// for the text before them already, and are made with a secret; here they go through a
// cipher too, so that what the log has tells nothing of that secret. Which of two prompts are
// alike, and for how long, is all that is left.
type prefixHashes struct{ cipher cipher.Block }

// newPrefixHashes makes hashes with a key, with a random one for none.
func newPrefixHashes(key string) *prefixHashes {
	secret := []byte("access log " + key)
	if key == "" {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
	}
	sum := sha256.Sum256(secret)
	block, err := aes.NewCipher(sum[:16])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &prefixHashes{block}
}

// encode returns the hashes of a prompt in characters of base64, eight bytes each; of a nil p
// none.
func (p *prefixHashes) encode(keys []kv.Key) []byte {
	if p == nil || len(keys) == 0 {
		return nil
	}
	raw := make([]byte, 0, 8*len(keys))
	for _, k := range keys {
		var b [aes.BlockSize]byte
		binary.BigEndian.PutUint64(b[:], uint64(k))
		p.cipher.Encrypt(b[:], b[:])
		raw = append(raw, b[:8]...)
	}
	return base64.RawURLEncoding.AppendEncode(nil, raw)
}
