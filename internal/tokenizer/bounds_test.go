package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The files of this test come from an engine that means ill: what is small in the file
// and large or slow here.

func TestFilesThatWouldTakeMuchMemoryAreRefused(t *testing.T) {
	list := func(n int, element string) string {
		return "[" + strings.TrimPrefix(strings.Repeat(","+element, n), ",") + "]"
	}
	grow := `"normalizer":{"type":"Replace","pattern":{"String":"x"},"content":"` + strings.Repeat("y", 1000) + `"}`
	var many strings.Builder
	for i := range maxAddedTotalBytes/1000 + 1 {
		fmt.Fprintf(&many, `,{"content":"x%d","normalized":true}`, i)
	}
	split := `{"type":"Split","pattern":{"Regex":"[a\\p{L}]+"},"behavior":"Isolated"}`
	for name, file := range map[string][]byte{
		"a large id":                        model(`{"a":2000000}`, `[]`, ""),
		"more added tokens than are read":   model(`{"a":0}`, `[]`, `"added_tokens":`+list(maxAddedTokens+1, `{}`)),
		"added tokens that become long":     model(`{"a":0}`, `[]`, grow+`,"added_tokens":[`+many.String()[1:]+`]`),
		"a decoder of a megabyte":           model(`{"a":0}`, `[]`, `"decoder":{"type":"Sequence","decoders":`+list(100_000, `{"type":"Fuse"}`)+`}`),
		"a normalizer of empty sequences":   model(`{"a":0}`, `[]`, `"normalizer":{"type":"Sequence","normalizers":`+list(100_000, `{"type":"Sequence"}`)+`}`),
		"many patterns":                     model(`{"a":0}`, `[]`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":`+list(maxPatterns+1, split)+`}`),
		"quantifiers of quantifiers":        byteLevelFile("a"+strings.Repeat("{1}", 20), ""),
		"steps that keep what they rewrite": model(`{"a":0}`, `[]`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":`+list(maxRewrites+1, `{"type":"ByteLevel"}`)+`}`),
	} {
		_, err := Parse(file)
		if e := (*UnsupportedError)(nil); err == nil || !errors.As(err, &e) && name != "more added tokens than are read" {
			t.Errorf("%s: it is %v", name, err)
		}
	}
}

// TestDecodersThatWorkTooLongAreRefused: what the steps make is short, and the way long.
func TestDecodersThatWorkTooLongAreRefused(t *testing.T) {
	long := strings.Repeat("b", 64)
	steps := `{"type":"Replace","pattern":{"String":"a"},"content":"` + long + `"},{"type":"Replace","pattern":{"String":"` + long + `"},"content":""}`
	var vocab strings.Builder
	for i := range 150 {
		fmt.Fprintf(&vocab, `,"%d%s":%d`, i, strings.Repeat("a", maxTokenBytes-10), i)
	}
	_, err := Parse(model("{"+vocab.String()[1:]+"}", `[]`, `"decoder":{"type":"Sequence","decoders":[`+steps+`]}`))
	if e := (*UnsupportedError)(nil); !errors.As(err, &e) {
		t.Errorf("it is %v, want an UnsupportedError", err)
	}
}

// TestAddedTokensAreNormalizedInBoundedTime: each is just within what a text may cost.
func TestAddedTokensAreNormalizedInBoundedTime(t *testing.T) {
	var list strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&list, `,{"content":"%sc%d","normalized":true}`, strings.Repeat("a", 8), i)
	}
	_, err := Parse(model(`{"a":0}`, `[]`, `"normalizer":{"type":"Replace","pattern":{"Regex":"(?:a|a)*(?:aa|a)*b"},"content":"c"},"added_tokens":[`+list.String()[1:]+`]`))
	if e := (*UnsupportedError)(nil); !errors.As(err, &e) {
		t.Errorf("it is %v, want an UnsupportedError", err)
	}
}

