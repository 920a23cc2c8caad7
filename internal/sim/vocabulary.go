package sim

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// modelFiles is a small model's tokenizer, a byte-level BPE that was made for this, with
// what belongs to it: a chat template and the model's defaults. Engines that take token ids
// tokenise with it and hand it out.
//
//go:embed model
var modelFiles embed.FS

// The model's vocabulary is larger than its tokenizer, as those of real models are: the ids
// between them are valid, and are no token.
const (
	modelVocabulary = 704
	endOfText       = 676 // padding, and an end of the output too
	endOfTurn       = 678 // ends the output
)

// vocabulary is the tokenizer. It is immutable.
type vocabulary struct {
	tokens  [][]byte          // the bytes of each id
	special map[uint32]bool   // of those, what an answer's text leaves out
	added   map[string]uint32 // tokens that are recognised in a text as they are
	ids     map[string]uint32
	merges  map[[2]uint32]merge
}

// merge is what two tokens become; the lowest rank is done first.
type merge struct {
	rank int
	id   uint32
}

// theVocabulary reads the tokenizer once.
var theVocabulary = sync.OnceValue(func() *vocabulary {
	text, err := modelFiles.ReadFile("model/tokenizer.json")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	v, err := parseVocabulary(text)
	if err != nil {
		panic("BUG: cannot read the simulated tokenizer: " + err.Error())
	}
	return v
})

func parseVocabulary(text []byte) (*vocabulary, error) {
	var file struct {
		Added []struct {
			ID      uint32
			Content string
			Special bool
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]uint32
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	v := &vocabulary{special: make(map[uint32]bool), added: make(map[string]uint32), ids: make(map[string]uint32), merges: make(map[[2]uint32]merge)}
	put := func(id uint32, b []byte) {
		for uint32(len(v.tokens)) <= id {
			v.tokens = append(v.tokens, nil)
		}
		v.tokens[id] = b
	}
	original := bytesOfRunes()
	for name, id := range file.Model.Vocab {
		var b []byte
		for _, r := range name {
			c, ok := original[r]
			if !ok {
				return nil, fmt.Errorf("token %q is no text of bytes", name)
			}
			b = append(b, c)
		}
		put(id, b)
		v.ids[string(b)] = id
	}
	for rank, m := range file.Model.Merges {
		a, b := file.Model.Vocab[m[0]], file.Model.Vocab[m[1]]
		to, ok := file.Model.Vocab[m[0]+m[1]]
		if !ok {
			return nil, fmt.Errorf("merge of %q and %q leads to no token", m[0], m[1])
		}
		v.merges[[2]uint32{a, b}] = merge{rank, to}
	}
	for _, t := range file.Added {
		put(t.ID, []byte(t.Content))
		v.added[t.Content] = t.ID
		v.special[t.ID] = t.Special
	}
	return v, nil
}

// bytesOfRunes is the byte that a rune stands for in the names of byte-level tokens:
// printable ones stand for themselves, the others follow 255 in order.
func bytesOfRunes() map[rune]byte {
	m := make(map[rune]byte)
	next := rune(256)
	for c := range 256 {
		r := rune(c)
		if r < '!' || r > '~' && r < '¡' || r == '\u00ad' {
			r = next
			next++
		}
		m[r] = byte(c)
	}
	return m
}

// encode appends the ids of a text.
func (v *vocabulary) encode(ids []uint32, text string) []uint32 {
	for text != "" {
		at, found := len(text), ""
		for name := range v.added {
			if i := strings.Index(text, name); i >= 0 && (i < at || i == at && len(name) > len(found)) {
				at, found = i, name
			}
		}
		for plain := text[:at]; plain != ""; {
			n := wordLength(plain)
			ids = v.encodeWord(ids, plain[:n])
			plain = plain[n:]
		}
		if found != "" {
			ids = append(ids, v.added[found])
		}
		text = text[at+len(found):]
	}
	return ids
}

// encodeWord appends the ids of a piece of text: those of its bytes, of which the two
// neighbours that were merged first in training are made one, until there are none.
func (v *vocabulary) encodeWord(ids []uint32, word string) []uint32 {
	start := len(ids)
	for i := range len(word) {
		ids = append(ids, v.ids[word[i:i+1]])
	}
	for {
		best, at := merge{rank: len(v.merges)}, -1
		for i := start; i+1 < len(ids); i++ {
			if m, ok := v.merges[[2]uint32{ids[i], ids[i+1]}]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		// All places of the same two, from the left.
		pair, out := [2]uint32{ids[at], ids[at+1]}, at
		for i := at; i < len(ids); i++ {
			if i+1 < len(ids) && ids[i] == pair[0] && ids[i+1] == pair[1] {
				ids[out] = best.id
				i++
			} else {
				ids[out] = ids[i]
			}
			out++
		}
		ids = ids[:out]
	}
}

// wordLength is the length of the piece a text begins with: within pieces tokens are merged,
// across them never. The pattern is
// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func wordLength(text string) int {
	if text[0] == '\'' {
		for _, tail := range []string{"s", "t", "re", "ve", "m", "ll", "d"} {
			if strings.HasPrefix(text[1:], tail) {
				return 1 + len(tail)
			}
		}
	}
	from := 0
	if text[0] == ' ' {
		from = 1
	}
	for _, class := range []func(rune) bool{unicode.IsLetter, unicode.IsNumber, func(r rune) bool {
		return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
	}} {
		if n := lengthOf(text[from:], class); n > 0 {
			return from + n
		}
	}
	n := lengthOf(text, unicode.IsSpace)
	if n < len(text) { // the last one belongs to what follows, unless it is the only one
		_, last := utf8.DecodeLastRuneInString(text[:n])
		if n > last {
			n -= last
		}
	}
	return n
}

// lengthOf is the length of the runes of a class that a text begins with.
func lengthOf(text string, class func(rune) bool) int {
	for i, r := range text {
		if !class(r) {
			return i
		}
	}
	return len(text)
}

// decode appends the bytes of ids.
func (v *vocabulary) decode(b []byte, ids []uint32, skipSpecial bool) []byte {
	for _, id := range ids {
		if int(id) < len(v.tokens) && (!skipSpecial || !v.special[id]) {
			b = append(b, v.tokens[id]...)
		}
	}
	return b
}

// bundle is the zip archive of the model's files, and its SHA-256 in hexadecimal.
func bundle(context int) (archive []byte, digest string, err error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, text []byte) {
		if err == nil {
			w, e := z.Create(name)
			if err = e; err == nil {
				_, err = w.Write(text)
			}
		}
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"} {
		text, e := modelFiles.ReadFile("model/" + name)
		if e != nil {
			return nil, "", e
		}
		add(name, text)
	}
	config, e := json.Marshal(object{"model_type": "qwen2", "architectures": []string{"Qwen2ForCausalLM"}, "vocab_size": modelVocabulary,
		"max_position_embeddings": context, "eos_token_id": endOfTurn, "pad_token_id": endOfText, "bos_token_id": nil, "torch_dtype": "bfloat16"})
	if e != nil {
		return nil, "", e
	}
	add("config.json", config)
	if err == nil {
		err = z.Close()
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), hex.EncodeToString(sum[:]), err
}
