package tokenizer

import (
	"math/bits"
	"sort"
	"strings"
	"unicode/utf8"
)

// ranges are sets of characters by their first and last ones, ascending.
type ranges [][2]rune

// has reports whether r is in the set.
func (x ranges) has(r rune) bool {
	i := sort.Search(len(x), func(i int) bool { return x[i][1] >= r })
	return i < len(x) && x[i][0] <= r
}

// runeBits is a set of characters that is being put together: a bit for each.
type runeBits [(utf8.MaxRune + 1) / 64]uint64

func (b *runeBits) addRange(lo, hi rune) {
	for r := lo; r <= hi; {
		if r%64 == 0 && hi-r >= 63 {
			b[r/64] = ^uint64(0)
			r += 64
			continue
		}
		b[r/64] |= 1 << (r % 64)
		r++
	}
}

func (b *runeBits) addRanges(x ranges) {
	for _, r := range x {
		b.addRange(r[0], r[1])
	}
}

func (b *runeBits) add(o *runeBits) {
	for i := range b {
		b[i] |= o[i]
	}
}

func (b *runeBits) intersect(o *runeBits) {
	for i := range b {
		b[i] &= o[i]
	}
}

func (b *runeBits) invert() {
	for i := range b {
		b[i] = ^b[i]
	}
}

func (b *runeBits) has(r rune) bool { return b[r/64]>>(r%64)&1 != 0 }

// addCategory adds a general category, or all whose names begin with a letter, as
// Oniguruma knows them. It reports whether there is one with the name.
func (b *runeBits) addCategory(name string) bool {
	var wanted [len(categoryNames)]bool
	known := false
	for i, n := range categoryNames {
		wanted[i] = n == name || len(name) == 1 && n[0] == name[0]
		known = known || wanted[i]
	}
	for i, s := range categoryStarts {
		if !wanted[s%32] {
			continue
		}
		end := rune(utf8.MaxRune)
		if i+1 < len(categoryStarts) {
			end = rune(categoryStarts[i+1]/32) - 1
		}
		b.addRange(rune(s/32), end)
	}
	return known
}

// addProperty adds what \p{name} stands for in Oniguruma, of which only some are known
// here: it reports whether name is.
func (b *runeBits) addProperty(name string) bool {
	switch strings.ToLower(name) {
	case "letter":
		name = "L"
	case "mark":
		name = "M"
	case "number":
		name = "N"
	case "punctuation":
		name = "P"
	case "symbol":
		name = "S"
	case "separator":
		name = "Z"
	}
	// Case does not count in the names of properties.
	if len(name) >= 1 && len(name) <= 2 {
		return b.addCategory(strings.ToUpper(name[:1]) + strings.ToLower(name[1:]))
	}
	scripts := map[string]ranges{
		"han": scriptHan, "hiragana": scriptHiragana, "katakana": scriptKatakana, "hangul": scriptHangul,
		"latin": scriptLatin, "cyrillic": scriptCyrillic, "greek": scriptGreek, "arabic": scriptArabic,
		"hebrew": scriptHebrew, "thai": scriptThai, "devanagari": scriptDevanagari, "bopomofo": scriptBopomofo,
	}
	x, known := scripts[strings.ToLower(name)]
	b.addRanges(x)
	return known
}

// addWord adds Oniguruma's \w.
func (b *runeBits) addWord() {
	for _, c := range []string{"L", "M", "Nd", "Nl", "Pc"} {
		b.addCategory(c)
	}
	b.addRanges(wordMore)
}

// addSpace adds \s: all white space of Unicode.
func (b *runeBits) addSpace() { b.addRanges(rustSpace) }

// runeSet is a set of characters to be asked often: bits in pages of 256, of which equal
// ones are kept once.
type runeSet struct {
	ascii [128]bool
	index [(utf8.MaxRune + 1) / 256]uint16
	pages [][4]uint64
}

// newRuneSet makes the set of b. Surrogates are in none.
func newRuneSet(b *runeBits) *runeSet {
	s := &runeSet{}
	seen := map[[4]uint64]uint16{}
	for i := range s.index {
		page := [4]uint64(b[i*4 : i*4+4])
		if i*256 >= 0xd800 && i*256 < 0xe000 {
			page = [4]uint64{}
		}
		n, known := seen[page]
		if !known {
			n = uint16(len(s.pages))
			seen[page] = n
			s.pages = append(s.pages, page)
		}
		s.index[i] = n
	}
	for r := range s.ascii {
		s.ascii[r] = b.has(rune(r))
	}
	return s
}

func (s *runeSet) has(r rune) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r]
	}
	return s.pages[s.index[r>>8]][r>>6&3]>>(r&63)&1 != 0
}

// firstBytes tells for each byte whether a character of the set begins with it.
func (s *runeSet) firstBytes() (first [256]bool) {
	for i, page := range s.index {
		for w, bitsOfWord := range s.pages[page] {
			for ; bitsOfWord != 0; bitsOfWord &= bitsOfWord - 1 {
				var b [utf8.UTFMax]byte
				r := rune(i*256 + w*64 + bits.TrailingZeros64(bitsOfWord))
				utf8.EncodeRune(b[:], r)
				first[b[0]] = true
				if r >= utf8.RuneSelf {
					break // the other 63 begin with the same byte
				}
			}
		}
	}
	return first
}

func (s *runeSet) bytes() int64 { return int64(len(s.index))*2 + int64(len(s.pages))*32 + 128 }
