package chattemplate

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// renderer is one render: it counts what the render uses, and throws an *Error or contextEnded.
type renderer struct {
	ctx   context.Context
	o     Options
	now   time.Time
	steps int
	bytes int
	depth int
	// capturedText are the bodies of filter and set blocks whose filters are being evaluated, the innermost last.
	capturedText []Value
}

// checkEvery is the number of steps between two looks at the context: well under a millisecond.
const checkEvery = 4096

func (r *renderer) fail(kind Kind, line int, format string, args ...any) {
	panic(&Error{Kind: kind, Message: fmt.Sprintf(format, args...), Line: line})
}

// step counts n evaluated nodes.
func (r *renderer) step(n int) {
	before := r.steps
	r.steps += n
	if r.steps > r.o.MaxSteps {
		r.fail(Bound, 0, "the render takes more than %d steps", r.o.MaxSteps)
	}
	if r.steps/checkEvery != before/checkEvery {
		if err := r.ctx.Err(); err != nil {
			panic(contextEnded{err})
		}
	}
}

// read counts the reading of n bytes.
func (r *renderer) read(n int) { r.step(n/256 + 1) }

// allocate counts a value of n bytes that is about to be made.
func (r *renderer) allocate(n int) {
	if n > r.o.MaxOutput || n < 0 {
		r.fail(Bound, 0, "a string is longer than %d bytes", r.o.MaxOutput)
	}
	r.bytes += n
	if r.bytes > r.o.MaxBytes {
		r.fail(Bound, 0, "the render needs more than %d bytes of memory", r.o.MaxBytes)
	}
	r.read(n)
}

// items makes room for a list of n values.
func (r *renderer) items(n int) []Value {
	r.allocate(16 * n)
	return make([]Value, 0, n)
}

// scope has the variables of a block; names that it lacks are looked for in its parents.
type scope struct {
	variables []variable
	parent    *scope
}

type variable struct {
	name  string
	value Value
}

func (s *scope) set(name string, v Value) {
	for i := range s.variables {
		if s.variables[i].name == name {
			s.variables[i].value = v
			return
		}
	}
	s.variables = append(s.variables, variable{name, v})
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.own(name); ok {
			return v, true
		}
	}
	return nil, false
}

// own is the value of a name in this scope alone.
func (s *scope) own(name string) (Value, bool) {
	for i := range s.variables {
		if s.variables[i].name == name {
			return s.variables[i].value, true
		}
	}
	return nil, false
}

// again empties the scope for the next round of a loop. A macro that was defined in an earlier round sees the variables of the latest, as in the reference.
func (s *scope) again() {
	clear(s.variables)
	s.variables = s.variables[:0]
}

// flow is how a body ended.
type flow uint8

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

// run runs a body and writes its text. Texts within another are limited too, since each is a string on the way.
func (r *renderer) run(body []statement, s *scope, out *strings.Builder) flow {
	for _, st := range body {
		r.step(1)
		switch n := st.(type) {
		case *textNode:
			r.write(out, n.text)
		case *outputNode:
			v := r.evaluate(n.value, s)
			if text, ok := asString(v); ok {
				r.write(out, text)
			} else {
				r.write(out, r.str(v, n.line))
			}
		case *ifNode:
			if f := r.runIf(n, s, out); f != flowOn {
				return f
			}
		case *forNode:
			r.runFor(n, s, out, 0)
		case *setNode:
			r.assign(s, n.target, r.evaluate(n.value, s), n.line)
		case *captureNode:
			r.assign(s, n.target, r.capture(n.body, n.filter, s, n.line), n.line)
		case *filterNode:
			r.write(out, r.str(r.capture(n.body, n.filter, s, n.line), n.line))
		case *withNode:
			inner := &scope{parent: s}
			for i, t := range n.targets {
				r.assign(inner, t, r.evaluate(n.values[i], s), n.line)
			}
			if f := r.run(n.body, inner, out); f != flowOn {
				return f
			}
		case *macroNode:
			s.set(n.def.name, &macro{def: n.def, scope: s})
		case *callNode:
			caller := &macro{def: n.caller, scope: s}
			v := r.call(n.call, s, caller)
			r.write(out, r.str(v, n.call.line))
		case *scopedNode:
			if f := r.run(n.body, &scope{parent: s}, out); f != flowOn {
				return f
			}
		case breakNode:
			return flowBreak
		case continueNode:
			return flowContinue
		default:
			panic(fmt.Sprintf("BUG: statement %T", st))
		}
	}
	return flowOn
}

