package translate

import "strings"

// prompt writes system and messages.
func (m *Messages) prompt(c *chatBody, top object) error {
	t := beginTurns(c)
	system, at := top.get("system"), top.at.field("system")
	switch {
	case system == nil:
	case system.isString():
		t.system(system)
	case system.isArray():
		text, err := systemText(system, at)
		if err != nil {
			return err
		}
		t.system(text)
	default:
		return mustBe(at, "a string or an array", system)
	}
	messages, err := top.array("messages")
	if err != nil {
		return err
	}
	if messages == nil {
		return bad(top.at.field("messages"), "is required")
	}
	at = top.at.field("messages")
	for i, v := range messages.elements() {
		if err := m.turn(t, v, at.element(i)); err != nil {
			return err
		}
	}
	t.end()
	return nil
}

func systemText(blocks raw, at *path) (raw, error) {
	var texts []raw
	for i, v := range blocks.elements() {
		block, kind, err := readTyped(v, at.element(i))
		if err != nil {
			return nil, err
		}
		if kind != "text" {
			return nil, unsupported(block.at.field("type"), "%q cannot be in the system prompt", clipName(kind))
		}
		text, err := block.need("text")
		if err != nil {
			return nil, err
		}
		if !text.isBlank() {
			texts = append(texts, text)
		}
	}
	return joinTexts(texts, `\n`), nil
}

func (m *Messages) turn(t *turns, v raw, at *path) error {
	msg, err := readObject(v, at)
	if err != nil {
		return err
	}
	roleText, err := msg.need("role")
	if err != nil {
		return err
	}
	role := roleText.text()
	switch role {
	case "user", "assistant", "system":
	default:
		return bad(at.field("role"), "%q is not known; use user or assistant", clipName(role))
	}
	content := msg.get("content")
	switch {
	case content.isString():
		switch role {
		case "system":
			t.system(content)
		case "user":
			t.userTurn().text(content)
		case "assistant":
			t.assistantTurn().content.text(content)
		}
		return nil
	case !content.isArray():
		return mustBe(at.field("content"), "a string or an array", content)
	}
	at = at.field("content")
	switch role {
	case "system":
		text, err := systemText(content, at)
		if err != nil {
			return err
		}
		t.system(text)
		return nil
	case "assistant":
		return m.assistantBlocks(t, content, at)
	}
	return m.userBlocks(t, content, at)
}

func (m *Messages) userBlocks(t *turns, content raw, at *path) error {
	var p *parts
	for i, v := range content.elements() {
		block, kind, err := readTyped(v, at.element(i))
		if err != nil {
			return err
		}
		if kind != "tool_result" {
			if isServerBlock(kind) {
				if err := m.left.leaveOut(block.at, kind); err != nil {
					return err
				}
				continue
			}
			if p == nil {
				p = t.userTurn()
			}
			if err := p.block(block, kind); err != nil {
				return err
			}
			continue
		}
		p = nil // text after the result begins a new message, so that the order stays
		f := block.reader()
		id, failed := f.need("tool_use_id"), f.boolean("is_error")
		if f.err != nil {
			return f.err
		}
		result := block.get("content")
		switch {
		case failed.isTrue() && result.isBlank():
			t.tool(id, raw(`"Error"`), nil) // nothing else would say that it failed
		case result == nil:
			t.tool(id, raw(`""`), nil)
		case result.isString():
			t.tool(id, result, nil)
		case result.isArray():
			var inside parts
			for j, v := range result.elements() {
				part, kind, err := readTyped(v, block.at.field("content").element(j))
				if err != nil {
					return err
				}
				if err := inside.block(part, kind); err != nil {
					return err
				}
			}
			t.tool(id, nil, &inside)
		default:
			return mustBe(block.at.field("content"), "a string or an array", result)
		}
	}
	return nil
}

