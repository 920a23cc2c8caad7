package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A head that comes in pieces must end where one that comes at once does, and the
// search must not begin anew with each piece.
func TestHeadEndInPieces(t *testing.T) {
	for _, in := range []string{"a\r\nb\r\n\r\nrest", "a\nb\n\nrest", "a\r\n\r\n", "a\n\r\nb\n\n", "a\r\n\rb\r\n\r\n"} {
		scanned := 0
		want := HeadEnd([]byte(in), &scanned)
		for step := 1; step < len(in); step++ {
			scanned = 0
			for n := step; ; n = min(n+step, len(in)) {
				end := HeadEnd([]byte(in[:n]), &scanned)
				if end >= 0 {
					if end != want {
						t.Errorf("%q by %d: %d, want %d", in, step, end, want)
					}
					break
				}
				if n == len(in) {
					t.Errorf("%q by %d: no end", in, step)
					break
				}
				if scanned < n-2 {
					t.Errorf("%q by %d: looked at %d of %d only", in, step, scanned, n)
				}
			}
		}
	}
}

// dechunk decodes in pieces of step bytes.
func dechunk(in string, step int) (payload, rest string, k Chunks, err error) {
	var buf []byte
	for fed := 0; ; {
		n, err := k.Advance(buf)
		buf = buf[n:]
		if err != nil || k.state == chunkDone {
			return payload, string(buf) + in[fed:], k, err
		}
		if p := min(int64(len(buf)), k.Left); p > 0 {
			payload += string(buf[:p])
			k.Left -= p
			buf = buf[p:]
			continue
		}
		if fed == len(in) {
			return payload, string(buf), k, errors.New("short")
		}
		n = min(step, len(in)-fed)
		buf = append(buf, in[fed:fed+n]...)
		fed += n
	}
}

func TestChunks(t *testing.T) {
	all := func(in string, check func(payload, rest string, k Chunks, err error)) {
		for step := 1; step <= len(in); step += 1 + step/2 {
			check(dechunk(in, step))
		}
	}
	ok := func(in, payload, rest, trailers string) {
		t.Helper()
		all(in, func(p, r string, k Chunks, err error) {
			t.Helper()
			if err != nil || p != payload || r != rest || string(k.trailers) != trailers {
				t.Errorf("%.80q: %.80q rest %q trailers %q: %v", in, p, r, k.trailers, err)
			}
		})
	}
	ok("0\r\n\r\n", "", "", "")
	ok("5\r\nhello\r\n0\r\n\r\nmore", "hello", "more", "")
	ok("A;x=y\r\n0123456789\r\n1 \r\nz\r\n0000;q\r\n\r\n", "0123456789z", "", "")
	ok("1\r\na\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\nGET", "a", "GET", "X-T: 1\nY: 2\n")
	ok(strings.Repeat("1\r\na\r\n", 9000)+"0\r\n\r\n", strings.Repeat("a", 9000), "", "")

	bad := func(in string) {
		t.Helper()
		all(in, func(p, r string, k Chunks, err error) {
			t.Helper()
			if err == nil || err.Error() == "short" {
				t.Errorf("%.80q was taken: %v", in, err)
			}
		})
	}
	bad("\r\n")
	bad("g\r\n")
	bad("-1\r\n")
	bad("0x5\r\nhello\r\n")
	bad("5 x\r\nhello\r\n")
	bad("5\nhello\r\n")
	bad("5\r\nhello\n0\r\n\r\n")
	bad("5\r\nhelloo\r\n0\r\n\r\n")
	bad("5;a\rb\r\nhello\r\n")
	bad("8000000000000000\r\n")
	bad("00000000000000001\r\n")
	bad("0\r\nno colon\r\n\r\n")
	bad("0\r\nA: 1\n\r\n")
	large := func(in string) {
		t.Helper()
		_, _, _, err := dechunk(in, 512)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%.80q: %v", in, err)
		}
	}
	large("5;" + strings.Repeat("x", maxChunkLine) + "\r\nhello\r\n0\r\n\r\n")
	large(strings.Repeat("1;"+strings.Repeat("x", 200)+"\r\na\r\n", 200))
	large("0\r\nA: " + strings.Repeat("x", maxTrailerLine))
	large("0\r\n" + strings.Repeat("A: 1\r\n", maxTrailerLines+1))
	large("0\r\n" + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 20))
}

func TestChunkExtensionsWithPayloadGoOn(t *testing.T) {
	// A signature of 85 bytes with every chunk, as object stores send, for ever.
	in := strings.Repeat(fmt.Sprintf("40;sig=%s\r\n%s\r\n", strings.Repeat("f", 64), strings.Repeat("p", 64)), 2000) + "0\r\n\r\n"
	if _, _, _, err := dechunk(in, 4096); err != nil {
		t.Error(err)
	}
}