func (r *renderer) write(out *strings.Builder, text string) {
	if out.Len()+len(text) > r.o.MaxOutput {
		r.fail(Bound, 0, "the text is longer than %d bytes", r.o.MaxOutput)
	}
	r.allocate(len(text))
	out.WriteString(text)
}

func (r *renderer) runIf(n *ifNode, s *scope, out *strings.Builder) flow {
	for _, b := range n.branches {
		if truth(r.evaluate(b.test, s)) {
			return r.run(b.body, s, out)
		}
	}
	return r.run(n.orElse, s, out)
}

// capture renders a body to a string and applies filters to it.
func (r *renderer) capture(body []statement, filter expression, s *scope, line int) Value {
	r.descend(line)
	defer r.ascend()
	var text strings.Builder
	if r.run(body, &scope{parent: s}, &text) != flowOn {
		r.fail(Runtime, line, "break or continue outside of a loop")
	}
	if filter == nil {
		return text.String()
	}
	r.capturedText = append(r.capturedText, text.String())
	v := r.evaluate(filter, s)
	r.capturedText = r.capturedText[:len(r.capturedText)-1]
	return v
}

// nodesPerLevel is how many nested expressions one level of MaxDepth stands for: the depth of the stack is what is bounded.
const nodesPerLevel = 10

// descend counts the nesting of calls and expressions, ascend takes it back. A render that fails ends as a whole, so the count need not be right then.
func (r *renderer) descend(line int) {
	r.depth++
	if r.depth > nodesPerLevel*r.o.MaxDepth {
		r.fail(Bound, line, "calls nest too deep")
	}
}

func (r *renderer) ascend() { r.depth-- }

