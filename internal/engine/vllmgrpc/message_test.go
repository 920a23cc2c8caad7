package vllmgrpc

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/generate"
)

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func logprobChunk() *vllmpb.GenerateResponse {
	m := chunk(1, 7, 1<<20)
	m.GetChunk().OutputLogprobs = &vllmpb.OutputLogProbs{
		TokenLogprobs: []float32{-0.5, -1}, TokenIds: []uint32{7, 1 << 20},
		TopLogprobs: []*vllmpb.TopLogProbs{{Values: []float32{-0.5, -2}, TokenIds: []uint32{7, 8}}, {Values: []float32{-1}, TokenIds: []uint32{9}}},
	}
	m.GetChunk().InputLogprobs = &vllmpb.InputLogProbs{
		TokenLogprobs: []*vllmpb.InputTokenLogProb{{}, {Value: proto.Float32(-3)}}, TokenIds: []uint32{1, 2},
		TopLogprobs: []*vllmpb.TopLogProbs{{}, {Values: []float32{-3}, TokenIds: []uint32{2}}},
	}
	return m
}

func TestMessageWithAll(t *testing.T) {
	var m message
	if err := m.decode(encoded(t, logprobChunk())); err != nil {
		t.Fatal(err)
	}
	var e generate.Event
	if err := m.event(&e, 4, 1, true); err != nil {
		t.Fatal(err)
	}
	want := generate.Event{
		Prompt: 4, Sample: 1, IDs: []uint32{7, 1 << 20}, PromptTokens: 3, CachedTokens: 1, MatchedID: -1,
		Logprobs: []generate.TokenLogprobs{
			{ID: 7, Logprob: -0.5, HasValue: true, Top: []generate.TokenLogprob{{ID: 7, Logprob: -0.5}, {ID: 8, Logprob: -2}}},
			{ID: 1 << 20, Logprob: -1, HasValue: true, Top: []generate.TokenLogprob{{ID: 9, Logprob: -1}}},
		},
		PromptLogprobs: []generate.TokenLogprobs{
			{ID: 1, Top: []generate.TokenLogprob{}}, {ID: 2, Logprob: -3, HasValue: true, Top: []generate.TokenLogprob{{ID: 2, Logprob: -3}}},
		},
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
	// What ends a sequence, and that nothing of the message before is left.
	c := complete(0, "stop", 5)
	c.GetComplete().MatchedStop = &vllmpb.GenerateComplete_MatchedStopStr{MatchedStopStr: "x"}
	if err := m.decode(encoded(t, c)); err != nil {
		t.Fatal(err)
	}
	if err := m.event(&e, 0, 0, false); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.IDs, []uint32{5}) || e.Finish != generate.Stopped || e.MatchedStop != "x" || e.MatchedID != -1 || len(e.Logprobs)+len(e.PromptLogprobs) != 0 {
		t.Errorf("got %+v", e)
	}
	c.GetComplete().MatchedStop = &vllmpb.GenerateComplete_MatchedTokenId{MatchedTokenId: 26}
	_ = m.decode(encoded(t, c))
	if _ = m.event(&e, 0, 0, true); e.MatchedID != 26 || e.MatchedStop != "" || len(e.IDs) != 0 {
		t.Errorf("got %+v", e)
	}
}

func TestReasonsToEnd(t *testing.T) {
	for reason, want := range map[string]generate.Finish{
		"stop": generate.Stopped, "length": generate.Length, "abort": generate.Aborted, "error": generate.Failed, "repetition": generate.Other,
	} {
		var m message
		var e generate.Event
		_ = m.decode(encoded(t, complete(0, reason)))
		if err := m.event(&e, 0, 0, true); err != nil || e.Finish != want {
			t.Errorf("%q: %v, %v; want %v", reason, e.Finish, err, want)
		}
	}
}

