package sim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// vllmVersion is the version that the engine reports, and that is simulated.
const vllmVersion = "0.32.0"

// vllmRuns are the routes that run a vLLM engine.
var vllmRuns = map[string]api{
	"/v1/chat/completions": chat,
	"/v1/completions":      completions,
	"/v1/responses":        responses,
	"/v1/messages":         messages,
}

// vllmMethod reports whether an information route takes a method.
func vllmMethod(path, method string) bool {
	switch path {
	case "/ping":
		return method == http.MethodGet || method == http.MethodPost
	case "/reset_prefix_cache":
		return method == http.MethodPost
	}
	return method == http.MethodGet
}

// vllmGeneration serves one request of a route that runs the engine: all of vLLM's,
// and /v1/responses and /v1/messages of SGLang.
func (w *Worker) vllmGeneration(l *lifetime, o *responseWriter, r *http.Request, a api, body []byte) error {
	o.api, o.named = a, a == responses || a == messages
	req, err := w.parseVLLM(a, body, r.Header)
	if done, ferr := w.deviate(o, &req.request, body); done || ferr != nil {
		return ferr
	}
	if err != nil {
		return o.fail(err, false)
	}
	if w.opt.Backend == SGLang && w.role != Regular {
		w.fleet.broker.violate(w, RoomMissing, 0, "%s knows no bootstrap room", r.URL.Path)
		return o.fail(abortf(400, "Invalid request: Disaggregated request received without bootstrap room id"), false)
	}
	seqs, err := w.vsequences(o, req, r.Header)
	if err != nil {
		return o.fail(err, false)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if err := w.register(&req.request, o, cancel); err != nil {
		return o.fail(err, false)
	}
	defer w.unregister(req.rid)
	// The headers of a stream go out before the engine has run.
	if o.early = o.stream || o.fault.EarlyHeaders; o.early {
		contentType := "application/json"
		if o.stream {
			contentType = eventStream
		}
		if err := o.start(http.StatusOK, contentType, -1); err != nil {
			return err
		}
	}
	v := newVWriter(w, o, req, seqs)
	for _, s := range seqs {
		s.text = func(b []byte, k int) []byte { return append(b, unescaped(v.text(nil, s, k, k+1))...) }
	}
	emit := func(*sequence) error { return nil }
	if o.stream && len(o.fault.Events) == 0 {
		if err := v.open(); err != nil {
			return err
		}
		emit = v.token
	}
	err = w.runAll(ctx, l, seqs, emit)
	external := 0
	for _, s := range seqs {
		external += s.v.external
	}
	w.note(func() { o.rec.External, o.rec.Cached = external, cachedOf(seqs, req.n) })
	if err != nil {
		var wire *wireError
		if !errors.As(err, &wire) {
			return err
		}
		if o.stream && a == chat {
			if err := v.role(seqs[0]); err != nil { // sent before the error too
				return err
			}
		}
		return o.fail(wire, false)
	}
	switch {
	case len(o.fault.Events) > 0:
		return v.scripted()
	case o.stream:
		return v.close()
	}
	return o.json(http.StatusOK, v.whole())
}

// storedResponse answers for a stored response: 404, as none is stored.
func (w *Worker) storedResponse(o *responseWriter, path string) error {
	id := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/responses/"), "/cancel")
	e := invalidf("response_id", "Response with id '%s' not found.", id)
	e.kind, e.status = "invalid_request_error", http.StatusNotFound
	return o.json(e.status, o.vbody(e))
}

// vbody renders an error: nested, and in Anthropic's shape where /v1/messages
// itself refuses.
func (o *responseWriter) vbody(e *wireError) []byte {
	kind := e.kind
	if kind == "" {
		kind = http.StatusText(e.status)
	}
	if o.api == messages && kind != "Bad Request" {
		b := appendQuoted([]byte(`{"type":"error","error":{"type":`), kind)
		b = appendQuoted(append(b, `,"message":`...), e.message)
		return append(b, "}}"...)
	}
	b := appendQuoted([]byte(`{"error":{"message":`), e.message)
	b = appendQuoted(append(b, `,"type":`...), kind)
	if e.param == "" {
		b = append(b, `,"param":null`...)
	} else {
		b = appendQuoted(append(b, `,"param":`...), e.param)
	}
	return fmt.Appendf(b, `,"code":%d}}`, e.status)
}

// failVLLM answers with an error, as an event once a stream has begun.
func (o *responseWriter) failVLLM(e *wireError, started bool) error {
	if !started || !o.stream {
		return o.json(e.status, o.vbody(e))
	}
	if o.api == responses { // its stream breaks off, without an error event
		o.mu.Lock()
		defer o.mu.Unlock()
		o.broken = true
		return errBroken
	}
	name := ""
	if o.named {
		name = "error"
	}
	if err := o.eventOf(name, func(b []byte) []byte { return append(b, o.vbody(e)...) }); err != nil {
		return err
	}
	return o.done()
}

// eventOf is event with an event name, unless name is "".
func (o *responseWriter) eventOf(name string, fill func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = o.buf[:0]
	if name != "" {
		o.buf = append(append(append(o.buf, "event: "...), name...), '\n')
	}
	o.buf = append(o.buf, "data: "...)
	o.buf = append(fill(o.buf), "\n\n"...)
	return o.rawEventLocked(o.buf)
}

// known reports whether a model is served here; "" is.
func (w *Worker) known(model string) bool {
	return model == "" || w.named(model) || slices.Contains(w.opt.Adapters, model)
}

// named reports whether the model itself is served by a name.
func (w *Worker) named(model string) bool {
	return model == w.opt.Model || slices.Contains(w.opt.Names, model)
}
