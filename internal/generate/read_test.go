package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

var _ Model = (*textmodel.Model)(nil)

// fakeModel has a token for each byte of a chat's messages.
type fakeModel struct {
	context  int
	refusal  error
	render   error
	ids      []uint32 // of chats, if not nil
	formats  textmodel.Formats
	sampling textmodel.Sampling
}

func (m *fakeModel) Tokenizer() *tokenizer.Tokenizer     { return testTokenizer }
func (m *fakeModel) Digest() string                      { return "0123456789abcdef" }
func (m *fakeModel) Context() int                        { return m.context }
func (m *fakeModel) VocabSize() int                      { return int(idTests) + 3 }
func (m *fakeModel) EOS() []uint32                       { return []uint32{idEnd} }
func (m *fakeModel) ChatRefusal() error                  { return m.refusal }
func (m *fakeModel) Formats() textmodel.Formats          { return m.formats }
func (m *fakeModel) DefaultSampling() textmodel.Sampling { return m.sampling }

func (m *fakeModel) RenderChatAtMost(ctx context.Context, body []byte, _ int) ([]uint32, error) {
	if m.render != nil {
		return nil, m.render
	}
	if m.ids != nil {
		return m.ids, nil
	}
	var chat struct {
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &chat); err != nil {
		return nil, &textmodel.RequestError{Message: err.Error(), Param: "messages"}
	}
	var ids []uint32
	for _, m := range chat.Messages {
		for _, c := range []byte(m.Content) {
			ids = append(ids, uint32(c))
		}
	}
	return ids, ctx.Err()
}

func readBody(t testing.TB, route openai.Route, body string, m Model, o ReadOptions) (*Request, error) {
	t.Helper()
	p, err := openai.Peek(route, []byte(body), openai.PeekOptions{})
	if err != nil {
		return nil, err
	}
	defer p.Release()
	return Read(t.Context(), p, m, o)
}

const hi = `"messages":[{"role":"user","content":"Hi"}]`

