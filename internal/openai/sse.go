package openai

import (
	"bytes"
	"slices"
)

// DefaultMaxEventBytes bounds what an EventScanner keeps of an event that comes in
// several pieces.
const DefaultMaxEventBytes = 1 << 20

// EventScanner follows a text/event-stream that is relayed, however it is cut into
// pieces. It copies nothing unless an event is cut across pieces, and keeps at most
// MaxEventBytes of one; of a longer event it reads what an AnswerScanner does: how the
// answer ended, and its token counts.
//
// The zero value is ready. It is not safe for concurrent use.
type EventScanner struct {
	// MaxEventBytes is the bound of what is kept; 0 is DefaultMaxEventBytes.
	MaxEventBytes int
	// SkipUsage skips the search for tokens and their counts.
	SkipUsage bool
	// OnData, if set, is called with the data of each event that reports no error.
	OnData func(data []byte)

	// Events counts complete events with data, the end marker and errors included;
	// DataEvents counts them without these two; Comments counts the comment lines.
	Events, DataEvents, Comments int
	// Openings counts the data events with which a stream of the Messages or the
	// Responses API begins, before there is any output: by their names.
	Openings int
	// TokenEvents counts data events with output of the model: exactly up to the first,
	// approximately after it.
	TokenEvents int
	// Done: the end marker "data: [DONE]" was seen as the whole data of an event.
	Done bool
	// Finished: the end marker, or an event that ends a stream of the Messages or
	// the Responses API.
	Finished bool
	// Errors counts events that report an error: an event named error, or data with a
	// top-level error.
	Errors int
	// ErrorEnd is where the first of them ends in the piece that was fed when it ended.
	ErrorEnd int
	// LastError is a copy of the first 2 KiB of the last error's data.
	LastError []byte
	// Aborted: an event says that the engine aborted the request, see ReadAbort; Abort is
	// its error. The scanner then stops, as if the event had not come: AbortAt is where
	// the event begins in the piece, 0 if it began before.
	Aborted bool
	Abort   Abort
	AbortAt int
	// TooLong counts events that were too long to be kept.
	TooLong int
	// Usage is the last token counts seen.
	Usage    Usage
	HasUsage bool
	// UsageEvents counts the events that reported token counts.
	UsageEvents int

	started bool
	failed  bool // ErrorEnd is known
	// lastCR: the last byte was '\r': a '\n' that follows belongs to it.
	lastCR bool
	// midLine: bytes of an unfinished line have been seen. line holds them, unless
	// lineLost.
	midLine  bool
	lineLost bool
	line     []byte
	// inEvent: the event has at least one field line. data is its data so far
	// (hasData), in the piece or, if dataOwned, in buf.
	inEvent   bool
	hasData   bool
	dataOwned bool
	dataLost  bool
	data      []byte
	buf       []byte
	name      eventName
	long      *AnswerScanner // reads data that is too long to be kept
	// began is where the event begins in the piece, 0 if before.
	began int
}

type eventName uint8

const (
	nameNone eventName = iota
	nameOther
	nameDelta // a piece of output of the Messages or Responses API
	nameError
	nameEnd
	nameFailed
	nameOpening
)

// Reset makes the scanner ready for another stream; its buffers and bounds stay.
func (e *EventScanner) Reset() {
	*e = EventScanner{MaxEventBytes: e.MaxEventBytes, SkipUsage: e.SkipUsage,
		line: e.line[:0], buf: e.buf[:0], LastError: e.LastError[:0]}
}

func (e *EventScanner) maxBytes() int {
	if e.MaxEventBytes > 0 {
		return e.MaxEventBytes
	}
	return DefaultMaxEventBytes
}

// AtBoundary reports whether the stream so far ends between events: a comment or another
// event may be put in here.
func (e *EventScanner) AtBoundary() bool { return !e.midLine && !e.inEvent }

