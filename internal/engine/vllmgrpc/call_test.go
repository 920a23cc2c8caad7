package vllmgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

func TestStreamedAnswerTakesNoTokenTwice(t *testing.T) {
	m := &mock{generate: answer(chunk(0, 0), chunk(0, 1, 2), chunk(0, 3), complete(0, "length", 3))}
	got := callAndRead(t.Context(), m.start(t), request(streamed))
	if got.err != nil || got.status != 200 || got.text[0] != "abcd" || got.finish[0] != "length" || got.done != 1 {
		t.Errorf("got %+v", got)
	}
	if got.prompt != 3 || got.complete != 4 {
		t.Errorf("usage is %d and %d tokens, want 3 and 4", got.prompt, got.complete)
	}
}

// The client is written to once where all comes at once: the end of a stream waits for no
// second write.
func TestEndOfAStreamIsOnePieceWithItsLastEvent(t *testing.T) {
	m := &mock{generate: answer(chunk(0, 0), complete(0, "length", 0))}
	r := request(func(r *engine.Request) { streamed(r); r.Generate.Sampling.MaxTokens = 1 })
	resp, err := Dialect{}.Call(t.Context(), m.start(t), r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if piece, err := resp.Body.Next(); err != nil || !strings.HasSuffix(string(piece), "data: [DONE]\n\n") || !resp.Body.Done() {
		t.Errorf("the first piece is %q, %v", piece, err)
	}
}

func TestWholeAnswer(t *testing.T) {
	m := &mock{generate: answer(complete(0, "stop", 0, 1, end))}
	got := callAndRead(t.Context(), m.start(t), request(nil))
	if got.err != nil || got.status != 200 || got.text[0] != "ab" || got.finish[0] != "stop" || got.complete != 3 {
		t.Errorf("got %+v", got)
	}
}

func TestSamplesOfOneCallAreToldApart(t *testing.T) {
	m := &mock{generate: answer(chunk(1, 5), chunk(0, 0), chunk(1, 6), complete(1, "length", 6), chunk(0, 1), complete(0, "stop", 1))}
	ep := m.start(t)
	got := callAndRead(t.Context(), ep, request(func(r *engine.Request) { streamed(r); r.Generate.Samples = 2 }))
	if got.err != nil || got.text[0] != "ab" || got.text[1] != "fg" || got.finish[0] != "stop" || got.finish[1] != "length" {
		t.Errorf("got %+v", got)
	}
	if n := m.requests()[0].SamplingParams.N; n != 2 {
		t.Errorf("the engine was asked for %d samples, want 2", n)
	}
}

// Each prompt of a list is a call, and their answers are one.
func TestPromptsOfAListAreCallsOfTheirOwn(t *testing.T) {
	m := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		first := r.GetTokenized().InputIds[0]
		return send(s, chunk(0, first), chunk(0, first+1), complete(0, "length", first+1))
	}}
	ep := m.start(t)
	for _, stream := range []bool{true, false} {
		r := request(func(r *engine.Request) {
			r.Generate.Prompts = nil
			for i := range uint32(100) { // more than run at the same time
				r.Generate.Prompts = append(r.Generate.Prompts, []uint32{i % 20})
			}
			r.Generate.Stream = stream
		})
		if !stream {
			m.generate = func(r *vllmpb.GenerateRequest, s sender) error {
				first := r.GetTokenized().InputIds[0]
				return send(s, complete(0, "length", first, first+1))
			}
		}
		got := callAndRead(t.Context(), ep, r)
		if got.err != nil || len(got.text) != 100 {
			t.Fatalf("got %d choices, error %v", len(got.text), got.err)
		}
		for i := range 100 {
			want := string(rune('a'+i%20)) + string(rune('a'+i%20+1))
			if got.text[i] != want || got.finish[i] != "length" {
				t.Errorf("choice %d is %q, %q; want %q", i, got.text[i], got.finish[i], want)
			}
		}
	}
	ids := map[string]int{}
	for _, r := range m.requests() {
		ids[r.RequestId]++
	}
	for id, n := range ids {
		if n != 1 || !strings.HasPrefix(id, "req-") {
			t.Errorf("%d requests have the id %q", n, id)
		}
	}
}

