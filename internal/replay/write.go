package replay

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// WriteJSON writes one result as an object in a line.
func WriteJSON(w io.Writer, r *Result) error {
	b, err := json.Marshal(r.Summary)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// column is a figure in the table.
type column struct {
	head  string
	value func(*Summary) string
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) }

// secs shows three digits of a time in seconds.
func secs(x float64) string {
	switch {
	case x < 10:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case x < 100:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

func columns(goal time.Duration) []column {
	return []column{
		{"hit %", func(s *Summary) string { return percent(s.HitRate) }},
		{"ideal", func(s *Summary) string { return percent(s.Ideal) }},
		{"mean s", func(s *Summary) string { return secs(s.TTFTMean) }},
		{"p50 s", func(s *Summary) string { return secs(s.TTFTP50) }},
		{"p95 s", func(s *Summary) string { return secs(s.TTFTP95) }},
		{"p99 s", func(s *Summary) string { return secs(s.TTFTP99) }},
		{"≤" + short(goal) + " %", func(s *Summary) string { return percent(s.Goodput) }},
		{"reject", func(s *Summary) string { return strconv.Itoa(s.Rejected) }},
		{"busiest", func(s *Summary) string { return strconv.FormatFloat(s.Busiest, 'f', 2, 64) }},
	}
}

// short is a time without the zero units at its end.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return strings.TrimSuffix(s, "0m")
}

// cell is the width of a figure, with the gap before it.
const cell = 8

// Table writes results as a table that grows with them.
type Table struct {
	w       io.Writer
	width   int // of the terminal
	names   int // width of the arms' names
	columns []column
	begun   bool
}

// NewTable makes a table for a terminal of so many columns, of the arms of these names, all
// for none.
func NewTable(w io.Writer, width int, goal time.Duration, names []string) *Table {
	t := &Table{w: w, width: width, columns: columns(goal)}
	for _, a := range arms {
		if len(names) == 0 {
			t.names = max(t.names, len(a.name))
		}
	}
	for _, n := range names {
		t.names = max(t.names, len(n))
	}
	return t
}

// Write adds a row. In a terminal that is too narrow for it, the figures are below the
// arm's name, as many in a line as have room.
func (t *Table) Write(r *Result) error {
	var b strings.Builder
	wide := t.names+len(t.columns)*cell < t.width
	if wide && !t.begun {
		b.WriteString(strings.Repeat(" ", t.names))
		for _, c := range t.columns {
			right(&b, c.head)
		}
		b.WriteByte('\n')
	}
	t.begun = true
	if wide {
		fmt.Fprintf(&b, "%-*s", t.names, r.Arm)
		for _, c := range t.columns {
			right(&b, c.value(&r.Summary))
		}
		b.WriteByte('\n')
	} else {
		b.WriteString(r.Arm + "\n")
		at := 0
		for i, c := range t.columns {
			text := c.head + " " + c.value(&r.Summary)
			n := len([]rune(text))
			if i > 0 && at+2+n >= t.width {
				b.WriteByte('\n')
				at = 0
			}
			b.WriteString("  " + text)
			at += 2 + n
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

func right(b *strings.Builder, text string) {
	b.WriteString(strings.Repeat(" ", max(cell-len([]rune(text)), 1)) + text)
}

// CSV writes a row for each request of each arm.
type CSV struct {
	w     *csv.Writer
	begun bool
}

// NewCSV makes a writer; it is buffered until Flush.
func NewCSV(w io.Writer) *CSV { return &CSV{w: csv.NewWriter(w)} }

var csvHead = []string{
	"arm", "request", "arrival_s", "router", "prefill", "decode", "prompt_tokens", "output_tokens",
	"cached_tokens", "believed_tokens", "queued_s", "ttft_s", "total_s", "rejected",
}

// Write adds the requests of an arm.
func (c *CSV) Write(r *Result) error {
	if !c.begun {
		c.begun = true
		if err := c.w.Write(csvHead); err != nil {
			return err
		}
	}
	seconds := func(x float64) string { return strconv.FormatFloat(x, 'f', 6, 64) }
	for i := range r.Requests {
		o := &r.Requests[i]
		ttft := ""
		if !o.Rejected {
			ttft = seconds(o.TTFT)
		}
		err := c.w.Write([]string{
			r.Arm, strconv.Itoa(i), seconds(o.Arrived), strconv.Itoa(o.Router), o.Prefill, o.Decode,
			strconv.FormatInt(o.Prompt, 10), strconv.FormatInt(o.Output, 10),
			strconv.FormatInt(o.Cached, 10), strconv.FormatInt(o.Believed, 10),
			seconds(o.Queued), ttft, seconds(o.Total), strconv.FormatBool(o.Rejected),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Flush writes what is buffered. It returns the first error of all writes.
func (c *CSV) Flush() error {
	c.w.Flush()
	return c.w.Error()
}
