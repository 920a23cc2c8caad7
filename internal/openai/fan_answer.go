package openai

import (
	"bytes"
	"strconv"
)

// fanChoice is one choice of one copy: where it is, and where its index is.
type fanChoice struct {
	answer []byte
	all    Span
	index  Span
}

// Merge makes the client's answer to a call without stream from the whole answers of
// the copies, in their order: the first answer with the choices of all in the order of
// their index, and the sum of the usages. It is returned as segments that refer to the
// answers, with its length. The error is a *FanError.
//
// Each answer has to have one choice for each prompt; the bytes of a choice stay as
// they are but for the digits of its index. Answers without usage are merged as well.
func (f Fan) Merge(answers [][]byte) (segments [][]byte, size int, err error) {
	if len(answers) != f.Copies {
		return nil, 0, fanFault(len(answers), "there are %d answers of %d copies", len(answers), f.Copies)
	}
	slots := make([]fanChoice, f.Prompts*f.Copies)
	usages := make([][]byte, 0, f.Copies)
	var list, usage Span
	var s scanner
	for k, answer := range answers {
		s.reset(answer, DefaultMaxDepth)
		l, u, fault := f.readAnswer(&s, k, slots)
		if fault != nil {
			return nil, 0, fault
		}
		if k == 0 {
			list, usage = l, u
		}
		if !u.IsZero() {
			usages = append(usages, answer[u.Start:u.End])
		}
	}
	out := func(b []byte) {
		if len(b) > 0 {
			segments = append(segments, b)
			size += len(b)
		}
	}
	frame, at := answers[0], 0
	segments = make([][]byte, 0, 4*len(slots)+4)
	summed := func() {
		if !usage.IsZero() {
			out(frame[at:usage.Start])
			out(appendFanUsage(nil, usages))
			at = usage.End
		}
	}
	if usage.Start < list.Start {
		summed()
	}
	out(frame[at : list.Start+1])
	at = list.End - 1
	digits := make([]byte, 0, 4*len(slots))
	for i, c := range slots {
		if i > 0 {
			out(comma)
		}
		n := len(digits)
		digits = strconv.AppendInt(digits, int64(i), 10)
		out(c.answer[c.all.Start:c.index.Start])
		out(digits[n:])
		out(c.answer[c.index.End:c.all.End])
	}
	if usage.Start > list.Start {
		summed()
	}
	out(frame[at:])
	return segments, size, nil
}

var comma = []byte{','}

// readAnswer checks the answer of copy k, puts its choices in their slots, and returns
// where the list and the usage object are.
func (f Fan) readAnswer(s *scanner, k int, slots []fanChoice) (list, usage Span, fault *FanError) {
	b := s.b
	i := s.space(0)
	if i >= len(b) || b[i] != '{' {
		return list, usage, fanFault(k, "it is not a JSON object")
	}
	seen := false
	i++
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return list, usage, fanFault(k, "it is not valid JSON: %s", s.describe())
		}
		if i = v; done {
			break
		}
		choices := s.nameIs(name, "choices")
		if choices && seen {
			return list, usage, fanFault(k, "it has choices twice")
		}
		seen = seen || choices
		if choices && b[v] == '[' {
			if i, fault = f.readChoices(s, v, k, slots); fault != nil {
				return list, usage, fault
			}
			list = Span{v, i}
			continue
		}
		if i = s.skip(v, 1); i < 0 {
			return list, usage, fanFault(k, "it is not valid JSON: %s", s.describe())
		}
		if b[v] == '{' && s.nameIs(name, "usage") {
			usage = Span{v, i}
		}
	}
	if i = s.space(i); i < len(b) {
		return list, usage, fanFault(k, "it has more data after the JSON object, at byte %d", i)
	}
	if list.IsZero() {
		if _, _, isError := ReadErrorObject(b); isError {
			return list, usage, fanTold(k, b)
		}
		return list, usage, fanFault(k, "it has no choices")
	}
	return list, usage, nil
}

func (f Fan) readChoices(s *scanner, v, k int, slots []fanChoice) (end int, fault *FanError) {
	i, count := v+1, 0
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 {
			return -1, fanFault(k, "it is not valid JSON: %s", s.describe())
		}
		if done {
			if count != f.Prompts {
				return -1, fanFault(k, "it has %d choices instead of %d", count, f.Prompts)
			}
			return e, nil
		}
		at, index, end := s.choice(e)
		if end < 0 {
			return -1, fanFault(k, "it is not valid JSON: %s", s.describe())
		}
		if index < 0 || index >= f.Prompts {
			return -1, fanFault(k, "a choice has no index below %d", f.Prompts)
		}
		slot := &slots[f.Index(k, index)]
		if slot.answer != nil {
			return -1, fanFault(k, "two choices have the index %d", index)
		}
		*slot = fanChoice{s.b, Span{e, end}, at}
		i = end
		count++
	}
}

// choice passes an element of choices at i and finds its index; -1 if it has no integer
// index.
func (s *scanner) choice(i int) (at Span, index, end int) {
	if s.b[i] != '{' {
		return Span{}, -1, s.skip(i, choiceDepth-1)
	}
	return s.restOfChoice(i+1, Span{}, -1)
}

const choiceDepth = 3 // the answer, its choices, the choice

// restOfChoice passes a choice from its first member at i or, if its index has been
// found, from after that one.
func (s *scanner) restOfChoice(i int, at Span, index int) (_ Span, _, end int) {
	for first := at.IsZero(); ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return at, index, v
		}
		if i = s.skip(v, choiceDepth); i < 0 {
			return at, -1, -1
		}
		if raw := s.nameOf(name); string(raw) != "index" {
			continue
		}
		if !at.IsZero() {
			index = -1 // a duplicate: readers could differ
			continue
		}
		at = Span{v, i}
		if n, ok := plainCount(s.b[v:i]); ok {
			index = int(min(n, 1<<30))
		}
	}
}

// nameOf is the field name at the span (with its quotes), decoded if it has escapes and
// is short; the bytes may be the scanner's own, until the next call.
func (s *scanner) nameOf(at Span) []byte {
	raw := s.b[at.Start+1 : at.End-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	if name, ok := unescapeName(s.nameBuf[:], raw); ok {
		return name
	}
	return raw
}
