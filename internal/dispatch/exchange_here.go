package dispatch

import (
	"context"
	"net/http"
)

// answerHere answers a request that no engine is needed for.
func (x *exchange) answerHere() {
	text := &x.plan.text
	if text.Reader == nil {
		p := placement{request: &x.request}
		x.answer(p.withoutText())
		return
	}
	p := x.call.Peeked
	var body []byte
	if f := x.encode(func(ctx context.Context) (err error) {
		body, err = text.Reader.Answer(ctx, p, x.turn)
		return err
	}); f != nil {
		x.answer(f)
		return
	}
	rec := &x.call.Record
	rec.Model, rec.Status, rec.Bytes = x.plan.pool, http.StatusOK, int64(len(body))
	x.setHeader("Content-Type", typeJSON)
	x.setHeader("Content-Length", itoa(len(body)))
	x.w.WriteHeader(http.StatusOK)
	_, _ = x.w.Write(body) // a client that left now is answered all the same
	x.finish(reasonOK, nil)
}
