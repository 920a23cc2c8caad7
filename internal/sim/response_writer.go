package sim

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// responseWriter writes one answer as its fault changes it. Its methods return
// errBroken once the fault has ended the connection.
type responseWriter struct {
	// Immutable once the answer starts.
	w      *Worker
	rec    *Request
	rw     http.ResponseWriter
	rc     *http.ResponseController
	conn   *conn
	ctx    context.Context
	fault  *Fault // never nil
	probe  bool
	stream bool
	early  bool // headers are sent before the engine has run
	named  bool // events have names, and no [DONE] follows them
	api    api
	nonce  []byte // the word of the body that the output repeats, nil: none

	mu      sync.Mutex // guards the fields below and the order of writes
	started bool
	broken  bool
	buf     []byte
	ticker  chan struct{} // ends the keep-alive goroutine
	ticking sync.WaitGroup
}

var noFault = &Fault{}

// applyFault does the fault's action if it belongs to p.
func (o *responseWriter) applyFault(p Point) error {
	if !o.fault.does(p) {
		return nil
	}
	return o.act()
}

func (o *responseWriter) act() error {
	switch o.fault.Do {
	case Freeze:
		<-o.ctx.Done()
		return context.Cause(o.ctx)
	case End:
		o.broken = true
		return errBroken
	}
	o.broken = true
	if o.conn != nil {
		if o.fault.Do == Reset {
			o.conn.reset()
		} else {
			_ = o.conn.Close()
		}
	}
	return errBroken
}

// abort makes sure that net/http writes nothing more. It is called last, for faults
// that end the connection.
func (o *responseWriter) abort() {
	if o.broken && o.fault.Do != End {
		panic(http.ErrAbortHandler)
	}
}

func (o *responseWriter) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return o.w.sleep(o.ctx, d)
}

// start sends the headers. length < 0 leaves the body chunked.
func (o *responseWriter) start(status int, contentType string, length int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.startLocked(status, contentType, length)
}

func (o *responseWriter) startLocked(status int, contentType string, length int) error {
	if o.started {
		return nil
	}
	o.started = true
	if o.conn != nil && o.fault.WriteSize > 0 {
		o.conn.writePause.Store(int64(o.fault.WritePause))
		o.conn.writeSize.Store(int64(o.fault.WriteSize))
	}
	h := o.rw.Header()
	h["Server"] = serverName
	if o.w.opt.Backend == VLLM {
		h["Vary"] = varyOrigin
	}
	if o.fault.ContentType != "" {
		contentType = o.fault.ContentType
	}
	if h["Content-Type"] = []string{contentType}; length == 0 && o.w.opt.Backend == VLLM {
		h["Content-Type"] = nil // an empty body has no type
	}
	for k, v := range o.fault.Header {
		h[http.CanonicalHeaderKey(k)] = v
	}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.Itoa(length)}
	}
	if o.fault.Kind == Informational {
		o.rw.WriteHeader(http.StatusEarlyHints)
		o.rw.WriteHeader(http.StatusEarlyHints)
	}
	o.rw.WriteHeader(status)
	o.w.note(func() { o.rec.Status, o.rec.HeadersSent = status, time.Now() })
	if o.early || o.fault.FirstByte > 0 || o.fault.does(AtHeaders) || o.fault.KeepAlive > 0 {
		if err := o.rc.Flush(); err != nil {
			return err
		}
	}
	if err := o.applyFault(AtHeaders); err != nil {
		return err
	}
	if o.fault.KeepAlive > 0 {
		o.ticker = make(chan struct{})
		stop := o.ticker
		o.ticking.Go(func() { o.tick(stop) })
	}
	if err := o.pause(o.fault.FirstByte); err != nil {
		return err
	}
	return nil
}

var (
	serverName = []string{"uvicorn"}
	varyOrigin = []string{"Origin"}
)

const eventStream = "text/event-stream; charset=utf-8"

// tick sends keep-alive bytes until the answer ends.
func (o *responseWriter) tick(stop <-chan struct{}) {
	comment := o.fault.Comment
	if comment == "" {
		comment = ": keep-alive\n\n"
	}
	if !o.stream {
		comment = " "
	}
	t := time.NewTicker(o.fault.KeepAlive)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-o.ctx.Done():
			return
		case <-t.C:
		}
		o.mu.Lock()
		if !o.broken {
			_ = o.writeLocked([]byte(comment))
		}
		o.mu.Unlock()
	}
}

