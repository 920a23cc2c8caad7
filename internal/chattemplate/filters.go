package chattemplate

import (
	"math"
	"math/big"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// filterFunc is a filter: v|name(a).
type filterFunc func(r *renderer, line int, v Value, a *arguments) Value

// filters are those of the reference that chat templates have a use for. Those of sequences are in sequences.go.
var filters map[string]filterFunc

func init() {
	// of makes a filter of a function of the value's text.
	of := func(f func(s string) string) filterFunc {
		return func(r *renderer, line int, v Value, a *arguments) Value {
			a.most(r, line)
			s := r.str(v, line)
			r.allocate(len(s))
			return f(s)
		}
	}
	filters = map[string]filterFunc{
		"abs": func(r *renderer, line int, v Value, _ *arguments) Value {
			if f, ok := v.(float64); ok {
				return math.Abs(f)
			}
			i, ok := asBig(v)
			if !ok {
				r.fail(Runtime, line, "bad operand type for abs(): '%s'", typeName(v))
			}
			return normalInt(new(big.Int).Abs(i))
		},
		"attr": func(r *renderer, line int, v Value, a *arguments) Value {
			name := a.text(r, line, 0, "name", "")
			if u, ok := v.(undefined); ok {
				r.failUndefined(u, line)
			}
			if found, ok := r.pythonAttribute(v, name); ok {
				return found
			}
			return undefined{name: name}
		},
		"capitalize": of(capitalize),
		"center": func(r *renderer, line int, v Value, a *arguments) Value {
			return stringMethods["center"](r, line, r.str(v, line), &arguments{positional: []Value{int64(a.number(r, line, 0, "width", 80))}})
		},
		"default": defaultFilter, "d": defaultFilter,
		"escape": escapeFilter, "e": escapeFilter,
		"forceescape": func(r *renderer, line int, v Value, _ *arguments) Value { return safe(r.escape(r.str(v, line))) },
		"float":       floatFilter,
		"format": func(r *renderer, line int, v Value, a *arguments) Value {
			if len(a.names) > 0 {
				return r.printf(r.str(v, line), r.makeDict(line, &arguments{names: a.names, named: a.named}), line)
			}
			return r.printf(r.str(v, line), &Tuple{a.positional}, line)
		},
		"indent": indentFilter,
		"int":    intFilter,
		"lower":  of(lower),
		"replace": func(r *renderer, line int, v Value, a *arguments) Value {
			a.most(r, line, "old", "new", "count")
			if !a.has(0, "old") || !a.has(1, "new") {
				r.fail(Runtime, line, "replace needs two arguments")
			}
			count := -1
			if c := a.at(r, line, 2, "count"); c != nil {
				count = a.number(r, line, 2, "count", -1)
			}
			return r.replace(r.str(v, line), r.str(a.at(r, line, 0, "old"), line), r.str(a.at(r, line, 1, "new"), line), count)
		},
		"round": roundFilter,
		"safe":  func(r *renderer, line int, v Value, _ *arguments) Value { return safe(r.str(v, line)) },
		"string": func(r *renderer, line int, v Value, _ *arguments) Value {
			if s, ok := v.(safe); ok {
				return s
			}
			return r.str(v, line)
		},
		"title":  of(titleFilter),
		"tojson": func(r *renderer, line int, v Value, a *arguments) Value { return r.dumps(v, line, a) },
		"trim": func(r *renderer, line int, v Value, a *arguments) Value {
			a.most(r, line, "chars")
			s := r.str(v, line)
			r.read(len(s))
			if chars := a.at(r, line, 0, "chars"); chars != nil {
				return strings.Trim(s, a.text(r, line, 0, "chars", ""))
			}
			return trim(s)
		},
		"truncate":  truncateFilter,
		"upper":     of(upper),
		"urlencode": of(func(s string) string { return urlEscaper.Replace(url.QueryEscape(s)) }),
		"wordcount": func(r *renderer, line int, v Value, _ *arguments) Value {
			s := r.str(v, line)
			r.read(len(s))
			n, within := int64(0), false
			for _, c := range s {
				word := c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c)
				if word && !within {
					n++
				}
				within = word
			}
			return n
		},
	}
	for name, f := range sequenceFilters() {
		filters[name] = f
	}
}

// urlEscaper makes a path of what is escaped for a query.
var urlEscaper = strings.NewReplacer("+", "%20", "%2F", "/")

func defaultFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "default_value", "boolean")
	_, isUndefined := v.(undefined)
	if !isUndefined && !(truth(a.at(r, line, 1, "boolean")) && !truth(v)) {
		return v
	}
	if !a.has(0, "default_value") {
		return ""
	}
	return a.at(r, line, 0, "default_value")
}

func escapeFilter(r *renderer, line int, v Value, _ *arguments) Value {
	if s, ok := v.(safe); ok {
		return s
	}
	return safe(r.escape(r.str(v, line)))
}

// longestNumber is the most bytes of a text that is read as a number.
const longestNumber = 1000

// underscores are between digits only.
var underscores = regexp.MustCompile(`^[^_]*([0-9]_[0-9][^_]*)*$`)

