package chattemplate

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// isSpace is Python's str.isspace of one character. It has the four separators of ASCII, which Go's does not.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }

func trim(s string) string { return strings.TrimFunc(s, isSpace) }

func trimLeft(s string) string { return strings.TrimLeftFunc(s, isSpace) }

func trimRight(s string) string { return strings.TrimRightFunc(s, isSpace) }

// length is the number of characters of a string.
func (r *renderer) length(s string) int {
	r.read(len(s))
	return utf8.RuneCountInString(s)
}

// sliceString is s[from:to] in characters; count is how many s has.
func sliceString(s string, from, to, count int) string {
	if count == len(s) { // ASCII
		return s[from:to]
	}
	start := byteOffset(s, from)
	return s[start : start+byteOffset(s[start:], to-from)]
}

// byteOffset is where the character at i begins.
func byteOffset(s string, i int) int {
	at := 0
	for ; i > 0 && at < len(s); i-- {
		_, n := utf8.DecodeRuneInString(s[at:])
		at += n
	}
	return at
}

// method makes a function of a string's method, which may ask for its arguments by place and by name.
type method func(r *renderer, line int, s string, a *arguments) Value

// at is the argument at place i, or by its name; nil: it was not passed, or is None.
func (a *arguments) at(r *renderer, line, i int, name string) Value {
	v, named := a.get(name)
	if i < len(a.positional) {
		if named {
			r.fail(Runtime, line, "got multiple values for argument '%s'", name)
		}
		return a.positional[i]
	}
	return v
}

func (a *arguments) has(i int, name string) bool {
	_, ok := a.get(name)
	return ok || i < len(a.positional)
}

// text is an argument that must be a string.
func (a *arguments) text(r *renderer, line, i int, name, otherwise string) string {
	if !a.has(i, name) {
		return otherwise
	}
	v := a.at(r, line, i, name)
	s, ok := asString(v)
	if !ok {
		r.fail(Runtime, line, "expected a string as argument %d, got '%s'", i+1, typeName(v))
	}
	return s
}

// number is an argument that must be an int.
func (a *arguments) number(r *renderer, line, i int, name string, otherwise int) int {
	if !a.has(i, name) {
		return otherwise
	}
	v := a.at(r, line, i, name)
	n, ok := asInt(v)
	if !ok {
		r.fail(Runtime, line, "expected an int as argument %d, got '%s'", i+1, typeName(v))
	}
	return int(max(-1<<31, min(n, 1<<31)))
}

// most fails if more arguments came than a function takes, and names those it does not know.
func (a *arguments) most(r *renderer, line int, names ...string) {
	if len(a.positional) > len(names) {
		r.fail(Runtime, line, "takes at most %d argument(s), %d given", len(names), len(a.positional))
	}
	for _, name := range a.names {
		found := false
		for _, n := range names {
			found = found || n == name
		}
		if !found {
			r.fail(Runtime, line, "got an unexpected keyword argument '%s'", name)
		}
	}
}

// need fails if fewer arguments came by place than a method needs.
func (a *arguments) need(r *renderer, line, low, high int) {
	if n := len(a.positional); n < low || n > high || len(a.names) > 0 && high == 0 {
		r.fail(Runtime, line, "expected %d to %d arguments, got %d", low, high, n)
	}
}

var stringMethods map[string]method