func (m *Messages) assistantBlocks(t *turns, content raw, at *path) error {
	a := t.assistantTurn()
	for i, v := range content.elements() {
		block, kind, err := readTyped(v, at.element(i))
		if err != nil {
			return err
		}
		switch kind {
		case "thinking":
			text, err := block.need("thinking")
			if err != nil {
				return err
			}
			a.think(text)
		case "redacted_thinking": // left out: only the API's own servers can read it
		case "tool_use":
			f := block.reader()
			id, name := f.need("id"), f.need("name")
			if f.err != nil {
				return f.err
			}
			input := block.get("input")
			if input != nil && !input.isObject() {
				return mustBe(block.at.field("input"), "an object", input)
			}
			a.call(id, name, appendQuoted(nil, input.or("{}")))
		default:
			if isServerBlock(kind) {
				if err := m.left.leaveOut(block.at, kind); err != nil {
					return err
				}
				continue
			}
			if err := a.content.block(block, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

// isServerBlock reports whether a block is a call or a result of the API's own servers,
// such as of tools that they run.
func isServerBlock(kind string) bool {
	switch kind {
	case "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback":
		return true
	}
	return strings.HasSuffix(kind, "_tool_result")
}

// block adds a block that can be a part of a chat message's content.
func (p *parts) block(block object, kind string) error {
	switch kind {
	case "text":
		text, err := block.need("text")
		if err != nil {
			return err
		}
		p.text(text)
		return nil
	case "image":
		return p.image(block)
	case "document":
		return p.document(block)
	case "search_result":
		return p.searchResult(block)
	case "tool_reference": // names a tool with defer_loading
		name, err := block.str("tool_name")
		if err != nil {
			return err
		}
		if name == nil {
			if name, err = block.need("name"); err != nil {
				return err
			}
		}
		p.open()
		p.b = append(append(append(p.b, `{"type":"tool_reference","name":`...), name...), '}')
		return nil
	case "tool_use", "tool_result", "thinking", "redacted_thinking":
		return bad(block.at.field("type"), "a block of type %q is not allowed here", kind)
	}
	return unsupported(block.at.field("type"), "a block of type %q cannot be passed to the engine behind this route", clipName(kind))
}

// document adds a document that is text, after its title and context.
func (p *parts) document(block object) error {
	texts, err := block.texts("title", "context")
	if err != nil {
		return err
	}
	at := block.at.field("source")
	source, kind, err := readTyped(block.get("source"), at)
	if err != nil {
		return err
	}
	switch kind {
	case "text":
		data, err := source.need("data")
		if err != nil {
			return err
		}
		p.text(joinTexts(append(texts, data), `\n`))
		return nil
	case "content":
		content := source.get("content")
		if content.isString() {
			p.text(joinTexts(append(texts, content), `\n`))
			return nil
		}
		if !content.isArray() {
			return mustBe(at.field("content"), "a string or an array", content)
		}
		if len(texts) > 0 {
			p.text(joinTexts(texts, `\n`))
		}
		for i, v := range content.elements() {
			inside, kind, err := readTyped(v, at.field("content").element(i))
			if err != nil {
				return err
			}
			if kind != "text" && kind != "image" {
				return bad(inside.at.field("type"), "a block of type %q is not allowed here", clipName(kind))
			}
			if err := p.block(inside, kind); err != nil {
				return err
			}
		}
		return nil
	}
	return unsupported(at.field("type"), "documents by %q cannot be passed to the engine behind this route; send their text", clipName(kind))
}

// searchResult adds a result of a search that the client made.
func (p *parts) searchResult(block object) error {
	texts, err := block.texts("title", "source")
	if err != nil {
		return err
	}
	content, err := block.array("content")
	if err != nil {
		return err
	}
	if content == nil {
		return bad(block.at.field("content"), "is required")
	}
	for i, v := range content.elements() {
		inside, kind, err := readTyped(v, block.at.field("content").element(i))
		if err != nil {
			return err
		}
		if kind != "text" {
			return bad(inside.at.field("type"), "a block of type %q is not allowed here", clipName(kind))
		}
		text, err := inside.need("text")
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	if len(texts) > 0 {
		p.text(joinTexts(texts, `\n`))
	}
	return nil
}

func (p *parts) image(block object) error {
	at := block.at.field("source")
	source, kind, err := readTyped(block.get("source"), at)
	if err != nil {
		return err
	}
	const open = `{"type":"image_url","image_url":{"url":`
	switch kind {
	case "base64":
		f := source.reader()
		media, data := f.need("media_type"), f.need("data")
		if f.err != nil {
			return f.err
		}
		p.open()
		p.b = append(append(p.b, open+`"data:`...), media.inner()...)
		p.b = append(append(append(p.b, `;base64,`...), data.inner()...), `"}}`...)
	case "url":
		url, err := source.need("url")
		if err != nil {
			return err
		}
		p.open()
		p.b = append(append(append(p.b, open...), url...), '}', '}')
	default:
		return unsupported(at.field("type"), "%q cannot be read here; use base64 or url", clipName(kind))
	}
	return nil
}
