package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// llamaPattern is the pattern of Llama 3.
const llamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// byteLevelFile is a byte-level tokenizer with some merges and a pattern.
func byteLevelFile(pattern, sections string) []byte {
	vocab := map[string]int{}
	add := func(s string) {
		if _, ok := vocab[s]; !ok {
			vocab[s] = len(vocab)
		}
	}
	for _, r := range byteChars {
		add(string(r))
	}
	var merges [][2]string
	for _, m := range [][2]string{{"a", "a"}, {"Ġ", "Ġ"}, {"t", "h"}, {"th", "e"}, {"Ġ", "the"}, {"aa", "aa"}, {"Ċ", "Ċ"}, {"ĠĠ", "ĠĠ"}, {"Ã", "©"}, {"aaaa", "aaaa"}, {"i", "n"}} {
		add(m[0] + m[1])
		merges = append(merges, m)
	}
	split, _ := json.Marshal(pattern)
	v, _ := json.Marshal(vocab)
	m, _ := json.Marshal(merges)
	return model(string(v), string(m), strings.TrimPrefix(sections+`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":`+string(split)+`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`, ","))
}

// charFile is a tokenizer like SentencePiece's: characters, bytes for those it lacks.
func charFile() []byte {
	vocab := map[string]int{"<unk>": 0}
	add := func(s string) {
		if _, ok := vocab[s]; !ok {
			vocab[s] = len(vocab)
		}
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b))
	}
	for r := 'a'; r <= 'z'; r++ {
		add(string(r))
	}
	add("▁")
	var merges [][2]string
	for _, m := range [][2]string{{"a", "a"}, {"▁", "▁"}, {"t", "h"}, {"th", "e"}, {"▁", "the"}, {"aa", "aa"}, {"▁▁", "▁▁"}, {"i", "n"}, {"<0xC3>", "<0xA9>"}} {
		add(m[0] + m[1])
		merges = append(merges, m)
	}
	v, _ := json.Marshal(vocab)
	m, _ := json.Marshal(merges)
	return []byte(fmt.Sprintf(`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":%s,"merges":%s}}`, v, m))
}

