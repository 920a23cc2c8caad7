package openai

import (
	"bytes"
	"net/http"
)

// Abort is the error of an engine that aborted a request, in an answer of status 200.
type Abort struct {
	// Status is the HTTP status that the engine names for its error, else 503 for an
	// abort and 500 for an error.
	Status int
	// Message is the engine's, of at most 2 KiB, or "".
	Message string
}

var abortWord = []byte(`"abort"`)

// ReadAbort reports whether the JSON of an answer or an event says that the engine
// aborted the request:
//   - a finish_reason of "abort" or "error" in one of its choices or in meta_info;
//   - such a stop_reason of the Messages API, in a message or in the event that ends one
//     (the stop_reason of a choice is not meant: it is the stop string that was met);
//   - a response of the Responses API, also as that of an event, that is "failed" or
//     "cancelled", has an error, or is incomplete for such a reason.
//
// A reason is a string or SGLang's object {"type":"abort",…}. Other reasons, known or not,
// are no aborts. The JSON may be cut off after the reason. JSON without those words costs
// a few searches.
func ReadAbort(json []byte) (Abort, bool) {
	if !bytes.Contains(json, abortWord) && !bytes.Contains(json, errorWord) &&
		!bytes.Contains(json, failedWord) && !bytes.Contains(json, cancelledWord) {
		return Abort{}, false
	}
	return walkAbort(json)
}

// walkAbort is separate from ReadAbort because its result is allocated on the heap.
func walkAbort(json []byte) (a Abort, ok bool) {
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i < len(json) {
		w := abortWalk{s: s, abort: &a}
		w.answer(i, 0)
		ok = w.found
	}
	return a, ok
}

var failedWord, cancelledWord = []byte(`"failed"`), []byte(`"cancelled"`)

type abortWalk struct {
	s     *scanner
	abort *Abort
	found bool
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
	var ended endedResponse
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			if depth == 0 && ended.object {
				w.response(&ended)
			}
			return v
		}
		switch {
		case s.nameIs(name, "choices") || s.nameIs(name, "meta_info"):
			i = w.answer(v, depth+1)
		case s.nameIs(name, "finish_reason") || depth == 0 && s.nameIs(name, "stop_reason"):
			i = w.reason(v, depth+1)
		case depth == 0 && s.b[v] == '{' && (s.nameIs(name, "delta") || s.nameIs(name, "message")):
			i = w.message(v+1, depth+1)
		case depth == 0 && s.b[v] == '{' && s.nameIs(name, "response"):
			var inside endedResponse
			if i = w.members(v+1, depth+1, inside.take); i > 0 {
				w.response(&inside)
			}
		default:
			if i = s.skip(v, depth+1); i > 0 && depth == 0 {
				ended.take(name, s, v, i)
			}
		}
		if i < 0 || w.found {
			return -1
		}
	}
}

// message walks the message of an event, or the delta that ends one, from after its '{'.
func (w *abortWalk) message(i, depth int) int {
	s := w.s
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done || w.found {
			return v
		}
		if s.nameIs(name, "stop_reason") {
			i = w.reason(v, depth+1)
		} else {
			i = s.skip(v, depth+1)
		}
		if i < 0 {
			return -1
		}
	}
}

// members walks an object from after its '{' and calls take with each member; its value
// is s.b[from:to].
func (w *abortWalk) members(i, depth int, take func(name Span, s *scanner, from, to int)) int {
	for first := true; ; first = false {
		name, v, done := w.s.member(i, first)
		if v < 0 || done {
			return v
		}
		if i = w.s.skip(v, depth+1); i < 0 {
			return -1
		}
		take(name, w.s, v, i)
	}
}

// endedResponse are the members that say how a response of the Responses API ended, raw.
type endedResponse struct {
	object              bool // it calls itself a response
	status, err, reason []byte
}

func (r *endedResponse) take(name Span, s *scanner, from, to int) {
	raw := s.b[from:to]
	switch {
	case s.nameIs(name, "object"):
		r.object = string(raw) == `"response"`
	case s.nameIs(name, "status"):
		r.status = raw
	case s.nameIs(name, "error"):
		r.err = raw
	case s.nameIs(name, "incomplete_details"):
		r.reason, _ = RawField(raw, "reason")
	}
}

// response finds out how a response ended. Engines report a response that they aborted
// as cancelled.
func (w *abortWalk) response(r *endedResponse) {
	var facts errorFacts
	hasError := len(r.err) > 0 && (r.err[0] == '{' || r.err[0] == '"')
	switch {
	case string(r.status) == `"failed"`:
		w.found, w.abort.Status = true, http.StatusInternalServerError
	case string(r.status) == `"cancelled"`:
		w.found, w.abort.Status = true, http.StatusServiceUnavailable
	case hasError:
		w.found, w.abort.Status = true, http.StatusInternalServerError
	default:
		w.kind(r.reason)
	}
	if !w.found || !hasError {
		return
	}
	if r.err[0] == '"' {
		facts.message = r.err
	} else {
		w.facts(r.err, &facts)
	}
	w.tell(&facts)
}

// facts reads the members of an error object.
func (w *abortWalk) facts(raw []byte, facts *errorFacts) {
	s := new(scanner)
	s.reset(raw, DefaultMaxDepth)
	facts.object(s, 1)
}

// tell takes status and message of an error.
func (w *abortWalk) tell(facts *errorFacts) {
	status, message := facts.tell()
	w.abort.Message = message
	if status != 0 {
		w.abort.Status = status
	}
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
				w.tell(&facts)
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
