package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeOptions are how ids are turned into text. The fields have the names and the meaning
// of vLLM's sampling parameters.
type DecodeOptions struct {
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
	// SpacesBetweenSpecial prints an added token that follows another one as the decoder
	// does, which may put a space before it. Without, it is printed as it stands in the
	// file. With SkipSpecial it has no effect. The reference knows only "with".
	SpacesBetweenSpecial bool
	// AsVLLM gives the text that vLLM's HTTP server gives for the ids, where that is not the
	// reference's: see Stream.
	AsVLLM bool
}

// Decode appends the text of ids to dst: with SpacesBetweenSpecial exactly the text of the
// reference. Ids without a token are left out, as there; Known tells them.
func (t *Tokenizer) Decode(dst []byte, ids []uint32, o DecodeOptions) []byte {
	dst, _ = t.DecodeAtMost(dst, ids, o, math.MaxInt)
	return dst
}

// DecodeAtMost is Decode for a text that may have no more than so many bytes. If it has more,
// which a few ids can make, it is broken off and false is returned.
func (t *Tokenizer) DecodeAtMost(dst []byte, ids []uint32, o DecodeOptions, most int) ([]byte, bool) {
	var s Stream
	s.Begin(t, o)
	n := len(dst)
	for _, id := range ids {
		if dst = s.Append(dst, id); len(dst)-n > most {
			return dst, false
		}
	}
	dst = s.Flush(dst)
	return dst, len(dst)-n <= most
}

// Known reports whether there is a token with the id. An engine may give ids that have none:
// those with which the model's vocabulary was filled up to a round number are below the
// vocabulary's size in its configuration, and have no text.
func (t *Tokenizer) Known(id uint32) bool {
	return uint64(id) < uint64(len(t.tokens)) && t.text.flags[id]&known != 0
}

// What is known of a token for decoding.
const (
	known   = 1 << iota
	whole   // its bytes are valid UTF-8 by themselves
	oneByte // it stands for a byte of a character
)

// decoding is the section "decoder" of the file, applied to each token beforehand. The
// section is a list of steps that turn a list of texts, at first those of the tokens, into
// another one; the last list put together is the answer. A token's share in it depends on
// others in few ways, and these are left for the time of decoding:
//
//   - whether it is the first (metaspace, strips);
//   - bytes of a character that is spread over several tokens (byteLevel, oneByte).
type decoding struct {
	// data are the texts of all tokens, ends where each ends.
	data  []byte
	ends  []uint32
	flags []uint8

	fallback  bool // there are tokens that stand for bytes
	byteLevel bool // the texts are bytes, of which UTF-8 is made in the end
	spaced    bool // there is no decoder: tokens are separated by spaces
	// steps are those for a text by itself: before tokens that stand for bytes are put
	// together, and after.
	before, after []textStep
	metaspace     bool // some of them does something else with the first text
	strips        []strip
}

// textStep is a step of the decoder that looks at one text at a time.
type textStep func(text string, first bool) string

// strip takes up to count characters char off the beginning.
type strip struct {
	char  rune
	count int
}

func (s strip) step(text string, _ bool) string {
	for range s.count {
		r, n := utf8.DecodeRuneInString(text)
		if n == 0 || r != s.char {
			break
		}
		text = text[n:]
	}
	return text
}

// decoderFile is the section "decoder", and each of its steps.
type decoderFile struct {
	Type           string            `json:"type"`
	Decoders       []jsontext.Value  `json:"decoders"`
	Pattern        map[string]string `json:"pattern"`
	Content        string            `json:"content"`
	Start          int               `json:"start"`
	Stop           int               `json:"stop"`
	Replacement    string            `json:"replacement"`
	PrependScheme  string            `json:"prepend_scheme"`
	AddPrefixSpace *bool             `json:"add_prefix_space"`
}

