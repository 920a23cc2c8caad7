package sim

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

func grpcFleet(t *testing.T, o Options) *Fleet {
	t.Helper()
	o.Worker.GRPC = true
	f, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func grpcClient(t *testing.T, w *Worker) vllmpb.VllmEngineClient {
	t.Helper()
	return vllmpb.NewVllmEngineClient(dialed(t, w))
}

func dialed(t *testing.T, w *Worker) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+w.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// generation is a Generate request for a text's ids.
func generation(text string, change func(*vllmpb.GenerateRequest)) *vllmpb.GenerateRequest {
	m := &vllmpb.GenerateRequest{RequestId: "r", Stream: true, SamplingParams: &vllmpb.SamplingParams{MaxTokens: proto.Uint32(20)},
		Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: theVocabulary().encode(nil, text)}}}
	if change != nil {
		change(m)
	}
	return m
}

// answer is what came for one index.
type answer struct {
	ids      []uint32 // of the chunks; without chunks of the complete
	deltas   []int
	counted  int
	complete *vllmpb.GenerateComplete
	first    *vllmpb.GenerateStreamChunk
	logprobs int
}

// collect reads a stream by the rules that a client must follow, and checks them.
func collect(t *testing.T, stream grpc.ServerStreamingClient[vllmpb.GenerateResponse]) (map[uint32]*answer, error) {
	t.Helper()
	all := map[uint32]*answer{}
	of := func(index uint32) *answer {
		if all[index] == nil {
			all[index] = &answer{}
		}
		return all[index]
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return all, err
		}
		if c := m.GetChunk(); c != nil {
			a := of(c.Index)
			if a.complete != nil {
				t.Errorf("chunk of %d after its complete", c.Index)
			}
			if a.first == nil {
				a.first = c
			} else if c.InputLogprobs != nil {
				t.Error("prompt logprobs in a further chunk")
			}
			if int(c.CompletionTokens) != len(c.TokenIds) {
				t.Errorf("completion_tokens %d with %d ids", c.CompletionTokens, len(c.TokenIds))
			}
			a.ids = append(a.ids, c.TokenIds...)
			a.deltas = append(a.deltas, len(c.TokenIds))
			a.counted += int(c.CompletionTokens)
			a.logprobs += len(c.GetOutputLogprobs().GetTokenLogprobs())
			continue
		}
		d := m.GetComplete()
		a := of(d.Index)
		if a.complete != nil {
			t.Errorf("two completes of %d", d.Index)
		}
		a.complete = d
		if a.first == nil {
			a.ids = d.OutputIds
			continue
		}
		if last := a.ids[len(a.ids)-a.deltas[len(a.deltas)-1]:]; !slices.Equal(d.OutputIds, last) || int(d.CompletionTokens) != len(last) {
			t.Errorf("complete has %d (count %d), want the last delta %d again", d.OutputIds, d.CompletionTokens, last)
		}
	}
}

func generated(t *testing.T, c vllmpb.VllmEngineClient, m *vllmpb.GenerateRequest) (map[uint32]*answer, error) {
	t.Helper()
	stream, err := c.Generate(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, stream)
}

func told(a *answer) string { return string(theVocabulary().decode(nil, a.ids, false)) }

