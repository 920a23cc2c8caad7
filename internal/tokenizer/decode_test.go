package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// tokenizerWith is a tokenizer.json with a decoder, a vocabulary, and special tokens.
func tokenizerWith(t testing.TB, decoder string, vocabulary, special []string) *Tokenizer {
	t.Helper()
	vocab := map[string]int{}
	for i, v := range vocabulary {
		vocab[v] = i
	}
	added := []map[string]any{}
	for i, s := range special {
		added = append(added, map[string]any{"id": len(vocabulary) + i, "content": s, "special": true})
	}
	data, err := json.Marshal(map[string]any{
		"added_tokens": added, "decoder": json.RawMessage(decoder), "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, data)
}

const (
	levelDecoder = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
	llamaDecoder = `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`
)

// pieces are what a stream gives with each id, and at the end.
func pieces(tok *Tokenizer, o DecodeOptions, ids ...uint32) (list []string) {
	var s Stream
	s.Begin(tok, o)
	for _, id := range ids {
		list = append(list, string(s.Append(nil, id)))
	}
	return append(list, string(s.Flush(nil)))
}

// A character comes out with its last byte, and bytes that cannot become one as soon as
// that is certain.
func TestNothingIsHeldBackLongerThanNeeded(t *testing.T) {
	f := func(tok *Tokenizer, want []string, ids ...uint32) {
		t.Helper()
		if got := pieces(tok, DecodeOptions{}, ids...); strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%v: %q; want %q", ids, got, want)
		}
	}
	list := func(s ...string) []string { return s }
	level := tokenizerWith(t, levelDecoder, []string{"a", "ð", "Ł", "ĺ", "Ģ", "ÿ", "âĸ", "Ġâ"}, []string{"<s>"})
	f(level, list("", "", "", "😀", ""), 1, 2, 3, 4)
	f(level, list("", "", "\uFFFDa", ""), 1, 2, 0)
	f(level, list("", "\uFFFD\uFFFD", ""), 1, 5)
	f(level, list("", "\uFFFD", "\uFFFD"), 1, 1)
	f(level, list("\uFFFD", "\uFFFD", "a", ""), 2, 2, 0)
	f(level, list("", "", "", "\uFFFD"), 1, 2, 3)
	f(level, list(" ", "\uFFFDa", ""), 7, 0)
	f(level, list("", "\uFFFD<s>", ""), 6, 8)

	llama := tokenizerWith(t, llamaDecoder, []string{"▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x41>"}, []string{"<s>"})
	f(llama, list("a", " a", ""), 0, 0)
	f(llama, list("a", "", "", "", "", "😀 a", ""), 0, 1, 2, 3, 4, 0)
	f(llama, list("", "", "", "", "", "😀A"), 1, 2, 3, 4, 5)
	f(llama, list("", "", "", "\uFFFD\uFFFD\uFFFD a", ""), 5, 1, 2, 0)
}

func TestSpecialTokens(t *testing.T) {
	f := func(tok *Tokenizer, o DecodeOptions, want string, ids ...uint32) {
		t.Helper()
		if got := string(tok.Decode([]byte("> "), ids, o)); got != "> "+want {
			t.Errorf("%v, %+v: %q; want %q", ids, o, got, want)
		}
	}
	tok := tokenizerWith(t, "null", []string{"a", "b"}, []string{"<s>", "</s>"})
	f(tok, DecodeOptions{SpacesBetweenSpecial: true}, "<s> </s> a <s>", 2, 3, 0, 2)
	f(tok, DecodeOptions{}, "<s></s> a <s>", 2, 3, 0, 2)
	f(tok, DecodeOptions{SkipSpecial: true}, "a b", 2, 3, 0, 2, 1)
	f(tok, DecodeOptions{SkipSpecial: true, SpacesBetweenSpecial: true}, "a b", 2, 3, 0, 2, 1)
}

// An id without a token is no text, and can be told.
func TestUnknownIDs(t *testing.T) {
	tok := tokenizerWith(t, levelDecoder, []string{"a", "â"}, []string{"<s>"})
	if got := pieces(tok, DecodeOptions{}, 0, 99, 1, 1<<32-1, 3, 0); fmt.Sprint(got) != "[a     \uFFFDa ]" {
		t.Errorf("%q", got)
	}
	for id, want := range map[uint32]bool{0: true, 2: true, 3: false, 1<<32 - 1: false} {
		if tok.Known(id) != want {
			t.Errorf("token %d is known: %v", id, !want)
		}
	}
}

// A stream that begins anew has nothing of the text before.
func TestBeginAgain(t *testing.T) {
	level := tokenizerWith(t, levelDecoder, []string{"a", "â"}, nil)
	llama := tokenizerWith(t, llamaDecoder, []string{"▁a", "<0xF0>"}, nil)
	var s Stream
	for range 2 {
		s.Begin(level, DecodeOptions{})
		if out := s.Append(s.Append(nil, 0), 1); string(out) != "a" {
			t.Errorf("%q", out)
		}
		s.Begin(llama, DecodeOptions{})
		if out := s.Append(s.Append(nil, 0), 1); string(out) != "a" {
			t.Errorf("%q", out)
		}
	}
}

func TestUnsupportedDecoders(t *testing.T) {
	for _, d := range []string{
		`{"type":"WordPiece","prefix":"##","cleanup":true}`,
		`{"type":"CTC","pad_token":"x","word_delimiter_token":"|","cleanup":false}`,
		`{"type":"BPEDecoder","suffix":"</w>"}`,
		`{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"}`,
		`{"type":"Replace","pattern":{"String":""},"content":"b"}`,
		`{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("b", 65) + `"}`,
		`{"type":"Sequence","decoders":[` + strings.TrimSuffix(strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, 7), ",") + `]}`,
		`{"type":"Strip","content":" ","start":0,"stop":1}`,
		`{"type":"Metaspace","replacement":"▁","add_prefix_space":false}`,
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"sometimes"}`,
		`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}`,
		`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"a"},"content":"b"}]}`,
		`{"type":"Sequence","decoders":[{"type":"Fuse"},` + levelDecoder + `]}`,
		`{"type":"Sequence","decoders":[` + strings.TrimSuffix(strings.Repeat(`{"type":"Fuse"},`, maxSteps+1), ",") + `]}`,
		strings.Repeat(`{"type":"Sequence","decoders":[`, maxSteps+2) + strings.Repeat(`]}`, maxSteps+2),
	} {
		data := fmt.Sprintf(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":%s}`, d)
		var u *UnsupportedError
		if _, err := Parse([]byte(data)); !errors.As(err, &u) || u.Part != "decoder" {
			t.Errorf("%.100s: %v", d, err)
		}
	}
	for _, d := range []string{`{}`, `{"type":1}`, `[]`, `"x"`, `{"type":"Strip","content":"ab","start":1,"stop":0}`, `{"type":"Strip","content":"a","start":-1,"stop":0}`} {
		data := fmt.Sprintf(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":%s}`, d)
		if _, err := Parse([]byte(data)); err == nil {
			t.Errorf("%s was accepted", d)
		}
	}
}

