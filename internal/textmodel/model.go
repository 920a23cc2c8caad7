// Package textmodel has what stands between a conversation and token ids for one model: its tokenizer, its chat template and its defaults, read from the files that
// belong to the model's weights.
//
// A [Model] comes as a bundle: a zip as engines give it (GetTokenizer), or a directory (--tokenizer-path). [Store] keeps one copy of each bundle, by its digest.
// [SelfCheck] compares what a Model does with what an engine does, and [Renderer] asks a renderer for what a Model cannot do.
//
// Goal: for a body of the chat API the very ids that vLLM's own HTTP server sends to its engine, or an error where that answers with one; never a guess. Chat with a
// model whose template cannot be read, or whose self-check failed, is refused; prompts as token ids need no more than the size of the vocabulary.
//
// bundle.go reads files, config.go their contents; messages.go makes of a body what the template gets, model.go has the rest of the way.
package textmodel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-router/sluice/internal/chattemplate"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Model is what is known of a model's text. It does not change and is safe for concurrent use.
type Model struct {
	digest    string
	tokenizer *tokenizer.Tokenizer
	config    modelConfig
	special   map[string]string // bos_token and so on
	eos       []uint32
	sampling  Sampling
	// around is what is put around a prompt; nil: what tokenizer.json says.
	around *around

	template *chattemplate.Template // nil: see refusal
	facts    chattemplate.Facts
	formats  Formats
	refusal  *Refusal // of chat; nil: it works
	memory   int64
	now      func() time.Time
}

// Refusal is why a model cannot chat here. It is the model's fault or this program's, not the request's.
type Refusal struct {
	Reason string
	Err    error // what is behind it, or nil
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Reason + ": " + r.Err.Error()
	}
	return r.Reason
}

func (r *Refusal) Unwrap() error { return r.Err }

// RequestError is a request that cannot be rendered, which is the client's fault: 400.
type RequestError struct {
	Message string
	Param   string // of the body, such as "messages"; empty: none in particular
	Media   bool   // the request has an image, audio or video, and the model is not given any here
	Err     error  // what is behind it, or nil
}

func (e *RequestError) Error() string { return e.Message }

func (e *RequestError) Unwrap() error { return e.Err }

func refusef(param, format string, args ...any) error {
	return &RequestError{Message: fmt.Sprintf(format, args...), Param: param}
}

// Tokenizer is the model's tokenizer.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }

// Digest is the SHA-256 of the bundle, in hexadecimal digits.
func (m *Model) Digest() string { return m.digest }

// Context is how many tokens a prompt and its answer have at most by the model's configuration; 0: it does not say. An engine may be set to fewer.
func (m *Model) Context() int { return m.config.context }

// EOS are the tokens that end an answer.
func (m *Model) EOS() []uint32 { return m.eos }

// VocabSize is the number that the ids of prompts are below. A model may have room for more tokens than its tokenizer has.
func (m *Model) VocabSize() int { return max(m.config.vocabulary, m.tokenizer.VocabSize()) }

// DefaultSampling is what the model's authors recommend for what a request leaves out.
func (m *Model) DefaultSampling() Sampling { return m.sampling }

// Formats is what the chat template tells of the form of answers.
func (m *Model) Formats() Formats { return m.formats }

// MemoryBytes is about how much memory the model takes.
func (m *Model) MemoryBytes() int64 { return m.memory }

// ChatRefusal is why chat is refused, as a *Refusal; nil: it works.
func (m *Model) ChatRefusal() error {
	if m.refusal == nil {
		return nil
	}
	return m.refusal
}

// WithChatRefusal is a copy that refuses chat, such as after a self-check that failed. It shares all that is large.
func (m *Model) WithChatRefusal(r *Refusal) *Model {
	c := *m
	c.refusal = r
	return &c
}

// RenderChat gives the token ids of a chat request, whose JSON body is of the chat completions API: the conversation by the chat template, tokenized as vLLM does,
// without adding a beginning of sequence to that of the template.
// Its errors are a *RequestError, the *Refusal of ChatRefusal, and the error of ctx.
func (m *Model) RenderChat(ctx context.Context, body []byte) ([]uint32, error) {
	return m.RenderChatAtMost(ctx, body, 0)
}

// RenderChatAtMost is RenderChat for a conversation of which no more than so many ids are wanted, if most is not 0.
// One that has more is a *tokenizer.TooManyError (see Tokenizer.EncodeAtMost).
func (m *Model) RenderChatAtMost(ctx context.Context, body []byte, most int) ([]uint32, error) {
	text, addSpecial, err := m.renderText(ctx, body)
	if err != nil {
		return nil, err
	}
	return m.encode(ctx, text, addSpecial, most)
}

// RenderText gives the text of a chat request; see RenderChat.
func (m *Model) RenderText(ctx context.Context, body []byte) (string, error) {
	text, _, err := m.renderText(ctx, body)
	return text, err
}