// A call that the engine does not finish as it should is a failure, whatever its status.
func TestEngineThatCannotGoOn(t *testing.T) {
	for _, reason := range []string{"error", "abort"} {
		for _, before := range []bool{true, false} {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s before=%t stream=%t", reason, before, stream), func(t *testing.T) {
					list := []*vllmpb.GenerateResponse{complete(0, reason)}
					if !before && stream {
						list = append([]*vllmpb.GenerateResponse{chunk(0, 0)}, list...)
					}
					m := &mock{generate: answer(list...)}
					got := callAndRead(t.Context(), m.start(t), request(func(r *engine.Request) { r.Generate.Stream = stream }))
					if got.err != nil || len(got.errors) != 1 || !strings.Contains(got.errors[0], reason) || got.finish[0] != "" {
						t.Fatalf("got %+v", got)
					}
					if midway := !before && stream; midway {
						if got.status != 200 || got.text[0] != "a" || got.done != 1 {
							t.Errorf("in the middle of the answer: %+v", got)
						}
						data := []byte(strings.TrimPrefix(strings.Split(got.raw, "\n\n")[1], "data: "))
						if s := (Dialect{}).ErrorStatus(data); s != 500 {
							t.Errorf("the error in the stream stands for status %d, want 500: %s", s, data)
						}
					} else if got.status != 500 {
						t.Errorf("status %d, want 500", got.status)
					}
				})
			}
		}
	}
}

// What breaks the rules is an error of the engine's, and its call is cancelled.
func TestAnswersThatBreakTheRules(t *testing.T) {
	two := complete(0, "length", 0)
	for name, tc := range map[string]struct {
		stream bool
		list   []*vllmpb.GenerateResponse
	}{
		"ends twice":               {true, []*vllmpb.GenerateResponse{chunk(0, 0), complete(0, "length", 0), two}},
		"ends twice at once":       {false, []*vllmpb.GenerateResponse{two, two}},
		"goes on":                  {true, []*vllmpb.GenerateResponse{chunk(0, 0), complete(0, "length", 0), chunk(0, 1)}},
		"no end":                   {true, []*vllmpb.GenerateResponse{chunk(0, 0)}},
		"no end, nothing":          {true, nil},
		"no end at once":           {false, nil},
		"sequence not asked for":   {true, []*vllmpb.GenerateResponse{chunk(1, 0)}},
		"huge sequence number":     {true, []*vllmpb.GenerateResponse{chunk(1<<31, 0)}},
		"id beyond the vocabulary": {true, []*vllmpb.GenerateResponse{chunk(0, vocabulary)}},
		"chunk, not streamed":      {false, []*vllmpb.GenerateResponse{chunk(0, 0), two}},
		"no reason":                {true, []*vllmpb.GenerateResponse{chunk(0, 0), complete(0, "")}},
		"empty message":            {true, []*vllmpb.GenerateResponse{{}}},
		"more than asked for":      {true, []*vllmpb.GenerateResponse{chunk(0, make([]uint32, 101)...)}},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			m := &mock{generate: func(_ *vllmpb.GenerateRequest, s sender) error {
				if err := send(s, tc.list...); err != nil || strings.HasPrefix(name, "no end") {
					close(ended)
					return err
				}
				<-s.Context().Done()
				close(ended)
				return nil
			}}
			got := callAndRead(t.Context(), m.start(t), request(func(r *engine.Request) { r.Generate.Stream = tc.stream }))
			if !got.malformed() {
				t.Errorf("got %+v", got)
			}
			if got.done != 0 {
				t.Error("the answer has an end")
			}
			soon(t, ended, "the end of the call")
		})
	}
}

