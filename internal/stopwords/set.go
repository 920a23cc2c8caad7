package stopwords

import (
	"cmp"
	"errors"
	"slices"
)

// node is a state of the automaton: a beginning of a stop string. Node 0 is the empty one.
// The stop strings are added in the order of their bytes. So the first child of a node, if it
// has any, is the one behind it, and children follow each other by their bytes.
type node struct {
	sibling uint32 // the parent's next child, by a greater byte; 0: none
	fail    uint32 // the longest proper end of this beginning that is a beginning too
	depth   uint16 // bytes of the beginning
	stop    int16  // the stop string that ends here, first in the list; -1: none
	word    uint16 // a stop string that begins with this beginning
	char    byte   // the last byte of the beginning
	parent  bool   // it has children
}

// ErrTooLarge is what Compile returns for more than 32,767 stop strings, or one of more than
// 65,535 bytes.
var ErrTooLarge = errors.New("too many stop strings, or one too long")

const (
	maxStops  = 1<<15 - 1
	maxLength = 1<<16 - 1
)

// Set is the stop strings of a request. The zero value has none. It is immutable between
// calls of Compile, and then safe for concurrent use.
type Set struct {
	stops   []string
	nodes   []node
	order   []uint32  // of Compile: stop strings by their bytes, then nodes by their depth
	first   [4]uint64 // the bytes with which a stop string begins
	only    int       // that byte when there is one only; -1: none or several
	include bool
}

// Compile makes s the set of the stop strings, in the memory that s has already. Stop
// strings that are empty never match. With include, a text ends behind the stop string
// instead of before it. The error is ErrTooLarge, and s is empty then.
func (s *Set) Compile(stops []string, include bool) error {
	s.stops, s.nodes, s.order = s.stops[:0], append(s.nodes[:0], node{stop: -1}), s.order[:0]
	s.first, s.only, s.include = [4]uint64{}, -1, include
	if len(stops) > maxStops || slices.ContainsFunc(stops, func(stop string) bool { return len(stop) > maxLength }) {
		return ErrTooLarge
	}
	s.stops = append(s.stops, stops...)
	for i := range s.stops {
		s.order = append(s.order, uint32(i))
	}
	slices.SortFunc(s.order, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(s.stops[a], s.stops[b]), cmp.Compare(a, b))
	})
	for _, i := range s.order {
		s.add(int(i))
	}
	s.link()
	if s.nodes[0].parent && s.nodes[1].sibling == 0 {
		s.only = int(s.nodes[1].char)
	}
	return nil
}

// add adds the nodes of stop string i.
func (s *Set) add(i int) {
	stop := s.stops[i]
	if stop == "" {
		return
	}
	s.first[stop[0]>>6] |= 1 << (stop[0] & 63)
	at := uint32(0)
	for depth := range len(stop) {
		c := stop[depth]
		// In this order the last child is the only one that the way can go through.
		last := s.firstChild(at)
		for last != 0 && s.nodes[last].sibling != 0 {
			last = s.nodes[last].sibling
		}
		if last != 0 && s.nodes[last].char == c {
			at = last
			continue
		}
		next := uint32(len(s.nodes))
		s.nodes = append(s.nodes, node{depth: uint16(depth + 1), stop: -1, word: uint16(i), char: c})
		if last != 0 {
			s.nodes[last].sibling = next
		}
		s.nodes[at].parent = true
		at = next
	}
	if s.nodes[at].stop < 0 {
		s.nodes[at].stop = int16(i)
	}
}

// link sets fail of all nodes, and stop of those at whose end a shorter stop string ends:
// those of small depth first, as each needs what shorter ones have.
func (s *Set) link() {
	s.order = append(s.order[:0], 0)
	for i := 0; i < len(s.order); i++ {
		at := s.order[i]
		for c := s.firstChild(at); c != 0; c = s.nodes[c].sibling {
			n := &s.nodes[c]
			if at != 0 {
				n.fail = s.step(s.nodes[at].fail, n.char)
			}
			if other := s.nodes[n.fail].stop; other >= 0 && (n.stop < 0 || other < n.stop) {
				n.stop = other
			}
			s.order = append(s.order, c)
		}
	}
}

func (s *Set) firstChild(at uint32) uint32 {
	if s.nodes[at].parent {
		return at + 1
	}
	return 0
}

// child returns the child of a node by the byte c; 0: none.
func (s *Set) child(at uint32, c byte) uint32 {
	for n := s.firstChild(at); n != 0; n = s.nodes[n].sibling {
		if s.nodes[n].char >= c {
			if s.nodes[n].char == c {
				return n
			}
			break
		}
	}
	return 0
}

// step returns the state behind state at when c follows.
func (s *Set) step(at uint32, c byte) uint32 {
	for {
		if next := s.child(at, c); next != 0 || at == 0 {
			return next
		}
		at = s.nodes[at].fail
	}
}

// begins reports whether a stop string begins with c.
func (s *Set) begins(c byte) bool { return s.first[c>>6]&(1<<(c&63)) != 0 }

// Len returns the number of stop strings, empty ones too.
func (s *Set) Len() int { return len(s.stops) }

// MemoryBytes returns what the set takes beside the stop strings' own text: about 20 for each
// byte of it.
func (s *Set) MemoryBytes() int64 {
	return int64(cap(s.nodes))*16 + int64(cap(s.order))*4 + int64(cap(s.stops))*16
}

// Clear forgets the stop strings, and memory for more than 4,096 bytes of them.
func (s *Set) Clear() {
	clear(s.stops)
	s.stops, s.nodes, s.order = s.stops[:0], s.nodes[:0], s.order[:0]
	if cap(s.nodes) > 4096 {
		s.nodes, s.order = nil, nil
	}
	s.first, s.only, s.include = [4]uint64{}, -1, false
}
