package openai

import (
	"strings"
	"testing"
)

func TestHasToken(t *testing.T) {
	for _, c := range []struct {
		json string
		want bool
	}{
		{`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, false},
		{`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null}]}`, false},
		{`{"choices":[{"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2]}`, false},
		{`{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":3}}`, false},
		{`{"choices":[]}`, false}, {`{"choices":null}`, false}, {`{}`, false}, {``, false}, {`[]`, false}, {`null`, false}, {`{"choices":[{"delta":`, false},
		{`{"choices":[{"delta":{"content":"a"}}]}`, true},
		{`{"choices":[{"delta":{"content":""}},{"delta":{"content":" "}}]}`, true},
		{`{"choices":[{"delta":{"content":"","reasoning_content":"h"}}]}`, true},
		{`{"choices":[{"delta":{"reasoning":"h"}}]}`, true},
		{`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`, true},
		{`{"choices":[{"delta":{"tool_calls": [ ]}}]}`, false},
		{`{"choices":[{"delta":{"content":""},"logprobs":{"content":[{"token":"\ud83d"}]}}]}`, true},
		{`{"choices":[{"delta":{"content":""},"token_ids":[7]}]}`, true},
		{`{"choices":[{"text":"a","index":0}]}`, true}, {`{"choices":[{"text":"","index":0}]}`, false},
		{`{"text":"a","meta_info":{}}`, true}, {`{"text":"","meta_info":{}}`, false}, {`{"output_ids":[5],"meta_info":{}}`, true},
		{`[{"text":"","index":0},{"text":"b","index":1}]`, true}, {`[{"text":"a"}]`, true}, {`[{"text":""},{"output_ids":[]}]`, false},
		{`{"type":"message_start","message":{"content":[],"usage":{"input_tokens":3,"output_tokens":1}}}`, false},
		{`{"type":"ping"}`, false},
		{`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, false},
		{`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}`, true},
		{`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`, true},
		{`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}`, true},
		{`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`, true},
		{`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`, false},
		{`{"type":"response.created","response":{"output":[],"text":{"format":{}}}}`, false},
		{`{"type":"response.in_progress","response":{}}`, false},
		{`{"type":"response.output_item.added","item":{"type":"message","content":[]}}`, false},
		{`{"type":"response.output_item.added","item":{"type":"function_call","name":"f","arguments":""}}`, true},
		{`{"type":"response.output_text.delta","delta":"a"}`, true}, {`{"type":"response.output_text.delta","delta":""}`, false},
	} {
		if got := HasToken([]byte(c.json)); got != c.want {
			t.Errorf("%s: %t", c.json, got)
		}
		for i := range c.json {
			HasToken([]byte(c.json[:i])) // must not panic
		}
	}
}

// TestScannerCountsTokens: events that open and end a stream have no token.
func TestScannerCountsTokens(t *testing.T) {
	chat := `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}|` +
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}|{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}|` +
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}|{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}|[DONE]`
	messages := "event: message_start\ndata: {\"message\":{\"usage\":{\"output_tokens\":1}}}\n\nevent: ping\ndata: {}\n\n" +
		"event: content_block_start\ndata: {\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"delta\":{\"text\":\"a\"}}\n\nevent: content_block_delta\ndata: {\"delta\":{\"text\":\"b\"}}\n\n" +
		"event: content_block_stop\ndata: {}\n\nevent: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"}}\n\nevent: message_stop\ndata: {}\n\n"
	for name, stream := range map[string]string{
		"chat":     "data: " + strings.ReplaceAll(chat, "|", "\n\ndata: ") + "\n\n",
		"messages": messages,
	} {
		for how, e := range map[string]*EventScanner{"whole": scanWhole(stream), "bytewise": feedBytewise(stream)} {
			if e.TokenEvents != 2 {
				t.Errorf("%s %s: %d events with tokens, want 2", name, how, e.TokenEvents)
			}
		}
	}
	if e := scanWhole("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"error\":{\"message\":\"no\"}}\n\n"); e.TokenEvents != 0 {
		t.Errorf("%d events with tokens in a stream that had none", e.TokenEvents)
	}
}