func TestStatusOfTheEngine(t *testing.T) {
	for _, tc := range []struct {
		code codes.Code
		text string
		want int
	}{
		{codes.InvalidArgument, "bad regex", 400},
		{codes.ResourceExhausted, "too many requests", 429},
		{codes.ResourceExhausted, "Received message larger than max (5 vs. 4)", 413},
		{codes.Internal, "EngineCore encountered an issue", 500},
		{codes.Unavailable, "shutting down", 503},
		{codes.DeadlineExceeded, "", 504},
		{codes.Canceled, "", 502},
		{codes.NotFound, "", 404},
	} {
		m := &mock{generate: func(*vllmpb.GenerateRequest, sender) error { return status.Error(tc.code, tc.text) }}
		ep := m.start(t)
		got := callAndRead(t.Context(), ep, request(streamed))
		if got.err != nil || got.status != tc.want || len(got.errors) != 1 || !strings.Contains(got.errors[0], tc.text) {
			t.Errorf("%s: got %+v, want status %d", tc.code, got, tc.want)
		}
		// The same in the middle of the answer.
		m.generate = func(_ *vllmpb.GenerateRequest, s sender) error {
			_ = s.Send(chunk(0, 0))
			return status.Error(tc.code, tc.text)
		}
		got = callAndRead(t.Context(), ep, request(streamed))
		if got.err != nil || got.status != 200 || got.text[0] != "a" || len(got.errors) != 1 || got.finish[0] != "" {
			t.Errorf("%s in the middle: got %+v", tc.code, got)
		}
	}
}

func TestLeavingIsSeenByTheEngine(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*engine.Request)
		leave func(context.CancelFunc, *upstream.Response)
	}{
		{"context, one call", nil, func(cancel context.CancelFunc, _ *upstream.Response) { cancel() }},
		{"close, one call", nil, func(_ context.CancelFunc, r *upstream.Response) { r.Body.Close() }},
		{"context, several calls", several, func(cancel context.CancelFunc, _ *upstream.Response) { cancel() }},
		{"close, several calls", several, func(_ context.CancelFunc, r *upstream.Response) { r.Body.Close() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begun, over := make(chan struct{}, 16), make(chan struct{}, 16)
			m := &mock{generate: func(_ *vllmpb.GenerateRequest, s sender) error {
				_ = s.Send(chunk(0, 0))
				begun <- struct{}{}
				<-s.Context().Done()
				over <- struct{}{}
				return nil
			}}
			ep := m.start(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := request(streamed)
			if tc.edit != nil {
				tc.edit(r)
			}
			resp, err := Dialect{}.Call(ctx, ep, r)
			if err != nil {
				t.Fatal(err)
			}
			for range r.Generate.Prompts {
				soon(t, begun, "the beginning of a call")
			}
			calls := len(m.requests())
			tc.leave(cancel, resp)
			for range calls {
				soon(t, over, "the end of a call")
			}
			for err == nil {
				_, err = resp.Body.Next()
			}
			if err == io.EOF || upstream.EngineFault(err) {
				t.Errorf("the error is %v", err)
			}
			resp.Body.Close()
		})
	}
}

func several(r *engine.Request) { r.Generate.Prompts = [][]uint32{{0}, {1}, {2}} }

// One of several calls that fails ends the others.
func TestOneFailureEndsAll(t *testing.T) {
	over := make(chan struct{}, 16)
	m := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		if r.GetTokenized().InputIds[0] == 1 {
			return status.Error(codes.InvalidArgument, "no")
		}
		<-s.Context().Done()
		over <- struct{}{}
		return nil
	}}
	got := callAndRead(t.Context(), m.start(t), request(func(r *engine.Request) { streamed(r); several(r) }))
	if got.status != 400 {
		t.Errorf("got %+v", got)
	}
	for range len(m.requests()) - 1 {
		soon(t, over, "the end of another call")
	}
}

