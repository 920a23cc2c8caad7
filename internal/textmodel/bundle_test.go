package textmodel

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A bundle comes from an engine, so nothing of it is believed.
func TestBadBundlesAreRefused(t *testing.T) {
	entry := func(change func(h *zip.FileHeader), content string) []byte {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for name, text := range bundle(nil) {
			f, _ := w.Create(name)
			_, _ = f.Write([]byte(text))
		}
		h := &zip.FileHeader{Name: "special_tokens_map.json", Method: zip.Deflate}
		change(h)
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write([]byte(content))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	named := func(name string) []byte { return entry(func(h *zip.FileHeader) { h.Name = name }, "{}") }
	many := map[string]string{}
	for i := range 300 {
		many[strings.Repeat("x", i+1)] = ""
	}
	encrypted := entry(func(*zip.FileHeader) {}, "{}")
	for at := 0; ; { // the flag of each entry of the central directory
		i := bytes.Index(encrypted[at:], []byte("PK\x01\x02"))
		if i < 0 {
			break
		}
		at += i + 8
		encrypted[at] |= 1
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"no zip":             {[]byte("hello"), "not a valid zip"},
		"nothing":            {nil, "not a valid zip"},
		"cut off":            {zipOf(t, bundle(nil))[:500], "not a valid zip"},
		"no tokenizer":       {zipOf(t, bundle(map[string]any{tokenizerFile: nil})), "no tokenizer.json"},
		"bad tokenizer":      {zipOf(t, bundle(map[string]any{tokenizerFile: "{"})), "tokenizer.json"},
		"bad config":         {zipOf(t, bundle(map[string]any{configFile: "[1"})), "cannot read config.json"},
		"a path up":          {named("../tokenizer_config.json"), "leads elsewhere"},
		"a path up deep":     {named("a/../../x"), "leads elsewhere"},
		"an absolute one":    {named("/etc/passwd"), "leads elsewhere"},
		"a backslash":        {named(`..\x`), "leads elsewhere"},
		"a drive":            {named("C:x"), "leads elsewhere"},
		"twice":              {named("tokenizer.json"), "twice"},
		"twice, in a folder": {named("a/tokenizer.json"), "twice"},
		"a link":             {entry(func(h *zip.FileHeader) { h.SetMode(fs.ModeSymlink | 0o777) }, "/etc/passwd"), "no regular file"},
		"a device":           {entry(func(h *zip.FileHeader) { h.SetMode(fs.ModeDevice) }, ""), "no regular file"},
		"a bomb":             {entry(func(*zip.FileHeader) {}, strings.Repeat("a", maxConfigBytes+1)), "more than"},
		"too many":           {zipOf(t, many), "entries"},
		"too deep":           {named(strings.Repeat("a/", 20) + "x"), "too deep"},
		"encrypted":          {encrypted, "encrypted"},
	} {
		if _, err := FromZip(c.data, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestDigestOfABundleIsChecked(t *testing.T) {
	data := zipOf(t, bundle(nil))
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	m, err := FromZip(data, strings.ToUpper(digest))
	if err != nil || m.Digest() != digest {
		t.Fatalf("got %v, %v", m, err)
	}
	if _, err := FromZip(data, strings.Repeat("0", 64)); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a wrong digest: %v", err)
	}
}

func TestBundlesOfTheOperator(t *testing.T) {
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs")
	files := filepath.Join(dir, "model")
	for _, d := range []string{blobs, files} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range bundle(nil) { // as caches of models lay files: links to blobs
		if err := os.WriteFile(filepath.Join(blobs, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(blobs, name), filepath.Join(files, name)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := FromDir(files)
	if err != nil || m.Context() != 2048 || m.ChatRefusal() != nil {
		t.Fatalf("a directory: %+v, %v", m, err)
	}
	again, err := FromDir(files)
	if err != nil || again.Digest() != m.Digest() {
		t.Errorf("its digest changes: %v", err)
	}
	m, err = FromDir(filepath.Join(files, tokenizerFile))
	if err != nil || m.Context() != 0 || m.ChatRefusal() == nil {
		t.Errorf("one tokenizer.json: %+v, %v", m, err)
	}
	archive := filepath.Join(dir, "bundle.zip")
	if err := os.WriteFile(archive, zipOf(t, bundle(nil)), 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err = FromDir(archive); err != nil || m.Context() != 2048 {
		t.Errorf("a zip: %v", err)
	}
	if _, err := FromDir(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a path without anything is accepted")
	}
	if _, err := FromDir(blobs + "/../"); err == nil || !strings.Contains(err.Error(), "no tokenizer.json") {
		t.Errorf("a directory without a tokenizer: %v", err)
	}
	if _, err := FromDir("/dev/zero"); err == nil {
		t.Error("a device is read")
	}
}

func FuzzFromZip(f *testing.F) {
	var t testing.T
	f.Add(zipOf(&t, bundle(map[string]any{tokenizerFile: `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`})))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = FromZip(data, "") })
}
