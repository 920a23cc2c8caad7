package chattemplate

import (
	"slices"
	"strings"
)

// expression reads an expression, conditions included.
func (p *parser) expression() expression {
	p.enter()
	defer p.leave()
	e := p.or()
	for p.skipName("if") {
		p.soft++
		test := p.or()
		c := &conditionExpr{test: test, then: e}
		if p.skipName("else") {
			c.orElse = p.expression()
		}
		p.soft--
		e = c
	}
	return e
}

// tupleOptions say how to read what may be a tuple without parentheses.
type tupleOptions struct {
	noCondition bool   // a condition does not belong to it: for … if
	end         string // a name that ends it
	explicit    bool   // within parentheses, where it may be empty
}

// tuple reads an expression, or several with commas between as a tuple.
func (p *parser) tuple() expression { return p.tupleOf(tupleOptions{}) }

func (p *parser) tupleOf(o tupleOptions) expression {
	p.enter()
	defer p.leave()
	one := func() expression {
		if o.noCondition {
			return p.or()
		}
		return p.expression()
	}
	var items []expression
	comma := false
	for {
		t := p.peek()
		if t.kind == tokenVariableEnd || t.kind == tokenBlockEnd || p.isOperator(")") || p.isName("in") || o.end != "" && p.isName(o.end) {
			break
		}
		items = append(items, one())
		if !p.skipOperator(",") {
			break
		}
		comma = true
	}
	if !comma {
		if len(items) > 0 {
			return items[0]
		}
		if !o.explicit {
			p.failf("expected an expression, got %s", p.peek())
		}
	}
	return &tupleExpr{items: items}
}

func (p *parser) or() expression {
	left := p.and()
	for p.skipName("or") {
		left = &orExpr{left: left, right: p.and()}
	}
	return left
}

func (p *parser) and() expression {
	left := p.not()
	for p.skipName("and") {
		left = &andExpr{left: left, right: p.not()}
	}
	return left
}

func (p *parser) not() expression {
	if p.skipName("not") {
		p.enter()
		defer p.leave()
		return &notExpr{operand: p.not()}
	}
	return p.compare()
}

var comparisons = []string{"==", "!=", "<", "<=", ">", ">="}

func (p *parser) compare() expression {
	c := &compareExpr{left: p.sum(), line: p.peek().line}
	for {
		t := p.peek()
		switch {
		case t.kind == tokenOperator && slices.Contains(comparisons, t.value):
			p.take()
			c.ops = append(c.ops, t.value)
		case p.skipName("in"):
			c.ops = append(c.ops, "in")
		case p.isName("not") && p.peekAt(1).kind == tokenName && p.peekAt(1).value == "in":
			p.take()
			p.take()
			c.ops = append(c.ops, "not in")
		default:
			if len(c.ops) == 0 {
				return c.left
			}
			return c
		}
		c.rights = append(c.rights, p.sum())
	}
}

// binary reads operands of next with operators between, from the left.
func (p *parser) binary(next func() expression, ops ...string) expression {
	left := next()
	for {
		found := false
		for _, op := range ops {
			if line := p.peek().line; p.skipOperator(op) {
				left, found = &binaryExpr{op: op, left: left, right: next(), line: line}, true
				break
			}
		}
		if !found {
			return left
		}
	}
}

