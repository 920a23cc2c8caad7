package generate

import (
	"context"
	"errors"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// prompts makes token ids of the prompts. Errors that are no *openai.Error are those of the
// queue and of the context.
func (b *builder) prompts(ctx context.Context) error {
	if b.chat() {
		if err := b.render(ctx); err != nil {
			return err
		}
		return asError(b.fit())
	}
	switch b.p.PromptKind {
	case openai.PromptTokens, openai.PromptTokenLists:
		if e := b.given(); e != nil {
			return e
		}
	case openai.PromptText, openai.PromptTexts:
		if err := b.encode(ctx); err != nil {
			return err
		}
	default:
		f := b.promptField()
		return openai.InvalidRequest(f, "%s is missing; it must be a string, a list of strings, a list of token ids, or a list of such lists", f)
	}
	return asError(b.fit())
}

// asError keeps a nil *openai.Error from becoming an error.
func asError(e *openai.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// queue runs work in its turn.
func (b *builder) queue(ctx context.Context, bytes int, work func(context.Context) error) error {
	if b.o.Queue == nil {
		return work(ctx)
	}
	return b.o.Queue(ctx, bytes, work)
}

// render makes the prompt of a chat.
func (b *builder) render(ctx context.Context) (err error) {
	var ids []uint32
	if b.o.Render != nil {
		ids, err = b.o.Render(ctx, b.p.Body)
	} else {
		err = b.queue(ctx, len(b.p.Body), func(ctx context.Context) (err error) {
			ids, err = b.m.RenderChatAtMost(ctx, b.p.Body, b.atMost())
			return err
		})
	}
	if e := b.farTooLong(err); e != nil {
		return e
	}
	if err != nil {
		return renderError(err)
	}
	for _, id := range ids {
		if uint64(id) >= uint64(b.r.Vocab) {
			return openai.InvalidRequest("messages", "the messages have the token id %d; the model has %d", id, b.r.Vocab)
		}
	}
	b.r.Prompts = [][]uint32{ids}
	return asError(b.refuseReasoning(ids))
}

// renderError is what a render's error tells the client.
func renderError(err error) error {
	var wrong *textmodel.RequestError
	var refusal *textmodel.Refusal
	switch {
	case errors.As(err, &wrong) && wrong.Media:
		return unsupported(wrong.Param, "%s", wrong.Message)
	case errors.As(err, &wrong):
		return openai.InvalidRequest(wrong.Param, "%s", wrong.Message)
	case errors.As(err, &refusal):
		return refuseChats(refusal)
	}
	return err
}

func refuseChats(why error) *openai.Error {
	as := "text or token ids"
	if other := (*textmodel.Mismatch)(nil); errors.As(why, &other) { // text is refused too
		as = "token ids"
	}
	return unsupported("messages", "chats with this model are refused: %s; send the prompt as %s to /v1/completions", why, as)
}

// refuseReasoning refuses a chat in whose answer the model would reason, as that can't be told
// from the rest here. The prompt's end tells where templates begin to reason, or have ended it
// already; where it tells neither, models reason that can be told not to. A final message that
// is to be continued may have begun or ended it long before.
func (b *builder) refuseReasoning(ids []uint32) *openai.Error {
	f := b.m.Formats()
	if f.Channels {
		return unsupported("messages", "this model answers in channels, which can't be told apart for engines that are spoken to by gRPC; send the prompt as token ids to /v1/completions")
	}
	if f.ThinkClose == "" {
		return nil
	}
	tail := 64 // tokens
	if b.w.continueFinal {
		tail = len(ids)
	}
	end := string(b.r.Tokenizer.Decode(nil, ids[max(0, len(ids)-tail):], tokenizer.DecodeOptions{SpacesBetweenSpecial: true}))
	opened, closed := strings.LastIndex(end, f.ThinkOpen), strings.LastIndex(end, f.ThinkClose)
	switch trimmed := strings.TrimSpace(end); {
	case strings.HasSuffix(trimmed, f.ThinkClose) || b.w.continueFinal && closed > opened:
		return nil
	case strings.HasSuffix(trimmed, f.ThinkOpen) || b.w.continueFinal && opened > closed:
	case !f.ThinkSwitch || b.w.thinkingOff:
		return nil
	}
	return unsupported("messages", "the model would reason, which can't be told from its answer for engines that are spoken to by gRPC; turn it off, with most models by \"chat_template_kwargs\": {\"enable_thinking\": false}")
}

// given reads prompts of token ids.
func (b *builder) given() *openai.Error {
	r, f := b.r, b.promptField()
	for _, at := range b.p.Prompt {
		ids, ok := b.p.AppendPromptTokens(make([]uint32, 0, at.Size), at)
		if !ok {
			return openai.InvalidRequest(f, "%s has a value that is no token id; they are whole numbers from 0 to %d", f, r.Vocab-1)
		}
		for _, id := range ids {
			if uint64(id) >= uint64(r.Vocab) {
				return openai.InvalidRequest(f, "%s has the token id %d; they are whole numbers from 0 to %d", f, id, r.Vocab-1)
			}
		}
		r.Prompts = append(r.Prompts, ids)
	}
	return nil
}

// encode makes token ids of texts.
func (b *builder) encode(ctx context.Context) error {
	texts := make([]string, 0, len(b.p.Prompt))
	for _, at := range b.p.Prompt {
		raw := b.p.Body[at.Start:at.End]
		if openai.HasLoneSurrogate(raw) {
			f := b.promptField()
			return openai.InvalidRequest(f, "%s has half of a UTF-16 surrogate pair; it must be text", f)
		}
		texts = append(texts, text(raw))
	}
	if b.w.echo {
		b.r.Form.Echo = texts
	}
	special := b.w.addSpecial.or(true)
	return b.queue(ctx, b.p.PromptBytes, func(ctx context.Context) error {
		for _, t := range texts {
			ids, err := b.r.Tokenizer.EncodeAtMost(ctx, nil, t, special, b.atMost())
			if e := b.farTooLong(err); e != nil {
				return e
			}
			if err != nil {
				return err
			}
			b.r.Prompts = append(b.r.Prompts, ids)
		}
		return nil
	})
}

// fit shortens prompts as the client asks, and refuses those that are empty or too long.
func (b *builder) fit() *openai.Error {
	r, f := b.r, b.promptField()
	if len(r.Prompts) != b.p.BatchSize {
		return openai.InvalidRequest(f, "%s has %d prompts of different types or too many", f, b.p.BatchSize)
	}
	if keep, ok := b.w.truncate.get(); ok {
		if keep < -1 || r.Context > 0 && keep > int64(r.Context) {
			return openai.InvalidRequest("truncate_prompt_tokens", "truncate_prompt_tokens is %d; it must be -1 or at most %d", keep, r.Context)
		}
		if keep == -1 {
			keep = int64(r.Context)
			if b.p.Route != openai.RouteEmbeddings {
				keep-- // for output
			}
		}
		left := b.w.truncateLeft || !b.w.truncateRight && b.p.Route != openai.RouteEmbeddings
		for i, ids := range r.Prompts {
			switch n := int64(len(ids)); {
			case keep < 0 || n <= keep:
			case left:
				r.Prompts[i] = ids[n-keep:]
			default:
				r.Prompts[i] = ids[:keep]
			}
		}
	}
	for i, ids := range r.Prompts {
		if len(ids) == 0 {
			if len(r.Prompts) == 1 {
				return openai.InvalidRequest(f, "%s has no tokens; it must not be empty", f)
			}
			return openai.InvalidRequest(f, "%s[%d] has no tokens; none may be empty", f, i)
		}
		if b.p.Route == openai.RouteEmbeddings && r.Context > 0 && len(ids) > r.Context {
			return tooLong(f, "This model's maximum context length is %d tokens. However, your input has %d tokens. Please reduce the length of the input.", r.Context, len(ids))
		}
	}
	return nil
}

// maxEcho bounds the text of prompts that came as token ids, in bytes: it may be far longer
// than the body.
const maxEcho = 64 << 20

// echo takes the prompts' texts before those that are generated, where the client asks for it.
func (b *builder) echo() *openai.Error {
	r := b.r
	if !b.w.echo || b.chat() {
		return nil
	}
	if b.w.returnIDs { // the ids stand beside the text
		r.Form.Echo = make([]string, len(r.Prompts))
		return nil
	}
	if r.Form.Echo != nil {
		return nil
	}
	size := 0
	for _, ids := range r.Prompts {
		text, fits := r.Tokenizer.DecodeAtMost(nil, ids, tokenizer.DecodeOptions{SpacesBetweenSpecial: true}, maxEcho-size)
		if size += len(text); !fits {
			return openai.InvalidRequest("echo", "the text of the prompts is longer than %d bytes, the most that is echoed", maxEcho)
		}
		r.Form.Echo = append(r.Form.Echo, string(text))
	}
	return nil
}
