package translate

import (
	"bytes"
	"slices"

	"github.com/sluice-router/sluice/internal/openai"
)

// Messages is one request of the Messages API.
type Messages struct {
	opts         Options
	model        raw
	stops        []string
	omitThinking bool
	eager        []string // names of tools whose input is sent as it comes
	left         omittedParts
	note         string
}

// Note names what was left out; see Exchange.
func (m *Messages) Note() string { return m.note }

var messagesFields = map[string]rule{
	"model": handled, "messages": handled, "system": handled, "max_tokens": handled,
	"stop_sequences": handled, "stream": handled, "temperature": handled, "top_p": handled,
	"top_k": handled, "tools": handled, "tool_choice": handled, "metadata": handled,
	"thinking": handled, "output_config": handled, "output_format": handled,
	"chat_template_kwargs": handled,

	"cache_control": dropped, "service_tier": dropped, "speed": dropped, "diagnostics": dropped,
	"context_management": dropped, "betas": dropped, "stream_options": dropped,
	"fallbacks": dropped, "fallback_credit_token": dropped, "billing_policy": dropped,

	"container": refused, "mcp_servers": refused, "inference_geo": refused,
	"thread": refused, "compaction": refused,
}

// MessagesRequest translates a body of POST /v1/messages. The error is an
// *openai.Error with status 400.
func MessagesRequest(body []byte, opts Options) ([]byte, *Messages, error) {
	m := &Messages{opts: opts.withDefaults()}
	m.left.refuse = m.opts.RefuseTools
	chat, model, err := translateRequest(openai.RouteMessages, body, messagesFields,
		m.prompt, m.limits, m.tools, m.thinking, m.output)
	if err != nil {
		return nil, nil, err
	}
	m.model = model
	return chat, m, nil
}

// limits writes the sampling parameters and limits.
func (m *Messages) limits(c *chatBody, top object) error {
	limit, err := top.number("max_tokens")
	if err != nil {
		return err
	}
	if limit == nil {
		return bad(top.at.field("max_tokens"), "is required")
	}
	c.field("max_tokens", limit)
	for _, name := range []string{"temperature", "top_p", "top_k"} {
		v, err := top.number(name)
		if err != nil {
			return err
		}
		c.field(name, v)
	}
	stops, err := top.array("stop_sequences")
	if err != nil {
		return err
	}
	for i, v := range stops.elements() {
		if !v.isString() {
			return mustBe(top.at.field("stop_sequences").element(i), "a string", v)
		}
		m.stops = append(m.stops, v.text())
	}
	if len(m.stops) > 0 {
		c.field("stop", stops)
	}
	if err := writeStream(c, top, true); err != nil {
		return err
	}
	if v := top.get("metadata"); v != nil {
		meta, err := readObject(v, top.at.field("metadata"))
		if err != nil {
			return err
		}
		user, err := meta.str("user_id")
		if err != nil {
			return err
		}
		c.field("user", user)
	}
	return nil
}

// writeStream writes stream, and asks for token counts at the stream's end. continuous
// asks for the counts so far in each event, for a client that gets the prompt's count in
// the first event.
func writeStream(c *chatBody, top object, continuous bool) error {
	stream, err := top.boolean("stream")
	if err != nil {
		return err
	}
	c.field("stream", stream)
	if stream.isTrue() {
		options := `{"include_usage":true}`
		if continuous {
			options = `{"include_usage":true,"continuous_usage_stats":true}`
		}
		c.field("stream_options", []byte(options))
	}
	return nil
}

