package openai

// Depths of the containers Peek itself opens: the body is 1.
const (
	depthArray   = 2 // messages, a list of prompts, sampling_params
	depthMessage = 3
	depthContent = 4
	depthPart    = 5
)

func (p *Peeked) addText(at Span, item int) {
	p.PromptBytes += p.scan.decoded
	p.addSpan(PromptSpan{Span: at, Item: item, Size: p.scan.decoded})
}

func (p *Peeked) addTokens(at Span, item, count int) {
	p.PromptTokenIDs += count
	p.addSpan(PromptSpan{Span: at, Tokens: true, Item: item, Size: count})
}

func (p *Peeked) addSpan(s PromptSpan) {
	if len(p.Prompt) < p.maxSpans {
		p.Prompt = append(p.Prompt, s)
	}
}

// messages walks a chat's messages at v. Other values are skipped: the engine reports
// their error better.
func (p *Peeked) messages(v int) int {
	s := &p.scan
	if s.b[v] != '[' {
		return s.skip(v, 1)
	}
	i := v + 1
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 {
			return -1
		}
		if done {
			if p.Messages > 0 {
				p.PromptKind = PromptMessages
			}
			return e
		}
		if s.b[e] == '{' {
			i = p.message(e+1, p.Messages)
		} else {
			i = s.skip(e, depthArray)
		}
		if i < 0 {
			return -1
		}
		p.Messages++
	}
}

func (p *Peeked) message(i, item int) int {
	s := &p.scan
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		switch {
		case s.nameIs(name, "content"):
			switch s.b[v] {
			case '"':
				if i = s.str(v); i > 0 {
					p.addText(Span{v, i}, item)
				}
			case '[':
				i = p.parts(v+1, item)
			default:
				i = s.skip(v, depthMessage)
			}
		case s.nameIs(name, "tool_calls"):
			if i = s.skip(v, depthMessage); i > 0 {
				p.ToolBytes += i - v
			}
		default:
			i = s.skip(v, depthMessage)
		}
		if i < 0 {
			return -1
		}
	}
}

// parts walks the content parts of one message.
func (p *Peeked) parts(i, item int) int {
	s := &p.scan
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return e
		}
		switch s.b[e] {
		case '{':
			i = p.part(e+1, item)
		case '"': // some clients send bare strings
			if i = s.str(e); i > 0 {
				p.addText(Span{e, i}, item)
			}
		default:
			i = s.skip(e, depthContent)
		}
		if i < 0 {
			return -1
		}
	}
}

func (p *Peeked) part(i, item int) int {
	s := &p.scan
	text := false
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return -1
		}
		if done {
			if !text {
				p.MediaParts++
			}
			return v
		}
		if s.b[v] == '"' && s.nameIs(name, "text") {
			if i = s.str(v); i > 0 {
				text = true
				p.addText(Span{v, i}, item)
			}
		} else {
			i = s.skip(v, depthPart)
		}
		if i < 0 {
			return -1
		}
	}
}

// prompt walks a string, a list of strings, a list of token ids or a list of such
// lists. shape.kind stays PromptNone for null and for what is none of these.
func (p *Peeked) prompt(v int, shape *promptShape) int {
	s := &p.scan
	switch s.b[v] {
	case '"':
		i := s.str(v)
		if i > 0 {
			p.addText(Span{v, i}, 0)
			*shape = promptShape{PromptText, false, 1}
		}
		return i
	case '[':
	default:
		return s.skip(v, 1)
	}
	i := v + 1
	mixed := false
	count := 0
	kind := PromptNone
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 {
			return -1
		}
		if done {
			i = e
			break
		}
		k := PromptNone
		switch c := s.b[e]; {
		case c == '"':
			if i = s.str(e); i > 0 {
				p.addText(Span{e, i}, count)
			}
			k = PromptTexts
			count++
		case isDigit(c) || c == '-':
			if i = s.numberRun(e); i > 0 {
				count += s.numbers
			}
			k = PromptTokens
		case c == '[':
			k, i = p.tokenList(e, count)
			count++
		default:
			i = s.skip(e, depthArray)
			count++
		}
		if i < 0 {
			return -1
		}
		if k == PromptNone || kind != PromptNone && kind != k {
			mixed = true
		}
		kind = k
	}
	switch {
	case mixed || kind == PromptNone:
		// A list of mixed types, or an empty one: checkPrompt refuses it.
	case kind == PromptTokens:
		p.addTokens(Span{v, i}, 0, count)
		*shape = promptShape{kind, false, 1}
	default:
		*shape = promptShape{kind, true, count}
	}
	return i
}

// tokenList passes one list of token ids in a batch.
func (p *Peeked) tokenList(v, item int) (PromptKind, int) {
	s := &p.scan
	i := s.space(v + 1)
	if i >= len(s.b) {
		return PromptNone, s.fail(faultEnd, len(s.b))
	}
	count := 0
	if isDigit(s.b[i]) || s.b[i] == '-' {
		if i = s.numberRun(i); i < 0 {
			return PromptNone, -1
		}
		count = s.numbers
		i = s.space(i)
	}
	if i < len(s.b) && s.b[i] == ']' {
		p.addTokens(Span{v, i + 1}, item, count)
		return PromptTokenLists, i + 1
	}
	// It has other elements: skip all of it.
	return PromptNone, s.skip(v, depthArray)
}

