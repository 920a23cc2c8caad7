package textmodel

import (
	"context"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/chattemplate"
)

// maxDepth is how deep the JSON of a request nests at most. Python's own limit, which HTTP engines have, is higher, but no schema of a tool comes near this one.
const maxDepth = 100

// chat is a body of the chat API as its template gets it.
type chat struct {
	input      chattemplate.Input
	addSpecial bool
}

// reserved are the names that no chat_template_kwargs may have: the template's input has them from the request itself, or they are functions that templates rely on.
var reserved = map[string]bool{
	"messages": true, "conversation": true, "chat_template": true, "tokenize": true, "tools": true,
	"raise_exception": true, "strftime_now": true, "namespace": true, "range": true, "dict": true,
}

// ignored are names that vLLM's HTTP server takes for parameters of the renderer and not of the template.
var ignored = map[string]bool{
	"padding": true, "truncation": true, "max_length": true, "return_tensors": true, "return_dict": true, "return_assistant_tokens_mask": true, "tokenizer_kwargs": true,
	"add_generation_prompt": true, "continue_final_message": true,
}

// readChat makes of a body what vLLM's HTTP server gives to the template: its fields in the order in which that has them, defaults filled in, unknown ones left out.
func (m *Model) readChat(ctx context.Context, body []byte) (*chat, error) {
	v, err := chattemplate.ParseJSONContext(ctx, body, maxDepth)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, &RequestError{Message: err.Error(), Err: err}
	}
	request, ok := v.(*chattemplate.Dict)
	if !ok {
		return nil, refusef("", "the body must be a JSON object")
	}
	c := &chat{}
	c.input.Special = m.special
	if c.input.AddGenerationPrompt, err = boolean(request, "add_generation_prompt", true); err != nil {
		return nil, err
	}
	if c.input.ContinueFinalMessage, err = boolean(request, "continue_final_message", false); err != nil {
		return nil, err
	}
	if c.input.AddGenerationPrompt && c.input.ContinueFinalMessage {
		return nil, refusef("continue_final_message", "cannot set both continue_final_message and add_generation_prompt to true")
	}
	if c.addSpecial, err = boolean(request, "add_special_tokens", false); err != nil {
		return nil, err
	}
	if v, _ := request.Get("chat_template"); v != nil {
		return nil, refusef("chat_template", "a chat template of the request's own is not accepted")
	}
	if c.input.Kwargs, err = readKwargs(request); err != nil {
		return nil, err
	}
	if c.input.Tools, err = readTools(request); err != nil {
		return nil, err
	}
	if c.input.Documents, err = readDocuments(request, c.input.Kwargs); err != nil {
		return nil, err
	}
	c.input.Messages, err = m.readMessages(request)
	return c, err
}

// boolean is a field that is true or false, or one of the words and numbers that HTTP engines take for that.
func boolean(d *chattemplate.Dict, name string, otherwise bool) (bool, error) {
	v, ok := d.Get(name)
	if !ok {
		return otherwise, nil
	}
	switch b := v.(type) {
	case bool:
		return b, nil
	case int64:
		if b == 0 || b == 1 {
			return b == 1, nil
		}
	case string:
		switch strings.ToLower(b) {
		case "true", "t", "yes", "y", "on", "1":
			return true, nil
		case "false", "f", "no", "n", "off", "0":
			return false, nil
		}
	}
	return false, refusef(name, "%s must be true or false", name)
}

// efforts are the values of reasoning_effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

