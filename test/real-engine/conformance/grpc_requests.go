package conformance

import (
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// GRPCRequest is an entry of the table for engines that speak gRPC.
type GRPCRequest struct {
	Name string
	// On is the engine that is asked: "one" (the default), "prefill" or "decode".
	On string
	// After names a request of the table whose answer this one is made of: its hand-off, its
	// ids.
	After string
	// Make changes a request of 40 ids, streamed, greedy, that asks for 12 tokens whatever
	// they are.
	Make func(m *vllmpb.GenerateRequest, after *GRPCAnswer)
}

const (
	asksForHandOff = `{"do_remote_decode":true,"do_remote_prefill":false}`
	firstID        = 20 // of the prompts: no special token, whatever the vocabulary
)

// baseRequest is what entries change.
func baseRequest() *vllmpb.GenerateRequest {
	return &vllmpb.GenerateRequest{RequestId: "conformance", Stream: true,
		Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: idsFrom(firstID, 40)}},
		SamplingParams: &vllmpb.SamplingParams{Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1,
			MaxTokens: proto.Uint32(12), IgnoreEos: true}}
}

// idsFrom are n ids.
func idsFrom(first uint32, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = first + uint32(i%200)
	}
	return ids
}

func prompt(ids []uint32) func(*vllmpb.GenerateRequest, *GRPCAnswer) {
	return func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.GetTokenized().InputIds = ids }
}

func sampling(change func(*vllmpb.SamplingParams)) func(*vllmpb.GenerateRequest, *GRPCAnswer) {
	return func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { change(m.SamplingParams) }
}

func params(text string) func(*vllmpb.GenerateRequest, *GRPCAnswer) {
	return func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.KvTransferParamsJson = &text }
}

// prefilled asks for a hand-off.
func prefilled(stream bool, ids []uint32) func(*vllmpb.GenerateRequest, *GRPCAnswer) {
	return func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.SamplingParams.MaxTokens = stream, proto.Uint32(1)
		m.GetTokenized().InputIds = ids
		m.KvTransferParamsJson = proto.String(asksForHandOff)
	}
}

func handedOn(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
	m.KvTransferParamsJson = proto.String(after.HandOff)
}

