package conformance

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the golden file
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// GoldenGRPC is what a real engine answered over gRPC.
//
//go:embed grpc.golden
var GoldenGRPC string

// GRPCAnswer is what further requests are made of.
type GRPCAnswer struct {
	IDs     []uint32 // of the first sample
	Text    string   // of these
	HandOff string
}

// RunGRPC asks the engines, whose host:port have the keys "one", "prefill" and "decode",
// and returns the shapes of their answers. Requests to an engine that is not there are left
// out.
func RunGRPC(ctx context.Context, engines map[string]string) ([]Result, error) {
	var results []Result
	clients := map[string]vllmpb.VllmEngineClient{}
	var tok *tokenizer.Tokenizer
	for _, name := range []string{"one", "prefill", "decode"} {
		if engines[name] == "" {
			continue
		}
		conn, err := grpc.NewClient("passthrough:///"+engines[name], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		clients[name] = vllmpb.NewVllmEngineClient(conn)
		facts, t, err := factsOf(ctx, conn, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results, tok = append(results, facts...), t
	}
	answers := map[string]*GRPCAnswer{}
	for _, r := range GRPCRequests {
		if r.On == "" {
			r.On = "one"
		}
		c, after := clients[r.On], answers[r.After]
		if c == nil {
			continue
		}
		if r.After != "" && after == nil {
			return nil, fmt.Errorf("%s: %s was not answered", r.Name, r.After)
		}
		m := baseRequest()
		r.Make(m, after)
		shape, answer, err := generate(ctx, c, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		if answer.Text = string(tok.Decode(nil, answer.IDs, tokenizer.DecodeOptions{})); len(answer.IDs) > 0 {
			answers[r.Name] = answer
		}
		results = append(results, Result{r.Name, shape})
	}
	return results, nil
}

// sample is what came for one index.
type sample struct {
	ids               []uint32
	last              []uint32 // of the last chunk
	chunks            int
	counted           bool // completion_tokens is always the number of the ids beside it
	inputs            int  // messages with logprobs of the prompt
	inputIDs          int
	logprobs, tops    int
	complete          *vllmpb.GenerateComplete
	completes, behind int
}

func (s *sample) count(n uint32, ids []uint32, out *vllmpb.OutputLogProbs, in *vllmpb.InputLogProbs) {
	s.counted = s.counted && int(n) == len(ids)
	s.logprobs += len(out.GetTokenLogprobs())
	for _, t := range out.GetTopLogprobs() {
		s.tops += len(t.GetValues())
	}
	if in != nil {
		s.inputs++
		s.inputIDs = len(in.GetTokenIds())
	}
}

// generate asks, and returns the shape of the answer: its status, and for each sample what
// clients must know of its messages.
func generate(ctx context.Context, c vllmpb.VllmEngineClient, m *vllmpb.GenerateRequest) (string, *GRPCAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	stream, err := c.Generate(ctx, m)
	if err != nil {
		return "", nil, err
	}
	samples := map[uint32]*sample{}
	of := func(index uint32) *sample {
		if samples[index] == nil {
			samples[index] = &sample{counted: true}
		}
		return samples[index]
	}
	var end error
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			end = err
			break
		}
		if x := r.GetChunk(); x != nil {
			s := of(x.GetIndex())
			s.count(x.GetCompletionTokens(), x.GetTokenIds(), x.GetOutputLogprobs(), x.GetInputLogprobs())
			s.ids, s.last = append(s.ids, x.GetTokenIds()...), x.GetTokenIds()
			s.chunks++
			s.behind += s.completes
			continue
		}
		x := r.GetComplete()
		s := of(x.GetIndex())
		if s.complete = x; s.chunks == 0 {
			s.count(x.GetCompletionTokens(), x.GetOutputIds(), x.GetOutputLogprobs(), x.GetInputLogprobs())
			s.ids = x.GetOutputIds()
		}
		s.completes++
	}
	var b strings.Builder
	b.WriteString(status.Code(end).String())
	if end != nil && status.Convert(end).Message() == "" {
		b.WriteString(" without a message")
	}
	answer := &GRPCAnswer{}
	for _, index := range slices.Sorted(maps.Keys(samples)) {
		s := samples[index]
		fmt.Fprintf(&b, "\n%d: %s", index, s.shape(m))
		if index == 0 {
			answer.IDs, answer.HandOff = s.ids, s.complete.GetKvTransferParamsJson()
		}
	}
	return b.String(), answer, nil
}

func (s *sample) shape(m *vllmpb.GenerateRequest) string {
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	stopped := len(m.GetSamplingParams().GetStop())+len(m.GetSamplingParams().GetStopTokenIds()) > 0
	if s.chunks > 0 {
		say("chunks")
	}
	if !s.counted {
		say("completion_tokens is not the number of ids")
	}
	if s.complete == nil {
		return strings.Join(append(words, "no complete"), ", ")
	}
	switch {
	case s.chunks == 0:
	case slices.Equal(s.complete.GetOutputIds(), s.last) && int(s.complete.GetCompletionTokens()) == len(s.last):
		say("complete repeats the last chunk")
	default:
		say("complete has %d ids after a chunk of %d", len(s.complete.GetOutputIds()), len(s.last))
	}
	if s.completes != 1 || s.behind > 0 {
		say("%d completes, %d messages after one", s.completes, s.behind)
	}
	say("%s", s.complete.GetFinishReason())
	if !stopped && m.GetSamplingParams().GetConstraint() == nil {
		say("%d ids", len(s.ids))
	}
	if s.complete.GetPromptTokens() == 0 {
		say("no prompt_tokens")
	}
	switch x := s.complete.GetMatchedStop().(type) {
	case *vllmpb.GenerateComplete_MatchedStopStr:
		say("matched_stop_str is what was asked for: %v", slices.Contains(m.SamplingParams.GetStop(), x.MatchedStopStr))
	case *vllmpb.GenerateComplete_MatchedTokenId:
		say("matched_token_id is the last id: %v", x.MatchedTokenId == s.ids[len(s.ids)-1])
	}
	if s.logprobs > 0 {
		say("a logprob for each id: %v, %d alternatives", s.logprobs == len(s.ids), s.tops/len(s.ids))
	}
	if s.inputs > 0 {
		say("logprobs of the prompt in %d message, for each id: %v", s.inputs, s.inputIDs == int(s.complete.GetPromptTokens()))
	}
	if text := s.complete.GetKvTransferParamsJson(); text != "" {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			say("params that are no object")
		}
		delete(fields, "remote_blocks_expiry_time") // of some versions
		delete(fields, "remote_prefill_cached_tokens")
		say("params %v", slices.Sorted(maps.Keys(fields)))
	}
	return strings.Join(words, ", ")
}

