package dispatch

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// relay is the answering leg's body on its way to the client.
type relay struct {
	x     *request
	resp  *upstream.Response
	rank  *fleet.Rank
	watch *fleet.Watch // of the leg
	sse   bool
	// frees: the request's body may be freed once the answer has begun.
	frees    bool
	scan     openai.EventScanner
	progress answerProgress
	cached   cachedEdit
}

// read is the one loop over an answer. It hands each piece of the body to take, and
// calls end at the end of the body: with nil, or with the error of the connection.
// A piece is valid until take returns. When take is done, nothing more is read and end
// is not called.
func (r *relay) read(take func(piece []byte) (done bool, f *failure), end func(err error) *failure) *failure {
	for {
		piece, err := r.resp.Body.Next()
		switch {
		case err == io.EOF:
			return end(nil)
		case err != nil:
			return end(err)
		}
		if r.isFiller(piece) {
			r.rank.NoteProgress()
		} else {
			r.rank.NoteAdvance()
		}
		if done, f := take(piece); done || f != nil {
			return f
		}
	}
}

var dataField = []byte("data:")

// isFiller tells whether a piece only keeps the connection open, which an engine's front
// does without its scheduler: a comment, an empty line, blanks where JSON is to come.
func (r *relay) isFiller(piece []byte) bool {
	switch piece[0] {
	case ':':
		return r.sse && !bytes.Contains(piece, dataField)
	case ' ', '\n', '\r':
		return len(bytes.TrimSpace(piece)) == 0
	}
	return false
}

// midway marks a failure in the middle of an answer.
func (r *relay) midway(f *failure) *failure {
	if f != nil && r.x.out.begun {
		f.gaveUp = true
	}
	return f
}

// aborted ends a stream at the event in which the engine aborts the request. The bytes
// before it are passed on if the answer has begun; else another attempt may follow.
func (r *relay) aborted(before []byte) *failure {
	f := r.x.abortFailure(admission.DecodeLeg, r.rank, r.scan.Abort)
	if r.x.out.begun && len(before) > 0 {
		if gone := r.x.out.write(before, r.scan.AtBoundary()); gone != nil {
			return gone
		}
	}
	return f
}

// check refuses an answer by its head.
func (r *relay) check(ctx *legContext) *failure {
	if passed := r.x.call.Passing && r.resp.Status >= 200 && r.resp.Status < 300; passed {
		r.x.out.status = r.resp.Status
	} else if r.resp.Status != http.StatusOK {
		return r.x.statusFailure(ctx, admission.DecodeLeg, r.rank, r.resp)
	}
	r.rank.NoteProgress() // it may be its front alone
	r.x.keys.accepted(admission.DecodeLeg)
	contentType := r.resp.Get("Content-Type")
	r.sse = isEventStream(contentType)
	return r.wrongForm(contentType)
}

// wrongForm refuses an event stream if JSON was asked for, and JSON if a stream was: the
// client could not read it. Lines of JSON and unknown forms pass.
func (r *relay) wrongForm(contentType string) *failure {
	if r.x.call.Passing {
		return nil
	}
	asked := r.x.call.Peeked.Stream
	switch {
	case r.sse && !asked:
		return r.bad("it sent an event stream where one JSON answer was asked for", nil)
	case asked && isJSON(contentType):
		return r.bad("it sent one JSON answer where an event stream was asked for", nil)
	case asked && !r.sse && (!isLines(contentType) || r.x.out.hasCommitted()):
		// The client would take its end for the end of a complete stream.
		return r.bad(notAStream, nil)
	}
	return nil
}

// bad is the failure for an answer that does not have the expected form.
func (r *relay) bad(what string, err error) *failure {
	return &failure{leg: admission.DecodeLeg, rank: r.rank, reason: reasonUpstream, err: err,
		local: openai.UpstreamFailed(r.x.legName(admission.DecodeLeg), what, err)}
}

// overLimit is the failure of an answer that exceeded a limit of the router: no engine is
// at fault, and another attempt would end in the same way.
func (r *relay) overLimit(what string) *failure {
	return limitFailure(admission.DecodeLeg, r.rank, what)
}

// broken is the failure of an answer that broke off with err.
func (r *relay) broken(ctx *legContext, err error) *failure {
	f := r.x.legFailure(ctx, admission.DecodeLeg, r.rank, err)
	if r.x.out.begun && f.reason == reasonUpstream {
		f.reason = reasonBrokenOff
	}
	return f
}

// begin sends the client its status. It refuses an answer that is no event stream if a
// keep-alive comment has begun a stream: that may have been sent after wrongForm checked
// the head of the answer.
func (r *relay) begin(length int) *failure {
	var scan *openai.EventScanner
	if r.sse && !r.x.translates { // what is written there are whole events
		scan = &r.scan
	}
	if !r.x.out.begin(r.resp, length, r.sse, scan) {
		return r.bad(notAStream, nil)
	}
	r.watch.Begun()
	r.x.call.Record.Status = r.x.out.status
	if r.frees && r.resp.Body.RequestSent() {
		r.x.freeBody()
	}
	return nil
}

const notAStream = "it sent something else where an event stream was asked for"

// pass passes a piece on, and flushes when everything that has arrived is passed on.
func (r *relay) pass(b []byte) *failure { return r.passTo(b, r.scan.AtBoundary()) }

// passTo is pass; boundary tells whether b ends between two events.
func (r *relay) passTo(b []byte, boundary bool) *failure {
	if f := r.x.out.write(b, boundary); f != nil {
		return f
	}
	if body := r.resp.Body; body.Buffered() == 0 && !body.Done() {
		return r.x.out.flush()
	}
	return nil
}

// first is the first piece of a stream for the client, with the extensions that it asked
// for.
func (r *relay) first(b []byte) []byte {
	if !r.x.extensions.any() || r.x.out.begun || r.scan.Errors > 0 {
		return b
	}
	return r.x.eventWithExtension(b)
}

// passed relays an answer of unknown form, of a route that is passed through.
func (r *relay) passed(ctx *legContext) *failure {
	if r.sse || strings.HasPrefix(r.resp.Get("Content-Type"), "audio/") {
		return r.lines(ctx)
	}
	return r.plain(ctx)
}
