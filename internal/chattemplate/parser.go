package chattemplate

import (
	"fmt"
	"slices"
)

// parser reads statements. It throws an *Error of the kinds Syntax and Unsupported.
type parser struct {
	tokens   []token
	at       int
	depth    int
	maxDepth int
	// soft is above 0 within conditions: a filter or a test that does not exist is an error there only when it is reached.
	soft int
	// macros are the definitions that are being read, the innermost last.
	macros []*macroDef
}

func (p *parser) failf(format string, args ...any) {
	panic(&Error{Kind: Syntax, Message: fmt.Sprintf(format, args...), Line: p.peek().line})
}

func (p *parser) unsupported(what string) {
	panic(&Error{Kind: Unsupported, Message: what, Line: p.peek().line})
}

// enter counts nesting, leave takes it back.
func (p *parser) enter() {
	p.depth++
	if p.depth > p.maxDepth {
		panic(&Error{Kind: Bound, Message: fmt.Sprintf("the source nests deeper than %d", p.maxDepth), Line: p.peek().line})
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) peekAt(ahead int) token { return p.tokens[min(p.at+ahead, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}
	return t
}

func (p *parser) is(kind tokenKind, value string) bool {
	t := p.peek()
	return t.kind == kind && t.value == value
}

func (p *parser) isOperator(value string) bool { return p.is(tokenOperator, value) }

func (p *parser) isName(value string) bool { return p.is(tokenName, value) }

func (p *parser) skip(kind tokenKind, value string) bool {
	if p.is(kind, value) {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipOperator(value string) bool { return p.skip(tokenOperator, value) }

func (p *parser) skipName(value string) bool { return p.skip(tokenName, value) }

func (p *parser) expect(kind tokenKind, value string) token {
	t := p.peek()
	if t.kind != kind || value != "" && t.value != value {
		want := token{kind: kind, value: value}.String()
		if value == "" && kind == tokenName {
			want = "a name"
		}
		p.failf("expected %s, got %s", want, t)
	}
	return p.take()
}

// statements reads up to the end, or to a block that begins with one of the names until, which is left to be read: its {% is not.
func (p *parser) statements(until ...string) []statement {
	p.enter()
	defer p.leave()
	var body []statement
	for {
		switch t := p.peek(); t.kind {
		case tokenEnd:
			if len(until) > 0 {
				p.failf("expected %q before the end", until[len(until)-1])
			}
			return body
		case tokenText:
			p.take()
			body = append(body, &textNode{text: t.value})
		case tokenVariableBegin:
			p.take()
			body = append(body, &outputNode{value: p.tuple(), line: t.line})
			p.expect(tokenVariableEnd, "")
		case tokenBlockBegin:
			if name := p.peekAt(1); name.kind == tokenName && slices.Contains(until, name.value) {
				p.take()
				return body
			}
			p.take()
			body = append(body, p.block())
		default:
			p.failf("unexpected %s", t)
		}
	}
}

// bodyUntil reads behind the name of a block: the end of its tag, its body, and the name that ends it.
func (p *parser) bodyUntil(until ...string) ([]statement, string) {
	p.skipOperator(":")
	p.expect(tokenBlockEnd, "")
	body := p.statements(until...)
	return body, p.take().value
}

// block reads a block behind its {%.
func (p *parser) block() statement {
	name := p.expect(tokenName, "")
	var s statement
	switch name.value {
	case "if":
		s = p.ifBlock()
	case "for":
		s = p.forBlock(name.line)
	case "set":
		s = p.setBlock(name.line)
	case "macro":
		s = p.macroBlock()
	case "call":
		s = p.callBlock(name.line)
	case "filter":
		f := p.filters(captured{}, true)
		body, _ := p.bodyUntil("endfilter")
		s = &filterNode{filter: f, body: body, line: name.line}
	case "with":
		s = p.withBlock(name.line)
	case "generation":
		body, _ := p.bodyUntil("endgeneration")
		s = &scopedNode{body: body}
	case "block":
		p.expect(tokenName, "")
		body, _ := p.bodyUntil("endblock")
		p.skip(tokenName, p.peek().value) // {% endblock name %}
		s = &scopedNode{body: body}
	case "break":
		s = breakNode{}
	case "continue":
		s = continueNode{}
	case "extends", "include", "import", "from", "autoescape":
		p.unsupported(fmt.Sprintf("the statement %q", name.value))
	default:
		p.failf("unknown statement %q", name.value)
	}
	p.expect(tokenBlockEnd, "")
	return s
}

func (p *parser) ifBlock() statement {
	n := &ifNode{}
	p.soft++
	defer func() { p.soft-- }()
	for {
		test := p.tupleOf(tupleOptions{noCondition: true})
		body, next := p.bodyUntil("elif", "else", "endif")
		n.branches = append(n.branches, branch{test: test, body: body})
		if next == "elif" {
			continue
		}
		if next == "else" {
			n.orElse, _ = p.bodyUntil("endif")
		}
		return n
	}
}

func (p *parser) forBlock(line int) statement {
	n := &forNode{line: line}
	n.target = p.targets("in")
	p.expect(tokenName, "in")
	n.over = p.tupleOf(tupleOptions{noCondition: true, end: "recursive"})
	if p.skipName("if") {
		n.filter = p.expression()
	}
	n.recursive = p.skipName("recursive")
	var next string
	if n.body, next = p.bodyUntil("endfor", "else"); next == "else" {
		n.orElse, _ = p.bodyUntil("endfor")
	}
	return n
}

func (p *parser) setBlock(line int) statement {
	t := p.targets("")
	if p.skipOperator("=") {
		return &setNode{target: t, value: p.tuple(), line: line}
	}
	var filter expression
	if p.isOperator("|") {
		filter = p.filters(captured{}, false)
	}
	body, _ := p.bodyUntil("endset")
	return &captureNode{target: t, filter: filter, body: body, line: line}
}

// targets reads one target or several with commas between.
func (p *parser) targets(end string) target {
	first := p.target()
	if !p.isOperator(",") {
		return first
	}
	parts := []target{first}
	for p.skipOperator(",") {
		if end != "" && p.isName(end) || p.isOperator("=") {
			break
		}
		parts = append(parts, p.target())
	}
	return target{parts: parts}
}

func (p *parser) target() target {
	if p.skipOperator("(") {
		p.enter()
		defer p.leave()
		t := p.targets("")
		p.expect(tokenOperator, ")")
		return t
	}
	name := p.expect(tokenName, "")
	if reserved(name.value) {
		p.failf("cannot assign to %q", name.value)
	}
	if p.skipOperator(".") {
		return target{name: name.value, attribute: p.expect(tokenName, "").value}
	}
	return target{name: name.value}
}

func reserved(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

func (p *parser) withBlock(line int) statement {
	n := &withNode{line: line}
	for p.peek().kind != tokenBlockEnd {
		if len(n.targets) > 0 {
			p.expect(tokenOperator, ",")
		}
		n.targets = append(n.targets, p.target())
		p.expect(tokenOperator, "=")
		n.values = append(n.values, p.expression())
	}
	n.body, _ = p.bodyUntil("endwith")
	return n
}

func (p *parser) macroBlock() statement {
	def := &macroDef{name: p.expect(tokenName, "").value}
	p.signature(def)
	def.body = p.macroBody(def, "endmacro")
	return &macroNode{def: def}
}

func (p *parser) macroBody(def *macroDef, end string) []statement {
	p.macros = append(p.macros, def)
	defer func() { p.macros = p.macros[:len(p.macros)-1] }()
	body, _ := p.bodyUntil(end)
	return body
}

func (p *parser) signature(def *macroDef) {
	p.expect(tokenOperator, "(")
	for !p.isOperator(")") {
		if len(def.parameters) > 0 {
			p.expect(tokenOperator, ",")
		}
		def.parameters = append(def.parameters, p.expect(tokenName, "").value)
		if p.skipOperator("=") {
			def.defaults = append(def.defaults, p.expression())
		} else if len(def.defaults) > 0 {
			p.failf("a parameter without a default follows one that has one")
		}
	}
	p.expect(tokenOperator, ")")
}

func (p *parser) callBlock(line int) statement {
	def := &macroDef{name: "caller"}
	if p.isOperator("(") {
		p.signature(def)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.failf("expected a call")
	}
	call.line = line
	def.body = p.macroBody(def, "endcall")
	return &callNode{caller: def, call: call}
}

// refersTo notes a name that the bodies of macros use: of those that are being read, all enclose it.
func (p *parser) refersTo(name string) {
	for _, def := range p.macros {
		switch name {
		case "caller":
			def.usesCaller = true
		case "varargs":
			def.usesVarargs = true
		case "kwargs":
			def.usesKwargs = true
		}
	}
}
