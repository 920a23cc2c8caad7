package chattemplate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// globals are the functions that every template has.
var globals map[string]*function

// maxRange is the longest range that the sandbox of the reference allows.
const maxRange = 100_000

func init() {
	globals = map[string]*function{
		"range": {name: "range", call: makeRange},
		"dict": {name: "dict", call: func(r *renderer, line int, a *arguments) Value {
			return r.makeDict(line, a)
		}},
		"namespace": {name: "namespace", call: func(r *renderer, line int, a *arguments) Value {
			return &namespace{attributes: r.makeDict(line, a)}
		}},
		"raise_exception": {name: "raise_exception", call: func(r *renderer, line int, a *arguments) Value {
			a.most(r, line, "message")
			r.fail(Raised, line, "%s", r.str(a.at(r, line, 0, "message"), line))
			return nil
		}},
		"strftime_now": {name: "strftime_now", call: func(r *renderer, line int, a *arguments) Value {
			a.most(r, line, "format")
			return strftime(r.now, a.text(r, line, 0, "format", ""))
		}},
		"joiner": {name: "joiner", call: func(r *renderer, line int, a *arguments) Value {
			a.most(r, line, "sep")
			sep, used := a.text(r, line, 0, "sep", ", "), false
			return &function{name: "joiner", call: func(*renderer, int, *arguments) Value {
				if !used {
					used = true
					return ""
				}
				return sep
			}}
		}},
		"cycler": {name: "cycler", call: func(r *renderer, line int, a *arguments) Value {
			if len(a.positional) == 0 {
				r.fail(Runtime, line, "at least one item has to be provided")
			}
			at := 0
			items := a.positional
			next := &function{name: "next", call: func(*renderer, int, *arguments) Value {
				v := items[at]
				at = (at + 1) % len(items)
				return v
			}}
			reset := &function{name: "reset", call: func(*renderer, int, *arguments) Value {
				at = 0
				return nil
			}}
			return &namespace{attributes: NewDict("next", next, "reset", reset)}
		}},
	}
}

func makeRange(r *renderer, line int, a *arguments) Value {
	a.need(r, line, 1, 3)
	var n [3]int64
	for i, v := range a.positional {
		var ok bool
		if n[i], ok = asInt(v); !ok {
			if u, isUndefined := v.(undefined); isUndefined {
				r.failUndefined(u, line)
			}
			r.fail(Runtime, line, "'%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(a.positional) {
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		r.fail(Runtime, line, "range() arg 3 must not be zero")
	}
	const far = 1 << 40
	if max(start, stop, step) > far || min(start, stop, step) < -far {
		r.fail(Bound, line, "a range is too long: at most %d", maxRange)
	}
	g := &rangeOf{start: start, stop: stop, step: step}
	count := int64(0)
	switch {
	case step > 0 && stop > start:
		count = (stop - start + step - 1) / step
	case step < 0 && stop < start:
		count = (start - stop - step - 1) / -step
	}
	if count > maxRange {
		r.fail(Bound, line, "a range is too long: at most %d", maxRange)
	}
	g.n = int(count)
	return g
}

// makeDict is dict(mapping or pairs, name=value).
func (r *renderer) makeDict(line int, a *arguments) *Dict {
	d := &Dict{}
	if len(a.positional) > 1 {
		r.fail(Runtime, line, "dict expected at most 1 argument, got %d", len(a.positional))
	}
	if len(a.positional) == 1 {
		switch from := a.positional[0].(type) {
		case *Dict:
			r.allocate(64 * len(from.keys))
			d = from.clone()
		default:
			for _, pair := range r.iterate(from, line) {
				kv := r.iterate(pair, line)
				if len(kv) != 2 {
					r.fail(Runtime, line, "dictionary update sequence element has length %d; 2 is required", len(kv))
				}
				r.mustHash(kv[0], line)
				r.allocate(64)
				d.Set(kv[0], kv[1])
			}
		}
	}
	r.allocate(64 * len(a.names))
	for i, name := range a.names {
		d.Set(name, a.named[i])
	}
	return d
}

// strftime formats a time as C's function of that name does, in the locale C.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	twelve := func() int { return (t.Hour()+11)%12 + 1 }
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := ""
		if strings.IndexByte("-_0^#", format[i]) >= 0 && i+1 < len(format) {
			pad = format[i : i+1]
			i++
		}
		number := func(n, width int, fill byte) {
			switch pad {
			case "-":
				width = 0
			case "_":
				fill = ' '
			case "0":
				fill = '0'
			}
			s := strconv.Itoa(n)
			for range width - len(s) {
				b.WriteByte(fill)
			}
			b.WriteString(s)
		}
		word := func(s string) {
			if pad == "^" || pad == "#" {
				s = strings.ToUpper(s)
			}
			b.WriteString(s)
		}
		year, week := t.ISOWeek()
		switch format[i] {
		case 'a':
			word(t.Weekday().String()[:3])
		case 'A':
			word(t.Weekday().String())
		case 'b', 'h':
			word(t.Month().String()[:3])
		case 'B':
			word(t.Month().String())
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 'C':
			number(t.Year()/100, 2, '0')
		case 'd':
			number(t.Day(), 2, '0')
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'e':
			number(t.Day(), 2, ' ')
		case 'f':
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'g':
			number(year%100, 2, '0')
		case 'G':
			number(year, 4, '0')
		case 'H':
			number(t.Hour(), 2, '0')
		case 'I':
			number(twelve(), 2, '0')
		case 'j':
			number(t.YearDay(), 3, '0')
		case 'k':
			number(t.Hour(), 2, ' ')
		case 'l':
			number(twelve(), 2, ' ')
		case 'm':
			number(int(t.Month()), 2, '0')
		case 'M':
			number(t.Minute(), 2, '0')
		case 'n':
			b.WriteByte('\n')
		case 'p':
			word(t.Format("PM"))
		case 'P':
			b.WriteString(t.Format("pm"))
		case 'r':
			b.WriteString(t.Format("03:04:05 PM"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 's':
			b.WriteString(strconv.FormatInt(t.Unix(), 10))
		case 'S':
			number(t.Second(), 2, '0')
		case 't':
			b.WriteByte('\t')
		case 'T', 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'u':
			number((int(t.Weekday())+6)%7+1, 1, '0')
		case 'U':
			number((t.YearDay()+6-int(t.Weekday()))/7, 2, '0')
		case 'V':
			number(week, 2, '0')
		case 'w':
			number(int(t.Weekday()), 1, '0')
		case 'W':
			number((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2, '0')
		case 'y':
			number(t.Year()%100, 2, '0')
		case 'Y':
			number(t.Year(), 1, '0')
		case 'z', 'Z': // the reference has no zone
		case '%':
			b.WriteByte('%')
		default:
			b.WriteString("%" + pad + format[i:i+1])
		}
	}
	return b.String()
}
