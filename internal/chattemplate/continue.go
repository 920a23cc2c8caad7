package chattemplate

import (
	"context"
	"strings"
)

// mark is put behind the content of the final message, to find in the text where that ends. The space behind it tells whether the template trims contents.
const mark = "CONTINUE_FINAL_MESSAGE_TAG "

// continueFinal renders up to the end of the final message's content, by the same steps as the transformers library, whose result is the contract here: the content
// is marked, and the text is cut at the last mark.
func (t *Template) continueFinal(ctx context.Context, in *Input) (string, error) {
	refuse := func(message string) (string, error) { return "", &Error{Kind: Raised, Message: message} }
	messages, ok := in.Messages.(*List)
	if !ok || len(messages.items) == 0 {
		return refuse("continue_final_message needs a final message")
	}
	last, ok := messages.items[len(messages.items)-1].(*Dict)
	if !ok {
		return refuse("continue_final_message needs a final message that is an object")
	}
	content, _ := last.Get("content")
	if !strings.Contains(t.source, "content") {
		return refuse("continue_final_message is set, but the template does not use the content of messages")
	}
	var final string
	switch c := content.(type) {
	case nil:
		return refuse("continue_final_message is set, but the final message has no content to continue")
	case string:
		final, content = c, c+mark
	case *List:
		found := false
		parts := &List{items: append([]Value(nil), c.items...)}
		for i := len(parts.items) - 1; i >= 0 && !found; i-- {
			part, ok := parts.items[i].(*Dict)
			if !ok {
				continue
			}
			var text Value
			if text, ok = part.Get("text"); !ok {
				continue
			}
			if final, ok = text.(string); !ok {
				return refuse("continue_final_message is set, but the final message ends with a text that is no string")
			}
			parts.items[i], found = part.With("text", final+mark), true
		}
		if !found {
			return refuse("continue_final_message is set, but the final message has no text to continue")
		}
		content = parts
	default:
		return refuse("continue_final_message is set, but the content of the final message is neither a string nor a list")
	}
	marked := &List{items: append([]Value(nil), messages.items...)}
	marked.items[len(marked.items)-1] = last.With("content", content)
	text, err := t.render(ctx, in, marked)
	if err != nil {
		return "", err
	}
	at := strings.LastIndex(text, strings.TrimSpace(mark))
	if at < 0 || !strings.Contains(text, trim(final)) {
		return refuse("continue_final_message is set, but the final message does not appear in what the template makes of the conversation")
	}
	if strings.HasPrefix(text[at:], mark) {
		return text[:at], nil
	}
	return trimRight(text[:at]), nil
}
