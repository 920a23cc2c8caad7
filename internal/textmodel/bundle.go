package textmodel

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a bundle. The largest tokenizer.json known has 35 MB.
const (
	maxBundleBytes = 256 << 20 // of the zip, and of the files together
	maxEntries     = 256
	maxConfigBytes = 16 << 20 // of each file but tokenizer.json
)

var bundleFiles = []string{tokenizerFile, tokenizerConfigFile, specialTokensFile, configFile, generationConfigFile, templateFile, templateJSONFile}

// FromZip reads a bundle from a zip. digest is the SHA-256 that it must have, in hexadecimal digits; empty: any.
// The data comes from an engine and is not trusted.
func FromZip(data []byte, digest string) (*Model, error) {
	sum := sha256.Sum256(data)
	own := hex.EncodeToString(sum[:])
	if digest != "" && !strings.EqualFold(digest, own) {
		return nil, fmt.Errorf("the tokenizer bundle has the digest %s, and should have %s", own, digest)
	}
	files, err := unzip(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tokenizer bundle: %w", err)
	}
	return newModel(files, own)
}

func unzip(data []byte) (map[string][]byte, error) {
	if len(data) > maxBundleBytes {
		return nil, fmt.Errorf("it has %d bytes, %d are allowed", len(data), maxBundleBytes)
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	if len(archive.File) > maxEntries {
		return nil, fmt.Errorf("it has %d entries, %d are allowed", len(archive.File), maxEntries)
	}
	files := map[string][]byte{}
	seen := map[string]bool{}
	left := int64(maxBundleBytes)
	for _, f := range archive.File {
		if err := checkEntry(f); err != nil {
			return nil, fmt.Errorf("entry %.100q %w", f.Name, err)
		}
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		// Some engines put the files into a folder: the name counts.
		name := path.Base(f.Name)
		if !slices.Contains(bundleFiles, name) {
			continue
		}
		if seen[name] {
			return nil, fmt.Errorf("the file %s is there twice", name)
		}
		seen[name] = true
		content, err := readEntry(f, min(left, limitOf(name)))
		if err != nil {
			return nil, fmt.Errorf("entry %.100q: %w", f.Name, err)
		}
		left -= int64(len(content))
		files[name] = content
	}
	return files, nil
}

func limitOf(name string) int64 {
	if name == tokenizerFile {
		return maxBundleBytes
	}
	return maxConfigBytes
}

// checkEntry refuses what no bundle has.
func checkEntry(f *zip.File) error {
	name := strings.TrimSuffix(f.Name, "/")
	switch {
	case f.Flags&1 != 0:
		return errors.New("is encrypted")
	case !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\:\x00"):
		return errors.New("has a path that leads elsewhere")
	case f.Mode()&(fs.ModeType&^fs.ModeDir) != 0:
		return errors.New("is no regular file")
	case strings.Count(name, "/") > 8:
		return errors.New("lies too deep")
	}
	return nil
}

// readEntry reads at most limit bytes. What the zip says of sizes is not believed: memory is taken as data comes.
func readEntry(f *zip.File, limit int64) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readAtMost(r, limit)
}

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("it has more than the %d bytes that are allowed", limit)
	}
	return content, nil
}

// FromDir reads a bundle from a directory with the files of a model, or from a file: a tokenizer.json, or a zip.
// Symbolic links are followed: the operator laid them, and caches of models consist of them.
func FromDir(name string) (*Model, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return fromFile(name)
	}
	files := map[string][]byte{}
	hash := sha256.New()
	for _, file := range bundleFiles {
		content, err := readFile(filepath.Join(name, file), limitOf(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[file] = content
		_, _ = fmt.Fprintf(hash, "%s\x00%d\x00", file, len(content)) // a hash takes all
		_, _ = hash.Write(content)
	}
	m, err := newModel(files, hex.EncodeToString(hash.Sum(nil)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func fromFile(name string) (*Model, error) {
	content, err := readFile(name, maxBundleBytes)
	if err != nil {
		return nil, err
	}
	var m *Model
	if bytes.HasPrefix(content, []byte("PK\x03\x04")) {
		m, err = FromZip(content, "")
	} else {
		sum := sha256.Sum256(content)
		m, err = newModel(map[string][]byte{tokenizerFile: content}, hex.EncodeToString(sum[:]))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	content, err := readAtMost(f, limit)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return content, nil
}
