package sim

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// errorObject is the error of ErrorInside200 and ErrorEvent.
const errorObject = `{"error":{"object":"error","message":"simulated engine failure","type":"InternalServerError","param":null,"code":500}}`

// malformed sends the malformed answer of the fault, most of them as raw bytes on
// the connection.
func (o *responseWriter) malformed(_ *request, stream bool) error {
	switch o.fault.Kind {
	case ErrorInside200:
		return o.json(http.StatusOK, []byte(errorObject))
	case ErrorEvent:
		o.stream = true
		if err := o.event(func(b []byte) []byte { return append(b, errorObject...) }); err != nil {
			return err
		}
		return o.done()
	case EventsForJSON, JSONForEvents, Informational:
		// On generation routes these are handled where the answer is made; an
		// information route answers with the other content type.
		if o.fault.Kind == EventsForJSON {
			return o.whole(http.StatusOK, eventStream, []byte("data: {}\n\ndata: [DONE]\n\n"))
		}
		return o.json(http.StatusOK, []byte(`{}`))
	}
	c, buffered, err := o.rc.Hijack()
	if err != nil { // HTTP/2: there is no connection to write raw bytes to
		o.broken = true
		return errBroken
	}
	o.broken = true
	stop := o.watch(c, buffered.Reader)
	defer stop()
	o.w.note(func() { o.rec.HeadersSent = time.Now() })
	err = o.garble(c, stream)
	_ = c.Close()
	if err != nil && o.ctx.Err() == nil {
		return err // the client has closed the connection
	}
	return errBroken
}

// watch reads what the client still sends, as closing a connection with unread bytes
// would send an RST, which discards the answer.
func (o *responseWriter) watch(c net.Conn, r io.Reader) (stop func()) {
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, r)
		close(done)
	}()
	return func() {
		_ = c.Close()
		<-done
	}
}

func (o *responseWriter) garble(c net.Conn, stream bool) error {
	contentType := "application/json"
	body := []byte(`{"id":"x","object":"text_completion","choices":[{"index":0,"text":" t1","finish_reason":"stop"}]}`)
	if stream {
		contentType = eventStream
		body = append(append([]byte("data: "), body...), "\n\ndata: [DONE]\n\n"...)
	}
	head := "HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: " + contentType + "\r\n"
	var b bytes.Buffer
	switch o.fault.Kind {
	case Garbage:
		b.WriteString("\x16\x03\x01 this is not HTTP\r\n\r\n")
	case Truncated:
		fmt.Fprintf(&b, "%sContent-Length: %d\r\n\r\n%s", head, len(body)+1000, body)
	case HugeHeader:
		b.WriteString(head + "X-Huge: ")
		b.Write(bytes.Repeat([]byte("h"), 1<<20))
		fmt.Fprintf(&b, "\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	case EOFDelimited:
		fmt.Fprintf(&b, "%sConnection: close\r\n\r\n%s", head, body)
	case Surplus:
		fmt.Fprintf(&b, "%sContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra", head, len(body), body)
	case ChunkLine:
		b.WriteString(head + "Transfer-Encoding: chunked\r\n\r\n5;x=")
		if _, err := c.Write(b.Bytes()); err != nil {
			return err
		}
		line := bytes.Repeat([]byte("e"), 16<<10)
		for {
			if _, err := c.Write(line); err != nil {
				return err
			}
			if o.ctx.Err() != nil {
				return o.ctx.Err()
			}
		}
	}
	_, err := c.Write(b.Bytes())
	return err
}