func TestGRPCStreamsDeltasAndRepeatsTheLastOne(t *testing.T) {
	c := grpcClient(t, grpcFleet(t, Options{Regular: 1}).Regular(0))
	streamed, err := generated(t, c, generation("hello there", func(m *vllmpb.GenerateRequest) {
		m.SamplingParams.MaxTokens = proto.Uint32(60)
		m.SamplingParams.Logprobs = proto.Int32(2)
		m.SamplingParams.PromptLogprobs = proto.Int32(0)
	}))
	if err != nil {
		t.Fatal(err)
	}
	a := streamed[0]
	if len(a.ids) != 60 || a.complete.GetFinishReason() != "length" || a.first.PromptTokens == 0 {
		t.Errorf("%d ids, finish %q", len(a.ids), a.complete.GetFinishReason())
	}
	if !slices.Contains(a.deltas, 2) || !slices.Contains(a.deltas, 1) {
		t.Errorf("deltas of %v tokens, want one mostly and two at times", a.deltas)
	}
	if a.logprobs != 60 || len(a.first.GetInputLogprobs().GetTokenIds()) != int(a.first.PromptTokens) || a.first.InputLogprobs.TokenLogprobs[0].Value != nil {
		t.Errorf("%d logprobs, of the prompt %v", a.logprobs, a.first.GetInputLogprobs())
	}
	whole, err := generated(t, c, generation("hello there", func(m *vllmpb.GenerateRequest) {
		m.Stream = false
		m.SamplingParams.MaxTokens = proto.Uint32(60)
	}))
	if err != nil || !slices.Equal(whole[0].ids, a.ids) || int(whole[0].complete.CompletionTokens) != 60 {
		t.Errorf("not streamed %v with %v, streamed %v", whole[0], err, a.ids)
	}
	other, _ := generated(t, c, generation("hello where", nil))
	if told(other[0]) == told(a)[:len(told(other[0]))] {
		t.Error("another prompt has the same text")
	}
}

func TestGRPCSamplesHaveTheirIndex(t *testing.T) {
	c := grpcClient(t, grpcFleet(t, Options{Regular: 1}).Regular(0))
	all, err := generated(t, c, generation("n", func(m *vllmpb.GenerateRequest) { m.SamplingParams.N = 3 }))
	if err != nil || len(all) != 3 {
		t.Fatalf("%d samples, %v", len(all), err)
	}
	for i, a := range all {
		if len(a.ids) != 20 || a.complete == nil {
			t.Errorf("sample %d: %d ids, complete %v", i, len(a.ids), a.complete)
		}
	}
	if told(all[0]) == told(all[1]) {
		t.Error("two samples are the same")
	}
}

func TestGRPCStops(t *testing.T) {
	c := grpcClient(t, grpcFleet(t, Options{Regular: 1}).Regular(0))
	all, _ := generated(t, c, generation("stop", nil))
	whole := told(all[0])
	stop := whole[7:11]
	at := strings.Index(whole, stop) + len(stop)
	got, err := generated(t, c, generation("stop", func(m *vllmpb.GenerateRequest) { m.SamplingParams.Stop = []string{"never", stop} }))
	if err != nil {
		t.Fatal(err)
	}
	a := got[0]
	text := told(a)
	if a.complete.GetMatchedStopStr() != stop || a.complete.FinishReason != "stop" || !strings.HasPrefix(text, whole[:at]) || len(text) > at+10 {
		t.Errorf("stopped at %q by %q, want what has %q", text, a.complete.GetMatchedStopStr(), whole[:at])
	}
	id := all[0].ids[5]
	got, _ = generated(t, c, generation("stop", func(m *vllmpb.GenerateRequest) { m.SamplingParams.StopTokenIds = []uint32{id} }))
	a = got[0]
	if first := slices.Index(all[0].ids, id); len(a.ids) != first+1 || a.complete.GetMatchedTokenId() != id || a.complete.FinishReason != "stop" {
		t.Errorf("stopped after %d ids by %v, want %d and %d", len(a.ids), a.complete.MatchedStop, first+1, id)
	}
	// Without a limit, and with one at the context's end, the model ends by itself.
	for _, most := range []*uint32{nil, proto.Uint32(4<<20 - 1), proto.Uint32(1 << 30)} {
		got, _ = generated(t, c, generation("stop", func(m *vllmpb.GenerateRequest) { m.SamplingParams.MaxTokens = most }))
		if a = got[0]; len(a.ids) != 16 || a.ids[15] != endOfTurn || a.complete.FinishReason != "stop" || a.complete.MatchedStop != nil {
			t.Errorf("max_tokens %v: %d ids, %q", most, len(a.ids), a.complete.FinishReason)
		}
	}
}

