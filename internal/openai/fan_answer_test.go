package openai

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func mergeAnswers(f Fan, answers ...string) (string, int, error) {
	list := make([][]byte, len(answers))
	for i, a := range answers {
		list[i] = []byte(a)
	}
	segs, n, err := f.Merge(list)
	return string(bytes.Join(segs, nil)), n, err
}

func TestFanMerge(t *testing.T) {
	for _, c := range []struct {
		name    string
		prompts int
		answers []string
		want    string
	}{
		{"chat", 1, []string{
			`{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x","tool_calls":[{"index":0}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4},"reasoning_tokens":1},"metadata":{"weight_version":"default"}}`,
			`{"id":"b","object":"chat.completion","created":2,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"y","tool_calls":null},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"total_tokens":11,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":5},"reasoning_tokens":2}}`},
			`{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x","tool_calls":[{"index":0}]},"finish_reason":"stop"},{"index":1,"message":{"role":"assistant","content":"y","tool_calls":null},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"total_tokens":14,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4},"reasoning_tokens":3},"metadata":{"weight_version":"default"}}`},
		{"batch, in any order", 2, []string{
			`{"choices":[{"text":"a0","index":0},{"text":"b0","index":1}]}`,
			`{"choices":[{"text":"b1", "index" : 1 },{"index":0,"text":"a1"}]}`,
			`{"choices":[{"index":0,"text":"a2"},{"index":1,"text":"b2"}]}`},
			`{"choices":[{"text":"a0","index":0},{"index":1,"text":"a1"},{"index":2,"text":"a2"},{"text":"b0","index":3},{"text":"b1", "index" : 4 },{"index":5,"text":"b2"}]}`},
		{"usage first, bytes kept", 1, []string{
			" { \"usage\" : {\"completion_tokens\": 1 , \"z\":1.50} ,\n\"choices\" : [ {\"index\":0,\"logprobs\":[-0.10,1e-05]} ] , \"u\":1e400 } ", `{"choices":[{"index":0}],"usage":{"completion_tokens":2}}`},
			" { \"usage\" : {\"completion_tokens\": 3 , \"z\":1.50} ,\n\"choices\" : [{\"index\":0,\"logprobs\":[-0.10,1e-05]},{\"index\":1}] , \"u\":1e400 } "},
		{"name with an escape", 1, []string{`{"ch\u006fices":[{"\u0069ndex":0}]}`, `{"choices":[{"index":0}]}`},
			`{"ch\u006fices":[{"\u0069ndex":0},{"index":1}]}`},
		{"details", 1, []string{
			`{"choices":[{"index":0}],"usage":{"total_tokens":9,"prompt_tokens":4,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":2,"audio_tokens":null,"new_kind":1,"own":7}}}`,
			`{"choices":[{"index":0}],"usage":{"completion_tokens_details":{"new_kind":10,"reasoning_tokens":3},"prompt_tokens":4,"completion_tokens":6}}`},
			`{"choices":[{"index":0},{"index":1}],"usage":{"total_tokens":15,"prompt_tokens":4,"completion_tokens":11,"completion_tokens_details":{"reasoning_tokens":5,"audio_tokens":null,"new_kind":11,"own":7}}}`},
		{"one copy without usage", 1, []string{
			`{"choices":[{"index":0}],"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}}`, `{"choices":[{"index":0}],"usage":null}`, `{"choices":[{"index":0}]}`},
			`{"choices":[{"index":0},{"index":1},{"index":2}],"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}}`},
		{"no usage in the first", 1, []string{
			`{"choices":[{"index":0}],"usage":null}`, `{"choices":[{"index":0}],"usage":{"completion_tokens":1}}`},
			`{"choices":[{"index":0},{"index":1}],"usage":null}`},
		{"exact", 1, []string{
			`{"choices":[{"index":0}],"usage":{"prompt_tokens":1,"total_tokens":0,"completion_tokens":9007199254740993}}`, `{"choices":[{"index":0}],"usage":{"completion_tokens":9007199254740994}}`},
			`{"choices":[{"index":0},{"index":1}],"usage":{"prompt_tokens":1,"total_tokens":18014398509481988,"completion_tokens":18014398509481987}}`},
		{"counts that are none", 1, []string{
			`{"choices":[{"index":0}],"usage":{"prompt_tokens":null,"total_tokens":1,"completion_tokens":-1,"reasoning_tokens":1.0}}`, `{"choices":[{"index":0}],"usage":{"completion_tokens":2,"reasoning_tokens":3}}`},
			`{"choices":[{"index":0},{"index":1}],"usage":{"prompt_tokens":null,"total_tokens":1,"completion_tokens":-1,"reasoning_tokens":1.0}}`},
		{"beyond 64 bits", 1, []string{
			`{"choices":[{"index":0}],"usage":{"completion_tokens":9223372036854775807}}`, `{"choices":[{"index":0}],"usage":{"completion_tokens":9223372036854775807}}`},
			`{"choices":[{"index":0},{"index":1}],"usage":{"completion_tokens":9223372036854775807}}`},
	} {
		f := Fan{Copies: len(c.answers), Prompts: c.prompts}
		got, n, err := mergeAnswers(f, c.answers...)
		if err != nil || got != c.want || n != len(got) {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
		}
	}
}