func init() {
	// predicate makes a method of a condition that must hold for each character, of which there must be one.
	predicate := func(holds func(c rune) bool) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 0)
			r.read(len(s))
			for _, c := range s {
				if !holds(c) {
					return false
				}
			}
			return s != ""
		}
	}
	// mapped makes a method of a function of the string.
	mapped := func(f func(s string) string) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 0)
			r.allocate(len(s))
			return f(s)
		}
	}
	// stripping makes strip, lstrip and rstrip.
	stripping := func(white func(string) string, of func(s, cutset string) string) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 1)
			r.read(len(s))
			if len(a.positional) == 0 || a.positional[0] == nil {
				return white(s)
			}
			return of(s, a.text(r, line, 0, "chars", ""))
		}
	}
	affix := func(is func(s, part string) bool) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 3)
			s, _, ok := r.window(s, a, line)
			if !ok {
				return false
			}
			if parts, ok := a.positional[0].(*Tuple); ok {
				for _, p := range parts.items {
					part, ok := asString(p)
					if !ok {
						r.fail(Runtime, line, "tuple for startswith or endswith must only contain str, not %s", typeName(p))
					}
					if is(s, part) {
						return true
					}
				}
				return false
			}
			return is(s, a.text(r, line, 0, "prefix", ""))
		}
	}
	finding := func(find func(s, part string) int, must bool) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 3)
			part := a.text(r, line, 0, "sub", "")
			w, before, ok := r.window(s, a, line)
			i := -1
			if ok {
				r.read(len(w))
				i = find(w, part)
			}
			if i < 0 {
				if must {
					r.fail(Runtime, line, "substring not found")
				}
				return int64(-1)
			}
			return int64(before + utf8.RuneCountInString(w[:i]))
		}
	}
	justify := func(left, right func(fill int) int) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 2)
			return r.pad(s, a.number(r, line, 0, "width", 0), a.text(r, line, 1, "fillchar", " "), left, right)
		}
	}
	partition := func(find func(s, part string) int, last bool) method {
		return func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 1)
			sep := a.text(r, line, 0, "sep", "")
			if sep == "" {
				r.fail(Runtime, line, "empty separator")
			}
			r.read(len(s))
			switch i := find(s, sep); {
			case i >= 0:
				return &Tuple{[]Value{s[:i], sep, s[i+len(sep):]}}
			case last:
				return &Tuple{[]Value{"", "", s}}
			}
			return &Tuple{[]Value{s, "", ""}}
		}
	}
	none := func(int) int { return 0 }
	all := func(fill int) int { return fill }
	stringMethods = map[string]method{
		"upper": mapped(upper), "lower": mapped(lower), "casefold": mapped(caseFold),
		"capitalize": mapped(capitalize), "title": mapped(title), "swapcase": mapped(swapCase),
		"strip": stripping(trim, strings.Trim), "lstrip": stripping(trimLeft, strings.TrimLeft), "rstrip": stripping(trimRight, strings.TrimRight),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"find": finding(strings.Index, false), "rfind": finding(strings.LastIndex, false),
		"index": finding(strings.Index, true), "rindex": finding(strings.LastIndex, true),
		"partition": partition(strings.Index, false), "rpartition": partition(strings.LastIndex, true),
		"isspace": predicate(isSpace), "isalpha": predicate(unicode.IsLetter),
		"isdigit": predicate(unicode.IsDigit), "isdecimal": predicate(unicode.IsDigit), "isnumeric": predicate(unicode.IsNumber),
		"isalnum": predicate(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"ljust":   justify(none, all), "rjust": justify(all, none),
		// An odd place goes to the left if the width is odd, as in Python.
		"center": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 2)
			width := a.number(r, line, 0, "width", 0)
			left := func(fill int) int { return fill/2 + fill&width&1 }
			return r.pad(s, width, a.text(r, line, 1, "fillchar", " "), left, func(fill int) int { return fill - left(fill) })
		},
		"isascii": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 0)
			r.read(len(s))
			return strings.IndexFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) < 0
		},
		"islower": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 0)
			r.read(len(s))
			return strings.IndexFunc(s, unicode.IsUpper) < 0 && strings.IndexFunc(s, unicode.IsLower) >= 0
		},
		"isupper": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 0, 0)
			r.read(len(s))
			return strings.IndexFunc(s, unicode.IsLower) < 0 && strings.IndexFunc(s, unicode.IsUpper) >= 0
		},
		"count": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 3)
			part := a.text(r, line, 0, "sub", "")
			s, _, ok := r.window(s, a, line)
			if !ok {
				return int64(0)
			}
			r.read(len(s))
			return int64(strings.Count(s, part))
		},
		"replace": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 2, 3)
			return r.replace(s, a.text(r, line, 0, "old", ""), a.text(r, line, 1, "new", ""), a.number(r, line, 2, "count", -1))
		},
		"split":  splitting(false),
		"rsplit": splitting(true),
		"splitlines": func(r *renderer, line int, s string, a *arguments) Value {
			a.most(r, line, "keepends")
			return &List{r.lines(s, truth(a.at(r, line, 0, "keepends")))}
		},
		"join": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 1)
			var b strings.Builder
			for i, item := range r.iterate(a.positional[0], line) {
				text, ok := asString(item)
				if !ok {
					r.fail(Runtime, line, "sequence item %d: expected str instance, %s found", i, typeName(item))
				}
				if i > 0 {
					r.write(&b, s)
				}
				r.write(&b, text)
			}
			return b.String()
		},
		"removeprefix": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 1)
			return strings.TrimPrefix(s, a.text(r, line, 0, "prefix", ""))
		},
		"removesuffix": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 1)
			return strings.TrimSuffix(s, a.text(r, line, 0, "suffix", ""))
		},
		"zfill": func(r *renderer, line int, s string, a *arguments) Value {
			a.need(r, line, 1, 1)
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			return sign + r.pad(s, a.number(r, line, 0, "width", 0)-len(sign), "0", all, none)
		},
		"format": func(r *renderer, line int, s string, a *arguments) Value { return r.format(s, a, line) },
	}
}

