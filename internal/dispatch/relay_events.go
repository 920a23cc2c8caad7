package dispatch

// transform turns the engine's event stream into the client's. The result of feed and end
// is valid until the next call.
type transform interface {
	// feed takes a piece that the scanner has seen and returns what may be passed on.
	feed(piece []byte) ([]byte, error)
	// end returns what is left, once the engine's stream is over.
	end() ([]byte, error)
	// failed is the failure for an error of feed or end.
	failed(err error) *failure
	// remakes tells whether the transform makes the client's events, whole ones, and the
	// end of the stream; else the events are the engine's, perhaps changed.
	remakes() bool
	// held is the memory of what was taken and not returned, in bytes. It is called only
	// if remakes is true.
	held() int
}

// events relays an event stream, changed by t: pieces straight from the connection's
// buffer, with a flush whenever everything that has arrived is passed on.
func (r *relay) events(ctx *legContext, t transform) *failure {
	e := eventRelay{r: r, ctx: ctx, t: t, remakes: t.remakes(), kept: collected{x: r.x}}
	r.followData(e.remakes)
	return r.read(e.take, e.end)
}

// eventRelay is an event stream on its way. Nothing is sent before the first event is
// complete, so that a failure before it still gets a status of its own.
type eventRelay struct {
	r       *relay
	ctx     *legContext
	t       transform
	remakes bool
	held    []byte    // what is held back until the first event is complete
	kept    collected // the memory that t holds
}

func (e *eventRelay) take(piece []byte) (done bool, f *failure) {
	r := e.r
	heard := r.scan.Events + r.scan.Comments
	out, err := e.t.feed(r.take(piece))
	if r.scan.Aborted {
		return false, r.aborted(out)
	}
	if !r.x.out.begun {
		if f := r.beforeFirst(); f != nil {
			return false, f
		}
	}
	if err == nil && e.waits(out) {
		e.held = append(e.held, out...)
		r.x.out.owe()
		return false, nil
	}
	sent, f := e.pass(out, err)
	switch {
	case f != nil:
		return false, f
	case !e.remakes && r.scan.Errors > 0:
		return false, r.reportedByEngine()
	case !e.remakes:
		return false, nil
	case !sent && r.scan.Events+r.scan.Comments > heard:
		// A comment before the answer, thinking that is omitted, or output that waits
		// for the end of another block.
		if f := r.x.out.echo(); f != nil {
			return false, f
		}
	}
	if !e.kept.hold(e.t.held()) {
		return false, r.x.noRoom()
	}
	return false, nil
}

// waits tells whether out is held back: nothing has come yet that shows that there will
// be an answer.
func (e *eventRelay) waits(out []byte) bool {
	r := e.r
	return !r.x.out.begun && !e.remakes && (r.awaitsFirst() || r.onlyOpening(e.held, out)) && len(e.held)+len(out) < maxHeld
}

// pass passes on what the transform returned, and what was held back before it. After
// an error of the transform it does so only if the client has some of the answer. sent
// tells whether there was something.
func (e *eventRelay) pass(out []byte, err error) (sent bool, f *failure) {
	r := e.r
	r.progress.note(&r.scan, r.resp.Body)
	if sent = len(e.held)+len(out) > 0 && (err == nil || r.x.out.begun); sent {
		f = r.passEvents(e.held, out, e.remakes)
		e.held = nil
	}
	if f == nil && err != nil {
		f = e.t.failed(err)
	}
	return sent, f
}

func (e *eventRelay) end(err error) *failure {
	r := e.r
	if err != nil {
		if !e.remakes && r.wholeForClient() {
			return r.streamEnd(nil)
		}
		return r.broken(e.ctx, err)
	}
	out, err := e.t.end()
	if err == nil && !e.remakes {
		return r.streamEnd(append(e.held, out...))
	}
	_, f := e.pass(out, err)
	return f
}

// passEvents passes on what a transform returned, after what was held back before it.
// remade: they are whole events of the transform's own.
func (r *relay) passEvents(held, out []byte, remade bool) *failure {
	boundary := remade || r.scan.AtBoundary()
	if r.x.out.begun {
		return r.passTo(out, boundary)
	}
	if r.x.extensions.any() && !remade {
		out, held = r.first(append(held, out...)), nil
	}
	if f := r.begin(-1); f != nil {
		return f
	}
	if len(held) > 0 {
		if f := r.x.out.write(held, false); f != nil {
			return f
		}
	}
	return r.passTo(out, boundary)
}

// wholeForClient tells whether the client has the end marker: its stream is complete then,
// even if the connection to the engine fails.
func (r *relay) wholeForClient() bool {
	return r.x.out.begun && r.scan.Done && r.scan.AtBoundary() && r.scan.Errors == 0
}

// asItIs passes the engine's stream on, with the prefill's count of cached tokens.
type asItIs struct{ r *relay }

func (t asItIs) feed(piece []byte) ([]byte, error) { return piece, nil }
func (t asItIs) end() ([]byte, error)              { return t.r.cached.rest(), nil }
func (t asItIs) failed(err error) *failure         { return t.r.bad("its answer cannot be passed on", err) }
func (asItIs) remakes() bool                       { return false }
func (asItIs) held() int                           { return 0 }
