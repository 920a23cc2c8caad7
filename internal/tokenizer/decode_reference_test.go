package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"
)

// What the reference makes of ids is in testdata, written by testdata/decode_reference.py.

func readJSON(t testing.TB, name string, to any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		t.Fatal(err)
	}
}

type smallCase struct {
	IDs           []uint32
	Skipped, Text string
}

type smallFile struct {
	Name      string
	Tokenizer json.RawMessage
	Cases     []smallCase
	Served    []servedCase
}

// servedCase is a text behind a prompt, as vLLM gives it.
type servedCase struct {
	Prompt, IDs  []uint32
	Skip, Spaces bool
	Pieces       []string
}

func smallFiles(t testing.TB) (files []smallFile) {
	readJSON(t, "decode_small.json", &files)
	return files
}

func parsed(t testing.TB, data []byte) *Tokenizer {
	t.Helper()
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// All kinds of decoders, with ids of characters that are not complete, of bytes, of special
// tokens, and of none.
func TestDecodeAsTheReference(t *testing.T) {
	for _, f := range smallFiles(t) {
		t.Run(f.Name, func(t *testing.T) {
			tok := parsed(t, f.Tokenizer)
			for _, c := range f.Cases {
				for _, skip := range []bool{false, true} {
					want := c.Text
					if skip {
						want = c.Skipped
					}
					o := DecodeOptions{SkipSpecial: skip, SpacesBetweenSpecial: true}
					if got := string(tok.Decode(nil, c.IDs, o)); got != want {
						t.Errorf("%v, skip %v: %q; want %q", c.IDs, skip, got, want)
					}
					checkStream(t, tok, c.IDs, o)
				}
			}
		})
	}
}

// What vLLM's HTTP server gives with each id, its stumbling over runs of bytes that are not
// valid included.
func TestDecodeAsVLLM(t *testing.T) {
	for _, f := range smallFiles(t) {
		t.Run(f.Name, func(t *testing.T) {
			tok := parsed(t, f.Tokenizer)
			var s Stream
			for _, c := range f.Served {
				s.BeginAfter(tok, DecodeOptions{SkipSpecial: c.Skip, SpacesBetweenSpecial: c.Spaces, AsVLLM: true}, c.Prompt)
				var got []string
				for _, id := range c.IDs {
					got = append(got, string(s.Append(nil, id)))
				}
				if !slices.Equal(got, c.Pieces) {
					t.Errorf("%+v:\n%q; want\n%q", c, got, c.Pieces)
				}
				if rest := s.Flush(nil); len(rest) > 0 {
					t.Errorf("%+v: %q at the end", c, rest)
				}
			}
		})
	}
}

// checkStream holds a stream to what it says of itself: what it has given is the beginning
// of the text of whatever comes, and it holds back nothing that is certain.
func checkStream(t testing.TB, tok *Tokenizer, ids []uint32, o DecodeOptions) {
	t.Helper()
	var s Stream
	s.Begin(tok, o)
	var out []byte
	for n, id := range ids {
		out = s.Append(out, id)
		if !utf8.Valid(out) {
			t.Errorf("%v: %q after %d", ids, out, n+1)
		}
		fork := s
		fork.run = append([]byte(nil), s.run...)
		if got, want := string(fork.Flush(append([]byte(nil), out...))), string(tok.Decode(nil, ids[:n+1], o)); got != want {
			t.Errorf("%v after %d: %q; want %q", ids, n+1, got, want)
		}
		if s.parts > 0 && utf8.FullRune(s.part[:s.parts]) {
			t.Errorf("%v after %d: %x is held back", ids, n+1, s.part[:s.parts])
		}
	}
}

// draw is the generator of decode_reference.py.
type draw uint64

func (d *draw) below(n int) int {
	*d = *d*6364136223846793005 + 1442695040888963407
	return int(uint64(*d>>33) % uint64(n))
}

// Random ids of real vocabularies, and those of the strings of the corpus, cut at each place.
func TestDecodeRealVocabularies(t *testing.T) {
	var want map[string]struct {
		Vocabulary      int
		Digests, Corpus []string
	}
	readJSON(t, "decode_real.json", &want)
	strs := readRecorded(t, filepath.Join("testdata", "reference.json")).Strings
	files := realFiles(t)
	for name, w := range want {
		t.Run(name, func(t *testing.T) {
			data, ok := files[name]
			if !ok {
				t.Skip("left out: it is not installed (test/tokenizers/install.sh)")
			}
			tok := parsed(t, data)
			digest := sha256.New()
			texts := func(ids []uint32) {
				var all, skipped Stream
				all.Begin(tok, DecodeOptions{SpacesBetweenSpecial: true})
				skipped.Begin(tok, DecodeOptions{SkipSpecial: true})
				var text, short []byte
				for _, id := range ids {
					text, short = all.Append(text, id), skipped.Append(short, id)
					digest.Write(append(flushed(&all, text), 0))
					digest.Write(append(flushed(&skipped, short), 0))
				}
			}
			check := func(what string, i int, want string) {
				t.Helper()
				if got := hex.EncodeToString(digest.Sum(nil))[:12]; got != want {
					t.Errorf("texts of block %d of %s: digest %s; want %s", i, what, got, want)
				}
				digest.Reset()
			}
			d := draw(1)
			for i, block := range w.Digests {
				for range 50 {
					texts(drawIDs(&d, w.Vocabulary))
				}
				check("random ids", i, block)
			}
			for i, block := range w.Corpus {
				for _, text := range strs[i*100 : min((i+1)*100, len(strs))] {
					ids, err := tok.Encode(t.Context(), nil, text, true)
					if err != nil {
						t.Fatal(err)
					}
					texts(ids[:min(len(ids), 100)])
				}
				check("the corpus", i, block)
			}
		})
	}
}

// flushed is what a text would be if it ended now.
func flushed(s *Stream, text []byte) []byte {
	fork := *s
	fork.run = append([]byte(nil), s.run...)
	return fork.Flush(slices.Clone(text))
}

func drawIDs(d *draw, size int) []uint32 {
	kind := d.below(4)
	ids := make([]uint32, 1+d.below(12))
	for i := range ids {
		n := d.below(size + 20)
		switch {
		case kind == 1, kind == 2 && d.below(2) > 0:
			n %= 600
		case kind == 3 && d.below(3) == 0:
			n = size - n%300
		}
		ids[i] = uint32(n)
	}
	return ids
}