// Feed takes the next piece of the stream. The piece is not kept.
func (e *EventScanner) Feed(piece []byte) {
	if len(piece) == 0 || e.Aborted {
		return
	}
	midLine, inEvent, lastCR, all := e.midLine, e.inEvent, e.lastCR, len(piece)
	e.began = 0
	if e.lastCR {
		e.lastCR = false
		if piece[0] == '\n' {
			piece = piece[1:]
		}
	}
	for len(piece) > 0 {
		end := lineEnd(piece)
		if end < 0 {
			e.keepLine(piece)
			break
		}
		line := piece[:end]
		next := end + 1
		if piece[end] == '\r' {
			if next == len(piece) {
				e.lastCR = true
			} else if piece[next] == '\n' {
				next++
			}
		}
		if !e.inEvent && !e.midLine {
			e.began = all - len(piece)
		}
		if e.midLine {
			e.keepLine(line)
			whole, lost := e.line, e.lineLost
			e.line, e.midLine, e.lineLost = e.line[:0], false, false
			e.takeLine(whole, lost, true)
		} else {
			e.takeLine(line, false, false)
		}
		if e.Aborted {
			if e.AbortAt = e.began; e.began == 0 {
				e.midLine, e.inEvent, e.lastCR = midLine, inEvent, lastCR
			} else {
				e.lastCR = false
			}
			return
		}
		if e.Errors > 0 && !e.failed {
			e.failed, e.ErrorEnd = true, all-len(piece)+next
		}
		piece = piece[next:]
	}
	if e.hasData && !e.dataOwned && !e.dataLost {
		e.ownData()
	}
}

func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n >= 0 {
		b = b[:n]
	}
	if r := bytes.IndexByte(b, '\r'); r >= 0 {
		return r
	}
	return n
}

// keepLine adds to the unfinished line.
func (e *EventScanner) keepLine(b []byte) {
	e.midLine = true
	if e.lineLost {
		if e.long != nil {
			e.long.Feed(b)
		}
		return
	}
	if len(e.line)+len(b) > e.maxBytes() {
		e.followLong(b)
		// The name of the field is kept, which is enough.
		e.line = append(e.line, b[:min(len(b), max(0, 16-len(e.line)))]...)
		e.line = e.line[:min(len(e.line), 16)]
		e.lineLost = true
		return
	}
	e.line = append(e.line, b...)
}

// followLong begins to scan the data of an event that is too long to be kept; b is its
// next part. The last event says how an answer ended, and in the Responses API it repeats
// the request and the answer.
func (e *EventScanner) followLong(b []byte) {
	if e.hasData {
		return // over several lines
	}
	whole := append(append(make([]byte, 0, 2*len(dataField)), e.line[:min(len(e.line), len(dataField))]...), b[:min(len(b), len(dataField))]...)
	if !bytes.HasPrefix(whole, dataField) {
		return
	}
	e.long = new(AnswerScanner)
	e.long.Feed(e.line[min(len(e.line), len(dataField)):])
	e.long.Feed(b[max(0, len(dataField)-len(e.line)):])
}

var bom = []byte("\xef\xbb\xbf")

// takeLine takes one whole line. lost: only its beginning was kept. reused: its bytes
// are in e.line, which the next piece overwrites.
func (e *EventScanner) takeLine(line []byte, lost, reused bool) {
	if !e.started {
		e.started = true
		line = bytes.TrimPrefix(line, bom)
	}
	if len(line) == 0 {
		e.endEvent()
		return
	}
	if line[0] == ':' {
		e.Comments++
		return
	}
	e.inEvent = true
	field, value, _ := bytes.Cut(line, colon)
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(field) {
	case "data":
		e.takeData(value, lost, reused)
	case "event":
		e.name = nameOther
		switch string(value) {
		case "error":
			e.name = nameError
		case "message_stop", "response.completed", "response.incomplete", "response.cancelled":
			e.name = nameEnd
		case "response.failed":
			e.name = nameFailed
		case "message_start", "ping", "response.created", "response.queued", "response.in_progress":
			e.name = nameOpening
		case "message_delta": // the event before message_stop
		default:
			if bytes.HasSuffix(value, deltaSuffix) {
				e.name = nameDelta
			}
		}
	}
}

var (
	colon       = []byte{':'}
	deltaSuffix = []byte("delta")
)

func (e *EventScanner) takeData(value []byte, lost, reused bool) {
	switch {
	case lost || e.dataLost:
		e.dataLost = true
		e.data = nil
	case !e.hasData:
		e.data, e.dataOwned = value, false
		if reused {
			e.ownData()
		}
	default:
		// Data over several lines is one text with line feeds between.
		if !e.dataOwned {
			e.ownData()
		}
		if len(e.data)+1+len(value) > e.maxBytes() {
			e.dataLost, e.data = true, nil
			break
		}
		e.buf = append(append(e.buf, '\n'), value...)
		e.data = e.buf
	}
	e.hasData = true
}

func (e *EventScanner) ownData() {
	if len(e.data) > e.maxBytes() {
		e.dataLost, e.data = true, nil
		return
	}
	e.buf = append(e.buf[:0], e.data...)
	e.data, e.dataOwned = e.buf, true
}

