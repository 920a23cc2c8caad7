package generate

import "github.com/sluice-router/sluice/internal/openai"

// Request is one request of the API in tokens. It is made once, and then only read: all its
// attempts and both legs share it.
type Request struct {
	Route openai.Route
	// Model is the model's name in answers.
	Model string
	// Prompts are the token ids of each prompt, at least one.
	Prompts [][]uint32
	// Samples is how many sequences are asked for each prompt, at least 1.
	Samples int
	// Stream: the client gets its answer in pieces.
	Stream   bool
	Sampling Sampling
}

// PromptTokens is the length of all prompts together, in tokens.
func (r *Request) PromptTokens() int64 {
	var n int64
	for _, ids := range r.Prompts {
		n += int64(len(ids))
	}
	return n
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
	// PromptLogprobs is that of the prompt's tokens.
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
