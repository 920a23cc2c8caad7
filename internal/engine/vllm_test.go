package engine

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-router/sluice/internal/openai"
)

func prefillBody(t *testing.T, route openai.Route, body string) map[string]any {
	t.Helper()
	return spliced(t, route, body, func(s *openai.Splicer, p *openai.Peeked) { VLLMPrefill(s, p, []byte(`{"do_remote_decode":true}`)) })
}

func wantPrefill(extra map[string]any) map[string]any {
	want := map[string]any{"max_tokens": 1.0, "kv_transfer_params": map[string]any{"do_remote_decode": true}}
	for k, v := range extra {
		want[k] = v
	}
	return want
}

// A body without max_tokens must reach decode without it; only prefill is capped
// (vllm-project/production-stack#747).
func TestCase_B054_OnlyPrefillIsCapped(t *testing.T) {
	for _, body := range []string{`{}`, `{"max_tokens":500}`, `{"max_tokens":null}`} {
		if d := cmp.Diff(wantPrefill(nil), prefillBody(t, openai.RouteChatCompletions, body)); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
		got := spliced(t, openai.RouteChatCompletions, body, func(s *openai.Splicer, _ *openai.Peeked) { VLLMDecode(s, []byte(`{"a":1}`)) })
		var want map[string]any
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatal(err)
		}
		want["kv_transfer_params"] = map[string]any{"a": 1.0}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s for decode (-want +got):\n%s", body, d)
		}
	}
}

// max_completion_tokens wins over max_tokens: both must be capped, or prefill
// generates the whole answer (llm-d/llm-d-router#403).
func TestCase_B055_BothSpellingsAreCapped(t *testing.T) {
	got := prefillBody(t, openai.RouteChatCompletions, `{"max_completion_tokens":500}`)
	if d := cmp.Diff(wantPrefill(map[string]any{"max_completion_tokens": 1.0}), got); d != "" {
		t.Error(d)
	}
	got = prefillBody(t, openai.RouteResponses, `{"max_output_tokens":500,"input":"x"}`)
	want := map[string]any{"max_output_tokens": 1.0, "input": "x", "kv_transfer_params": map[string]any{"do_remote_decode": true}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A prefill that streams answers with events and without kv_transfer_params; with
// stream options but no stream it is refused (vllm-project/production-stack#971).
func TestCase_B057_PrefillDoesNotStream(t *testing.T) {
	got := prefillBody(t, openai.RouteCompletions, `{"stream":true,"stream_options":{"include_usage":true},"min_tokens":5,"prompt":"x"}`)
	if d := cmp.Diff(wantPrefill(map[string]any{"stream": false, "prompt": "x"}), got); d != "" {
		t.Error(d)
	}
}

func TestVLLMHandOff(t *testing.T) {
	params, err := VLLMHandOff([]byte(`{"id":"x","kv_transfer_params":{"remote_host":"10.0.0.1", "n":9007199254740993},"choices":[]}`))
	if err != nil || string(params) != `{"remote_host":"10.0.0.1", "n":9007199254740993}` {
		t.Errorf("%s %v", params, err)
	}
	for body, want := range map[string]error{
		`{"id":"x"}`:                                    ErrNoHandOff,
		`{"kv_transfer_params":null}`:                   ErrNoHandOff,
		`not json`:                                      ErrNoHandOff,
		`{"kv_transfer_params":[]}`:                     ErrBadHandOff,
		`{"kv_transfer_params":{}}`:                     ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":""}}`:     ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":null}}`:   ErrBadHandOff,
		`{"kv_transfer_params":{"remote_host":"h"},"x"`: ErrNoHandOff,
	} {
		if _, err := VLLMHandOff([]byte(body)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

func TestMooncakeParams(t *testing.T) {
	for _, b := range [][]byte{MooncakePrefillParams(`xfer-"1"`), MooncakeDecodeParams("xfer-1", "http://h:8998", "e")} {
		if !json.Valid(b) {
			t.Errorf("not JSON: %s", b)
		}
	}
}
