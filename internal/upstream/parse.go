package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// Bounds of an answer's framing. The head as a whole is bounded by
// Config.MaxHeaderBytes, informational answers included.
const (
	maxHeaderLines   = 256
	maxInformational = 8
	maxChunkLine     = 1 << 10
	maxChunkExcess   = 16 << 10
	maxTrailerLine   = 2 << 10
	maxTrailerBytes  = 16 << 10
	maxTrailerLines  = 64
)

// errTooLarge is wrapped by errors about a bound; every other error of this file
// is about the form.
var errTooLarge = errors.New("too large")

func tooLarge(what string, bound int, unit string) error {
	return fmt.Errorf("%s is over the bound of %d %s: %w", what, bound, unit, errTooLarge)
}

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

// headEnd returns the length of the head at the start of b, its empty line
// included, or -1 if b does not hold all of it. *scanned remembers how far b was
// looked at, so that a head that comes byte by byte costs no more than one that
// comes at once.
func headEnd(b []byte, scanned *int) int {
	for i := *scanned; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			*scanned = len(b)
			return -1
		}
		lf := i + j
		rest := b[lf+1:]
		switch {
		case len(rest) > 0 && rest[0] == '\n':
			return lf + 2
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return lf + 3
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			*scanned = lf
			return -1
		}
		i = lf + 1
	}
}

const versionPrefix = "HTTP/1."

// startsLikeHTTP tells whether b may be the start of a response.
func startsLikeHTTP(b []byte) bool {
	n := min(len(b), len(versionPrefix))
	return string(b[:n]) == versionPrefix[:n]
}

// cutLine takes the first line off b, without its LF or CR LF.
func cutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	line, rest = b[:i], b[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest
}

// parseHead parses a whole head as headEnd delimits it. It is at least as strict as
// net/http: RFC 9112 without its leniencies, but for a bare LF as a line end.
func parseHead(b []byte, method string) (head, error) {
	h := head{length: -1}
	line, rest := cutLine(b)
	minor, err := h.statusLine(line)
	if err != nil {
		return h, err
	}
	h.lines = rest
	chunked := false
	var length []byte // Content-Length as spelled: twice "01" and "1" is no agreement
	for n := 0; ; n++ {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		if n == maxHeaderLines {
			return h, tooLarge("the header", maxHeaderLines, "lines")
		}
		name, value, err := cutField(line)
		if err != nil {
			return h, err
		}
		switch {
		case len(name) == 14 && equalFold(name, "content-length"):
			v, err := parseLength(value)
			if err != nil {
				return h, err
			}
			if h.length >= 0 && !bytes.Equal(value, length) {
				return h, errors.New("two different values of Content-Length")
			}
			h.length, length = v, value
		case len(name) == 17 && equalFold(name, "transfer-encoding"):
			if chunked || !equalFold(value, "chunked") {
				return h, fmt.Errorf("unsupported Transfer-Encoding %q", clip(string(value)))
			}
			chunked = true
		case len(name) == 10 && equalFold(name, "connection"):
			h.close = h.close || hasToken(value, "close")
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
		// A body that must not be there may well follow.
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
		len(line) > 12 && line[12] != ' ' || !validValue(line) {
		return 0, fmt.Errorf("status line %q is malformed", clip(string(line)))
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("status line %q is malformed", clip(string(line)))
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return 0, fmt.Errorf("status %d does not exist", h.status)
	}
	return int(line[7] - '0'), nil
}

// cutField splits a header or trailer line.
func cutField(line []byte) (name, value []byte, err error) {
	i := bytes.IndexByte(line, ':')
	if i < 0 || !validToken(line[:i]) {
		return nil, nil, fmt.Errorf("header line %q is malformed", clip(string(line)))
	}
	value = trimSpace(line[i+1:])
	if !validValue(value) {
		return nil, nil, fmt.Errorf("the value of header %q holds a control character", clip(string(line[:i])))
	}
	return line[:i], value, nil
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// equalFold compares with a word in lower case, ASCII only.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func hasToken(list []byte, lower string) bool {
	for len(list) > 0 {
		word := list
		if i := bytes.IndexByte(list, ','); i >= 0 {
			word, list = list[:i], list[i+1:]
		} else {
			list = nil
		}
		if equalFold(trimSpace(word), lower) {
			return true
		}
	}
	return false
}

func parseLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 19 {
		return 0, fmt.Errorf("Content-Length %q is no length", clip(string(b)))
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("Content-Length %q is no length", clip(string(b)))
		}
		n = n*10 + uint64(c-'0') // 19 digits fit
	}
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("Content-Length %q is no length", string(b))
	}
	return int64(n), nil
}

