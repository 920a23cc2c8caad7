package tokenizer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// recorded is what test/tokenizers/record.py wrote: strings, and what the reference makes
// of them by each model.
type recorded struct {
	Strings []string `json:"strings"`
	Models  map[string]struct {
		SHA256 string `json:"sha256"`
		Sums   string `json:"sums"` // 16 hexadecimal digits for each string
	} `json:"models"`
}

func readRecorded(t testing.TB, path string) recorded {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r recorded
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// idSum is the sum that record.py makes of the ids of a text.
func idSum(tok *Tokenizer, text string) (uint64, error) {
	ids, err := tok.Encode(context.Background(), nil, text, true)
	if err != nil {
		return 0, err
	}
	ids = append(ids, 0xffffffff)
	if ids, err = tok.Encode(context.Background(), ids, text, false); err != nil {
		return 0, err
	}
	h := fnv.New64a()
	binary.Write(h, binary.LittleEndian, ids)
	return h.Sum64(), nil
}

// realFiles are the tokenizers that test/tokenizers/install.sh fetches, by name. Without
// them the tests that compare with real files are left out, and say so.
func realFiles(t testing.TB) map[string][]byte {
	t.Helper()
	dir := os.Getenv("SLUICE_TEST_TOKENIZERS")
	if dir == "" {
		home, _ := os.UserHomeDir()
		dir = filepath.Join(home, ".cache", "sluice", "tokenizers")
	}
	files := map[string][]byte{}
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(filepath.Dir(p))] = data
	}
	if len(files) == 0 {
		t.Skipf("left out: no tokenizer.json below %s (test/tokenizers/install.sh fetches them)", dir)
	}
	return files
}

// TestRealTokenizersGiveTheReferencesIDs compares every string of the corpus with what
// the reference made of it. SLUICE_TEST_TOKENIZER_CORPUS names another recording.
func TestRealTokenizersGiveTheReferencesIDs(t *testing.T) {
	files := realFiles(t)
	path := os.Getenv("SLUICE_TEST_TOKENIZER_CORPUS")
	if path == "" {
		path = filepath.Join("testdata", "reference.json")
	}
	compareRecorded(t, files, readRecorded(t, path))
}

func compareRecorded(t *testing.T, files map[string][]byte, want recorded) {
	compared := 0
	for name, model := range want.Models {
		data, ok := files[name]
		if !ok {
			t.Logf("left out: %s is not installed", name)
			continue
		}
		if digest := sha256.Sum256(data); hex.EncodeToString(digest[:]) != model.SHA256 {
			t.Logf("left out: %s is another file than the one recorded", name)
			continue
		}
		compared++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tok, err := Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			failed := 0
			for i, s := range want.Strings {
				sum, err := strconv.ParseUint(model.Sums[i*16:i*16+16], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				got, err := idSum(tok, s)
				if err == nil && got == sum {
					continue
				}
				if failed++; failed <= 5 {
					ids, _ := tok.Encode(context.Background(), nil, s, false)
					t.Errorf("%+q is %v, %v, not what the reference makes of it", s, ids[:min(len(ids), 40)], err)
				}
			}
			if failed > 0 {
				t.Errorf("%d of %d strings differ", failed, len(want.Strings))
			}
		})
	}
	if compared == 0 {
		t.Skip("left out: none of the recorded tokenizers is installed")
	}
}
