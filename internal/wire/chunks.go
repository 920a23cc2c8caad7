package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/sluice-router/sluice/internal/text"
)

// Bounds of a chunked body's framing.
const (
	maxChunkLine    = 1 << 10
	maxChunkExcess  = 16 << 10
	maxTrailerLine  = 2 << 10
	maxTrailerBytes = 16 << 10
	maxTrailerLines = 64
)

// Chunks follows the framing of a chunked body (RFC 9112, section 7.1).
type Chunks struct {
	// Left is the payload left of the current chunk. Who takes payload counts it
	// down.
	Left     int64
	state    chunkState
	excess   int // framing beyond what is reasonable for the payload so far
	trailers []byte
	lines    int
}

// Done reports whether the end of the body has been seen.
func (k *Chunks) Done() bool { return k.state == chunkDone }

// Trailers are the trailer's lines, each with a line feed.
func (k *Chunks) Trailers() []byte { return k.trailers }

type chunkState uint8

const (
	chunkSize    chunkState = iota // a size line comes
	chunkData                      // left bytes of payload come
	chunkDataEnd                   // the CR LF behind the payload comes
	chunkTrailer                   // a trailer line or the final empty line comes
	chunkDone
)

// Advance consumes framing at the start of b up to payload, to the end of the
// body, or to the end of b, and returns how many bytes it consumed. Bytes it leaves
// although no payload is due are the beginning of a line.
func (k *Chunks) Advance(b []byte) (n int, err error) {
	for {
		rest := b[n:]
		switch k.state {
		case chunkData:
			if k.Left > 0 {
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
			if k.Left == 0 {
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
			return nil, TooLarge(what, bound, "bytes")
		}
		return nil, nil
	}
	if i == 0 || b[i-1] != '\r' {
		return nil, fmt.Errorf("%s ends in a bare LF", what)
	}
	return b[: i-1 : i-1], nil
}

func (k *Chunks) sizeLine(line []byte) error {
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
			return fmt.Errorf("chunk size %q is too long", text.Clip(string(line), text.MaxQuoted))
		}
		n = n<<4 | uint64(c)
	}
	ext := line[i:]
	if i == 0 || n > math.MaxInt64 || len(ext) > 0 && ext[0] != ';' && len(TrimSpace(ext)) > 0 || !ValidValue(ext) {
		return fmt.Errorf("chunk-size line %q is malformed", text.Clip(string(line), text.MaxQuoted))
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
		return TooLarge("chunk framing without payload", maxChunkExcess, "bytes")
	}
	k.Left = int64(n)
	return nil
}

func (k *Chunks) trailerLine(line []byte) error {
	if _, _, err := CutField(line); err != nil {
		return err
	}
	if k.lines++; k.lines > maxTrailerLines {
		return TooLarge("the trailer", maxTrailerLines, "lines")
	}
	if len(k.trailers)+len(line) > maxTrailerBytes {
		return TooLarge("the trailer", maxTrailerBytes, "bytes")
	}
	k.trailers = append(append(k.trailers, line...), '\n')
	return nil
}
