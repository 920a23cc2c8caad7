package pattern

import (
	"unicode/utf8"
	"unsafe"
)

// Machine runs patterns. It is used by one goroutine at a time.
type Machine struct {
	// Steps are those taken so far. After Pause of them More is asked whether it may go on,
	// and sets another Pause; a search that may not finds nothing.
	Steps, Pause int
	More         func() bool

	stack []frame
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

// Shrink lets go of the memory that a search has used if it is more than a number of bytes.
func (m *Machine) Shrink(most int) {
	if cap(m.stack)*int(unsafe.Sizeof(frame{})) > most {
		m.stack = nil
	}
	m.stack = m.stack[:0]
}

// on reports whether the machine may go on.
func (m *Machine) on() bool { return m.Steps <= m.Pause || m.More() }

// match returns the end of the match that begins at pos, -1 if there is none.
func (m *Machine) match(p *Pattern, s string, pos int) int { return m.run(p, s, 0, pos) }

// run runs the instructions from pc on, up to opMatch.
func (m *Machine) run(p *Pattern, s string, pc int32, pos int) int {
	base := len(m.stack)
	for {
		m.Steps++
		in := &p.code[pc]
		ok := true
		switch in.op {
		case opMatch:
			m.stack = m.stack[:base]
			return pos
		case opSet:
			r, n := runeAt(s, pos)
			if ok = n > 0 && in.set.Has(r); ok {
				pos += n
				pc++
			}
		case opNotSet:
			r, n := runeAt(s, pos)
			ok = n == 0 || !in.set.Has(r)
			pc++
		case opBehind, opNotBehind:
			r, n := runeBefore(s, pos)
			ok = (n > 0 && in.set.Has(r)) == (in.op == opBehind)
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
			m.Steps++
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
func (m *Machine) choose(table *choiceTable, pc int32, pos int, rest uint64) (int32, bool) {
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
func (m *Machine) loop(in *instruction, s string, pos int) (low, end int) {
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
			if r, n = utf8.DecodeRuneInString(s[pos:]); !set.Has(r) {
				break
			}
		}
		pos += n
		if count++; count == in.min {
			low = pos
		}
		if count%(1<<15) == 0 {
			if m.Steps += 1 << 12; !m.on() {
				break
			}
		}
	}
	m.Steps += int(count) % (1 << 15) / 8 // a character of a loop costs less than an instruction
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
	return ((n > 0 && in.set.Has(before)) != (m > 0 && in.set.Has(after))) == (in.place == placeWord)
}

// Find returns the first match at or after pos. A match of no text does not count at last,
// where the match before it ended.
func (m *Machine) Find(p *Pattern, s string, pos, last int) (start, end int, ok bool) {
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
		if m.Steps++; !m.on() {
			break
		}
	}
	return 0, 0, false
}
