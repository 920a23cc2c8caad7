package tokenizer

import (
	"hash/maphash"
	"slices"
	"unicode/utf8"
)

// pattern is a regular expression, compiled for a machine that goes back: it finds the
// leftmost match, and of the alternatives the first that leads to one, as Oniguruma does.
// Go's own expressions do not look ahead, and the patterns of all current models do.
//
// Going back can take a time that is exponential in the length of the text, where the
// pattern asks for it: there is a limit of steps (see encoder.more).
type pattern struct {
	code  []instruction
	sets  []*runeSet
	first [256]bool // bytes that a match can begin with
	empty bool      // a match may be of no text
}

type instruction struct {
	op       opcode
	set      *runeSet
	min, max int32 // of opLoop; max -1: without end
	next     int32 // where to go on; of opSplit where to go on if the first way fails
	last     bool  // of opLoop: nothing after it can fail
	place    place // of opPlace
	choice   *choiceTable
}

// choiceTable says which alternatives a match with a certain first byte can take.
type choiceTable struct {
	targets []int32
	byFirst [257]uint64 // bits of targets, by the next byte; 256: the end of the text
}

type opcode uint8

const (
	opMatch     opcode = iota // a match, or the end of a group within
	opSet                     // one character of the set
	opLoop                    // min to max characters of the set, as many as possible
	opChoice                  // alternatives
	opSplit                   // the next instruction, or if that fails "next"
	opJump                    // to "next"
	opAtomic                  // the instructions after it up to opMatch, then "next"
	opAhead                   // the same, taking nothing
	opNotAhead                // fails if they match
	opNotSet                  // fails if the next character is of the set
	opBehind                  // fails if the last character is not of the set
	opNotBehind               // fails if it is
	opPlace                   // fails if the match is not at such a place
)

// compilePattern compiles a regular expression. What is not known of the dialect is an
// *UnsupportedError.
func compilePattern(src string) (*pattern, error) {
	n, err := parsePattern(src)
	if err != nil {
		return nil, err
	}
	return compileNode(n, src)
}

// mustCompile compiles a pattern of our own.
func mustCompile(n *node) *pattern {
	p, err := compileNode(n, "")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}

func compileNode(n *node, src string) (*pattern, error) {
	c := &compiler{p: &pattern{}, src: src, made: map[*runeBits]*runeSet{}, byHash: map[uint64]*runeBits{}, seed: maphash.MakeSeed(), firsts: map[*node]firstBytes{}}
	if err := c.emit(n); err != nil {
		return nil, err
	}
	c.op(instruction{op: opMatch})
	for i := range c.p.code {
		in := &c.p.code[i]
		in.last = in.op == opLoop && c.p.accepts(int32(i)+1)
	}
	first := c.firstBytes(n)
	c.p.first, c.p.empty = first.of, first.empty
	return c.p, nil
}

// accepts reports whether the match is complete at pc, or goes there by jumps alone.
func (p *pattern) accepts(pc int32) bool {
	for p.code[pc].op == opJump {
		pc = p.code[pc].next
	}
	return p.code[pc].op == opMatch
}

func (p *pattern) bytes() int64 {
	n := int64(len(p.code)) * 48
	for _, s := range p.sets {
		n += s.bytes()
	}
	for _, in := range p.code {
		if in.choice != nil {
			n += 257 * 8
		}
	}
	return n
}

// compiler turns the parts of a regular expression into instructions.
type compiler struct {
	p    *pattern
	src  string
	made map[*runeBits]*runeSet
	// byHash has one of equal sets; firsts what is known of parts, which repetitions ask for
	// again.
	byHash map[uint64]*runeBits
	seed   maphash.Seed
	firsts map[*node]firstBytes
}

// firstBytes are the bytes that a match of a part can begin with, and whether it may be empty.
type firstBytes struct {
	of    [256]bool
	empty bool
}

func (c *compiler) unsupported(what string) error {
	return unsupported("pattern", "%s in %q", what, c.src)
}