// What an engine is told.
func TestRequestToTheEngine(t *testing.T) {
	m := &mock{generate: answer(complete(0, "length", 0))}
	ep := m.start(t)
	seed := int32(7)
	callAndRead(t.Context(), ep, request(func(r *engine.Request) {
		r.Rank, r.ID = 3, "bad\xff"
		s := &r.Generate.Sampling
		s.Stop, s.StopIDs, s.Seed, s.MinTokens, s.TopK, s.Logprobs = []string{"x", "\xff"}, []uint32{9}, &seed, 200, -1, 2
	}))
	got := m.requests()[0]
	p := got.SamplingParams
	switch {
	case !slices.Equal(got.GetTokenized().GetInputIds(), []uint32{0, 1, 2}), got.Stream, got.GetDataParallelRank() != 3, got.KvTransferParamsJson != nil:
	case !strings.HasPrefix(got.RequestId, "bad?-"), p.GetTemperature() != 0.5, p.TopP != 1, p.RepetitionPenalty != 1, p.N != 1:
	case p.GetMaxTokens() != 100, p.MinTokens != 100, p.GetSeed() != 7, p.TopK != 0, p.GetLogprobs() != 2, p.PromptLogprobs != nil:
	case !slices.Equal(p.Stop, []string{"x", "\uFFFD"}), !slices.Equal(p.StopTokenIds, []uint32{9}), !p.SkipSpecialTokens:
	default:
		return
	}
	t.Errorf("the engine got %v", got)
}

// A stop string that is found here ends the call, whether or not the engine finds it.
func TestStopStringEndsTheCall(t *testing.T) {
	over := make(chan struct{})
	m := &mock{generate: func(_ *vllmpb.GenerateRequest, s sender) error {
		_ = send(s, chunk(0, 0), chunk(0, 1), chunk(0, 2))
		<-s.Context().Done()
		close(over)
		return nil
	}}
	got := callAndRead(t.Context(), m.start(t), request(func(r *engine.Request) { streamed(r); r.Generate.Sampling.Stop = []string{"b"} }))
	if got.err != nil || got.text[0] != "a" || got.finish[0] != "stop" || got.done != 1 {
		t.Errorf("got %+v", got)
	}
	soon(t, over, "the end of the call")
}

func TestCallOfAnEngineThatIsNotThere(t *testing.T) {
	m := &mock{}
	ep := m.start(t)
	ep.Close()
	got := callAndRead(t.Context(), ep, request(streamed))
	var e *upstream.Error
	if !errors.As(got.err, &e) {
		t.Errorf("the error is %v, want an *upstream.Error", got.err)
	}
}

func TestRouteThatIsNoneOfTheEngine(t *testing.T) {
	got := callAndRead(t.Context(), (&mock{}).start(t), request(func(r *engine.Request) { r.Generate = nil }))
	if got.status != 501 {
		t.Errorf("got %+v", got)
	}
}

func TestEmbeddings(t *testing.T) {
	m := &mock{embed: func(r *vllmpb.EmbedRequest) (*vllmpb.EmbedResponse, error) {
		first := r.Tokenized.InputIds[0]
		if first == 9 {
			return nil, status.Error(codes.InvalidArgument, "no")
		}
		return &vllmpb.EmbedResponse{Embedding: []float32{float32(first), 0.5}, EmbeddingDim: 2}, nil
	}}
	ep := m.start(t)
	embed := func(r *engine.Request) {
		r.Generate.Route, r.Generate.Prompts = openai.RouteEmbeddings, [][]uint32{{1}, {2}}
	}
	got := callAndRead(t.Context(), ep, request(embed))
	if got.status != 200 || !strings.Contains(got.raw, `{"index":1,"object":"embedding","embedding":[2,0.5]}`) || got.prompt != 2 {
		t.Errorf("got %+v", got)
	}
	got = callAndRead(t.Context(), ep, request(func(r *engine.Request) { embed(r); r.Generate.Prompts[1][0] = 9 }))
	if got.status != 400 {
		t.Errorf("got %+v", got)
	}
}

func TestMetadataOfACall(t *testing.T) {
	got := map[string]string{}
	for _, f := range metadata(upstream.Header{
		{Name: "X-Request-Id", Value: "a"}, {Name: "Traceparent", Value: "b"}, {Name: "Cookie", Value: "c"},
		{Name: "tracestate", Value: "caf\xc3\xa9"}, {Name: "Authorization", Value: strings.Repeat("x", maxMetadata+1)},
	}) {
		got[f.Name] = f.Value
	}
	if !maps.Equal(got, map[string]string{"x-request-id": "a", "traceparent": "b"}) {
		t.Errorf("got %v", got)
	}
}