func (m *Messages) tools(c *chatBody, top object) error {
	tools, err := top.array("tools")
	if err != nil {
		return err
	}
	list := &toolList{refuse: m.opts.RefuseTools}
	if err := c.tools(list, tools, top.at.field("tools"), m.appendTool); err != nil {
		return err
	}
	m.note = m.left.note(list.note())
	v := top.get("tool_choice")
	if v == nil {
		return nil
	}
	at := top.at.field("tool_choice")
	choice, kind, err := readTyped(v, at)
	if err != nil {
		return err
	}
	none := list.none()
	switch kind {
	case "auto", "none":
		if !none { // without tools there is nothing to choose, and engines refuse the field
			c.field("tool_choice", choice.get("type"))
		}
	case "any":
		if err := list.need(at); err != nil {
			return err
		}
		c.field("tool_choice", []byte(`"required"`))
	case "tool":
		if err := c.chooseFunction(list, choice); err != nil {
			return err
		}
	default:
		return unsupported(at.field("type"), "%q is not known; use auto, any, tool or none", clipName(kind))
	}
	single, err := choice.boolean("disable_parallel_tool_use")
	if err != nil {
		return err
	}
	if single.isTrue() && !none {
		c.field("parallel_tool_calls", []byte("false"))
	}
	return nil
}

// tools writes the functions among the request's tools, each by write.
func (c *chatBody) tools(l *toolList, tools raw, at *path, write func(*chatBody, *toolList, object) error) error {
	if tools.isBlank() {
		return nil
	}
	start, before := len(c.b), len(c.written)
	c.name("tools")
	c.b = append(c.b, '[')
	for i, v := range tools.elements() {
		tool, err := readObject(v, at.element(i))
		if err != nil {
			return err
		}
		if l.only != nil && !slices.Contains(l.only, tool.get("name").text()) {
			continue
		}
		end := len(c.b)
		c.b = append(c.b, commaIf(!l.none())...)
		left := len(l.left)
		if err := write(c, l, tool); err != nil {
			return err
		}
		if len(l.left) > left {
			c.b = c.b[:end]
			continue
		}
		l.passed = append(l.passed, v)
		l.names = append(l.names, tool.get("name").text())
	}
	c.b = append(c.b, ']')
	if l.none() {
		c.b, c.written = c.b[:start], c.written[:before]
	}
	return nil
}

func (m *Messages) appendTool(c *chatBody, l *toolList, tool object) error {
	at := tool.at
	kind, err := tool.str("type")
	if err != nil {
		return err
	}
	if kind != nil && kind.text() != "custom" {
		return l.leaveOut(tool, kind)
	}
	if direct, err := directlyCallable(tool); err != nil {
		return err
	} else if !direct {
		return l.leaveOutFor(tool, "allowed_callers", onlyTheModelCalls)
	}
	f := tool.reader()
	name, description := f.need("name"), f.str("description")
	examples, strict, eager := f.array("input_examples"), f.boolean("strict"), f.boolean("eager_input_streaming")
	if f.err != nil {
		return f.err
	}
	if eager.isTrue() {
		m.eager = append(m.eager, name.text())
	}
	schema, err := readObject(tool.get("input_schema"), at.field("input_schema"))
	if err != nil {
		return err
	}
	c.b = append(c.b, `{"type":"function"`...)
	if later, err := tool.boolean("defer_loading"); err != nil {
		return err
	} else if later.isTrue() {
		c.b = append(c.b, `,"defer_loading":true`...)
	}
	c.b = append(append(c.b, `,"function":{"name":`...), name...)
	c.b = append(append(c.b, `,"description":`...), withExamples(description, examples).or(`""`)...)
	c.b = append(append(c.b, `,"parameters":`...), tool.get("input_schema")...)
	if !hasMember(schema, "type") {
		// The schema of an input is always that of an object.
		c.b = append(bytes.TrimRight(c.b[:len(c.b)-1], " \t\r\n"), commaIf(len(schema.list) > 0)...)
		c.b = append(c.b, `"type":"object"}`...)
	}
	if strict != nil {
		c.b = append(append(c.b, `,"strict":`...), strict...)
	}
	c.b = append(c.b, '}', '}')
	return nil
}

// chooseFunction writes the choice of the function that choice names.
func (c *chatBody) chooseFunction(l *toolList, choice object) error {
	name, err := choice.need("name")
	if err != nil {
		return err
	}
	if err := l.needNamed(choice.at, name.text()); err != nil {
		return err
	}
	c.name("tool_choice")
	c.b = append(append(append(c.b, `{"type":"function","function":{"name":`...), name...), '}', '}')
	return nil
}

func hasMember(o object, name string) bool {
	for _, m := range o.list {
		if m.name == name {
			return true
		}
	}
	return false
}

