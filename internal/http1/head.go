package http1

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/wire"
)

// maxHeaderLines bounds a head beside its bytes.
const maxHeaderLines = 256

// head is what the server itself needs from a request's head.
type head struct {
	length      int64 // of the body; 0 without one
	chunked     bool
	expect      bool // the client waits for 100 Continue
	close       bool // the connection is closed after this request
	old         bool // HTTP/1.0
	method      string
	hosts       int
	haveLength  bool
	lengthValue string
}

// HeadTooLarge is the answer to a head larger than bound, in bytes.
func HeadTooLarge(bound int) *Problem {
	return &Problem{Status: http.StatusRequestHeaderFieldsTooLarge, Message: fmt.Sprintf("the request's head is larger than %d bytes", bound)}
}

func malformed(what string) *Problem { return &Problem{Status: http.StatusBadRequest, Message: what} }

// parse parses a complete head into the request. Messages never quote a header's value,
// which may be a secret.
func (x *exchange) parse(s string) (head, *Problem) {
	var h head
	line, rest := cutLine(s)
	if p := x.requestLine(&h, line); p != nil {
		return h, p
	}
	values := x.values[:0]
	for n := 0; ; n++ {
		line, rest = cutLine(rest)
		if line == "" {
			break
		}
		if n == maxHeaderLines {
			return h, &Problem{Status: http.StatusRequestHeaderFieldsTooLarge, Message: fmt.Sprintf("the request's head has more than %d lines", maxHeaderLines)}
		}
		i := strings.IndexByte(line, ':')
		if i < 0 || !wire.ValidToken(line[:i]) {
			return h, malformed(fmt.Sprintf("line %d of the request's header is malformed", n+1))
		}
		name, value := canonical(line[:i]), trim(line[i+1:])
		if !wire.ValidValue(value) {
			return h, malformed(fmt.Sprintf("the value of the header %s holds a control character", text.Clip(name, text.MaxQuoted)))
		}
		keep, p := h.field(name, value)
		if p != nil {
			return h, p
		}
		switch {
		case name == "Host":
			if h.hosts == 1 && x.req.Host == "" {
				x.req.Host = value
			}
		case !keep:
		case x.header[name] != nil:
			x.header[name] = append(x.header[name], value)
		case len(values) < cap(values):
			values = append(values, value)
			x.header[name] = values[len(values)-1 : len(values) : len(values)]
		default:
			x.header[name] = []string{value}
		}
	}
	return h, h.check()
}

// field records the fields that the server itself needs. keep is false for those that the
// handler does not see.
func (h *head) field(name, value string) (keep bool, p *Problem) {
	switch name {
	case "Host":
		h.hosts++
		if h.hosts > 1 {
			return false, malformed("there are several Host headers")
		}
		if !validHost(value) {
			return false, malformed("the Host header is malformed")
		}
		return false, nil
	case "Content-Length":
		n, err := wire.ParseLength([]byte(value))
		if err != nil {
			return false, malformed("the Content-Length is not a number of bytes")
		}
		if h.haveLength && value != h.lengthValue {
			return false, malformed("there are two different values of Content-Length")
		}
		if h.haveLength {
			return false, nil
		}
		h.haveLength, h.length, h.lengthValue = true, n, value
	case "Transfer-Encoding":
		switch {
		case h.chunked:
			return false, malformed("there are several transfer codings")
		case !wire.EqualFold([]byte(value), "chunked"): // ASCII only: in Unicode, a Kelvin sign folds to k
			return false, &Problem{Status: http.StatusNotImplemented, Message: "the only supported transfer coding is chunked"}
		}
		h.chunked = true
		return false, nil
	case "Connection":
		h.close = h.close || wire.HasToken([]byte(value), "close")
	case "Expect":
		if !wire.EqualFold([]byte(value), "100-continue") {
			return false, &Problem{Status: http.StatusExpectationFailed, Message: "the only supported expectation is 100-continue"}
		}
		h.expect = true
	case "Trailer":
		return false, nil
	}
	return true, nil
}

// check checks the head as a whole.
func (h *head) check() *Problem {
	switch {
	case h.hosts == 0 && !h.old:
		return malformed("the Host header is missing")
	case h.chunked && h.haveLength:
		// A proxy in front that uses the other one sees a different end of the request:
		// request smuggling (RFC 9112, section 6.1).
		return malformed("there are both a Content-Length and a Transfer-Encoding")
	case h.chunked && h.old:
		return malformed("HTTP/1.0 has no transfer codings")
	}
	h.close = h.close || h.old
	h.expect = h.expect && !h.old && (h.chunked || h.length > 0)
	return nil
}