func (m *Model) renderText(ctx context.Context, body []byte) (text string, addSpecial bool, err error) {
	if m.refusal != nil {
		return "", false, m.refusal
	}
	in, err := m.readChat(ctx, body)
	if err != nil {
		return "", false, err
	}
	in.input.Now = m.now()
	text, err = m.template.Render(ctx, &in.input)
	var failed *chattemplate.Error
	if errors.As(err, &failed) {
		return "", false, &RequestError{Message: failed.Error(), Param: "messages", Err: failed}
	}
	return text, in.addSpecial, err
}

// Encode gives the token ids of a prompt that is text, with the special tokens that the model's authors put around one, as the completions API has it.
func (m *Model) Encode(ctx context.Context, text string) ([]uint32, error) {
	return m.encode(ctx, text, true, 0)
}

// around are special tokens before and after a prompt.
type around struct{ before, after []uint32 }

func (m *Model) encode(ctx context.Context, text string, addSpecial bool, most int) ([]uint32, error) {
	if !addSpecial || m.around == nil {
		return m.tokenizer.EncodeAtMost(ctx, nil, text, addSpecial, most)
	}
	ids, err := m.tokenizer.EncodeAtMost(ctx, slices.Clone(m.around.before), text, false, most)
	if err != nil {
		return nil, err
	}
	return append(ids, m.around.after...), nil
}

// Count is the number of tokens of a prompt that is text.
func (m *Model) Count(ctx context.Context, text string) (int, error) {
	ids, err := m.Encode(ctx, text)
	return len(ids), err
}

// Unsupported reports whether err is of files that are whole, and whose tokenizer is of a kind
// that is not known here.
func Unsupported(err error) bool {
	var e *tokenizer.UnsupportedError
	return errors.As(err, &e)
}

// newModel makes a model of the files of a bundle, by their names.
func newModel(files map[string][]byte, digest string) (*Model, error) {
	m := &Model{digest: digest, now: time.Now}
	if files[tokenizerFile] == nil {
		return nil, fmt.Errorf("there is no %s", tokenizerFile)
	}
	var err error
	if m.tokenizer, err = tokenizer.Parse(files[tokenizerFile]); err != nil {
		return nil, err
	}
	if m.config, err = readModelConfig(files[configFile]); err != nil {
		return nil, err
	}
	own, err := readTokenizerConfig(files[tokenizerConfigFile])
	if err != nil {
		return nil, err
	}
	if err := own.addSpecialTokens(files[specialTokensFile]); err != nil {
		return nil, err
	}
	m.special = own.special
	generation, err := readGenerationConfig(files[generationConfigFile])
	if err != nil {
		return nil, err
	}
	m.sampling = generation.sampling
	m.around = m.readAround(own)
	m.eos = m.endTokens(own.special["eos_token"], generation.eos)
	m.readTemplate(own, files)
	m.memory = m.tokenizer.MemoryBytes()
	if m.template != nil {
		m.memory += int64(20 * len(m.template.Source()))
	}
	return m, nil
}

// readAround follows the tokenizer's configuration, which goes before tokenizer.json where it says anything.
func (m *Model) readAround(c *tokenizerConfig) *around {
	if c.addBOS == nil && c.addEOS == nil {
		return nil
	}
	put := func(add *bool, name string) []uint32 {
		if id, ok := m.tokenizer.TokenID(c.special[name]); ok && add != nil && *add && c.special[name] != "" {
			return []uint32{id}
		}
		return nil
	}
	return &around{before: put(c.addBOS, "bos_token"), after: put(c.addEOS, "eos_token")}
}

// endTokens are the ids that end an answer: the tokenizer's, and those of the generation config or else of the model's config.
func (m *Model) endTokens(token string, more []uint32) []uint32 {
	var ids []uint32
	if id, ok := m.tokenizer.TokenID(token); ok && token != "" {
		ids = append(ids, id)
	}
	if len(more) == 0 {
		more = m.config.eos
	}
	for _, id := range more {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// readTemplate finds the chat template: a file of its own goes before the one in the tokenizer's configuration.
func (m *Model) readTemplate(own *tokenizerConfig, files map[string][]byte) {
	source, err := chatTemplate(own, files)
	switch {
	case err != nil:
		m.refusal = &Refusal{Reason: "the model's chat template cannot be used", Err: err}
		return
	case source == "":
		m.refusal = &Refusal{Reason: "the model has no chat template"}
		return
	}
	template, err := chattemplate.Parse(source, chattemplate.Options{})
	if err != nil {
		m.refusal = &Refusal{Reason: "the model's chat template cannot be used", Err: err}
		return
	}
	m.template, m.facts = template, template.Facts()
	m.formats = formatsOf(m.template, m.tokenizer)
}
