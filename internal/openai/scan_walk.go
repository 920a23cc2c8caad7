package openai

// member iterates over an object: i is the offset after '{' (first) or after the
// previous value. It returns the span of the field's name with its quotes, and the offset
// of the value's first byte; at the object's end done is true and value is the offset
// after '}'. value is -1 after a fault.
func (s *scanner) member(i int, first bool) (name Span, value int, done bool) {
	i = s.space(i)
	if i >= len(s.b) {
		return Span{}, s.fail(faultEnd, len(s.b)), false
	}
	if s.b[i] == '}' {
		return Span{}, i + 1, true
	}
	if !first {
		if s.b[i] != ',' {
			return Span{}, s.fail(faultComma, i), false
		}
		i = s.space(i + 1)
	}
	if i >= len(s.b) {
		return Span{}, s.fail(faultEnd, len(s.b)), false
	}
	if s.b[i] != '"' {
		return Span{}, s.fail(faultKey, i), false
	}
	end := s.str(i)
	if end < 0 {
		return Span{}, -1, false
	}
	name = Span{i, end}
	i = s.space(end)
	if i < len(s.b) && s.b[i] != ':' {
		return name, s.fail(faultColon, i), false
	}
	i = s.space(i + 1)
	if i >= len(s.b) {
		return name, s.fail(faultEnd, len(s.b)), false
	}
	return name, i, false
}

// element iterates over an array in the same way.
func (s *scanner) element(i int, first bool) (value int, done bool) {
	i = s.space(i)
	if i >= len(s.b) {
		return s.fail(faultEnd, len(s.b)), false
	}
	if s.b[i] == ']' {
		return i + 1, true
	}
	if !first {
		if s.b[i] != ',' {
			return s.fail(faultComma, i), false
		}
		i = s.space(i + 1)
		if i >= len(s.b) {
			return s.fail(faultEnd, len(s.b)), false
		}
	}
	return i, false
}

// nameIs reports whether the field name at the span (with its quotes) is name, with or
// without escapes.
func (s *scanner) nameIs(at Span, name string) bool {
	raw := s.b[at.Start+1 : at.End-1]
	if string(raw) == name {
		return true
	}
	if len(raw) < len(name)+5 {
		return false // too short for \u escapes, the only other way to write our names
	}
	var buf [32]byte
	n, ok := unescapeName(buf[:], raw)
	return ok && string(n) == name
}

// unescapeName decodes a short field name that has escapes. A name without escapes,
// or one that cannot fit in dst, is not ok.
func unescapeName(dst, raw []byte) ([]byte, bool) {
	if len(raw) > 6*len(dst) {
		return nil, false
	}
	for i, c := range raw {
		if c == '\\' {
			out := appendUnescaped(dst[:0], raw[i:], raw[:i])
			return out, len(out) <= len(dst)
		}
	}
	return nil, false
}
