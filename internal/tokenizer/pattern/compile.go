package pattern

import (
	"hash/maphash"
	"slices"
)

// Pattern is a regular expression, compiled for a machine that goes back: it finds the
// leftmost match, and of the alternatives the first that leads to one, as Oniguruma does.
// Go's own expressions do not look ahead, and the patterns of all current models do.
//
// Going back can take a time that is exponential in the length of the text, where the
// pattern asks for it: there is a limit of steps (see encoder.more).
type Pattern struct {
	code  []instruction
	sets  []*Set
	first [256]bool // bytes that a match can begin with
	empty bool      // a match may be of no text
}

type instruction struct {
	op       opcode
	set      *Set
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

// Compile compiles a regular expression. What is not known of the dialect is an
// *UnsupportedError.
func Compile(src string) (*Pattern, error) {
	n, err := parse(src)
	if err != nil {
		return nil, err
	}
	return compileNode(n, src)
}

// OfCharacters finds single characters.
func OfCharacters(x Ranges) *Pattern {
	b := &Bits{}
	b.AddRanges(x)
	return mustCompile(&node{kind: nodeSet, set: b})
}

// OfWords finds runs of word characters, and runs of what is neither that nor white space.
func OfWords() *Pattern {
	word, other := &Bits{}, &Bits{}
	word.AddRanges(Word)
	other.add(word)
	other.AddRanges(Space)
	other.invert()
	run := func(b *Bits) *node {
		return &node{kind: nodeRepeat, min: 1, max: -1, children: []*node{{kind: nodeSet, set: b}}}
	}
	return mustCompile(&node{kind: nodeChoice, children: []*node{run(word), run(other)}})
}

// mustCompile compiles a pattern of our own.
func mustCompile(n *node) *Pattern {
	p, err := compileNode(n, "")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}

func compileNode(n *node, src string) (*Pattern, error) {
	c := &compiler{p: &Pattern{}, src: src, made: map[*Bits]*Set{}, byHash: map[uint64]*Bits{}, seed: maphash.MakeSeed(), firsts: map[*node]firstBytes{}}
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
func (p *Pattern) accepts(pc int32) bool {
	for p.code[pc].op == opJump {
		pc = p.code[pc].next
	}
	return p.code[pc].op == opMatch
}

// Bytes is the memory of the pattern.
func (p *Pattern) Bytes() int64 {
	n := int64(len(p.code)) * 48
	for _, s := range p.sets {
		n += s.Bytes()
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
	p    *Pattern
	src  string
	made map[*Bits]*Set
	// byHash has one of equal sets; firsts what is known of parts, which repetitions ask for
	// again.
	byHash map[uint64]*Bits
	seed   maphash.Seed
	firsts map[*node]firstBytes
}

// firstBytes are the bytes that a match of a part can begin with, and whether it may be empty.
type firstBytes struct {
	of    [256]bool
	empty bool
}

func (c *compiler) unsupported(what string) error {
	return unsupported("%s in %q", what, c.src)
}

// op adds an instruction and returns where.
func (c *compiler) op(in instruction) int32 {
	c.p.code = append(c.p.code, in)
	return int32(len(c.p.code)) - 1
}

// here is where the next instruction will be.
func (c *compiler) here() int32 { return int32(len(c.p.code)) }

// setOf returns the set of n, made once for equal ones.
func (c *compiler) setOf(n *node) (*Set, error) {
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
	s := NewSet(n.set)
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
