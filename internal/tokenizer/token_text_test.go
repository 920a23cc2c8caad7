package tokenizer

import (
	"encoding/json"
	"testing"
)

// How vLLM names tokens, alone and behind others with which they make a character. What it
// makes of them is in testdata, written by testdata/token_text_reference.py.
func TestTokenTextAsVLLM(t *testing.T) {
	var files []struct {
		Name      string
		Metaspace bool
		Cases     []struct {
			Before []uint32
			ID     uint32
			Text   string
		}
	}
	readJSON(t, "token_text.json", &files)
	vocabularies := map[string]json.RawMessage{}
	for _, f := range smallFiles(t) {
		vocabularies[f.Name] = f.Tokenizer
	}
	for _, f := range files {
		t.Run(f.Name, func(t *testing.T) {
			data := vocabularies[f.Name]
			if f.Metaspace {
				var file map[string]any
				if err := json.Unmarshal(data, &file); err != nil {
					t.Fatal(err)
				}
				file["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}
				data, _ = json.Marshal(file)
			}
			tok := parsed(t, data)
			for _, c := range f.Cases {
				if got := string(tok.AppendTokenText([]byte("> "), c.Before, c.ID)); got != "> "+c.Text {
					t.Errorf("%d after %v: %q; want %q", c.ID, c.Before, got[2:], c.Text)
				}
			}
		})
	}
}

func TestTokenTextOfNoToken(t *testing.T) {
	tok := tokenizerWith(t, levelDecoder, []string{"a", "â"}, nil)
	if got := tok.AppendTokenText(nil, []uint32{0, 7}, 99); len(got) > 0 {
		t.Errorf("%q", got)
	}
	tok.mark = "▁"
	if got := tok.AppendTokenText(nil, []uint32{0, 7}, 99); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// The text of a token that is a whole character or more costs no allocation.
func TestTokenTextDoesNotAllocate(t *testing.T) {
	tok := tokenizerWith(t, levelDecoder, []string{"a", "Ġb"}, nil)
	buf, before := make([]byte, 0, 64), []uint32{0, 1, 0, 1}
	if n := testing.AllocsPerRun(100, func() { tok.AppendTokenText(buf, before, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
