package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// Warm hands one request over from prefill to decode, as a router would. The
// engines' agents meet at the first hand-off, which takes from half a second to
// most of a minute on a busy machine.
func Warm(ctx context.Context, prefill, decode *Engine) error {
	prompt := strings.Repeat("once more with feeling ", 8)
	answer, err := post(ctx, prefill.URL()+"/v1/completions", map[string]any{
		"model": Model, "prompt": prompt, "max_tokens": 1,
		"kv_transfer_params": map[string]any{"do_remote_decode": true},
	})
	if err != nil {
		return fmt.Errorf("cannot warm up prefill: %w", err)
	}
	var handOff struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &handOff); err != nil {
		return fmt.Errorf("cannot read prefill's answer: %w", err)
	}
	if len(handOff.Params) == 0 || string(handOff.Params) == "null" {
		return errors.New("cannot warm up: prefill hands nothing over")
	}
	if _, err := post(ctx, decode.URL()+"/v1/completions", map[string]any{
		"model": Model, "prompt": prompt, "max_tokens": 4,
		"kv_transfer_params": handOff.Params,
	}); err != nil {
		return fmt.Errorf("cannot warm up decode: %w", err)
	}
	return nil
}

// asksForHandOff is what a prefill engine is sent so that it keeps what it computed.
const asksForHandOff = `{"do_remote_decode":true,"do_remote_prefill":false}`

// WarmGRPC does the same by gRPC, and asks for log probabilities, of which the first take
// long.
func WarmGRPC(ctx context.Context, prefill, decode *Engine) error {
	ids := make([]uint32, 3*BlockSize)
	for i := range ids {
		ids[i] = uint32(100 + i)
	}
	first, err := GenerateOn(ctx, prefill, ids, 1, asksForHandOff)
	if err != nil {
		return fmt.Errorf("cannot warm up prefill: %w", err)
	}
	second, err := GenerateOn(ctx, decode, ids, 4, first.GetKvTransferParamsJson())
	if err != nil {
		return fmt.Errorf("cannot warm up decode: %w", err)
	}
	if second.GetFinishReason() != "length" {
		return fmt.Errorf("cannot warm up: decode ends with %q", second.GetFinishReason())
	}
	return nil
}

// GenerateOn has an engine generate so many tokens greedily, with the alternatives of each,
// and returns its answer, which is not streamed. The params are those of the KV transfer, ""
// for none.
func GenerateOn(ctx context.Context, e *Engine, ids []uint32, tokens uint32, params string) (*vllmpb.GenerateComplete, error) {
	conn, err := e.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := &vllmpb.GenerateRequest{
		RequestId: "real-engine",
		Input:     &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: ids}},
		SamplingParams: &vllmpb.SamplingParams{Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1,
			MaxTokens: &tokens, Logprobs: proto.Int32(1), IgnoreEos: true},
	}
	if params != "" {
		m.KvTransferParamsJson = &params
	}
	stream, err := vllmpb.NewVllmEngineClient(conn).Generate(ctx, m, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if answer.GetComplete() == nil {
		return nil, errors.New("the answer is no complete one")
	}
	return answer.GetComplete(), nil
}

// post sends a JSON body and returns that of a 200.
func post(ctx context.Context, url string, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", url, resp.Status, answer)
	}
	return answer, nil
}
