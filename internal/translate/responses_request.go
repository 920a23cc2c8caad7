package translate

import (
	"bytes"
	"encoding/json"

	"github.com/sluice-router/sluice/internal/openai"
)

// Responses is one request of the Responses API.
type Responses struct {
	opts     Options
	model    raw
	echo     []byte // the response object's members that repeat the request
	logprobs bool
	left     omittedParts
	note     string
	toolList []byte // the tools that were passed to the engine, while the request is read
}

// Note names what was left out; see Exchange.
func (r *Responses) Note() string { return r.note }

var responsesFields = map[string]rule{
	"model": handled, "input": handled, "instructions": handled, "tools": handled,
	"tool_choice": handled, "max_output_tokens": handled, "temperature": handled,
	"top_p": handled, "text": handled, "reasoning": handled, "parallel_tool_calls": handled,
	"stream": handled, "user": handled, "include": handled, "store": handled,
	"truncation": handled, "top_logprobs": handled,

	"metadata": dropped, "stream_options": dropped, "service_tier": dropped,
	"prompt_cache_key": dropped, "prompt_cache_retention": dropped,
	"prompt_cache_options": dropped, "safety_identifier": dropped, "max_tool_calls": dropped,
	"background_options": dropped, "access_programs": dropped, "image": dropped,

	"previous_response_id": refused, "conversation": refused, "background": refused,
	"prompt": refused, "context_management": refused, "moderation": refused,
}

// ResponsesRequest translates a body of POST /v1/responses. The error is an
// *openai.Error with status 400.
func ResponsesRequest(body []byte, opts Options) ([]byte, *Responses, error) {
	r := &Responses{opts: opts.withDefaults()}
	r.left.refuse = r.opts.RefuseTools
	chat, model, err := translateRequest(openai.RouteResponses, body, responsesFields,
		r.prompt, r.state, r.limits, r.tools, r.text, r.include, r.remember)
	if err != nil {
		return nil, nil, err
	}
	r.model = model
	return chat, r, nil
}

// state refuses fields that need a store of earlier answers, which a pair of engines
// does not have.
func (r *Responses) state(_ *chatBody, top object) error {
	store, err := top.boolean("store")
	if err != nil {
		return err
	}
	if store.isTrue() {
		return unsupported(top.at.field("store"), "answers are not stored here; send false or leave it out, and send earlier turns as input")
	}
	for _, name := range []string{"previous_response_id", "conversation"} {
		if !top.get(name).isBlank() {
			return unsupported(top.at.field(name), "answers are not stored here; send earlier turns as input")
		}
	}
	truncation, err := top.str("truncation")
	if err != nil {
		return err
	}
	if s := truncation.text(); s != "" && s != "disabled" {
		return unsupported(top.at.field("truncation"), "%q is not possible on the engine behind this route; use disabled", clipName(s))
	}
	return nil
}

func (r *Responses) limits(c *chatBody, top object) error {
	for _, f := range []struct{ name, chat string }{
		{"max_output_tokens", "max_completion_tokens"}, {"temperature", "temperature"}, {"top_p", "top_p"},
	} {
		v, err := top.number(f.name)
		if err != nil {
			return err
		}
		c.field(f.chat, v)
	}
	if err := writeStream(c, top, false); err != nil {
		return err
	}
	user, err := top.str("user")
	if err != nil {
		return err
	}
	c.field("user", user)
	if v := top.get("reasoning"); v != nil {
		reasoning, err := readObject(v, top.at.field("reasoning"))
		if err != nil {
			return err
		}
		effort, err := reasoning.str("effort")
		if err != nil {
			return err
		}
		c.field("reasoning_effort", effort)
	}
	return nil
}