// Whatever the decoder and the ids are, streams are what they say.
func FuzzDecode(f *testing.F) {
	for _, s := range smallFiles(f) {
		var file struct{ Decoder json.RawMessage }
		if err := json.Unmarshal(s.Tokenizer, &file); err != nil {
			f.Fatal(err)
		}
		f.Add(string(file.Decoder), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 30, 31, 0}, false, true)
	}
	vocabulary := []string{"a", "▁a", "▁", "Ġa", "â", "ĸ", "é", "<0xE2>", "<0x96>", "<0x81>", "<0x20>", " ", "x▁"}
	f.Fuzz(func(t *testing.T, decoder string, bytes []byte, skip, spaces bool) {
		if len(decoder) > 2000 || len(bytes) > 50 {
			return
		}
		entries := map[string]int{}
		for i, v := range vocabulary {
			entries[v] = i
		}
		vocab, _ := json.Marshal(entries)
		data := fmt.Sprintf(`{"model":{"type":"BPE","vocab":%s,"merges":[]},"decoder":%s,"added_tokens":[{"content":"<s>","special":true},{"content":"▁t"}]}`, vocab, decoder)
		tok, err := Parse([]byte(data))
		if err != nil {
			return
		}
		ids := make([]uint32, len(bytes))
		for i, b := range bytes {
			ids[i] = uint32(b % 18)
		}
		o := DecodeOptions{SkipSpecial: skip, SpacesBetweenSpecial: spaces}
		checkStream(t, tok, ids, o)
		if out := tok.Decode(nil, ids, o); !utf8.Valid(out) {
			t.Errorf("%q", out)
		}
	})
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	level := tokenizerWith(t, levelDecoder, []string{"a", "ð", "Ł", "ĺ", "Ģ", "ÿ"}, []string{"<s>"})
	llama := tokenizerWith(t, llamaDecoder, []string{"▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x41>"}, []string{"<s>"})
	buf := make([]byte, 0, 256)
	var s Stream
	for name, tok := range map[string]*Tokenizer{"bytes": level, "pieces": llama} {
		if n := testing.AllocsPerRun(100, func() {
			s.Begin(tok, DecodeOptions{SkipSpecial: true})
			out := buf
			for range 3 {
				for id := range uint32(8) {
					out = s.Append(out, id)
				}
			}
			s.Flush(out)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	run := func(name string, tok *Tokenizer, ids []uint32) {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 1024)
			var s Stream
			s.Begin(tok, DecodeOptions{SkipSpecial: true})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Append(buf, ids[i&4095])
				i++
			}
		})
	}
	files := realFiles(b)
	for _, name := range []string{"qwen3", "llama2"} {
		data, ok := files[name]
		if !ok {
			b.Skip("left out: not installed (test/tokenizers/install.sh)")
		}
		tok := parsed(b, data)
		ids := make([]uint32, 4096)
		d := draw(1)
		for i := range ids {
			ids[i] = uint32(d.below(tok.VocabSize()))
		}
		run(name, tok, ids)
	}
}