func TestFanMergeRefuses(t *testing.T) {
	good := `{"choices":[{"index":0}]}`
	for _, c := range []struct{ name, bad, reason string }{
		{"empty", ``, "not a JSON object"},
		{"list", `[]`, "not a JSON object"},
		{"stream", "data: {}\n\n", "not a JSON object"},
		{"cut", `{"choices":[{"index":0}`, "not valid JSON"},
		{"cut inside", `{"choices":[{"index":0,"text":"a`, "not valid JSON"},
		{"more", good + `{}`, "more data"},
		{"none", `{"id":"x"}`, "no choices"},
		{"null", `{"choices":null}`, "no choices"},
		{"too few", `{"choices":[]}`, "0 choices instead of 1"},
		{"too many", `{"choices":[{"index":0},{"index":1}]}`, "no index below 1"},
		{"one twice", `{"choices":[{"index":0},{"index":0}]}`, "two choices"},
		{"choices twice", `{"choices":[{"index":0}],"choices":[]}`, "choices twice"},
		{"choices null and a list", `{"choices":null,"choices":[{"index":0}]}`, "choices twice"},
		{"no index", `{"choices":[{}]}`, "no index"},
		{"index twice", `{"choices":[{"index":0,"index":0}]}`, "no index"},
		{"index in text", `{"choices":[{"index":"0"}]}`, "no index"},
		{"negative", `{"choices":[{"index":-1}]}`, "no index"},
		{"huge", `{"choices":[{"index":9223372036854775807}]}`, "no index"},
		{"no object", `{"choices":[0]}`, "no index"},
		{"deep", `{"x":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, "nested deeper"},
	} {
		_, _, err := mergeAnswers(Fan{Copies: 2, Prompts: 1}, good, c.bad)
		var e *FanError
		if !errors.As(err, &e) || e.Copy != 1 || e.FromEngine || !strings.Contains(e.Reason, c.reason) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	_, _, err := mergeAnswers(Fan{Copies: 2, Prompts: 1}, good, `{"error":{"message":"no room","code":503}}`)
	var e *FanError
	if !errors.As(err, &e) || e.Copy != 1 || !e.FromEngine || e.Status != 503 || e.Message != "no room" || strings.Contains(e.Error(), "no room") {
		t.Errorf("error object: %v", err)
	}
	if _, _, err := mergeAnswers(Fan{Copies: 2, Prompts: 1}, good); err == nil {
		t.Error("took one answer of two")
	}
}

// The answer has the logprob fields that the worker sends.
func TestMergeKeepsLogprobs(t *testing.T) {
	lp := func(i string) string {
		return `{"index":` + i + `,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.10],"top_logprobs":[{"a":-1e-05}],"text_offset":[0],"made_up":{"index":0}},"hidden_states":null}`
	}
	got, _, err := mergeAnswers(Fan{Copies: 2, Prompts: 1}, `{"choices":[`+lp("0")+`]}`, `{"choices":[`+lp("0")+`]}`)
	if want := `{"choices":[` + lp("0") + `,` + lp("1") + `]}`; err != nil || got != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}