func commaIf(yes bool) string {
	if yes {
		return ","
	}
	return ""
}

// withExamples adds examples of a tool's input to its description, one per line.
func withExamples(description, examples raw) raw {
	if examples.isBlank() {
		return description
	}
	texts := make([]raw, 0, 2)
	if !description.isBlank() {
		texts = append(texts, description)
	}
	list := []byte("Examples of input:")
	for _, v := range examples.elements() {
		list = append(append(list, '\n'), v...)
	}
	return joinTexts(append(texts, appendQuoted(nil, list)), emptyLine)
}

const onlyTheModelCalls = "only the model itself can call tools here"

// directlyCallable reports whether the model itself may call a tool. Other tools are
// called by code on the API's own servers.
func directlyCallable(tool object) (bool, error) {
	callers, err := tool.array("allowed_callers")
	if err != nil || callers.isBlank() {
		return true, err
	}
	for _, v := range callers.elements() {
		if v.text() == "direct" {
			return true, nil
		}
	}
	return false, nil
}

// templateSwitches are the names under which chat templates turn thinking on and off.
var templateSwitches = []string{"enable_thinking", "thinking"}

func (m *Messages) thinking(c *chatBody, top object) error {
	v, kwargs := top.get("thinking"), top.get("chat_template_kwargs")
	if v == nil {
		c.field("chat_template_kwargs", kwargs)
		return nil
	}
	at := top.at.field("thinking")
	think, kind, err := readTyped(v, at)
	if err != nil {
		return err
	}
	on := "true"
	switch kind {
	case "enabled", "adaptive":
	case "disabled":
		on = "false"
	default:
		return unsupported(at.field("type"), "%q is not known; use enabled, adaptive or disabled", clipName(kind))
	}
	display, err := think.str("display")
	if err != nil {
		return err
	}
	m.omitThinking = display.text() == "omitted"

	own := object{}
	if kwargs != nil {
		if own, err = readObject(kwargs, top.at.field("chat_template_kwargs")); err != nil {
			return err
		}
	}
	for _, name := range templateSwitches {
		if hasMember(own, name) {
			c.field("chat_template_kwargs", kwargs)
			return nil // the client has set it itself
		}
	}
	c.name("chat_template_kwargs")
	c.b = append(c.b, '{')
	for i, name := range templateSwitches {
		c.b = append(c.b, commaIf(i > 0)...)
		c.b = append(append(openai.AppendString(c.b, name), ':'), on...)
	}
	for _, extra := range own.list {
		c.b = append(c.b, ',')
		c.b = append(append(openai.AppendString(c.b, extra.name), ':'), extra.value...)
	}
	c.b = append(c.b, '}')
	return nil
}

func (m *Messages) output(c *chatBody, top object) error {
	format, at := top.get("output_format"), top.at.field("output_format")
	if v := top.get("output_config"); v != nil {
		config, err := readObject(v, top.at.field("output_config"))
		if err != nil {
			return err
		}
		effort, err := config.str("effort")
		if err != nil {
			return err
		}
		if effort.text() == "xhigh" {
			effort = raw(`"max"`)
		}
		c.field("reasoning_effort", effort)
		if f := config.get("format"); f != nil {
			if format != nil {
				return bad(at, "contradicts output_config.format")
			}
			format, at = f, config.at.field("format")
		}
		if !config.get("task_budget").isBlank() {
			return unsupported(config.at.field("task_budget"), "the engine behind this route cannot keep it")
		}
	}
	if format == nil {
		return nil
	}
	f, kind, err := readTyped(format, at)
	if err != nil {
		return err
	}
	if kind != "json_schema" {
		return unsupported(at.field("type"), "%q is not known; use json_schema", clipName(kind))
	}
	schema := f.get("schema")
	if !schema.isObject() {
		return mustBe(at.field("schema"), "an object", schema)
	}
	c.name("response_format")
	c.b = append(c.b, `{"type":"json_schema","json_schema":{"name":"response","schema":`...)
	c.b = append(append(c.b, schema...), `,"strict":true}}`...)
	return nil
}
