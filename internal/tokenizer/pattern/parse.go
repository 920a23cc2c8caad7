package pattern

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What one regular expression may have.
const (
	maxPatternBytes  = 4096
	maxPatternDepth  = 32
	maxPatternRepeat = 1000
	maxPatternCode   = 4096
	maxPatternSets   = 128 // different ones
	maxPatternParts  = 512 // sets that are made on the way, of 136 KiB each
	maxPatternChain  = 8   // quantifiers of one item
)

// node is a part of a regular expression.
type node struct {
	kind     nodeKind
	set      *Bits   // of nodeSet, nodeBehind, nodeNotBehind, nodePlace
	place    place   // of nodePlace
	children []*node // of nodeSequence and nodeChoice; of the others the first is the body
	min, max int     // of nodeRepeat; max -1: without end
}

type nodeKind uint8

const (
	nodeSet       nodeKind = iota // one character
	nodeSequence                  // all children, one after another
	nodeChoice                    // the first child that leads to a match
	nodeRepeat                    // the body as often as possible, less often if need be
	nodeAtomic                    // the body, without going back into it
	nodeAhead                     // the body matches here, and nothing is taken
	nodeNotAhead                  // the body does not match here
	nodeBehind                    // the character before this place is of the set
	nodeNotBehind                 // there is none, or it is not of the set
	nodePlace                     // what "place" says
)

// place is a condition about where in the text a match is.
type place uint8

const (
	placeLineStart place = iota // ^
	placeLineEnd                // $
	placeStart                  // \A
	placeEnd                    // \z
	placeLastEnd                // \Z
	placeWord                   // \b: at one end of a word
	placeNotWord                // \B
)

// parser reads a regular expression in the dialect of Oniguruma's syntax for Ruby,
// which is the reference's. Unknown of the dialect are references back, looking behind for
// more than one character, repetitions of as little as possible, and names of most scripts.
type parser struct {
	src   string
	pos   int
	fold  bool // within (?i:…)
	depth int
	parts int            // sets made
	chars map[rune]*Bits // sets of one character, without (?i:…)
}

func parse(src string) (n *node, err error) {
	if len(src) > maxPatternBytes {
		return nil, unsupported("a length of %d bytes, more than %d,", len(src), maxPatternBytes)
	}
	if !utf8.ValidString(src) {
		return nil, unsupported("text that is not UTF-8")
	}
	p := &parser{src: src, chars: map[rune]*Bits{}}
	n, err = p.choice()
	if err == nil && p.parts > maxPatternParts {
		err = p.unsupported("so many sets of characters")
	}
	if err == nil && p.pos < len(src) {
		err = p.unsupported("a closing parenthesis")
	}
	return n, err
}

// UnsupportedError tells what of a pattern is not known here, or is more than it may have.
type UnsupportedError struct{ What string }

func (e *UnsupportedError) Error() string {
	return "a pattern has " + e.What + ", which is not supported"
}

func unsupported(format string, args ...any) error {
	return &UnsupportedError{fmt.Sprintf(format, args...)}
}

func (p *parser) unsupported(what string) error {
	return unsupported("%s at byte %d of %s", what, p.pos, strconv.Quote(p.src))
}

// newSet makes a set. Once there are too many, the pattern reads as ended: it is refused.
func (p *parser) newSet() *Bits {
	if p.parts++; p.parts > maxPatternParts {
		p.pos = len(p.src)
	}
	return &Bits{}
}

func (p *parser) more() bool { return p.pos < len(p.src) }

// take reads text if it is next.
func (p *parser) take(text string) bool {
	if strings.HasPrefix(p.src[p.pos:], text) {
		p.pos += len(text)
		return true
	}
	return false
}

func (p *parser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.src[p.pos:])
	p.pos += n
	return r
}

// choice reads alternatives, up to a closing parenthesis or the end.
func (p *parser) choice() (*node, error) {
	if p.depth++; p.depth > maxPatternDepth {
		return nil, p.unsupported("so deep nesting")
	}
	defer func() { p.depth-- }()
	n := &node{kind: nodeChoice}
	for {
		s, err := p.sequence()
		if err != nil {
			return nil, err
		}
		n.children = append(n.children, s)
		if !p.take("|") {
			break
		}
	}
	if len(n.children) == 1 {
		return n.children[0], nil
	}
	return n, nil
}