func (p *parser) sum() expression { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expression {
	first := p.product()
	if !p.isOperator("~") {
		return first
	}
	c := &concatExpr{parts: []expression{first}}
	for p.skipOperator("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expression { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() expression {
	return p.binary(func() expression { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) expression {
	line := p.peek().line
	var e expression
	switch {
	case p.isOperator("-"), p.isOperator("+"):
		p.enter()
		defer p.leave()
		op := p.take().value
		e = &unaryExpr{op: op, operand: p.unary(false), line: line}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filters(e, false)
	}
	return e
}

func (p *parser) primary() expression {
	t := p.peek()
	switch {
	case t.kind == tokenName:
		p.take()
		switch t.value {
		case "true", "True":
			return &constant{true}
		case "false", "False":
			return &constant{false}
		case "none", "None":
			return &constant{nil}
		}
		p.refersTo(t.value)
		return &nameExpr{name: t.value, line: t.line}
	case t.kind == tokenString:
		var b strings.Builder
		for p.peek().kind == tokenString {
			b.WriteString(p.take().value)
		}
		return &constant{b.String()}
	case t.kind == tokenNumber:
		p.take()
		return &constant{t.number}
	case p.skipOperator("("):
		e := p.tupleOf(tupleOptions{explicit: true})
		p.expect(tokenOperator, ")")
		return e
	case p.skipOperator("["):
		l := &listExpr{}
		for !p.isOperator("]") {
			if len(l.items) > 0 {
				p.expect(tokenOperator, ",")
				if p.isOperator("]") {
					break
				}
			}
			l.items = append(l.items, p.expression())
		}
		p.expect(tokenOperator, "]")
		return l
	case p.skipOperator("{"):
		d := &dictExpr{line: t.line}
		for !p.isOperator("}") {
			if len(d.keys) > 0 {
				p.expect(tokenOperator, ",")
				if p.isOperator("}") {
					break
				}
			}
			d.keys = append(d.keys, p.expression())
			p.expect(tokenOperator, ":")
			d.values = append(d.values, p.expression())
		}
		p.expect(tokenOperator, "}")
		return d
	}
	p.failf("unexpected %s", t)
	return nil
}

// postfix reads attributes, items and calls behind an expression. Each hangs below the next, so they count as nesting.
func (p *parser) postfix(e expression) expression {
	levels := 0
	defer func() { p.depth -= levels }()
	for {
		line := p.peek().line
		switch {
		case p.skipOperator("."):
			switch t := p.take(); t.kind {
			case tokenName:
				e = &attributeExpr{object: e, name: t.value, line: line}
			case tokenNumber:
				e = &itemExpr{object: e, key: &constant{t.number}, line: line}
			default:
				p.failf("expected a name behind the dot")
			}
		case p.skipOperator("["):
			e = p.subscript(e, line)
		case p.isOperator("("):
			e = &callExpr{callee: e, passed: p.arguments(), line: line}
		default:
			return e
		}
		p.enter()
		levels++
	}
}

func (p *parser) subscript(object expression, line int) expression {
	var first expression
	if !p.isOperator(":") {
		first = p.expression()
		if p.isOperator(",") {
			items := []expression{first}
			for p.skipOperator(",") {
				if p.isOperator("]") {
					break
				}
				items = append(items, p.expression())
			}
			first = &tupleExpr{items: items}
		}
		if p.skipOperator("]") {
			return &itemExpr{object: object, key: first, line: line}
		}
	}
	s := &sliceExpr{object: object, start: first, line: line}
	p.expect(tokenOperator, ":")
	if !p.isOperator(":") && !p.isOperator("]") {
		s.stop = p.expression()
	}
	if p.skipOperator(":") && !p.isOperator("]") {
		s.step = p.expression()
	}
	p.expect(tokenOperator, "]")
	return s
}

// filters reads filters, tests and calls behind an expression. With first, a filter's name comes at once, without a bar.
func (p *parser) filters(e expression, first bool) expression {
	levels := 0
	defer func() { p.depth -= levels }()
	for {
		line := p.peek().line
		switch {
		case first || p.skipOperator("|"):
			first = false
			name := p.dotted()
			f := &filterExpr{object: e, name: name, apply: filters[name], line: line}
			if p.isOperator("(") {
				f.passed = p.arguments()
			}
			if f.apply == nil && p.soft == 0 {
				p.unsupported("the filter " + name)
			}
			e = f
		case p.skipName("is"):
			e = p.test(e, line)
		case p.isOperator("("):
			e = &callExpr{callee: e, passed: p.arguments(), line: line}
		default:
			return e
		}
		p.enter()
		levels++
	}
}

func (p *parser) dotted() string {
	name := p.expect(tokenName, "").value
	for p.skipOperator(".") {
		name += "." + p.expect(tokenName, "").value
	}
	return name
}

func (p *parser) test(object expression, line int) expression {
	negated := p.skipName("not")
	t := &testExpr{object: object, name: p.dotted(), line: line}
	t.apply = tests[t.name]
	if t.apply == nil && p.soft == 0 {
		p.unsupported("the test " + t.name)
	}
	switch next := p.peek(); {
	case p.isOperator("("):
		t.passed = p.arguments()
	case next.kind == tokenName && next.value != "else" && next.value != "or" && next.value != "and",
		next.kind == tokenString, next.kind == tokenNumber, p.isOperator("["), p.isOperator("{"):
		if p.isName("is") {
			p.failf("tests cannot follow each other with is")
		}
		t.passed.positional = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{operand: t}
	}
	return t
}

func (p *parser) arguments() passedArguments {
	var a passedArguments
	p.expect(tokenOperator, "(")
	for n := 0; !p.isOperator(")"); n++ {
		if n > 0 {
			p.expect(tokenOperator, ",")
			if p.isOperator(")") {
				break
			}
		}
		switch {
		case p.skipOperator("*"):
			a.list = p.expression()
		case p.skipOperator("**"):
			a.dict = p.expression()
		case p.peek().kind == tokenName && p.peekAt(1).kind == tokenOperator && p.peekAt(1).value == "=":
			a.names = append(a.names, p.take().value)
			p.take()
			a.named = append(a.named, p.expression())
		default:
			if len(a.names) > 0 || a.list != nil || a.dict != nil {
				p.failf("a positional argument follows named ones")
			}
			a.positional = append(a.positional, p.expression())
		}
	}
	p.expect(tokenOperator, ")")
	return a
}