// What is not packed, of unknown fields, or of other types than the contract's.
func TestMessagesOfOtherEncoders(t *testing.T) {
	in := func(field protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	var loose []byte
	for _, id := range []uint64{3, 4} {
		loose = protowire.AppendVarint(protowire.AppendTag(loose, chunkIDs, protowire.VarintType), id)
	}
	loose = protowire.AppendFixed64(protowire.AppendTag(loose, 900, protowire.Fixed64Type), 1)
	loose = append(loose, in(901, []byte("x"))...)
	var m message
	if err := m.decode(in(fieldChunk, loose)); err != nil || !slices.Equal(m.ids, []uint32{3, 4}) {
		t.Errorf("got %v, %v", m.ids, err)
	}
	huge := protowire.AppendVarint(protowire.AppendTag(nil, chunkIDs, protowire.VarintType), 1<<40)
	for name, b := range map[string][]byte{
		"id beyond 32 bits":      in(fieldChunk, huge),
		"id as text of bytes":    in(fieldChunk, in(chunkIDs, []byte{0x80})),
		"index as text":          in(fieldChunk, in(chunkIndex, []byte("1"))),
		"cut":                    in(fieldChunk, loose)[:5],
		"two answers":            append(in(fieldChunk, loose), in(fieldComplete, nil)...),
		"none":                   {},
		"reason as a number":     in(fieldComplete, protowire.AppendVarint(protowire.AppendTag(nil, completeFinish, protowire.VarintType), 1)),
		"half a number":          in(fieldChunk, in(chunkOutput, in(1, []byte{1, 2, 3}))),
		"more ids than values":   in(fieldChunk, in(chunkOutput, in(2, []byte{1, 2}))),
		"alternatives of half":   in(fieldChunk, in(chunkOutput, in(3, in(2, []byte{1})))),
		"alternatives of others": in(fieldChunk, in(chunkOutput, in(3, nil))),
	} {
		if err := m.decode(b); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	if err := m.decode(nil); !errors.Is(err, errEmpty) {
		t.Errorf("nothing: %v", err)
	}
}

// FuzzMessage compares the decoder with the generated one, for all that both take.
func FuzzMessage(f *testing.F) {
	f.Add(encoded(f, logprobChunk()))
	f.Add(encoded(f, chunk(0, 1, 2, 3)))
	c := complete(2, "stop", 1, 2)
	c.GetComplete().MatchedStop = &vllmpb.GenerateComplete_MatchedStopStr{MatchedStopStr: "x"}
	c.GetComplete().KvTransferParamsJson = proto.String("{}")
	f.Add(encoded(f, c))
	var m message
	f.Fuzz(func(t *testing.T, b []byte) {
		err := m.decode(b)
		var want vllmpb.GenerateResponse
		if err != nil || proto.Unmarshal(b, &want) != nil {
			return
		}
		var ids []uint32
		index, prompt, cached := uint32(0), uint32(0), uint32(0)
		switch r := want.Response.(type) {
		case *vllmpb.GenerateResponse_Chunk:
			ids, index, prompt, cached = r.Chunk.TokenIds, r.Chunk.Index, r.Chunk.PromptTokens, r.Chunk.CachedTokens
		case *vllmpb.GenerateResponse_Complete:
			ids, index, prompt, cached = r.Complete.OutputIds, r.Complete.Index, r.Complete.PromptTokens, r.Complete.CachedTokens
			if string(m.finish) != r.Complete.FinishReason || string(m.params) != r.Complete.GetKvTransferParamsJson() {
				t.Fatalf("got the reason %q and params %q, want %q and %q", m.finish, m.params, r.Complete.FinishReason, r.Complete.GetKvTransferParamsJson())
			}
		default:
			t.Fatal("the generated decoder found nothing")
		}
		if !slices.Equal(m.ids, ids) || m.index != index || m.prompt != prompt || m.cached != cached {
			t.Fatalf("got %v %d %d %d, want %v %d %d %d", m.ids, m.index, m.prompt, m.cached, ids, index, prompt, cached)
		}
	})
}

func BenchmarkMessage(b *testing.B) {
	raw := encoded(b, chunk(0, 12345))
	var m message
	var e generate.Event
	b.ReportAllocs()
	for b.Loop() {
		if m.decode(raw) != nil || m.event(&e, 0, 0, true) != nil {
			b.Fatal("it cannot be read")
		}
	}
}
