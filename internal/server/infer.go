package server

import (
	"errors"

	"github.com/sluice-router/sluice/internal/openai"
)

// infer reads a request's body and hands the request to dispatch.
func (q *request) infer() {
	s := q.s
	if !s.enter() {
		q.out.Header().Set(headerConnection, "close")
		q.refuse(openai.Draining(), reasonDraining)
		return
	}
	defer s.leave()
	if !s.hasFile() {
		q.out.Header().Set(headerConnection, "close")
		q.refuse(tooManyFiles(), reasonTooManyFiles)
		return
	}
	if q.read() {
		q.dispatch()
	}
}

// read reads the body and parses what routing needs, or answers with the error. It is
// not inlined into infer, so that its stack frame is gone while the answer streams.
//
//go:noinline
func (q *request) read() bool {
	if p := q.readBody(); p != nil {
		q.free()
		if p.answer == nil {
			q.reason = p.reason
			return false
		}
		q.refuse(p.answer, p.reason)
		return false
	}
	if q.s.base.Err() != nil {
		// The drain ended while the body was read, and may have interrupted the read.
		q.free()
		q.refuse(openai.Draining(), reasonDraining)
		return false
	}
	var peeked *openai.Peeked
	var err error
	if body := q.buf.b[:q.length]; q.route.passthrough {
		peeked, err = q.peekPassthrough(body)
	} else {
		peeked, err = openai.Peek(q.route.api, body, q.s.peek)
	}
	if err != nil {
		q.free()
		q.refuse(asError(err), reasonBadRequest)
		return false
	}
	q.call.Peeked = peeked
	q.model = peeked.Model
	return true
}

func (q *request) dispatch() {
	c, s := &q.call, q.s
	c.Route = q.route.api
	c.Method, c.Passing, c.Pattern = q.r.Method, q.route.passthrough, q.route.pattern
	c.Path = q.r.URL.Path
	if q.r.URL.RawQuery != "" {
		c.Path += "?" + q.r.URL.RawQuery
	}
	c.Header = q.r.Header
	if c.Client = q.key; c.Client == "" {
		c.Client = peer(q.r.RemoteAddr)
	}
	c.Free, c.Reserve, c.Files, c.Memory = q.free, q.reserve, s, s
	if r, ok := q.raw.(interface{ Running() }); ok {
		r.Running()
	}
	// Dispatch counts the request, also when it ends it with a panic.
	q.counted = true
	defer func() { q.reason, q.err = c.Record.Reason, c.Record.Err }()
	s.opts.Dispatcher.Serve(&q.out, q.r, c)
}

// free releases the body. It is called once, possibly after the handler has returned.
func (q *request) free() {
	if p := q.call.Peeked; p != nil {
		q.call.Peeked = nil
		p.Release()
	}
	if q.buf.b != nil {
		q.s.buffers.put(&q.buf)
	}
	q.s.buffers.releaseHeap(q.reserved)
	q.reserved = 0
}

// reserve counts the memory of a further copy of the body, until free.
func (q *request) reserve(bytes int) *openai.Error {
	if !q.s.buffers.reserve(int64(bytes)) {
		return openai.BufferFull(q.s.cfg.Server.MaxBufferedBytes)
	}
	q.reserved += int64(bytes)
	return nil
}

func asError(err error) *openai.Error {
	var e *openai.Error
	if errors.As(err, &e) {
		return e
	}
	return openai.Internal(err)
}
