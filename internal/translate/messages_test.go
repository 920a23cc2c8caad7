package translate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

const messagesHead = `{"model":"m","max_tokens":5,"messages":`

func TestMessagesRequest(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"least", messagesHead + `[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5}`},
		{"numbers and strings keep their spelling",
			`{"temperature":0.10,"top_p":1.0e0,"top_k":40,"model":"\u006d","max_tokens":9007199254740993,"stop_sequences":["\u0041"],"messages":[{"role":"user","content":"\ud83d\ude00"}],"seed":9007199254740993}`,
			`{"model":"\u006d","messages":[{"role":"user","content":"\ud83d\ude00"}],"max_tokens":9007199254740993,"temperature":0.10,"top_p":1.0e0,"top_k":40,"stop":["\u0041"],"seed":9007199254740993}`},
		{"stream asks for usage", `{"model":"m","max_tokens":5,"stream":true,"messages":[]}`,
			`{"model":"m","messages":[],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{"no stream", `{"model":"m","max_tokens":5,"stream":false,"messages":[]}`,
			`{"model":"m","messages":[],"max_tokens":5,"stream":false}`},
		{"system text", `{"model":"m","max_tokens":5,"system":"be \"kind\"","messages":[]}`,
			`{"model":"m","messages":[{"role":"system","content":"be \"kind\""}],"max_tokens":5}`},
		{"system blocks", `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"messages":[]}`,
			`{"model":"m","messages":[{"role":"system","content":"a\nb"}],"max_tokens":5}`},
		{"system of nothing", `{"model":"m","max_tokens":5,"system":"","messages":[]}`, `{"model":"m","messages":[],"max_tokens":5}`},
		{"one text block is a string", messagesHead + `[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5}`},
		{"images", messagesHead + `[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}},{"type":"image","source":{"type":"url","url":"https://x/y"}},{"type":"text","text":"what?"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}},{"type":"image_url","image_url":{"url":"https://x/y"}},{"type":"text","text":"what?"}]}],"max_tokens":5}`},
		{"a tool's turn", messagesHead + `[
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"let me"},{"type":"tool_use","id":"c1","name":"f","input":{"a": 1.0}},{"type":"tool_use","id":"c2","name":"g","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"ok"},{"type":"tool_result","tool_use_id":"c2","is_error":true,"content":[{"type":"text","text":"bad"},{"type":"image","source":{"type":"url","url":"u"}}]},{"type":"tool_result","tool_use_id":"c3"},{"type":"text","text":"go on"}]}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":"let me","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1.0}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","tool_call_id":"c1","content":"ok"},{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"bad"},{"type":"image_url","image_url":{"url":"u"}}]},{"role":"tool","tool_call_id":"c3","content":""},{"role":"user","content":"go on"}],"max_tokens":5}`},
		{"what was said before a result stays before it", messagesHead + `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"c","content":"r"},{"type":"text","text":"b"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"tool","tool_call_id":"c","content":"r"},{"role":"user","content":"b"}],"max_tokens":5}`},
		{"a system turn and two thoughts", messagesHead + `[{"role":"system","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"a"},{"type":"thinking","thinking":""},{"type":"thinking","thinking":"b"},{"type":"text","text":"x"}]}]}`,
			`{"model":"m","messages":[{"role":"system","content":"s\nt"},{"role":"assistant","content":"x","reasoning_content":"a\nb"}],"max_tokens":5}`},
		{"a tool found by search", messagesHead + `[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"f"}]}]}]}`,
			`{"model":"m","messages":[{"role":"tool","tool_call_id":"c","content":[{"type":"tool_reference","name":"f"}]}],"max_tokens":5}`},
		{"calls alone have no content", messagesHead + `[{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f"}]}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}],"max_tokens":5}`},
		{"documents that are text", messagesHead + `[{"role":"user","content":[{"type":"document","title":"T","context":"C","source":{"type":"text","media_type":"text/plain","data":"a\nb"},"citations":{"enabled":true}},{"type":"document","title":null,"source":{"type":"content","content":"c"}},{"type":"document","title":"U","source":{"type":"content","content":[{"type":"text","text":"d"},{"type":"image","source":{"type":"url","url":"u"}}]}}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"T\nC\na\nb"},{"type":"text","text":"c"},{"type":"text","text":"U"},{"type":"text","text":"d"},{"type":"image_url","image_url":{"url":"u"}}]}],"max_tokens":5}`},
		{"a client's own search", messagesHead + `[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"search_result","source":"http://s","title":"T","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}]}]}`,
			`{"model":"m","messages":[{"role":"tool","tool_call_id":"c","content":"T\nhttp://s\nx\ny"}],"max_tokens":5}`},
		{"an error without a word", messagesHead + `[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","is_error":true},{"type":"tool_result","tool_use_id":"d","is_error":true,"content":[]},{"type":"tool_result","tool_use_id":"e","is_error":false,"content":""}]}]}`,
			`{"model":"m","messages":[{"role":"tool","tool_call_id":"c","content":"Error"},{"role":"tool","tool_call_id":"d","content":"Error"},{"role":"tool","tool_call_id":"e","content":""}],"max_tokens":5}`},
		{"thinking that nobody can read", messagesHead + `[{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}]}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":"a"}],"max_tokens":5}`},
		{"examples of input", `{"model":"m","max_tokens":5,"messages":[],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"input_examples":[{"a":"\u00e9"},{"a": 2}]},{"name":"g","input_schema":{"type":"object"},"input_examples":[],"allowed_callers":["direct","code_execution_20250825"]}]}`,
			`{"model":"m","messages":[],"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","description":"d\n\nExamples of input:\n{\"a\":\"\\u00e9\"}\n{\"a\": 2}","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g","description":"","parameters":{"type":"object"}}}]}`},
		{"an empty turn is still one", messagesHead + `[{"role":"assistant","content":[]}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":""}],"max_tokens":5}`},
		{"tools", `{"model":"m","max_tokens":5,"messages":[],"tools":[{"name":"f","input_schema":{"type":"object","properties":{"n":{"maximum":1e400}}},"description":"d","strict":true,"cache_control":{"type":"ephemeral"}},{"type":"custom","name":"g","input_schema":{"properties":{} } },{"name":"h","input_schema":{ },"defer_loading":true}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}`,
			`{"model":"m","messages":[],"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"n":{"maximum":1e400}}},"strict":true}},{"type":"function","function":{"name":"g","description":"","parameters":{"properties":{},"type":"object"}}},{"type":"function","defer_loading":true,"function":{"name":"h","description":"","parameters":{"type":"object"}}}],"tool_choice":"auto","parallel_tool_calls":false}`},
		{"tool choice any", `{"model":"m","max_tokens":5,"messages":[],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}}`,
			`{"model":"m","messages":[],"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","description":"","parameters":{"type":"object"}}}],"tool_choice":"required"}`},
		{"tool choice by name", `{"model":"m","max_tokens":5,"messages":[],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"tool","name":"f"}}`,
			`{"model":"m","messages":[],"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","description":"","parameters":{"type":"object"}}}],"tool_choice":{"type":"function","function":{"name":"f"}}}`},
		{"no tools, no choice", `{"model":"m","max_tokens":5,"messages":[],"tools":[],"tool_choice":{"type":"none"}}`, `{"model":"m","messages":[],"max_tokens":5}`},
		{"thinking on", `{"model":"m","max_tokens":5,"messages":[],"thinking":{"type":"enabled","budget_tokens":1024}}`,
			`{"model":"m","messages":[],"max_tokens":5,"chat_template_kwargs":{"enable_thinking":true,"thinking":true}}`},
		{"thinking off beside the client's own", `{"model":"m","max_tokens":5,"messages":[],"thinking":{"type":"disabled"},"chat_template_kwargs":{"x":1}}`,
			`{"model":"m","messages":[],"max_tokens":5,"chat_template_kwargs":{"enable_thinking":false,"thinking":false,"x":1}}`},
		{"the client knows the template", `{"model":"m","max_tokens":5,"messages":[],"thinking":{"type":"disabled"},"chat_template_kwargs":{"thinking":true}}`,
			`{"model":"m","messages":[],"max_tokens":5,"chat_template_kwargs":{"thinking":true}}`},
		{"output", `{"model":"m","max_tokens":5,"messages":[],"output_config":{"effort":"xhigh","format":{"type":"json_schema","schema":{"a":1}}}}`,
			`{"model":"m","messages":[],"max_tokens":5,"reasoning_effort":"max","response_format":{"type":"json_schema","json_schema":{"name":"response","schema":{"a":1},"strict":true}}}`},
		{"user, hints and extensions", `{"model":"m","max_tokens":5,"messages":[],"metadata":{"user_id":"u"},"service_tier":"auto","cache_control":{"type":"ephemeral"},"context_management":{"edits":[]},"mcp_servers":[],"container":null,"min_p":0.05,"rid":"r","n":1,"priority":-1}`,
			`{"model":"m","messages":[],"max_tokens":5,"user":"u","min_p":0.05,"rid":"r","priority":-1}`},
	} {
		wantChat(t, openai.RouteMessages, c.name, c.in, c.want)
	}
}

