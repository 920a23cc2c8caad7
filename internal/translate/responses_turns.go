package translate

import "slices"

// prompt writes instructions and input.
func (r *Responses) prompt(c *chatBody, top object) error {
	t := beginTurns(c)
	instructions, err := top.str("instructions")
	if err != nil {
		return err
	}
	t.system(instructions)
	input, at := top.get("input"), top.at.field("input")
	switch {
	case input == nil:
		return bad(at, "is required")
	case input.isString():
		t.userTurn().text(input)
	case input.isArray():
		in := inputItems{t, &r.left}
		for i, v := range input.elements() {
			if err := in.item(v, at.element(i)); err != nil {
				return err
			}
		}
	default:
		return mustBe(at, "a string or an array", input)
	}
	t.end()
	return nil
}

// inputItems turns items into messages. The reasoning, the text and the calls of one turn
// of the assistant are separate items in this API, and one message in the other.
type inputItems struct {
	t    *turns
	left *omittedParts
}

func (in *inputItems) item(v raw, at *path) error {
	item, err := readObject(v, at)
	if err != nil {
		return err
	}
	kind, err := item.str("type")
	if err != nil {
		return err
	}
	switch kind.text() {
	case "message", "":
		return in.message(item)
	case "function_call":
		f := item.reader()
		id, name, arguments := f.need("call_id"), f.need("name"), f.need("arguments")
		if f.err != nil {
			return f.err
		}
		// Templates parse the arguments, so invalid ones would be an error in each
		// further turn.
		arguments, _ = cutArguments(arguments)
		if input, asIs := toolInput(arguments); !asIs {
			arguments = appendQuoted(nil, input)
		}
		in.t.assistantTurn().call(id, name, arguments)
		return nil
	case "custom_tool_call":
		return in.customCall(item)
	case "function_call_output", "custom_tool_call_output":
		id, err := item.need("call_id")
		if err != nil {
			return err
		}
		output := item.get("output")
		if output.isString() {
			in.t.tool(id, output, nil)
			return nil
		}
		var p parts
		if err := contentParts(&p, output, at.field("output")); err != nil {
			return err
		}
		in.t.tool(id, nil, &p)
		return nil
	case "reasoning":
		return in.reasoning(item)
	case "item_reference":
		return notStored(at)
	}
	if slices.Contains(itemsOfOtherTools, kind.text()) {
		return in.left.leaveOut(at, kind.text())
	}
	return unsupported(at.field("type"), "an item of type %q cannot be passed to the engine behind this route", clipName(kind.text()))
}

// itemsOfOtherTools are the items of tools of other types than function and custom, which
// earlier turns from another server may have.
var itemsOfOtherTools = []string{
	"web_search_call", "file_search_call", "computer_call", "computer_call_output", "image_generation_call",
	"code_interpreter_call", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
	"apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
	"mcp_call", "tool_search_call", "tool_search_output", "program", "program_output",
}

// customCall adds a call of an earlier turn whose input is a text. In the chat API the
// arguments of a call are an object.
func (in *inputItems) customCall(item object) error {
	f := item.reader()
	id, name, input := f.need("call_id"), f.need("name"), f.need("input")
	if f.err != nil {
		return f.err
	}
	arguments := append(append([]byte(`{"input":`), input...), '}')
	in.t.assistantTurn().call(id, name, appendQuoted(nil, arguments))
	return nil
}

func (in *inputItems) message(item object) error {
	if item.get("role") == nil && item.get("id") != nil && item.get("content") == nil {
		return notStored(item.at)
	}
	roleText, err := item.need("role")
	if err != nil {
		return err
	}
	role := roleText.text()
	content := item.get("content")
	at := item.at.field("content")
	switch role {
	case "assistant":
		switch {
		case content.isString():
			in.t.assistantTurn().content.text(content)
			return nil
		case content.isArray() && content.isBlank():
			return nil
		}
		return contentParts(&in.t.assistantTurn().content, content, at)
	case "system", "developer":
		// It does not separate the assistant's items before and after it.
		return systemContent(in.t, content, at)
	case "user":
	default:
		return bad(item.at.field("role"), "%q is not known; use user, assistant, system or developer", clipName(role))
	}
	p := in.t.userTurn()
	if content.isString() {
		p.text(content)
		return nil
	}
	if err := contentParts(p, content, at); err != nil {
		return err
	}
	if p.count == 0 {
		p.text(raw(`""`))
	}
	return nil
}

// systemContent adds an item by the system or the developer to the leading message.
func systemContent(t *turns, content raw, at *path) error {
	if content.isString() {
		t.system(content)
		return nil
	}
	if !content.isArray() {
		return mustBe(at, "a string or an array", content)
	}
	var texts []raw
	for i, v := range content.elements() {
		var p parts
		if err := contentPart(&p, v, at.element(i)); err != nil {
			return err
		}
		if p.single != nil {
			if !p.single.isBlank() {
				texts = append(texts, p.single)
			}
			continue
		}
		t.system(joinTexts(texts, `\n`))
		texts = nil
		t.leading = append(t.leading, leadingPart{part: p.b})
	}
	t.system(joinTexts(texts, `\n`))
	return nil
}

func notStored(at *path) error {
	return unsupported(at, "answers are not stored here; send the item itself")
}

func contentParts(p *parts, content raw, at *path) error {
	if !content.isArray() {
		return mustBe(at, "a string or an array", content)
	}
	for i, v := range content.elements() {
		if err := contentPart(p, v, at.element(i)); err != nil {
			return err
		}
	}
	return nil
}

func contentPart(p *parts, v raw, at *path) error {
	part, kind, err := readTyped(v, at)
	if err != nil {
		return err
	}
	switch kind {
	case "input_text", "output_text", "text":
		text, err := part.need("text")
		if err != nil {
			return err
		}
		p.text(text)
	case "refusal":
		text, err := part.need("refusal")
		if err != nil {
			return err
		}
		p.text(text)
	case "input_image":
		if part.get("file_id") != nil {
			return unsupported(part.at.field("file_id"), "files are not stored here; send image_url")
		}
		f := part.reader()
		url, detail := f.need("image_url"), f.str("detail")
		if f.err != nil {
			return f.err
		}
		p.open()
		p.b = append(append(p.b, `{"type":"image_url","image_url":{"url":`...), url...)
		if detail.text() == "original" {
			detail = raw(`"high"`) // the highest in the chat API
		}
		if detail != nil {
			p.b = append(append(p.b, `,"detail":`...), detail...)
		}
		p.b = append(p.b, '}', '}')
	default:
		return unsupported(part.at.field("type"), "content of type %q cannot be passed to the engine behind this route", clipName(kind))
	}
	return nil
}

// reasoning adds reasoning to the assistant's message that follows it.
func (in *inputItems) reasoning(item object) error {
	for _, name := range []string{"content", "summary"} {
		list, err := item.array(name)
		if err != nil {
			return err
		}
		found := false
		for i, v := range list.elements() {
			part, err := readObject(v, item.at.field(name).element(i))
			if err != nil {
				return err
			}
			text, err := part.need("text")
			if err != nil {
				return err
			}
			if !text.isBlank() {
				in.t.assistantTurn().think(text)
				found = true
			}
		}
		if found {
			break // a summary would repeat the content
		}
	}
	return nil
}
