package chattemplate

import (
	"math"
	"strconv"
	"strings"
)

// spec is a field of a format: how wide and how exact a value is printed.
type spec struct {
	fill      string
	align     byte // <, >, ^, = or 0
	sign      byte // +, space or 0
	alternate bool
	width     int
	comma     string // between groups of three digits
	precision int    // −1: none
	verb      byte   // 0: by the type of the value
}

// widest bounds widths and precisions.
const widest = 10_000

// printf is Python's format % value.
func (r *renderer) printf(format string, value Value, line int) string {
	var b strings.Builder
	rest := []Value{value}
	if t, ok := value.(*Tuple); ok {
		rest = t.items
	}
	mapping, isMapping := value.(*Dict)
	next := func() Value {
		if len(rest) == 0 {
			r.fail(Runtime, line, "not enough arguments for format string")
		}
		v := rest[0]
		rest = rest[1:]
		return v
	}
	named := false
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			start := i
			for i+1 < len(format) && format[i+1] != '%' {
				i++
			}
			r.write(&b, format[start:i+1])
			continue
		}
		i++
		end := func() {
			if i >= len(format) {
				r.fail(Runtime, line, "incomplete format")
			}
		}
		end()
		key := ""
		hasKey := false
		if format[i] == '(' {
			n := strings.IndexByte(format[i:], ')')
			if n < 0 || !isMapping {
				r.fail(Runtime, line, "format requires a mapping")
			}
			key, hasKey, named = format[i+1:i+n], true, true
			i += n + 1
			end()
		}
		s := spec{fill: " ", align: '>', precision: -1}
		for ; i < len(format) && strings.IndexByte("-+ 0#", format[i]) >= 0; i++ {
			switch format[i] {
			case '-':
				s.align = '<'
			case '+':
				s.sign = '+'
			case ' ':
				if s.sign == 0 {
					s.sign = ' '
				}
			case '0':
				if s.align != '<' {
					s.fill, s.align = "0", '='
				}
			case '#':
				s.alternate = true
			}
		}
		count := func() int {
			if i < len(format) && format[i] == '*' {
				i++
				n, ok := asInt(next())
				if !ok {
					r.fail(Runtime, line, "* wants int")
				}
				return int(max(-widest, min(n, widest)))
			}
			n := 0
			for ; i < len(format) && format[i] >= '0' && format[i] <= '9'; i++ {
				n = min(n*10+int(format[i]-'0'), widest)
			}
			return n
		}
		if s.width = count(); s.width < 0 {
			s.align, s.width = '<', -s.width
		}
		if i < len(format) && format[i] == '.' {
			i++
			s.precision = max(0, count())
		}
		end()
		s.verb = format[i]
		if s.verb == '%' {
			r.write(&b, "%")
			continue
		}
		var v Value
		if hasKey {
			var ok bool
			if v, ok = mapping.get(key); !ok {
				r.fail(Runtime, line, "KeyError: '%s'", key)
			}
		} else {
			v = next()
		}
		switch s.verb {
		case 's':
			r.write(&b, r.padded(s.cut(r.str(v, line)), s))
		case 'r', 'a':
			r.write(&b, r.padded(s.cut(r.repr(v)), s))
		case 'c':
			if n, ok := asInt(v); ok {
				v = string(rune(n))
			}
			r.write(&b, r.padded(r.str(v, line), s))
		case 'd', 'i', 'u':
			if f, ok := v.(float64); ok {
				v = intFilter(r, line, f, &arguments{})
			}
			s.verb = 'd'
			r.write(&b, r.formatNumber(v, s, line))
		default:
			r.write(&b, r.formatNumber(v, s, line))
		}
	}
	if len(rest) > 0 && !named && !isMapping {
		r.fail(Runtime, line, "not all arguments converted during string formatting")
	}
	return b.String()
}

// cut shortens a text to the precision, in characters.
func (s spec) cut(text string) string {
	if s.precision < 0 {
		return text
	}
	return text[:byteOffset(text, s.precision)]
}

func (r *renderer) padded(text string, s spec) string {
	missing := s.width - r.length(text)
	if missing <= 0 {
		return text
	}
	if s.fill == "0" && s.align == '=' { // no number
		s.fill = " "
	}
	switch s.align {
	case '<':
		return text + strings.Repeat(s.fill, missing)
	case '^':
		return strings.Repeat(s.fill, missing/2) + text + strings.Repeat(s.fill, missing-missing/2)
	}
	return strings.Repeat(s.fill, missing) + text
}

