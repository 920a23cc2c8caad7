package generate

import (
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Request is one request of the API in tokens. It is made once and then only read:
// all its attempts and both legs share it.
type Request struct {
	Route openai.Route
	// Model is the model's name in answers.
	Model string
	// Prompts are the token ids of each prompt, at least one.
	Prompts [][]uint32
	// Samples is how many sequences are asked for each prompt, at least 1. The sequence of
	// prompt p and sample s is the client's choice number p*Samples + s.
	Samples int
	// Stream: the client gets its answer in pieces.
	Stream   bool
	Sampling Sampling
	// Form is what only the answer needs.
	Form Form

	// Tokenizer makes text of the engine's token ids, which are below Vocab. EOS are the ids
	// that end a sequence unless Sampling.IgnoreEOS is set. Without a tokenizer the answer has
	// no text, only ids.
	Tokenizer *tokenizer.Tokenizer
	Vocab     int
	EOS       []uint32
	// Context is the most tokens of a prompt and its output together, 0 if it is not known.
	Context int
}

// PromptTokens is the length of all prompts together, in tokens.
func (r *Request) PromptTokens() int64 {
	var n int64
	for _, ids := range r.Prompts {
		n += int64(len(ids))
	}
	return n
}

// MaxTokens is the most tokens that a sequence of the prompt may get: Sampling.MaxTokens, or
// what the context leaves if that is less, as it may be for a limit that the client did not
// set. It is at least 1.
func (r *Request) MaxTokens(prompt int) uint32 {
	n := r.Sampling.MaxTokens
	if r.Context > 0 {
		n = uint32(min(int64(n), int64(r.Context-len(r.Prompts[prompt]))))
	}
	return max(n, 1)
}

// Seed is the seed of a call for one sample of several, nil for none: equal seeds would give
// equal samples. Engines that are asked for all samples at once count in the same way.
func (r *Request) Seed(sample int) *int32 {
	if r.Sampling.Seed == nil || sample == 0 {
		return r.Sampling.Seed
	}
	seed := *r.Sampling.Seed + int32(sample)
	return &seed
}

// Sampling is how tokens are chosen and when a sequence ends, the model's defaults applied:
// what the engine is to be told, as it is.
type Sampling struct {
	Temperature, TopP, MinP           float32
	FrequencyPenalty, PresencePenalty float32
	RepetitionPenalty                 float32
	TopK                              int32 // 0: all
	MaxTokens, MinTokens              uint32
	Seed                              *int32
	Stop                              []string
	StopIDs                           []uint32
	IgnoreEOS                         bool
	IncludeStop                       bool // the text keeps the stop string
	SkipSpecial, SpacesBetweenSpecial bool
	LogitBias                         map[int32]float32
	Constraint                        Constraint
	// Logprobs is how many alternatives are told with each token, -1: no log probabilities.
	// PromptLogprobs is that of the prompt's tokens. Either may be more than the client gets.
	Logprobs, PromptLogprobs int32
}

// ConstraintKind is a kind of structured output.
type ConstraintKind uint8

// The kinds of structured output.
const (
	Unconstrained ConstraintKind = iota
	JSONSchema
	Regex
	Grammar
	StructuralTag
	JSONObject
	Choice
)

// Constraint is structured output: the form that the generated text must have.
type Constraint struct {
	Kind ConstraintKind
	// Text is the schema, expression, grammar or tag.
	Text string
	// Choices are those of Choice.
	Choices []string
}

// Form is what a client asked of the form of its answer.
type Form struct {
	// Role is the role of a chat answer's message.
	Role string
	// Echo is the text that precedes the generated one in each choice of a prompt; nil for
	// none. OnlyEcho: the client wants no token generated; the engine is asked for one, which
	// is left out of the answer's text.
	Echo     []string
	OnlyEcho bool
	// Logprobs is how many alternatives the client sees with each token, -1: no log
	// probabilities. PromptLogprobs is that of the prompt's tokens, in a list of their own.
	Logprobs, PromptLogprobs int32
	// TokenIDs: the ids stand beside the text. TokensAsIDs: log probabilities name tokens by
	// their ids.
	TokenIDs, TokensAsIDs bool
	// Usage: a stream ends with the count of tokens. UsageAlways: so does each event.
	Usage, UsageAlways bool
	// Fingerprint is the answer's system_fingerprint, empty for none.
	Fingerprint string
	// Base64: embeddings are sent as the base64 of their bytes.
	Base64 bool
}