// parseFloat reads a float as Python's float(str) does.
func parseFloat(s string) (float64, bool) {
	if len(s) > longestNumber {
		return 0, false
	}
	s = strings.ToLower(trim(s))
	digits := strings.TrimLeft(s, "+-")
	if !underscores.MatchString(s) {
		return 0, false
	}
	s, digits = strings.ReplaceAll(s, "_", ""), strings.ReplaceAll(digits, "_", "")
	if strings.ContainsAny(s, "xp") || digits == "" || digits[0] != '.' && (digits[0] < '0' || digits[0] > '9') && digits != "inf" && digits != "infinity" && digits != "nan" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

func floatFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "default")
	if u, ok := v.(undefined); ok {
		r.failUndefined(u, line)
	}
	if f, ok := asFloat(v); ok {
		return f
	}
	if s, ok := asString(v); ok {
		if f, ok := parseFloat(s); ok {
			return f
		}
	}
	if a.has(0, "default") {
		return a.at(r, line, 0, "default")
	}
	return 0.0
}

func intFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "default", "base")
	if u, ok := v.(undefined); ok {
		r.failUndefined(u, line)
	}
	f, isFloat := v.(float64)
	if s, ok := asString(v); ok && len(s) <= longestNumber {
		base := a.number(r, line, 1, "base", 10)
		digits := strings.ReplaceAll(trim(s), "_", "")
		if base == 0 || base >= 2 && base <= 36 {
			if base == 16 || base == 8 || base == 2 {
				for _, prefix := range map[int][]string{16: {"0x", "0X"}, 8: {"0o", "0O"}, 2: {"0b", "0B"}}[base] {
					digits = strings.TrimPrefix(digits, prefix)
				}
			}
			if i, ok := new(big.Int).SetString(digits, base); ok {
				return normalInt(i)
			}
		}
		f, isFloat = parseFloat(s)
	} else if i, ok := asBig(v); ok {
		return normalInt(i)
	}
	if isFloat && !math.IsNaN(f) && !math.IsInf(f, 0) {
		i, _ := big.NewFloat(f).Int(nil)
		return normalInt(i)
	}
	if a.has(0, "default") {
		return a.at(r, line, 0, "default")
	}
	return int64(0)
}

func roundFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "precision", "method")
	precision := max(-400, min(a.number(r, line, 0, "precision", 0), 400))
	how := a.text(r, line, 1, "method", "common")
	f, ok := asFloat(v)
	if !ok {
		r.fail(Runtime, line, "type %s doesn't define __round__ method", typeName(v))
	}
	switch how {
	case "common":
		if i, ok := asInt(v); ok && precision >= 0 {
			return i
		}
		if precision >= 0 {
			rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
			return rounded
		}
		scale := math.Pow10(-precision)
		return math.RoundToEven(f/scale) * scale
	case "ceil":
		return math.Ceil(f*math.Pow10(precision)) / math.Pow10(precision)
	case "floor":
		return math.Floor(f*math.Pow10(precision)) / math.Pow10(precision)
	}
	r.fail(Runtime, line, "method must be common, ceil or floor")
	return nil
}

func indentFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "width", "first", "blank")
	var indent string
	if s, ok := asString(a.at(r, line, 0, "width")); ok {
		indent = s
	} else {
		indent = strings.Repeat(" ", max(0, min(a.number(r, line, 0, "width", 4), 10_000)))
	}
	first, blank := truth(a.at(r, line, 1, "first")), truth(a.at(r, line, 2, "blank"))
	s, ok := asString(v)
	switch u, missing := v.(undefined); {
	case missing:
		r.failUndefined(u, line)
	case !ok:
		r.fail(Runtime, line, "'%s' object cannot be indented", typeName(v))
	}
	var b strings.Builder
	for i, item := range r.lines(s+"\n", false) {
		text := item.(string)
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || text != "") {
			r.write(&b, indent)
		}
		r.write(&b, text)
	}
	return b.String()
}

// titleFilter begins words with a capital letter; unlike the method title it knows words by what stands between them.
func titleFilter(s string) string {
	begin := true
	return strings.Map(func(c rune) rune {
		defer func() { begin = isSpace(c) || strings.ContainsRune("-({[<", c) }()
		if begin {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

func truncateFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "length", "killwords", "end", "leeway")
	switch v.(type) {
	case nil, bool, int64, float64:
		r.fail(Runtime, line, "object of type '%s' has no len()", typeName(v))
	}
	s := r.str(v, line)
	length, end := a.number(r, line, 0, "length", 255), a.text(r, line, 2, "end", "...")
	count := r.length(s)
	tail := r.length(end)
	if length < tail {
		r.fail(Runtime, line, "expected length >= %d, got %d", tail, length)
	}
	if count <= length+a.number(r, line, 3, "leeway", 5) {
		return s
	}
	cut := sliceString(s, 0, length-tail, count)
	if !truth(a.at(r, line, 1, "killwords")) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	r.allocate(len(cut) + len(end))
	return cut + end
}
