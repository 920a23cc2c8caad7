package chattemplate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// ParseJSON reads one JSON value: objects keep the order of their keys, and whole numbers are ints. It refuses what nests deeper than maxDepth, strings that are not
// valid Unicode (lone surrogates too), and what follows the value. Of a key that comes twice the last value counts, as in Python.
func ParseJSON(data []byte, maxDepth int) (Value, error) {
	return ParseJSONContext(context.Background(), data, maxDepth)
}

// ParseJSONContext is ParseJSON until ctx ends, whose error it then returns.
func ParseJSONContext(ctx context.Context, data []byte, maxDepth int) (Value, error) {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	defer func() {
		d.Reset(noJSON{}) // or it would keep data
		decoders.Put(d)
	}()
	p := &jsonParser{d: d, ctx: ctx}
	v, err := p.value(maxDepth)
	if err != nil {
		return nil, err
	}
	if _, err := p.d.ReadToken(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

// decoders are used one time after the other.
var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(noJSON{}) }}

// noJSON has nothing to read.
type noJSON struct{}

func (noJSON) Read([]byte) (int, error) { return 0, io.EOF }

type jsonParser struct {
	d      *jsontext.Decoder
	ctx    context.Context
	values int
}

func (p *jsonParser) value(maxDepth int) (Value, error) {
	if maxDepth < 0 {
		return nil, errors.New("the JSON nests too deep")
	}
	if p.values++; p.values%checkEvery == 0 {
		if err := p.ctx.Err(); err != nil {
			return nil, err
		}
	}
	t, err := p.d.ReadToken()
	if err != nil {
		return nil, fmt.Errorf("cannot read the JSON: %w", err)
	}
	switch t.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return t.Bool(), nil
	case '"':
		return t.String(), nil
	case '0':
		return jsonNumber(t.String())
	case '[':
		l := &List{}
		for p.d.PeekKind() != ']' {
			item, err := p.value(maxDepth - 1)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, item)
		}
		_, err := p.d.ReadToken()
		return l, err
	case '{':
		o := &Dict{}
		for p.d.PeekKind() != '}' {
			key, err := p.d.ReadToken()
			if err != nil {
				return nil, fmt.Errorf("cannot read the JSON: %w", err)
			}
			var name Value = key.String() // before key is overwritten
			value, err := p.value(maxDepth - 1)
			if err != nil {
				return nil, err
			}
			o.Set(name, value)
		}
		_, err := p.d.ReadToken()
		return o, err
	}
	return nil, errors.New("cannot read the JSON")
}

func jsonNumber(s string) (Value, error) {
	if !strings.ContainsAny(s, ".eE") {
		if v := parseInt(s, 10); v != nil {
			return v, nil
		}
		return nil, errors.New("a number of the JSON is too long")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, fmt.Errorf("cannot read the JSON: %w", err)
	}
	return f, nil
}

// jsonWriter writes a value as Python's json.dumps does.
type jsonWriter struct {
	r               *renderer
	line            int
	b               strings.Builder
	depth           int
	ascii, sorted   bool
	indent          string // of one level; empty with indented false
	indented        bool
	itemEnd, keyEnd string // the separators
	maxBytes        int
}

// dumps is tojson: the transformers library's own, which does not escape HTML and does not sort keys.
func (r *renderer) dumps(v Value, line int, a *arguments) string {
	w := &jsonWriter{r: r, line: line, itemEnd: ", ", keyEnd: ": ", maxBytes: r.o.MaxOutput}
	if v := a.at(r, line, 0, "ensure_ascii"); v != nil {
		w.ascii = truth(v)
	}
	if indent := a.at(r, line, 1, "indent"); indent != nil {
		w.indented, w.itemEnd = true, ","
		if n, ok := asInt(indent); ok {
			w.indent = strings.Repeat(" ", int(max(0, min(n, 100))))
		} else if s, ok := asString(indent); ok && len(s) <= 100 {
			w.indent = s
		} else {
			r.fail(Runtime, line, "tojson: wrong indent")
		}
	}
	if separators := a.at(r, line, 2, "separators"); separators != nil {
		pair, ok := sequence(separators)
		if !ok || len(pair) != 2 {
			r.fail(Runtime, line, "tojson: separators must be two strings")
		}
		w.itemEnd, w.keyEnd = r.str(pair[0], line), r.str(pair[1], line)
	}
	if v := a.at(r, line, 3, "sort_keys"); v != nil {
		w.sorted = truth(v)
	}
	w.write(v)
	r.allocate(w.b.Len())
	return w.b.String()
}