func mustParse(t testing.TB, file []byte) *Tokenizer {
	t.Helper()
	tok, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// testTokenizers are the two kinds of models.
func testTokenizers(t testing.TB) map[string]*Tokenizer {
	return map[string]*Tokenizer{
		"bytes": mustParse(t, byteLevelFile(llamaPattern, `"normalizer":{"type":"NFC"}`)),
		"chars": mustParse(t, charFile()),
	}
}

// longTexts are those that take the longest, a quarter of a megabyte each.
func longTexts() map[string]string {
	const n = 1 << 18
	return map[string]string{
		"one letter":      strings.Repeat("a", n),
		"spaces":          strings.Repeat(" ", n),
		"lines":           strings.Repeat("\n", n),
		"lines in spaces": strings.Repeat(" \n", n/2),
		"random":          randomText(n),
		"marks":           "e" + strings.Repeat("\u0301\u0316", n/4),
		"words":           strings.Repeat("the inn ", n/8),
	}
}

// endingContext ends at the given look at it, and keeps the longest time between two.
type endingContext struct {
	context.Context
	looks, end int
	last       time.Time
	longest    time.Duration
}

func (c *endingContext) Err() error {
	if now := time.Now(); c.looks > 0 {
		c.longest, c.last = max(c.longest, now.Sub(c.last)), now
	} else {
		c.last = now
	}
	if c.looks++; c.end > 0 && c.looks >= c.end {
		return context.Canceled
	}
	return nil
}

// TestTheContextIsLookedAtOften counts the looks: a text of this length takes from 10 ms
// to 100 ms of a core, and 4 looks at least are one in a few milliseconds.
func TestTheContextIsLookedAtOften(t *testing.T) {
	for name, tok := range testTokenizers(t) {
		for kind, text := range longTexts() {
			ctx := &endingContext{Context: t.Context()}
			if _, err := tok.Encode(ctx, nil, text, true); err != nil {
				t.Fatalf("%s: %s: %v", name, kind, err)
			}
			if ctx.looks < 4 {
				t.Errorf("%s: %s: the context was looked at %d times", name, kind, ctx.looks)
			}
			t.Logf("%s: %s: %d looks, %v between two at most", name, kind, ctx.looks, ctx.longest)
		}
	}
}

// TestEncodeEndsWithItsContext ends the context at each of the first looks and some later
// ones: whatever step is at work then, nothing more is looked at and nothing is returned.
func TestEncodeEndsWithItsContext(t *testing.T) {
	prefix := []uint32{7, 8}
	for name, tok := range testTokenizers(t) {
		for kind, text := range longTexts() {
			for _, end := range []int{2, 3} {
				ctx := &endingContext{Context: t.Context(), end: end}
				ids, err := tok.Encode(ctx, prefix, text, true)
				if !errors.Is(err, context.Canceled) || !slices.Equal(ids, prefix) {
					t.Errorf("%s: %s: with the context ended it is %d ids, %v", name, kind, len(ids), err)
				}
				if ctx.looks > end+1 {
					t.Errorf("%s: %s: the context was looked at %d times after its end", name, kind, ctx.looks-end)
				}
			}
		}
	}
}

// TestShortAndLongWordsMergeAlike merges random words both ways, and by the rule itself.
func TestShortAndLongWordsMergeAlike(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		pairs := newPairTable(40)
		for rank := range 40 {
			pairs.set(uint32(r.IntN(12)), uint32(r.IntN(12)), uint32(rank), uint32(4+r.IntN(30)))
		}
		// The merged ids must spell other texts than both sides: longer ones.
		for i := range pairs.slots {
			if s := &pairs.slots[i]; s.key != 0 {
				s.merged = 1000 + s.rank
			}
		}
		for range 20 {
			pairs.set(1000+uint32(r.IntN(40)), uint32(r.IntN(12)), 100+uint32(r.IntN(1000)), 5000+uint32(r.IntN(1000)))
		}
		ids := make([]uint32, 2+r.IntN(150))
		for i := range ids {
			ids[i] = uint32(r.IntN(12))
		}
		e := newEncoder(&Tokenizer{longest: 1})
		e.begin(t.Context(), nil, 1000)
		for _, id := range ids {
			e.pieces = append(e.pieces, piece{id: id})
			e.links = append(e.links, link{id: id})
		}
		e.mergeShort(pairs)
		short := slices.Clone(e.dst)
		e.dst = e.dst[:0]
		e.mergeLong(pairs)
		if want := mergeByTheRule(ids, pairs); !slices.Equal(short, want) || !slices.Equal(e.dst, want) {
			t.Fatalf("%v becomes %v as a short word and %v as a long one, want %v", ids, short, e.dst, want)
		}
	}
}

