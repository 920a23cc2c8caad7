package stopwords

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// wanted is what a text is cut to, read off the rules: at each byte, is it the end of a stop
// string?
func wanted(stops []string, text string, pass int, include bool) (string, int) {
	for end := pass + 1; end <= len(text); end++ {
		for i, stop := range stops {
			if stop == "" || !strings.HasSuffix(text[:end], stop) {
				continue
			}
			if include {
				return text[:end], i
			}
			return text[:end-len(stop)], i
		}
	}
	return text, -1
}

// held is the longest end of a text that is the beginning of a stop string.
func held(stops []string, text string) int {
	longest := 0
	for _, stop := range stops {
		for n := range len(stop) {
			if strings.HasSuffix(text, stop[:n]) {
				longest = max(longest, n)
			}
		}
	}
	return longest
}

func compiled(t testing.TB, include bool, stops ...string) *Set {
	t.Helper()
	s := new(Set)
	if err := s.Compile(stops, include); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStopStrings(t *testing.T) {
	f := func(stops, pieces []string, include bool, want string, matched int) {
		t.Helper()
		m := compiled(t, include, stops...).Begin()
		var out []byte
		got := -1
		for _, p := range pieces {
			out, got = m.Append(out, []byte(p))
		}
		out = m.Flush(out)
		if string(out) != want || got != matched {
			t.Errorf("%q in %q: %q, stop %d; want %q, %d", stops, pieces, out, got, want, matched)
		}
	}
	list := func(s ...string) []string { return s }
	f(nil, list("a", "b"), false, "ab", -1)
	f(list(""), list("a", "b"), false, "ab", -1)
	f(list("END"), list("the E", "ND of it"), false, "the ", 0)
	f(list("END"), list("the E", "ND of it"), true, "the END", 0)
	f(list("END"), list("the E", "ND", " of it"), true, "the END", 0)
	f(list("END"), list("E", "N"), false, "EN", -1)
	f(list("\n\n"), list("a\n", "b\n", "\n", "c"), false, "a\nb", 0)
	// Ends first, though it begins later.
	f(list("abcd", "bc"), list("abcd"), false, "a", 1)
	f(list("abcd", "bc"), list("abcd"), true, "abc", 1)
	// They end together: the first of the list, whichever is longer.
	f(list("b", "ab"), list("xab"), false, "xa", 0)
	f(list("ab", "b"), list("xab"), false, "x", 0)
	f(list("b", "b"), list("xab"), false, "xa", 0)
	// One that goes on where another one ended, in any order of the list.
	f(list("a", "b", "ab"), list("ab"), false, "", 0)
	f(list("ab", "b", "a"), list("ca"), false, "c", 2)
	f(list("é"), list("caf\xc3", "\xa9!"), false, "caf", 0)
	// The beginning of one turns out to be within another one.
	f(list("aab", "abab"), list("aa", "abab"), false, "a", 0)
	f(list("abac", "bab"), list("aba", "b"), false, "a", 1)
}

// A stop string that ends in text that came before the least number of tokens does not
// count; one that ends later does, wherever it began.
func TestStopStringWithinTheLeastTokens(t *testing.T) {
	m := compiled(t, false, "END", "x").Begin()
	out := m.Pass(nil, []byte("END x E"))
	if string(out) != "END x " {
		t.Errorf("passed %q", out)
	}
	out, matched := m.Append(out, []byte("ND and on"))
	if string(out) != "END x " || matched != 0 {
		t.Errorf("%q, %d", out, matched)
	}
}

// What is behind the end does not come out, whatever is called.
func TestTextBehindTheEndIsDropped(t *testing.T) {
	m := compiled(t, false, "END", "ab").Begin()
	out, _ := m.Append(nil, []byte("aEND"))
	out, matched := m.Append(out, []byte("more a"))
	out = m.Pass(out, []byte("b"))
	out = m.Flush(out)
	if string(out) != "a" || matched != 0 || m.Held() != 0 {
		t.Errorf("%q, %d", out, matched)
	}
}

func TestTooLargeStopStrings(t *testing.T) {
	s := compiled(t, false, "a")
	for _, stops := range [][]string{make([]string, 1<<15), {strings.Repeat("a", 1<<16)}} {
		if err := s.Compile(stops, false); err != ErrTooLarge {
			t.Error(err)
		}
		m := s.Begin()
		if out, matched := m.Append(nil, []byte("aaa")); string(out) != "aaa" || matched != -1 {
			t.Errorf("a set that was refused matches: %q, %d", out, matched)
		}
	}
	if err := s.Compile([]string{strings.Repeat("a", 1<<16-1)}, false); err != nil {
		t.Error(err)
	}
}

// After every piece exactly that has come out of which no stop string can take any back.
func TestEveryCutAgainstTheRules(t *testing.T) {
	letters := rapid.SampledFrom([]string{"a", "b", "c", "é", "\n", "😀"})
	word := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(letters, 0, 6).Draw(t, "letters"), "")
	})
	var set Set // the memory of the one before
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(word, 0, 6).Draw(t, "stops")
		pieces := rapid.SliceOfN(word, 0, 12).Draw(t, "pieces")
		passed := rapid.IntRange(0, 2).Draw(t, "passed") * rapid.IntRange(0, 2).Draw(t, "times")
		include := rapid.Bool().Draw(t, "include")
		check(t, &set, stops, pieces, passed, include)
		// And a byte at a time.
		var single []string
		for _, c := range []byte(strings.Join(pieces, "")) {
			single = append(single, string([]byte{c}))
		}
		check(t, &set, stops, single, passed, include)
	})
}

