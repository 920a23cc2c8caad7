package dispatch

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/upstream"
)

// headerValues are the values of an answer's header. A map of slices wants a slice
// for each: those of an ordinary answer lie here.
type headerValues struct {
	values [6]string
	n      int
}

// one is a slice of one value.
func (v *headerValues) one(value string) []string {
	if v.n == len(v.values) {
		return []string{value}
	}
	v.values[v.n] = value
	v.n++
	return v.values[v.n-1 : v.n : v.n]
}

// setHeader sets a header of the answer; name is in canonical form. The header must
// be the caller's alone.
func (x *request) setHeader(name, value string) {
	h := x.w.Header()
	if old := h[name]; len(old) != 1 || old[0] != value {
		h[name] = x.values.one(value)
	}
}

// copyResponseHeader passes the engine's headers on.
func (x *request) copyResponseHeader(resp *upstream.Response) {
	h := x.w.Header()
	var named map[string]bool // what the connection to the engine has for itself
	resp.Each(func(name, value string) bool {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if name == "Connection" && named == nil {
			named = connectionNamed(http.Header{name: resp.Values(name)})
		}
		if !passResponse(name) {
			return true
		}
		if old := h[name]; len(old) > 0 {
			h[name] = append(old, value)
		} else {
			h[name] = x.values.one(value)
		}
		return true
	})
	for name := range named {
		if passResponse(name) {
			delete(h, name)
		}
	}
}

// setDecodeHeader names the decode rank again, which may have been lost and replaced
// while prefill ran. The header must be the caller's alone.
func (x *request) setDecodeHeader() {
	if r := x.ticket.Decode; r != nil {
		x.setHeader(HeaderDecodeWorker, r.Data().(*fleet.Rank).Name())
	}
}

// responseDrop are the engine's headers that are not passed to clients.
var responseDrop = headerSet(
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "TE", "Trailer",
	"Transfer-Encoding", "Upgrade", "Content-Length", "Date", "Server",
	HeaderRequestID, headerRequestIDA, "X-Smg-Error-Code", "Set-Cookie", "Alt-Svc", "Strict-Transport-Security",
)

// passResponse tells whether an engine's header goes to the client. name is in
// canonical form.
func passResponse(name string) bool {
	_, drop := responseDrop[name]
	return !drop && !strings.HasPrefix(name, "X-Sluice-")
}

// note tells what of the request was left out, in the answer's header and the access
// log. It must not be called while keep-alives may be written.
func (x *request) note(what string) {
	x.call.Record.Note = what
	if what == "" {
		delete(x.w.Header(), HeaderNote)
		return
	}
	x.setHeader(HeaderNote, what)
}

// Headers of answers that tell where a request ran and how long it waited for
// that. The workers are the ids of GET /workers, with "@" and the rank where
// data-parallel ranks are scheduled apart: a pin takes them as they are.
const (
	HeaderPrefillWorker = "X-Sluice-Prefill-Worker"
	HeaderDecodeWorker  = "X-Sluice-Decode-Worker"
	// HeaderNote tells what of the request was left out on its way to the engine.
	HeaderNote    = "X-Sluice-Note"
	HeaderQueueMS = "X-Sluice-Queue-Ms"
)
