package openai

import (
	"strings"
	"testing"
)

func TestTextOfStreams(t *testing.T) {
	for _, tc := range []struct {
		name   string
		route  Route
		events []string
		want   string
	}{
		{"chat", RouteChatCompletions, []string{
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"a \"quoted\" \\ "}}]}`,
			`{"choices":[{"index":0,"delta":{"role":null, "content": "\u00e9\n","reasoning_content":null,"tool_calls":null}}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[],"usage":{"prompt_tokens":3}}`}, "a \"quoted\" \\ é\n"},
		{"a model that writes JSON", RouteChatCompletions, []string{
			`{"choices":[{"delta":{"content":"{\"content\":\"x\"}"}}]}`}, `{"content":"x"}`},
		{"reasoning", RouteChatCompletions, []string{
			`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`, `{"choices":[{"delta":{"content":"x"}}]}`}, ""},
		{"reasoning by its other name", RouteChatCompletions, []string{
			`{"choices":[{"delta":{"reasoning":"hm"}}]}`, `{"choices":[{"delta":{"content":"x"}}]}`}, ""},
		{"calls of tools after text", RouteChatCompletions, []string{
			`{"choices":[{"delta":{"content":"let me see"}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, `{"choices":[{"delta":{"content":"x"}}]}`}, "let me see"},
		{"completions", RouteCompletions, []string{`{"choices":[{"index":0,"text":"on","logprobs":null}]}`, `{"choices":[{"text":"ce"}]}`}, "once"},
		{"messages", RouteMessages, []string{
			`{"type":"message_start","message":{"content":[]}}`, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
			`{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"x"}}`}, "hi"},
		{"messages with thinking", RouteMessages, []string{
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}`}, ""},
		{"responses", RouteResponses, []string{
			`{"type":"response.created","response":{"instructions":"no"}}`,
			`{"type":"response.output_text.delta","item_id":"m","delta":"hi "}`, `{"type":"response.output_text.delta","delta":"you"}`,
			`{"type":"response.output_text.done","text":"hi you"}`}, "hi you"},
		{"responses with reasoning", RouteResponses, []string{
			`{"type":"response.reasoning_text.delta","delta":"hm"}`, `{"type":"response.output_text.delta","delta":"x"}`}, ""},
		{"malformed", RouteChatCompletions, []string{`{"choices":[{"delta":{"content":"cut`, `"content":`, `"content":"\`, ``}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a AnswerText
			a.Reset(tc.route, 1<<10)
			for _, e := range tc.events {
				a.Event([]byte(e))
			}
			if got := string(a.Text()); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestTextOfWholeAnswers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		route Route
		body  string
		want  string
	}{
		{"chat", RouteChatCompletions, `{"choices":[{"message":{"role":"assistant","reasoning_content":null,"content":"a\nb","tool_calls":[{"id":1}]}}]}`, "a\nb"},
		{"chat with reasoning", RouteChatCompletions, `{"choices":[{"message":{"content":"x","reasoning":"hm"}}]}`, ""},
		{"chat without content", RouteChatCompletions, `{"choices":[{"message":{"content":null}}]}`, ""},
		{"completions", RouteCompletions, `{"choices":[{"text":"once"},{"text":"twice"}]}`, "once"},
		{"native", RouteGenerate, `{"text":"once","meta_info":{}}`, "once"},
		{"native list", RouteGenerate, `[{"text":"once"}]`, ""},
		{"messages", RouteMessages, `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"tool_use","name":"ls"},{"type":"text","text":"c"}]}`, "ab"},
		{"messages with thinking", RouteMessages, `{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"}]}`, ""},
		{"responses", RouteResponses, `{"output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]},{"type":"function_call"}]}`, "hi"},
		{"responses with reasoning", RouteResponses, `{"output":[{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"hi"}]}]}`, ""},
		{"no JSON", RouteChatCompletions, `{"choices":[{"message":`, ""},
		{"other form", RouteChatCompletions, `{"choices":{}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a AnswerText
			a.Reset(tc.route, 1<<10)
			a.Whole([]byte(tc.body))
			if got := string(a.Text()); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestTextOfAnswersIsBounded shows that a long answer is cut, outside of an escape, and that
// what is left is its beginning.
func TestTextOfAnswersIsBounded(t *testing.T) {
	text := strings.Repeat("ab\U0001F600\n", 100)
	for max := range 300 {
		for _, form := range []string{string(AppendString(nil, text)), quoteASCII([]byte(text))} {
			var a AnswerText
			a.Reset(RouteChatCompletions, max)
			for range 2 {
				a.Event([]byte(`{"choices":[{"delta":{"content":` + form + `}}]}`))
			}
			got := string(a.Text())
			if len(got) > max+4 || !strings.HasPrefix(text, strings.TrimRight(got, "\xf0\x9f\x98\x80\uFFFD")) {
				t.Fatalf("at %d: %q", max, got)
			}
		}
	}
}

func FuzzAnswerText(f *testing.F) {
	f.Add(uint8(RouteChatCompletions), []byte(`{"choices":[{"delta":{"content":"\u00e9"}}]}`), 20)
	f.Add(uint8(RouteResponses), []byte(`{"output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}]}`), 1)
	f.Fuzz(func(t *testing.T, r uint8, data []byte, limit int) {
		if limit < 0 || limit > 1<<16 {
			return
		}
		var a AnswerText
		for range 2 {
			a.Reset(Route(r%uint8(NumRoutes)), limit)
			a.Event(data)
			a.Event(data)
			a.Whole(data)
			if len(a.Text()) > limit+16 {
				t.Fatalf("%d bytes of %d", len(a.Text()), limit)
			}
		}
	})
}

func BenchmarkAnswerTextEvent(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`)
	var a AnswerText
	a.Reset(RouteChatCompletions, 64<<10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%10000 == 0 {
			a.Reset(RouteChatCompletions, 64<<10)
		}
		a.Event(data)
	}
}