func (r *Responses) tools(c *chatBody, top object) error {
	tools, err := top.array("tools")
	if err != nil {
		return err
	}
	list := &toolList{refuse: r.opts.RefuseTools}
	if list.only, err = allowedTools(top); err != nil {
		return err
	}
	if err := c.tools(list, tools, top.at.field("tools"), appendFunctionTool); err != nil {
		return err
	}
	r.note = r.left.note(list.note())
	r.toolList = list.appendOneLineList(nil)
	parallel, err := top.boolean("parallel_tool_calls")
	if err != nil {
		return err
	}
	if !list.none() {
		c.field("parallel_tool_calls", parallel)
	}
	return r.toolChoice(c, top, list)
}

func (r *Responses) toolChoice(c *chatBody, top object, list *toolList) error {
	choice, at := top.get("tool_choice"), top.at.field("tool_choice")
	switch {
	case choice == nil:
		return nil
	case choice.isString():
		switch choice.text() {
		case "auto", "none":
			if !list.none() { // without tools there is nothing to choose, and engines refuse the field
				c.field("tool_choice", choice)
			}
			return nil
		case "required":
			if err := list.need(at); err != nil {
				return err
			}
			c.field("tool_choice", choice)
			return nil
		}
		return bad(at, "%q is not known; use auto, none, required or a function", clipName(choice.text()))
	}
	o, kind, err := readTyped(choice, at)
	if err != nil {
		return err
	}
	switch kind {
	case "function":
		return c.chooseFunction(list, o)
	case "allowed_tools":
		mode, err := o.need("mode")
		if err != nil {
			return err
		}
		switch mode.text() {
		case "auto":
		case "required":
			if err := list.need(at); err != nil {
				return err
			}
		default:
			return bad(at.field("mode"), "%q is not known; use auto or required", clipName(mode.text()))
		}
		if !list.none() {
			c.field("tool_choice", mode)
		}
		return nil
	}
	return unsupported(at.field("type"), "%q is not possible here; use function", clipName(kind))
}

// allowedTools are the names of the functions to which a choice of the type
// allowed_tools restricts the model, nil if there is none. The model sees no
// others.
func allowedTools(top object) ([]string, error) {
	v, at := top.get("tool_choice"), top.at.field("tool_choice")
	if !v.isObject() {
		return nil, nil
	}
	choice, err := readObject(v, at)
	if err != nil || choice.get("type").text() != "allowed_tools" {
		return nil, err
	}
	tools, err := choice.array("tools")
	if err != nil {
		return nil, err
	}
	if tools.isBlank() {
		return nil, bad(at.field("tools"), "must name at least one tool")
	}
	only := []string{}
	for i, v := range tools.elements() {
		tool, err := readObject(v, at.field("tools").element(i))
		if err != nil {
			return nil, err
		}
		if tool.get("type").text() == "function" {
			name, err := tool.need("name")
			if err != nil {
				return nil, err
			}
			only = append(only, name.text())
		}
	}
	return only, nil
}

func appendFunctionTool(c *chatBody, l *toolList, tool object) error {
	at := tool.at
	kind, err := tool.need("type")
	if err != nil {
		return err
	}
	if kind.text() != "function" {
		return l.leaveOut(tool, kind)
	}
	// defer_loading and output_schema are left out: the model gets all tools at once, as it
	// could not ask for them later.
	if !tool.get("async").isBlank() {
		return l.leaveOutFor(tool, "async", "the engine behind this route cannot do this")
	}
	if direct, err := directlyCallable(tool); err != nil {
		return err
	} else if !direct {
		return l.leaveOutFor(tool, "allowed_callers", onlyTheModelCalls)
	}
	f := tool.reader()
	name, description, strict := f.need("name"), f.str("description"), f.boolean("strict")
	if f.err != nil {
		return f.err
	}
	parameters := tool.get("parameters")
	if parameters != nil && !parameters.isObject() {
		return mustBe(at.field("parameters"), "an object", parameters)
	}
	c.b = append(append(c.b, `{"type":"function","function":{"name":`...), name...)
	c.members(member{"description", description}, member{"parameters", parameters}, member{"strict", strict})
	c.b = append(c.b, '}', '}')
	return nil
}

