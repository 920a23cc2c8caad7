package openai

import (
	"bytes"
	"strconv"
)

const (
	// maxFanName bounds an id or a time that is put in place of another.
	maxFanName = 256
	// maxFanUsage bounds the usage that is kept of each copy, in bytes.
	maxFanUsage = 8 << 10
)

// StreamMerger makes the client's event stream from those of the copies. It is a step
// machine: the readers of the copies feed it, one piece at a time under one lock, and
// write what it returns.
//
//   - It returns whole events only, in the order in which they became complete; that
//     order and the bytes do not depend on where the pieces are cut. Lines end in '\n'.
//   - index is the client's; id and created are everywhere those of the first event, so
//     that the client sees one completion. All else stays as the engine wrote it.
//   - Events with token counts and no choice are held back. If the client asked for
//     them, one with the sums comes after all else; without one from any copy, none.
//   - One end marker comes, once all copies have sent theirs; what a copy sends after
//     its own is ignored. Comments pass, each as one line between events, which no
//     reader can take for an empty event.
//
// Memory is bounded by the unfinished event of each copy and one piece.
type StreamMerger struct {
	fan     Fan
	max     int
	sources []fanSource
	open    int // sources without an end marker
	fault   *FanError

	id, created []byte // raw JSON; nil before the first event that has one
	// usageEvent is the event of copy usageFrom with which the sums will be sent; its
	// usage is at usageAt.
	usageEvent []byte
	usageAt    Span
	usageFrom  int

	out  []byte
	scan scanner
}

type fanSource struct {
	frames eventFrames
	done   bool
	usage  []byte

	// known is the beginning of the last event, up to the end of its first index, and
	// rewritten its translation. Nearly all events of a stream have the same beginning,
	// which is then not parsed again.
	known, rewritten []byte
	index            Span // where the index is in known, and its value
	prompt           int
}

// maxFanKnown bounds the known beginning of an event.
const maxFanKnown = 1 << 10

// begins reports whether the data begins as known. The byte after it must end the
// number.
func (src *fanSource) begins(data []byte) bool {
	n := len(src.known)
	return n > 0 && len(data) > n && (data[n] == ',' || data[n] == '}') && bytes.Equal(data[:n], src.known)
}

// Stream merges streamed answers. maxEventBytes bounds an event; 0 is
// DefaultMaxEventBytes.
func (f Fan) Stream(maxEventBytes int) *StreamMerger {
	if maxEventBytes <= 0 {
		maxEventBytes = DefaultMaxEventBytes
	}
	m := &StreamMerger{fan: f, max: maxEventBytes, sources: make([]fanSource, f.Copies), open: f.Copies}
	for k := range m.sources {
		m.sources[k].frames.max = maxEventBytes
	}
	return m
}

// Feed takes the next piece of the copy's stream and calls out, at most once, with the
// bytes to pass on, which are whole events and valid until the next call. The error
// is a *FanError: an error event, or what can't be merged. What came before it in the
// piece was passed on; the whole must be ended then, and every later call gives the
// same error.
func (m *StreamMerger) Feed(k int, piece []byte, out func([]byte)) error {
	if m.fault != nil {
		return m.fault
	}
	src := &m.sources[k]
	m.out = m.out[:0]
	src.frames.begin()
	for more := true; more && m.fault == nil && !src.done; {
		var got frameKind
		switch piece, got = src.frames.next(piece); got {
		case frameNone:
			more = false
		case frameComment:
			m.out = append(append(m.out, src.frames.comment...), '\n')
		case frameEvent:
			m.fault = m.event(k, src)
		case frameTooLong:
			m.fault = fanLimit(k, "an event is longer than %d bytes", m.max)
		}
	}
	if len(m.out) > 0 {
		out(m.out)
	}
	if cap(m.out) > maxKeptBuffer {
		m.out = nil
	}
	if m.fault != nil {
		return m.fault
	}
	return nil
}

