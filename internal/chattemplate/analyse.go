package chattemplate

import (
	"fmt"
	"strings"
)

// Facts is what a template tells of itself.
type Facts struct {
	// ContentParts: the template goes through the parts of a message's content, so that a content is given as a list of parts and not as a string. The rule is that of
	// vLLM, which decides what engines are sent behind HTTP.
	ContentParts bool
	// Developer: the template knows the role "developer".
	Developer bool

	names map[string]bool
}

// Uses tells whether the template refers to a variable of that name.
func (f Facts) Uses(name string) bool { return f.names[name] }

// Facts looks through the template. It is meant to be called once.
func (t *Template) Facts() Facts {
	f := Facts{names: map[string]bool{}}
	each(t.body, func(n any) {
		if name, ok := n.(*nameExpr); ok {
			f.names[name.name] = true
		}
	})
	f.Developer = strings.Contains(t.source, `"developer"`) || strings.Contains(t.source, "'developer'")
	f.ContentParts = contentParts(t.body)
	return f
}

// contentParts looks for a loop over message.content, however the messages and the content are called on the way. Where a template unpacks on that way, the reference
// gives up and takes contents for strings.
func contentParts(body []statement) bool {
	lists, ok := aliases(body, "messages")
	if !ok {
		return false
	}
	messages := map[string]bool{}
	for _, l := range collect[*forNode](body) {
		for list := range lists {
			if isAccess(l.over, list, "") {
				if l.target.name == "" {
					return false
				}
				messages[l.target.name] = true
			}
		}
	}
	isContent := func(e expression) bool {
		for m := range messages {
			if isAccess(e, m, "content") {
				return true
			}
		}
		return false
	}
	inMacro := map[*forNode]map[string]bool{} // loops of macros, with the parameters that are a content
	for _, m := range collect[*macroNode](body) {
		parameters := contentParameters(body, m.def, isContent)
		for _, l := range collect[*forNode](m.def.body) {
			if inMacro[l] == nil || len(parameters) > 0 {
				inMacro[l] = parameters
			}
		}
	}
	for _, l := range collect[*forNode](body) {
		parameters, within := inMacro[l]
		name, _ := l.over.(*nameExpr)
		if isContent(l.over) || name != nil && (parameters[name.name] || !within && name.name == "content") {
			return l.target.name != ""
		}
	}
	return false
}

// aliases are the names that a variable is assigned to, itself included; false: it is assigned to something else than a name.
func aliases(body []statement, name string) (map[string]bool, bool) {
	found := map[string]bool{name: true}
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		for _, s := range collect[*setNode](body) {
			if !isAccess(s.value, queue[0], "") {
				continue
			}
			if s.target.name == "" || s.target.attribute != "" {
				return nil, false
			}
			if !found[s.target.name] {
				found[s.target.name] = true
				queue = append(queue, s.target.name)
			}
		}
	}
	return found, true
}

// contentParameters are the parameters of a macro that somebody passes the content of a message to.
func contentParameters(body []statement, def *macroDef, isContent func(expression) bool) map[string]bool {
	found := map[string]bool{}
	for _, c := range collect[*callExpr](body) {
		if callee, ok := c.callee.(*nameExpr); !ok || callee.name != def.name {
			continue
		}
		for i, e := range c.passed.positional {
			if i < len(def.parameters) && isContent(e) {
				found[def.parameters[i]] = true
			}
		}
		for i, e := range c.passed.named {
			for _, p := range def.parameters {
				if p == c.passed.names[i] && isContent(e) {
					found[p] = true
				}
			}
		}
	}
	return found
}

// isAccess tells whether an expression is a variable, or with a key that item of it, perhaps filtered, tested or sliced.
func isAccess(e expression, variable, key string) bool {
	isVariable := func(e expression) bool {
		n, ok := e.(*nameExpr)
		return ok && n.name == variable
	}
	switch n := e.(type) {
	case *filterExpr:
		return isAccess(n.object, variable, key)
	case *testExpr:
		return isAccess(n.object, variable, key)
	case *sliceExpr:
		return isAccess(n.object, variable, key)
	case *itemExpr:
		c, ok := n.key.(*constant)
		return key != "" && ok && c.value == key && isVariable(n.object)
	case *attributeExpr:
		return key != "" && n.name == key && isVariable(n.object)
	}
	return key == "" && isVariable(e)
}

// collect gives the nodes of one type in the order of the source.
func collect[T any](body []statement) []T {
	var found []T
	each(body, func(n any) {
		if t, ok := n.(T); ok {
			found = append(found, t)
		}
	})
	return found
}

// each visits the nodes of a body and all below, in the order of the source.
func each(body []statement, visit func(n any)) {
	w := walker{visit}
	w.statements(body)
}

type walker struct{ visit func(n any) }

func (w walker) statements(body []statement) {
	for _, s := range body {
		w.visit(s)
		switch n := s.(type) {
		case *textNode, breakNode, continueNode:
		case *outputNode:
			w.expressions(n.value)
		case *ifNode:
			for _, b := range n.branches {
				w.expressions(b.test)
				w.statements(b.body)
			}
			w.statements(n.orElse)
		case *forNode:
			w.expressions(n.over, n.filter)
			w.statements(n.body)
			w.statements(n.orElse)
		case *setNode:
			w.expressions(n.value)
		case *captureNode:
			w.expressions(n.filter)
			w.statements(n.body)
		case *filterNode:
			w.expressions(n.filter)
			w.statements(n.body)
		case *withNode:
			w.expressions(n.values...)
			w.statements(n.body)
		case *macroNode:
			w.macro(n.def)
		case *callNode:
			w.expressions(n.call)
			w.macro(n.caller)
		case *scopedNode:
			w.statements(n.body)
		default:
			panic(fmt.Sprintf("BUG: statement %T", s))
		}
	}
}

func (w walker) macro(def *macroDef) {
	w.expressions(def.defaults...)
	w.statements(def.body)
}

func (w walker) arguments(a passedArguments) {
	w.expressions(a.positional...)
	w.expressions(a.named...)
	w.expressions(a.list, a.dict)
}

func (w walker) expressions(all ...expression) {
	for _, e := range all {
		if e == nil {
			continue
		}
		w.visit(e)
		switch n := e.(type) {
		case *constant, *nameExpr, captured:
		case *listExpr:
			w.expressions(n.items...)
		case *tupleExpr:
			w.expressions(n.items...)
		case *dictExpr:
			for i := range n.keys {
				w.expressions(n.keys[i], n.values[i])
			}
		case *attributeExpr:
			w.expressions(n.object)
		case *itemExpr:
			w.expressions(n.object, n.key)
		case *sliceExpr:
			w.expressions(n.object, n.start, n.stop, n.step)
		case *callExpr:
			w.expressions(n.callee)
			w.arguments(n.passed)
		case *filterExpr:
			w.expressions(n.object)
			w.arguments(n.passed)
		case *testExpr:
			w.expressions(n.object)
			w.arguments(n.passed)
		case *notExpr:
			w.expressions(n.operand)
		case *andExpr:
			w.expressions(n.left, n.right)
		case *orExpr:
			w.expressions(n.left, n.right)
		case *conditionExpr:
			w.expressions(n.then, n.test, n.orElse)
		case *compareExpr:
			w.expressions(n.left)
			w.expressions(n.rights...)
		case *binaryExpr:
			w.expressions(n.left, n.right)
		case *unaryExpr:
			w.expressions(n.operand)
		case *concatExpr:
			w.expressions(n.parts...)
		default:
			panic(fmt.Sprintf("BUG: expression %T", e))
		}
	}
}