// op adds an instruction and returns where.
func (c *compiler) op(in instruction) int32 {
	c.p.code = append(c.p.code, in)
	return int32(len(c.p.code)) - 1
}

// here is where the next instruction will be.
func (c *compiler) here() int32 { return int32(len(c.p.code)) }

// setOf returns the set of n, made once for equal ones.
func (c *compiler) setOf(n *node) (*runeSet, error) {
	if s := c.made[n.set]; s != nil {
		return s, nil
	}
	hash := maphash.Comparable(c.seed, *n.set)
	if same := c.byHash[hash]; same != nil && *same == *n.set {
		c.made[n.set] = c.made[same]
		return c.made[n.set], nil
	}
	if len(c.p.sets) == maxPatternSets {
		return nil, c.unsupported("so many sets of characters")
	}
	s := newRuneSet(n.set)
	c.p.sets = append(c.p.sets, s)
	c.made[n.set], c.byHash[hash] = s, n.set
	return s, nil
}

func (c *compiler) emit(n *node) error {
	if len(c.p.code) > maxPatternCode {
		return c.unsupported("so long a pattern")
	}
	switch n.kind {
	case nodeSet:
		set, err := c.setOf(n)
		c.op(instruction{op: opSet, set: set})
		return err
	case nodeSequence:
		for _, child := range n.children {
			if err := c.emit(child); err != nil {
				return err
			}
		}
		return nil
	case nodeChoice:
		return c.emitChoice(n)
	case nodeRepeat:
		return c.emitRepeat(n)
	case nodeNotAhead:
		if body := n.children[0]; body.kind == nodeSet {
			set, err := c.setOf(body)
			c.op(instruction{op: opNotSet, set: set})
			return err
		}
		return c.emitGroup(opNotAhead, n)
	case nodeAhead:
		return c.emitGroup(opAhead, n)
	case nodeBehind, nodeNotBehind, nodePlace:
		in := instruction{op: opBehind, place: n.place}
		if n.kind == nodeNotBehind {
			in.op = opNotBehind
		} else if n.kind == nodePlace {
			in.op = opPlace
		}
		var err error
		if n.set != nil {
			in.set, err = c.setOf(n)
		}
		c.op(in)
		return err
	default:
		return c.emitGroup(opAtomic, n)
	}
}

// emitGroup emits a body that is matched by itself.
func (c *compiler) emitGroup(op opcode, n *node) error {
	start := c.op(instruction{op: op})
	err := c.emit(n.children[0])
	c.op(instruction{op: opMatch})
	c.p.code[start].next = c.here()
	return err
}

func (c *compiler) emitChoice(n *node) error {
	if len(n.children) > 64 {
		return c.unsupported("so many alternatives")
	}
	table := &choiceTable{}
	c.op(instruction{op: opChoice, choice: table})
	var jumps []int32
	for i, child := range n.children {
		first := c.firstBytes(child)
		for b, begins := range first.of {
			if begins || first.empty {
				table.byFirst[b] |= 1 << i
			}
		}
		if first.empty {
			table.byFirst[256] |= 1 << i
		}
		table.targets = append(table.targets, c.here())
		if err := c.emit(child); err != nil {
			return err
		}
		jumps = append(jumps, c.op(instruction{op: opJump}))
	}
	for _, j := range jumps {
		c.p.code[j].next = c.here()
	}
	return nil
}

func (c *compiler) emitRepeat(n *node) error {
	body := n.children[0]
	if body.kind == nodeSet {
		set, err := c.setOf(body)
		c.op(instruction{op: opLoop, set: set, min: int32(n.min), max: int32(n.max)})
		return err
	}
	if c.firstBytes(body).empty {
		return c.unsupported("a repetition of nothing")
	}
	for range n.min {
		if err := c.emit(body); err != nil {
			return err
		}
	}
	if n.max < 0 {
		start := c.op(instruction{op: opSplit})
		err := c.emit(body)
		c.op(instruction{op: opJump, next: start})
		c.p.code[start].next = c.here()
		return err
	}
	var splits []int32
	for range n.max - n.min {
		splits = append(splits, c.op(instruction{op: opSplit}))
		if err := c.emit(body); err != nil {
			return err
		}
	}
	for _, s := range splits {
		c.p.code[s].next = c.here()
	}
	return nil
}

