package generate

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Codes of the errors of [Read] beside invalid_request.
const (
	// CodeUnsupported: engines over HTTP do it, and sluice does not do it for engines by gRPC.
	CodeUnsupported = "unsupported_for_grpc"
	// CodeContextLength: the prompt, or it and the output, is longer than the context.
	CodeContextLength = "context_length_exceeded"
)

// Model is what Read needs of a model. *textmodel.Model is one.
type Model interface {
	// Tokenizer is nil where there is none: ChatRefusal is why then, and only requests that
	// need no text are taken.
	Tokenizer() *tokenizer.Tokenizer
	// Digest identifies the model's files.
	Digest() string
	// Context is the most tokens of a prompt and its output together, 0 if it is not known.
	Context() int
	// VocabSize is a number that all ids of the model are below.
	VocabSize() int
	EOS() []uint32
	// ChatRefusal is why chats are refused, nil if they are not.
	ChatRefusal() error
	// Formats is how the model writes reasoning.
	Formats() textmodel.Formats
	// DefaultSampling are the model's choices where a client makes none.
	DefaultSampling() textmodel.Sampling
	// RenderChatAtMost makes token ids of the body of a chat request. If most is not 0, one
	// that has more of them may be a *tokenizer.TooManyError instead.
	RenderChatAtMost(ctx context.Context, body []byte, most int) ([]uint32, error)
}

// ReadOptions is what Read needs beside the request and the model.
type ReadOptions struct {
	// Model is the model's name in answers; "" is the name that the client uses.
	Model string
	// Context is the context of the engines that may get the request, in tokens, if it is
	// less than the model's own; 0 if it is not known.
	Context int
	// Vocab is the engine's size of the vocabulary, if it is more than the model's own. EOS are
	// ids with which the engine ends a sequence, beside the model's own.
	Vocab int
	EOS   []uint32
	// Sampling, if it is not nil, is what the engine tells of the model's choices; it goes
	// before the model's own.
	Sampling *textmodel.Sampling
	// Queue runs the work that takes long, for a text of so many bytes, when its turn has
	// come; nil runs it at once. Its error, and that of a context that ends, are returned by
	// Read as they are.
	Queue func(ctx context.Context, bytes int, work func(ctx context.Context) error) error
	// Render makes the ids of a chat instead of the model, for all that the model can't do.
	Render func(ctx context.Context, body []byte) ([]uint32, error)
}

