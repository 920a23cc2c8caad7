package openai

import "bytes"

// eventFrames splits an event stream into whole events and comments, however it is cut
// into pieces, with any line ends. Unlike EventScanner, which follows a stream that is
// relayed unchanged, it keeps the unfinished event, for streams that are changed.
type eventFrames struct {
	// max bounds an event, all its lines together.
	max int

	started bool
	lastCR  bool // the last byte was '\r': a '\n' that follows belongs to it
	ended   bool // the current event was returned: begin a new one
	// newline is the distance to the next '\n' in the piece: -1 is unknown, beyond the
	// piece means none. Without it a piece full of '\r' would be searched for a '\n'
	// once for each '\r'.
	newline int
	line    []byte // the unfinished line

	// The current event. data is in the piece, or if owned in buf.
	head    []byte // its lines other than data, each with a '\n'
	data    []byte
	hasData bool
	owned   bool
	joined  bool // data came over several lines and has line feeds in it
	isError bool // it is named error
	buf     []byte

	comment []byte // the last comment line, with its colon
}

type frameKind uint8

const (
	frameNone    frameKind = iota // the piece is used up
	frameEvent                    // head and data are a whole event
	frameComment                  // comment is one
	frameTooLong                  // the bound was exceeded; the stream can't go on
)

// begin must come before the first next of each piece.
func (f *eventFrames) begin() { f.newline = -1 }

// next takes from the piece up to the end of an event or a comment. What it found is
// valid until the next call; the piece must be there as long.
func (f *eventFrames) next(piece []byte) (rest []byte, got frameKind) {
	if f.ended {
		f.clear()
	}
	for len(piece) > 0 {
		if f.lastCR {
			f.lastCR = false
			if piece[0] == '\n' {
				piece = f.advance(piece, 1)
				continue
			}
		}
		end := f.lineEnd(piece)
		if end < 0 {
			if !f.fits(len(f.line) + len(piece)) {
				return nil, frameTooLong
			}
			f.line = append(f.line, piece...)
			break
		}
		line, kept := piece[:end], len(f.line) > 0
		if !f.fits(len(f.line) + len(line)) {
			return nil, frameTooLong
		}
		if kept {
			f.line = append(f.line, line...)
			line, f.line = f.line, f.line[:0]
		}
		f.lastCR = piece[end] == '\r'
		piece = f.advance(piece, end+1)
		if got := f.take(line, kept); got != frameNone {
			return piece, got
		}
	}
	if f.hasData && !f.owned {
		f.own()
	}
	return nil, frameNone
}

func (f *eventFrames) fits(line int) bool { return len(f.head)+len(f.data)+line <= f.max }

func (f *eventFrames) advance(piece []byte, n int) []byte {
	f.newline = max(-1, f.newline-n)
	return piece[n:]
}

func (f *eventFrames) lineEnd(piece []byte) int {
	if f.newline < 0 {
		if f.newline = bytes.IndexByte(piece, '\n'); f.newline < 0 {
			f.newline = len(piece)
		}
	}
	if r := bytes.IndexByte(piece[:f.newline], '\r'); r >= 0 {
		return r
	}
	if f.newline == len(piece) {
		return -1
	}
	return f.newline
}

// take takes one whole line. kept: its bytes are in f.line, which later pieces
// overwrite.
func (f *eventFrames) take(line []byte, kept bool) frameKind {
	if !f.started {
		f.started = true
		line = bytes.TrimPrefix(line, bom)
	}
	if len(line) == 0 {
		if !f.hasData {
			f.clear() // an event without data is ignored, as readers do
			return frameNone
		}
		f.ended = true
		return frameEvent
	}
	if line[0] == ':' {
		f.comment = line
		return frameComment
	}
	field, value, _ := bytes.Cut(line, colon)
	value = bytes.TrimPrefix(value, space)
	switch string(field) {
	case "data":
		if f.hasData {
			f.own()
			f.buf = append(append(f.buf, '\n'), value...)
			f.data, f.joined = f.buf, true
			break
		}
		f.data, f.hasData = value, true
		if kept {
			f.own()
		}
	case "event":
		f.isError = string(value) == "error"
		fallthrough
	default:
		f.head = append(append(f.head, line...), '\n')
	}
	return frameNone
}

var space = []byte{' '}

func (f *eventFrames) own() {
	if !f.owned {
		f.buf = append(f.buf[:0], f.data...)
		f.data, f.owned = f.buf, true
	}
}

// maxKeptBuffer is the largest buffer that is kept between events, in bytes: long events
// are rare, and many streams may be idle.
const maxKeptBuffer = 16 << 10

func (f *eventFrames) clear() {
	f.head, f.data, f.comment = f.head[:0], nil, nil
	f.hasData, f.owned, f.joined, f.isError, f.ended = false, false, false, false, false
	if cap(f.buf) > maxKeptBuffer {
		f.buf = nil
	}
	if cap(f.line) > maxKeptBuffer && len(f.line) == 0 {
		f.line = nil
	}
	if cap(f.head) > maxKeptBuffer {
		f.head = nil
	}
}

// release drops all buffers, at the stream's end.
func (f *eventFrames) release() { *f = eventFrames{} }
