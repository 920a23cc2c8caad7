package chattemplate

import (
	"math"
	"math/big"
	"strings"
)

// equal is Python's ==.
func (r *renderer) equal(a, b Value) bool {
	r.step(1)
	if x, ok := asString(a); ok {
		y, ok := asString(b)
		if !ok || len(x) != len(y) {
			return false
		}
		r.read(len(x))
		return x == y
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b) == 0
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *List:
		y, ok := b.(*List)
		return ok && r.equalItems(x.items, y.items)
	case *Tuple:
		y, ok := b.(*Tuple)
		return ok && r.equalItems(x.items, y.items)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		r.descend(0)
		defer r.ascend()
		for i, key := range x.keys {
			if v, ok := y.get(key); !ok || !r.equal(x.values[i], v) {
				return false
			}
		}
		return true
	}
	switch b.(type) {
	case undefined, *namespace, *macro, *function, *loop, *iterator, *view, *rangeOf:
		return a == b
	}
	return false
}

func (r *renderer) equalItems(a, b []Value) bool {
	if len(a) != len(b) {
		return false
	}
	r.descend(0)
	defer r.ascend()
	for i := range a {
		if !r.equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func isNumber(v Value) bool {
	switch v.(type) {
	case bool, int64, float64, *big.Int:
		return true
	}
	return false
}

// asBig is the value of a whole number.
func asBig(v Value) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	if i, ok := asInt(v); ok {
		return big.NewInt(i), true
	}
	return nil, false
}

// compareNumbers is below 0, 0 or above 0. With NaN it is 2, which no operator but != takes.
func compareNumbers(a, b Value) int {
	x, okX := asBig(a)
	y, okY := asBig(b)
	if okX && okY {
		return x.Cmp(y)
	}
	f, _ := asFloat(a)
	g, _ := asFloat(b)
	switch {
	case f < g:
		return -1
	case f > g:
		return 1
	case f == g:
		return 0
	}
	return 2
}

// less is Python's <, which fails between values of different types.
func (r *renderer) less(a, b Value, line int) bool { return r.order(a, b, line, "<") == -1 }

// order compares two values for the operator op: -1, 0, 1, or 2 where no order is defined (NaN).
func (r *renderer) order(a, b Value, line int, op string) int {
	r.step(1)
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	x, okX := asString(a)
	y, okY := asString(b)
	if okX && okY {
		r.read(min(len(x), len(y)))
		return strings.Compare(x, y)
	}
	_, tupleA := a.(*Tuple)
	_, tupleB := b.(*Tuple)
	m, okM := sequence(a)
	n, okN := sequence(b)
	if okM && okN && tupleA == tupleB {
		r.descend(line)
		defer r.ascend()
		for i := range min(len(m), len(n)) {
			if !r.equal(m[i], n[i]) {
				return r.order(m[i], n[i], line, op)
			}
		}
		return compareNumbers(int64(len(m)), int64(len(n)))
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(undefined); ok {
			r.failUndefined(u, line)
		}
	}
	r.fail(Runtime, line, "'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

func (r *renderer) compare(op string, a, b Value, line int) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a, line)
	case "not in":
		return !r.contains(b, a, line)
	}
	switch c := r.order(a, b, line, op); op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	default:
		return c == 1 || c == 0
	}
}

// contains is Python's "item in container".
func (r *renderer) contains(container, item Value, line int) bool {
	switch c := container.(type) {
	case string, safe:
		whole, _ := asString(c)
		part, ok := asString(item)
		if !ok {
			r.fail(Runtime, line, "'in <string>' requires string as left operand, not %s", typeName(item))
		}
		r.read(len(whole))
		return strings.Contains(whole, part)
	case *Dict:
		r.mustHash(item, line)
		_, ok := c.get(item)
		return ok
	case undefined, *List, *Tuple, *view, *iterator, *rangeOf:
		for _, v := range r.iterate(c, line) {
			if r.equal(v, item) {
				return true
			}
		}
		return false
	}
	r.fail(Runtime, line, "argument of type '%s' is not iterable", typeName(container))
	return false
}