// Read makes a Request of the body of a chat, completions or embeddings request. What is wrong
// with the body is told as an *openai.Error of status 400. Nothing of the body is kept.
//
// Values that vLLM refuses over HTTP are refused here, and fields that it does not know are
// ignored. Wishes that the engines' gRPC contract has no place for, and which would change the
// answer, are refused with the code unsupported_for_grpc. One thing differs: a prompt whose
// output would not fit into the context with the max_tokens that the client asked for is
// refused, where vLLM shortens the output silently.
func Read(ctx context.Context, p *openai.Peeked, m Model, o ReadOptions) (*Request, error) {
	for _, f := range [...]openai.Field{openai.FieldKVTransferParams, openai.FieldECTransferParams} {
		if p.Given(f) {
			return nil, openai.InvalidRequest(f.String(), "the field %q may not be set by clients; leave it out", f)
		}
	}
	b := &builder{p: p, m: m, o: &o, defaults: m.DefaultSampling()}
	if o.Sampling != nil {
		b.defaults = *o.Sampling
	}
	b.r = &Request{
		Route: p.Route, Model: o.Model, Samples: 1, Stream: p.Stream,
		Tokenizer: m.Tokenizer(), EOS: m.EOS(), Context: m.Context(),
		Form: Form{Role: "assistant", Logprobs: -1, PromptLogprobs: -1, Fingerprint: fingerprint(m.Digest())},
	}
	r := b.r
	if r.Model == "" {
		r.Model = p.Model
	}
	for _, id := range o.EOS {
		if !slices.Contains(r.EOS, id) {
			r.EOS = append(slices.Clip(r.EOS), id)
		}
	}
	r.Vocab = max(m.VocabSize(), o.Vocab)
	if t := r.Tokenizer; t != nil {
		r.Vocab = max(r.Vocab, t.VocabSize())
	}
	if o.Context > 0 && (r.Context == 0 || o.Context < r.Context) {
		r.Context = o.Context
	}
	b.w.read(p)
	if b.w.err != nil {
		return nil, b.w.err
	}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// builder makes one Request.
type builder struct {
	p *openai.Peeked
	m Model
	o *ReadOptions
	w wishes
	r *Request

	defaults textmodel.Sampling
}

func (b *builder) build(ctx context.Context) error {
	if b.p.Route == openai.RouteEmbeddings {
		for _, step := range [...]func() *openai.Error{b.embedding, b.refuseText} {
			if e := step(); e != nil {
				return e
			}
		}
		return b.prompts(ctx)
	}
	for _, step := range [...]func() *openai.Error{b.refuse, b.refuseChat, b.sampling, b.stops, b.logprobs, b.constraint, b.form, b.refuseText} {
		if e := step(); e != nil {
			return e
		}
	}
	if err := b.prompts(ctx); err != nil {
		return err
	}
	if e := b.lengths(); e != nil {
		return e
	}
	return asError(b.echo())
}

func (b *builder) chat() bool { return b.p.Route == openai.RouteChatCompletions }

// refuse refuses what the engine can't be told and what would change the answer.
func (b *builder) refuse() *openai.Error {
	for _, w := range [...]struct {
		name string
		set  bool
	}{
		{"use_beam_search", b.w.beams}, {"logprob_token_ids", b.w.logprobIDs}, {"allowed_token_ids", b.w.allowedIDs},
		{"bad_words", b.w.badWords}, {"prompt_embeds", b.w.embeds}, {"repetition_detection", b.w.repetitions},
		{"thinking_token_budget", b.w.budget}, {"cache_salt", b.w.salt}, {"vllm_xargs", b.w.xargs},
		{"suffix", b.w.suffix && !b.chat()},
	} {
		if w.set {
			return unsupported(w.name, "%s can't be sent to the engines of this model, which are spoken to by gRPC; leave it out", w.name)
		}
	}
	if n, ok := b.w.bestOf.get(); ok && n > int64(b.p.N) {
		return unsupported("best_of", "best_of is %d; the engines of this model, which are spoken to by gRPC, return every sample that they make; leave it out, or ask for %d samples with n", n, n)
	}
	return nil
}

// refuseChat refuses chats whose answer would have to be taken apart, and prompts that can't
// be rendered.
func (b *builder) refuseChat() *openai.Error {
	if !b.chat() {
		return nil
	}
	if b.w.tools == 0 {
		return openai.InvalidRequest("tools", "tools is an empty list; leave it out if there are no tools")
	}
	if b.w.tools > 0 && b.w.toolChoice != "none" {
		return unsupported("tools", "calls of tools can't be read from the output of the engines of this model, which are spoken to by gRPC; leave out tools or set tool_choice to \"none\"")
	}
	if b.w.tools < 0 && b.w.toolChoice != "" && b.w.toolChoice != "none" {
		return openai.InvalidRequest("tool_choice", "tool_choice is set and there are no tools; leave it out")
	}
	if b.w.template {
		return openai.InvalidRequest("chat_template", "chat_template is not accepted from clients: the model's own template is used; leave it out")
	}
	if b.p.PromptKind != openai.PromptMessages {
		return openai.InvalidRequest("messages", "messages is missing or empty, or is no list; it must be a list of one message at least")
	}
	if b.w.continueFinal && b.w.generationPrompt.or(false) {
		return openai.InvalidRequest("continue_final_message", "continue_final_message and add_generation_prompt can't both be true")
	}
	if b.o.Render != nil {
		return nil
	}
	if err := b.m.ChatRefusal(); err != nil && b.r.Tokenizer == nil {
		return unsupported("messages", "chats with this model are refused: %s; send the prompt as token ids to /v1/completions", err)
	} else if err != nil {
		return refuseChats(err)
	}
	return nil
}

// embedding reads what an embeddings request asks beside its prompts.
func (b *builder) embedding() *openai.Error {
	switch b.w.encoding {
	case "", "float":
	case "base64":
		b.r.Form.Base64 = true
	default:
		return openai.InvalidRequest("encoding_format", "encoding_format must be \"float\" or \"base64\"")
	}
	if b.w.dimensions {
		return unsupported("dimensions", "dimensions can't be sent to the engines of this model, which are spoken to by gRPC; leave it out")
	}
	return nil
}

// form reads how the answer is to look.
func (b *builder) form() *openai.Error {
	r, w := b.r, &b.w
	if !b.p.Stream && (b.p.IncludeUsage || w.continuousUsage) {
		return openai.InvalidRequest("stream_options", "stream_options is set and stream is not true; leave it out or set stream")
	}
	r.Form.Usage = b.p.IncludeUsage
	r.Form.UsageAlways = b.p.IncludeUsage && w.continuousUsage
	r.Form.TokenIDs, r.Form.TokensAsIDs = w.returnIDs, w.tokensAsIDs
	r.Samples = b.p.N
	if r.Samples > 1 && r.Sampling.Temperature < greedy {
		return openai.InvalidRequest("n", "n is %d; with a temperature of 0 all samples are the same: n must be 1", r.Samples)
	}
	if !b.chat() {
		return nil
	}
	if !w.generationPrompt.or(true) && w.lastRole != "" {
		r.Form.Role = w.lastRole
	}
	if w.echo && w.lastRole == r.Form.Role {
		r.Form.Echo = []string{w.lastContent}
	}
	return nil
}

// greedy is the temperature below which engines do not sample.
const greedy = 1e-5

// lengths checks that prompts and outputs fit into the context, and sets the limit of outputs.
func (b *builder) lengths() *openai.Error {
	r := b.r
	longest := 0
	for _, ids := range r.Prompts {
		longest = max(longest, len(ids))
	}
	asked, name, explicit := b.asked()
	if explicit && asked < 1 {
		if asked != 0 || b.chat() || !b.w.echo {
			return openai.InvalidRequest(name, "%s is %d; it must be at least 1", name, asked)
		}
		r.Form.OnlyEcho, asked = true, 1
	}
	limit := r.Context
	if limit == 0 {
		limit = math.MaxInt32
	}
	if longest >= limit {
		return tooLong(b.promptField(), "This model's maximum context length is %d tokens. However, your prompt has %d tokens, which leaves no room for output. Please reduce the length of the prompt.", limit, longest)
	}
	switch room := int64(limit - longest); {
	case explicit && asked > room:
		return tooLong(b.promptField(), "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the %s, %d in the completion). Please reduce the length of the %[4]s or the completion.",
			limit, int64(longest)+asked, longest, b.promptField(), asked)
	case asked < 0: // as much as there is room for: see Request.MaxTokens
		r.Sampling.MaxTokens = uint32(limit)
	default:
		r.Sampling.MaxTokens = uint32(min(asked, math.MaxInt32))
	}
	least := b.w.minTokens.or(0)
	for i := range r.Prompts {
		if most := int64(r.MaxTokens(i)); least > most {
			return openai.InvalidRequest("min_tokens", "min_tokens is %d; it must be at most the limit of the output, which is %d", least, most)
		}
	}
	r.Sampling.MinTokens = uint32(least)
	return nil
}

// asked is the limit of the output: the client's, by the field of that name, or a default. It
// is negative for none.
func (b *builder) asked() (n int64, field string, explicit bool) {
	if b.chat() {
		if n, ok := b.w.maxCompletion.get(); ok {
			return n, "max_completion_tokens", true
		}
	}
	if n, ok := b.w.maxTokens.get(); ok {
		return n, "max_tokens", true
	}
	if n := b.defaults.MaxTokens; b.chat() && n != nil && *n > 0 {
		return *n, "", false
	}
	if b.chat() {
		return -1, "", false
	}
	return defaultCompletion, "", false
}

// defaultCompletion is the limit of a completion whose client sets none, in tokens: the
// completions API's own.
const defaultCompletion = 16

func (b *builder) promptField() string {
	switch b.p.Route {
	case openai.RouteChatCompletions:
		return "messages"
	case openai.RouteEmbeddings:
		return "input"
	}
	return "prompt"
}

func unsupported(param, format string, args ...any) *openai.Error {
	e := openai.InvalidRequest(param, format, args...)
	e.Code = CodeUnsupported
	return e
}

func tooLong(param, format string, args ...any) *openai.Error {
	e := openai.InvalidRequest(param, format, args...)
	e.Code = CodeContextLength
	return e
}

// atMost is how many ids of a prompt are wanted, 0 for all: those that do not fit are not
// made just to be counted. The number of a prompt that is not far too long is told exactly.
func (b *builder) atMost() int {
	if _, truncated := b.w.truncate.get(); truncated {
		return 0
	}
	return 2 * b.r.Context
}

// farTooLong is what is told of a prompt whose ids were not all made, if err is about one.
func (b *builder) farTooLong(err error) *openai.Error {
	var e *tokenizer.TooManyError
	if !errors.As(err, &e) {
		return nil
	}
	return tooLong(b.promptField(), "This model's maximum context length is %d tokens. However, your prompt has at least %d tokens. Please reduce the length of the prompt.", b.r.Context, e.AtLeast)
}

// fingerprint names the files of a model, as all that is known to make answers differ.
func fingerprint(digest string) string {
	if digest == "" {
		return ""
	}
	return "fp_" + digest[:min(len(digest), 12)]
}