// chunks follows the framing of a chunked body (RFC 9112, section 7.1).
type chunks struct {
	left     int64 // payload left of the current chunk
	state    chunkState
	excess   int // framing beyond what is reasonable for the payload so far
	trailers []byte
	lines    int
}

type chunkState uint8

const (
	chunkSize    chunkState = iota // a size line comes
	chunkData                      // left bytes of payload come
	chunkDataEnd                   // the CR LF behind the payload comes
	chunkTrailer                   // a trailer line or the final empty line comes
	chunkDone
)

// advance consumes framing at the start of b up to payload, to the end of the
// body, or to the end of b, and returns how many bytes it consumed. Bytes it leaves
// although no payload is due are the beginning of a line.
func (k *chunks) advance(b []byte) (n int, err error) {
	for {
		rest := b[n:]
		switch k.state {
		case chunkData:
			if k.left > 0 {
				return n, nil
			}
			k.state = chunkDataEnd
		case chunkDataEnd:
			if len(rest) > 0 && rest[0] != '\r' || len(rest) > 1 && rest[1] != '\n' {
				return n, errors.New("a chunk is longer than its size")
			}
			if len(rest) < 2 {
				return n, nil
			}
			n += 2
			k.state = chunkSize
		case chunkSize:
			line, err := crlfLine(rest, "a chunk-size line", maxChunkLine)
			if line == nil || err != nil {
				return n, err
			}
			if err := k.sizeLine(line); err != nil {
				return n, err
			}
			n += len(line) + 2
			k.state = chunkData
			if k.left == 0 {
				k.state = chunkTrailer
			}
		case chunkTrailer:
			line, err := crlfLine(rest, "a trailer line", maxTrailerLine)
			if line == nil || err != nil {
				return n, err
			}
			n += len(line) + 2
			if len(line) == 0 {
				k.state = chunkDone
				return n, nil
			}
			if err := k.trailerLine(line); err != nil {
				return n, err
			}
		default:
			return n, nil
		}
	}
}

// crlfLine returns the first line of b without its CR LF, nil if it is not whole
// yet. Within chunked framing a bare LF is an error, as it is for net/http: two
// readers that differ about it would see different bodies.
func crlfLine(b []byte, what string, bound int) ([]byte, error) {
	i := bytes.IndexByte(b[:min(len(b), bound)], '\n')
	if i < 0 {
		if len(b) >= bound {
			return nil, tooLarge(what, bound, "bytes")
		}
		return nil, nil
	}
	if i == 0 || b[i-1] != '\r' {
		return nil, fmt.Errorf("%s ends in a bare LF", what)
	}
	return b[: i-1 : i-1], nil
}

func (k *chunks) sizeLine(line []byte) error {
	i := 0
	var n uint64
	for ; i < len(line); i++ {
		c := line[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			c = 0xff
		}
		if c == 0xff {
			break
		}
		if i == 16 {
			return fmt.Errorf("chunk size %q is too long", clip(string(line)))
		}
		n = n<<4 | uint64(c)
	}
	ext := line[i:]
	if i == 0 || n > math.MaxInt64 || len(ext) > 0 && ext[0] != ';' && len(trimSpace(ext)) > 0 || !validValue(ext) {
		return fmt.Errorf("chunk-size line %q is malformed", clip(string(line)))
	}
	// An engine may use extensions, but not send nothing else: what goes beyond 16
	// bytes a chunk and twice the payload adds up, and is bounded.
	k.excess += len(line) + 2 - 16
	if n < uint64(k.excess+maxChunkExcess) {
		k.excess -= int(2 * n)
	} else {
		k.excess = 0
	}
	k.excess = max(k.excess, 0)
	if k.excess > maxChunkExcess {
		return tooLarge("chunk framing without payload", maxChunkExcess, "bytes")
	}
	k.left = int64(n)
	return nil
}

func (k *chunks) trailerLine(line []byte) error {
	if _, _, err := cutField(line); err != nil {
		return err
	}
	if k.lines++; k.lines > maxTrailerLines {
		return tooLarge("the trailer", maxTrailerLines, "lines")
	}
	if len(k.trailers)+len(line) > maxTrailerBytes {
		return tooLarge("the trailer", maxTrailerBytes, "bytes")
	}
	k.trailers = append(append(k.trailers, line...), '\n')
	return nil
}