func TestMessagesRequestsThatAreRefused(t *testing.T) {
	user := func(block string) string {
		return messagesHead + `[{"role":"user","content":[` + block + `]}]}`
	}
	with := func(fields string) string {
		return `{"model":"m","max_tokens":5,"messages":[],` + fields + `}`
	}
	for _, c := range []struct{ in, param, code string }{
		{`{"max_tokens":5,"messages":[]}`, "model", "invalid_request"},
		{`{"model":"m","messages":[]}`, "max_tokens", "invalid_request"},
		{`{"model":"m","max_tokens":5}`, "messages", "invalid_request"},
		{`{"model":"m","max_tokens":"5","messages":[]}`, "max_tokens", "invalid_request"},
		{`{"model":"m","max_tokens":5,"max_tokens":6,"messages":[]}`, "max_tokens", "invalid_request"},
		{with(`"temperature":"1"`), "temperature", "invalid_request"},
		{with(`"system":1`), "system", "invalid_request"},
		{with(`"system":[{"type":"image"}]`), "system[0].type", codeUntranslatable},
		{with(`"stop_sequences":["a",1]`), "stop_sequences[1]", "invalid_request"},
		{messagesHead + `[{"role":"robot","content":"x"}]}`, "messages[0].role", "invalid_request"},
		{messagesHead + `[{"role":"user"}]}`, "messages[0].content", "invalid_request"},
		{messagesHead + `["x"]}`, "messages[0]", "invalid_request"},
		{user(`{"type":"document","source":{}}`), "messages[0].content[0].source.type", "invalid_request"},
		{user(`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"QQ=="}}`), "messages[0].content[0].source.type", codeUntranslatable},
		{user(`{"type":"document","source":{"type":"content","content":[{"type":"document"}]}}`), "messages[0].content[0].source.content[0].type", "invalid_request"},
		{user(`{"type":"text","text":"a"},{"type":"search_result"}`), "messages[0].content[1].content", "invalid_request"},
		{user(`{"type":"container_upload"}`), "messages[0].content[0].type", codeUntranslatable},
		{user(`{"type":"image","source":{"type":"file","file_id":"f"}}`), "messages[0].content[0].source.type", codeUntranslatable},
		{user(`{"type":"tool_use","id":"a","name":"b"}`), "messages[0].content[0].type", "invalid_request"},
		{user(`{"type":"tool_result"}`), "messages[0].content[0].tool_use_id", "invalid_request"},
		{user(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"document"}]}`), "messages[0].content[0].content[0].source", "invalid_request"},
		{user(`{"type":"text","text":"a","text":"b"}`), "messages[0].content[0].text", "invalid_request"},
		{user(`{"type":"redacted_thinking","data":"x"}`), "messages[0].content[0].type", "invalid_request"},
		{messagesHead + `[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":"{}"}]}]}`, "messages[0].content[0].input", "invalid_request"},
		{with(`"tools":[{"name":"f"}]`), "tools[0].input_schema", "invalid_request"},
		{with(`"tool_choice":{"type":"any"}`), "tool_choice", "invalid_request"},
		{with(`"tool_choice":{"type":"several"}`), "tool_choice.type", codeUntranslatable},
		{with(`"thinking":{"type":"between_tools"}`), "thinking.type", codeUntranslatable},
		{with(`"output_config":{"task_budget":{"total":5}}`), "output_config.task_budget", codeUntranslatable},
		{with(`"output_config":{"format":{"type":"grammar"}}`), "output_config.format.type", codeUntranslatable},
		{with(`"mcp_servers":[{"url":"x"}]`), "mcp_servers", codeUntranslatable},
		{with(`"container":"c"`), "container", codeUntranslatable},
		{with(`"inference_geo":"eu"`), "inference_geo", codeUntranslatable},
		{with(`"n":2`), "n", codeUntranslatable},
		{with(`"logprobs":true`), "logprobs", codeUntranslatable},
		{with(`"max_completion_tokens":1`), "max_completion_tokens", codeUntranslatable},
		{with(`"stop_sequences":["a"],"stop":["b"]`), "stop", "invalid_request"},
		{with(`"metadata":{"user_id":"a"},"user":"b"`), "user", "invalid_request"},
	} {
		e := wantRefusal(t, openai.RouteMessages, c.in, c.param, c.code)
		if e != nil && !strings.Contains(e.Message, strings.SplitN(c.param, "[", 2)[0]) {
			t.Errorf("%s: the message does not name the field: %s", c.in, e.Message)
		}
	}
}