// End marks the end of the copy's stream. It returns an error if that is before its end
// marker: the client's stream must then be broken off too.
func (m *StreamMerger) End(k int) error {
	if m.fault == nil && !m.sources[k].done {
		m.fault = fanFault(k, "its stream ended without the end marker")
	}
	if m.fault != nil {
		return m.fault
	}
	return nil
}

// Done reports whether all copies are at their end and the client's end marker came out.
func (m *StreamMerger) Done() bool { return m.open == 0 && m.fault == nil }

// event passes on one whole event.
func (m *StreamMerger) event(k int, src *fanSource) *FanError {
	f, s := &src.frames, &m.scan
	data := f.data
	s.reset(data, DefaultMaxDepth)
	i := s.space(0)
	switch {
	case f.isError:
		return fanTold(k, data)
	case i >= len(data):
		return nil // it is no JSON
	case data[i] == '[' && bytes.Equal(bytes.TrimSpace(data), doneMarker):
		m.endOf(k)
		return nil
	case data[i] != '{':
		return fanFault(k, "an event is neither a JSON object nor the end marker")
	}
	mark := len(m.out)
	w := fanWriter{m: m, src: src, copy: k, data: data}
	m.out = append(append(m.out, f.head...), "data: "...)
	w.from = len(m.out)
	if fault := w.object(i); fault != nil {
		m.out = m.out[:mark]
		return fault
	}
	if f.joined {
		// A line feed can only be outside of strings in valid JSON, where it is white
		// space.
		for i, c := range m.out[w.from:] {
			if c == '\n' {
				m.out[w.from+i] = ' '
			}
		}
	}
	m.out = append(m.out, '\n', '\n')
	if w.usage.IsZero() || w.choices > 0 {
		return nil
	}
	fault := m.keepUsage(k, src, m.out[mark:], Span{w.usage.Start - mark, w.usage.End - mark})
	m.out = m.out[:mark]
	return fault
}

// keepUsage holds back an event that has nothing but token counts.
func (m *StreamMerger) keepUsage(k int, src *fanSource, event []byte, usage Span) *FanError {
	if !m.fan.Usage {
		return nil
	}
	if usage.Len() > maxFanUsage {
		return fanLimit(k, "its usage has %d bytes, more than %d", usage.Len(), maxFanUsage)
	}
	src.usage = append(src.usage[:0], event[usage.Start:usage.End]...)
	if m.usageEvent == nil || k <= m.usageFrom {
		m.usageEvent, m.usageAt, m.usageFrom = append(m.usageEvent[:0], event...), usage, k
	}
	return nil
}

// endOf takes a copy's end marker; after the last one come the sums and the client's.
func (m *StreamMerger) endOf(k int) {
	src := &m.sources[k]
	src.done = true
	src.frames.release()
	src.known, src.rewritten = nil, nil
	if m.open--; m.open > 0 {
		return
	}
	if m.usageEvent != nil {
		usages := make([][]byte, 0, len(m.sources))
		usages = append(usages, m.sources[m.usageFrom].usage)
		for k := range m.sources {
			if u := m.sources[k].usage; k != m.usageFrom && u != nil {
				usages = append(usages, u)
			}
		}
		m.out = append(m.out, m.usageEvent[:m.usageAt.Start]...)
		m.out = appendFanUsage(m.out, usages)
		m.out = append(m.out, m.usageEvent[m.usageAt.End:]...)
	}
	m.out = append(m.out, "data: [DONE]\n\n"...)
}

// fanWriter writes one event's JSON to m.out, with the necessary changes.
type fanWriter struct {
	m    *StreamMerger
	src  *fanSource
	copy int
	data []byte
	at   int // how far data has been written
	from int // where in m.out it begins

	choices int  // how many the event has
	usage   Span // of m.out
}