func readKwargs(request *chattemplate.Dict) (*chattemplate.Dict, error) {
	kwargs := chattemplate.NewDict()
	v, _ := request.Get("chat_template_kwargs")
	if v != nil {
		given, ok := v.(*chattemplate.Dict)
		if !ok {
			return nil, refusef("chat_template_kwargs", "chat_template_kwargs must be an object")
		}
		for i := range given.Len() {
			key, value := given.Entry(i)
			name := key.(string)
			if reserved[name] {
				return nil, refusef("chat_template_kwargs", "chat_template_kwargs cannot set %q", name)
			}
			if !ignored[name] {
				kwargs.Set(name, value)
			}
		}
	}
	effort, _ := request.Get("reasoning_effort")
	if effort != nil {
		if name, ok := effort.(string); !ok || !slices.Contains(efforts, name) {
			return nil, refusef("reasoning_effort", "reasoning_effort must be one of %s", strings.Join(efforts, ", "))
		}
		kwargs.Set("reasoning_effort", effort)
		if _, ok := kwargs.Get("enable_thinking"); !ok {
			kwargs.Set("enable_thinking", effort != "none")
		}
	}
	return kwargs, nil
}

// readDocuments takes the documents of the request, or else those of its chat_template_kwargs.
func readDocuments(request, kwargs *chattemplate.Dict) (chattemplate.Value, error) {
	v, _ := request.Get("documents")
	if v == nil {
		v, _ = kwargs.Get("documents")
	}
	if v == nil {
		return nil, nil
	}
	list, ok := v.(*chattemplate.List)
	if !ok {
		return nil, refusef("documents", "documents must be a list")
	}
	for i := range list.Len() {
		if _, ok := list.At(i).(*chattemplate.Dict); !ok {
			return nil, refusef("documents", "documents must be objects with a title and a text")
		}
	}
	return v, nil
}

// readTools gives tools in the form that templates of HTTP engines see: type first, then the function's name, description and parameters, null where they are missing.
func readTools(request *chattemplate.Dict) (chattemplate.Value, error) {
	v, _ := request.Get("tools")
	if v == nil {
		return nil, nil
	}
	list, ok := v.(*chattemplate.List)
	if !ok {
		return nil, refusef("tools", "tools must be a list")
	}
	if list.Len() == 0 {
		return nil, refusef("tools", "tools must not be an empty list: leave the field out")
	}
	tools := make([]chattemplate.Value, 0, list.Len())
	for i := range list.Len() {
		tool, ok := list.At(i).(*chattemplate.Dict)
		if !ok {
			return nil, refusef("tools", "tools must be objects")
		}
		if kind, ok := tool.Get("type"); ok && kind != "function" {
			return nil, refusef("tools", "tools must be of the type \"function\"")
		}
		f, ok := tool.Get("function")
		function, isDict := f.(*chattemplate.Dict)
		if !ok || !isDict {
			return nil, refusef("tools", "a tool must have a function")
		}
		name, ok := function.String("name")
		if !ok {
			return nil, refusef("tools", "the function of a tool must have a name")
		}
		description, _ := function.Get("description")
		if _, ok := description.(string); description != nil && !ok {
			return nil, refusef("tools", "the description of a tool must be a string")
		}
		parameters, _ := function.Get("parameters")
		if _, ok := parameters.(*chattemplate.Dict); parameters != nil && !ok {
			return nil, refusef("tools", "the parameters of a tool must be an object")
		}
		seen := chattemplate.NewDict("name", name, "description", description, "parameters", parameters)
		if err := addBoolean(seen, function, "strict"); err != nil {
			return nil, err
		}
		outer := chattemplate.NewDict("type", "function", "function", seen)
		// A flag of the tool is one of its function as well.
		if err := addBoolean(outer, tool, "defer_loading"); err != nil {
			return nil, err
		}
		if deferred, ok := outer.Get("defer_loading"); ok {
			seen.Set("defer_loading", deferred)
		}
		if err := addBoolean(seen, function, "defer_loading"); err != nil {
			return nil, err
		}
		tools = append(tools, outer)
	}
	return chattemplate.NewList(tools...), nil
}

// addBoolean copies a field that is there and not null.
func addBoolean(to, from *chattemplate.Dict, name string) error {
	v, _ := from.Get(name)
	if v == nil {
		return nil
	}
	if _, ok := v.(bool); !ok {
		return refusef("tools", "%s must be true or false", name)
	}
	to.Set(name, v)
	return nil
}

