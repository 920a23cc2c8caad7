package chattemplate

import (
	"math/big"
	"strings"
	"unicode"
)

// testFunc is a test: v is name(a).
type testFunc func(r *renderer, line int, v Value, a *arguments) bool

var tests map[string]testFunc

func init() {
	// is makes a test of a property of the value.
	is := func(f func(v Value) bool) testFunc {
		return func(r *renderer, line int, v Value, a *arguments) bool {
			a.most(r, line)
			return f(v)
		}
	}
	compares := func(op string) testFunc {
		return func(r *renderer, line int, v Value, a *arguments) bool {
			a.need(r, line, 1, 1)
			return r.compare(op, v, a.positional[0], line)
		}
	}
	remainder := func(want func(rest, by Value) bool) testFunc {
		return func(r *renderer, line int, v Value, a *arguments) bool {
			var by Value = int64(2)
			if len(a.positional) > 0 {
				by = a.positional[0]
			}
			return want(r.binary("%", v, by, line), by)
		}
	}
	equals := func(n int64) func(rest, _ Value) bool {
		return func(rest, _ Value) bool {
			f, ok := asFloat(rest)
			return ok && f == float64(n)
		}
	}
	cased := func(has, lacks func(rune) bool) testFunc {
		return func(r *renderer, line int, v Value, _ *arguments) bool {
			s := r.str(v, line)
			r.read(len(s))
			return strings.IndexFunc(s, has) >= 0 && strings.IndexFunc(s, lacks) < 0
		}
	}
	isUndefined := func(v Value) bool {
		_, ok := v.(undefined)
		return ok
	}
	isInteger := func(v Value) bool {
		switch v.(type) {
		case int64, *big.Int:
			return true
		}
		return false
	}
	tests = map[string]testFunc{
		"defined":   is(func(v Value) bool { return !isUndefined(v) }),
		"undefined": is(isUndefined),
		"none":      is(func(v Value) bool { return v == nil }),
		"boolean":   is(func(v Value) bool { _, ok := v.(bool); return ok }),
		"true":      is(func(v Value) bool { return v == true }),
		"false":     is(func(v Value) bool { return v == false }),
		"integer":   is(isInteger),
		"float":     is(func(v Value) bool { _, ok := v.(float64); return ok }),
		"number":    is(isNumber),
		"string":    is(func(v Value) bool { _, ok := asString(v); return ok }),
		"mapping":   is(func(v Value) bool { _, ok := v.(*Dict); return ok }),
		"escaped":   is(func(v Value) bool { _, ok := v.(safe); return ok }),
		"callable": is(func(v Value) bool {
			switch v.(type) {
			case *function, *macro, *loop, undefined:
				return true
			}
			return false
		}),
		"iterable": is(func(v Value) bool {
			switch v.(type) {
			case string, safe, *List, *Tuple, *Dict, *view, *iterator, *rangeOf, *loop, undefined:
				return true
			}
			return false
		}),
		"sequence": is(func(v Value) bool {
			switch v.(type) {
			case string, safe, *List, *Tuple, *Dict, *rangeOf, undefined:
				return true
			}
			return false
		}),
		"sameas": func(r *renderer, line int, v Value, a *arguments) bool {
			a.need(r, line, 1, 1)
			other := a.positional[0]
			if typeName(v) != typeName(other) {
				return false
			}
			switch v.(type) {
			case *List, *Tuple, *Dict, *big.Int:
				return v == other
			}
			return r.equal(v, other)
		},
		"in":          compares("in"),
		"eq":          compares("=="),
		"equalto":     compares("=="),
		"ne":          compares("!="),
		"lt":          compares("<"),
		"lessthan":    compares("<"),
		"le":          compares("<="),
		"gt":          compares(">"),
		"greaterthan": compares(">"),
		"ge":          compares(">="),
		"even":        remainder(equals(0)),
		"odd":         remainder(equals(1)),
		"divisibleby": remainder(equals(0)),
		"lower":       cased(unicode.IsLower, unicode.IsUpper),
		"upper":       cased(unicode.IsUpper, unicode.IsLower),
		"filter": func(_ *renderer, _ int, v Value, _ *arguments) bool {
			name, _ := asString(v)
			return filters[name] != nil
		},
		"test": func(_ *renderer, _ int, v Value, _ *arguments) bool {
			name, _ := asString(v)
			return tests[name] != nil
		},
	}
	for symbol, name := range map[string]string{"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"} {
		tests[symbol] = tests[name]
	}
}
