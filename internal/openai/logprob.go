package openai

import (
	"bytes"
	"errors"
	"fmt"
)

// maxLogprobItems bounds the answers of one batch.
const maxLogprobItems = 1 << 16

// LogprobMerger joins the two halves of a native answer with return_logprob: in a
// prefill/decode pair meta_info.input_token_logprobs of the client's answer is the
// prefill's list followed by the decode's. Everything else is the decode's, byte
// for byte. OpenAI-shaped bodies have no meta_info and need no merge.
//
// A merger is read-only once made and keeps a reference to the prefill's body.
type LogprobMerger struct {
	// lists has for each answer of the batch the elements of the prefill's list,
	// without brackets; present distinguishes an empty list from none.
	lists   [][]byte
	present []bool
}

// NewLogprobMerger reads the prefill's whole answer: JSON (an object, or a list of
// them for a batch), or the event stream that an engine answers when the request
// said stream, with one event for each item.
func NewLogprobMerger(prefill []byte) (*LogprobMerger, error) {
	m := new(LogprobMerger)
	s := new(scanner)
	trimmed := bytes.TrimLeft(prefill, " \t\r\n")
	if len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		locs, err := locateAll(s, prefill)
		if err != nil {
			return nil, fmt.Errorf("cannot read the prefill's answer of %d bytes: %w", len(prefill), err)
		}
		for i, loc := range locs {
			m.set(i, prefill, loc)
		}
		return m, nil
	}
	err := eachEvent(prefill, func(data []byte) error {
		if bytes.Equal(bytes.TrimSpace(data), doneMarker) {
			return nil
		}
		s.reset(data, DefaultMaxDepth)
		i := s.space(0)
		if i >= len(data) || data[i] != '{' {
			return errors.New("an event is not a JSON object")
		}
		loc, end := s.locate(i + 1)
		if end < 0 {
			return errors.New("an event is not valid JSON: " + s.describe())
		}
		if loc.index >= maxLogprobItems {
			return fmt.Errorf("an event has index %d, more than %d", loc.index, maxLogprobItems-1)
		}
		m.set(loc.index, data, loc)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the prefill's answer of %d bytes: %w", len(prefill), err)
	}
	if len(m.lists) == 0 {
		return nil, fmt.Errorf("cannot read the prefill's answer of %d bytes: it has no answer in it", len(prefill))
	}
	return m, nil
}

func (m *LogprobMerger) set(i int, b []byte, loc logprobPlace) {
	for len(m.lists) <= i {
		m.lists = append(m.lists, nil)
		m.present = append(m.present, false)
	}
	if loc.kind != KindArray {
		return
	}
	m.lists[i] = bytes.TrimSpace(b[loc.list.Start+1 : loc.list.End-1])
	m.present[i] = true
}

// logprobPlace is where one answer's list is.
type logprobPlace struct {
	index     int // the item's index, 0 if it has none
	kind      Kind
	list      Span // the value of input_token_logprobs
	meta      int  // the offset after meta_info's '{', 0 if there is none
	metaEmpty bool
}

// locate walks one answer; i is after its '{'.
func (s *scanner) locate(i int) (loc logprobPlace, end int) {
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return loc, v
		}
		if s.b[v] == '{' && s.nameIs(name, "meta_info") {
			loc.kind, loc.list, loc.meta, loc.metaEmpty = KindAbsent, Span{}, v+1, true
			i = s.locateInMeta(v+1, &loc)
		} else if i = s.skip(v, 2); i > 0 && s.nameIs(name, "index") {
			if n, ok := parseInt(s.b[v:i]); ok && n >= 0 {
				loc.index = int(min(n, maxLogprobItems))
			}
		}
		if i < 0 {
			return loc, -1
		}
	}
}

func (s *scanner) locateInMeta(i int, loc *logprobPlace) int {
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		loc.metaEmpty = false
		if i = s.skip(v, 3); i < 0 {
			return -1
		}
		if s.nameIs(name, "input_token_logprobs") {
			loc.kind, loc.list = kindOf(s.b[v]), Span{v, i}
		}
	}
}

// locateAll finds the lists of a whole answer, and checks that it is JSON.
func locateAll(s *scanner, b []byte) ([]logprobPlace, error) {
	s.reset(b, DefaultMaxDepth)
	var locs []logprobPlace
	i := s.space(0)
	switch {
	case i >= len(b):
		return nil, errors.New("it is empty")
	case b[i] == '{':
		loc, end := s.locate(i + 1)
		i = end
		locs = append(locs, loc)
	case b[i] == '[':
		i++
		for first := true; ; first = false {
			e, done := s.element(i, first)
			if e < 0 || done {
				i = e
				break
			}
			var loc logprobPlace
			if b[e] == '{' {
				loc, i = s.locate(e + 1)
			} else {
				i = s.skip(e, 1)
			}
			if i < 0 {
				break
			}
			if len(locs) == maxLogprobItems {
				return nil, fmt.Errorf("it has more than %d answers", maxLogprobItems)
			}
			locs = append(locs, loc)
		}
	default:
		return nil, errors.New("it is not a JSON object or list")
	}
	if i < 0 {
		return nil, errors.New("it is not valid JSON: " + s.describe())
	}
	if i = s.space(i); i < len(b) {
		return nil, fmt.Errorf("it has more data after the JSON, at byte %d", i)
	}
	return locs, nil
}