// The engine's own ids of a text: how a router checks its tokenizer.
func TestGRPCTextInputTellsItsIDs(t *testing.T) {
	c := grpcClient(t, grpcFleet(t, Options{Regular: 1}).Regular(0))
	const text = "<|im_start|>user\nHello, 你好 🙂<|im_end|>\n"
	all, err := generated(t, c, generation("", func(m *vllmpb.GenerateRequest) {
		m.Input = &vllmpb.GenerateRequest_Text{Text: text}
		m.Stream = false
		m.SamplingParams = &vllmpb.SamplingParams{MaxTokens: proto.Uint32(1), PromptLogprobs: proto.Int32(0)}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := all[0].complete.GetInputLogprobs().GetTokenIds(); !slices.Equal(got, theVocabulary().encode(nil, text)) {
		t.Errorf("ids %d", got)
	}
}

func TestGRPCRefusesBadInput(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{ContextLength: 64}}).Regular(0)
	c := grpcClient(t, w)
	sampling := func(change func(*vllmpb.SamplingParams)) func(*vllmpb.GenerateRequest) {
		return func(m *vllmpb.GenerateRequest) { change(m.SamplingParams) }
	}
	for name, change := range map[string]func(*vllmpb.GenerateRequest){
		"no input":          func(m *vllmpb.GenerateRequest) { m.Input = nil },
		"no ids":            func(m *vllmpb.GenerateRequest) { m.GetTokenized().InputIds = nil },
		"id of no token":    func(m *vllmpb.GenerateRequest) { m.GetTokenized().InputIds = []uint32{modelVocabulary} },
		"prompt too long":   func(m *vllmpb.GenerateRequest) { m.GetTokenized().InputIds = make([]uint32, 64) },
		"params no JSON":    func(m *vllmpb.GenerateRequest) { m.KvTransferParamsJson = proto.String("{") },
		"params an array":   func(m *vllmpb.GenerateRequest) { m.KvTransferParamsJson = proto.String("[]") },
		"rank out of range": func(m *vllmpb.GenerateRequest) { m.DataParallelRank = proto.Int32(1) },
		"n and greedy":      sampling(func(s *vllmpb.SamplingParams) { s.N, s.Temperature = 2, proto.Float32(0) }),
		"temperature":       sampling(func(s *vllmpb.SamplingParams) { s.Temperature = proto.Float32(-1) }),
		"max_tokens 0":      sampling(func(s *vllmpb.SamplingParams) { s.MaxTokens = proto.Uint32(0) }),
		"min over max":      sampling(func(s *vllmpb.SamplingParams) { s.MinTokens = 21 }),
		"regex":             sampling(func(s *vllmpb.SamplingParams) { s.Constraint = &vllmpb.SamplingParams_Regex{Regex: "(["} }),
		"logprobs":          sampling(func(s *vllmpb.SamplingParams) { s.Logprobs = proto.Int32(21) }),
		"logit bias":        sampling(func(s *vllmpb.SamplingParams) { s.LogitBias = map[int32]float32{9999: 1} }),
	} {
		_, err := generated(t, c, generation("bad", change))
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() == "" {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	// These are taken.
	for name, change := range map[string]func(*vllmpb.GenerateRequest){
		"max_tokens beyond the context": sampling(func(s *vllmpb.SamplingParams) { s.MaxTokens = proto.Uint32(5000) }),
		"no sampling params":            func(m *vllmpb.GenerateRequest) { m.SamplingParams = nil },
		"no request id":                 func(m *vllmpb.GenerateRequest) { m.RequestId = "" },
	} {
		if all, err := generated(t, c, generation("good", change)); err != nil || all[0].complete == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestGRPCAbortEndsNormally(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: 5 * time.Millisecond}}}).Regular(0)
	c := grpcClient(t, w)
	stream, err := c.Generate(t.Context(), generation("abort", func(m *vllmpb.GenerateRequest) {
		m.RequestId, m.SamplingParams.MaxTokens = "to-abort", proto.Uint32(100000)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Abort(t.Context(), &vllmpb.AbortRequest{RequestIds: []string{"unknown", "to-abort"}}); err != nil {
		t.Fatal(err)
	}
	all, err := collectRest(stream)
	if err != nil || all.GetFinishReason() != "abort" {
		t.Errorf("ended with %v and %v, want a complete with abort and OK", all, err)
	}
	if err := w.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
}

// collectRest reads a stream to its end and returns the last complete.
func collectRest(stream grpc.ServerStreamingClient[vllmpb.GenerateResponse]) (last *vllmpb.GenerateComplete, err error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		if d := m.GetComplete(); d != nil {
			last = d
		}
	}
}

func TestGRPCClientThatLeavesFreesTheEngine(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{PrefillTime: time.Hour}}}).Regular(0)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := grpcClient(t, w).Generate(ctx, generation("gone", nil)); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(t.Context(), func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := w.Requests()[0]; r.Outcome != ClientGone || w.Stats().KVTokens != 0 {
		t.Errorf("outcome %q, %d KV tokens held", r.Outcome, w.Stats().KVTokens)
	}
}

// prefill runs a prefill leg and returns its hand-off.
func prefill(t *testing.T, w *Worker, text string, stream bool) string {
	t.Helper()
	all, err := generated(t, grpcClient(t, w), generation(text, func(m *vllmpb.GenerateRequest) {
		m.Stream, m.SamplingParams.MaxTokens = stream, proto.Uint32(1)
		m.KvTransferParamsJson = proto.String(`{"do_remote_decode":true,"do_remote_prefill":false}`)
	}))
	if err != nil || all[0].complete.GetKvTransferParamsJson() == "" {
		t.Fatalf("prefill: %v %v", all[0], err)
	}
	return all[0].complete.GetKvTransferParamsJson()
}

func decode(t *testing.T, w *Worker, text, params string) (*answer, error) {
	t.Helper()
	all, err := generated(t, grpcClient(t, w), generation(text, func(m *vllmpb.GenerateRequest) {
		if params != "" {
			m.KvTransferParamsJson = &params
		}
	}))
	return all[0], err
}

func TestGRPCPair(t *testing.T) {
	f := grpcFleet(t, Options{Prefill: 1, Decode: 1, Regular: 1, Worker: WorkerOptions{TransferTimeout: 10 * time.Millisecond}})
	p, d := f.Prefill(0), f.Decode(0)
	const text = "a prompt that is handed on"
	alone, _ := decode(t, f.Regular(0), text, "")
	for _, stream := range []bool{false, true} {
		got, err := decode(t, d, text, prefill(t, p, text, stream))
		if err != nil || told(got) != told(alone) || got.complete.FinishReason != "length" {
			t.Errorf("pair %q %v, alone %q", told(got), err, told(alone))
		}
	}
	if s := d.Stats(); s.Pulled != 2 || f.Violated() != 0 {
		t.Errorf("pulled %d times, violations %v", s.Pulled, f.Violations())
	}
	if got, err := decode(t, d, text, ""); err != nil || told(got) != told(alone) {
		t.Errorf("decode without params: %v, %q", err, told(got))
	}
	// Another prompt's blocks: another text, and no error.
	if got, err := decode(t, d, text, prefill(t, p, "a different prompt of enough tokens, and then a few more", false)); err != nil || told(got) == told(alone) {
		t.Errorf("KV of another prompt: %v, %q", err, told(got))
	}
	// The status of a hand-off that fails is OK.
	params := prefill(t, p, text, false)
	if _, err := decode(t, d, text, params); err != nil {
		t.Fatal(err)
	}
	for name, params := range map[string]string{"taken twice": params, "unknown engine": strings.Replace(prefill(t, p, text, false), `"remote_engine_id":"`, `"remote_engine_id":"x`, 1)} {
		if got, err := decode(t, d, text, params); err != nil || got.complete.GetFinishReason() != "error" || len(got.ids) != 0 {
			t.Errorf("%s: %v, %v, want OK and finish_reason error", name, got, err)
		}
	}
}

// Without remote_host the call hangs and the engine ends, while its server goes on.
func TestGRPCParamsWithoutHostEndTheEngine(t *testing.T) {
	f := grpcFleet(t, Options{Prefill: 1, Decode: 1})
	d := f.Decode(0)
	c := grpcClient(t, d)
	params := strings.Replace(prefill(t, f.Prefill(0), "x", false), `"remote_host"`, `"host"`, 1)
	ctx, leave := context.WithCancel(t.Context())
	stream, err := c.Generate(ctx, generation("x", func(m *vllmpb.GenerateRequest) { m.KvTransferParamsJson = &params }))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := stream.Recv(); ended <- err }()
	for {
		h, err := c.HealthCheck(t.Context(), &vllmpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !h.Healthy {
			break
		}
		time.Sleep(time.Millisecond) // a poll, as a router's
	}
	if h, err := healthpb.NewHealthClient(dialed(t, d)).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || h.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("grpc.health %v %v", h, err)
	}
	if _, err := generated(t, c, generation("y", nil)); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "EngineCore") {
		t.Errorf("after the end %v, want INTERNAL", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the call that ended the engine was answered: %v", err)
	default:
	}
	leave()
	<-ended
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	if all, err := generated(t, grpcClient(t, d), generation("y", nil)); err != nil || all[0].complete == nil {
		t.Errorf("after a restart %v", err)
	}
}

