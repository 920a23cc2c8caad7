package server

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/kv"
)

// keysOf are those of a prompt in blocks of 2,048 bytes.
func keysOf(text string) []kv.Key {
	var h kv.Hasher
	h.Reset(kv.Scope{Model: "m", Size: 2048})
	h.Write([]byte(text))
	return append([]kv.Key(nil), h.Keys()...)
}

func TestPrefixHashesTellHowLongPromptsAreAlike(t *testing.T) {
	shared := strings.Repeat("What all begin with. ", 300) // 6,300 bytes: 3 hashes
	one, two := keysOf(shared+strings.Repeat("one ", 2000)), keysOf(shared+strings.Repeat("two ", 1000))
	p := newPrefixHashes("0123456789abcdef")
	a, b := string(p.encode(one)), string(p.encode(two))
	raw, err := base64.RawURLEncoding.DecodeString(a)
	if err != nil || len(raw) != 8*len(one) {
		t.Fatalf("%d bytes for %d keys: %v", len(raw), len(one), err)
	}
	if same := 3 * 8 * 4 / 3; a[:same] != b[:same] || a[same:same+12] == b[same:same+12] {
		t.Errorf("not alike for 3 hashes alone:\n%.60s\n%.60s", a, b)
	}
	if again := string(newPrefixHashes("0123456789abcdef").encode(one)); again != a {
		t.Error("the same key gave other hashes")
	}
	if other := string(newPrefixHashes("0123456789abcdeg").encode(one)); other[:10] == a[:10] {
		t.Error("another key gave the same hashes")
	}
	if x, y := newPrefixHashes("").encode(one), newPrefixHashes("").encode(one); string(x) == string(y) {
		t.Error("without a key two starts give the same hashes")
	}
	if p = nil; p.encode(one) != nil || newPrefixHashes("").encode(nil) != nil {
		t.Error("hashes of nothing")
	}
}