func mergeByTheRule(ids []uint32, pairs *pairTable) []uint32 {
	ids = slices.Clone(ids)
	for {
		at, best, into := -1, noRank, uint32(0)
		for i := 0; i+1 < len(ids); i++ {
			if rank, merged := pairs.get(ids[i], ids[i+1]); rank < best {
				at, best, into = i, rank, merged
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = into
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// TestInvalidTextReadsAsReplacementCharacters is how encoding/json reads it.
func TestInvalidTextReadsAsReplacementCharacters(t *testing.T) {
	tok := testTokenizers(t)["bytes"]
	for _, text := range []string{"a\xffb", "\xed\xa0\x80", "\xe4\xb8", "\x00\x80", "the\xf0\x9f"} {
		got, err := tok.Encode(t.Context(), nil, text, true)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := tok.Encode(t.Context(), nil, string([]rune(text)), true)
		if !slices.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

// TestNormalizersCannotMakeTextsGrowWithoutEnd: each replacement makes a text 64 times as
// long, and the file comes from an engine.
func TestNormalizersCannotMakeTextsGrowWithoutEnd(t *testing.T) {
	step := `{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("a", 64) + `"}`
	tok := mustParse(t, model(`{"a":0}`, `[]`, `"normalizer":{"type":"Sequence","normalizers":[`+step+strings.Repeat(","+step, 40)+`]}`))
	if _, err := tok.Encode(t.Context(), nil, "aaaa", true); !errors.Is(err, errGrows) {
		t.Errorf("it is %v, want %v", err, errGrows)
	}
}

// TestPatternsEndAfterSomeSteps: the number of ways through this one doubles with each
// letter.
func TestPatternsEndAfterSomeSteps(t *testing.T) {
	tok := mustParse(t, byteLevelFile(`(?:a|a)*(?:aa|a)*b`, ""))
	if _, err := tok.Encode(t.Context(), nil, strings.Repeat("a", 200), true); !errors.Is(err, errWork) {
		t.Errorf("it is %v, want %v", err, errWork)
	}
}

// TestEncodersAreSafeForConcurrentUse is for the race detector: what is learned of words
// is shared.
func TestEncodersAreSafeForConcurrentUse(t *testing.T) {
	for _, tok := range testTokenizers(t) {
		text := "the inn aaaaaaaa é \n\n the aaaa in"
		want, err := mustParse(t, charFile()).Encode(t.Context(), nil, text, true)
		if tok.model.bytewise {
			want, err = mustParse(t, byteLevelFile(llamaPattern, "")).Encode(t.Context(), nil, text, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if got, err := tok.Encode(t.Context(), nil, text, true); err != nil || !slices.Equal(got, want) {
						t.Errorf("it is %v, %v, want %v", got, err, want)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestMemoryOfATokenizerIsAccounted compares MemoryBytes with what the heap grows by.
func TestMemoryOfATokenizerIsAccounted(t *testing.T) {
	files := realFiles(t)
	name := slices.Sorted(maps.Keys(files))[0]
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held goes with the second
	runtime.ReadMemStats(&before)
	tok := mustParse(t, files[name])
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(files)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	if got := tok.MemoryBytes(); got < grown*8/10 || got > grown*12/10 {
		t.Errorf("MemoryBytes() of %s is %d, the heap grew by %d", name, got, grown)
	}
}

// FuzzEncode encodes any text by a byte-level model without a normalizer, whose tokens put
// together must be the text.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "the inn's", "a\x00b\r\n\r\n  x", "é\u0301 中文 😀", "1234 567", "   \n \t"} {
		f.Add(s)
	}
	tok := mustParse(f, byteLevelFile(llamaPattern, ""))
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := tok.Encode(t.Context(), nil, text, true)
		if err != nil {
			t.Fatal(err)
		}
		var b []byte
		for _, id := range ids {
			b = append(b, tok.model.raw[id]...)
		}
		if want := string([]rune(text)); utf8.ValidString(text) && string(b) != text || string(b) != want {
			t.Errorf("%q comes back as %q", text, b)
		}
	})
}

// FuzzParse reads any file, and encodes with those that it takes.
func FuzzParse(f *testing.F) {
	f.Add(byteLevelFile(llamaPattern, `"added_tokens":[{"content":"<x>","lstrip":true,"rstrip":true,"normalized":true}]`))
	f.Add(charFile())
	f.Add(model(`{"a":0,"##b":1,"ab":2}`, `["a ##b"]`, `"post_processor":{"type":"BertProcessing","sep":["a",0],"cls":["ab",2]}`))
	f.Add(model(`{"a":0}`, `[]`, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"decoder":{"type":"ByteLevel"}`))
	f.Add(model(`{"a":0}`, `[]`, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a)[b&&[^c]]{2,3}+|\\p{Han}++(?!\\b)"},"behavior":"MergedWithNext","invert":true}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		tok, err := Parse(file)
		if err != nil {
			return
		}
		for _, text := range []string{"", "a b", "<x> 'tis 12345\n\n", "é中😀\u0301 abab"} {
			ids, err := tok.Encode(t.Context(), nil, text, true)
			if err != nil {
				continue
			}
			for _, id := range ids {
				if int(id) >= tok.VocabSize() {
					t.Fatalf("id %d of %d", id, tok.VocabSize())
				}
			}
		}
	})
}
