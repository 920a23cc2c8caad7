package chattemplate

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// printer writes values as Python's str and repr do.
type printer struct {
	b        strings.Builder
	depth    int
	maxDepth int
	maxBytes int
}

// str is Python's str(v), which a template prints.
func (r *renderer) str(v Value, _ int) string {
	switch v := v.(type) {
	case string:
		return v
	case safe:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case undefined:
		return ""
	}
	p := &printer{maxDepth: r.o.MaxDepth, maxBytes: r.o.MaxOutput}
	s := p.repr(v)
	r.allocate(len(s))
	return s
}

// repr is Python's repr(v).
func (r *renderer) repr(v Value) string {
	p := &printer{maxDepth: r.o.MaxDepth, maxBytes: r.o.MaxOutput}
	s := p.repr(v)
	r.allocate(len(s))
	return s
}

func (p *printer) repr(v Value) string {
	p.write(v)
	return p.b.String()
}

func (p *printer) check() {
	if p.b.Len() > p.maxBytes {
		panic(&Error{Kind: Bound, Message: fmt.Sprintf("a string is longer than %d bytes", p.maxBytes)})
	}
}

func (p *printer) write(v Value) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > p.maxDepth {
		panic(&Error{Kind: Bound, Message: fmt.Sprintf("a value nests deeper than %d", p.maxDepth)})
	}
	p.check()
	switch v := v.(type) {
	case nil:
		p.b.WriteString("None")
	case undefined:
		p.b.WriteString("Undefined")
	case bool:
		if v {
			p.b.WriteString("True")
		} else {
			p.b.WriteString("False")
		}
	case int64:
		p.b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		p.b.WriteString(v.String())
	case float64:
		p.b.WriteString(floatRepr(v))
	case string:
		p.quote(v)
	case safe:
		p.b.WriteString("Markup(")
		p.quote(string(v))
		p.b.WriteByte(')')
	case *List:
		p.items("[", v.items, "]")
	case *Tuple:
		if len(v.items) == 1 {
			p.items("(", v.items, ",)")
		} else {
			p.items("(", v.items, ")")
		}
	case *Dict:
		p.dict(v)
	case *namespace:
		p.b.WriteString("<Namespace ")
		p.dict(v.attributes)
		p.b.WriteByte('>')
	case *view:
		p.b.WriteString("dict_" + v.name)
		p.items("([", v.items, "])")
	case *rangeOf:
		fmt.Fprintf(&p.b, "range(%d, %d", v.start, v.stop)
		if v.step != 1 {
			fmt.Fprintf(&p.b, ", %d", v.step)
		}
		p.b.WriteByte(')')
	case *macro:
		p.b.WriteString("<Macro ")
		p.quote(v.def.name)
		p.b.WriteByte('>')
	case *function:
		p.b.WriteString("<built-in method " + v.name + ">")
	case *loop:
		fmt.Fprintf(&p.b, "<LoopContext %d/%d>", v.index+1, len(v.items))
	default:
		p.b.WriteString("<" + typeName(v) + " object>")
	}
}

func (p *printer) items(open string, items []Value, closing string) {
	p.b.WriteString(open)
	for i, item := range items {
		if i > 0 {
			p.b.WriteString(", ")
		}
		p.write(item)
	}
	p.b.WriteString(closing)
}

func (p *printer) dict(d *Dict) {
	p.b.WriteByte('{')
	for i, key := range d.keys {
		if i > 0 {
			p.b.WriteString(", ")
		}
		p.write(key)
		p.b.WriteString(": ")
		p.write(d.values[i])
	}
	p.b.WriteByte('}')
}

// quote writes a string in single quotes, or in double quotes where that saves escapes.
func (p *printer) quote(s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	p.b.WriteByte(quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			p.b.WriteByte('\\')
			p.b.WriteRune(c)
		case c == '\n':
			p.b.WriteString(`\n`)
		case c == '\r':
			p.b.WriteString(`\r`)
		case c == '\t':
			p.b.WriteString(`\t`)
		case unicode.IsPrint(c):
			p.b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&p.b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&p.b, `\u%04x`, c)
		default:
			fmt.Fprintf(&p.b, `\U%08x`, c)
		}
	}
	p.b.WriteByte(quote)
	p.check()
}

// floatRepr is Python's repr of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exponent, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exponent < -4 || exponent >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
