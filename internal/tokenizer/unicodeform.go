package tokenizer

import (
	"slices"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sluice-router/sluice/internal/tokenizer/pattern"
)

// unicodeForm is NFC, NFD, NFKC or NFKD as the reference computes them: with the data of
// about Unicode 9, in which newer characters neither decompose nor move (pattern.FormKnown), and
// without the mark that Go's norm package puts into runs of more than 30 combining
// characters. So that package only finds the text that needs no change, and gives the data.
type unicodeForm struct {
	form    norm.Form // to find what is normal already
	data    norm.Form // NFD or NFKD
	compose bool
}

var unicodeForms = map[string]unicodeForm{
	"NFC":  {form: norm.NFC, data: norm.NFD, compose: true},
	"NFD":  {form: norm.NFD, data: norm.NFD},
	"NFKC": {form: norm.NFKC, data: norm.NFKD, compose: true},
	"NFKD": {form: norm.NFKD, data: norm.NFKD},
}

// formChar is a character with its canonical combining class.
type formChar struct {
	r     rune
	class uint8
}

const (
	hangulFirst, hangulLast = 0xac00, 0xd7a3
	jamoL, jamoV, jamoT     = 0x1100, 0x1161, 0x11a7
	countL, countV, countT  = 19, 21, 28
)

// compositions are the characters that two others compose to, by these, and the set of
// those that can be the second one.
var compositions = sync.OnceValue(func() (c struct {
	pairs   map[[2]rune]rune
	seconds *pattern.Set
}) {
	c.pairs = map[[2]rune]rune{}
	seconds := &pattern.Bits{}
	for _, known := range pattern.FormKnown {
		for r := known[0]; r <= known[1]; r++ {
			s := string(r)
			full := []rune(string(norm.NFD.PropertiesString(s).Decomposition()))
			if len(full) < 2 || norm.NFC.String(s) != s {
				continue // nothing to compose, or excluded from composing
			}
			first := []rune(norm.NFC.String(string(full[:len(full)-1])))
			if second := full[len(full)-1]; len(first) == 1 {
				c.pairs[[2]rune{first[0], second}] = r
				seconds.AddRange(second, second)
			}
		}
	}
	seconds.AddRange(jamoV, jamoV+countV-1)
	seconds.AddRange(jamoT, jamoT+countT-1)
	c.seconds = pattern.NewSet(seconds)
	return c
})

var formKnownSet = sync.OnceValue(func() *pattern.Set {
	b := &pattern.Bits{}
	b.AddRanges(pattern.FormKnown)
	return pattern.NewSet(b)
})

// apply appends the form of s to dst.
func (f unicodeForm) apply(e *encoder, dst []byte, s string) []byte {
	for len(s) > 0 && e.err == nil {
		n := f.cut(e, s)
		dst = f.part(e, dst, s[:n])
		s = s[n:]
	}
	return dst
}

// formPart is about how much text is looked at at one time: it takes less than a millisecond.
const formPart = 1 << 14

// cut returns the length of a part at the beginning of s that has nothing to do with what
// follows.
func (f unicodeForm) cut(e *encoder, s string) int {
	n := formPart
	for ; n < len(s) && e.tick(2); n++ {
		if utf8.RuneStart(s[n]) && f.form.PropertiesString(s[n:]).BoundaryBefore() {
			return n
		}
	}
	return len(s)
}

func (f unicodeForm) part(e *encoder, dst []byte, s string) []byte {
	for len(s) > 0 && e.tick(64) {
		n := f.form.QuickSpanString(s)
		dst = append(dst, s[:n]...)
		s = s[n:]
		e.tick(n)
		if len(s) > 0 {
			var chars []formChar
			chars, n = f.decompose(e, e.form[:0], s)
			s = s[n:]
			if f.compose {
				chars = composed(e, chars)
			}
			for _, c := range chars {
				if dst = utf8.AppendRune(dst, c.r); !e.tick(1) {
					return dst
				}
			}
			e.form = chars[:0]
		}
	}
	return dst
}

// decompose appends the characters at the beginning of s, taken apart and in canonical
// order, up to one that cannot have to do with those before it. It returns how many bytes
// of s that are.
func (f unicodeForm) decompose(e *encoder, chars []formChar, s string) ([]formChar, int) {
	seconds, known := compositions().seconds, formKnownSet()
	i := 0
	for i < len(s) && e.tick(2) {
		r, n := utf8.DecodeRuneInString(s[i:])
		from := len(chars)
		switch {
		case r >= hangulFirst && r <= hangulLast:
			index := r - hangulFirst
			chars = append(chars, formChar{r: jamoL + index/(countV*countT)}, formChar{r: jamoV + index%(countV*countT)/countT})
			if t := index % countT; t > 0 {
				chars = append(chars, formChar{r: jamoT + t})
			}
		case !known.Has(r):
			chars = append(chars, formChar{r: r})
		default:
			p := f.data.PropertiesString(s[i:])
			d := p.Decomposition()
			if d == nil {
				chars = append(chars, formChar{r: r, class: p.CCC()})
			}
			for len(d) > 0 {
				part, size := utf8.DecodeRune(d)
				chars = append(chars, formChar{r: part, class: f.data.Properties(d).CCC()})
				d = d[size:]
			}
		}
		if i > 0 && chars[from].class == 0 && !seconds.Has(chars[from].r) {
			chars = chars[:from]
			break
		}
		i += n
	}
	for from := 0; from < len(chars); {
		to := from
		for to < len(chars) && chars[to].class != 0 {
			to++
		}
		e.sortByClass(chars[from:to])
		from = to + 1
	}
	return chars, i
}

// sortByClass puts combining characters into the order of their classes; those of one class
// stay as they are. A text may be a megabyte of them.
func (e *encoder) sortByClass(chars []formChar) {
	if len(chars) <= 16 {
		for i := 1; i < len(chars); i++ {
			for j := i; j > 0 && chars[j-1].class > chars[j].class; j-- {
				chars[j-1], chars[j] = chars[j], chars[j-1]
			}
		}
		return
	}
	var starts [257]int
	for _, c := range chars {
		if starts[int(c.class)+1]++; !e.tick(1) {
			return
		}
	}
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	e.sorted = slices.Grow(e.sorted[:0], len(chars))[:len(chars)]
	for _, c := range chars {
		e.sorted[starts[c.class]] = c
		if starts[c.class]++; !e.tick(1) {
			return
		}
	}
	copy(chars, e.sorted)
}

// composed puts characters together where two have a common one, in place.
func composed(e *encoder, chars []formChar) []formChar {
	pairs := compositions().pairs
	out := chars[:0]
	starter := -1 // of out
	for _, c := range chars {
		if !e.tick(2) {
			break
		}
		if starter >= 0 {
			last := out[len(out)-1]
			blocked := len(out)-1 > starter && (last.class == 0 || last.class >= c.class)
			if r, ok := compose(pairs, out[starter].r, c.r); ok && !blocked {
				out[starter].r = r
				continue
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	return out
}

// compose returns the character that two compose to.
func compose(pairs map[[2]rune]rune, a, b rune) (rune, bool) {
	switch {
	case a >= jamoL && a < jamoL+countL && b >= jamoV && b < jamoV+countV:
		return hangulFirst + ((a-jamoL)*countV+(b-jamoV))*countT, true
	case a >= hangulFirst && a <= hangulLast && (a-hangulFirst)%countT == 0 && b > jamoT && b < jamoT+countT:
		return a + (b - jamoT), true
	}
	r, ok := pairs[[2]rune{a, b}]
	return r, ok
}
