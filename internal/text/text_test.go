package text

import (
	"strings"
	"testing"
)

func TestClip(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"1234", "1234"}, {"12345", "1234…"}, {"123é5", "123…"}, {"12é5", "12é…"}, {"ééé", "éé…"}, {"\xff\xff2345", "\uFFFD23…"},
	} {
		if got := Clip(c.in, 4); got != c.want {
			t.Errorf("Clip(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]bool{"": true, "a b é": true, "a\n": false, "\x7f": false, "\x00": false} {
		if Printable(in) != want {
			t.Errorf("Printable(%q) is not %t", in, want)
		}
	}
}

func TestLine(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := Line(in); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
	f("", "")
	f("as it is, ü", "as it is, ü")
	f("a\r\nb\x00c\x7f", "a  b c ")
	f(strings.Repeat("x", 300), strings.Repeat("x", 253)+"…")
	f(strings.Repeat("ü", 200), strings.Repeat("ü", 126)+"…")
}