// binary is an operator of arithmetic. Ints stay exact as Python's do.
func (r *renderer) binary(op string, a, b Value, line int) Value {
	if isNumber(a) && isNumber(b) {
		return r.arithmetic(op, a, b, line)
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(undefined); ok {
			if text, isText := asString(a); op == "%" && isText {
				return r.printf(text, b, line)
			}
			r.failUndefined(u, line)
		}
	}
	switch op {
	case "+":
		if v, ok := r.join(a, b); ok {
			return v
		}
		if _, ok := asString(a); ok {
			r.fail(Runtime, line, "can only concatenate str (not %q) to str", typeName(b))
		}
	case "*":
		if v, ok := r.repeat(a, b); ok {
			return v
		}
		if v, ok := r.repeat(b, a); ok {
			return v
		}
	case "%":
		if text, ok := asString(a); ok {
			return r.printf(text, b, line)
		}
	}
	r.fail(Runtime, line, "unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// join adds two strings, lists or tuples.
func (r *renderer) join(a, b Value) (Value, bool) {
	x, okX := asString(a)
	y, okY := asString(b)
	if okX && okY {
		_, safeA := a.(safe)
		_, safeB := b.(safe)
		switch {
		case safeA && safeB:
			r.allocate(len(x) + len(y))
			return safe(x + y), true
		case safeA:
			y = r.escape(y)
			r.allocate(len(x) + len(y))
			return safe(x + y), true
		case safeB:
			x = r.escape(x)
			r.allocate(len(x) + len(y))
			return safe(x + y), true
		}
		r.allocate(len(x) + len(y))
		return x + y, true
	}
	if m, ok := a.(*List); ok {
		if n, ok := b.(*List); ok {
			return &List{append(append(r.items(len(m.items)+len(n.items)), m.items...), n.items...)}, true
		}
	}
	if m, ok := a.(*Tuple); ok {
		if n, ok := b.(*Tuple); ok {
			return &Tuple{append(append(r.items(len(m.items)+len(n.items)), m.items...), n.items...)}, true
		}
	}
	return nil, false
}

// escape replaces what HTML gives a meaning, as the reference does for strings that are added to a safe one.
func (r *renderer) escape(s string) string {
	r.allocate(len(s))
	s = htmlEscaper.Replace(s)
	r.allocate(len(s))
	return s
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// repeat is a string or a sequence n times.
func (r *renderer) repeat(a, b Value) (Value, bool) {
	n, ok := asInt(b)
	if !ok {
		return nil, false
	}
	n = max(n, 0)
	items, isSequence := sequence(a)
	s, isText := asString(a)
	size := int64(len(s) + 16*len(items))
	if !isText && !isSequence {
		return nil, false
	}
	if size > 0 && n > int64(r.o.MaxOutput)/size {
		r.fail(Bound, 0, "a string or a list is longer than %d bytes", r.o.MaxOutput)
	}
	if isText {
		r.allocate(int(size * n))
		return strings.Repeat(s, int(n)), true
	}
	if len(items) == 0 {
		n = 0
	}
	repeated := r.items(len(items) * int(n))
	for range n {
		repeated = append(repeated, items...)
	}
	if _, ok := a.(*Tuple); ok {
		return &Tuple{repeated}, true
	}
	return &List{repeated}, true
}

// maxBits bounds whole numbers; Python's are unbounded, and no template counts that far.
const maxBits = 4096

func (r *renderer) arithmetic(op string, a, b Value, line int) Value {
	x, okX := asBig(a)
	y, okY := asBig(b)
	zero := func() { r.fail(Runtime, line, "division by zero") }
	if !okX || !okY || op == "/" {
		f, _ := asFloat(a)
		g, _ := asFloat(b)
		switch op {
		case "+":
			return f + g
		case "-":
			return f - g
		case "*":
			return f * g
		case "**":
			return math.Pow(f, g)
		}
		if g == 0 {
			zero()
		}
		switch op {
		case "/":
			return f / g
		case "//":
			return math.Floor(f / g)
		}
		m := math.Mod(f, g)
		if m != 0 && (m < 0) != (g < 0) {
			m += g
		}
		return m
	}
	i, okI := asInt(a)
	j, okJ := asInt(b)
	if okI && okJ && i > -1<<31 && i < 1<<31 && j > -1<<31 && j < 1<<31 {
		switch op {
		case "+":
			return i + j
		case "-":
			return i - j
		case "*":
			return i * j
		}
	}
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "**":
		if y.Sign() < 0 {
			f, _ := asFloat(a)
			g, _ := asFloat(b)
			if f == 0 {
				r.fail(Runtime, line, "0.0 cannot be raised to a negative power")
			}
			return math.Pow(f, g)
		}
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > maxBits || y.Int64()*int64(x.BitLen()) > maxBits) {
			r.fail(Bound, line, "a number is too large")
		}
		z.Exp(x, y, nil)
	default:
		if y.Sign() == 0 {
			zero()
		}
		m := new(big.Int)
		z.DivMod(x, y, m) // Euclid's: the remainder is never negative
		if m.Sign() != 0 && y.Sign() < 0 {
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	}
	if z.BitLen() > maxBits {
		r.fail(Bound, line, "a number is too large")
	}
	return normalInt(z)
}

func normalInt(z *big.Int) Value {
	if z.IsInt64() {
		return z.Int64()
	}
	return z
}