func (e *EventScanner) endEvent() {
	if e.inEvent && e.hasData {
		e.Events++
		e.inspect()
	}
	e.inEvent, e.hasData, e.dataOwned, e.dataLost, e.data, e.name, e.long = false, false, false, false, nil, nameNone, nil
	if cap(e.buf) > 64<<10 {
		e.buf = nil // long events are rare; idle streams are many
	}
	if cap(e.line) > 64<<10 {
		e.line = nil
	}
}

var (
	doneMarker = []byte("[DONE]")
	errorWord  = []byte(`"error"`)
	usageWord  = []byte(`_tokens"`)
)

const maxLastError = 2048

func (e *EventScanner) inspect() {
	if e.dataLost {
		e.TooLong++
	}
	if e.name == nameEnd {
		e.Finished = true
	}
	data := e.data
	if e.long != nil && e.dataLost && e.long.Closed() {
		data = e.long.Excerpt()
	}
	if bytes.Equal(bytes.TrimSpace(data), doneMarker) {
		e.Done, e.Finished = true, true
		return
	}
	errorInside := bytes.Contains(data, errorWord)
	if e.name == nameError || e.name == nameFailed || errorInside && e.hasError(data) {
		e.Errors++
		e.Finished = e.Finished || e.name == nameFailed
		e.count(data)
		e.LastError = append(e.LastError[:0], data[:min(len(data), maxLastError)]...)
		return
	}
	usage := e.count(data)
	if errorInside || e.name == nameEnd || bytes.Contains(data, abortWord) {
		if e.Abort, e.Aborted = ReadAbort(data); e.Aborted {
			return
		}
	}
	e.DataEvents++
	if e.OnData != nil {
		e.OnData(e.data)
	}
	if e.name == nameOpening {
		e.Openings++
	}
	if !e.SkipUsage {
		e.noteToken(usage)
	}
}

// count reads the token counts of an event, and reports whether it has such.
func (e *EventScanner) count(data []byte) bool {
	if e.SkipUsage || !bytes.Contains(data, usageWord) {
		return false
	}
	u, ok := ReadUsage(data)
	if ok {
		e.Usage, e.HasUsage = u, true
		e.UsageEvents++
	}
	return ok
}

// Close is called at the end of a stream: one that ends with the end marker is
// finished, even without an empty line after it. Close appends the missing line ends.
func (e *EventScanner) Close(dst []byte) []byte {
	data := e.data
	if e.midLine {
		var ok bool
		if data, ok = bytes.CutPrefix(e.line, []byte("data:")); !ok || e.inEvent || e.lineLost {
			return dst
		}
	}
	if !e.AtBoundary() && bytes.Equal(bytes.TrimSpace(data), doneMarker) {
		dst = e.AppendClose(dst)
		e.Events++
		e.Done, e.Finished = true, true
		e.midLine, e.inEvent, e.hasData = false, false, false
	}
	return dst
}

// hasError reports whether data has a top-level "error" that is not null, or the flat form
// {"object":"error",…}.
func (e *EventScanner) hasError(data []byte) bool {
	s := new(scanner)
	s.reset(data, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(data) || data[i] != '{' {
		return false
	}
	i++
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return false
		}
		if i = s.skip(v, 1); i < 0 {
			return false
		}
		raw := data[v:i]
		switch {
		case s.nameIs(name, "error"):
			if c := raw[0]; c == '{' || c == '"' {
				return true
			}
		case s.nameIs(name, "object") || s.nameIs(name, "type"):
			if string(raw) == `"error"` {
				return true
			}
		}
	}
}

// AppendClose appends the line ends that close an event in which the stream was cut, so
// that an event of the router may follow; nothing at a boundary.
func (e *EventScanner) AppendClose(dst []byte) []byte {
	if e.AtBoundary() {
		return dst
	}
	if e.midLine || e.lastCR {
		// After a '\r' a '\n' would only belong to it.
		dst = append(dst, '\n')
	}
	return append(dst, '\n')
}

// eachEvent calls yield with the data of each event in a whole body; for streams
// that were collected rather than relayed. Data over several lines is joined.
func eachEvent(body []byte, yield func(data []byte) error) error {
	var data []byte
	has := false
	flush := func() error {
		if !has {
			return nil
		}
		err := yield(data)
		data, has = nil, false
		return err
	}
	for len(body) > 0 {
		end := lineEnd(body)
		line := body
		if end < 0 {
			body = nil
		} else {
			line = body[:end]
			if body[end] == '\r' && end+1 < len(body) && body[end+1] == '\n' {
				end++
			}
			body = body[end+1:]
		}
		if len(line) == 0 {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		if v, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			v = bytes.TrimPrefix(v, []byte(" "))
			if has {
				data = slices.Concat(data, []byte("\n"), v)
			} else {
				data, has = v, true
			}
		}
	}
	return flush()
}
