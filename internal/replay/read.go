package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
)

// format reads the lines of a trace in one of the formats.
type format interface {
	// read takes one line that is not empty.
	read(line []byte) error
	// end is called after the last line.
	end() error
}

// Read reads a trace: JSON lines as those that Mooncake published, or an access log of the
// router in either form. Which of the two it is, the first line tells that could be either.
// What else the process has written between the lines of its log is skipped, and so is a last
// line of it that is cut off.
// Errors are *LineError where a line is to blame.
func Read(r io.Reader) (*Trace, error) {
	t := &Trace{}
	var f format
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	whole := true // the line ends
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, line, err := bufio.ScanLines(data, atEOF)
		whole = n == 0 || data[n-1] == '\n'
		return n, line, err
	})
	n := 0
	var unknown error // the first line that could be of neither format
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if f == nil {
			if f = formatOf(t, line); f == nil {
				if bytes.HasPrefix(line, []byte{0x1f, 0x8b}) {
					return nil, errors.New("it is compressed: gunzip -c it and read it as -")
				}
				if unknown == nil {
					unknown = &LineError{n, errors.New("this is neither a request of a Mooncake trace nor a line of sluice's log")}
				}
				if n >= maxUnknown {
					return nil, unknown
				}
				t.skip(ofOthers)
				continue
			}
			if _, ok := f.(*accessLog); !ok && unknown != nil {
				return nil, unknown
			}
		}
		if err := f.read(line); err != nil {
			if _, ok := f.(*accessLog); ok && !whole && len(t.Requests) > 0 {
				t.skip("cut off at the end of the log")
				continue
			}
			return nil, &LineError{n, err}
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &LineError{n + 1, fmt.Errorf("it is longer than %d bytes", maxLine)}
	case err != nil:
		return nil, fmt.Errorf("cannot read on after line %d: %w", n, err)
	case f == nil:
		return nil, cmp.Or(unknown, errEmpty)
	}
	if err := f.end(); err != nil {
		return nil, err
	}
	return t, t.finish()
}

// maxUnknown is in how many lines at the beginning of an access log there must be one of it.
const maxUnknown = 100

func formatOf(t *Trace, line []byte) format {
	switch {
	case line[0] == '{' && bytes.Contains(line, []byte(`"input_length"`)):
		return &mooncake{t}
	case line[0] == '{' && bytes.Contains(line, []byte(`"msg"`)), bytes.HasPrefix(line, []byte("time=")):
		return &accessLog{trace: t}
	}
	return nil
}