func TestGRPCTellsWhatItIs(t *testing.T) {
	w := grpcFleet(t, Options{Prefill: 1, Worker: WorkerOptions{Model: "m", ContextLength: 1024, MaxRunning: 4, PageSize: 32, KVTokens: 16384}}).Prefill(0)
	c := grpcClient(t, w)
	if !strings.HasPrefix(w.URL(), "grpc://") {
		t.Errorf("URL %s", w.URL())
	}
	m, err := c.GetModelInfo(t.Context(), &vllmpb.GetModelInfoRequest{})
	if err != nil || m.MaxContextLength != 1024 || m.ServedModelName != "m" || m.VocabSize != modelVocabulary || !slices.Contains(m.EosTokenIds, endOfTurn) {
		t.Errorf("%v %v", m, err)
	}
	s, err := c.GetServerInfo(t.Context(), &vllmpb.GetServerInfoRequest{})
	if err != nil || s.KvConnector != "NixlConnector" || s.KvRole != "kv_both" || s.KvEngineId == "" || s.BlockSize != 32 || s.MaxNumSeqs != 4 {
		t.Errorf("%v %v", s, err)
	}
	before := s.KvEngineId
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	if s, err = grpcClient(t, w).GetServerInfo(t.Context(), &vllmpb.GetServerInfoRequest{}); err != nil || s.KvEngineId == before {
		t.Errorf("the engine's id after a restart: %v %v", s, err)
	}
	l, err := grpcClient(t, w).GetLoads(t.Context(), &vllmpb.GetLoadsRequest{})
	if err != nil || l.Loads[0].MaxTotalNumTokens != 16384 || l.Loads[0].MaxRunningRequests != 4 {
		t.Errorf("%v %v", l, err)
	}
	if _, err := healthpb.NewHealthClient(dialed(t, w)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "no.such"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: %v", err)
	}
}

func TestGRPCAnswersWithTheNonce(t *testing.T) {
	f := grpcFleet(t, Options{Prefill: 1, Decode: 1})
	const text = "hello nonce-7f please"
	got, err := decode(t, f.Decode(0), text, prefill(t, f.Prefill(0), text, false))
	if err != nil || told(got) != NonceAnswer("nonce-7f", 20) || !strings.HasPrefix(told(got), " nonce-7f.1 nonce-7f.2") {
		t.Errorf("answered %q, want %q", told(got), NonceAnswer("nonce-7f", 20))
	}
}