// quiet stops the keep-alive bytes.
func (o *responseWriter) quiet() {
	o.mu.Lock()
	ticker := o.ticker
	o.ticker = nil
	o.mu.Unlock()
	if ticker != nil {
		close(ticker)
		o.ticking.Wait()
	}
}

func (o *responseWriter) writeLocked(p []byte) error {
	if o.broken {
		return errBroken
	}
	n, err := o.rw.Write(p)
	if err == nil {
		err = o.rc.Flush()
	}
	o.w.mu.Lock()
	if o.rec.FirstByte.IsZero() {
		o.rec.FirstByte = time.Now()
	}
	o.rec.Bytes += int64(n)
	o.w.mu.Unlock()
	return err
}

// event sends one event with the payload that fill appends. Events of one
// answer may come from several goroutines.
func (o *responseWriter) event(fill func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf[:0], "data: "...)
	o.buf = append(fill(o.buf), "\n\n"...)
	return o.rawEventLocked(o.buf)
}

func (o *responseWriter) rawEventLocked(p []byte) error {
	if err := o.startLocked(http.StatusOK, eventStream, -1); err != nil {
		return err
	}
	sent := o.rec.Events
	if sent == 0 && o.fault.does(AtEvent) && o.fault.After == 0 {
		return o.act()
	}
	if sent > 0 {
		if err := o.pause(o.fault.EventDelay); err != nil {
			return err
		}
	}
	if o.fault.does(AtInside) && sent >= o.fault.After {
		if err := o.writeLocked(p[:len(p)/2]); err != nil {
			return err
		}
		return o.act()
	}
	if err := o.writeLocked(p); err != nil {
		return err
	}
	o.w.note(func() { o.rec.Events++ })
	if o.fault.does(AtEvent) && o.fault.After > 0 && o.rec.Events >= o.fault.After {
		return o.act()
	}
	return nil
}

// done sends the end marker of a stream.
func (o *responseWriter) done() error {
	o.quiet()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.startLocked(http.StatusOK, eventStream, -1); err != nil { // there was no token
		return err
	}
	if err := o.applyFault(AtEnd); err != nil || o.named {
		return err
	}
	return o.writeLocked([]byte("data: [DONE]\n\n"))
}

// json sends a whole body.
func (o *responseWriter) json(status int, body []byte) error {
	return o.whole(status, "application/json", body)
}

func (o *responseWriter) whole(status int, contentType string, body []byte) error {
	length := len(body)
	if o.fault.KeepAlive > 0 || o.fault.EarlyHeaders {
		length = -1
	}
	if err := o.start(status, contentType, length); err != nil {
		return err
	}
	o.quiet()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fault.does(AtInside) || o.fault.does(AtEnd) || o.fault.does(AtEvent) {
		if err := o.writeLocked(body[:len(body)/2]); err != nil {
			return err
		}
		return o.act()
	}
	if len(body) == 0 {
		return nil
	}
	return o.writeLocked(body)
}

// fail answers with an error: as JSON if the headers are not sent yet, else as an
// event of the stream.
func (o *responseWriter) fail(err error, generate bool) error {
	e := asWire(err)
	o.w.note(func() { o.rec.Error = e.message + e.detail })
	o.mu.Lock()
	started := o.started
	o.mu.Unlock()
	if o.w.opt.Backend == VLLM || o.named {
		return o.failVLLM(e, started)
	}
	if !started && !(o.stream && e.status >= 500) {
		return o.json(e.status, e.body())
	}
	if !o.stream {
		return o.json(e.status, e.body())
	}
	if err := o.event(func(b []byte) []byte { return append(b, e.event(generate)...) }); err != nil {
		return err
	}
	return o.done()
}

// answerStatus sends the answer of a fault with a status.
func (o *responseWriter) answerStatus() error {
	f := o.fault
	body := []byte(f.Body)
	if f.Body == "" {
		e := &wireError{status: f.Status, message: fmt.Sprintf("simulated status %d", f.Status)}
		if body = e.body(); o.w.opt.Backend == VLLM {
			body = o.vbody(e)
		}
	}
	if f.BodySize > 0 {
		body = sized(body, f.BodySize)
	}
	o.w.note(func() {
		if f.Status >= 400 {
			o.rec.Error = "fault status"
		}
	})
	return o.json(f.Status, body)
}

// sized repeats or cuts a text to n bytes.
func sized(b []byte, n int) []byte {
	out := make([]byte, 0, n)
	for len(b) > 0 && len(out) < n {
		out = append(out, b[:min(len(b), n-len(out))]...)
	}
	return out
}
