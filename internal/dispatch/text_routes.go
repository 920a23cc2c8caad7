package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer"
	"github.com/sluice-router/sluice/internal/translate"
)

// Answer implements PromptReader.
func (r *modelReader) Answer(ctx context.Context, p *openai.Peeked, turn Turn) (answer []byte, err error) {
	if r.Model == nil {
		return nil, (*noModel)(r).refusal()
	}
	err = turn(ctx, len(p.Body), func(ctx context.Context) (err error) {
		switch p.Route {
		case openai.RouteTokenize:
			answer, err = r.tokenize(ctx, p)
		case openai.RouteDetokenize:
			answer, err = r.detokenize(p)
		case openai.RouteCountTokens:
			answer, err = r.countMessages(ctx, p)
		default:
			err = errors.ErrUnsupported
		}
		return textError(err)
	})
	return answer, err
}

// tokenize answers in the form of vLLM: the tokens of a text or of a chat.
func (r *modelReader) tokenize(ctx context.Context, p *openai.Peeked) ([]byte, error) {
	var in struct {
		Prompt     json.RawMessage `json:"prompt"`
		Messages   json.RawMessage `json:"messages"`
		AddSpecial *bool           `json:"add_special_tokens"`
		Names      bool            `json:"return_token_strs"`
	}
	if err := json.Unmarshal(p.Body, &in); err != nil {
		return nil, wrongType(err)
	}
	var ids []uint32
	var prompt string
	var err error
	isText := len(in.Prompt) > 0 && in.Prompt[0] == '"'
	if isText {
		prompt = string(openai.AppendUnquoted(make([]byte, 0, len(in.Prompt)), in.Prompt))
	}
	switch {
	case in.Messages != nil && !isText:
		ids, err = r.Model.RenderChat(ctx, p.Body)
	case in.Messages != nil || !isText:
		return nil, openai.InvalidRequest("prompt", "either prompt, a string, or messages must be given")
	case openai.HasLoneSurrogate(in.Prompt):
		return nil, openai.InvalidRequest("prompt", "prompt has half of a UTF-16 surrogate pair; it must be text")
	case r.Mismatch != nil:
		return nil, r.refusal()
	case in.AddSpecial != nil && !*in.AddSpecial:
		ids, err = r.Model.Tokenizer().Encode(ctx, nil, prompt, false)
	default:
		ids, err = r.Model.Encode(ctx, prompt)
	}
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 64+8*len(ids)), `{"count":`...)
	b = strconv.AppendInt(b, int64(len(ids)), 10)
	b = append(b, `,"max_model_len":`...)
	if r.Context > 0 {
		b = strconv.AppendInt(b, r.Context, 10)
	} else {
		b = append(b, "null"...)
	}
	b = generate.AppendIDs(append(b, `,"tokens":`...), ids)
	b = append(b, `,"token_strs":`...)
	if !in.Names {
		return append(b, `null}`...), nil
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := r.Model.Tokenizer().Token(id)
		if b = openai.AppendString(b, name); len(b) > 8*maxDetokenized {
			return nil, openai.InvalidRequest("return_token_strs", "the names of the tokens have more than %d bytes, the most that is answered", 8*maxDetokenized)
		}
	}
	return append(b, `]}`...), nil
}

// maxDetokenized is the most text of an answer that is made here, in bytes. It may be far longer
// than the request: a token may have thousands of bytes.
const maxDetokenized = 16 << 20

// detokenize answers in the form of vLLM: the text of tokens.
func (r *modelReader) detokenize(p *openai.Peeked) ([]byte, error) {
	var in struct {
		Tokens []int64 `json:"tokens"`
	}
	if err := json.Unmarshal(p.Body, &in); err != nil {
		return nil, wrongType(err)
	}
	if in.Tokens == nil {
		return nil, openai.InvalidRequest("tokens", "tokens is missing; it must be a list of token ids")
	}
	size := r.Model.VocabSize()
	ids := make([]uint32, len(in.Tokens))
	for i, id := range in.Tokens {
		if id < 0 || id >= int64(size) {
			return nil, openai.InvalidRequest("tokens", "tokens has %d; token ids of this model are whole numbers from 0 to %d", id, size-1)
		}
		ids[i] = uint32(id)
	}
	text, fits := r.Model.Tokenizer().DecodeAtMost(nil, ids, tokenizer.DecodeOptions{SpacesBetweenSpecial: true}, maxDetokenized)
	if !fits {
		return nil, openai.InvalidRequest("tokens", "the text of the tokens has more than %d bytes, the most that is answered; send them in parts", maxDetokenized)
	}
	return append(openai.AppendString([]byte(`{"prompt":`), string(text)), '}'), nil
}

// countMessages counts the tokens of a request of the Messages API, as chat.
func (r *modelReader) countMessages(ctx context.Context, p *openai.Peeked) ([]byte, error) {
	var s openai.Splicer
	s.Reset(p)
	s.SetInt(openai.FieldMaxTokens, 1) // which the API does not ask for here
	segments, _ := s.Segments()
	chat, _, err := translate.MessagesRequest(slices.Concat(segments...), translate.Options{})
	if err != nil {
		return nil, err
	}
	ids, err := r.Model.RenderChat(ctx, chat)
	if err != nil {
		return nil, err
	}
	return append(strconv.AppendInt([]byte(`{"input_tokens":`), int64(len(ids)), 10), '}'), nil
}

// wrongType is what encoding/json says of a body that was valid JSON: its values have the
// wrong types.
func wrongType(err error) *openai.Error {
	var e *json.UnmarshalTypeError
	if errors.As(err, &e) {
		return openai.InvalidRequest(e.Field, "%s has a value of the wrong type: %s", e.Field, e.Value)
	}
	return openai.InvalidRequest("", "the body cannot be read")
}