// firstBytes returns the bytes that a match of n can begin with.
func (c *compiler) firstBytes(n *node) firstBytes {
	f, known := c.firsts[n]
	if !known {
		f = c.findFirst(n)
		c.firsts[n] = f
	}
	return f
}

func (c *compiler) findFirst(n *node) (f firstBytes) {
	add := func(child *node) (empty bool) {
		of := c.firstBytes(child)
		for b, begins := range of.of {
			f.of[b] = f.of[b] || begins
		}
		return of.empty
	}
	switch n.kind {
	case nodeSet:
		if s, err := c.setOf(n); err == nil { // else the pattern is refused
			f.of = s.firstBytes()
		}
	case nodeSequence:
		f.empty = !slices.ContainsFunc(n.children, func(child *node) bool { return !add(child) })
	case nodeChoice:
		for _, child := range n.children {
			f.empty = add(child) || f.empty
		}
	case nodeRepeat:
		f.empty = add(n.children[0]) || n.min == 0
	case nodeAtomic:
		f.empty = add(n.children[0])
	default:
		f.empty = true
	}
	return f
}

// machine runs patterns. It is used by one goroutine at a time.
type machine struct {
	stack []frame
	steps int // taken so far
	pause int // steps after which more is asked
	more  func() bool
}

// frame is a place to go back to.
type frame struct {
	pc   int32
	kind frameKind
	pos  int
	low  int    // of frameLoop: the loop must take the text up to here
	rest uint64 // of frameChoice: the alternatives not yet tried
}

type frameKind uint8

const (
	frameGo     frameKind = iota // go on at pc
	frameLoop                    // go on at pc with one character less
	frameChoice                  // try the next alternative of the choice at pc
)

// on reports whether the machine may go on.
func (m *machine) on() bool { return m.steps <= m.pause || m.more() }

// match returns the end of the match that begins at pos, -1 if there is none.
func (m *machine) match(p *pattern, s string, pos int) int { return m.run(p, s, 0, pos) }

// run runs the instructions from pc on, up to opMatch.
func (m *machine) run(p *pattern, s string, pc int32, pos int) int {
	base := len(m.stack)
	for {
		m.steps++
		in := &p.code[pc]
		ok := true
		switch in.op {
		case opMatch:
			m.stack = m.stack[:base]
			return pos
		case opSet:
			r, n := runeAt(s, pos)
			if ok = n > 0 && in.set.has(r); ok {
				pos += n
				pc++
			}
		case opNotSet:
			r, n := runeAt(s, pos)
			ok = n == 0 || !in.set.has(r)
			pc++
		case opBehind, opNotBehind:
			r, n := runeBefore(s, pos)
			ok = (n > 0 && in.set.has(r)) == (in.op == opBehind)
			pc++
		case opPlace:
			ok = in.at(s, pos)
			pc++
		case opLoop:
			low, end := m.loop(in, s, pos)
			if ok = end >= 0; ok {
				pc++
				pos = end
				if low < end && !in.last {
					m.stack = append(m.stack, frame{pc: pc, kind: frameLoop, pos: end, low: low})
				}
			}
		case opChoice:
			b := 256
			if pos < len(s) {
				b = int(s[pos])
			}
			pc, ok = m.choose(in.choice, pc, pos, in.choice.byFirst[b])
		case opSplit:
			m.stack = append(m.stack, frame{pc: in.next, pos: pos})
			pc++
		case opJump:
			pc = in.next
		case opAtomic, opAhead, opNotAhead:
			end := m.run(p, s, pc+1, pos)
			ok = (end >= 0) != (in.op == opNotAhead)
			if in.op == opAtomic {
				pos = end
			}
			pc = in.next
		}
		if ok && m.on() {
			continue
		}
		// Go back to the last place with another way.
		for ok = false; !ok; {
			m.steps++
			if len(m.stack) == base || !m.on() {
				m.stack = m.stack[:base]
				return -1
			}
			top := &m.stack[len(m.stack)-1]
			switch top.kind {
			case frameGo:
				pc, pos, ok = top.pc, top.pos, true
				m.stack = m.stack[:len(m.stack)-1]
			case frameLoop:
				_, n := utf8.DecodeLastRuneInString(s[:top.pos])
				top.pos -= n
				pc, pos, ok = top.pc, top.pos, true
				if top.pos <= top.low {
					m.stack = m.stack[:len(m.stack)-1]
				}
			case frameChoice:
				f := *top
				m.stack = m.stack[:len(m.stack)-1]
				pos = f.pos
				pc, ok = m.choose(p.code[f.pc].choice, f.pc, pos, f.rest)
			}
		}
	}
}

