package openai

import (
	"bytes"
	"net/http"
)

// Abort is what an engine that gave a request up says in an answer of status 200.
type Abort struct {
	// Status is the HTTP status of an error that the engine names, else 503 for an
	// abort and 500 for an error.
	Status int
	// Message is the engine's, of at most 2 KiB, or "".
	Message string
}

var abortWord = []byte(`"abort"`)

// ReadAbort reports whether the JSON of an answer or an event says that the engine gave
// the request up: a finish_reason of "abort" or "error" in one of its choices or in
// meta_info, as a text or as SGLang's object {"type":"abort",…}, or a response of
// status "failed" or "cancelled", also as the response of an event. Other finish reasons, known or not, are none. The JSON may be cut
// off behind it. One without those words costs two searches.
func ReadAbort(json []byte) (a Abort, ok bool) {
	failed := bytes.Contains(json, failedWord) || bytes.Contains(json, cancelledWord)
	if !failed && !bytes.Contains(json, abortWord) && !bytes.Contains(json, errorWord) {
		return Abort{}, false
	}
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i < len(json) {
		w := abortWalk{s: s, abort: &a, failed: failed}
		w.answer(i, 0)
		ok = w.found
	}
	return a, ok
}

var failedWord, cancelledWord = []byte(`"failed"`), []byte(`"cancelled"`)

type abortWalk struct {
	s      *scanner
	abort  *Abort
	failed bool // the word of either is there
	found  bool
}

// answer walks an answer, a list of them, or a choice, whose value is at i.
func (w *abortWalk) answer(i, depth int) int {
	s := w.s
	switch {
	case s.b[i] == '[':
		i++
		for first := true; ; first = false {
			e, done := s.element(i, first)
			if e < 0 || done || w.found {
				return e
			}
			if i = w.answer(e, depth+1); i < 0 {
				return -1
			}
		}
	case s.b[i] != '{' || depth > 3:
		return s.skip(i, depth)
	}
	i++
	response, ended := false, 0
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			if response && ended != 0 {
				w.found, w.abort.Status = true, ended
				w.abort.Message = EventErrorMessage(s.b)
			}
			return v
		}
		switch {
		case s.nameIs(name, "choices") || s.nameIs(name, "meta_info") || w.failed && depth == 0 && s.nameIs(name, "response"):
			i = w.answer(v, depth+1)
		case s.nameIs(name, "finish_reason"):
			i = w.reason(v, depth+1)
		default:
			if i = s.skip(v, depth+1); i > 0 && w.failed && depth <= 1 {
				response = response || s.nameIs(name, "object") && string(s.b[v:i]) == `"response"`
				if s.nameIs(name, "status") {
					ended = endedStatus(s.b[v:i])
				}
			}
		}
		if i < 0 || w.found {
			return -1
		}
	}
}

// endedStatus is the HTTP status that the status of a response stands for, 0 for none.
// Engines call a response cancelled that they aborted.
func endedStatus(raw []byte) int {
	switch string(raw) {
	case `"failed"`:
		return http.StatusInternalServerError
	case `"cancelled"`:
		return http.StatusServiceUnavailable
	}
	return 0
}

// reason reads a finish reason.
func (w *abortWalk) reason(v, depth int) int {
	s := w.s
	if s.b[v] != '{' {
		i := s.skip(v, depth)
		if i > 0 {
			w.kind(s.b[v:i])
		}
		return i
	}
	var facts errorFacts
	var kind []byte
	i := v + 1
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			if w.kind(kind); w.found {
				status, message := facts.tell()
				w.abort.Message = message
				if status != 0 {
					w.abort.Status = status
				}
			}
			return v
		}
		if i = s.skip(v, depth+1); i < 0 {
			return -1
		}
		if s.nameIs(name, "type") {
			kind = s.b[v:i]
		} else {
			facts.take(string(s.nameOf(name)), s.b[v:i])
		}
	}
}

func (w *abortWalk) kind(raw []byte) {
	switch string(raw) {
	case `"abort"`:
		w.found, w.abort.Status = true, http.StatusServiceUnavailable
	case `"error"`:
		w.found, w.abort.Status = true, http.StatusInternalServerError
	}
}

// WholeJSON reports whether b is one JSON value to its end.
func WholeJSON(b []byte) bool {
	s := new(scanner)
	s.reset(b, maxScanDepth)
	i := s.space(0)
	if i >= len(b) {
		return false
	}
	i = s.skip(i, 0)
	return i > 0 && s.space(i) == len(b)
}
