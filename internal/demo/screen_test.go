package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// halfway is a run in the middle of the last scenario: one request is over, one in
// prefill, the others wait.
func halfway() *run {
	all := scenarios(3 * time.Second)
	s := all[len(all)-1]
	now := time.Now()
	start := now.Add(-1500 * time.Millisecond)
	r := &run{s: s, start: start, reqs: make([]request, len(s.reqs)), inFlight: 1, queued: len(s.reqs) - 2}
	for i := range r.reqs {
		r.reqs[i].sent = start
	}
	r.reqs[0] = request{sent: start, prefill: start, decode: start.Add(time.Second), done: true, took: 1500 * time.Millisecond, status: 429, code: "pd_prefill_queue_timeout"}
	r.reqs[1].prefill = start.Add(time.Second)
	return r
}

func painted(style Style) string {
	var out bytes.Buffer
	newScreen(Options{Out: &out, Style: style}, halfway()).paint()
	return out.String()
}

var colorCode = regexp.MustCompile("\x1b\\[[0-9;]*m")

// A line that is wider than the terminal is wrapped by it, and the next picture is
// then drawn in the wrong place.
func TestLinesFitTheTerminal(t *testing.T) {
	for width := minWidth; width <= 130; width++ {
		for _, style := range []Style{{Live: true, Color: true, Unicode: true}, {Live: true}} {
			style.Width = func() int { return width }
			text := strings.TrimPrefix(painted(style), "\r\x1b[J")
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(colorCode.ReplaceAllString(line, ""), "\n")
				if n := utf8.RuneCountInString(line); n >= width {
					t.Fatalf("a line of %d characters at %d columns: %q", n, width, line)
				}
				if strings.Contains(line, "\x1b") {
					t.Fatalf("an escape is cut in two: %q", line)
				}
			}
		}
	}
}

// The texts around the pictures are wrapped between words, and the table of results
// drops columns, so that the terminal does not break lines in the middle of a word.
func TestTextsFitTheTerminal(t *testing.T) {
	for width := 32; width <= 130; width++ {
		var out bytes.Buffer
		o := Options{Out: &out, Style: Style{Width: func() int { return width }}, PrefillTime: 3 * time.Second}
		o.Start = func(context.Context, RouterOptions) (*Router, error) { return nil, errors.New("no router") }
		if err := Run(context.Background(), o); err == nil {
			t.Fatal("a demo without a router went well")
		}
		for i, s := range scenarios(3 * time.Second) {
			o.introduce(i+1, &s)
			r := &run{s: s, start: time.Now(), reqs: make([]request, len(s.reqs))}
			for i, q := range s.reqs {
				r.reqs[i] = request{done: true, sent: time.Now(), took: 3210 * time.Millisecond, status: q.want.status, code: q.want.code, retry: "60"}
			}
			newScreen(o, r).printChanges()
			r.table(o, time.Second)
		}
		o.conclude(true, false)
		text := out.String()
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n >= width || n > 79 {
				t.Errorf("a line of %d characters at %d columns: %q", n, width, line)
			}
		}
		for _, word := range []string{"pd_prefill_queue_timeout", "pd_prefill_queue_full", "Retry-After", "\"sluice demo --keep\"", "metrics."} {
			if words := strings.Join(strings.Fields(text), " "); !strings.Contains(words, word) {
				t.Errorf("%d columns: %q is missing", width, word)
			}
		}
	}
}

// At 80 columns the longest state is there to its last letter, and in narrower
// terminals states are cut between words.
func TestStatesAreNotCutInsideAWord(t *testing.T) {
	states := regexp.MustCompile(`long 1 .*s  (429 pd_prefill_queue_timeout|429)\n`)
	for width := 40; width <= 130; width++ {
		text := painted(Style{Live: true, Width: func() int { return width }})
		m := states.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%d columns: a state is cut:\n%s", width, text)
		}
		if width >= 80 && m[1] == "429" {
			t.Errorf("%d columns: the code is missing:\n%s", width, text)
		}
	}
}

// Names of different lengths must not shift the columns after them.
func TestPrintedLinesAreAligned(t *testing.T) {
	var out bytes.Buffer
	r := halfway()
	newScreen(Options{Out: &out}, r).printChanges()
	r.table(Options{Out: &out}, time.Second)
	printed, table := 0, 0
	at, column := -1, -1
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimRight(line, " ") != line {
			t.Errorf("spaces at the end of %q", line)
		}
		if i := strings.Index(line, "(in prefill"); i >= 0 {
			if printed++; at >= 0 && at != i {
				t.Errorf("%q: column %d, not %d", line, i, at)
			}
			at = i
		}
		if m := regexp.MustCompile(`^   (?:long|short) \d +(\d+)  `).FindStringSubmatchIndex(line); m != nil {
			if table++; column >= 0 && column != m[2] {
				t.Errorf("%q: column %d, not %d", line, m[2], column)
			}
			column = m[2]
		}
	}
	if n := len(r.reqs); printed != n || table != n {
		t.Errorf("%d and %d lines for %d requests:\n%s", printed, table, n, out.String())
	}
}

// Waiting and running must look different.
func TestBarsShowPhases(t *testing.T) {
	text := painted(Style{Live: true})
	for _, want := range []string{`long 1 .* =+#+ `, `long 2 .* \.+=+ `, `long 3 .* \.+ .*waiting`} {
		if !regexp.MustCompile(strings.ReplaceAll(want, ".* ", " *")).MatchString(text) {
			t.Errorf("no line is like %q in\n%s", want, text)
		}
	}
}

func TestStylesChooseColorsAndCharacters(t *testing.T) {
	for _, c := range []struct{ color, unicode bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("color %v unicode %v", c.color, c.unicode), func(t *testing.T) {
			text := painted(Style{Live: true, Color: c.color, Unicode: c.unicode})
			if got := colorCode.MatchString(text); got != c.color {
				t.Errorf("colors: %v, want %v", got, c.color)
			}
			ascii := strings.IndexFunc(text, func(r rune) bool { return r > 0x7e }) < 0
			if ascii == c.unicode {
				t.Errorf("ASCII only: %v, want %v", ascii, !c.unicode)
			}
		})
	}
}
