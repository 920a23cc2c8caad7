package demo

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Style is how the demo may draw.
type Style struct {
	// Live redraws a block of lines on a terminal; otherwise each change is printed
	// in a line.
	Live bool
	// Color allows colors, Unicode other characters than ASCII's.
	Color, Unicode bool
	// Width is the terminal's width in columns, asked again for each picture. Nil:
	// 80.
	Width func() int
}

func (s *Style) width() int {
	if s.Width == nil {
		return 80
	}
	return min(max(s.Width(), minWidth), maxWidth)
}

const (
	minWidth, maxWidth = 24, 160
	// drawEvery is the least time between two pictures.
	drawEvery = 80 * time.Millisecond
)

// The phases of a request, in their order, with the character each is drawn by
// in Unicode and in ASCII, and its color.
type phase struct {
	name        string
	char, ascii string
	color       string
}

var (
	waiting    = phase{name: "waiting", char: "░", ascii: ".", color: "\x1b[33m"}
	prefilling = phase{name: "prefill", char: "▓", ascii: "=", color: "\x1b[36m"}
	decoding   = phase{name: "decode", char: "█", ascii: "#", color: "\x1b[32m"}
)

// screen shows the progress of a scenario.
type screen struct {
	r      *run
	out    io.Writer
	style  Style
	lines  int // drawn last
	drawn  time.Time
	states []string // printed last, where each change is a line
}

func newScreen(o Options, r *run) *screen {
	return &screen{r: r, out: o.Out, style: o.Style, states: make([]string, len(r.reqs))}
}

// state is where a request is. The caller must hold run.mu.
func (r *run) state(i int) string {
	q := &r.reqs[i]
	switch {
	case q.sent.IsZero():
		return "not sent"
	case q.done && q.err != nil && r.stopped:
		return "stopped"
	case q.done && q.err != nil:
		return "failed"
	case q.done:
		return strings.TrimSpace(fmt.Sprintf("%d %s", q.status, q.code))
	case !q.decode.IsZero():
		return "in decode"
	case !q.prefill.IsZero():
		return "in prefill"
	case r.queued > 0:
		return "waiting"
	}
	return "sent"
}

func (s *screen) draw() {
	if !s.style.Live {
		s.printChanges()
		return
	}
	if time.Since(s.drawn) >= drawEvery {
		s.drawn = time.Now()
		s.paint()
	}
}

func (s *screen) end() {
	if s.style.Live {
		s.paint()
		return
	}
	s.printChanges()
}

// printChanges writes a line for each request whose state has changed.
func (s *screen) printChanges() {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.reqs {
		state := r.state(i)
		if state == s.states[i] || state == "not sent" || state == "sent" {
			continue
		}
		s.states[i] = state
		line := fmt.Sprintf("%s%5.1fs  %-*s ", indent, time.Since(r.start).Seconds(), r.s.nameWidth()+1, r.s.reqs[i].name+":")
		if gate := fmt.Sprintf(" (%s %d, waiting %d)", r.s.where(), r.inFlight, r.queued); len(line)+minState+len(gate) < s.style.width() {
			line += fmt.Sprintf("%-*s%s", minState, state, gate)
		} else {
			line += clip(state, s.style.width()-1-len(line))
		}
		_, _ = fmt.Fprintln(s.out, line)
	}
}

// paint draws all lines over those drawn before.
func (s *screen) paint() {
	r, width := s.r, s.style.width()
	r.mu.Lock()
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	b.WriteString("\r\x1b[J") // also clears lines that a resized terminal has wrapped
	s.line(&b, width, "", "%5.1fs  %s %d of %d  waiting %d%s", time.Since(r.start).Seconds(), r.s.where(), r.inFlight, r.s.inFlight, r.queued, r.blocksText())
	s.line(&b, width, "", "%s", s.legend())
	names := r.s.nameWidth()
	// What a line needs beside the bar: indent, name, time, the longest state, and
	// the last column, which is left free.
	cells := min(max(width-1-(3+names+2+2+7+2+minState), 6), 60)
	for i := range r.reqs {
		state := r.state(i)
		bar, n := s.bar(i, cells)
		text := fmt.Sprintf("%6.1fs  %s", r.age(i).Seconds(), state)
		room := max(width-1-(3+names+2+n+2), 0)
		fmt.Fprintf(&b, "   %-*s  %s%s  %s\n", names, r.s.reqs[i].name, bar, strings.Repeat(" ", cells-n), s.paintText(clip(text, room-(cells-n)), r.stateColor(i)))
	}
	s.lines = 2 + len(r.reqs)
	r.mu.Unlock()
	_, _ = io.WriteString(s.out, b.String())
}

