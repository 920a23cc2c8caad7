package generate

import "github.com/sluice-router/sluice/internal/openai"

// refuseText refuses what needs the text of tokens, of a model whose tokenizer is not there:
// prompts that are token ids are answered with token ids, and with embeddings. Chats are
// refused by the model.
func (b *builder) refuseText() *openai.Error {
	if b.r.Tokenizer != nil || b.chat() {
		return nil
	}
	why := b.m.ChatRefusal()
	if !b.p.PromptKind.TokenIDs() && b.p.PromptKind != openai.PromptNone {
		return unsupported(b.promptField(), "prompts that are text are refused for this model: %s; prompts that are token ids are served", why)
	}
	if b.p.Route == openai.RouteEmbeddings {
		return nil
	}
	for _, w := range [...]struct {
		name string
		set  bool
	}{
		{"stop", len(b.w.stop) > 0}, {"echo", b.w.echo}, {"logprobs", b.w.logprobs.given}, {"prompt_logprobs", b.w.promptLogprobs.given},
	} {
		if w.set {
			return unsupported(w.name, "%s needs the text of tokens, which can't be made for this model: %s; leave it out", w.name, why)
		}
	}
	if !b.w.returnIDs {
		return unsupported("return_token_ids", "the text of the answer can't be made for this model: %s; set return_token_ids to get its token ids", why)
	}
	return nil
}