// requestLine parses METHOD TARGET HTTP/1.x.
func (x *exchange) requestLine(h *head, line string) *Problem {
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !wire.ValidToken(method) {
		return malformed("the request line is malformed")
	}
	r := x.req
	h.method, r.Method = method, method
	r.RequestURI = target
	r.ProtoMajor = 1
	// Proto must not share memory with the head: it outlives the request.
	switch {
	case version == "HTTP/1.1":
		r.Proto, r.ProtoMinor = "HTTP/1.1", 1
	case version == "HTTP/1.0":
		h.old = true
		r.Proto, r.ProtoMinor = "HTTP/1.0", 0
	case otherVersion(version) && version[len("HTTP/")] == '1':
		// A later minor version is handled as the latest one supported here: RFC 9110,
		// section 2.5.
		r.Proto, r.ProtoMinor = "HTTP/1.1", 1
	case otherVersion(version):
		return &Problem{Status: http.StatusHTTPVersionNotSupported, Message: "the supported version of HTTP is 1.1"}
	default:
		return malformed("the request line is malformed")
	}
	return x.target(method, target)
}

// otherVersion tells whether s has the form HTTP/n.n.
func otherVersion(s string) bool {
	n, ok := strings.CutPrefix(s, "HTTP/")
	return ok && len(n) == 3 && digit(n[0]) && n[1] == '.' && digit(n[2])
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// target parses path and query. The usual form is parsed without allocation.
func (x *exchange) target(method, target string) *Problem {
	x.url = url.URL{}
	x.req.URL = &x.url
	if method == http.MethodConnect {
		return malformed("CONNECT is not supported")
	}
	path, query, _ := strings.Cut(target, "?")
	if len(path) > 0 && path[0] == '/' && plain(path, &pathTable) && plain(query, &queryTable) && (len(path) == 1 || path[1] != '/') {
		x.url.Path, x.url.RawQuery = path, query
		x.url.ForceQuery = query == "" && strings.HasSuffix(target, "?")
		return nil
	}
	bad := malformed("the request's target is malformed")
	for i := range len(target) {
		// Fragments are not sent in requests, and some parsers cut them off.
		if target[i] <= ' ' || target[i] >= 0x7f || target[i] == '#' {
			return bad
		}
	}
	u, err := url.ParseRequestURI(target)
	switch {
	case err != nil:
		return bad
	case target[0] == '/':
	case target == "*" && method == http.MethodOptions:
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && validHost(u.Host):
		x.req.Host = u.Host // absolute form: it takes precedence over the Host header
	default:
		return bad
	}
	x.url = *u
	return nil
}

// pathTable and queryTable mark the bytes that need no decoding in a target.
var pathTable, queryTable = func() (path, query [256]bool) {
	for c := range 256 {
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		path[c] = alnum || c < 0x7f && strings.IndexByte("/-._~$&+,;=:@", byte(c)) >= 0
		query[c] = path[c] || c < 0x7f && strings.IndexByte("?%!'()*", byte(c)) >= 0
	}
	return path, query
}()

func plain(s string, table *[256]bool) bool {
	for i := range len(s) {
		if !table[s[i]] {
			return false
		}
	}
	return true
}

// validHost allows what a host and port consist of, an IPv6 address included.
func validHost(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"#/<>?@\\^`{|}", c) >= 0 {
			return false
		}
	}
	return true
}

// cutLine takes the first line off s, without its LF or CR LF.
func cutLine(s string) (line, rest string) {
	i := strings.IndexByte(s, '\n')
	line, rest = s[:i], s[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest
}

func trim(s string) string { return strings.Trim(s, " \t") }

// canonical is the form net/http has header names in.
func canonical(name string) string {
	if known, ok := lowerNames[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// lowerNames are names that some clients send in lower case; the table avoids an
// allocation for each.
var lowerNames = func() map[string]string {
	m := map[string]string{}
	for _, n := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection", "Content-Length", "Content-Type",
		"Expect", "Host", "Traceparent", "Tracestate", "Transfer-Encoding", "User-Agent", "X-Api-Key",
		"X-Forwarded-For", "X-Forwarded-Proto", "X-Request-Id", "X-Smg-Routing-Key",
	} {
		m[strings.ToLower(n)] = n
	}
	return m
}()