// A text behind a prompt keeps the space that a text at the beginning loses, and has the
// character whose first bytes end the prompt.
func TestTextAfterAPrompt(t *testing.T) {
	f := func(tok *Tokenizer, prompt []uint32, want string, ids ...uint32) {
		t.Helper()
		for _, vllm := range []bool{false, true} {
			var s Stream
			s.BeginAfter(tok, DecodeOptions{SkipSpecial: true, AsVLLM: vllm}, prompt)
			var out []byte
			for _, id := range ids {
				out = s.Append(out, id)
			}
			if out = s.Flush(out); string(out) != want {
				t.Errorf("%v after %v, as vLLM %v: %q; want %q", ids, prompt, vllm, out, want)
			}
		}
	}
	list := func(ids ...uint32) []uint32 { return ids }
	level := tokenizerWith(t, levelDecoder, []string{"a", "ð", "Ł", "ĺ", "Ģ", "ÿ", "âĸ", "Ġâ"}, []string{"<s>"})
	f(level, nil, "a", 0)
	f(level, list(0, 1, 2), "😀a", 3, 4, 0)
	f(level, list(0, 1, 8, 2, 8, 99), "😀", 3, 4)
	f(level, list(3, 4), "a", 0)
	llama := tokenizerWith(t, llamaDecoder, []string{"▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x41>"}, []string{"<s>"})
	f(llama, nil, "a a", 0, 0)
	f(llama, list(6), "a a", 0, 0)
	f(llama, list(6, 0), " a a", 0, 0)
	f(llama, list(0, 1, 2), "😀 a", 3, 4, 0)
	f(llama, list(5, 5, 5, 1, 6), "😀 a", 2, 3, 4, 0)
	f(llama, list(5), " a", 0)
	meta := tokenizerWith(t, `{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}`, []string{"▁a"}, []string{"<s>"})
	f(meta, list(1), "a a", 0, 0)
	f(meta, list(0), " a", 0)
	spaced := tokenizerWith(t, "null", []string{"a"}, nil)
	f(spaced, list(0), " a a", 0, 0)
}

// The text of a prompt and that of what comes after it are the text of both together,
// wherever the text is cut between characters.
func TestPromptAndTextAreTheWhole(t *testing.T) {
	for _, f := range smallFiles(t) {
		tok := parsed(t, f.Tokenizer)
		for _, c := range f.Cases {
			for n, id := range c.IDs {
				o := DecodeOptions{SpacesBetweenSpecial: true}
				before := string(tok.Decode(nil, c.IDs[:n], o))
				if strings.HasSuffix(before, "\uFFFD") || n > 0 && tok.Known(c.IDs[n-1]) && tok.text.flags[c.IDs[n-1]]&oneByte != 0 || tok.Known(id) && tok.text.flags[id]&oneByte != 0 {
					continue
				}
				var s Stream
				s.BeginAfter(tok, o, c.IDs[:n])
				out := []byte(before)
				for _, id := range c.IDs[n:] {
					out = s.Append(out, id)
				}
				if out = s.Flush(out); string(out) != c.Text {
					t.Errorf("%s: %v cut at %d: %q; want %q", f.Name, c.IDs, n, out, c.Text)
				}
			}
		}
	}
}

// What is kept of a long run of bytes is bounded, when the next text begins.
func TestMemoryOfAStream(t *testing.T) {
	tok := tokenizerWith(t, llamaDecoder, []string{"▁a", "<0x41>", "<0xFF>"}, nil)
	for _, vllm := range []bool{false, true} {
		var s Stream
		s.Begin(tok, DecodeOptions{AsVLLM: vllm})
		for i := range 1 << 20 {
			s.Append(nil, uint32(1+i&1))
		}
		s.Begin(tok, DecodeOptions{})
		if n := cap(s.run) + cap(s.held); n > maxKeptBytes {
			t.Errorf("%d bytes are kept", n)
		}
	}
}