func check(t interface{ Fatalf(string, ...any) }, set *Set, stops, pieces []string, passed int, include bool) {
	if err := set.Compile(stops, include); err != nil {
		t.Fatalf("%v", err)
	}
	m := set.Begin()
	pass, text, matched := 0, "", -1
	var out []byte
	for i, p := range pieces {
		text += p
		if i < passed {
			out = m.Pass(out, []byte(p))
			pass = len(text)
		} else {
			out, matched = m.Append(out, []byte(p))
		}
		want, stop := wanted(stops, text, pass, include)
		if stop < 0 && !include {
			want = want[:len(want)-held(stops, text)]
		}
		if string(out) != want || matched != stop {
			t.Fatalf("%q after %q (%d passed, include %v): %q, stop %d; want %q, %d", stops, pieces[:i+1], passed, include, out, matched, want, stop)
		}
	}
	out = m.Flush(out)
	if want, _ := wanted(stops, text, pass, include); string(out) != want {
		t.Fatalf("%q after %q: %q; want %q", stops, pieces, out, want)
	}
}

func FuzzMatcher(f *testing.F) {
	f.Add("END\x00\n\n", "the E\x00ND", uint8(0), false)
	f.Add("aab\x00abab\x00b", "aa\x00abab", uint8(1), true)
	f.Fuzz(func(t *testing.T, stops, pieces string, passed uint8, include bool) {
		if len(stops) > 100 || len(pieces) > 300 {
			return
		}
		check(t, new(Set), strings.Split(stops, "\x00"), strings.Split(pieces, "\x00"), int(passed%4), include)
	})
}

// 64 stop strings of 4 KiB: linear in the text, even in one that is nearly a match at each
// of its bytes, and a few MiB.
func TestLargestSet(t *testing.T) {
	var stops []string
	for i := range 64 {
		stops = append(stops, strings.Repeat("a", 4094)+string(rune('A'+i%50))+string(rune('0'+i/50)))
	}
	s := compiled(t, false, stops...)
	if got := s.MemoryBytes(); got > 16<<20 {
		t.Errorf("%d bytes", got)
	}
	text := bytes.Repeat([]byte("a"), 1<<20)
	text = append(text, "B0 and on"...)
	m := s.Begin()
	var out []byte
	matched := -1
	for piece := range slices.Chunk(text, 1000) {
		out, matched = m.Append(out, piece)
	}
	if matched != 1 || len(out) != 1<<20-4094 {
		t.Errorf("stop %d, %d bytes", matched, len(out))
	}
	s.Clear()
	if got := s.MemoryBytes(); got > 64<<10 {
		t.Errorf("%d bytes after Clear", got)
	}
}

func TestNoAllocations(t *testing.T) {
	stops := []string{"\n\n", "END", "</s>", "Question:"}
	set := compiled(t, false, stops...)
	m := set.Begin()
	buf := make([]byte, 0, 1024)
	piece := []byte(" a Question\nof EN")
	if n := testing.AllocsPerRun(100, func() {
		out, _ := m.Append(buf, piece)
		m.Pass(out, piece)
	}); n != 0 {
		t.Errorf("%v allocations a piece", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = set.Compile(stops, false)
		m = set.Begin()
	}); n != 0 {
		t.Errorf("%v allocations to compile again", n)
	}
	if n := unsafe.Sizeof(m); n > 16 {
		t.Errorf("a Matcher takes %d bytes", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	text := []byte(" token")
	run := func(name string, stops ...string) {
		b.Run(name, func(b *testing.B) {
			m := compiled(b, false, stops...).Begin()
			buf := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				m.Append(buf, text)
			}
		})
	}
	run("none")
	run("one", "\n\n")
	run("four", "\n\n", "END", "</s>", "Question:")
	run("fourBusy", " tokens", "oken.", "token:", "n!")
}
