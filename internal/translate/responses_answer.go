package translate

import (
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// itemKind is a kind of output item.
type itemKind uint8

const (
	itemNone itemKind = iota
	itemReasoning
	itemMessage
	itemCall
)

// The statuses of responses and items.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

// outItem is one output item.
type outItem struct {
	kind  itemKind
	id    []byte // with its quotes
	parts []byte // the parts of its content, with commas
	// Of a call, as JSON strings.
	arguments, callID, name raw
	cut                     bool // its arguments have not ended
}

// partKind is a kind of a part of an item's content.
type partKind uint8

const (
	partReasoning partKind = iota
	partText
	partRefusal
)

// status is the item's status in an answer with the status whole; last: it is the last
// item.
func (i *outItem) status(whole string, last bool) string {
	if last || i.cut && whole == statusIncomplete {
		return whole
	}
	return statusCompleted
}

// Answer translates a whole chat answer; see Exchange. This API reports the engine's
// counts only.
func (r *Responses) Answer(chat []byte, _ int64) ([]byte, error) {
	a, err := readWhole(chat)
	if err != nil {
		return nil, err
	}
	c := &a.choice
	calls := make([]outItem, 0, len(c.calls))
	// In a stream a call without a name begins at the end, as its name may come late.
	named := func(call chatCall) int { return min(len(call.name), 1) }
	slices.SortStableFunc(c.calls, func(a, b chatCall) int { return named(b) - named(a) })
	ids := r.callIDs()
	for _, call := range c.calls {
		arguments, state := cutArguments(call.arguments)
		if call.name == nil && state == argsNone {
			continue
		}
		calls = append(calls, outItem{kind: itemCall, arguments: arguments, cut: state == argsOpen,
			name: call.name.or(`""`), callID: ids.next(call.id)})
	}
	list := make([]outItem, 0, 2+len(c.calls))
	add := func(item outItem) {
		item.id = r.appendItemID(nil, item.kind, len(list))
		list = append(list, item)
	}
	if c.reasoning != nil {
		add(outItem{kind: itemReasoning, parts: r.appendPart(nil, partReasoning, c.reasoning, nil)})
	}
	if c.content != nil || c.refusal != nil || len(calls) == 0 {
		message := outItem{kind: itemMessage}
		if c.content != nil || c.refusal == nil {
			message.parts = r.appendPart(nil, partText, c.content, c.logprobs)
		}
		if c.refusal != nil {
			message.parts = append(message.parts, commaIf(message.parts != nil)...)
			message.parts = r.appendPart(message.parts, partRefusal, c.refusal, nil)
		}
		add(message)
	}
	for _, call := range calls {
		add(call)
	}
	status := c.finish.status()
	var items []byte
	for i := range list {
		items = append(items, commaIf(i > 0)...)
		items = r.appendItem(items, &list[i], list[i].status(status, i == len(list)-1))
	}
	return r.appendResponse(make([]byte, 0, len(r.echo)+len(items)+512), a.model, status, c.finish, items, a.usage, nil), nil
}

func (f finish) status() string {
	if f == finishLength || f == finishFilter {
		return statusIncomplete
	}
	return statusCompleted
}

// appendItemID appends an id with its quotes.
func (r *Responses) appendItemID(dst []byte, kind itemKind, n int) []byte {
	prefix := map[itemKind]string{itemReasoning: "rs_", itemMessage: "msg_", itemCall: "fc_"}[kind]
	return openai.AppendString(dst, prefix+r.opts.ID+"_"+strconv.Itoa(n))
}

func (r *Responses) callIDs() callIDs { return callIDs{made: "call_" + r.opts.ID} }

func (r *Responses) appendItem(b []byte, item *outItem, status string) []byte {
	b = append(append(b, `{"id":`...), item.id...)
	switch item.kind {
	case itemReasoning:
		b = append(b, `,"type":"reasoning","summary":[],"content":[`...)
		b = append(append(b, item.parts...), ']')
	case itemMessage:
		b = append(b, `,"type":"message","role":"assistant","content":[`...)
		b = append(append(b, item.parts...), ']')
	case itemCall:
		b = append(append(b, `,"type":"function_call","call_id":`...), item.callID...)
		b = append(append(b, `,"name":`...), item.name...)
		b = append(append(b, `,"arguments":`...), item.arguments.or(`""`)...)
	}
	return append(append(append(b, `,"status":"`...), status...), '"', '}')
}

// appendPart appends a part of an item's content; text is a JSON string or nil.
func (r *Responses) appendPart(b []byte, kind partKind, text, logprobs raw) []byte {
	switch kind {
	case partReasoning:
		return append(append(append(b, `{"type":"reasoning_text","text":`...), text.or(`""`)...), '}')
	case partRefusal:
		return append(append(append(b, `{"type":"refusal","refusal":`...), text.or(`""`)...), '}')
	}
	b = append(append(b, `{"type":"output_text","text":`...), text.or(`""`)...)
	b = append(b, `,"annotations":[],"logprobs":`...)
	if !r.logprobs {
		logprobs = nil
	}
	return append(append(b, logprobs.or("[]")...), '}')
}

// appendResponse appends the response object. items are rendered, with commas; e is
// set if it failed.
func (r *Responses) appendResponse(b []byte, model raw, status string, f finish, items []byte, u chatUsage, e *openai.Error) []byte {
	b = openai.AppendString(append(b, `{"id":`...), "resp_"+r.opts.ID)
	b = append(b, `,"object":"response","created_at":`...)
	b = strconv.AppendInt(b, r.opts.Created, 10)
	b = append(append(append(b, `,"status":"`...), status...), '"')
	b = append(b, `,"error":`...)
	if e != nil {
		b = append(b, `{"code":`...)
		b = openai.AppendString(b, responseErrorCode(e.Status))
		b = append(b, `,"message":`...)
		b = append(openai.AppendString(b, clipMessage(e.Message)), '}')
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"incomplete_details":`...)
	switch {
	case status != statusIncomplete:
		b = append(b, "null"...)
	case f == finishFilter:
		b = append(b, `{"reason":"content_filter"}`...)
	default:
		b = append(b, `{"reason":"max_output_tokens"}`...)
	}
	b = append(append(b, `,"model":`...), model.or(string(r.model))...)
	b = append(append(append(b, `,"output":[`...), items...), ']')
	b = append(b, r.echo...)
	b = append(b, `,"usage":`...)
	return append(appendResponsesUsage(b, u), '}')
}

// responseErrorCode is the code of a response's error, one of a fixed set in this API.
func responseErrorCode(status int) string {
	switch {
	case status == 429:
		return "rate_limit_exceeded"
	case status >= 400 && status < 500:
		return "invalid_prompt"
	}
	return "server_error"
}

func appendResponsesUsage(b []byte, u chatUsage) []byte {
	if !u.present {
		return append(b, "null"...)
	}
	input, output := max(u.prompt, 0), max(u.completion, 0)
	for _, f := range []struct {
		name string
		n    int64
	}{
		{`{"input_tokens":`, input},
		{`,"input_tokens_details":{"cached_tokens":`, max(u.cached, 0)},
		{`,"cache_write_tokens":`, 0},
		{`},"output_tokens":`, output},
		{`,"output_tokens_details":{"reasoning_tokens":`, max(u.thinking, 0)},
		{`},"total_tokens":`, input + output},
	} {
		b = strconv.AppendInt(append(b, f.name...), f.n, 10)
	}
	return append(b, '}')
}
