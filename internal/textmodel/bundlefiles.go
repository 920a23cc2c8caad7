package textmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Bundle is the files of a model as an engine has given them, read and not understood yet.
type Bundle struct {
	files  map[string][]byte
	digest string
}

// ReadZip reads the files of a zip. digest is the SHA-256 that the zip must have, in hexadecimal digits; empty: any.
// The data comes from an engine and is not trusted.
func ReadZip(data []byte, digest string) (*Bundle, error) {
	sum := sha256.Sum256(data)
	if own := hex.EncodeToString(sum[:]); digest != "" && !strings.EqualFold(digest, own) {
		return nil, fmt.Errorf("the tokenizer bundle has the digest %s, and should have %s", own, digest)
	}
	files, err := unzip(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tokenizer bundle: %w", err)
	}
	b := &Bundle{files: files}
	hash := sha256.New()
	for _, name := range bundleFiles {
		content, ok := files[name]
		if !ok {
			continue
		}
		_, _ = fmt.Fprintf(hash, "%s\x00%d\x00", name, len(content)) // a hash takes all
		_, _ = hash.Write(content)
	}
	b.digest = hex.EncodeToString(hash.Sum(nil))
	return b, nil
}

// Digest is the SHA-256 of the files themselves, as that of FromDir. Zips of the same files differ from host to host, since they have the files' times.
func (b *Bundle) Digest() string { return b.digest }

// Model reads the files.
func (b *Bundle) Model() (*Model, error) { return newModel(b.files, b.digest) }
