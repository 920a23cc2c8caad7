package generate

import (
	"github.com/sluice-router/sluice/internal/openai"
)

// Bounds of what a request may ask for.
const (
	maxStops     = 64      // stop strings
	maxStopBytes = 4 << 10 // of one
	maxStopIDs   = 1024    // each is compared with each token that is generated
	maxChoices   = 4096    // of structured output
)

// wishes are the fields of a body as the client wrote them. Of a field that is there twice the
// last counts.
type wishes struct {
	err *openai.Error // the first value of a wrong type

	temperature, topP, minP, frequency, presence, repetition optional[float64]

	topK, maxTokens, maxCompletion, minTokens, seed, bestOf optional[int64]
	logprobs, topLogprobs, promptLogprobs, truncate         optional[int64]

	includeStop, ignoreEOS, echo, returnIDs, tokensAsIDs, continueFinal, continuousUsage bool
	chatLogprobs, thinkingOff                                                            bool
	skipSpecial, spacesBetween, addSpecial, generationPrompt                             optional[bool]

	stop      []string
	stopIDs   []uint32
	logitBias map[int32]float32

	truncateLeft, truncateRight bool
	toolChoice, encoding        string
	tools                       int // how many, -1: the field is not there

	format Constraint

	lastRole, lastContent string // of the last message, if they are needed

	// Fields that are there and say something.
	beams, logprobIDs, allowedIDs, badWords, embeds, repetitions, budget, salt, xargs, suffix, template, dimensions bool
}

type optional[T any] struct {
	value T
	given bool
}

func (o optional[T]) get() (T, bool) { return o.value, o.given }

// or is the value, d if there is none.
func (o optional[T]) or(d T) T {
	if o.given {
		return o.value
	}
	return d
}

func (w *wishes) read(p *openai.Peeked) {
	w.tools = -1
	for name, raw := range p.EachMember() {
		if null(raw) {
			continue
		}
		w.field(p, string(name), raw)
		if w.err != nil {
			return
		}
	}
	w.structure(p)
	if p.Route == openai.RouteChatCompletions && (w.echo || w.generationPrompt.given) {
		w.last(p.Raw(openai.FieldMessages))
	}
}

// field reads a field that is there and not null.
func (w *wishes) field(p *openai.Peeked, name string, raw []byte) {
	chat := p.Route == openai.RouteChatCompletions
	switch name {
	case "temperature":
		w.number(&w.temperature, name, raw)
	case "top_p":
		w.number(&w.topP, name, raw)
	case "min_p":
		w.number(&w.minP, name, raw)
	case "frequency_penalty":
		w.number(&w.frequency, name, raw)
	case "presence_penalty":
		w.number(&w.presence, name, raw)
	case "repetition_penalty":
		w.number(&w.repetition, name, raw)
	case "top_k":
		w.integer(&w.topK, name, raw)
	case "max_tokens":
		w.integer(&w.maxTokens, name, raw)
	case "max_completion_tokens":
		w.integer(&w.maxCompletion, name, raw)
	case "min_tokens":
		w.integer(&w.minTokens, name, raw)
	case "seed":
		w.integer(&w.seed, name, raw)
	case "best_of":
		w.integer(&w.bestOf, name, raw)
	case "logprobs":
		if chat {
			w.boolean(&w.chatLogprobs, name, raw)
		} else {
			w.integer(&w.logprobs, name, raw)
		}
	case "top_logprobs":
		if chat {
			w.integer(&w.topLogprobs, name, raw)
		}
	case "prompt_logprobs":
		w.integer(&w.promptLogprobs, name, raw)
	case "truncate_prompt_tokens":
		w.integer(&w.truncate, name, raw)
	case "truncation_side":
		w.truncateLeft, w.truncateRight = string(raw) == `"left"`, string(raw) == `"right"`
		if !w.truncateLeft && !w.truncateRight {
			w.wrong(name, `"left" or "right"`, raw)
		}
	case "include_stop_str_in_output":
		w.boolean(&w.includeStop, name, raw)
	case "ignore_eos":
		w.boolean(&w.ignoreEOS, name, raw)
	case "echo":
		w.boolean(&w.echo, name, raw)
	case "return_token_ids":
		w.boolean(&w.returnIDs, name, raw)
	case "return_tokens_as_token_ids":
		w.boolean(&w.tokensAsIDs, name, raw)
	case "continue_final_message":
		w.boolean(&w.continueFinal, name, raw)
	case "use_beam_search":
		w.boolean(&w.beams, name, raw)
	case "skip_special_tokens":
		w.choice(&w.skipSpecial, name, raw)
	case "spaces_between_special_tokens":
		w.choice(&w.spacesBetween, name, raw)
	case "add_special_tokens":
		w.choice(&w.addSpecial, name, raw)
	case "add_generation_prompt":
		w.choice(&w.generationPrompt, name, raw)
	case "reasoning_effort":
		w.thinkingOff = w.thinkingOff || string(raw) == `"none"`
	case "chat_template_kwargs":
		for option, value := range openai.ObjectMembers(raw) {
			if o := string(option); o == "enable_thinking" || o == "thinking" {
				w.thinkingOff = string(value) == "false"
			}
		}
	case "stop":
		w.stops(name, raw)
	case "stop_token_ids":
		w.ids(&w.stopIDs, name, raw)
	case "logit_bias":
		w.biases(name, raw)
	case "stream_options":
		for option, value := range openai.ObjectMembers(raw) {
			if string(option) == "continuous_usage_stats" && !null(value) {
				w.boolean(&w.continuousUsage, "stream_options.continuous_usage_stats", value)
			}
		}
	case "tools":
		w.tools = 0
		for range openai.Elements(raw) {
			w.tools++
		}
		if raw[0] != '[' {
			w.wrong(name, "a list", raw)
		}
	case "tool_choice":
		w.toolChoice = "a tool"
		if raw[0] == '"' {
			w.toolChoice = text(raw)
		}
	case "encoding_format":
		w.encoding = "?"
		if raw[0] == '"' {
			w.encoding = text(raw)
		}
	case "dimensions":
		w.dimensions = true
	case "logprob_token_ids":
		w.logprobIDs = filled(raw)
	case "allowed_token_ids":
		w.allowedIDs = true
	case "bad_words":
		w.badWords = filled(raw)
	case "prompt_embeds":
		w.embeds = filled(raw)
	case "repetition_detection":
		w.repetitions = true
	case "thinking_token_budget":
		w.budget = string(raw) != "-1"
	case "cache_salt":
		w.salt = true
	case "vllm_xargs":
		w.xargs = filled(raw)
	case "suffix":
		w.suffix = true
	case "chat_template":
		w.template = true
	}
}

// last reads the role and the text of the last message.
func (w *wishes) last(messages []byte) {
	var last []byte
	for m := range openai.Elements(messages) {
		last = m
	}
	for name, value := range openai.ObjectMembers(last) {
		switch {
		case value[0] == '"' && string(name) == "role":
			w.lastRole = text(value)
		case value[0] == '"' && string(name) == "content":
			w.lastContent = text(value)
		}
	}
}