func (m *Model) readMessages(request *chattemplate.Dict) (chattemplate.Value, error) {
	v, _ := request.Get("messages")
	list, ok := v.(*chattemplate.List)
	if !ok {
		return nil, refusef("messages", "messages must be a list")
	}
	if list.Len() == 0 {
		return nil, refusef("messages", "messages must not be empty")
	}
	messages := make([]*chattemplate.Dict, 0, list.Len())
	developer := false
	for i := range list.Len() {
		from, ok := list.At(i).(*chattemplate.Dict)
		if !ok {
			return nil, refusef("messages", "messages must be objects")
		}
		message, err := m.readMessage(from)
		if err != nil {
			return nil, err
		}
		role, _ := message.String("role")
		developer = developer || role == "developer"
		messages = append(messages, message)
	}
	if developer && !m.facts.Developer {
		messages = withoutDeveloper(messages)
	}
	values := make([]chattemplate.Value, len(messages))
	for i, message := range messages {
		values[i] = message
	}
	return chattemplate.NewList(values...), nil
}

func (m *Model) readMessage(from *chattemplate.Dict) (*chattemplate.Dict, error) {
	role, ok := from.String("role")
	if !ok {
		return nil, refusef("messages", "each message must have a role")
	}
	content, err := m.readContent(from, role)
	if err != nil {
		return nil, err
	}
	message := chattemplate.NewDict("role", role, "content", content)
	switch role {
	case "assistant":
		calls, err := readToolCalls(from)
		if err != nil {
			return nil, err
		}
		if calls != nil {
			message.Set("tool_calls", calls)
		}
		reasoning, _ := from.Get("reasoning")
		if reasoning == nil {
			reasoning, _ = from.Get("reasoning_content")
		}
		if reasoning != nil {
			if _, ok := reasoning.(string); !ok {
				return nil, refusef("messages", "the reasoning of a message must be a string")
			}
			message.Set("reasoning", reasoning)
			message.Set("reasoning_content", reasoning)
		}
	case "tool":
		if id, ok := from.Get("tool_call_id"); ok {
			message.Set("tool_call_id", id)
		}
	}
	for _, name := range []string{"name", "task"} {
		if text, ok := from.String(name); ok {
			message.Set(name, text)
		}
	}
	if role == "developer" {
		tools, _ := from.Get("tools")
		message.Set("tools", developerTools(tools))
	}
	return message, nil
}

func developerTools(v chattemplate.Value) chattemplate.Value {
	list, ok := v.(*chattemplate.List)
	if !ok {
		return v
	}
	tools := make([]chattemplate.Value, list.Len())
	for i := range tools {
		tools[i] = list.At(i)
		tool, ok := tools[i].(*chattemplate.Dict)
		if !ok {
			continue
		}
		f, _ := tool.Get("function")
		if function, ok := f.(*chattemplate.Dict); ok {
			tool = tool.With("function", ordered(function, "name", "description", "parameters", "strict"))
		}
		tools[i] = ordered(tool, "function", "type")
	}
	return chattemplate.NewList(tools...)
}

