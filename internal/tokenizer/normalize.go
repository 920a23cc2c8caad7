package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/tokenizer/pattern"
)

// normalizer is one step that rewrites a segment.
type normalizer interface {
	// apply appends the rewritten s to dst. It ends early when e has an error.
	apply(e *encoder, dst []byte, s string) []byte
}

type normalizerFile struct {
	Type        string           `json:"type"`
	Normalizers []jsontext.Value `json:"normalizers"` // of Sequence
	Prepend     string           `json:"prepend"`
	Pattern     patternFile      `json:"pattern"` // of Replace
	Content     string           `json:"content"`
	StripLeft   *bool            `json:"strip_left"`
	StripRight  *bool            `json:"strip_right"`
}

// patternFile is a text or a regular expression.
type patternFile struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func brokenSection(name string, err error) error {
	return fmt.Errorf("cannot read %s of tokenizer.json: %w", name, err)
}

// parseNormalizer reads the section "normalizer": the steps of it, sequences within
// sequences laid out flat.
func parseNormalizer(v jsontext.Value, list []normalizer, depth int) ([]normalizer, error) {
	if !present(v) {
		return list, nil
	}
	var f normalizerFile
	if err := json.Unmarshal(v, &f, fileOptions); err != nil {
		return nil, brokenSection("normalizer", err)
	}
	if form, ok := unicodeForms[f.Type]; ok {
		list = append(list, form)
	} else {
		switch f.Type {
		case "Sequence":
			if depth == 8 {
				return nil, unsupported("normalizer", "so deep nesting")
			}
			for _, v := range f.Normalizers {
				var err error
				if list, err = parseNormalizer(v, list, depth+1); err != nil {
					return nil, err
				}
			}
		case "Prepend":
			list = append(list, prepend(f.Prepend))
		case "Replace":
			m, err := f.Pattern.matcher("normalizer")
			if err != nil {
				return nil, err
			}
			list = append(list, replace{of: m, with: f.Content})
		case "Strip":
			list = append(list, trim{left: f.StripLeft == nil || *f.StripLeft, right: f.StripRight == nil || *f.StripRight})
		case "Lowercase":
			list = append(list, lowercase{})
		case "StripAccents":
			list = append(list, stripAccents{})
		case "ByteLevel":
			list = append(list, byteAlphabet{})
		default:
			return nil, unsupported("normalizer", "type %q", f.Type)
		}
	}
	if len(list) > maxSteps || patterns(list) > maxPatterns {
		return nil, unsupported("normalizer", "so long a sequence")
	}
	return list, nil
}

// prepend puts a text before a segment that is not empty.
type prepend string

func (p prepend) apply(_ *encoder, dst []byte, s string) []byte {
	if s != "" {
		dst = append(dst, p...)
	}
	return append(dst, s...)
}

// replace puts one text in place of others.
type replace struct {
	of   matcher
	with string
}

func (n replace) apply(e *encoder, dst []byte, s string) []byte {
	pos, last := 0, -1
	for e.tick(1) {
		start, end, ok := n.of.find(e, s, pos, last)
		if !ok {
			break
		}
		if start == 0 && n.with == "" {
			e.cutLeft = true
		}
		dst = append(append(dst, s[pos:start]...), n.with...)
		pos, last = end, end
		if len(dst) > e.limit {
			e.fail(errGrows)
		}
	}
	return append(dst, s[pos:]...)
}

// trim takes white space away at the ends of a segment.
type trim struct{ left, right bool }

func (n trim) apply(e *encoder, dst []byte, s string) []byte {
	space := func(r rune) bool { return pattern.Space.Has(r) && e.tick(2) }
	if n.left {
		t := strings.TrimLeftFunc(s, space)
		e.cutLeft = e.cutLeft || len(t) < len(s)
		s = t
	}
	if n.right {
		s = strings.TrimRightFunc(s, space)
	}
	return append(dst, s...)
}

// lowercase changes each character by itself, without regard to its neighbours.
type lowercase struct{}

func (lowercase) apply(e *encoder, dst []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			dst = append(dst, byte(r)+'a'-'A')
		case r < utf8.RuneSelf:
			dst = append(dst, byte(r))
		case r == 'İ':
			dst = append(dst, "i̇"...)
		default:
			dst = utf8.AppendRune(dst, pattern.ToLower(r))
		}
		if !e.tick(1) {
			break
		}
	}
	return dst
}

// stripAccents takes combining marks away.
type stripAccents struct{}

func (stripAccents) apply(e *encoder, dst []byte, s string) []byte {
	for i, r := range s {
		switch {
		case r < utf8.RuneSelf || !pattern.Mark.Has(r):
			dst = utf8.AppendRune(dst, r)
		case i == 0:
			e.cutLeft = true
		}
		if !e.tick(1) {
			break
		}
	}
	return dst
}

// byteAlphabet writes each byte as the character that stands for it in byte-level models.
type byteAlphabet struct{}

func (byteAlphabet) apply(e *encoder, dst []byte, s string) []byte {
	for i := 0; i < len(s) && e.tick(1); i++ {
		dst = utf8.AppendRune(dst, byteChars[s[i]])
	}
	return dst
}

// byteChars are the characters that stand for bytes: those that are printable in Latin-1
// for themselves, the others, in order, for 256 and up. It is GPT-2's alphabet.
var byteChars, charBytes = func() (chars [256]rune, bytes map[rune]byte) {
	bytes = map[rune]byte{}
	next := rune(256)
	for b := range chars {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = next
			next++
		}
		chars[b], bytes[r] = r, byte(b)
	}
	return chars, bytes
}()