func (w *jsonWriter) write(v Value) {
	w.r.step(1)
	w.depth++
	defer func() { w.depth-- }()
	if w.depth > w.r.o.MaxDepth {
		w.r.fail(Bound, w.line, "a value nests deeper than %d", w.r.o.MaxDepth)
	}
	if w.b.Len() > w.maxBytes {
		w.r.fail(Bound, w.line, "a string is longer than %d bytes", w.maxBytes)
	}
	switch v := v.(type) {
	case *List:
		w.list(v.items)
	case *Tuple:
		w.list(v.items)
	case *Dict:
		w.dict(v)
	case string, safe:
		s, _ := asString(v)
		w.quote(s)
	default:
		s, ok := jsonScalar(v)
		if !ok {
			w.r.fail(Runtime, w.line, "Object of type %s is not JSON serializable", typeName(v))
		}
		w.b.WriteString(s)
	}
}

// jsonScalar is what json.dumps makes of a value without parts, as a value or as a key.
func jsonScalar(v Value) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "null", true
	case bool:
		if v {
			return "true", true
		}
		return "false", true
	case int64:
		return strconv.FormatInt(v, 10), true
	case *big.Int:
		return v.String(), true
	case float64:
		switch s := floatRepr(v); s {
		case "nan":
			return "NaN", true
		case "inf":
			return "Infinity", true
		case "-inf":
			return "-Infinity", true
		default:
			return s, true
		}
	}
	return "", false
}

func (w *jsonWriter) newline(level int) {
	if !w.indented {
		return
	}
	w.b.WriteByte('\n')
	for range level {
		w.b.WriteString(w.indent)
	}
}

func (w *jsonWriter) list(items []Value) {
	w.b.WriteByte('[')
	for i, item := range items {
		if i > 0 {
			w.b.WriteString(w.itemEnd)
		}
		w.newline(w.depth)
		w.write(item)
	}
	if len(items) > 0 {
		w.newline(w.depth - 1)
	}
	w.b.WriteByte(']')
}

func (w *jsonWriter) dict(d *Dict) {
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sorted {
		sort.SliceStable(order, func(i, j int) bool { return w.r.less(d.keys[order[i]], d.keys[order[j]], w.line) })
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if n > 0 {
			w.b.WriteString(w.itemEnd)
		}
		w.newline(w.depth)
		if key, ok := asString(d.keys[i]); ok {
			w.quote(key)
		} else if key, ok := jsonScalar(d.keys[i]); ok {
			w.quote(key)
		} else {
			w.r.fail(Runtime, w.line, "keys must be str, int, float, bool or None, not %s", typeName(d.keys[i]))
		}
		w.b.WriteString(w.keyEnd)
		w.write(d.values[i])
	}
	if len(order) > 0 {
		w.newline(w.depth - 1)
	}
	w.b.WriteByte('}')
}

func (w *jsonWriter) quote(s string) {
	w.r.read(len(s))
	w.b.WriteByte('"')
	from := 0
	for i, c := range s {
		if c >= 0x20 && c != '"' && c != '\\' && (!w.ascii || c < 0x7f) {
			continue
		}
		w.b.WriteString(s[from:i])
		from = i + len(string(c))
		switch c {
		case '"':
			w.b.WriteString(`\"`)
		case '\\':
			w.b.WriteString(`\\`)
		case '\n':
			w.b.WriteString(`\n`)
		case '\r':
			w.b.WriteString(`\r`)
		case '\t':
			w.b.WriteString(`\t`)
		case '\b':
			w.b.WriteString(`\b`)
		case '\f':
			w.b.WriteString(`\f`)
		default:
			if c >= 0x10000 {
				fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
			} else {
				fmt.Fprintf(&w.b, `\u%04x`, c)
			}
		}
	}
	w.b.WriteString(s[from:])
	w.b.WriteByte('"')
}
