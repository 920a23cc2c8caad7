package sim

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// The ids are those that the tokenizers library makes of the same file.
func TestVocabularyIsTheReference(t *testing.T) {
	text, err := os.ReadFile("testdata/vocabulary.json")
	if err != nil {
		t.Fatal(err)
	}
	var want []struct {
		Text string
		IDs  []uint32
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	v := theVocabulary()
	for _, w := range want {
		if got := v.encode(nil, w.Text); !slices.Equal(got, w.IDs) {
			t.Errorf("%q: %d, want %d", w.Text, got, w.IDs)
		}
		if got := v.decode(nil, w.IDs, false); string(got) != w.Text {
			t.Errorf("%q: decoded to %q", w.Text, got)
		}
	}
	if got := string(v.decode(nil, v.encode(nil, "a<|im_end|>b"), true)); got != "ab" {
		t.Errorf("without special tokens %q", got)
	}
}