func (p *parser) sequence() (*node, error) {
	n := &node{kind: nodeSequence}
	for p.more() && p.src[p.pos] != '|' && p.src[p.pos] != ')' {
		start := p.pos
		item, err := p.item()
		if err != nil {
			return nil, err
		}
		if item, err = p.quantifiers(item); err != nil {
			return nil, err
		}
		if p.fold && foldsToOne(p.src[start:]) {
			return nil, p.unsupported("letters that fold to one character")
		}
		n.children = append(n.children, item)
	}
	if len(n.children) == 1 {
		return n.children[0], nil
	}
	return n, nil
}

// foldsToOne reports whether s begins with two letters that one character stands for where
// case does not count, such as "ss" for "ß".
func foldsToOne(s string) bool {
	if len(s) < 2 {
		return false
	}
	switch strings.ToLower(s[:2]) {
	case "ss", "st", "ff", "fi", "fl":
		return true
	}
	return false
}

// item reads one character, class or group.
func (p *parser) item() (*node, error) {
	switch c := p.src[p.pos]; c {
	case '(':
		p.pos++
		return p.group()
	case '[':
		p.pos++
		set, err := p.class()
		if err != nil {
			return nil, err
		}
		return &node{kind: nodeSet, set: set}, nil
	case '.':
		p.pos++
		set := p.newSet()
		set.AddRange('\n', '\n')
		set.invert()
		return &node{kind: nodeSet, set: set}, nil
	case '^':
		p.pos++
		return &node{kind: nodePlace, place: placeLineStart}, nil
	case '$':
		p.pos++
		return &node{kind: nodePlace, place: placeLineEnd}, nil
	case '*', '+', '?':
		return nil, p.unsupported("a quantifier of nothing")
	case '\\':
		if n := p.placeEscape(); n != nil {
			return n, nil
		}
		set := p.newSet()
		if _, err := p.escape(set); err != nil {
			return nil, err
		}
		return &node{kind: nodeSet, set: set}, nil
	default:
		r := p.rune()
		set := p.chars[r]
		if set == nil || p.fold {
			set = p.newSet()
			if err := p.addFolded(set, r); err != nil {
				return nil, err
			}
			if !p.fold {
				p.chars[r] = set
			}
		}
		return &node{kind: nodeSet, set: set}, nil
	}
}

// placeEscape reads an escape that stands for a place, nil if it stands for characters.
func (p *parser) placeEscape() *node {
	n := &node{kind: nodePlace}
	switch {
	case p.take(`\A`):
		n.place = placeStart
	case p.take(`\z`):
		n.place = placeEnd
	case p.take(`\Z`):
		n.place = placeLastEnd
	case p.take(`\b`):
		n.place = placeWord
	case p.take(`\B`):
		n.place = placeNotWord
	default:
		return nil
	}
	n.set = p.newSet()
	n.set.addWord()
	return n
}

// addFolded adds a character, and within (?i:…) those that differ from it by case alone.
func (p *parser) addFolded(set *Bits, r rune) error {
	set.AddRange(r, r)
	if !p.fold {
		return nil
	}
	switch {
	case r >= utf8.RuneSelf:
		return p.unsupported("a character beyond ASCII without regard to case")
	case r|0x20 >= 'a' && r|0x20 <= 'z':
		set.AddRange(r^0x20, r^0x20)
	}
	switch r | 0x20 {
	case 's':
		set.AddRange('ſ', 'ſ')
	case 'k':
		set.AddRange('\u212a', '\u212a') // the sign for Kelvin
	}
	return nil
}

