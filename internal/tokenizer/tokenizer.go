package tokenizer

import (
	"encoding/json"
	"sync"
)

// Tokenizer is a tokenizer.json, ready for use. It does not change after Parse and is
// safe for concurrent use.
type Tokenizer struct {
	// tokens are all tokens by id: those of the model's vocabulary and those added to
	// it. An id that the file leaves out has an empty text.
	tokens []token
	// added are the ids of added tokens by their text.
	added map[string]uint32
	// vocab finds the ids of the model's vocabulary by the text in the file.
	vocab *textIndex
	// vocabulary is the number of tokens in the model's vocabulary.
	vocabulary int
	// longest is the number of bytes of the longest token, at least 1.
	longest int
	// decoder is the section "decoder" of the file, nil without one.
	decoder json.RawMessage
	// text is what parseDecoder made of it.
	text decoding
	// mark stands for a space at the beginning of tokens, if the pre-tokenizer tells so.
	mark string

	// inText and inNormal find the added tokens in a text as it is and in normalised
	// text, nil without any.
	inText, inNormal *finder
	normal           []normalizer
	pre              []preTokenizer
	model            bpe
	post             template

	memory   int64
	encoders sync.Pool // of *encoder
}

// token is one entry of the vocabulary.
type token struct {
	text    string // as in the file: for byte-level models in the alphabet of bytes
	special bool   // an added token that "skip special tokens" leaves out of texts
	added   bool   // matched in the text itself, before the model
}

// VocabSize returns a number that all ids of the tokenizer are below. The file may leave
// out ids below it.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// TokenID returns the id of a token by its text as it stands in the file.
func (t *Tokenizer) TokenID(text string) (uint32, bool) {
	if id, ok := t.added[text]; ok {
		return id, true
	}
	return t.vocab.find(text)
}

// Token returns the text of a token as it stands in the file, false if there is none
// with the id.
func (t *Tokenizer) Token(id uint32) (string, bool) {
	if uint64(id) >= uint64(len(t.tokens)) || t.tokens[id].text == "" {
		return "", false
	}
	return t.tokens[id].text, true
}

// IsSpecial reports whether id is a special token, which is no text of the answer.
func (t *Tokenizer) IsSpecial(id uint32) bool {
	return uint64(id) < uint64(len(t.tokens)) && t.tokens[id].special
}

// MemoryBytes returns about how much memory the tokenizer holds.
func (t *Tokenizer) MemoryBytes() int64 { return t.memory }