// inputEmbeds counts rows: a list of rows is one prompt, a list of such lists a batch.
func (p *Peeked) inputEmbeds(v int) int {
	s := &p.scan
	if s.b[v] != '[' {
		return s.skip(v, 1)
	}
	i := v + 1
	count, rows := 0, 0
	batch := false
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 {
			return -1
		}
		if done {
			p.addEmbeds(batch, count, rows)
			return e
		}
		nested := s.space(e + 1)
		if s.b[e] == '[' && nested < len(s.b) && s.b[nested] == '[' {
			batch = true
			j := e + 1
			for f := true; ; f = false {
				r, d := s.element(j, f)
				if r < 0 {
					return -1
				}
				if d {
					i = r
					break
				}
				if j = s.skip(r, depthMessage); j < 0 {
					return -1
				}
				rows++
			}
		} else if i = s.skip(e, depthArray); i < 0 {
			return -1
		} else {
			rows++
		}
		count++
	}
}

func (p *Peeked) addEmbeds(batch bool, count, rows int) {
	p.PromptTokenIDs += rows
	switch {
	case count == 0:
	case batch:
		p.embeds = promptShape{PromptEmbedLists, true, count}
	default:
		p.embeds = promptShape{PromptEmbeds, false, 1}
	}
}

// checkPrompt refuses prompts whose number cannot be determined.
func (p *Peeked) checkPrompt(f Field, kind Kind) *Error {
	if kind == KindNull {
		return nil
	}
	var shape promptShape
	var want string
	switch {
	case f == FieldPrompt && p.Route == RouteCompletions, f == FieldInput && p.Route == RouteEmbeddings:
		shape, want = p.textItem, "a string, a list of strings, a list of token ids, or a list of such lists"
	case f == FieldText && p.Route == RouteGenerate:
		shape, want = p.textItem, "a string or a list of strings"
		if shape.kind.TokenIDs() {
			shape.kind = PromptNone
		}
	case f == FieldInputIDs && (p.Route == RouteGenerate || p.Route == RouteChatCompletions):
		shape, want = p.idsItem, "a list of token ids or a list of such lists"
		if shape.kind == PromptText || shape.kind == PromptTexts {
			shape.kind = PromptNone
		}
		if p.Route == RouteChatCompletions && shape.batch {
			shape.kind, want = PromptNone, "a list of token ids"
		}
	case f == FieldInputEmbeds && p.Route == RouteGenerate:
		shape, want = p.embeds, "a list of rows of numbers or a list of such lists"
	default:
		return nil
	}
	if shape.kind != PromptNone {
		return nil
	}
	what := kind.String()
	if kind == KindArray {
		what = "an empty or mixed list"
	}
	return InvalidRequest(f.String(), "%s is %s; it must be %s", f, what, want)
}

// samplingParams walks the native API's sampling parameters: an object, or a list of
// one for each prompt.
func (p *Peeked) samplingParams(v int) int {
	s := &p.scan
	p.sampling = samplingFacts{}
	switch s.b[v] {
	case '{':
		return p.samplingObject(v+1, 1)
	case '[':
	default:
		return s.skip(v, 1)
	}
	i := v + 1
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return e
		}
		if s.b[e] == '{' {
			i = p.samplingObject(e+1, depthArray)
		} else {
			i = s.skip(e, depthArray)
		}
		if i < 0 {
			return -1
		}
	}
}

// samplingFacts are kept until the end of the field, as a syntax error is reported before
// a wrong value.
type samplingFacts struct {
	err   *Error
	asked bool // one of the objects has been seen
	n     int
}

func (p *Peeked) samplingObject(i, depth int) int {
	s := &p.scan
	facts := &p.sampling
	n := 1
	seenN, seenMax := false, false
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return -1
		}
		if done {
			if facts.asked && facts.n != n && facts.err == nil {
				facts.err = InvalidRequest("sampling_params.n", "sampling_params.n is %d for one prompt and %d for another; it must be the same for all", facts.n, n)
			}
			facts.asked, facts.n = true, n
			return v
		}
		if i = s.skip(v, depth+1); i < 0 {
			return -1
		}
		raw := s.b[v:i]
		switch {
		case s.nameIs(name, "n"):
			if seenN && facts.err == nil {
				facts.err = InvalidRequest("sampling_params.n", "the field \"n\" is there twice in sampling_params; send it once")
			}
			seenN = true
			p.N = 1
			if err := p.setN("sampling_params.n", kindOf(raw[0]), raw); err != nil && facts.err == nil {
				facts.err = err
			}
			n = p.N
		case s.nameIs(name, "max_new_tokens"):
			if seenMax && facts.err == nil {
				facts.err = InvalidRequest("sampling_params.max_new_tokens", "the field \"max_new_tokens\" is there twice in sampling_params; send it once")
			}
			seenMax = true
			if m, ok := parseInt(raw); ok && m >= 0 {
				p.MaxTokens = max(p.MaxTokens, m)
			}
		}
	}
}

func (p *Peeked) checkSampling() *Error {
	err := p.sampling.err
	p.sampling.err = nil
	if err == nil && p.sampling.asked {
		p.N = p.sampling.n
	}
	return err
}

// streamOptions reads include_usage.
func (p *Peeked) streamOptions(v int) int {
	s := &p.scan
	if s.b[v] != '{' {
		return s.skip(v, 1)
	}
	i := v + 1
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		if s.nameIs(name, "include_usage") {
			p.IncludeUsage = s.b[v] == 't' // engines use the last of two
		}
		if i = s.skip(v, depthArray); i < 0 {
			return -1
		}
	}
}