func (r *renderer) assign(s *scope, t target, v Value, line int) {
	if t.parts != nil {
		items := r.iterate(v, line)
		if len(items) != len(t.parts) {
			r.fail(Runtime, line, "cannot unpack %d values into %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			r.assign(s, part, items[i], line)
		}
		return
	}
	if t.attribute == "" {
		s.set(t.name, v)
		return
	}
	object, _ := s.get(t.name)
	ns, ok := object.(*namespace)
	if !ok {
		r.fail(Runtime, line, "cannot assign attribute on non-namespace object")
	}
	ns.attributes.Set(t.attribute, v)
}

// loop is the variable of that name in a for loop.
type loop struct {
	n      *forNode
	outer  *scope // of the loop
	depth0 int

	items []Value // that are left; those behind at have not been filtered yet
	at    int     // the item that the body sees is at-1
	index int     // from 0
	seen  []Value // filtered, from the current item on; the current is seen[0]
	tried *scope  // of the filter

	previous Value
	changed  []Value
	asked    bool // changed was asked before
}

// advance goes to the next item that the loop's filter lets through.
func (l *loop) advance(r *renderer) bool {
	if len(l.seen) > 0 {
		l.previous = l.seen[0]
		if len(l.seen) == 1 {
			l.seen = l.seen[:0] // to be filled again
		} else {
			l.seen = l.seen[1:]
		}
	}
	if len(l.seen) == 0 && !l.fetch(r) {
		return false
	}
	l.index++
	return true
}

// fetch filters up to one more item, as late as the reference does: a filter may depend on what the body did.
func (l *loop) fetch(r *renderer) bool {
	for l.at < len(l.items) {
		r.step(1)
		item := l.items[l.at]
		l.at++
		if l.n.filter != nil {
			if l.tried == nil {
				l.tried = &scope{parent: l.outer}
			}
			r.assign(l.tried, l.n.target, item, l.n.line)
			if !truth(r.evaluate(l.n.filter, l.tried)) {
				continue
			}
		}
		l.seen = append(l.seen, item)
		return true
	}
	return false
}

// next is the item after the current one.
func (l *loop) next(r *renderer) (Value, bool) {
	if len(l.seen) < 2 && !l.fetch(r) {
		return nil, false
	}
	return l.seen[1], true
}

// length is the number of items of the whole loop.
func (l *loop) length(r *renderer) int {
	if l.n.filter == nil {
		return len(l.items)
	}
	for l.fetch(r) {
	}
	return l.index + len(l.seen)
}

func (l *loop) attribute(r *renderer, name string) Value {
	switch name {
	case "index":
		return int64(l.index + 1)
	case "index0":
		return int64(l.index)
	case "revindex":
		return int64(l.length(r) - l.index)
	case "revindex0":
		return int64(l.length(r) - l.index - 1)
	case "first":
		return l.index == 0
	case "last":
		_, more := l.next(r)
		return !more
	case "length":
		return int64(l.length(r))
	case "depth":
		return int64(l.depth0 + 1)
	case "depth0":
		return int64(l.depth0)
	case "previtem":
		if l.index == 0 {
			return undefined{name: "there is no previous item"}
		}
		return l.previous
	case "nextitem":
		if v, ok := l.next(r); ok {
			return v
		}
		return undefined{name: "there is no next item"}
	case "cycle":
		return &function{name: "cycle", call: func(r *renderer, line int, a *arguments) Value {
			if len(a.positional) == 0 {
				r.fail(Runtime, line, "no items for cycling given")
			}
			return a.positional[l.index%len(a.positional)]
		}}
	case "changed":
		return &function{name: "changed", call: func(r *renderer, _ int, a *arguments) Value {
			if l.asked && r.equal(&Tuple{l.changed}, &Tuple{a.positional}) {
				return false
			}
			l.asked, l.changed = true, a.positional
			return true
		}}
	}
	return undefined{name: name}
}

func (r *renderer) runFor(n *forNode, s *scope, out *strings.Builder, depth int) {
	r.iterateOver(n, r.evaluate(n.over, s), s, out, depth)
}

// iterateOver runs a loop over a value. A break and a continue end here. As in jinja2, and
// unlike Python, else follows unless one of the turns came to its end.
func (r *renderer) iterateOver(n *forNode, over Value, s *scope, out *strings.Builder, depth int) {
	r.descend(n.line)
	defer r.ascend()
	l := &loop{n: n, outer: s, depth0: depth, items: r.iterate(over, n.line), index: -1}
	whole := false
	for inner := (&scope{parent: s}); l.advance(r); inner.again() {
		r.assign(inner, n.target, l.seen[0], n.line)
		inner.set("loop", l)
		how := r.run(n.body, inner, out)
		if how == flowBreak {
			break
		}
		whole = whole || how == flowOn
	}
	if !whole {
		r.run(n.orElse, &scope{parent: s}, out)
	}
}

// recurse is loop(value) in a recursive loop.
func (l *loop) recurse(r *renderer, line int, a *arguments) Value {
	if !l.n.recursive || len(a.positional) != 1 {
		r.fail(Runtime, line, "the loop is not recursive")
	}
	var out strings.Builder
	r.iterateOver(l.n, a.positional[0], l.outer, &out, l.depth0+1)
	return out.String()
}

// macro is a macro with the scope that it was defined in.
type macro struct {
	def   *macroDef
	scope *scope
}

// callMacro calls a macro; caller is nil, or the body of the call block that calls it.
func (r *renderer) callMacro(m *macro, line int, a *arguments, caller *macro) Value {
	r.descend(line)
	defer r.ascend()
	def := m.def
	s := &scope{parent: m.scope}
	if len(a.positional) > len(def.parameters) && !def.usesVarargs {
		r.fail(Runtime, line, "macro %q takes not more than %d argument(s)", def.name, len(def.parameters))
	}
	used := 0
	for i, name := range def.parameters {
		if i < len(a.positional) {
			if _, ok := a.get(name); ok {
				r.fail(Runtime, line, "macro %q got a second value for the argument %q", def.name, name)
			}
			s.set(name, a.positional[i])
			continue
		}
		if v, ok := a.get(name); ok {
			used++
			s.set(name, v)
			continue
		}
		if d := i - (len(def.parameters) - len(def.defaults)); d >= 0 {
			s.set(name, r.evaluate(def.defaults[d], s))
		} else {
			s.set(name, undefined{name: "parameter " + name})
		}
	}
	passedCaller, named := a.get("caller")
	switch {
	case def.usesCaller:
		switch {
		case caller != nil:
			s.set("caller", caller)
		case named:
			used++
			s.set("caller", passedCaller)
		default:
			s.set("caller", undefined{name: "caller"})
		}
	case caller != nil:
		r.fail(Runtime, line, "macro %q was invoked with two values for the special caller argument, or takes none", def.name)
	}
	rest := &Dict{}
	if used < len(a.names) {
		for i, name := range a.names {
			if _, isParameter := s.own(name); !isParameter {
				rest.Set(name, a.named[i])
			}
		}
		if rest.Len() > 0 && !def.usesKwargs {
			r.fail(Runtime, line, "macro %q takes no keyword argument %q", def.name, rest.keys[0])
		}
	}
	if def.usesKwargs {
		s.set("kwargs", rest)
	}
	if def.usesVarargs {
		s.set("varargs", &Tuple{a.positional[min(len(def.parameters), len(a.positional)):]})
	}
	var out strings.Builder
	if r.run(def.body, s, &out) != flowOn {
		r.fail(Runtime, line, "break or continue outside of a loop")
	}
	return out.String()
}
