// Package chattemplate renders the chat templates of models: Jinja source that turns a conversation into the text that the model was trained on.
//
// Goal: the text that the reference gives, which is jinja2 in the sandboxed environment of the transformers library (trim_blocks, lstrip_blocks, loop controls, the
// generation tag, its own tojson, raise_exception and strftime_now), or an error where the reference raises. Values print as Python prints them; an undefined value
// prints as nothing and fails where jinja2 fails. Non-goals: inheritance, includes, imports, autoescaping, asynchronous rendering.
//
// It is an interpreter of its own and not a library, for two reasons. A render is bounded in steps, memory, output and depth, and ends with its context: templates
// are the operator's, but what they loop over is the client's. And it must be exact: a template that renders where the reference raises, or prints 1 for 1.0, gives a
// model a prompt that nobody tested.
//
//	source ──lex──▶ tokens ──parse──▶ nodes ──render(Input)──▶ text
//
// lexer.go, parser.go and expressions.go read the source, nodes.go has the tree; render.go and evaluate.go walk it; value.go, print.go, operators.go, strings.go,
// filters.go, sequences.go, tests.go and globals.go have Python's values and what can be done with them; analyse.go answers questions about a template.
//
// A Template is immutable and may be rendered by many goroutines at one time.
package chattemplate

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Options bound a template. Zero values stand for the defaults.
type Options struct {
	MaxSource int // bytes of source; default 1 MiB
	MaxOutput int // bytes of a render, and of any string on the way; default 32 MiB
	MaxSteps  int // evaluated nodes of a render, and one for each 256 bytes that are read or copied; default 24 million, a second or two
	MaxBytes  int // bytes that a render allocates in all; default 512 MiB
	MaxDepth  int // nesting of the source, of calls, and of values that are printed or compared; default 200
}

func (o Options) withDefaults() Options {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&o.MaxSource, 1 << 20}, {&o.MaxOutput, 32 << 20}, {&o.MaxSteps, 24_000_000}, {&o.MaxBytes, 512 << 20}, {&o.MaxDepth, 200},
	} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return o
}

// Template is a parsed chat template.
type Template struct {
	source string
	body   []statement
	o      Options
}

// Input is what a template is rendered with.
type Input struct {
	Messages  Value // a *List of *Dict; see ParseJSON
	Tools     Value // a *List, or nil: none
	Documents Value // a *List, or nil: none

	// Kwargs are further variables (chat_template_kwargs), in no order. They cannot replace the fields of Input; they may replace Special.
	Kwargs *Dict
	// Special are the special tokens by their names in the tokenizer's configuration: bos_token, eos_token, unk_token and so on.
	Special map[string]string

	AddGenerationPrompt bool
	// ContinueFinalMessage leaves the last message open: the text ends with its content, without what would close it.
	ContinueFinalMessage bool

	Now time.Time // for strftime_now; the zero time stands for the current time
}

// Kind says whose fault an Error is.
type Kind int

const (
	// Syntax is an error in the source, found by Parse. The model cannot chat.
	Syntax Kind = iota
	// Unsupported is Jinja that this package does not have, found by Parse. The model cannot chat here.
	Unsupported
	// Raised is the template's own refusal of its input, by raise_exception.
	Raised
	// Runtime is an operation that fails with this input, such as adding None to a string. The reference raises there too.
	Runtime
	// Bound is a bound of Options that this input goes beyond.
	Bound
)

func (k Kind) String() string {
	switch k {
	case Syntax:
		return "syntax error"
	case Unsupported:
		return "not supported"
	case Raised:
		return "refused by the template"
	case Runtime:
		return "failed"
	case Bound:
		return "out of bounds"
	}
	return "unknown"
}

// Error is what Parse and Render return, except for the error of a context that ended.
type Error struct {
	Kind    Kind
	Message string
	Line    int // of the source, from 1; 0: unknown
}

func (e *Error) Error() string {
	if e.Kind == Raised {
		return e.Message
	}
	if e.Line == 0 {
		return fmt.Sprintf("chat template: %s: %s", e.Kind, e.Message)
	}
	return fmt.Sprintf("chat template, line %d: %s: %s", e.Line, e.Kind, e.Message)
}

// Parse reads a template. Its errors are *Error of the kinds Syntax, Unsupported and Bound.
func Parse(source string, o Options) (t *Template, err error) {
	o = o.withDefaults()
	if len(source) > o.MaxSource {
		return nil, &Error{Kind: Bound, Message: fmt.Sprintf("the source has %d bytes, %d are allowed", len(source), o.MaxSource)}
	}
	defer recoverError(&err)
	p := &parser{tokens: lex(source), maxDepth: o.MaxDepth}
	body := p.statements()
	if p.peek().kind != tokenEnd {
		p.failf("unexpected end of a block: %s", p.peek())
	}
	return &Template{source: source, body: body, o: o}, nil
}

// Source is the text that was parsed.
func (t *Template) Source() string { return t.source }

// Render gives the text for a conversation. Its errors are *Error of the kinds Raised, Runtime and Bound, and the error of ctx once that has ended.
func (t *Template) Render(ctx context.Context, in *Input) (string, error) {
	if !in.ContinueFinalMessage {
		return t.render(ctx, in, in.Messages)
	}
	return t.continueFinal(ctx, in)
}

func (t *Template) render(ctx context.Context, in *Input, messages Value) (text string, err error) {
	defer recoverError(&err)
	now := in.Now
	if now.IsZero() {
		now = time.Now()
	}
	r := &renderer{ctx: ctx, o: t.o, now: now}
	const others = 8 // names
	vars := &scope{variables: make([]variable, 0, len(in.Special)+others)}
	for name, token := range in.Special {
		vars.set(name, token)
	}
	if in.Kwargs != nil {
		for i, k := range in.Kwargs.keys {
			if name, ok := k.(string); ok {
				vars.set(name, in.Kwargs.values[i])
			}
		}
	}
	vars.set("messages", messages)
	vars.set("tools", in.Tools)
	vars.set("documents", in.Documents)
	vars.set("add_generation_prompt", in.AddGenerationPrompt)

	var out strings.Builder
	if control := r.run(t.body, &scope{parent: vars}, &out); control != flowOn {
		r.fail(Runtime, 0, "break or continue outside of a loop")
	}
	return out.String(), nil
}

// recoverError turns what fail has thrown into an error. Anything else goes on as a panic.
func recoverError(err *error) {
	switch thrown := recover().(type) {
	case nil:
	case *Error:
		*err = thrown
	case contextEnded:
		*err = thrown.err
	default:
		panic(thrown)
	}
}

// contextEnded is thrown when the context of a render has ended.
type contextEnded struct{ err error }
