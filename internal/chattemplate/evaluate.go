package chattemplate

import (
	"fmt"
	"math/big"
	"strings"
)

// arguments are the values that a call passes.
type arguments struct {
	positional []Value
	names      []string
	named      []Value
}

func (a *arguments) get(name string) (Value, bool) {
	for i, n := range a.names {
		if n == name {
			return a.named[i], true
		}
	}
	return nil, false
}

// evaluate gives the value of an expression.
func (r *renderer) evaluate(e expression, s *scope) Value {
	r.step(1)
	r.descend(0)
	v := r.valueOf(e, s)
	r.ascend()
	return v
}

func (r *renderer) valueOf(e expression, s *scope) Value {
	switch n := e.(type) {
	case *constant:
		return n.value
	case *nameExpr:
		if v, ok := s.get(n.name); ok {
			return v
		}
		if f, ok := globals[n.name]; ok {
			return f
		}
		return undefined{name: n.name}
	case *attributeExpr:
		return r.attribute(r.evaluate(n.object, s), n.name, n.line)
	case *itemExpr:
		object := r.evaluate(n.object, s)
		return r.item(object, r.evaluate(n.key, s), n.line)
	case *sliceExpr:
		return r.slice(n, s)
	case *callExpr:
		return r.call(n, s, nil)
	case *filterExpr:
		object := r.evaluate(n.object, s)
		if n.apply == nil {
			r.fail(Runtime, n.line, "no filter named %q", n.name)
		}
		a := r.arguments(n.passed, s, n.line)
		return n.apply(r, n.line, object, a)
	case *testExpr:
		object := r.evaluate(n.object, s)
		if n.apply == nil {
			r.fail(Runtime, n.line, "no test named %q", n.name)
		}
		return n.apply(r, n.line, object, r.arguments(n.passed, s, n.line))
	case *notExpr:
		return !truth(r.evaluate(n.operand, s))
	case *andExpr:
		if left := r.evaluate(n.left, s); !truth(left) {
			return left
		}
		return r.evaluate(n.right, s)
	case *orExpr:
		if left := r.evaluate(n.left, s); truth(left) {
			return left
		}
		return r.evaluate(n.right, s)
	case *conditionExpr:
		if truth(r.evaluate(n.test, s)) {
			return r.evaluate(n.then, s)
		}
		if n.orElse == nil {
			return undefined{name: "the inline if-expression evaluated to false and no else section was defined"}
		}
		return r.evaluate(n.orElse, s)
	case *compareExpr:
		left := r.evaluate(n.left, s)
		for i, op := range n.ops {
			right := r.evaluate(n.rights[i], s)
			if !r.compare(op, left, right, n.line) {
				return false
			}
			left = right
		}
		return true
	case *binaryExpr:
		left := r.evaluate(n.left, s)
		return r.binary(n.op, left, r.evaluate(n.right, s), n.line)
	case *unaryExpr:
		return r.unary(n, s)
	case *concatExpr:
		var b strings.Builder
		for _, part := range n.parts {
			r.write(&b, r.str(r.evaluate(part, s), 0))
		}
		return b.String()
	case *listExpr:
		return &List{r.values(n.items, s)}
	case *tupleExpr:
		return &Tuple{r.values(n.items, s)}
	case *dictExpr:
		d := &Dict{}
		r.allocate(64 * len(n.keys))
		for i, key := range n.keys {
			k := r.evaluate(key, s)
			r.mustHash(k, n.line)
			d.Set(k, r.evaluate(n.values[i], s))
		}
		return d
	case captured:
		return r.capturedText[len(r.capturedText)-1]
	}
	panic(fmt.Sprintf("BUG: expression %T", e))
}

func (r *renderer) values(items []expression, s *scope) []Value {
	values := r.items(len(items))
	for _, item := range items {
		values = append(values, r.evaluate(item, s))
	}
	return values
}

func (r *renderer) mustHash(key Value, line int) {
	if !hashable(key) {
		r.fail(Runtime, line, "unhashable type: '%s'", typeName(key))
	}
	r.readKey(key)
}

// readKey counts the reading of a key, which is compared with others, and printed if it is a tuple.
func (r *renderer) readKey(key Value) {
	if s, ok := asString(key); ok {
		r.read(len(s))
	} else if t, ok := key.(*Tuple); ok && len(t.items) > 0 {
		r.read(maxTupleKey)
	}
}