// withEngineID replaces the engine in a hand-off.
func withEngineID(handOff, id string) string {
	var fields map[string]any
	if json.Unmarshal([]byte(handOff), &fields) != nil {
		return handOff
	}
	fields["remote_engine_id"] = id
	b, err := json.Marshal(fields)
	if err != nil {
		return handOff
	}
	return string(b)
}

// factsOf are the answers to the calls that run nothing, and the engine's tokenizer.
func factsOf(ctx context.Context, conn *grpc.ClientConn, name string) (results []Result, t *tokenizer.Tokenizer, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := vllmpb.NewVllmEngineClient(conn)
	say := func(what, format string, args ...any) {
		results = append(results, Result{name + ", " + what, fmt.Sprintf(format, args...)})
	}
	h, err := c.HealthCheck(ctx, &vllmpb.HealthCheckRequest{})
	if err != nil {
		return nil, nil, err
	}
	say("health", "%v %q", h.GetHealthy(), h.GetMessage())
	for _, service := range []string{"", vllmpb.VllmEngine_ServiceDesc.ServiceName, "no.such.Service"} {
		h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		say("grpc.health of "+fmt.Sprintf("%q", service), "%s %s", status.Code(err), h.GetStatus())
	}
	m, err := c.GetModelInfo(ctx, &vllmpb.GetModelInfoRequest{})
	if err != nil {
		return nil, nil, err
	}
	say("model", "max_context_length %d, max_req_input_len %d, served_model_name %s, generation %v, tokenizer_path is model_path: %v, eos ids: %v",
		m.GetMaxContextLength(), m.GetMaxReqInputLen(), m.GetServedModelName(), m.GetIsGeneration(), m.GetTokenizerPath() == m.GetModelPath(), len(m.GetEosTokenIds()) > 0)
	s, err := c.GetServerInfo(ctx, &vllmpb.GetServerInfoRequest{})
	if err != nil {
		return nil, nil, err
	}
	say("server", "%s, ranks %d, block_size %d, max_num_seqs %d, connector %q, role: %v, engine id: %v", s.GetServerType(), s.GetDataParallelSize(),
		s.GetBlockSize(), s.GetMaxNumSeqs(), s.GetKvConnector(), s.GetKvRole() != "", s.GetKvEngineId() != "")
	l, err := c.GetLoads(ctx, &vllmpb.GetLoadsRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, x := range l.GetLoads() {
		say(fmt.Sprintf("load of rank %d", x.GetDpRank()), "running %d, waiting %d, max_total_num_tokens: %v, max_running_requests %d",
			x.GetNumRunningReqs(), x.GetNumWaitingReqs(), x.GetMaxTotalNumTokens() > 0, x.GetMaxRunningRequests())
	}
	_, err = c.Abort(ctx, &vllmpb.AbortRequest{RequestIds: []string{"unknown"}})
	say("abort of an unknown id", "%s", status.Code(err))
	archive, digest, err := tokenizerOf(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256(archive)
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return nil, nil, err
	}
	has := map[string]bool{}
	for _, f := range z.File {
		has[f.Name] = true
		if f.Name != "tokenizer.json" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, nil, err
		}
		text, err := io.ReadAll(io.LimitReader(r, 64<<20))
		_ = r.Close()
		if err != nil {
			return nil, nil, err
		}
		if t, err = tokenizer.Parse(text); err != nil {
			return nil, nil, err
		}
	}
	say("tokenizer", "digest right: %v, tokenizer.json: %v, tokenizer_config.json: %v, config.json: %v", digest == hex.EncodeToString(sum[:]),
		has["tokenizer.json"], has["tokenizer_config.json"], has["config.json"])
	if t == nil {
		return nil, nil, errors.New("the engine has no tokenizer.json")
	}
	return results, t, nil
}

func tokenizerOf(ctx context.Context, c vllmpb.VllmEngineClient) (archive []byte, digest string, err error) {
	stream, err := c.GetTokenizer(ctx, &commonpb.GetTokenizerRequest{})
	if err != nil {
		return nil, "", err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return archive, digest, nil
		}
		if err != nil {
			return nil, "", err
		}
		archive, digest = append(archive, part.GetData()...), part.GetSha256()
	}
}