// parseDecoder reads the section "decoder" of the file.
func (t *Tokenizer) parseDecoder() error {
	t.text = decoding{spaced: t.decoder == nil}
	if t.decoder != nil {
		list, err := flattenDecoder(nil, jsontext.Value(t.decoder), 0)
		if err != nil {
			return err
		}
		if err := t.text.read(list); err != nil {
			return err
		}
	}
	return t.text.fill(t.tokens)
}

// flattenDecoder appends the steps of a decoder, sequences in sequences taken apart.
func flattenDecoder(list []decoderFile, raw jsontext.Value, depth int) ([]decoderFile, error) {
	var d decoderFile
	if err := json.Unmarshal(raw, &d, fileOptions); err != nil {
		return nil, fmt.Errorf("cannot read the decoder of tokenizer.json: %w", err)
	}
	if d.Type != "Sequence" {
		if len(list) == maxSteps {
			return nil, unsupported("decoder", "a sequence of more than %d", maxSteps)
		}
		return append(list, d), nil
	}
	if depth == maxSteps {
		return nil, unsupported("decoder", "sequences in each other, more than %d deep", maxSteps)
	}
	for _, raw := range d.Decoders {
		var err error
		if list, err = flattenDecoder(list, raw, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// read takes the steps apart by the place at which they are done.
func (d *decoding) read(list []decoderFile) error {
	fused, fallback := false, false // the texts are one text by now; bytes are put together
	growth := 1                     // how many times longer a text may become
	add := func(s textStep) {
		if fallback {
			d.after = append(d.after, s)
		} else {
			d.before = append(d.before, s)
		}
	}
	for _, f := range list {
		switch f.Type {
		case "Fuse":
			fused = true
		case "Strip":
			char, n := utf8.DecodeRuneInString(f.Content)
			if n == 0 || n != len(f.Content) || f.Start < 0 || f.Start > 1<<20 {
				return errors.New("tokenizer.json: the decoder strips what is not a character, or too many")
			}
			if f.Stop != 0 {
				return unsupported("decoder", "Strip at the end")
			}
			if s := (strip{char, f.Start}); fused {
				d.strips = append(d.strips, s)
			} else {
				add(s.step)
			}
		case "Replace":
			from, ok := f.Pattern["String"]
			if !ok || from == "" || fused {
				return unsupported("decoder", "Replace of a pattern, of nothing, or behind Fuse")
			}
			if growth *= max(1, (len(f.Content)+len(from)-1)/len(from)); growth > maxGrowth {
				return unsupported("decoder", "Replace that makes texts more than %d times longer", maxGrowth)
			}
			add(func(text string, _ bool) string { return strings.ReplaceAll(text, from, f.Content) })
		case "Metaspace":
			_, n := utf8.DecodeRuneInString(f.Replacement)
			known := f.PrependScheme == "" || f.PrependScheme == "always" || f.PrependScheme == "first" || f.PrependScheme == "never"
			if n == 0 || n != len(f.Replacement) || !known || fused || f.AddPrefixSpace != nil && !*f.AddPrefixSpace && f.PrependScheme != "never" {
				return unsupported("decoder", "this Metaspace")
			}
			never := f.PrependScheme == "never"
			d.metaspace = d.metaspace || !never
			add(func(text string, first bool) string {
				if first && !never {
					return strings.ReplaceAll(text, f.Replacement, "")
				}
				return strings.ReplaceAll(text, f.Replacement, " ")
			})
		case "ByteFallback":
			if fused || fallback {
				return unsupported("decoder", "ByteFallback behind Fuse or ByteFallback")
			}
			fallback = true
		case "ByteLevel":
			if fused || fallback || d.metaspace {
				return unsupported("decoder", "ByteLevel behind Fuse, ByteFallback or Metaspace")
			}
			d.byteLevel, fused = true, true
		default:
			return unsupported("decoder", "type %s", strconv.Quote(f.Type))
		}
	}
	d.fallback = fallback
	return nil
}

// fill does for each token what can be done beforehand.
func (d *decoding) fill(tokens []token) error {
	d.ends, d.flags = make([]uint32, len(tokens)), make([]uint8, len(tokens))
	work := 0
	apply := func(steps []textStep, text string) string {
		for _, s := range steps {
			before := len(text)
			text = s(text, false)
			work += 16 + before + len(text)
		}
		return text
	}
	for id, tok := range tokens {
		if tok.text != "" {
			text := apply(d.before, tok.text)
			b, isByte := byte(0), false
			if d.fallback {
				b, isByte = fallbackByte(text)
			}
			start := len(d.data)
			switch {
			case isByte:
				d.data = append(d.data, b)
				d.flags[id] = known | oneByte
			case d.byteLevel:
				d.data = appendLevelBytes(d.data, text)
				d.flags[id] = known
			default:
				d.data = append(d.data, apply(d.after, text)...)
				d.flags[id] = known
			}
			if utf8.Valid(d.data[start:]) {
				d.flags[id] |= whole
			}
		}
		if len(d.data) > maxDecodedBytes || work > maxDecodeWork {
			return unsupported("decoder", "texts of more than %d bytes, or so many steps for each,", maxDecodedBytes)
		}
		d.ends[id] = uint32(len(d.data))
	}
	d.data = append(make([]byte, 0, len(d.data)), d.data...)
	return nil
}

// maxGrowth bounds what all steps Replace together make of a text, by its length.
const maxGrowth = 64

// maxDecodedBytes bounds what the texts of all tokens take after Replace.
const maxDecodedBytes = 1 << 28

// maxDecodeWork bounds what the steps read and write for that, in bytes: some tenths of a second.
// The largest known tokenizer takes 30 MB.
const maxDecodeWork = 1 << 27

// bytes is the text of a token as it was made beforehand.
func (d *decoding) bytes(id uint32) []byte {
	start := uint32(0)
	if id > 0 {
		start = d.ends[id-1]
	}
	return d.data[start:d.ends[id]]
}

// memory is what the texts take.
func (d *decoding) memory() int64 {
	return int64(cap(d.data)) + int64(len(d.ends))*int64(unsafe.Sizeof(d.ends[0])+unsafe.Sizeof(d.flags[0]))
}

func apply(steps []textStep, text string, first bool) string {
	for _, s := range steps {
		text = s(text, first)
	}
	return text
}

// fallbackByte returns the byte for which a token such as <0x0A> stands. The reference reads
// the number as Rust does, which takes a sign and small letters.
func fallbackByte(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	number := text[3:5]
	if number[0] == '+' {
		number = number[1:]
	}
	n, err := strconv.ParseUint(number, 16, 8)
	return byte(n), err == nil
}

// appendLevelBytes appends the bytes for which the characters of a token stand in a byte-level
// vocabulary, or the token's own bytes if one of its characters stands for none.
func appendLevelBytes(dst []byte, text string) []byte {
	start := len(dst)
	for _, r := range text {
		b, ok := levelByte(r)
		if !ok {
			return append(dst[:start], text...)
		}
		dst = append(dst, b)
	}
	return dst
}

// levelByte returns the byte for which a character stands. Bytes that are printable characters
// in Latin-1 stand for themselves; the other 68, in their order, are the characters from
// U+0100 on.
func levelByte(r rune) (byte, bool) {
	switch {
	case r >= '!' && r <= '~', r >= 0xa1 && r <= 0xac, r >= 0xae && r <= 0xff:
		return byte(r), true
	case r < 0x100:
		return 0, false
	case r < 0x100+33: // 0x00 to 0x20
		return byte(r - 0x100), true
	case r < 0x100+33+34: // 0x7f to 0xa0
		return byte(r - 0x100 - 33 + 0x7f), true
	case r == 0x100+33+34:
		return 0xad, true
	}
	return 0, false
}
