package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSmallTokenizersGiveTheReferencesIDs compares small tokenizers, which have every
// option alone and mixed with others, with what test/tokenizers/small.py recorded of the
// reference. SLUICE_TEST_TOKENIZER_CASES names another recording.
func TestSmallTokenizersGiveTheReferencesIDs(t *testing.T) {
	path := os.Getenv("SLUICE_TEST_TOKENIZER_CASES")
	if path == "" {
		path = filepath.Join("testdata", "small.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Cases []struct {
			Tokenizer json.RawMessage `json:"tokenizer"`
			Refused   string          `json:"refused"`
			Strings   []string        `json:"strings"`
			IDs       [][]uint32      `json:"ids"` // null: the reference gives an error
		} `json:"cases"`
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	refusals := map[string]int{}
	compared := 0
	for i, c := range recorded.Cases {
		if c.Refused != "" {
			continue // that this package takes more files than the reference does no harm
		}
		tok, err := Parse(c.Tokenizer)
		if e := (*UnsupportedError)(nil); errors.As(err, &e) {
			refusals[e.Part]++
			if os.Getenv("SLUICE_TEST_TOKENIZER_CASES") != "" || testing.Verbose() {
				t.Logf("case %d: %v", i, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("case %d: the reference takes %s, here: %v", i, c.Tokenizer, err)
			continue
		}
		compared++
		for j, s := range c.Strings {
			ids, err := tok.Encode(context.Background(), nil, s, true)
			if c.IDs[j] == nil {
				if err == nil {
					t.Errorf("case %d: %+q: the reference gives an error, here it is %v", i, s, ids)
				}
				continue
			}
			if err != nil || !slices.Equal(ids, c.IDs[j]) {
				t.Errorf("case %d: %s\n%+q is %v, %v, want %v", i, c.Tokenizer, s, ids, err, c.IDs[j])
				break
			}
		}
	}
	t.Logf("%d tokenizers compared, not supported: %v", compared, refusals)
	if compared < len(recorded.Cases)/2 {
		t.Errorf("of %d tokenizers only %d were compared: %v", len(recorded.Cases), compared, refusals)
	}
}
