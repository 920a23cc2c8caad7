package demo

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// screen shows a scenario as it goes on: a block that is drawn over itself on a
// terminal, a line for each change elsewhere.
type screen struct {
	r     *run
	out   io.Writer
	live  bool
	lines int
	drawn time.Time
	last  string
}

func newScreen(o Options, r *run) *screen { return &screen{r: r, out: o.Out, live: o.Live} }

// states names where each request is. Served in order, the first that are not
// answered are those in prefill.
func (r *run) states() (states []string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.inFlight
	var parts []string
	states = make([]string, len(r.reqs))
	for i, q := range r.reqs {
		switch {
		case q.sent.IsZero():
			states[i] = "not sent"
		case q.done && q.err != nil:
			states[i] = "failed"
		case q.done:
			states[i] = fmt.Sprintf("%d %s", q.status, q.code)
		case left > 0:
			left--
			states[i] = r.s.where()
		default:
			states[i] = "waiting"
		}
		parts = append(parts, fmt.Sprintf("request %d: %s", i+1, strings.TrimSpace(states[i])))
	}
	return states, fmt.Sprintf("%s %d   queued %d   %s", r.s.where(), r.inFlight, r.queued, strings.Join(parts, "   "))
}

func (s *screen) draw() {
	states, text := s.r.states()
	if !s.live {
		if text != s.last {
			s.last = text
			_, _ = fmt.Fprintf(s.out, "   %5.1fs  %s\n", time.Since(s.r.start).Seconds(), text)
		}
		return
	}
	if time.Since(s.drawn) < 80*time.Millisecond {
		return
	}
	s.drawn = time.Now()
	s.paint(states)
}

func (s *screen) paint(states []string) {
	r := s.r
	r.mu.Lock()
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, "\x1b[2K   "+format+"\n", args...)
	}
	line("%5.1fs   %s %s   queue %s%s", time.Since(r.start).Seconds(), r.s.where(), bar(r.inFlight, r.s.inFlight), bar(r.queued, max(r.s.router.QueueSize, r.s.queued)), r.blocksText())
	for i, q := range r.reqs {
		took := q.took
		if !q.done && !q.sent.IsZero() {
			took = time.Since(q.sent)
		}
		line("request %d  %s%-32s\x1b[0m %5.1fs  %s", i+1, colour(states[i], q.status), states[i], took.Seconds(), strings.Repeat("▪", min(int(took.Seconds()*2), 20)))
	}
	s.lines = 1 + len(r.reqs)
	r.mu.Unlock()
	_, _ = io.WriteString(s.out, b.String())
}

func (s *screen) end() {
	if s.live {
		states, _ := s.r.states()
		s.paint(states)
		return
	}
	s.draw()
}

// blocksText is how full decode is, where that is what the scenario is about.
func (r *run) blocksText() string {
	if r.s.blocks == 0 {
		return ""
	}
	return fmt.Sprintf("   KV blocks booked at most %d of %d", r.blocks, r.s.blocks)
}

func bar(n, of int) string {
	n = min(n, of)
	return "[" + strings.Repeat("█", n) + strings.Repeat("·", of-n) + "]"
}

func colour(state string, status int) string {
	switch {
	case status == http.StatusOK:
		return "\x1b[32m"
	case status != 0 || state == "failed":
		return "\x1b[31m"
	case state == "waiting":
		return "\x1b[33m"
	case strings.HasPrefix(state, "in "):
		return "\x1b[36m"
	}
	return ""
}

// table prints the results.
func (r *run) table(out io.Writer, waits time.Duration) {
	_, _ = fmt.Fprintf(out, "\n   request  status  took     Retry-After  code\n")
	for i, q := range r.reqs {
		_, _ = fmt.Fprintf(out, "   %-7d  %-6d  %-7s  %-11s  %s\n", i+1, q.status, round(q.took), q.retry, q.code)
	}
	_, _ = fmt.Fprintf(out, "   at most %d %s and %d queued%s; waits add up to %s; all over after %s\n",
		r.mostIn, r.s.where(), r.mostQueue, strings.ReplaceAll(r.blocksText(), "   ", "; "), round(waits), round(r.longest()))
}

func (r *run) longest() time.Duration {
	var end time.Duration
	for _, q := range r.reqs {
		end = max(end, q.sent.Add(q.took).Sub(r.reqs[0].sent))
	}
	return end
}
