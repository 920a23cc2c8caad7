package chattemplate

// A statement is a part of a template's body; render.go runs them.
type (
	statement any

	textNode struct{ text string }

	outputNode struct {
		value expression
		line  int
	}

	ifNode struct {
		branches []branch
		orElse   []statement
	}

	branch struct {
		test expression
		body []statement
	}

	forNode struct {
		target    target
		over      expression
		filter    expression // nil: none
		body      []statement
		orElse    []statement
		recursive bool
		line      int
	}

	// breakNode and continueNode are the loop controls.
	breakNode    struct{}
	continueNode struct{}

	// setNode is {% set target = value %}.
	setNode struct {
		target target
		value  expression
		line   int
	}

	// captureNode is {% set name %}…{% endset %}, with filters.
	captureNode struct {
		target target
		filter expression // has captured{} at its bottom; nil: none
		body   []statement
		line   int
	}

	// filterNode is {% filter … %}…{% endfilter %}.
	filterNode struct {
		filter expression // has captured{} at its bottom
		body   []statement
		line   int
	}

	withNode struct {
		targets []target
		values  []expression
		body    []statement
		line    int
	}

	macroNode struct{ def *macroDef }

	// callNode is {% call(parameters) callee(…) %}…{% endcall %}.
	callNode struct {
		caller *macroDef
		call   *callExpr
	}

	// scopedNode is a body with a scope of its own: {% generation %} and {% block %}.
	scopedNode struct{ body []statement }
)

// macroDef is the definition of a macro, or of the body of a call block.
type macroDef struct {
	name       string
	parameters []string
	defaults   []expression // of the last parameters
	body       []statement
	// What the body refers to decides what a call may pass.
	usesCaller, usesVarargs, usesKwargs bool
}

// A target is what a value is assigned to: a name, an attribute of a namespace, or several of them.
type target struct {
	name      string
	attribute string   // of the namespace called name; empty: the name itself
	parts     []target // unpacked into; nil: a single target
}

// An expression is evaluated by evaluate.go.
type (
	expression any

	constant struct{ value Value }

	nameExpr struct {
		name string
		line int
	}

	listExpr  struct{ items []expression }
	tupleExpr struct{ items []expression }
	dictExpr  struct {
		keys, values []expression
		line         int
	}

	// attributeExpr is object.name.
	attributeExpr struct {
		object expression
		name   string
		line   int
	}

	// itemExpr is object[key].
	itemExpr struct {
		object, key expression
		line        int
	}

	// sliceExpr is object[start:stop:step]; nil parts are left out.
	sliceExpr struct {
		object, start, stop, step expression
		line                      int
	}

	callExpr struct {
		callee expression
		passed passedArguments
		line   int
	}

	filterExpr struct {
		object expression
		name   string
		apply  filterFunc // nil: there is none of that name, which fails when it is reached
		passed passedArguments
		line   int
	}

	testExpr struct {
		object expression
		name   string
		apply  testFunc // as apply of filterExpr
		passed passedArguments
		line   int
	}

	notExpr struct{ operand expression }
	andExpr struct{ left, right expression }
	orExpr  struct{ left, right expression }

	conditionExpr struct{ test, then, orElse expression } // orElse nil: undefined

	// compareExpr is left op right op right …
	compareExpr struct {
		left   expression
		ops    []string
		rights []expression
		line   int
	}

	binaryExpr struct {
		op          string
		left, right expression
		line        int
	}

	unaryExpr struct {
		op      string
		operand expression
		line    int
	}

	concatExpr struct{ parts []expression }

	// captured stands for the rendered body of a filter or set block.
	captured struct{}
)

// passedArguments are the arguments of a call as they are written.
type passedArguments struct {
	positional []expression
	names      []string
	named      []expression
	list       expression // *list
	dict       expression // **dict
}
