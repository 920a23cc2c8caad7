package generate

// Event is what an engine tells of one sequence of a request. Its slices are valid until the
// next event.
type Event struct {
	// Prompt and Sample name the sequence, both from 0.
	Prompt, Sample int
	// IDs are the tokens that are new.
	IDs []uint32
	// Logprobs are those of IDs; empty if none were asked for. PromptLogprobs are those of the
	// prompt; they come with a sequence's first event.
	Logprobs, PromptLogprobs []TokenLogprobs
	// PromptTokens and CachedTokens count tokens of the prompt, -1 where they are not told.
	PromptTokens, CachedTokens int64
	// Finish is set in the last event of the sequence, which may have no tokens.
	Finish Finish
	// Reason is how the engine calls the reason Other.
	Reason string
	// MatchedStop is the stop string or the text that ended it, MatchedID the token, -1: none.
	MatchedStop string
	MatchedID   int64
}

// TokenLogprobs are the log probabilities at one place: of the token itself, and of the most
// probable ones, which may have the token among them.
type TokenLogprobs struct {
	ID       uint32
	Logprob  float32
	HasValue bool // the first token of a prompt has none
	Top      []TokenLogprob
}

// TokenLogprob is one of the most probable tokens at a place.
type TokenLogprob struct {
	ID      uint32
	Logprob float32
}

// Finish is why a sequence ended.
type Finish uint8

// The reasons to end. Aborted and Failed are never those of a good answer.
const (
	Running Finish = iota
	Stopped        // an end of sequence, a stop token or a stop string
	Length         // its limit of tokens
	Aborted        // somebody asked the engine to stop
	Failed         // the engine could not go on
	Other          // a good end whose reason is not known here: the client is told the engine's word
)