// window is the part of s that the second and the third argument bound, and the number of characters before it.
func (r *renderer) window(s string, a *arguments, line int) (part string, before int, ok bool) {
	if len(a.positional) < 2 {
		return s, 0, true
	}
	count := r.length(s)
	var bounds [2]*int64
	for i := range bounds {
		if i+1 < len(a.positional) && a.positional[i+1] != nil {
			n := int64(a.number(r, line, i+1, "", 0))
			bounds[i] = &n
		}
	}
	if bounds[0] != nil && *bounds[0] > int64(count) {
		return "", 0, false
	}
	from, to := sliceBounds(bounds[0], bounds[1], 1, int64(count))
	if to < from {
		return "", 0, false
	}
	return sliceString(s, int(from), int(to), count), int(from), true
}

func (r *renderer) pad(s string, width int, fill string, left, right func(fill int) int) string {
	missing := width - r.length(s)
	if missing <= 0 {
		return s
	}
	r.allocate(len(s) + missing*len(fill))
	return strings.Repeat(fill, left(missing)) + s + strings.Repeat(fill, right(missing))
}

func (r *renderer) replace(s, old, with string, count int) string {
	r.read(len(s))
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return s
	}
	if grows := len(with) - len(old); grows > 0 && n > r.o.MaxOutput/grows {
		r.fail(Bound, 0, "a string is longer than %d bytes", r.o.MaxOutput)
	}
	r.allocate(len(s) + n*(len(with)-len(old)))
	return strings.Replace(s, old, with, n)
}

// splitting makes split and rsplit.
func splitting(fromRight bool) method {
	return func(r *renderer, line int, s string, a *arguments) Value {
		a.most(r, line, "sep", "maxsplit")
		most := a.number(r, line, 1, "maxsplit", -1)
		r.read(len(s))
		if a.at(r, line, 0, "sep") == nil {
			return &List{r.fields(s, most, fromRight)}
		}
		sep := a.text(r, line, 0, "sep", "")
		if sep == "" {
			r.fail(Runtime, line, "empty separator")
		}
		n := strings.Count(s, sep)
		if most >= 0 {
			n = min(n, most)
		}
		parts := r.items(n + 1)
		if !fromRight {
			for range n {
				before, after, _ := strings.Cut(s, sep)
				parts, s = append(parts, before), after
			}
			return &List{append(parts, s)}
		}
		for range n {
			i := strings.LastIndex(s, sep)
			parts, s = append(parts, s[i+len(sep):]), s[:i]
		}
		parts = append(parts, s)
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		return &List{parts}
	}
}

// fields splits at white space, at most times.
func (r *renderer) fields(s string, most int, fromRight bool) []Value {
	var parts []Value
	for s = trim(s); s != ""; {
		if most == 0 {
			parts = append(parts, s)
			break
		}
		most--
		var i int
		var part string
		if fromRight {
			i = strings.LastIndexFunc(s, isSpace)
			if i >= 0 {
				_, n := utf8.DecodeRuneInString(s[i:])
				part, s = s[i+n:], trimRight(s[:i])
			}
		} else {
			i = strings.IndexFunc(s, isSpace)
			if i >= 0 {
				part, s = s[:i], trimLeft(s[i:])
			}
		}
		if i < 0 {
			part, s = s, ""
		}
		parts = append(parts, part)
	}
	if fromRight {
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
	}
	r.allocate(16 * len(parts))
	return parts
}

// lines splits at ends of lines.
func (r *renderer) lines(s string, keepEnds bool) []Value {
	r.read(len(s))
	var lines []Value
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			lines = append(lines, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if keepEnds {
			lines = append(lines, s[:i+n])
		} else {
			lines = append(lines, s[:i])
		}
		s = s[i+n:]
	}
	r.allocate(16 * len(lines))
	return lines
}

