package vllmgrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/sluice-router/sluice/internal/engine"
	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/grpcchannel"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer"
	"github.com/sluice-router/sluice/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mock is an engine whose methods are functions; those that are nil are not implemented.
type mock struct {
	vllmpb.UnimplementedVllmEngineServer
	generate  func(*vllmpb.GenerateRequest, sender) error
	embed     func(*vllmpb.EmbedRequest) (*vllmpb.EmbedResponse, error)
	info      func() *vllmpb.GetServerInfoResponse
	model     func() *vllmpb.GetModelInfoResponse
	loads     func() *vllmpb.GetLoadsResponse
	healthy   func() *vllmpb.HealthCheckResponse
	tokenizer func(grpc.ServerStreamingServer[commonpb.GetTokenizerChunk]) error
	events    func(grpc.ServerStreamingServer[commonpb.KvEventBatch]) error

	mu   sync.Mutex
	seen []*vllmpb.GenerateRequest
}

type sender = grpc.ServerStreamingServer[vllmpb.GenerateResponse]

func (m *mock) Generate(r *vllmpb.GenerateRequest, s sender) error {
	m.mu.Lock()
	m.seen = append(m.seen, r)
	m.mu.Unlock()
	if m.generate == nil {
		return m.UnimplementedVllmEngineServer.Generate(r, s)
	}
	return m.generate(r, s)
}

func (m *mock) requests() []*vllmpb.GenerateRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*vllmpb.GenerateRequest(nil), m.seen...)
}

func (m *mock) Embed(_ context.Context, r *vllmpb.EmbedRequest) (*vllmpb.EmbedResponse, error) {
	return m.embed(r)
}

func (m *mock) GetServerInfo(ctx context.Context, r *vllmpb.GetServerInfoRequest) (*vllmpb.GetServerInfoResponse, error) {
	if m.info == nil {
		return m.UnimplementedVllmEngineServer.GetServerInfo(ctx, r)
	}
	return m.info(), nil
}

func (m *mock) GetModelInfo(ctx context.Context, r *vllmpb.GetModelInfoRequest) (*vllmpb.GetModelInfoResponse, error) {
	if m.model == nil {
		return m.UnimplementedVllmEngineServer.GetModelInfo(ctx, r)
	}
	return m.model(), nil
}

func (m *mock) GetLoads(ctx context.Context, r *vllmpb.GetLoadsRequest) (*vllmpb.GetLoadsResponse, error) {
	if m.loads == nil {
		return m.UnimplementedVllmEngineServer.GetLoads(ctx, r)
	}
	return m.loads(), nil
}

func (m *mock) HealthCheck(ctx context.Context, r *vllmpb.HealthCheckRequest) (*vllmpb.HealthCheckResponse, error) {
	if m.healthy == nil {
		return m.UnimplementedVllmEngineServer.HealthCheck(ctx, r)
	}
	return m.healthy(), nil
}

func (m *mock) GetTokenizer(r *commonpb.GetTokenizerRequest, s grpc.ServerStreamingServer[commonpb.GetTokenizerChunk]) error {
	if m.tokenizer == nil {
		return m.UnimplementedVllmEngineServer.GetTokenizer(r, s)
	}
	return m.tokenizer(s)
}

func (m *mock) SubscribeKvEvents(r *commonpb.SubscribeKvEventsRequest, s grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
	if m.events == nil {
		return m.UnimplementedVllmEngineServer.SubscribeKvEvents(r, s)
	}
	return m.events(s)
}

// start serves m and returns an endpoint of it.
func (m *mock) start(t testing.TB) *upstream.Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	vllmpb.RegisterVllmEngineServer(s, m)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	ep, err := upstream.NewEndpoint(upstream.Config{URL: "grpc://" + l.Addr().String(), OpenChannel: grpcchannel.Open})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ep.Close)
	return ep
}

// ask sends a dialect's questions to an endpoint.
func ask(ep *upstream.Endpoint) engine.Ask {
	return func(ctx context.Context, q engine.Question) (int, []byte, error) {
		resp, err := ep.Do(ctx, &upstream.Request{Method: "POST", Path: q.Path, Body: [][]byte{q.Body}})
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.Status, body, err
	}
}

func chunk(index uint32, ids ...uint32) *vllmpb.GenerateResponse {
	return &vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Chunk{Chunk: &vllmpb.GenerateStreamChunk{
		TokenIds: ids, Index: index, PromptTokens: 3, CompletionTokens: uint32(len(ids)), CachedTokens: 1,
	}}}
}

