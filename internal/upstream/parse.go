package upstream

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/wire"
)

// Bounds of an answer's framing. The head as a whole is bounded by
// Config.MaxHeaderBytes, informational answers included.
const (
	maxHeaderLines   = 256
	maxInformational = 8
)

// framing is how the end of a body is found.
type framing uint8

const (
	framedNone    framing = iota // no body
	framedLength                 // Content-Length
	framedChunked                // Transfer-Encoding: chunked
	framedEOF                    // the end of the connection
)

// head is the head of a response, parsed.
type head struct {
	status  int
	lines   []byte // the header lines, each with its line end
	length  int64  // Content-Length, -1 if absent
	framing framing
	close   bool // the connection ends with this answer
}

const versionPrefix = "HTTP/1."

// startsLikeHTTP reports whether b may be the start of a response.
func startsLikeHTTP(b []byte) bool {
	n := min(len(b), len(versionPrefix))
	return string(b[:n]) == versionPrefix[:n]
}

// parseHead parses a whole head as wire.HeadEnd delimits it. It is at least as strict as
// net/http: RFC 9112 without its leniencies, but for a bare LF as a line end.
func parseHead(b []byte, method string) (head, error) {
	h := head{length: -1}
	line, rest := wire.CutLine(b)
	minor, err := h.statusLine(line)
	if err != nil {
		return h, err
	}
	h.lines = rest
	chunked := false
	var length []byte // Content-Length as spelled: twice "01" and "1" is no agreement
	for n := 0; ; n++ {
		line, rest = wire.CutLine(rest)
		if len(line) == 0 {
			break
		}
		if n == maxHeaderLines {
			return h, wire.TooLarge("the header", maxHeaderLines, "lines")
		}
		name, value, err := wire.CutField(line)
		if err != nil {
			return h, err
		}
		switch {
		case len(name) == 14 && wire.EqualFold(name, "content-length"):
			v, err := wire.ParseLength(value)
			if err != nil {
				return h, err
			}
			if h.length >= 0 && !bytes.Equal(value, length) {
				return h, errors.New("two different values of Content-Length")
			}
			h.length, length = v, value
		case len(name) == 17 && wire.EqualFold(name, "transfer-encoding"):
			if chunked || !wire.EqualFold(value, "chunked") {
				return h, fmt.Errorf("unsupported Transfer-Encoding %q", text.Clip(string(value), text.MaxQuoted))
			}
			chunked = true
		case len(name) == 10 && wire.EqualFold(name, "connection"):
			h.close = h.close || wire.HasToken(value, "close")
		}
	}
	h.lines = h.lines[:len(h.lines)-len(rest)]
	h.close = h.close || minor == 0 // HTTP/1.0 with keep-alive: not worth the risk
	return h, h.frame(method, minor, chunked)
}

// frame decides where the body ends (RFC 9112, section 6.3).
func (h *head) frame(method string, minor int, chunked bool) error {
	if chunked && h.length >= 0 {
		return errors.New("both Content-Length and Transfer-Encoding")
	}
	if chunked && minor == 0 {
		return errors.New("HTTP/1.0 answer with Transfer-Encoding")
	}
	switch {
	case h.status < 200 || h.status == 204 || h.status == 304 || method == "HEAD":
		h.framing = framedNone
		// A body that is not allowed here may follow nevertheless.
		if (h.status < 200 || h.status == 204) && (chunked || h.length > 0) {
			h.close = true
		}
	case chunked:
		h.framing = framedChunked
	case h.length == 0:
		h.framing = framedNone
	case h.length > 0:
		h.framing = framedLength
	default:
		h.framing = framedEOF
		h.close = true
	}
	return nil
}

func (h *head) statusLine(line []byte) (minor int, err error) {
	// HTTP/1.1 200 OK
	if len(line) < 12 || string(line[:7]) != versionPrefix || line[7] != '0' && line[7] != '1' || line[8] != ' ' ||
		len(line) > 12 && line[12] != ' ' || !wire.ValidValue(line) {
		return 0, fmt.Errorf("status line %q is malformed", text.Clip(string(line), text.MaxQuoted))
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("status line %q is malformed", text.Clip(string(line), text.MaxQuoted))
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return 0, fmt.Errorf("status %d does not exist", h.status)
	}
	return int(line[7] - '0'), nil
}