func (r *renderer) arguments(p passedArguments, s *scope, line int) *arguments {
	a := &arguments{positional: r.values(p.positional, s), names: p.names}
	for _, e := range p.named {
		a.named = append(a.named, r.evaluate(e, s))
	}
	if p.list != nil {
		a.positional = append(a.positional, r.iterate(r.evaluate(p.list, s), line)...)
	}
	if p.dict != nil {
		d, ok := r.evaluate(p.dict, s).(*Dict)
		if !ok {
			r.fail(Runtime, line, "argument after ** must be a mapping")
		}
		a.names = append([]string(nil), a.names...)
		for i, key := range d.keys {
			name, ok := asString(key)
			if !ok {
				r.fail(Runtime, line, "keywords must be strings")
			}
			a.names, a.named = append(a.names, name), append(a.named, d.values[i])
		}
	}
	return a
}

// call calls what an expression gives; caller is the body of a call block, or nil.
func (r *renderer) call(n *callExpr, s *scope, caller *macro) Value {
	callee := r.evaluate(n.callee, s)
	a := r.arguments(n.passed, s, n.line)
	switch f := callee.(type) {
	case *macro:
		return r.callMacro(f, n.line, a, caller)
	case *function:
		return f.call(r, n.line, a)
	case *loop:
		return f.recurse(r, n.line, a)
	case undefined:
		r.failUndefined(f, n.line)
	}
	r.fail(Runtime, n.line, "'%s' object is not callable", typeName(callee))
	return nil
}

func (r *renderer) failUndefined(u undefined, line int) {
	if u.security {
		r.fail(Runtime, line, "access to attribute '%s' is unsafe", u.name)
	}
	r.fail(Runtime, line, "'%s' is undefined", u.name)
}

// attribute is object.name: what Python has by that name comes first, then an item of it.
func (r *renderer) attribute(object Value, name string, line int) Value {
	if u, ok := object.(undefined); ok {
		r.failUndefined(u, line)
	}
	if v, ok := r.pythonAttribute(object, name); ok {
		return v
	}
	if d, ok := object.(*Dict); ok {
		if v, ok := d.get(name); ok {
			return v
		}
	}
	return undefined{name: name}
}

// item is object[key]: the item comes first, then what Python has by that name.
func (r *renderer) item(object, key Value, line int) Value {
	switch o := object.(type) {
	case *Dict:
		if hashable(key) {
			r.readKey(key)
			if v, ok := o.get(key); ok {
				return v
			}
		}
	case undefined:
		r.failUndefined(o, line)
	default:
		if i, ok := asInt(key); ok {
			if v, ok := r.index(object, i); ok {
				return v
			}
		}
	}
	if name, ok := asString(key); ok {
		if v, ok := r.pythonAttribute(object, name); ok {
			return v
		}
	}
	return undefined{name: r.str(key, line)}
}

// index is the item of a sequence at i, from the end if that is negative.
func (r *renderer) index(object Value, i int64) (Value, bool) {
	if s, ok := asString(object); ok {
		n := int64(r.length(s))
		if i < 0 {
			i += n
		}
		if i < 0 || i >= n {
			return nil, false
		}
		return sliceString(s, int(i), int(i)+1, int(n)), true
	}
	if g, ok := object.(*rangeOf); ok {
		if i < 0 {
			i += int64(g.n)
		}
		if i < 0 || i >= int64(g.n) {
			return nil, false
		}
		return g.start + i*g.step, true
	}
	items, ok := sequence(object)
	if i < 0 {
		i += int64(len(items))
	}
	if !ok || i < 0 || i >= int64(len(items)) {
		return nil, false
	}
	return items[i], true
}

// sequence are the items of a list or a tuple.
func sequence(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case *List:
		return v.items, true
	case *Tuple:
		return v.items, true
	}
	return nil, false
}