func complete(index uint32, reason string, ids ...uint32) *vllmpb.GenerateResponse {
	return &vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Complete{Complete: &vllmpb.GenerateComplete{
		OutputIds: ids, FinishReason: reason, Index: index, PromptTokens: 3, CompletionTokens: uint32(len(ids)), CachedTokens: 1,
	}}}
}

// answer sends messages.
func answer(list ...*vllmpb.GenerateResponse) func(*vllmpb.GenerateRequest, sender) error {
	return func(_ *vllmpb.GenerateRequest, s sender) error { return send(s, list...) }
}

func send(s sender, list ...*vllmpb.GenerateResponse) error {
	for _, m := range list {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// testTokenizer has the letters a to z as ids 0 to 25, and the end of sequence as 26.
var testTokenizer = func() *tokenizer.Tokenizer {
	vocab := map[string]uint32{}
	for i := range uint32(26) {
		vocab[string(rune('a'+i))] = i
	}
	b, err := json.Marshal(map[string]any{
		"version":       "1.0",
		"added_tokens":  []any{map[string]any{"id": 26, "content": "<end>", "special": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}},
	})
	if err != nil {
		panic(err)
	}
	t, err := tokenizer.Parse(b)
	if err != nil {
		panic(err)
	}
	return t
}()

const vocabulary, end = 27, 26

// request is one for a completion of the prompt "abc".
func request(edit func(*engine.Request)) *engine.Request {
	r := &engine.Request{Generate: &generate.Request{
		Route: openai.RouteCompletions, Model: "m", Prompts: [][]uint32{{0, 1, 2}}, Samples: 1,
		Tokenizer: testTokenizer, Vocab: vocabulary, EOS: []uint32{end}, Context: 4096,
		Sampling: generate.Sampling{MaxTokens: 100, TopP: 1, RepetitionPenalty: 1, Temperature: 0.5, SkipSpecial: true, Logprobs: -1, PromptLogprobs: -1},
		Form:     generate.Form{Logprobs: -1, PromptLogprobs: -1, Usage: true},
	}, ID: "req", Rank: -1}
	if edit != nil {
		edit(r)
	}
	return r
}

func streamed(r *engine.Request) { r.Generate.Stream = true }

// read is what a client gets: the text of each choice, how each ended, and the errors told.
type read struct {
	status   int
	text     map[int]string
	finish   map[int]string
	errors   []string
	done     int
	err      error
	raw      string
	prompt   int
	complete int
}

// callAndRead makes a call and reads its answer to the end.
func callAndRead(ctx context.Context, ep *upstream.Endpoint, r *engine.Request) read {
	resp, err := Dialect{}.Call(ctx, ep, r)
	if err != nil {
		return read{err: err}
	}
	defer resp.Body.Close()
	return readAnswer(resp)
}

func readAnswer(resp *upstream.Response) read {
	out := read{status: resp.Status, text: map[int]string{}, finish: map[int]string{}}
	var all []byte
	for {
		piece, err := resp.Body.Next()
		if err != nil {
			if err != io.EOF {
				out.err = err
			}
			break
		}
		all = append(all, piece...)
	}
	out.raw = string(all)
	for line := range strings.SplitSeq(out.raw, "\n") {
		data, isEvent := strings.CutPrefix(line, "data: ")
		if line == "" || isEvent && data == "[DONE]" {
			if isEvent {
				out.done++
			}
			continue
		}
		if !isEvent {
			data = line
		}
		var v struct {
			Choices []struct {
				Index        int
				Text         string
				FinishReason *string `json:"finish_reason"`
			}
			Error *struct{ Message string }
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			out.err = errors.Join(out.err, fmt.Errorf("%w in %q", err, data))
			continue
		}
		for _, c := range v.Choices {
			out.text[c.Index] += c.Text
			if c.FinishReason != nil {
				out.finish[c.Index] += *c.FinishReason
			}
		}
		if v.Error != nil {
			out.errors = append(out.errors, v.Error.Message)
		}
		if v.Usage != nil {
			out.prompt, out.complete = v.Usage.Prompt, v.Usage.Completion
		}
	}
	return out
}

// malformed tells whether the error is that of an answer that breaks the rules.
func (r *read) malformed() bool {
	var e *upstream.Error
	var rule *upstream.RuleError
	return errors.As(r.err, &e) && errors.As(r.err, &rule) && rule.Rule != "" && e.Kind == upstream.KindMalformed && upstream.EngineFault(r.err)
}

// soon waits for c, long enough for any machine.
func soon(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not happen", what)
	}
}
