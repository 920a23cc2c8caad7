package wire

import (
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

func TestParseLength(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{"0": 0, "00": 0, "7": 7, "9223372036854775807": 1<<63 - 1} {
		if n, err := ParseLength([]byte(s)); n != want || err != nil {
			t.Errorf("%q: %d %v", s, n, err)
		}
	}
	for _, s := range []string{"", "-1", "+1", " 1", "1 ", "1_0", "0x1", "1.0", "9223372036854775808", "00000000000000000001", "99999999999999999999"} {
		if n, err := ParseLength([]byte(s)); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
}

func TestHasToken(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"close": true, "CLOSE": true, " \tclose\t": true, "a,close": true, "a , close, b": true, ",,close": true,
		"": false, "closed": false, "clo se": false, "a close": false, "close;q=1": false, "clo\u017fe": false,
	} {
		if HasToken([]byte(s), "close") != want {
			t.Errorf("%q: want %v", s, want)
		}
	}
}