// formatNumber prints a number by a verb: d, x, X, o, b, e, E, f, F, g, G, %, or 0.
func (r *renderer) formatNumber(v Value, s spec, line int) string {
	var digits string
	negative := false
	wrong := func() {
		r.fail(Runtime, line, "unknown format code '%c' for object of type '%s'", s.verb, typeName(v))
	}
	switch s.verb {
	case 'd', 'x', 'X', 'o', 'b', 0:
		i, ok := asBig(v)
		if !ok {
			if _, isFloat := v.(float64); isFloat && s.verb == 0 {
				digits = floatRepr(v.(float64))
				if s.precision >= 0 {
					s.verb = 'g'
					return r.formatNumber(v, s, line)
				}
				negative = strings.HasPrefix(digits, "-")
				digits = strings.TrimPrefix(digits, "-")
				break
			}
			wrong()
		}
		base := map[byte]int{'x': 16, 'X': 16, 'o': 8, 'b': 2}[s.verb]
		if base == 0 {
			base = 10
		}
		negative = i.Sign() < 0
		digits = strings.TrimPrefix(i.Text(base), "-")
		if s.verb == 'X' {
			digits = strings.ToUpper(digits)
		}
		if s.alternate && base != 10 {
			digits = "0" + string(s.verb) + digits
		}
		if s.precision > len(digits) {
			digits = strings.Repeat("0", s.precision-len(digits)) + digits
		}
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		f, ok := asFloat(v)
		if !ok {
			wrong()
		}
		if s.precision < 0 {
			s.precision = 6
		}
		negative = math.Signbit(f) && !math.IsNaN(f)
		f = math.Abs(f)
		switch s.verb {
		case '%':
			digits = strconv.FormatFloat(f*100, 'f', s.precision, 64) + "%"
		case 'g', 'G':
			digits = strconv.FormatFloat(f, 'g', max(1, s.precision), 64)
			if x := strings.IndexByte(digits, 'e'); x >= 0 { // Go's exponent begins at 21 digits
				if n, _ := strconv.Atoi(digits[x+1:]); n >= -4 && n < max(1, s.precision) {
					digits = strconv.FormatFloat(f, 'f', -1, 64)
				}
			}
		default:
			digits = strconv.FormatFloat(f, s.verb|0x20, s.precision, 64)
		}
		if math.IsInf(f, 0) || math.IsNaN(f) {
			digits = floatRepr(f)
		}
		if s.verb >= 'A' && s.verb <= 'Z' {
			digits = strings.ToUpper(digits)
		}
	default:
		wrong()
	}
	if s.comma != "" {
		whole := len(digits)
		if i := strings.IndexAny(digits, ".e%"); i >= 0 {
			whole = i
		}
		for i := whole - 3; i > 0; i -= 3 {
			digits = digits[:i] + s.comma + digits[i:]
		}
	}
	sign := ""
	if negative {
		sign = "-"
	} else if s.sign != 0 {
		sign = string(s.sign)
	}
	if s.align == '=' {
		return sign + strings.Repeat(s.fill, max(0, s.width-len(sign)-len(digits))) + digits
	}
	if s.align == 0 {
		s.align = '>'
	}
	return r.padded(sign+digits, s)
}

// format is Python's str.format, without attributes and items in fields, which the sandbox of the reference restricts.
func (r *renderer) format(format string, a *arguments, line int) string {
	var b strings.Builder
	auto := 0
	for i := 0; i < len(format); i++ {
		switch c := format[i]; {
		case (c == '{' || c == '}') && i+1 < len(format) && format[i+1] == c:
			b.WriteByte(c)
			i++
		case c == '}':
			r.fail(Runtime, line, "single '}' encountered in format string")
		case c == '{':
			n := strings.IndexByte(format[i:], '}')
			if n < 0 {
				r.fail(Runtime, line, "expected '}' before end of string")
			}
			field := format[i+1 : i+n]
			i += n
			name, how, _ := strings.Cut(field, ":")
			name, conversion, _ := strings.Cut(name, "!")
			var v Value
			var ok bool
			if place, err := strconv.Atoi(name); err == nil || name == "" {
				if name == "" {
					place = auto
					auto++
				}
				if ok = place >= 0 && place < len(a.positional); ok {
					v = a.positional[place]
				}
			} else {
				v, ok = a.get(name)
			}
			if !ok {
				r.fail(Runtime, line, "the format string's field %q has no value here", name)
			}
			switch conversion {
			case "s":
				v = r.str(v, line)
			case "r", "a":
				v = r.repr(v)
			}
			r.write(&b, r.formatField(v, how, line))
		default:
			b.WriteByte(c)
		}
	}
	r.allocate(b.Len())
	return b.String()
}

func (r *renderer) formatField(v Value, how string, line int) string {
	if how == "" {
		return r.str(v, line)
	}
	s := spec{fill: " ", precision: -1}
	rest := []rune(how)
	isAlign := func(c rune) bool { return strings.ContainsRune("<>^=", c) }
	if len(rest) > 1 && isAlign(rest[1]) {
		s.fill, s.align, rest = string(rest[0]), byte(rest[1]), rest[2:]
	} else if isAlign(rest[0]) {
		s.align, rest = byte(rest[0]), rest[1:]
	}
	take := func(set string) byte {
		if len(rest) > 0 && strings.ContainsRune(set, rest[0]) {
			c := byte(rest[0])
			rest = rest[1:]
			return c
		}
		return 0
	}
	count := func() int {
		n := 0
		for len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
			n = min(n*10+int(rest[0]-'0'), widest)
			rest = rest[1:]
		}
		return n
	}
	if s.sign = take("+- "); s.sign == '-' {
		s.sign = 0
	}
	s.alternate = take("#") != 0
	if take("0") != 0 && s.align == 0 {
		s.fill, s.align = "0", '='
	}
	s.width = count()
	if c := take(",_"); c != 0 {
		s.comma = string(c)
	}
	if take(".") != 0 {
		s.precision = count()
	}
	s.verb = take("bcdeEfFgGnosxX%")
	if len(rest) > 0 {
		r.fail(Runtime, line, "invalid format specifier %q", how)
	}
	if text, ok := asString(v); ok {
		if s.verb != 's' && s.verb != 0 || s.align == '=' {
			r.fail(Runtime, line, "unknown format code for object of type 'str'")
		}
		if s.align == 0 {
			s.align = '<'
		}
		return r.padded(s.cut(text), s)
	}
	if isNumber(v) {
		return r.formatNumber(v, s, line)
	}
	r.fail(Runtime, line, "unsupported format string passed to %s", typeName(v))
	return ""
}
