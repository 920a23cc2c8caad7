package wire

import (
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

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

// What is whole here has the same payload for net/http/httputil.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"5\r\nabcde\r\n0\r\n\r\n", "5;a=b \r\nabcde\r\n0;c\r\nA: b\r\n\r\nmore", "1\r\na\r\n1\r\nb\r\n000\r\n\r\n", "8000000000000000\r\n"} {
		f.Add(s, uint16(1))
		f.Add(s, uint16(100))
	}
	f.Fuzz(func(t *testing.T, in string, step uint16) {
		payload, rest, _, err := dechunk(in, max(1, int(step)))
		payload1, rest1, _, err1 := dechunk(in, 1)
		if payload != payload1 || err == nil && rest != rest1 || (err == nil) != (err1 == nil) {
			t.Fatalf("%q %q %v, byte by byte %q %q %v", payload, rest, err, payload1, rest1, err1)
		}
		if err != nil {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(in)))
		if err != nil || payload != string(want) {
			t.Fatalf("%q, want %q %v", payload, want, err)
		}
	})
}