// slice is object[start:stop:step]. What cannot be sliced fails; only of constants, which the
// reference folds when it compiles, the slice is undefined.
func (r *renderer) slice(n *sliceExpr, s *scope) Value {
	object := r.evaluate(n.object, s)
	_, folded := n.object.(*constant)
	var bounds [3]*int64
	for i, e := range []expression{n.start, n.stop, n.step} {
		if e == nil {
			continue
		}
		v := r.evaluate(e, s)
		if v == nil {
			continue
		}
		b, ok := asInt(v)
		if !ok {
			if _, fixed := e.(*constant); !folded || !fixed {
				r.fail(Runtime, n.line, "slice indices must be integers or None")
			}
			return undefined{name: "slice"}
		}
		bounds[i] = &b
	}
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		r.fail(Runtime, n.line, "slice step cannot be zero")
	}
	var count int
	text, isText := asString(object)
	items, isSequence := sequence(object)
	switch {
	case isText:
		count = r.length(text)
	case isSequence:
		count = len(items)
	default:
		if u, ok := object.(undefined); ok {
			r.failUndefined(u, n.line)
		}
		if g, ok := object.(*rangeOf); ok {
			items, count = r.iterate(g, n.line), g.n
			object = &List{items}
			break
		}
		if !folded {
			r.fail(Runtime, n.line, "'%s' object is not subscriptable", typeName(object))
		}
		return undefined{name: "slice"}
	}
	from, to := sliceBounds(bounds[0], bounds[1], step, int64(count))
	if isText && step == 1 {
		if to < from {
			to = from
		}
		return sliceString(text, int(from), int(to), count)
	}
	var runes []rune
	if isText {
		r.allocate(4 * count)
		runes = []rune(text)
	}
	var picked []Value
	var b strings.Builder
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		r.step(1)
		if isText {
			b.WriteRune(runes[i])
		} else {
			picked = append(picked, items[i])
		}
		if step > int64(count) || step < -int64(count) {
			break
		}
	}
	r.allocate(16*len(picked) + b.Len())
	if isText {
		return b.String()
	}
	if _, ok := object.(*Tuple); ok {
		return &Tuple{picked}
	}
	return &List{picked}
}

// sliceBounds are the first index and the one past the last, as Python has them.
func sliceBounds(start, stop *int64, step, count int64) (from, to int64) {
	clamp := func(i, low, high int64) int64 {
		if i < 0 {
			i += count
		}
		return max(low, min(i, high))
	}
	if step > 0 {
		from, to = 0, count
		if start != nil {
			from = clamp(*start, 0, count)
		}
		if stop != nil {
			to = clamp(*stop, 0, count)
		}
		return from, to
	}
	from, to = count-1, -1
	if start != nil {
		from = clamp(*start, -1, count-1)
	}
	if stop != nil {
		to = clamp(*stop, -1, count-1)
	}
	return from, to
}

// iterate are the items that a for loop sees.
func (r *renderer) iterate(v Value, line int) []Value {
	switch v := v.(type) {
	case *List:
		return v.items
	case *Tuple:
		return v.items
	case *Dict:
		return v.keys
	case *view:
		return v.items
	case *iterator:
		items := v.items
		v.items = nil
		return items
	case *rangeOf:
		items := r.items(v.n)
		for i := range v.n {
			items = append(items, v.start+int64(i)*v.step)
		}
		return items
	case *loop:
		// A for loop over loop itself would share its items: nobody does that.
	case string, safe:
		s, _ := asString(v)
		items := r.items(r.length(s))
		for _, c := range s {
			items = append(items, string(c))
		}
		return items
	case undefined:
		return nil
	}
	r.fail(Runtime, line, "'%s' object is not iterable", typeName(v))
	return nil
}

func (r *renderer) unary(n *unaryExpr, s *scope) Value {
	v := r.evaluate(n.operand, s)
	if u, ok := v.(undefined); ok {
		r.failUndefined(u, n.line)
	}
	if i, ok := asInt(v); ok {
		if n.op == "-" {
			if i == -i && i != 0 {
				return new(big.Int).Neg(big.NewInt(i))
			}
			return -i
		}
		return i
	}
	switch v := v.(type) {
	case float64:
		if n.op == "-" {
			return -v
		}
		return v
	case *big.Int:
		if n.op == "-" {
			return new(big.Int).Neg(v)
		}
		return v
	}
	r.fail(Runtime, n.line, "bad operand type for unary %s: '%s'", n.op, typeName(v))
	return nil
}