// The work for a body of very many small fields grows with its size only.
func TestManyUnknownFieldsCostNoMoreThanTheirSize(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"model":"m","max_tokens":5,"messages":[]`)
	for i := range 200000 {
		fmt.Fprintf(&b, `,"x%d":1`, i)
	}
	b.WriteString("}")
	if got, _ := translated(t, openai.RouteMessages, b.String()); len(got) != b.Len() {
		t.Errorf("%d bytes became %d", b.Len(), len(got))
	}
}

func chatWhole(choice string) string {
	return `{"id":"c1","object":"chat.completion","created":1,"model":"m2","choices":[{"index":0,` + choice +
		`}],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":3}}}`
}

func TestMessagesAnswer(t *testing.T) {
	const usage = `"usage":{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":4}}`
	const head = `{"id":"msg_t1","type":"message","role":"assistant","model":"m2","content":[`
	for _, c := range []struct{ name, choice, want string }{
		{"text", `"message":{"role":"assistant","content":"h\u00e9"},"finish_reason":"stop"`,
			head + `{"type":"text","text":"h\u00e9"}],"stop_reason":"end_turn","stop_sequence":null,` + usage},
		{"cut off", `"message":{"content":"a"},"finish_reason":"length"`,
			head + `{"type":"text","text":"a"}],"stop_reason":"max_tokens","stop_sequence":null,` + usage},
		{"the client's stop sequence", `"message":{"content":"a"},"finish_reason":"stop","matched_stop":"\u0045ND"`,
			head + `{"type":"text","text":"a"}],"stop_reason":"stop_sequence","stop_sequence":"\u0045ND",` + usage},
		{"vLLM's word for it", `"message":{"content":"a"},"finish_reason":"stop","stop_reason":"END"`,
			head + `{"type":"text","text":"a"}],"stop_reason":"stop_sequence","stop_sequence":"END",` + usage},
		{"a stop of the engine's own", `"message":{"content":"a"},"finish_reason":"stop","matched_stop":"NaN happened"`,
			head + `{"type":"text","text":"a"}],"stop_reason":"end_turn","stop_sequence":null,` + usage},
		{"a stop token", `"message":{"content":"a"},"finish_reason":"stop","matched_stop":151645`,
			head + `{"type":"text","text":"a"}],"stop_reason":"end_turn","stop_sequence":null,` + usage},
		{"thinking and tools", `"message":{"content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1.0e2, \"s\":\"\\u00e9\"}"}},{"type":"function","function":{"name":"g","arguments":""}}]},"finish_reason":"tool_calls","matched_stop":"END"`,
			head + `{"type":"thinking","thinking":"hm","signature":""},{"type":"tool_use","id":"c1","name":"f","input":{"x": 1.0e2, "s":"\u00e9"}},{"type":"tool_use","id":"toolu_t1_1","name":"g","input":{}}],"stop_reason":"tool_use","stop_sequence":null,` + usage},
		{"a forced tool", `"message":{"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"`,
			head + `{"type":"tool_use","id":"c1","name":"f","input":{}}],"stop_reason":"tool_use","stop_sequence":null,` + usage},
		{"a call cut off", `"message":{"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":"}}]},"finish_reason":"length"`,
			head + `{"type":"tool_use","id":"c1","name":"f","input":{"INVALID_JSON":"{\"a\":"}}],"stop_reason":"max_tokens","stop_sequence":null,` + usage},
		{"nothing", `"message":{"content":""},"finish_reason":"stop"`,
			head + `{"type":"text","text":""}],"stop_reason":"end_turn","stop_sequence":null,` + usage},
		{"filtered", `"message":{"content":"a"},"finish_reason":"content_filter"`,
			head + `{"type":"text","text":"a"}],"stop_reason":"refusal","stop_sequence":null,` + usage},
	} {
		_, x := translated(t, openai.RouteMessages, `{"model":"m","max_tokens":5,"messages":[],"stop_sequences":["END"]}`)
		wantAnswer(t, x, c.name, c.choice, c.want)
	}
}

func TestMessagesAnswerWithoutUsageOrModel(t *testing.T) {
	_, x := translated(t, openai.RouteMessages, messagesHead+`[]}`)
	got, err := x.Answer([]byte(`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	sameJSON(t, string(got), `{"id":"msg_t1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}`)
}

func TestOmittedThinkingIsNotSent(t *testing.T) {
	_, x := translated(t, openai.RouteMessages, `{"model":"m","max_tokens":5,"messages":[],"thinking":{"type":"adaptive","display":"omitted"}}`)
	got, err := x.Answer([]byte(chatWhole(`"message":{"content":"a","reasoning_content":"secret"},"finish_reason":"stop"`)), 0)
	if err != nil || strings.Contains(string(got), "secret") {
		t.Errorf("%v: %s", err, got)
	}
	out := translateStream(t, x, chatStream(`"delta":{"reasoning_content":"secret"}`, `"delta":{"content":"a"},"finish_reason":"stop"`))
	if strings.Contains(out, "secret") || !strings.Contains(out, `"text":"a"`) {
		t.Error(out)
	}
}

func TestMessagesStreams(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
	}{
		{"text", []string{`"delta":{"role":"assistant","content":""}`, `"delta":{"content":"He"}`, `"delta":{"content":"llo \"x\"\n"}`,
			`"delta":{"content":""},"finish_reason":"stop","matched_stop":"END"`, usageEvent}},
		{"thinking_and_tools", []string{`"delta":{"role":"assistant","reasoning_content":"hm"}`, `"delta":{"reasoning_content":", yes"}`, `"delta":{"content":"I call"}`,
			`"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"name":null,"arguments":"{\"a\":"}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":" 1.0}"}}]}`,
			`"delta":{"tool_calls":[{"index":1,"id":"c2","function":{"name":"g","arguments":"{}"}}]}`,
			`"delta":{},"finish_reason":"tool_calls"`, usageEvent}},
		{"nothing", []string{`"delta":{"role":"assistant","content":""}`, `"delta":{},"finish_reason":"length"`}},
	} {
		_, x := translated(t, openai.RouteMessages, `{"model":"m","max_tokens":5,"stream":true,"messages":[],"stop_sequences":["END"]}`)
		out := translateStream(t, x, chatStream(c.events...))
		golden(t, "messages_"+c.name+".sse", out)
		checkMessagesStream(t, out)
	}
}

// checkMessagesStream checks the order of events that clients rely on.
func checkMessagesStream(t *testing.T, out string) {
	t.Helper()
	next, open := 0, -1
	events := readEvents(t, out)
	for i, e := range events {
		switch e.name {
		case "message_start":
			if i != 0 {
				t.Errorf("message_start is event %d", i)
			}
		case "content_block_start":
			if open >= 0 || e.data["index"] != float64(next) {
				t.Errorf("block %v starts while %d is open, want index %d", e.data["index"], open, next)
			}
			open, next = next, next+1
		case "content_block_delta":
			if e.data["index"] != float64(open) {
				t.Errorf("a delta of block %v while %d is open", e.data["index"], open)
			}
		case "content_block_stop":
			if e.data["index"] != float64(open) {
				t.Errorf("block %v stops while %d is open", e.data["index"], open)
			}
			open = -1
		case "message_delta":
			if open >= 0 || i != len(events)-2 {
				t.Errorf("message_delta is event %d of %d, block %d open", i, len(events), open)
			}
		case "message_stop":
			if i != len(events)-1 {
				t.Errorf("message_stop is event %d of %d", i, len(events))
			}
		case "ping":
		default:
			t.Errorf("event %s", e.name)
		}
	}
	if len(events) < 3 || events[len(events)-1].name != "message_stop" {
		t.Errorf("the stream is not whole:\n%s", out)
	}
}