// minState is the room for the longest state, "429 pd_prefill_queue_timeout". On
// terminals that are too narrow for it, a state loses its last words.
const minState = 28

func (s *screen) line(b *strings.Builder, width int, color, format string, args ...any) {
	b.WriteString(s.paintText(clip("   "+fmt.Sprintf(format, args...), width-1), color) + "\n")
}

// legend explains the characters of the bars.
func (s *screen) legend() string {
	var parts []string
	for _, p := range []phase{waiting, prefilling, decoding} {
		parts = append(parts, s.char(p)+" "+p.name)
	}
	return strings.Join(parts, "   ")
}

func (s *screen) char(p phase) string {
	if s.style.Unicode {
		return p.char
	}
	return p.ascii
}

// bar draws a request's life: what it waited, its prefill, its decode, a
// character for each part of the scenario's length. It returns the number of
// cells too. The caller must hold run.mu.
func (s *screen) bar(i, cells int) (text string, n int) {
	r := s.r
	q := &r.reqs[i]
	if q.sent.IsZero() {
		return "", 0
	}
	cell := max(r.s.length()*11/10/time.Duration(cells), time.Millisecond)
	at := func(t time.Time) int { return int(t.Sub(r.start) / cell) }
	end := q.sent.Add(r.age(i))
	begin, stop := at(q.sent), min(at(end), cells)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", min(begin, cells)))
	n = min(begin, cells)
	for _, part := range []struct {
		phase
		until time.Time
	}{{waiting, q.prefill}, {prefilling, q.decode}, {decoding, end}} {
		until := stop
		if !part.until.IsZero() {
			until = min(at(part.until), stop)
		}
		if k := until - n; k > 0 {
			b.WriteString(s.paintText(strings.Repeat(s.char(part.phase), k), part.color))
			n = until
		}
		if part.until.IsZero() {
			break
		}
	}
	return b.String(), n
}

// age is how long a request has taken so far. The caller must hold run.mu.
func (r *run) age(i int) time.Duration {
	q := &r.reqs[i]
	if q.done || q.sent.IsZero() {
		return q.took
	}
	return time.Since(q.sent)
}

// stateColor needs run.mu.
func (r *run) stateColor(i int) string {
	q := &r.reqs[i]
	switch {
	case !q.done:
		return ""
	case q.status == http.StatusOK:
		return decoding.color
	case q.err != nil && r.stopped:
		return ""
	}
	return "\x1b[31m"
}

func (s *screen) paintText(text, color string) string {
	if color == "" || !s.style.Color || text == "" {
		return text
	}
	return color + text + "\x1b[0m"
}

// clip cuts text to n columns, between two words if there is a place for that.
func clip(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	runes := []rune(text)
	short := string(runes[:max(n, 0)])
	if n > 0 && runes[n] != ' ' {
		if i := strings.LastIndexByte(short, ' '); i >= 0 && strings.TrimSpace(short[:i]) != "" {
			short = short[:i]
		}
	}
	return strings.TrimRight(short, " ")
}

// blocksText is how full decode was, in a scenario that limits its KV blocks.
func (r *run) blocksText() string {
	if r.s.blocks == 0 {
		return ""
	}
	return fmt.Sprintf("  KV blocks booked at most %d of %d", r.blocks, r.s.blocks)
}

// table prints the results.
func (r *run) table(o Options, waits time.Duration) {
	names := max(r.s.nameWidth(), len("request"))
	wide := len(indent)+names+len("  status  took     Retry-After  ")+minState-len("429 ") < o.width()
	row := func(name, status, took, retry, code string) {
		line := fmt.Sprintf("%s%-*s  %-6s  %-7s", indent, names, name, status, took)
		if wide {
			line += fmt.Sprintf("  %-11s  %s", retry, code)
		}
		_, _ = fmt.Fprintln(o.Out, strings.TrimRight(line, " "))
	}
	_, _ = fmt.Fprintln(o.Out)
	row("request", "status", "took", "Retry-After", "code")
	for i, q := range r.reqs {
		row(r.s.reqs[i].name, strconv.Itoa(q.status), round(q.took).String(), q.retry, q.code)
		if !wide && q.code != "" {
			o.print(indent+"  ", q.code)
			o.print(indent+"  ", "Retry-After: "+q.retry)
		}
	}
	o.print(indent, fmt.Sprintf("At most %d %s and %d queued%s; waits add up to %s; all over after %s. %s",
		r.mostIn, r.s.where(), r.mostQueue, strings.ReplaceAll(r.blocksText(), "  ", "; "), round(waits), round(r.longest()), r.s.lesson))
}
