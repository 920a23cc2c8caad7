package pattern

import (
	"math/bits"
	"sort"
	"strings"
	"unicode/utf8"
)

// Ranges are sets of characters by their first and last ones, ascending.
type Ranges [][2]rune

// Has reports whether r is in the set.
func (x Ranges) Has(r rune) bool {
	i := sort.Search(len(x), func(i int) bool { return x[i][1] >= r })
	return i < len(x) && x[i][0] <= r
}

// ToLower is the lower case of a character beyond ASCII, where that is one character.
func ToLower(r rune) rune {
	i := sort.Search(len(lower), func(i int) bool { return lower[i].hi >= r })
	if i < len(lower) && r >= lower[i].lo && (r-lower[i].lo)%lower[i].step == 0 {
		r += lower[i].move
	}
	return r
}

// Bits is a set of characters that is being put together: a bit for each.
type Bits [(utf8.MaxRune + 1) / 64]uint64

// AddRange adds the characters from lo to hi.
func (b *Bits) AddRange(lo, hi rune) {
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

// AddRanges adds all of x.
func (b *Bits) AddRanges(x Ranges) {
	for _, r := range x {
		b.AddRange(r[0], r[1])
	}
}

func (b *Bits) add(o *Bits) {
	for i := range b {
		b[i] |= o[i]
	}
}

func (b *Bits) intersect(o *Bits) {
	for i := range b {
		b[i] &= o[i]
	}
}

func (b *Bits) invert() {
	for i := range b {
		b[i] = ^b[i]
	}
}

// Has reports whether r is in the set.
func (b *Bits) Has(r rune) bool { return b[r/64]>>(r%64)&1 != 0 }

// addCategory adds a general category, or all whose names begin with a letter, as
// Oniguruma knows them. It reports whether there is one with the name.
func (b *Bits) addCategory(name string) bool {
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
		b.AddRange(rune(s/32), end)
	}
	return known
}

// addProperty adds what \p{name} stands for in Oniguruma, of which only some are known
// here: it reports whether name is.
func (b *Bits) addProperty(name string) bool {
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
	scripts := map[string]Ranges{
		"han": scriptHan, "hiragana": scriptHiragana, "katakana": scriptKatakana, "hangul": scriptHangul,
		"latin": scriptLatin, "cyrillic": scriptCyrillic, "greek": scriptGreek, "arabic": scriptArabic,
		"hebrew": scriptHebrew, "thai": scriptThai, "devanagari": scriptDevanagari, "bopomofo": scriptBopomofo,
	}
	x, known := scripts[strings.ToLower(name)]
	b.AddRanges(x)
	return known
}

// addWord adds Oniguruma's \w.
func (b *Bits) addWord() {
	for _, c := range []string{"L", "M", "Nd", "Nl", "Pc"} {
		b.addCategory(c)
	}
	b.AddRanges(wordMore)
}

// addSpace adds \s: all white space of Unicode.
func (b *Bits) addSpace() { b.AddRanges(Space) }

// Set is a set of characters to be asked often: bits in pages of 256, of which equal
// ones are kept once.
type Set struct {
	ascii [128]bool
	index [(utf8.MaxRune + 1) / 256]uint16
	pages [][4]uint64
}

// NewSet makes the set of b. Surrogates are in none.
func NewSet(b *Bits) *Set {
	s := &Set{}
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
		s.ascii[r] = b.Has(rune(r))
	}
	return s
}

// Has reports whether r is in the set.
func (s *Set) Has(r rune) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r]
	}
	return s.pages[s.index[r>>8]][r>>6&3]>>(r&63)&1 != 0
}

// firstBytes tells for each byte whether a character of the set begins with it.
func (s *Set) firstBytes() (first [256]bool) {
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

// Bytes is the memory of the set.
func (s *Set) Bytes() int64 { return int64(len(s.index))*2 + int64(len(s.pages))*32 + 128 }
