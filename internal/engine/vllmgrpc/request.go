package vllmgrpc

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/upstream"
)

// one is one call of Generate: some or all samples of one prompt.
type one struct {
	id             string
	prompt, sample int // of the first sequence
	samples        int // how many sequences
	params         []byte
	streamed       bool
}

// appendMessage appends the message of the call, for a leg of req.
func (c *one) appendMessage(dst []byte, req *engine.Request) ([]byte, error) {
	g := req.Generate
	m := &vllmpb.GenerateRequest{
		RequestId: strings.ToValidUTF8(c.id, "?"),
		Input: &vllmpb.GenerateRequest_Tokenized{
			Tokenized: &vllmpb.TokenizedInput{InputIds: g.Prompts[c.prompt]},
		},
		Stream: c.streamed,
	}
	if req.Leg == engine.LegPrefill {
		m.SamplingParams = prefillSampling(&g.Sampling)
	} else {
		m.SamplingParams = c.sampling(g)
	}
	if c.params != nil {
		m.KvTransferParamsJson = proto.String(string(c.params))
	}
	if req.Rank >= 0 {
		m.DataParallelRank = proto.Int32(int32(req.Rank))
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, m)
}

// prefillSampling is for one token, which nobody sees: decode chooses it once more. The engine
// hands KV cache over only if its limit of tokens ended the sequence, so that nothing else may.
// The form of the output stays, for a wrong one is refused before anything is computed.
func prefillSampling(s *generate.Sampling) *vllmpb.SamplingParams {
	p := &vllmpb.SamplingParams{
		Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1, MaxTokens: proto.Uint32(1), IgnoreEos: true,
		SkipSpecialTokens: s.SkipSpecial, SpacesBetweenSpecialTokens: s.SpacesBetweenSpecial,
	}
	setConstraint(p, &s.Constraint)
	return p
}

func (c *one) sampling(g *generate.Request) *vllmpb.SamplingParams {
	s := &g.Sampling
	most := g.MaxTokens(c.prompt)
	p := &vllmpb.SamplingParams{
		Temperature: &s.Temperature, TopP: s.TopP, TopK: uint32(max(s.TopK, 0)), MinP: s.MinP,
		FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty, RepetitionPenalty: s.RepetitionPenalty,
		MaxTokens: &most, MinTokens: min(s.MinTokens, most),
		Stop: validTexts(s.Stop), StopTokenIds: s.StopIDs,
		SkipSpecialTokens: s.SkipSpecial, SpacesBetweenSpecialTokens: s.SpacesBetweenSpecial, IgnoreEos: s.IgnoreEOS,
		N: uint32(c.samples), Seed: g.Seed(c.sample), IncludeStopStrInOutput: s.IncludeStop, LogitBias: s.LogitBias,
	}
	if s.Logprobs >= 0 {
		p.Logprobs = &s.Logprobs
	}
	if s.PromptLogprobs >= 0 {
		p.PromptLogprobs = &s.PromptLogprobs
	}
	setConstraint(p, &s.Constraint)
	return p
}

func setConstraint(p *vllmpb.SamplingParams, c *generate.Constraint) {
	text := strings.ToValidUTF8(c.Text, "\uFFFD")
	switch c.Kind {
	case generate.JSONSchema:
		p.Constraint = &vllmpb.SamplingParams_JsonSchema{JsonSchema: text}
	case generate.Regex:
		p.Constraint = &vllmpb.SamplingParams_Regex{Regex: text}
	case generate.Grammar:
		p.Constraint = &vllmpb.SamplingParams_Grammar{Grammar: text}
	case generate.StructuralTag:
		p.Constraint = &vllmpb.SamplingParams_StructuralTag{StructuralTag: text}
	case generate.JSONObject:
		p.Constraint = &vllmpb.SamplingParams_JsonObject{JsonObject: true}
	case generate.Choice:
		p.Constraint = &vllmpb.SamplingParams_Choice{Choice: &vllmpb.ChoiceConstraint{Choices: validTexts(c.Choices)}}
	}
}

// validTexts is the list with each text in valid UTF-8, which protobuf asks for; the list itself
// where all are.
func validTexts(list []string) []string {
	for i, s := range list {
		if valid := strings.ToValidUTF8(s, "\uFFFD"); valid != s {
			list = append([]string(nil), list...)
			for j := i; j < len(list); j++ {
				list[j] = strings.ToValidUTF8(list[j], "\uFFFD")
			}
			return list
		}
	}
	return list
}

// maxMetadata bounds a value of metadata: servers take a few KB of all together.
const maxMetadata = 2 << 10 // bytes

// metadata is what of an HTTP request's header goes with a call: the ids of the request and of
// its trace, and the client's key where that is passed on.
func metadata(header upstream.Header) upstream.Header {
	out := make(upstream.Header, 0, len(passed))
	for _, f := range header {
		for _, name := range passed {
			if strings.EqualFold(f.Name, name) && len(f.Value) <= maxMetadata && plainValue(f.Value) {
				out = append(out, upstream.Field{Name: name, Value: f.Value})
			}
		}
	}
	return out
}

var passed = [...]string{"x-request-id", "traceparent", "tracestate", "authorization"}

// plainValue tells whether metadata can have the value.
func plainValue(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