func TestReadChat(t *testing.T) {
	r, err := readBody(t, openai.RouteChatCompletions, `{"model":"m",`+hi+`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},
		"temperature":0.5,"top_p":"0.9","top_k":-1,"min_p":0.1,"frequency_penalty":-1,"presence_penalty":1,"repetition_penalty":1.5,
		"max_tokens":5,"max_completion_tokens":7.0,"min_tokens":2,"seed":-5,"stop":["a","b"],"stop_token_ids":[3,3,4],"ignore_eos":"true",
		"include_stop_str_in_output":true,"skip_special_tokens":false,"spaces_between_special_tokens":false,"logit_bias":{"7":-200,"8":1.5},
		"logprobs":true,"top_logprobs":2,"return_token_ids":true,"return_tokens_as_token_ids":true,"n":2,"unknown":{"x":1}}`, &fakeModel{context: 100}, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seed := int32(-5)
	want := &Request{
		Route: openai.RouteChatCompletions, Model: "m", Prompts: [][]uint32{{'H', 'i'}}, Samples: 2, Stream: true,
		Tokenizer: testTokenizer, Vocab: int(idTests) + 3, EOS: []uint32{idEnd}, Context: 100,
		Sampling: Sampling{
			Temperature: 0.5, TopP: 0.9, MinP: 0.1, FrequencyPenalty: -1, PresencePenalty: 1, RepetitionPenalty: 1.5, MaxTokens: 7, MinTokens: 2,
			Seed: &seed, Stop: []string{"a", "b"}, StopIDs: []uint32{3, 4}, IgnoreEOS: true, IncludeStop: true,
			LogitBias: map[int32]float32{7: -100, 8: 1.5}, Logprobs: 2, PromptLogprobs: -1,
		},
		Form: Form{Role: "assistant", Logprobs: 2, PromptLogprobs: -1, TokenIDs: true, TokensAsIDs: true, Usage: true, UsageAlways: true, Fingerprint: "fp_0123456789ab"},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

func TestReadCompletions(t *testing.T) {
	f := func(prompt string, want ...[]uint32) {
		t.Helper()
		r, err := readBody(t, openai.RouteCompletions, `{"model":"m","prompt":`+prompt+`}`, &fakeModel{context: 100}, ReadOptions{Model: "served"})
		if err != nil {
			t.Errorf("%s: %v", prompt, err)
			return
		}
		if !reflect.DeepEqual(r.Prompts, want) || r.Model != "served" || r.Sampling.MaxTokens != 16 || r.Sampling.Temperature != 1 || r.Sampling.TopP != 1 || r.Sampling.RepetitionPenalty != 1 {
			t.Errorf("%s: %+v", prompt, r)
		}
	}
	f(`"a\u0062"`, []uint32{'a', 'b'})
	f(`["a","bc"]`, []uint32{'a'}, []uint32{'b', 'c'})
	f(`[1, 2]`, []uint32{1, 2})
	f(`[[1],[2,3]]`, []uint32{1}, []uint32{2, 3})
}

func TestReadEmbeddings(t *testing.T) {
	r, err := readBody(t, openai.RouteEmbeddings, `{"model":"m","input":["a",""],"encoding_format":"base64"}`, &fakeModel{context: 100}, ReadOptions{})
	var e *openai.Error
	if !errors.As(err, &e) || e.Param != "input" {
		t.Errorf("an empty input: %v, %v", r, err)
	}
	r, err = readBody(t, openai.RouteEmbeddings, `{"model":"m","input":"abcdef","encoding_format":"base64","truncate_prompt_tokens":2}`, &fakeModel{context: 6}, ReadOptions{})
	if err != nil || !r.Form.Base64 || !reflect.DeepEqual(r.Prompts, [][]uint32{{'a', 'b'}}) {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = readBody(t, openai.RouteEmbeddings, `{"model":"m","input":"abcdefg"}`, &fakeModel{context: 6}, ReadOptions{})
	if !errors.As(err, &e) || e.Code != CodeContextLength {
		t.Errorf("too long: %v", err)
	}
}

// The model's choices stand where the client makes none.
func TestReadTakesTheModelsDefaults(t *testing.T) {
	ptr := func(v float64) *float64 { return &v }
	whole := func(v int64) *int64 { return &v }
	m := &fakeModel{context: 100, sampling: textmodel.Sampling{
		Temperature: ptr(0.6), TopP: ptr(0.95), MinP: ptr(0.05), RepetitionPenalty: ptr(1.1), TopK: whole(20), MaxTokens: whole(9),
	}}
	s := func(body string, o ReadOptions) Sampling {
		t.Helper()
		r, err := readBody(t, openai.RouteChatCompletions, body, m, o)
		if err != nil {
			t.Fatal(err)
		}
		return r.Sampling
	}
	if got := s(`{`+hi+`}`, ReadOptions{}); got.Temperature != 0.6 || got.TopP != 0.95 || got.MinP != 0.05 || got.RepetitionPenalty != 1.1 || got.TopK != 20 || got.MaxTokens != 9 {
		t.Errorf("%+v", got)
	}
	if got := s(`{`+hi+`,"temperature":0,"top_k":0,"top_p":1,"max_tokens":50,"min_p":null}`, ReadOptions{}); got.Temperature != 0 || got.TopP != 1 || got.MinP != 0.05 || got.TopK != 0 || got.MaxTokens != 50 {
		t.Errorf("%+v", got)
	}
	if got := s(`{`+hi+`}`, ReadOptions{Sampling: &textmodel.Sampling{TopP: ptr(0.5)}}); got.Temperature != 1 || got.TopP != 0.5 || got.MaxTokens != 100 {
		t.Errorf("%+v", got)
	}
}

func TestReadLimitsOutputByTheContext(t *testing.T) {
	f := func(route openai.Route, body string, o ReadOptions, want ...uint32) {
		t.Helper()
		r, err := readBody(t, route, body, &fakeModel{context: 20}, o)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		for i, w := range want {
			if got := r.MaxTokens(i); got != w {
				t.Errorf("%s: at most %d tokens for prompt %d, want %d", body, got, i, w)
			}
		}
	}
	f(openai.RouteChatCompletions, `{`+hi+`}`, ReadOptions{}, 18)
	f(openai.RouteChatCompletions, `{`+hi+`,"max_tokens":null}`, ReadOptions{Context: 10}, 8)
	f(openai.RouteChatCompletions, `{`+hi+`}`, ReadOptions{Context: 1000}, 18)
	f(openai.RouteChatCompletions, `{`+hi+`,"max_tokens":18}`, ReadOptions{}, 18)
	f(openai.RouteCompletions, `{"prompt":["a","abcdefgh"]}`, ReadOptions{}, 16, 12)
	f(openai.RouteCompletions, `{"prompt":"a","max_tokens":3}`, ReadOptions{}, 3)
}

func TestReadRefuses(t *testing.T) {
	const chat, completions = openai.RouteChatCompletions, openai.RouteCompletions
	m := &fakeModel{context: 20}
	f := func(route openai.Route, fields, code, param string, words ...string) {
		t.Helper()
		body := `{"model":"m",` + hi + `,` + fields + `}`
		if route == completions {
			body = `{"model":"m","prompt":"Hi",` + fields + `}`
			if strings.HasPrefix(fields, `"prompt"`) {
				body = `{"model":"m",` + fields + `}`
			}
		}
		r, err := readBody(t, route, body, m, ReadOptions{})
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Code != code || e.Param != param {
			t.Errorf("%s: %+v, %#v", body, r, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(e.Message, w) {
				t.Errorf("%s: %q does not say %q", body, e.Message, w)
			}
		}
	}
	const invalid = "invalid_request"
	for _, route := range []openai.Route{chat, completions} {
		f(route, `"temperature":2.1`, invalid, "temperature", "2.1", "between 0 and 2")
		f(route, `"temperature":-0.1`, invalid, "temperature")
		f(route, `"temperature":"hot"`, invalid, "temperature", "a string")
		f(route, `"temperature":"NaN"`, invalid, "temperature")
		f(route, `"temperature":"0x1"`, invalid, "temperature")
		f(route, `"temperature":1e999`, invalid, "temperature")
		f(route, `"temperature":true`, invalid, "temperature")
		f(route, `"ignore_eos":2`, invalid, "ignore_eos")
		f(route, `"top_p":0`, invalid, "top_p")
		f(route, `"top_p":1.5`, invalid, "top_p")
		f(route, `"min_p":-1`, invalid, "min_p")
		f(route, `"top_k":-2`, invalid, "top_k")
		f(route, `"top_k":1.5`, invalid, "top_k")
		f(route, `"frequency_penalty":3`, invalid, "frequency_penalty")
		f(route, `"presence_penalty":-3`, invalid, "presence_penalty")
		f(route, `"repetition_penalty":0`, invalid, "repetition_penalty")
		f(route, `"max_tokens":0`, invalid, "max_tokens", "at least 1")
		f(route, `"max_tokens":-1`, invalid, "max_tokens")
		f(route, `"max_tokens":"many"`, invalid, "max_tokens")
		f(route, `"min_tokens":4,"max_tokens":3`, invalid, "min_tokens")
		f(route, `"min_tokens":-1`, invalid, "min_tokens")
		f(route, `"n":2,"temperature":0`, invalid, "n")
		f(route, `"seed":1e30`, invalid, "seed")
		f(route, `"stop":""`, invalid, "stop")
		f(route, `"stop":["a",1]`, invalid, "stop")
		f(route, `"stop":{}`, invalid, "stop")
		f(route, `"stop":[`+strings.Repeat(`"a",`, maxStops)+`"a"]`, invalid, "stop")
		f(route, `"stop":"`+strings.Repeat("a", maxStopBytes+1)+`"`, invalid, "stop")
		f(route, `"stop_token_ids":[-1]`, invalid, "stop_token_ids")
		f(route, `"stop_token_ids":[300]`, invalid, "stop_token_ids")
		f(route, `"stop_token_ids":7`, invalid, "stop_token_ids")
		f(route, `"stop_token_ids":[`+strings.Repeat(`1,`, maxStopIDs)+`1]`, invalid, "stop_token_ids")
		f(route, `"logit_bias":{"x":1}`, invalid, "logit_bias")
		f(route, `"logit_bias":{"1":"x"}`, invalid, "logit_bias")
		f(route, `"logit_bias":{"300":1}`, invalid, "logit_bias")
		f(route, `"logit_bias":[]`, invalid, "logit_bias")
		f(route, `"ignore_eos":"perhaps"`, invalid, "ignore_eos")
		f(route, `"prompt_logprobs":-1`, invalid, "prompt_logprobs")
		f(route, `"prompt_logprobs":1,"stream":true`, invalid, "prompt_logprobs")
		f(route, `"prompt_logprobs":100000`, invalid, "prompt_logprobs")
		f(route, `"stream_options":{"include_usage":true}`, invalid, "stream_options")
		f(route, `"response_format":{"type":"xml"}`, invalid, "response_format")
		f(route, `"response_format":"json_object"`, invalid, "response_format")
		f(route, `"response_format":{"type":"json_schema"}`, invalid, "response_format")
		f(route, `"response_format":{"type":"json_schema","json_schema":{"name":"x"}}`, invalid, "response_format")
		f(route, `"structured_outputs":{}`, invalid, "structured_outputs")
		f(route, `"structured_outputs":[]`, invalid, "structured_outputs")
		f(route, `"structured_outputs":{"regex":"a","grammar":"b"}`, invalid, "structured_outputs")
		f(route, `"structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"}`, invalid, "structured_outputs")
		f(route, `"structured_outputs":{"regex":1}`, invalid, "structured_outputs.regex")
		f(route, `"structured_outputs":{"choice":[]}`, invalid, "structured_outputs.choice")
		f(route, `"guided_regex":""`, invalid, "structured_outputs.regex")
		f(route, `"truncate_prompt_tokens":21`, invalid, "truncate_prompt_tokens")
		f(route, `"truncate_prompt_tokens":-2`, invalid, "truncate_prompt_tokens")
		f(route, `"truncation_side":"up"`, invalid, "truncation_side")
		f(route, `"kv_transfer_params":{"do_remote_prefill":true}`, invalid, "kv_transfer_params")
		f(route, `"use_beam_search":true`, CodeUnsupported, "use_beam_search", "gRPC")
		f(route, `"best_of":3`, CodeUnsupported, "best_of")
		f(route, `"allowed_token_ids":[1]`, CodeUnsupported, "allowed_token_ids")
		f(route, `"bad_words":["x"]`, CodeUnsupported, "bad_words")
		f(route, `"cache_salt":"x"`, CodeUnsupported, "cache_salt")
		f(route, `"thinking_token_budget":5`, CodeUnsupported, "thinking_token_budget")
	}
	f(chat, `"max_completion_tokens":0`, invalid, "max_completion_tokens")
	f(chat, `"max_tokens":19`, CodeContextLength, "messages", "maximum context length is 20 tokens", "requested 21 tokens", "2 in the messages, 19 in the completion", "length of the messages or")
	f(chat, `"top_logprobs":2`, invalid, "top_logprobs")
	f(chat, `"logprobs":true,"top_logprobs":-1`, invalid, "top_logprobs")
	f(chat, `"logprobs":2`, invalid, "logprobs")
	f(chat, `"tools":[]`, invalid, "tools")
	f(chat, `"tools":[{"type":"function","function":{"name":"f"}}]`, CodeUnsupported, "tools", "tool_choice")
	f(chat, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`, CodeUnsupported, "tools")
	f(chat, `"tool_choice":"required"`, invalid, "tool_choice")
	f(chat, `"chat_template":"x"`, invalid, "chat_template")
	f(chat, `"continue_final_message":true,"add_generation_prompt":true`, invalid, "continue_final_message")
	f(completions, `"max_tokens":19`, CodeContextLength, "prompt", "20", "21")
	f(completions, `"prompt":"123456789012345678901"`, CodeContextLength, "prompt", "20", "21")
	f(completions, `"prompt":"12345678901234567890"`, CodeContextLength, "prompt")
	f(completions, `"prompt":""`, invalid, "prompt")
	f(completions, `"prompt":["a",""]`, invalid, "prompt")
	f(completions, `"prompt":null`, invalid, "prompt")
	f(completions, `"prompt":"a\ud83e"`, invalid, "prompt", "surrogate")
	f(completions, `"prompt":["a","\udd23\ud83e b"]`, invalid, "prompt", "surrogate")
	f(completions, `"prompt":[-1]`, invalid, "prompt", "token id")
	f(completions, `"prompt":[1.5]`, invalid, "prompt")
	f(completions, `"prompt":[264]`, invalid, "prompt", "264")
	f(completions, `"prompt":[99999999999]`, invalid, "prompt")
	f(completions, `"prompt":"a","suffix":"b"`, CodeUnsupported, "suffix")
	f(completions, `"prompt":"a","logprobs":-1`, invalid, "logprobs")
	f(completions, `"prompt":"a","max_tokens":0,"echo":false`, invalid, "max_tokens")
	for body, param := range map[string]string{`{}`: "messages", `{"messages":[]}`: "messages", `{"messages":"x"}`: "messages", `{"messages":null}`: "messages"} {
		_, err := readBody(t, chat, body, m, ReadOptions{})
		var e *openai.Error
		if !errors.As(err, &e) || e.Param != param {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Fields of null, and those without effect, are as if they were not there.
func TestReadPassesWhatSaysNothing(t *testing.T) {
	var names []string
	for _, n := range strings.Fields(`temperature top_p min_p top_k frequency_penalty presence_penalty repetition_penalty max_tokens max_completion_tokens
		min_tokens seed best_of logprobs top_logprobs prompt_logprobs truncate_prompt_tokens truncation_side include_stop_str_in_output ignore_eos echo
		return_token_ids stop stop_token_ids logit_bias stream_options tools tool_choice response_format structured_outputs guided_json suffix
		allowed_token_ids bad_words cache_salt vllm_xargs chat_template kv_transfer_params prompt_embeds use_beam_search skip_special_tokens`) {
		names = append(names, fmt.Sprintf("%q:null", n))
	}
	f := func(body string) {
		t.Helper()
		if _, err := readBody(t, openai.RouteChatCompletions, body, &fakeModel{context: 100, ids: []uint32{1}}, ReadOptions{}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	f(`{` + hi + `,` + strings.Join(names, ",") + `}`)
	f(`{` + hi + `,"use_beam_search":false,"bad_words":[],"vllm_xargs":{},"logprob_token_ids":[],"thinking_token_budget":-1,"best_of":1,"stop":[],"stop_token_ids":[],
		"seed":-1,"top_k":-1,"response_format":{"type":"text"},"tools":[{}],"tool_choice":"none","user":"u","metadata":{},"logit_bias":{}}`)
}

func TestReadStructuredOutput(t *testing.T) {
	f := func(fields string, want Constraint) {
		t.Helper()
		r, err := readBody(t, openai.RouteChatCompletions, `{`+hi+`,`+fields+`}`, &fakeModel{context: 100}, ReadOptions{})
		if err != nil || !reflect.DeepEqual(r.Sampling.Constraint, want) {
			t.Errorf("%s: %+v, %v", fields, r, err)
		}
	}
	f(`"response_format":{"type":"json_object"}`, Constraint{Kind: JSONObject})
	f(`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`, Constraint{Kind: JSONSchema, Text: `{"type":"object"}`})
	f(`"response_format":{"type":"structural_tag","format":{"type":"x"}}`, Constraint{Kind: StructuralTag, Text: `{"type":"structural_tag","format":{"type":"x"}}`})
	f(`"structured_outputs":{"json":"{\"a\":1}"}`, Constraint{Kind: JSONSchema, Text: `{"a":1}`})
	f(`"structured_outputs":{"json":{"a":1},"whitespace_pattern":null}`, Constraint{Kind: JSONSchema, Text: `{"a":1}`})
	f(`"structured_outputs":{"regex":"a\\d"}`, Constraint{Kind: Regex, Text: `a\d`})
	f(`"structured_outputs":{"grammar":"root ::= x"}`, Constraint{Kind: Grammar, Text: `root ::= x`})
	f(`"structured_outputs":{"choice":["a","b"]}`, Constraint{Kind: Choice, Choices: []string{"a", "b"}})
	f(`"structured_outputs":{"json_object":true}`, Constraint{Kind: JSONObject})
	f(`"guided_choice":["a"]`, Constraint{Kind: Choice, Choices: []string{"a"}})
}

// The completions API shows one alternative more than is asked for where the token is none of
// them; the contract counts the token.
func TestReadLogprobs(t *testing.T) {
	f := func(route openai.Route, fields string, sampling, prompt, form, formPrompt int32) {
		t.Helper()
		body := `{` + hi + `,` + fields + `}`
		if route == openai.RouteCompletions {
			body = `{"prompt":"Hi",` + fields + `}`
		}
		r, err := readBody(t, route, body, &fakeModel{context: 100}, ReadOptions{})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if s, g := r.Sampling, r.Form; s.Logprobs != sampling || s.PromptLogprobs != prompt || g.Logprobs != form || g.PromptLogprobs != formPrompt {
			t.Errorf("%s: the engine is asked for %d and %d, the client sees %d and %d", body, s.Logprobs, s.PromptLogprobs, g.Logprobs, g.PromptLogprobs)
		}
	}
	const chat, completions = openai.RouteChatCompletions, openai.RouteCompletions
	f(chat, `"x":1`, -1, -1, -1, -1)
	f(chat, `"logprobs":true`, 0, -1, 0, -1)
	f(chat, `"logprobs":true,"top_logprobs":20`, 20, -1, 20, -1)
	f(chat, `"prompt_logprobs":0`, -1, 0, -1, 0)
	f(chat, `"prompt_logprobs":3`, -1, 4, -1, 3)
	f(chat, `"logprobs":true,"top_logprobs":2,"echo":true`, 2, 3, 2, 2)
	f(completions, `"logprobs":0`, 0, -1, 0, -1)
	f(completions, `"logprobs":3`, 4, -1, 3, -1)
	f(completions, `"logprobs":20`, 20, -1, 20, -1)
	f(completions, `"logprobs":3,"echo":true`, 4, 4, 3, 3)
	f(completions, `"echo":true`, -1, -1, -1, -1)
}

func TestReadEcho(t *testing.T) {
	f := func(route openai.Route, body string, want ...string) {
		t.Helper()
		r, err := readBody(t, route, body, &fakeModel{context: 100}, ReadOptions{})
		if err != nil || !reflect.DeepEqual(r.Form.Echo, want) {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
	}
	f(openai.RouteCompletions, `{"prompt":["a\n","b"],"echo":true}`, "a\n", "b")
	f(openai.RouteCompletions, `{"prompt":[256,259],"echo":true}`, "Hello<|end|>")
	f(openai.RouteCompletions, `{"prompt":"a","echo":true,"return_token_ids":true}`, "")
	f(openai.RouteChatCompletions, `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"So"}],"echo":true,"add_generation_prompt":false,"continue_final_message":true}`, "So")
	f(openai.RouteChatCompletions, `{`+hi+`,"echo":true}`)

	r, err := readBody(t, openai.RouteCompletions, `{"prompt":"a","echo":true,"max_tokens":0}`, &fakeModel{context: 100}, ReadOptions{})
	if err != nil || !r.Form.OnlyEcho || r.Sampling.MaxTokens != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = readBody(t, openai.RouteChatCompletions, `{`+hi+`,"add_generation_prompt":false}`, &fakeModel{context: 100}, ReadOptions{})
	if err != nil || r.Form.Role != "user" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReadTruncatesPrompts(t *testing.T) {
	f := func(fields, want string) {
		t.Helper()
		r, err := readBody(t, openai.RouteCompletions, `{"prompt":"abcdef","max_tokens":1,`+fields+`}`, &fakeModel{context: 5}, ReadOptions{})
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			return
		}
		if got := string(testTokenizer.Decode(nil, r.Prompts[0], tokenizer.DecodeOptions{})); got != want {
			t.Errorf("%s: %s, want %s", fields, got, want)
		}
	}
	f(`"truncate_prompt_tokens":2`, "ef")
	f(`"truncate_prompt_tokens":2,"truncation_side":"right"`, "ab")
	f(`"truncate_prompt_tokens":-1`, "cdef")
}

func TestReadTakesAnyLargeTopK(t *testing.T) {
	r, err := readBody(t, openai.RouteCompletions, `{"prompt":"Hi","top_k":1000000000000}`, &fakeModel{context: 100}, ReadOptions{})
	if err != nil || r.Sampling.TopK != math.MaxInt32 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Which parts of a content are media is for the model to say: one that has no "text" may be text.
func TestReadLeavesPartsToTheModel(t *testing.T) {
	body := `{"messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"Hi"}]}`
	if _, err := readBody(t, openai.RouteChatCompletions, body, &fakeModel{context: 100, ids: []uint32{1}}, ReadOptions{}); err != nil {
		t.Error(err)
	}
}

func TestReadRefusesChatsThatCannotBeRead(t *testing.T) {
	think := textmodel.Formats{ThinkOpen: "<think>", ThinkClose: "</think>"}
	ids := func(s string) (ids []uint32) {
		for _, c := range []byte(s) {
			ids = append(ids, uint32(c))
		}
		return ids
	}
	f := func(name string, m *fakeModel, fields, code string) {
		t.Helper()
		m.context = 1000
		_, err := readBody(t, openai.RouteChatCompletions, `{`+hi+fields+`}`, m, ReadOptions{})
		var e *openai.Error
		got := ""
		if errors.As(err, &e) && e.Status == 400 {
			got = e.Code
		}
		if got != code || (err != nil) != (code != "") {
			t.Errorf("%s: %v, want %q", name, err, code)
		}
	}
	f("a refusal", &fakeModel{refusal: &textmodel.Refusal{Reason: "no template"}}, "", CodeUnsupported)
	f("one at rendering", &fakeModel{render: &textmodel.Refusal{Reason: "no template"}}, "", CodeUnsupported)
	f("what can't be rendered", &fakeModel{render: &textmodel.RequestError{Message: "roles must alternate", Param: "messages"}}, "", "invalid_request")
	f("media", &fakeModel{render: &textmodel.RequestError{Message: "an image", Media: true}}, "", CodeUnsupported)
	f("channels", &fakeModel{formats: textmodel.Formats{Channels: true}}, "", CodeUnsupported)
	f("reasoning that the template begins", &fakeModel{formats: think, ids: ids("<|assistant|><think>\n")}, "", CodeUnsupported)
	f("and that the client turned off in vain", &fakeModel{formats: think, ids: ids("<think>")}, `,"reasoning_effort":"none"`, CodeUnsupported)
	f("that has ended", &fakeModel{formats: think, ids: ids("<think>\n\n</think>\n\n")}, "", "")
	f("that is not begun", &fakeModel{formats: think, ids: ids("<|assistant|>")}, "", "")
	think.ThinkSwitch = true
	f("that is on unless it is turned off", &fakeModel{formats: think, ids: ids("<|assistant|>")}, "", CodeUnsupported)
	open := `,"continue_final_message":true,"add_generation_prompt":false`
	long := strings.Repeat("so ", 60)
	f("that a message ended which is continued", &fakeModel{formats: think, ids: ids("<|assistant|><think>\n\n</think>\n\n" + long)}, open, "")
	f("that a message began which is continued", &fakeModel{formats: think, ids: ids("<|assistant|><think>\n" + long)}, open, CodeUnsupported)
	f("and that is turned off too late", &fakeModel{formats: think, ids: ids("<|assistant|><think>\n" + long)}, open+`,"reasoning_effort":"none"`, CodeUnsupported)
	f("turned off", &fakeModel{formats: think, ids: ids("<|assistant|>")}, `,"chat_template_kwargs":{"enable_thinking":false}`, "")
	f("ids that are none", &fakeModel{ids: []uint32{9999}}, "", "invalid_request")
}

func TestReadWaitsInTheQueue(t *testing.T) {
	full := errors.New("full")
	var sizes []int
	o := ReadOptions{Queue: func(ctx context.Context, bytes int, work func(context.Context) error) error {
		if sizes = append(sizes, bytes); bytes > 1000 {
			return full
		}
		return work(ctx)
	}}
	if _, err := readBody(t, openai.RouteCompletions, `{"prompt":["abc","de"]}`, &fakeModel{context: 100}, o); err != nil {
		t.Error(err)
	}
	if _, err := readBody(t, openai.RouteChatCompletions, `{`+hi+`}`, &fakeModel{context: 100}, o); err != nil {
		t.Error(err)
	}
	if _, err := readBody(t, openai.RouteCompletions, `{"prompt":"`+strings.Repeat("a", 1001)+`"}`, &fakeModel{context: 100}, o); !errors.Is(err, full) {
		t.Error(err)
	}
	if _, err := readBody(t, openai.RouteCompletions, `{"prompt":[1,2]}`, &fakeModel{context: 100}, o); err != nil { // ids wait for nothing
		t.Error(err)
	}
	if want := []int{5, len(hi) + 2, 1001}; !reflect.DeepEqual(sizes, want) {
		t.Errorf("sizes %v, want %v", sizes, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := openai.Peek(openai.RouteCompletions, []byte(`{"prompt":"abc"}`), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(ctx, p, &fakeModel{context: 100}, ReadOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Nothing of the body is kept: bodies are used again.
func TestReadKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`{"model":"model","prompt":"prompt","echo":true,"stop":["stop"],"structured_outputs":{"regex":"regex"}}`)
	p, err := openai.Peek(openai.RouteCompletions, body, openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), p, &fakeModel{context: 100}, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	for i := range body {
		body[i] = 'x'
	}
	if r.Model != "model" || r.Form.Echo[0] != "prompt" || r.Sampling.Stop[0] != "stop" || r.Sampling.Constraint.Text != "regex" {
		t.Errorf("%+v", r)
	}
}

func TestSeedsOfSamplesDiffer(t *testing.T) {
	r, err := readBody(t, openai.RouteChatCompletions, `{`+hi+`,"n":2,"seed":4294967296}`, &fakeModel{context: 100}, ReadOptions{})
	if err != nil || *r.Seed(0) == *r.Seed(1) || *r.Seed(0) != *r.Sampling.Seed {
		t.Errorf("%+v, %v", r, err)
	}
	if r.Sampling.Seed = nil; r.Seed(1) != nil {
		t.Error("a seed where there is none")
	}
}

// Whatever the body says, it is read or refused with status 400.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{` + hi + `,"temperature":0.5,"stop":["a"],"logit_bias":{"1":2},"response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`,
		`{"prompt":["a","b"],"echo":true,"logprobs":3,"max_tokens":0,"truncate_prompt_tokens":-1}`,
		`{"prompt":[[1],[2,3]],"structured_outputs":{"choice":["a"]},"stream":true,"stream_options":{"continuous_usage_stats":true}}`,
		`{"input":[1,2],"encoding_format":"base64"}`,
		`{"prompt":"a","tools":[{}],"tool_choice":{"x":1},"seed":"5","top_k":"1e2","stop":null,"guided_json":"x"}`,
	} {
		f.Add([]byte(s))
	}
	routes := []openai.Route{openai.RouteChatCompletions, openai.RouteCompletions, openai.RouteEmbeddings}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, route := range routes {
			p, err := openai.Peek(route, b, openai.PeekOptions{MaxSamples: 16})
			if err != nil {
				continue
			}
			r, err := Read(t.Context(), p, &fakeModel{context: 64}, ReadOptions{})
			var e *openai.Error
			switch {
			case err != nil && (!errors.As(err, &e) || e.Status != 400):
				t.Errorf("%s: %v", b, err)
			case err == nil && route != openai.RouteEmbeddings:
				var a Answer
				a.Begin(r, "1", 7)
				for i := range r.Prompts {
					if n := len(r.Prompts[i]); n == 0 || n+int(r.MaxTokens(i)) > 64 {
						t.Errorf("%s: %d tokens and %d", b, n, r.MaxTokens(i))
					}
				}
			}
			p.Release()
		}
	})
}

// After a mismatch text is refused as well, so that only token ids are advised.
func TestRefusedChatsAreToldWhatIsServed(t *testing.T) {
	for want, why := range map[string]error{
		"as token ids to /v1/completions":         &textmodel.Refusal{Reason: "the self-check failed", Err: &textmodel.Mismatch{Probe: "x"}},
		"as text or token ids to /v1/completions": &textmodel.Refusal{Reason: "it has no chat template"},
	} {
		if e := refuseChats(why); !strings.Contains(e.Message, want) {
			t.Errorf("%v: %q", why, e.Message)
		}
	}
}