// object writes the object at i, which must be all of the data.
func (w *fanWriter) object(i int) *FanError {
	m, s := w.m, &w.m.scan
	i++
	first := true
	if w.src.begins(w.data) {
		m.out = append(m.out, w.src.rewritten...)
		w.at, w.choices = len(w.src.known), 1
		index, end := 0, 0
		if _, index, end = s.restOfChoice(w.at, w.src.index, w.src.prompt); end < 0 {
			return w.notJSON()
		} else if index < 0 {
			return w.noIndex()
		}
		var fault *FanError
		if i, fault = w.list(end, false); fault != nil {
			return fault
		}
		first = false
	}
	for ; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return w.notJSON()
		}
		if i = v; done {
			break
		}
		key := s.nameOf(name)
		if string(key) == "choices" && w.data[v] == '[' {
			var fault *FanError
			if i, fault = w.list(v+1, true); fault != nil {
				return fault
			}
			continue
		}
		if i = s.skip(v, 1); i < 0 {
			return w.notJSON()
		}
		c, raw := w.data[v], w.data[v:i]
		switch string(key) {
		case "id":
			if c == '"' {
				w.same(&m.id, v, i)
			}
		case "created":
			if kindOf(c) == KindNumber {
				w.same(&m.created, v, i)
			}
		case "usage":
			if c == '{' {
				w.upTo(v)
				start := len(m.out)
				w.upTo(i)
				w.usage = Span{start, len(m.out)}
			}
		case "error":
			if c == '{' || c == '"' {
				return fanTold(w.copy, w.data)
			}
		case "object", "type":
			if string(raw) == `"error"` {
				return fanTold(w.copy, w.data)
			}
		}
	}
	if s.space(i) < len(w.data) {
		return fanFault(w.copy, "an event has more data after its JSON object")
	}
	w.upTo(len(w.data))
	return nil
}

// list writes the choices from i on, which is after the '[' (first) or a choice.
func (w *fanWriter) list(i int, first bool) (end int, fault *FanError) {
	s := &w.m.scan
	for ; ; first = false {
		e, done := s.element(i, first)
		if e < 0 {
			return -1, w.notJSON()
		}
		if done {
			return e, nil
		}
		at, index, end := s.choice(e)
		if end < 0 {
			return -1, w.notJSON()
		}
		if index < 0 || index >= w.m.fan.Prompts {
			return -1, w.noIndex()
		}
		w.upTo(at.Start)
		w.m.out = strconv.AppendInt(w.m.out, int64(w.m.fan.Index(w.copy, index)), 10)
		w.at = at.End
		if w.choices == 0 {
			w.learn(at, index)
		}
		w.choices++
		i = end
	}
}

// learn keeps the event's beginning, up to its first index.
func (w *fanWriter) learn(at Span, prompt int) {
	src := w.src
	if at.End > maxFanKnown {
		return
	}
	src.known = append(src.known[:0], w.data[:at.End]...)
	src.rewritten = append(src.rewritten[:0], w.m.out[w.from:]...)
	src.index, src.prompt = at, prompt
}

func (w *fanWriter) noIndex() *FanError {
	return fanFault(w.copy, "a choice in an event has no index below %d", w.m.fan.Prompts)
}

// same writes first, the value of the first event that had one, in place of the value at v.
func (w *fanWriter) same(first *[]byte, v, i int) {
	raw := w.data[v:i]
	switch {
	case len(raw) > maxFanName || bytes.Equal(raw, *first):
	case *first == nil:
		*first = bytes.Clone(raw)
	default:
		w.upTo(v)
		w.m.out = append(w.m.out, *first...)
		w.at = i
	}
}

func (w *fanWriter) upTo(i int) {
	w.m.out = append(w.m.out, w.data[w.at:i]...)
	w.at = i
}

func (w *fanWriter) notJSON() *FanError {
	return fanFault(w.copy, "an event is not valid JSON: %s", w.m.scan.describe())
}