// readContent gives the content as the template expects it: a string, or a list of parts. Content that is missing is empty.
func (m *Model) readContent(from *chattemplate.Dict, role string) (chattemplate.Value, error) {
	v, there := from.Get("content")
	if v == nil && there && role != "assistant" && role != "function" {
		return nil, refusef("messages", "the content of a message of the role %.50q must not be null", role)
	}
	var texts []string
	var parts []chattemplate.Value
	references := false
	add := func(text string, extra *chattemplate.Dict) {
		if role == "system" {
			if text = withoutBillingHeader(text); text == "" {
				return
			}
		}
		texts = append(texts, text)
		part := chattemplate.NewDict("type", "text", "text", text)
		for i := range extra.Len() {
			part.Set(extra.Entry(i))
		}
		parts = append(parts, part)
	}
	none := chattemplate.NewDict()
	switch content := v.(type) {
	case nil:
	case string:
		if m.facts.ContentParts && content == "" || role != "system" {
			texts, parts = []string{content}, []chattemplate.Value{chattemplate.NewDict("type", "text", "text", content)}
		} else {
			add(content, none)
		}
	case *chattemplate.List:
		for i := range content.Len() {
			switch part := content.At(i).(type) {
			case string:
				add(part, none)
			case *chattemplate.Dict:
				if name, ok := part.String("name"); ok && isToolReference(part) {
					texts, references = append(texts, name), true
					parts = append(parts, chattemplate.NewDict("type", "tool_reference", "name", name))
					continue
				}
				text, ok, err := partText(part)
				if err != nil {
					return nil, err
				}
				if ok {
					add(text, extraFields(part))
				}
			default:
				return nil, refusef("messages", "the parts of a content must be objects")
			}
		}
	default:
		return nil, refusef("messages", "the content of a message must be a string or a list of parts")
	}
	if !m.facts.ContentParts || role == "tool" && !references {
		return strings.Join(texts, "\n"), nil
	}
	return chattemplate.NewList(parts...), nil
}

// isToolReference: the part names a tool whose definition the template puts there.
func isToolReference(part *chattemplate.Dict) bool {
	kind, _ := part.String("type")
	return kind == "tool_reference"
}

// partText is the text of a part; false: it has none, which is passed over.
func partText(part *chattemplate.Dict) (text string, ok bool, err error) {
	v, hasType := part.Get("type")
	kind, ok := v.(string)
	if !ok && hasType && v != nil {
		return "", false, refusef("messages", "the type of a part must be a string")
	}
	field := ""
	switch kind {
	case "text", "input_text", "output_text":
		field = "text"
	case "refusal", "thinking":
		field = kind
	case "":
		for i := range part.Len() {
			key, _ := part.Entry(i)
			if name, _ := key.(string); isMedia(name) {
				return "", false, mediaError(name)
			}
		}
		return "", false, refusef("messages", "a part of a content has no type")
	default:
		if isMedia(kind) {
			return "", false, mediaError(kind)
		}
		return "", false, refusef("messages", "a part of a content has the type %.50q, which is not supported", kind)
	}
	v, there := part.Get(field)
	if v == nil && there && (kind == "text" || kind == "refusal") {
		return "", false, nil
	}
	if text, ok = v.(string); !ok {
		return "", false, refusef("messages", "a part of the type %q must have a string as its %s", kind, field)
	}
	return text, true, nil
}

func isMedia(kind string) bool {
	for _, modality := range []string{"image", "audio", "video", "file"} {
		if strings.Contains(kind, modality) {
			return true
		}
	}
	return false
}

func mediaError(kind string) error {
	return &RequestError{Message: "the engines of this model, which are spoken to by gRPC, take text only: leave out the parts of the type \"" + kind + "\"", Param: "messages", Media: true}
}

// knownFields are those of parts that the API knows; templates see only others besides the text.
var knownFields = map[string]bool{
	"type": true, "text": true, "refusal": true, "thinking": true, "closed": true, "uuid": true, "name": true, "data": true, "annotations": true, "logprobs": true,
	"prompt_cache_breakpoint": true, "detail": true, "file": true, "file_id": true, "filename": true, "file_data": true,
	"image_url": true, "image_embeds": true, "image_pil": true, "audio_url": true, "audio_embeds": true, "input_audio": true, "video_url": true, "video_embeds": true,
}

func extraFields(part *chattemplate.Dict) *chattemplate.Dict {
	extra := chattemplate.NewDict()
	for i := range part.Len() {
		if key, value := part.Entry(i); !knownFields[key.(string)] {
			extra.Set(key, value)
		}
	}
	return extra
}

// billingHeader begins a line that a client of Anthropic's API puts before its system prompt, with a value that changes with each request. Engines leave it out, so
// that prompts keep a common beginning.
const billingHeader = "x-anthropic-billing-header"

