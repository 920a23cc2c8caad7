package replay

import (
	"bufio"
	"bytes"
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
// Errors are *LineError where a line is to blame.
func Read(r io.Reader) (*Trace, error) {
	t := &Trace{}
	var f format
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
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
				return nil, &LineError{n, errors.New("this is neither a request of a Mooncake trace nor a line of sluice's log")}
			}
		}
		if err := f.read(line); err != nil {
			return nil, &LineError{n, err}
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &LineError{n + 1, fmt.Errorf("it is longer than %d bytes", maxLine)}
	case err != nil:
		return nil, fmt.Errorf("cannot read on after line %d: %w", n, err)
	case f == nil:
		return nil, errEmpty
	}
	if err := f.end(); err != nil {
		return nil, err
	}
	return t, t.finish()
}

func formatOf(t *Trace, line []byte) format {
	switch {
	case line[0] == '{' && bytes.Contains(line, []byte(`"input_length"`)):
		return &mooncake{t}
	case line[0] == '{' && bytes.Contains(line, []byte(`"msg"`)), bytes.HasPrefix(line, []byte("time=")):
		return &accessLog{trace: t}
	}
	return nil
}