// group reads what follows an opening parenthesis.
func (p *parser) group() (*node, error) {
	fold, kind := p.fold, nodeSequence
	switch {
	case p.take("?:"):
	case p.take("?i:"):
		p.fold = true
	case p.take("?-i:"):
		p.fold = false
	case p.take("?="):
		kind = nodeAhead
	case p.take("?!"):
		kind = nodeNotAhead
	case p.take("?>"):
		kind = nodeAtomic
	case p.take("?<="):
		kind = nodeBehind
	case p.take("?<!"):
		kind = nodeNotBehind
	case strings.HasPrefix(p.src[p.pos:], "?"):
		return nil, p.unsupported("a group of this kind")
	}
	n, err := p.choice()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.unsupported("a group without an end")
	}
	p.fold = fold
	switch kind {
	case nodeSequence:
		return n, nil
	case nodeBehind, nodeNotBehind:
		if n.kind != nodeSet {
			return nil, p.unsupported("looking behind for more than a character")
		}
		return &node{kind: kind, set: n.set}, nil
	}
	return &node{kind: kind, children: []*node{n}}, nil
}

// quantifiers reads those that follow an item. "a{2}+" is "(?:a{2})+" in this dialect, while
// "a++" is possessive.
func (p *parser) quantifiers(item *node) (*node, error) {
	for chain := 0; p.more(); chain++ {
		lo, hi := 0, -1
		braces := false
		switch p.src[p.pos] {
		case '*':
		case '+':
			lo = 1
		case '?':
			hi = 1
		case '{':
			var ok bool
			if lo, hi, ok = p.braces(); !ok {
				return nil, p.unsupported("a brace") // alone it stands for itself
			}
			braces = true
		default:
			return item, nil
		}
		if chain == maxPatternChain {
			return nil, p.unsupported("so many quantifiers of one item")
		}
		p.pos++
		item = &node{kind: nodeRepeat, min: lo, max: hi, children: []*node{item}}
		switch {
		case p.take("?"):
			return nil, p.unsupported("a quantifier that takes as little as possible")
		case !braces && p.take("+"):
			item = &node{kind: nodeAtomic, children: []*node{item}}
		}
	}
	return item, nil
}

// braces reads {n}, {n,} or {n,m} but for the last byte.
func (p *parser) braces() (lo, hi int, ok bool) {
	end := strings.IndexByte(p.src[p.pos:], '}')
	if end < 0 {
		return 0, 0, false
	}
	from, to, pair := strings.Cut(p.src[p.pos+1:p.pos+end], ",")
	lo, err := strconv.Atoi(from)
	if err != nil || lo < 0 || lo > maxPatternRepeat || from[0] == '+' {
		return 0, 0, false
	}
	switch {
	case !pair:
		hi = lo
	case to == "":
		hi = -1
	default:
		if hi, err = strconv.Atoi(to); err != nil || hi < max(lo, 1) || hi > maxPatternRepeat || to[0] == '+' {
			return 0, 0, false
		}
	}
	p.pos += end
	return lo, hi, true
}

// class reads a set in brackets, from behind the opening one.
func (p *parser) class() (*Bits, error) {
	if p.depth++; p.depth > maxPatternDepth {
		return nil, p.unsupported("so deep nesting")
	}
	defer func() { p.depth-- }()
	negated := p.take("^")
	set := p.newSet()
	var left *Bits // what stands before the last &&
	for first := true; ; first = false {
		if !p.more() {
			return nil, p.unsupported("a class without an end")
		}
		switch {
		case p.src[p.pos] == ']' && first:
			return nil, p.unsupported("an empty class")
		case p.take("]"):
			if left != nil {
				set.intersect(left)
			}
			if negated {
				set.invert()
			}
			return set, nil
		case p.take("&&"):
			if left != nil {
				set.intersect(left)
			}
			left, set = set, p.newSet()
		case strings.HasPrefix(p.src[p.pos:], "[:"):
			return nil, p.unsupported("a class by name")
		case p.take("["):
			inner, err := p.class()
			if err != nil {
				return nil, err
			}
			set.add(inner)
		default:
			if err := p.classRange(set); err != nil {
				return nil, err
			}
		}
	}
}