func isLineEnd(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// upper has what strings.ToUpper lacks: letters that become two.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

// lower has what strings.ToLower lacks: the sigma that ends a word.
func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func caseFold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Fold().String(s)
}

func capitalize(s string) string {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(c)) + lower(s[n:])
}

// title begins each run of letters with a capital letter.
func title(s string) string {
	within := false
	return strings.Map(func(c rune) rune {
		defer func() { within = unicode.IsLetter(c) }()
		if within {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

func swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, s)
}

// pythonAttribute is what Python finds at a value by a name: a method, mostly. What the sandbox refuses is an undefined value that fails when it is used.
func (r *renderer) pythonAttribute(object Value, name string) (Value, bool) {
	if len(name) > 2 && name[0] == '_' && name[1] == '_' && name[len(name)-1] == '_' {
		if _, ok := object.(*namespace); !ok {
			return undefined{name: name, security: true}, true
		}
	}
	switch o := object.(type) {
	case string, safe:
		m, ok := stringMethods[name]
		if !ok {
			return nil, false
		}
		s, _ := asString(o)
		_, isSafe := object.(safe)
		return &function{name: name, call: func(r *renderer, line int, a *arguments) Value {
			v := m(r, line, s, a)
			if text, ok := v.(string); ok && isSafe {
				return safe(text)
			}
			return v
		}}, true
	case *Dict:
		return dictAttribute(o, name)
	case *List, *Tuple:
		return sequenceAttribute(o, name)
	case *namespace:
		return o.attributes.get(name)
	case *loop:
		if v := o.attribute(r, name); v != (undefined{name: name}) {
			return v, true
		}
	case *macro:
		switch name {
		case "name":
			return o.def.name, true
		case "arguments":
			l := &Tuple{}
			for _, p := range o.def.parameters {
				l.items = append(l.items, p)
			}
			return l, true
		case "caller":
			return o.def.usesCaller, true
		case "catch_kwargs":
			return o.def.usesKwargs, true
		case "catch_varargs":
			return o.def.usesVarargs, true
		}
	}
	return nil, false
}

func dictAttribute(d *Dict, name string) (Value, bool) {
	listing := func(pick func(i int) Value) (Value, bool) {
		return &function{name: name, call: func(r *renderer, line int, a *arguments) Value {
			a.need(r, line, 0, 0)
			items := r.items(len(d.keys))
			for i := range d.keys {
				items = append(items, pick(i))
			}
			return &view{name: name, items: items}
		}}, true
	}
	switch name {
	case "items":
		return listing(func(i int) Value { return &Tuple{[]Value{d.keys[i], d.values[i]}} })
	case "keys":
		return listing(func(i int) Value { return d.keys[i] })
	case "values":
		return listing(func(i int) Value { return d.values[i] })
	case "get":
		return &function{name: name, call: func(r *renderer, line int, a *arguments) Value {
			a.need(r, line, 1, 2)
			r.mustHash(a.positional[0], line)
			if v, ok := d.get(a.positional[0]); ok {
				return v
			}
			if len(a.positional) > 1 {
				return a.positional[1]
			}
			return nil
		}}, true
	case "copy":
		return &function{name: name, call: func(r *renderer, line int, a *arguments) Value {
			r.allocate(64 * len(d.keys))
			return d.clone()
		}}, true
	case "clear", "pop", "popitem", "setdefault", "update":
		return undefined{name: name, security: true}, true
	}
	return nil, false
}

func sequenceAttribute(v Value, name string) (Value, bool) {
	items, _ := sequence(v)
	l, isList := v.(*List)
	switch name {
	case "count", "index":
		return &function{name: name, call: func(r *renderer, line int, a *arguments) Value {
			a.need(r, line, 1, 1)
			n := int64(0)
			for i, item := range items {
				if !r.equal(item, a.positional[0]) {
					continue
				}
				if name == "index" {
					return int64(i)
				}
				n++
			}
			if name == "index" {
				r.fail(Runtime, line, "the value is not in the list")
			}
			return n
		}}, true
	case "copy":
		if isList {
			return &function{name: name, call: func(*renderer, int, *arguments) Value { return l }}, true
		}
	case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
		if isList {
			return undefined{name: name, security: true}, true
		}
	}
	return nil, false
}