// TestTokensThatTakeWhiteSpaceAreFoundInLinearTime counts the looks at the context, which
// are by work: a token that takes the white space behind it begins in that of the one
// before it.
func TestTokensThatTakeWhiteSpaceAreFoundInLinearTime(t *testing.T) {
	tok := mustParse(t, model(`{"a":0}`, `[]`, `"added_tokens":[{"content":" ","rstrip":true}]`))
	ctx := &endingContext{Context: t.Context()}
	ids, err := tok.Encode(ctx, nil, strings.Repeat(" ", 1<<18), true)
	if err != nil || len(ids) != 1<<18 {
		t.Fatalf("it is %d ids, %v", len(ids), err)
	}
	if most := 20 * (1 << 18) / unitsPerLook; ctx.looks > most {
		t.Errorf("the context was looked at %d times, more than %d", ctx.looks, most)
	}
}

// TestTextsThatCostTooMuchFail: a long added token is nearly found at each byte.
func TestTextsThatCostTooMuchFail(t *testing.T) {
	tok := mustParse(t, model(`{"a":0}`, `[]`, `"added_tokens":[{"content":"`+strings.Repeat("a", maxAddedBytes-1)+`b"}]`))
	if _, err := tok.Encode(t.Context(), nil, strings.Repeat("a", 1<<16), true); !errors.Is(err, errWork) {
		t.Errorf("it is %v, want %v", err, errWork)
	}
}

// TestPreTokenizersCannotMakeTextsGrowWithoutEnd: each doubles what is not ASCII.
func TestPreTokenizersCannotMakeTextsGrowWithoutEnd(t *testing.T) {
	step := `{"type":"ByteLevel","use_regex":false,"add_prefix_space":false}`
	tok := mustParse(t, model(`{"a":0}`, `[]`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+step+strings.Repeat(","+step, maxRewrites-1)+`]}`))
	e := newEncoder(tok)
	e.begin(t.Context(), nil, 0)
	e.text(strings.Repeat(" ", 1<<14))
	if !errors.Is(e.err, errGrows) {
		t.Errorf("it is %v, want %v", e.err, errGrows)
	}
}

// TestEncodingEndsWhenThereAreTooManyIDs: what is refused for its length costs what is wanted
// of it, not what it is long, and the number told is true.
func TestEncodingEndsWhenThereAreTooManyIDs(t *testing.T) {
	const most = 100
	for name, tok := range testTokenizers(t) {
		for kind, text := range longTexts() {
			all, err := tok.Encode(t.Context(), nil, text, true)
			if err != nil {
				t.Fatal(err)
			}
			ctx := &endingContext{Context: t.Context()}
			dst := []uint32{1, 2, 3}
			got, err := tok.EncodeAtMost(ctx, dst, text, true, most)
			tooMany := (*TooManyError)(nil)
			if !errors.As(err, &tooMany) || len(got) != len(dst) {
				t.Errorf("%s: %s: it is %d ids, %v, of %d", name, kind, len(got), err, len(all))
				continue
			}
			if tooMany.AtLeast <= most || tooMany.AtLeast > len(all) {
				t.Errorf("%s: %s: it has at least %d ids, want more than %d and at most the %d that it has", name, kind, tooMany.AtLeast, most, len(all))
			}
			if got, err := tok.EncodeAtMost(t.Context(), nil, text, true, len(all)); err != nil || !slices.Equal(got, all) {
				t.Errorf("%s: %s: with room for all it is %d ids, %v", name, kind, len(got), err)
			}
			t.Logf("%s: %s: %d looks, at least %d of %d", name, kind, ctx.looks, tooMany.AtLeast, len(all))
		}
	}
}

func TestDecodingEndsWhenTheTextIsTooLong(t *testing.T) {
	tok := mustParse(t, model(`{"`+strings.Repeat("a", 1000)+`":0}`, `[]`, `"decoder":{"type":"Fuse"}`))
	ids := make([]uint32, 1000)
	if text, fits := tok.DecodeAtMost([]byte("x"), ids, DecodeOptions{}, 10_000); fits || len(text) > 12_000 {
		t.Errorf("it is %d bytes, %v", len(text), fits)
	}
	if text, fits := tok.DecodeAtMost([]byte("x"), ids, DecodeOptions{}, 1_000_000); !fits || len(text) != 1_000_001 {
		t.Errorf("with room for all it is %d bytes, %v", len(text), fits)
	}
}