// classRange reads a character, a range or an escape within brackets.
func (p *parser) classRange(set *Bits) error {
	lo, single, err := p.classItem(set)
	if err != nil {
		return err
	}
	rest := p.src[p.pos:]
	if len(rest) < 2 || rest[0] != '-' || rest[1] == ']' {
		if single {
			return p.addFolded(set, lo)
		}
		return nil
	}
	if !single || rest[1] == '[' || strings.HasPrefix(rest[1:], "&&") {
		return p.unsupported("a range of this kind")
	}
	p.pos++
	hi, single, err := p.classItem(set)
	if err != nil {
		return err
	}
	if !single || hi < lo {
		return p.unsupported("a range of this kind")
	}
	if p.fold {
		if hi >= utf8.RuneSelf {
			return p.unsupported("a range beyond ASCII without regard to case")
		}
		for r := lo; r <= hi; r++ {
			if err := p.addFolded(set, r); err != nil {
				return err
			}
		}
	}
	set.AddRange(lo, hi)
	return nil
}

// classItem reads one character within brackets, or adds what an escape stands for.
func (p *parser) classItem(set *Bits) (r rune, single bool, err error) {
	if !p.more() {
		return 0, false, p.unsupported("a class without an end")
	}
	if p.src[p.pos] != '\\' {
		return p.rune(), true, nil
	}
	inner := p.newSet()
	fold := p.fold
	p.fold = false // of a range only the ends are read here
	r, err = p.escape(inner)
	p.fold = fold
	if err != nil {
		return 0, false, err
	}
	if r >= 0 {
		return r, true, nil
	}
	if fold {
		return 0, false, p.unsupported("a class without regard to case")
	}
	set.add(inner)
	return 0, false, nil
}

// escape reads a backslash and what it stands for, and adds that. It returns the character
// if it is one, else -1.
func (p *parser) escape(set *Bits) (rune, error) {
	p.pos++
	if !p.more() {
		return 0, p.unsupported("a backslash at the end")
	}
	char := func(r rune) (rune, error) { return r, p.addFolded(set, r) }
	switch c := p.rune(); c {
	case 'n':
		return char('\n')
	case 'r':
		return char('\r')
	case 't':
		return char('\t')
	case 'f':
		return char('\f')
	case 'v':
		return char('\v')
	case 's', 'S', 'd', 'D', 'w', 'W':
		part := p.newSet()
		switch c | 0x20 {
		case 's':
			part.addSpace()
		case 'd':
			part.addCategory("Nd")
		case 'w':
			part.addWord()
		}
		if c < 'a' {
			part.invert()
		}
		set.add(part)
		return -1, nil
	case 'p', 'P':
		return -1, p.property(set, c == 'P')
	case 'x':
		return p.hexadecimal(set)
	case 'u':
		if p.pos+4 > len(p.src) {
			return 0, p.unsupported("an escape")
		}
		return p.codePoint(set, p.src[p.pos:p.pos+4], 4)
	default:
		if c >= utf8.RuneSelf || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' {
			return 0, p.unsupported("an escape")
		}
		return char(c)
	}
}

// property reads {name} or {^name} and adds it.
func (p *parser) property(set *Bits, negated bool) error {
	end := strings.IndexByte(p.src[p.pos:], '}')
	if end < 0 || p.src[p.pos] != '{' {
		return p.unsupported("a property")
	}
	name := p.src[p.pos+1 : p.pos+end]
	if strings.HasPrefix(name, "^") {
		negated, name = !negated, name[1:]
	}
	part := p.newSet()
	if !part.addProperty(name) {
		return p.unsupported("a property")
	}
	p.pos += end + 1
	if negated {
		part.invert()
	}
	if p.fold {
		return p.unsupported("a property without regard to case")
	}
	set.add(part)
	return nil
}

// hexadecimal reads what follows \x.
func (p *parser) hexadecimal(set *Bits) (rune, error) {
	rest := p.src[p.pos:]
	if strings.HasPrefix(rest, "{") {
		if end := strings.IndexByte(rest, '}'); end > 1 && end <= 9 {
			return p.codePoint(set, rest[1:end], end+1)
		}
	} else if len(rest) >= 2 {
		if b, err := strconv.ParseUint(rest[:2], 16, 8); err == nil && b < utf8.RuneSelf { // others are bytes, not characters
			return p.codePoint(set, rest[:2], 2)
		}
	}
	return 0, p.unsupported("an escape")
}

func (p *parser) codePoint(set *Bits, digits string, length int) (rune, error) {
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return 0, p.unsupported("an escape")
	}
	p.pos += length
	return rune(n), p.addFolded(set, rune(n))
}