// GRPCRequests is the table. What an engine does with a request that it does not survive is
// not in it.
var GRPCRequests = []GRPCRequest{
	{Name: "streamed", Make: prompt(idsFrom(firstID, 40))},
	{Name: "whole", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.Stream = false }},
	{Name: "one token", Make: sampling(func(s *vllmpb.SamplingParams) { s.MaxTokens = proto.Uint32(1) })},
	{Name: "two samples", Make: sampling(func(s *vllmpb.SamplingParams) { s.N, s.Temperature = 2, proto.Float32(1) })},
	{Name: "two samples, whole", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.SamplingParams.N, m.SamplingParams.Temperature = false, 2, proto.Float32(1)
	}},
	{Name: "logprobs", Make: sampling(func(s *vllmpb.SamplingParams) { s.Logprobs = proto.Int32(0) })},
	{Name: "logprobs with alternatives", Make: sampling(func(s *vllmpb.SamplingParams) { s.Logprobs = proto.Int32(2) })},
	{Name: "logprobs, whole", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.SamplingParams.Logprobs = false, proto.Int32(2)
	}},
	{Name: "prompt logprobs", Make: sampling(func(s *vllmpb.SamplingParams) { s.PromptLogprobs = proto.Int32(1) })},
	{Name: "prompt logprobs, whole", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.SamplingParams.PromptLogprobs = false, proto.Int32(0)
	}},
	{Name: "the ids of a text", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.Input = false, &vllmpb.GenerateRequest_Text{Text: "Why is the sky blue?"}
		m.SamplingParams.MaxTokens, m.SamplingParams.PromptLogprobs = proto.Uint32(1), proto.Int32(0)
	}},
	{Name: "stop id", After: "streamed", Make: func(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
		m.SamplingParams.StopTokenIds = []uint32{after.IDs[4]}
	}},
	{Name: "stop string", After: "streamed", Make: func(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
		m.SamplingParams.Stop = []string{"\x01 never", after.Text[len(after.Text)/2:][:2]}
	}},
	{Name: "no request id", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.RequestId = "" }},
	{Name: "more than the context", Make: sampling(func(s *vllmpb.SamplingParams) { s.MaxTokens = proto.Uint32(5000) })},
	{Name: "rank 0", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.DataParallelRank = proto.Int32(0) }},
	{Name: "a choice", Make: sampling(func(s *vllmpb.SamplingParams) {
		s.IgnoreEos, s.Constraint = false, &vllmpb.SamplingParams_Choice{Choice: &vllmpb.ChoiceConstraint{Choices: []string{"a", "b"}}}
	})},

	{Name: "no input", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.Input = nil }},
	{Name: "no ids", Make: prompt(nil)},
	{Name: "an id beyond the vocabulary", Make: prompt([]uint32{firstID, 1 << 20})},
	{Name: "a prompt of the whole context", Make: prompt(idsFrom(firstID, 1024))},
	{Name: "a prompt beyond the context", Make: prompt(idsFrom(firstID, 3000))},
	{Name: "params that are no JSON", Make: params("{")},
	{Name: "params that are an array", Make: params("[]")},
	{Name: "a rank that is not there", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) { m.DataParallelRank = proto.Int32(7) }},
	{Name: "two greedy samples", Make: sampling(func(s *vllmpb.SamplingParams) { s.N = 2 })},
	{Name: "temperature below zero", Make: sampling(func(s *vllmpb.SamplingParams) { s.Temperature = proto.Float32(-1) })},
	{Name: "top_p of 2", Make: sampling(func(s *vllmpb.SamplingParams) { s.TopP = 2 })},
	{Name: "no tokens", Make: sampling(func(s *vllmpb.SamplingParams) { s.MaxTokens = proto.Uint32(0) })},
	{Name: "more at least than at most", Make: sampling(func(s *vllmpb.SamplingParams) { s.MinTokens = 13 })},
	{Name: "a regex that is none", Make: sampling(func(s *vllmpb.SamplingParams) { s.Constraint = &vllmpb.SamplingParams_Regex{Regex: "(["} })},
	{Name: "a schema that is no JSON", Make: sampling(func(s *vllmpb.SamplingParams) { s.Constraint = &vllmpb.SamplingParams_JsonSchema{JsonSchema: "{"} })},
	{Name: "too many alternatives", Make: sampling(func(s *vllmpb.SamplingParams) { s.Logprobs = proto.Int32(1000) })},
	{Name: "a bias of no token", Make: sampling(func(s *vllmpb.SamplingParams) { s.LogitBias = map[int32]float32{1 << 20: 1} })},

	{Name: "prefill", On: "prefill", Make: prefilled(false, idsFrom(firstID, 70))},
	{Name: "decode", On: "decode", After: "prefill", Make: func(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
		m.GetTokenized().InputIds = idsFrom(firstID, 70)
		handedOn(m, after)
	}},
	{Name: "prefill, streamed", On: "prefill", Make: prefilled(true, idsFrom(firstID+1, 70))},
	{Name: "decode, whole", On: "decode", After: "prefill, streamed", Make: func(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
		m.Stream, m.GetTokenized().InputIds = false, idsFrom(firstID+1, 70)
		handedOn(m, after)
	}},
	{Name: "decode alone", On: "decode", Make: prompt(idsFrom(firstID+2, 70))},
	{Name: "prefill for nobody", On: "prefill", Make: prefilled(false, idsFrom(firstID+3, 70))},
	{Name: "decode from an engine that is not there", On: "decode", After: "prefill for nobody", Make: func(m *vllmpb.GenerateRequest, after *GRPCAnswer) {
		m.GetTokenized().InputIds = idsFrom(firstID+3, 70)
		m.KvTransferParamsJson = proto.String(withEngineID(after.HandOff, "00000000-0000-4000-8000-000000000000"))
	}},
	{Name: "prefill without a word of it", On: "prefill", Make: func(m *vllmpb.GenerateRequest, _ *GRPCAnswer) {
		m.Stream, m.SamplingParams.MaxTokens = false, proto.Uint32(1)
	}},
}
