package main

import (
	"bytes"
	"errors"
	"fmt"
)

// want is what a right answer to a request looks like.
type want struct {
	// events is the number of "data:" lines of a stream, [DONE] included; 0
	// expects JSON, manyEvents any number: engines by gRPC tell several tokens at
	// a time as they like, and routers open their streams in different ways.
	events int
	// has is part of a right JSON body.
	has []byte
	// any takes a whole answer of any kind: that of the prefill leg, which
	// nobody reads.
	any bool
}

const manyEvents = -1

// done ends every event stream of the OpenAI API.
var done = []byte("data: [DONE]\n\n")

// answer judges one answer while it is read. It is used again for the next.
type answer struct {
	want want

	status    int
	lines     int  // that begin with "data:", judged by their first byte
	lineStart bool // the next byte begins a line
	tail      []byte
	body      []byte // of JSON, or of an error
}

func (a *answer) begin() {
	a.lines, a.lineStart = 0, true
	a.tail, a.body = a.tail[:0], a.body[:0]
}

// feed takes the next bytes of the body.
func (a *answer) feed(p []byte) error {
	if a.want.any {
		return nil
	}
	if a.want.events == 0 || a.status != 200 {
		if len(a.body)+len(p) > maxJSON {
			return fmt.Errorf("body of more than %d bytes", maxJSON)
		}
		a.body = append(a.body, p...)
		return nil
	}
	for q := p; len(q) > 0; {
		if a.lineStart && q[0] == 'd' {
			a.lines++
		}
		i := bytes.IndexByte(q, '\n')
		if a.lineStart = i >= 0; !a.lineStart {
			break
		}
		q = q[i+1:]
	}
	if len(p) >= len(done) {
		a.tail = append(a.tail[:0], p[len(p)-len(done):]...)
	} else {
		a.tail = append(a.tail, p...)
		if n := len(a.tail) - len(done); n > 0 {
			a.tail = append(a.tail[:0], a.tail[n:]...)
		}
	}
	return nil
}

// end says whether the answer was right.
func (a *answer) end() error {
	switch {
	case a.status != 200:
		return fmt.Errorf("status %d: %.200s", a.status, a.body)
	case a.want.any:
		return nil
	case a.want.events == 0:
		if !bytes.Contains(a.body, a.want.has) {
			return fmt.Errorf("no %s in the answer: %.300s", a.want.has, a.body)
		}
		return nil
	case !bytes.Equal(a.tail, done):
		return errors.New("stream without [DONE] at its end")
	case a.want.events == manyEvents:
	case a.lines != a.want.events:
		return fmt.Errorf("%d events, want %d", a.lines, a.want.events)
	}
	return nil
}
