package translate

import "bytes"

// frames splits an event stream into the data of its events, however it is cut into
// pieces, with any of the line ends that event streams may have.
type frames struct {
	// max bounds an event, all its lines together, in bytes.
	max int

	started bool
	lastCR  bool // the last byte was '\r': a '\n' that follows belongs to it
	hasData bool
	line    []byte // the unfinished line
	data    []byte
	other   int // bytes of the event's lines other than data
}

// feed calls event with the data of each event that ends in the piece, and comment
// for each comment line. tooLong is an event above the bound; nothing after it is
// looked at. A handler that returns false ends the piece.
func (f *frames) feed(piece []byte, event func(data []byte) bool, comment func()) (tooLong bool) {
	for len(piece) > 0 {
		if f.lastCR {
			f.lastCR = false
			if piece[0] == '\n' {
				piece = piece[1:]
				continue
			}
		}
		end := bytes.IndexAny(piece, "\r\n")
		if end < 0 {
			f.line = append(f.line, piece...)
			return len(f.line)+len(f.data)+f.other > f.max
		}
		line := piece[:end]
		f.lastCR = piece[end] == '\r'
		piece = piece[end+1:]
		if len(f.line) > 0 {
			f.line = append(f.line, line...)
			line = f.line
		}
		if len(line)+len(f.data)+f.other > f.max {
			return true
		}
		more := f.take(line, event, comment)
		f.line = shrink(f.line)
		if !more {
			return false
		}
	}
	return false
}

// take takes one whole line.
func (f *frames) take(line []byte, event func([]byte) bool, comment func()) bool {
	if !f.started {
		f.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		had := f.hasData
		data := f.data
		f.hasData, f.other = false, 0
		f.data = shrink(f.data)
		return !had || event(data)
	}
	if line[0] == ':' {
		comment()
		return true
	}
	value, isData := bytes.CutPrefix(line, []byte("data"))
	if !isData || len(value) > 0 && value[0] != ':' {
		f.other += len(line)
		return true
	}
	value = bytes.TrimPrefix(bytes.TrimPrefix(value, []byte(":")), []byte(" "))
	if f.hasData {
		f.data = append(f.data, '\n')
	}
	f.data, f.hasData = append(f.data, value...), true
	return true
}

// maxKept is the largest buffer that is kept between events, in bytes: long events are
// rare, and many streams may be idle.
const maxKept = 16 << 10

// shrink empties a buffer. Its bytes stay unchanged until it is used again.
func shrink(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}
