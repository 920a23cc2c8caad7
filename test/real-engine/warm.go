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