// choose takes the first of the alternatives in rest and keeps the others.
func (m *machine) choose(table *choiceTable, pc int32, pos int, rest uint64) (int32, bool) {
	for i, target := range table.targets {
		if rest>>i&1 == 0 {
			continue
		}
		if rest &^= 1 << i; rest != 0 {
			m.stack = append(m.stack, frame{pc: pc, kind: frameChoice, pos: pos, rest: rest})
		}
		return target, true
	}
	return pc, false
}

// loop takes as many characters as in allows. It returns where the fewest and where the
// most end, -1 for the latter if there are too few.
func (m *machine) loop(in *instruction, s string, pos int) (low, end int) {
	low = pos
	count, set := int32(0), in.set
	for count != in.max && pos < len(s) {
		n := 1
		if b := s[pos]; b < utf8.RuneSelf {
			if !set.ascii[b] {
				break
			}
		} else {
			var r rune
			if r, n = utf8.DecodeRuneInString(s[pos:]); !set.has(r) {
				break
			}
		}
		pos += n
		if count++; count == in.min {
			low = pos
		}
		if count%(1<<15) == 0 {
			if m.steps += 1 << 12; !m.on() {
				break
			}
		}
	}
	m.steps += int(count) % (1 << 15) / 8 // a character of a loop costs less than an instruction
	if count < in.min {
		return 0, -1
	}
	return low, pos
}

// runeAt returns the character at pos and its length, 0 at the end.
func runeAt(s string, pos int) (rune, int) {
	if pos >= len(s) {
		return 0, 0
	}
	if b := s[pos]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	return utf8.DecodeRuneInString(s[pos:])
}

// runeBefore returns the character before pos and its length, 0 at the beginning.
func runeBefore(s string, pos int) (rune, int) {
	if pos == 0 {
		return 0, 0
	}
	return utf8.DecodeLastRuneInString(s[:pos])
}

// at reports whether pos is a place that in asks for.
func (in *instruction) at(s string, pos int) bool {
	switch in.place {
	case placeLineStart:
		return pos == 0 || s[pos-1] == '\n' && pos < len(s)
	case placeLineEnd:
		return pos == len(s) || s[pos] == '\n'
	case placeStart:
		return pos == 0
	case placeEnd:
		return pos == len(s)
	case placeLastEnd:
		return pos == len(s) || pos == len(s)-1 && s[pos] == '\n'
	}
	before, n := runeBefore(s, pos)
	after, m := runeAt(s, pos)
	return ((n > 0 && in.set.has(before)) != (m > 0 && in.set.has(after))) == (in.place == placeWord)
}

// find returns the first match at or after pos. A match of no text does not count at last,
// where the match before it ended.
func (m *machine) find(p *pattern, s string, pos, last int) (start, end int, ok bool) {
	for pos < len(s) || pos == len(s) && p.empty {
		if p.empty || p.first[s[pos]] {
			if end := m.match(p, s, pos); end >= 0 && (end > pos || pos != last) {
				return pos, end, true
			}
			if !m.on() {
				return 0, 0, false
			}
		}
		pos++
		for pos < len(s) && !utf8.RuneStart(s[pos]) {
			pos++
		}
		if m.steps++; !m.on() {
			break
		}
	}
	return 0, 0, false
}