// members appends those members of an object that have a value, each behind a comma.
func (c *chatBody) members(list ...member) {
	for _, m := range list {
		if m.value != nil {
			c.b = append(openai.AppendString(append(c.b, ','), m.name), ':')
			c.b = append(c.b, m.value...)
		}
	}
}

func (r *Responses) text(c *chatBody, top object) error {
	v := top.get("text")
	if v == nil {
		return nil
	}
	text, err := readObject(v, top.at.field("text"))
	if err != nil {
		return err
	}
	verbosity, err := text.str("verbosity")
	if err != nil {
		return err
	}
	c.field("verbosity", verbosity)
	f := text.get("format")
	if f == nil {
		return nil
	}
	format, kind, err := readTyped(f, text.at.field("format"))
	if err != nil {
		return err
	}
	switch kind {
	case "text":
		return nil
	case "json_object":
		c.field("response_format", []byte(`{"type":"json_object"}`))
		return nil
	case "json_schema":
	default:
		return unsupported(format.at.field("type"), "%q is not possible here; use text, json_object or json_schema", clipName(kind))
	}
	name, err := format.need("name")
	if err != nil {
		return err
	}
	schema := format.get("schema")
	if !schema.isObject() {
		return mustBe(format.at.field("schema"), "an object", schema)
	}
	m := format.reader()
	strict, description := m.boolean("strict"), m.str("description")
	if m.err != nil {
		return m.err
	}
	c.name("response_format")
	c.b = append(append(c.b, `{"type":"json_schema","json_schema":{"name":`...), name...)
	c.members(member{"description", description}, member{"schema", schema}, member{"strict", strict})
	c.b = append(c.b, '}', '}')
	return nil
}

func (r *Responses) include(c *chatBody, top object) error {
	include, err := top.array("include")
	if err != nil {
		return err
	}
	for i, v := range include.elements() {
		switch v.text() {
		case "message.output_text.logprobs":
			r.logprobs = true
		case "reasoning.encrypted_content": // the reasoning is sent in plain text
		case "message.input_image.image_url": // the client has it
		case "web_search_call.action.sources", "web_search_call.results", "file_search_call.results",
			"code_interpreter_call.outputs", "computer_call_output.output.image_url":
			// The answer never has the items of these, as the tools are left out.
			if r.opts.RefuseTools {
				return unsupported(top.at.field("include").element(i), "%s cannot be included here", clipName(string(v)))
			}
		default:
			return unsupported(top.at.field("include").element(i), "%s cannot be included here", clipName(string(v)))
		}
	}
	top1, err := top.number("top_logprobs")
	if err != nil {
		return err
	}
	if r.logprobs {
		c.field("logprobs", []byte("true"))
		c.field("top_logprobs", top1)
	}
	return nil
}

// remember keeps the members of the request that each response object repeats.
func (r *Responses) remember(_ *chatBody, top object) error {
	b := make([]byte, 0, 512)
	for _, f := range []struct{ name, instead string }{
		{"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"},
		{"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"reasoning", `{"effort":null,"summary":null}`},
		{"temperature", "null"}, {"text", `{"format":{"type":"text"}}`}, {"tool_choice", `"auto"`},
		{"tools", "[]"}, {"top_logprobs", "0"}, {"top_p", "null"}, {"user", "null"},
	} {
		b = append(openai.AppendString(append(b, ','), f.name), ':')
		if f.name == "tools" && r.toolList != nil {
			b = append(b, r.toolList...)
			continue
		}
		b = appendOneLine(b, top.get(f.name).or(f.instead))
	}
	r.toolList = nil
	r.echo = append(b, `,"background":false,"previous_response_id":null,"store":false,"truncation":"disabled"`...)
	return nil
}

// appendOneLine appends a value without line ends, which would split an event's line.
func appendOneLine(dst []byte, v raw) []byte {
	if bytes.IndexByte(v, '\n') < 0 && bytes.IndexByte(v, '\r') < 0 {
		return append(dst, v...)
	}
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return append(dst, "null"...)
	}
	return append(dst, b.Bytes()...)
}
