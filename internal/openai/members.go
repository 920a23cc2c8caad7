package openai

import "iter"

// EachMember yields the fields of the body in their order: the name as it is meant, without
// escapes and valid until the next one, and the value as the client wrote it. A name may come
// twice, for which engines use the last.
func (p *Peeked) EachMember() iter.Seq2[[]byte, []byte] {
	return members(p.Body, func(i int, name []byte) int {
		// Values of known fields need not be walked again: they are most of a long body.
		if f := fieldByName(name); f != FieldNone && p.seen.Has(f) && p.fields[f].value.Start == i {
			return p.fields[f].value.End
		}
		return -1
	})
}

// ObjectMembers yields the members of a JSON object that is known to be valid, as
// [Peeked.EachMember] does. Any other value has none.
func ObjectMembers(json []byte) iter.Seq2[[]byte, []byte] {
	return members(json, func(int, []byte) int { return -1 })
}

// members yields the members of the object b. end tells where the value at an offset ends, if
// that is known, else -1.
func members(b []byte, end func(value int, name []byte) int) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		var s scanner
		s.reset(b, maxScanDepth)
		i := s.space(0)
		if i >= len(b) || b[i] != '{' {
			return
		}
		i++
		var plain []byte
		for first := true; ; first = false {
			at, v, done := s.member(i, first)
			if v < 0 || done {
				return
			}
			name := b[at.Start+1 : at.End-1]
			for _, c := range name {
				if c == '\\' {
					plain = AppendUnquoted(plain[:0], b[at.Start:at.End])
					name = plain
					break
				}
			}
			if i = end(v, name); i < 0 {
				if i = s.skip(v, 1); i < 0 {
					return
				}
			}
			if !yield(name, b[v:i]) {
				return
			}
		}
	}
}

// Elements yields the elements of a JSON array that is known to be valid. Any other value has
// none.
func Elements(json []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		var s scanner
		s.reset(json, maxScanDepth)
		i := s.space(0)
		if i >= len(json) || json[i] != '[' {
			return
		}
		i++
		for first := true; ; first = false {
			v, done := s.element(i, first)
			if v < 0 || done {
				return
			}
			if i = s.skip(v, 1); i < 0 {
				return
			}
			if !yield(json[v:i]) {
				return
			}
		}
	}
}

// KindOf is the type of a JSON value, given without space before it.
func KindOf(json []byte) Kind {
	if len(json) == 0 {
		return KindAbsent
	}
	return kindOf(json[0])
}
