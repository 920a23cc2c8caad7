package upstream

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/wire"
)

// checkRequest refuses requests whose parts would break the request line or the head.
func checkRequest(r *Request) error {
	if !wire.ValidToken(r.Method) {
		return fmt.Errorf("method %q is not a valid token", text.Clip(r.Method, text.MaxQuoted))
	}
	if r.Path == "" || r.Path[0] != '/' {
		return fmt.Errorf("path %q does not begin with a slash", text.Clip(r.Path, text.MaxQuoted))
	}
	for i := 0; i < len(r.Path); i++ {
		if c := r.Path[i]; c <= ' ' || c == 0x7f {
			return fmt.Errorf("path %q holds the character %q", text.Clip(r.Path, text.MaxQuoted), c)
		}
	}
	for i := range r.Header {
		if !wire.ValidToken(r.Header[i].Name) {
			return fmt.Errorf("header name %q is not a valid token", text.Clip(r.Header[i].Name, text.MaxQuoted))
		}
		if !wire.ValidValue(r.Header[i].Value) {
			// The value may be a secret: not in the message.
			return fmt.Errorf("the value of header %q holds a control character", text.Clip(r.Header[i].Name, text.MaxQuoted))
		}
	}
	if r.Method == "HEAD" && bodyLen(r) > 0 {
		return errors.New("HEAD with a body")
	}
	return nil
}

func bodyLen(r *Request) int64 {
	var n int64
	for _, s := range r.Body {
		n += int64(len(s))
	}
	return n
}

// connectionHeader reports whether a header belongs to one connection, or to the
// framing of one message, and so is never taken from a caller.
func connectionHeader(name string) bool {
	switch len(name) {
	case 2:
		return strings.EqualFold(name, "TE")
	case 4:
		return strings.EqualFold(name, "Host")
	case 6:
		return strings.EqualFold(name, "Expect")
	case 7:
		return strings.EqualFold(name, "Trailer") || strings.EqualFold(name, "Upgrade")
	case 10:
		return strings.EqualFold(name, "Connection") || strings.EqualFold(name, "Keep-Alive")
	case 14:
		return strings.EqualFold(name, "Content-Length")
	case 16:
		return strings.EqualFold(name, "Proxy-Connection")
	case 17:
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// target is the request target of the request line.
func (e *Endpoint) target(r *Request) string {
	if r.AtRoot || e.base.Path == "" {
		return r.Path
	}
	return e.base.Path + r.Path
}