func withoutBillingHeader(text string) string {
	if !strings.HasPrefix(text, billingHeader) {
		return text
	}
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

// readToolCalls gives calls with their arguments as objects. Arguments that are none become an empty object: they are history, which the client cannot mend.
func readToolCalls(from *chattemplate.Dict) (chattemplate.Value, error) {
	v, _ := from.Get("tool_calls")
	if v == nil {
		return nil, nil
	}
	list, ok := v.(*chattemplate.List)
	if !ok {
		return nil, refusef("messages", "tool_calls must be a list")
	}
	if list.Len() == 0 {
		return nil, nil
	}
	calls := make([]chattemplate.Value, 0, list.Len())
	for i := range list.Len() {
		call, ok := list.At(i).(*chattemplate.Dict)
		if !ok {
			return nil, refusef("messages", "tool_calls must be objects")
		}
		kind, _ := call.Get("type")
		f, _ := call.Get("function")
		function, ok := f.(*chattemplate.Dict)
		if !ok || kind != "function" {
			return nil, refusef("messages", "tool_calls must be of the type \"function\", with a function")
		}
		if _, ok := call.String("id"); !ok {
			return nil, refusef("messages", "tool_calls must have an id")
		}
		if _, ok := function.String("name"); !ok {
			return nil, refusef("messages", "the function of a tool call must have a name")
		}
		given, ok := function.String("arguments")
		if !ok {
			return nil, refusef("messages", "the arguments of a tool call must be a string with JSON")
		}
		arguments := chattemplate.NewDict()
		if parsed, err := chattemplate.ParseJSON([]byte(given), maxDepth); err == nil {
			if d, ok := parsed.(*chattemplate.Dict); ok {
				arguments = d
			}
		}
		function = ordered(function.With("arguments", arguments), "arguments", "name")
		calls = append(calls, ordered(call.With("function", function), "id", "function", "type"))
	}
	return chattemplate.NewList(calls...), nil
}

// ordered puts fields in the order in which HTTP engines have them, which a template may print. Others follow as they came.
func ordered(d *chattemplate.Dict, names ...string) *chattemplate.Dict {
	o := chattemplate.NewDict()
	for _, name := range names {
		if v, ok := d.Get(name); ok {
			o.Set(name, v)
		}
	}
	for i := range d.Len() {
		o.Set(d.Entry(i))
	}
	return o
}

// withoutDeveloper makes system messages of those of the role developer, for templates that do not know it, and one message at the beginning of all system messages.
func withoutDeveloper(messages []*chattemplate.Dict) []*chattemplate.Dict {
	converted := make([]*chattemplate.Dict, len(messages))
	for i, message := range messages {
		converted[i] = message
		if role, _ := message.String("role"); role != "developer" {
			continue
		}
		system := chattemplate.NewDict()
		for i := range message.Len() {
			if key, value := message.Entry(i); key != "tools" {
				system.Set(key, value)
			}
		}
		system.Set("role", "system")
		converted[i] = system
	}
	var texts []string
	var others []*chattemplate.Dict
	scattered, systems := false, 0
	for i, message := range converted {
		if role, _ := message.String("role"); role != "system" {
			others = append(others, message)
			continue
		}
		if i > 0 || len(texts) > 0 {
			scattered = true
		}
		systems++
		if text := contentText(message); text != "" {
			texts = append(texts, text)
		}
	}
	if !scattered {
		return converted
	}
	merged := chattemplate.NewDict("role", "system", "content", strings.Join(texts, "\n\n"))
	return append([]*chattemplate.Dict{merged}, others...)
}

func contentText(message *chattemplate.Dict) string {
	v, _ := message.Get("content")
	list, ok := v.(*chattemplate.List)
	if !ok {
		text, _ := v.(string)
		return text
	}
	var texts []string
	for i := range list.Len() {
		if part, ok := list.At(i).(*chattemplate.Dict); ok {
			if text, ok := part.String("text"); ok {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, "\n")
}
