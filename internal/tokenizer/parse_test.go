package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// model makes a tokenizer.json of a vocabulary, merges and other sections, which may be "".
func model(vocab, merges, sections string) []byte {
	if sections != "" {
		sections += ","
	}
	return []byte(fmt.Sprintf(`{"version":"1.0",%s"model":{"type":"BPE","vocab":%s,"merges":%s}}`, sections, vocab, merges))
}

func TestTokensAreKnownByTextAndID(t *testing.T) {
	tok, err := Parse(model(`{"a":0,"b":2,"<s>":1}`, `[]`,
		`"added_tokens":[{"id":1,"content":"<s>","special":true},{"id":3,"content":"<tool>","special":false}]`))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.VocabSize(); got != 4 {
		t.Errorf("VocabSize() = %d, want 4", got)
	}
	for text, want := range map[string]uint32{"a": 0, "b": 2, "<s>": 1, "<tool>": 3} {
		if id, ok := tok.TokenID(text); !ok || id != want {
			t.Errorf("TokenID(%q) = %d, %v, want %d", text, id, ok, want)
		}
		if got, ok := tok.Token(want); !ok || got != text {
			t.Errorf("Token(%d) = %q, %v, want %q", want, got, ok, text)
		}
	}
	if _, ok := tok.TokenID("c"); ok {
		t.Error("a token is known that the file does not have")
	}
	if _, ok := tok.Token(4); ok {
		t.Error("an id is known that the file does not have")
	}
	if !tok.IsSpecial(1) || tok.IsSpecial(3) || tok.IsSpecial(0) || tok.IsSpecial(99) {
		t.Error("which tokens are special is not as the file says")
	}
	if tok.MemoryBytes() < 100 {
		t.Errorf("MemoryBytes() = %d", tok.MemoryBytes())
	}
}

func TestUnknownModelsAreUnsupported(t *testing.T) {
	for _, file := range []string{
		`{"model":{"type":"Unigram","vocab":[["a",-1.0]]}}`,
		`{"model":{"type":"WordPiece","vocab":{"a":0}}}`,
		`{"model":{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}}`,
		`{"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}}`,
		`{"added_tokens":[{"id":1,"content":"b"}],"model":{"type":"BPE","vocab":{"a":1},"merges":[]}}`,
	} {
		_, err := Parse([]byte(file))
		if e := (*UnsupportedError)(nil); !errors.As(err, &e) {
			t.Errorf("Parse(%s) is %v, want an UnsupportedError", file, err)
		}
	}
}

func TestBrokenFilesAreRefused(t *testing.T) {
	for _, file := range []string{
		``, `[]`, `{}`, `{"model":null}`, `{"model":{}}`, `{"model":{"type":"BPE","vocab":[]}}`,
		`{"model":{"type":"BPE","vocab":{"a":-1}}}`, `{"model":{"type":"BPE","vocab":{"a":1.5}}}`,
		`{"model":{"type":"BPE","vocab":{"a":4000000000}}}`, `{"model":{"type":"BPE","vocab":{"a":0}`,
		`{"model":{"type":"BPE","vocab":{"\ud800":0}}}`,
		strings.Repeat("[", 1<<20),
	} {
		if _, err := Parse([]byte(file)); err == nil {
			t.Errorf("Parse(%.80s) took it", file)
		}
	}
}