const logprobKey = `"input_token_logprobs":`

// emit passes b from at up to the end of the item's merged list to out, and returns the
// offset after it.
func (m *LogprobMerger) emit(b []byte, at, item int, loc logprobPlace, out func([]byte)) int {
	if item >= len(m.lists) || !m.present[item] || loc.meta == 0 {
		return at
	}
	list := m.lists[item]
	switch loc.kind {
	case KindArray:
		if len(list) == 0 {
			return at
		}
		open := loc.list.Start + 1
		out(b[at:open])
		out(list)
		if len(bytes.TrimSpace(b[open:loc.list.End-1])) > 0 {
			out([]byte(","))
		}
		return open
	case KindAbsent:
		out(b[at:loc.meta])
		out([]byte(logprobKey + "["))
		out(list)
		if loc.metaEmpty {
			out([]byte("]"))
		} else {
			out([]byte("],"))
		}
		return loc.meta
	default: // null
		out(b[at:loc.list.Start])
		out([]byte("["))
		out(list)
		out([]byte("]"))
		return loc.list.End
	}
}

// Merge is the client's answer to a call without stream, as segments that refer to
// decode and to the prefill's body, and its length. An answer that is not JSON is an
// error; an error object passes unchanged.
func (m *LogprobMerger) Merge(decode []byte) (segments [][]byte, size int, err error) {
	locs, err := locateAll(new(scanner), decode)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot merge logprobs into the decode's answer of %d bytes: %w", len(decode), err)
	}
	out := func(b []byte) {
		if len(b) > 0 {
			segments = append(segments, b)
			size += len(b)
		}
	}
	at := 0
	for i, loc := range locs {
		at = m.emit(decode, at, i, loc, out)
	}
	out(decode[at:])
	return segments, size, nil
}

// Stream merges into the events of a streamed answer.
func (m *LogprobMerger) Stream(maxEventBytes int) *LogprobStream {
	return &LogprobStream{m: m, max: maxEventBytes}
}

// LogprobStream takes the decode's stream in pieces and passes on the client's, which
// does not depend on where the pieces are cut. Lines other than data with a JSON object
// pass unchanged.
type LogprobStream struct {
	m    *LogprobMerger
	max  int
	line []byte
	scan scanner
}

// Feed takes the next piece and calls out with the bytes to pass on, each only valid
// during the call. An event longer than the bound is an error, after which the
// stream must be ended.
func (l *LogprobStream) Feed(piece []byte, out func([]byte)) error {
	for len(piece) > 0 {
		end := lineEnd(piece)
		if end < 0 {
			return l.keep(piece)
		}
		// The '\n' of a "\r\n" passes as an empty line of its own.
		next := end + 1
		if len(l.line) > 0 {
			if err := l.keep(piece[:end]); err != nil {
				return err
			}
			l.pass(l.line, out)
			out(piece[end:next])
			l.line = l.line[:0]
		} else {
			l.pass(piece[:end], out)
			out(piece[end:next])
		}
		piece = piece[next:]
	}
	return nil
}

func (l *LogprobStream) keep(b []byte) error {
	if l.max > 0 && len(l.line)+len(b) > l.max {
		return fmt.Errorf("an event into which logprobs are to be merged is longer than %d bytes: %w", l.max, ErrLimit)
	}
	l.line = append(l.line, b...)
	return nil
}

// Close passes on the unfinished line of a stream that has ended.
func (l *LogprobStream) Close(out func([]byte)) {
	if len(l.line) > 0 {
		out(l.line)
		l.line = nil
	}
}

func (l *LogprobStream) pass(line []byte, out func([]byte)) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		passOn(line, out)
		return
	}
	s := &l.scan
	s.reset(data, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(data) || data[i] != '{' {
		passOn(line, out)
		return
	}
	loc, end := s.locate(i + 1)
	if end < 0 {
		passOn(line, out)
		return
	}
	out(line[:len(line)-len(data)])
	at := l.m.emit(data, 0, loc.index, loc, out)
	passOn(data[at:], out)
}

func passOn(b []byte, out func([]byte)) {
	if len(b) > 0 {
		out(b)
	}
}
