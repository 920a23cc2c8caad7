package translate

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

func TestResponsesRequest(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"least", `{"model":"m","input":"hi"}`, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`},
		{"numbers and strings keep their spelling", `{"input":"\ud83d\ude00","temperature":0.10,"top_p":1e0,"max_output_tokens":9007199254740993,"model":"\u006d","seed":9007199254740993}`,
			`{"model":"\u006d","messages":[{"role":"user","content":"\ud83d\ude00"}],"max_completion_tokens":9007199254740993,"temperature":0.10,"top_p":1e0,"seed":9007199254740993}`},
		{"stream", `{"model":"m","input":"hi","stream":true,"stream_options":{"include_obfuscation":false}}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`},
		{"instructions and roles", `{"model":"m","instructions":"be kind","input":[{"role":"developer","content":"d"},{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},{"role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}],"id":"msg_1","status":"completed"},{"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_image","image_url":"u","detail":"low"}]}]}`,
			`{"model":"m","messages":[{"role":"system","content":"be kind\n\nd"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":[{"type":"text","text":"c"},{"type":"image_url","image_url":{"url":"u","detail":"low"}}]}]}`},
		{"calls and results", `{"model":"m","input":[{"role":"user","content":"q"},{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"hm"}]},{"role":"assistant","content":"let me"},{"type":"function_call","id":"fc","call_id":"c1","name":"f","arguments":"{\"a\": 1.0}"},{"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"ok"},{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"fine"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"let me","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1.0}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"ok"},{"role":"tool","tool_call_id":"c2","content":"fine"}]}`},
		{"reasoning between calls", `{"model":"m","input":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"a"}],"summary":[{"type":"summary_text","text":"short a"}]},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"type":"reasoning","summary":[{"type":"summary_text","text":"b"}]},{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":null,"reasoning_content":"a\nb","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`},
		{"encrypted reasoning is left out", `{"model":"m","input":[{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"x"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`},
		{"calls that the model got wrong", `{"model":"m","input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\":"},{"type":"function_call","call_id":"2","name":"f","arguments":""},{"type":"function_call","call_id":"3","name":"f","arguments":"{\"a\": 1}"},{"type":"function_call","call_id":"4","name":"f","arguments":"[1]"}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"INVALID_JSON\":\"{\\\"a\\\":\"}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"3","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"4","type":"function","function":{"name":"f","arguments":"{\"INVALID_JSON\":\"[1]\"}"}}]}]}`},
		{"two answers of one turn are one", `{"model":"m","input":[{"role":"assistant","content":"a\n\nb"}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":"a\n\nb"}]}`},
		{"tools", `{"model":"m","input":"q","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},{"type":"function","name":"g","parameters":null,"strict":null}],"tool_choice":"required","parallel_tool_calls":false}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}},{"type":"function","function":{"name":"g"}}],"parallel_tool_calls":false,"tool_choice":"required"}`},
		{"tool by name", `{"model":"m","input":"q","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"f"}}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}}`},
		{"no tools, no choice", `{"model":"m","input":"q","tools":[],"tool_choice":"auto","parallel_tool_calls":true}`, `{"model":"m","messages":[{"role":"user","content":"q"}]}`},
		{"schema", `{"model":"m","input":"q","text":{"format":{"type":"json_schema","name":"n","schema":{"a":1},"strict":true,"description":"d"},"verbosity":"low"}}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"verbosity":"low","response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{"a":1},"strict":true}}}`},
		{"json", `{"model":"m","input":"q","text":{"format":{"type":"json_object"}}}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"response_format":{"type":"json_object"}}`},
		{"the rest", `{"model":"m","input":"q","reasoning":{"effort":"low","summary":"auto"},"store":false,"truncation":"disabled","include":["reasoning.encrypted_content"],"metadata":{"a":"b"},"user":"u","background":false,"previous_response_id":null,"conversation":null,"top_k":5,"stop":["x"],"text":{"format":{"type":"text"}},"top_logprobs":0,"safety_identifier":"s"}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"user":"u","reasoning_effort":"low","top_k":5,"stop":["x"]}`},
		{"logprobs", `{"model":"m","input":"q","include":["message.output_text.logprobs"],"top_logprobs":2}`,
			`{"model":"m","messages":[{"role":"user","content":"q"}],"logprobs":true,"top_logprobs":2}`},
	} {
		wantChat(t, openai.RouteResponses, c.name, c.in, c.want)
	}
}

func TestResponsesRequestsThatAreRefused(t *testing.T) {
	with := func(fields string) string { return `{"model":"m","input":"q",` + fields + `}` }
	item := func(item string) string { return `{"model":"m","input":[` + item + `]}` }
	for _, c := range []struct{ in, param, code string }{
		{`{"input":"q"}`, "model", "invalid_request"},
		{`{"model":"m"}`, "input", "invalid_request"},
		{`{"model":"m","input":5}`, "input", "invalid_request"},
		{with(`"instructions":[]`), "instructions", "invalid_request"},
		{with(`"store":true`), "store", codeUntranslatable},
		{with(`"previous_response_id":"resp_1"`), "previous_response_id", codeUntranslatable},
		{with(`"conversation":"conv_1"`), "conversation", codeUntranslatable},
		{with(`"conversation":{"id":"conv_1"}`), "conversation", codeUntranslatable},
		{with(`"background":true`), "background", codeUntranslatable},
		{with(`"prompt":{"id":"p"}`), "prompt", codeUntranslatable},
		{with(`"truncation":"auto"`), "truncation", codeUntranslatable},
		{with(`"tools":[{"type":"function"}]`), "tools[0].name", "invalid_request"},
		{with(`"tools":[{"type":"function","name":"f","parameters":"x"}]`), "tools[0].parameters", "invalid_request"},
		{with(`"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]}`), "tool_choice.tools", "invalid_request"},
		{with(`"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}`), "tool_choice", "invalid_request"},
		{with(`"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"any","tools":[{"type":"function","name":"f"}]}`), "tool_choice.mode", "invalid_request"},
		{with(`"tool_choice":"required"`), "tool_choice", "invalid_request"},
		{with(`"tool_choice":"some"`), "tool_choice", "invalid_request"},
		{with(`"text":{"format":{"type":"grammar"}}`), "text.format.type", codeUntranslatable},
		{with(`"text":{"format":{"type":"json_schema","name":"n"}}`), "text.format.schema", "invalid_request"},
		{with(`"temperature":"x"`), "temperature", "invalid_request"},
		{with(`"max_tokens":5`), "max_tokens", codeUntranslatable},
		{with(`"max_tokens":1`), "max_tokens", codeUntranslatable},
		{with(`"messages":[{"role":"user","content":"x"}]`), "messages", "invalid_request"},
		{with(`"n":2`), "n", codeUntranslatable},
		{with(`"response_format":{"type":"json_object"},"text":{"format":{"type":"json_object"}}`), "response_format", "invalid_request"},
		{item(`{"type":"item_reference","id":"x"}`), "input[0]", codeUntranslatable},
		{item(`{"id":"msg_1"}`), "input[0]", codeUntranslatable},
		{item(`{"type":"compaction","encrypted_content":"x"}`), "input[0].type", codeUntranslatable},
		{item(`{"role":"robot","content":"x"}`), "input[0].role", "invalid_request"},
		{item(`{"role":"user"}`), "input[0].content", "invalid_request"},
		{item(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`), "input[0].content[0].type", codeUntranslatable},
		{item(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`), "input[0].content[0].file_id", codeUntranslatable},
		{item(`{"type":"function_call","call_id":"c","name":"f"}`), "input[0].arguments", "invalid_request"},
		{item(`{"type":"function_call_output","output":"x"}`), "input[0].call_id", "invalid_request"},
		{item(`{"type":"function_call_output","call_id":"c"}`), "input[0].output", "invalid_request"},
	} {
		wantRefusal(t, openai.RouteResponses, c.in, c.param, c.code)
	}
}

func TestResponsesAnswer(t *testing.T) {
	const rest = `"instructions":null,"max_output_tokens":7,"max_tool_calls":null,"metadata":{"k":"v"},"parallel_tool_calls":true,"reasoning":{"effort":"low"},"temperature":0.10,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":null,"user":null,"background":false,"previous_response_id":null,"store":false,"truncation":"disabled",` +
		`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":14}}`
	head := func(status, incomplete, output string) string {
		return `{"id":"resp_t1","object":"response","created_at":1700000000,"status":"` + status + `","error":null,"incomplete_details":` + incomplete + `,"model":"m2","output":[` + output + `],` + rest
	}
	for _, c := range []struct{ name, choice, want string }{
		{"text", `"message":{"role":"assistant","content":"h\u00e9"},"finish_reason":"stop"`,
			head("completed", "null", `{"id":"msg_t1_0","type":"message","role":"assistant","content":[{"type":"output_text","text":"h\u00e9","annotations":[],"logprobs":[]}],"status":"completed"}`)},
		{"cut off", `"message":{"content":"a"},"finish_reason":"length"`,
			head("incomplete", `{"reason":"max_output_tokens"}`, `{"id":"msg_t1_0","type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}],"status":"incomplete"}`)},
		{"filtered", `"message":{"content":"a"},"finish_reason":"content_filter"`,
			head("incomplete", `{"reason":"content_filter"}`, `{"id":"msg_t1_0","type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}],"status":"incomplete"}`)},
		{"reasoning and calls", `"message":{"content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1.0}"}},{"function":{"name":"g"}}]},"finish_reason":"tool_calls"`,
			head("completed", "null", `{"id":"rs_t1_0","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}],"status":"completed"},`+
				`{"id":"fc_t1_1","type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\": 1.0}","status":"completed"},{"id":"fc_t1_2","type":"function_call","call_id":"call_t1_1","name":"g","arguments":"","status":"completed"}`)},
		{"nothing", `"message":{"content":""},"finish_reason":"stop"`,
			head("completed", "null", `{"id":"msg_t1_0","type":"message","role":"assistant","content":[{"type":"output_text","text":"","annotations":[],"logprobs":[]}],"status":"completed"}`)},
	} {
		_, x := translated(t, openai.RouteResponses, `{"model":"m","input":"q","temperature":0.10,"max_output_tokens":7,"metadata":{"k":"v"},"reasoning":{"effort":"low"}}`)
		wantAnswer(t, x, c.name, c.choice, c.want)
	}
}

func TestResponsesLogprobs(t *testing.T) {
	_, x := translated(t, openai.RouteResponses, `{"model":"m","input":"q","include":["message.output_text.logprobs"]}`)
	got, err := x.Answer([]byte(chatWhole(`"message":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-0.10}]},"finish_reason":"stop"`)), 0)
	if err != nil || !strings.Contains(string(got), `"logprobs":[{"token":"a","logprob":-0.10}]`) {
		t.Errorf("%v: %s", err, got)
	}
	out := translateStream(t, x, chatStream(`"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.10}]}`,
		`"delta":{"content":"b"},"logprobs":{"content":[{"token":"b","logprob":-0.20}]},"finish_reason":"stop"`))
	if n := strings.Count(out, `"logprobs":[{"token":"a","logprob":-0.10},{"token":"b","logprob":-0.20}]`); n != 4 {
		t.Errorf("the whole list is there %d times, want in output_text.done, content_part.done, output_item.done and completed:\n%s", n, out)
	}
}

func TestResponsesStreams(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
	}{
		{"text", []string{`"delta":{"role":"assistant","content":""}`, `"delta":{"content":"He"}`, `"delta":{"content":"llo \"x\"\n"}`,
			`"delta":{"content":""},"finish_reason":"stop"`, usageEvent}},
		{"reasoning_and_calls", []string{`"delta":{"role":"assistant","reasoning_content":"hm"}`, `"delta":{"reasoning_content":", yes"}`, `"delta":{"content":"I call"}`,
			`"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"name":null,"arguments":"{\"a\":"}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":" 1.0}"}}]}`,
			`"delta":{"tool_calls":[{"index":1,"id":"c2","function":{"name":"g","arguments":"{}"}}]}`,
			`"delta":{},"finish_reason":"tool_calls"`, usageEvent}},
		{"cut_off", []string{`"delta":{"role":"assistant","content":"a"}`, `"delta":{},"finish_reason":"length"`}},
		{"nothing", []string{`"delta":{"role":"assistant","content":""}`, `"delta":{},"finish_reason":"stop"`}},
	} {
		_, x := translated(t, openai.RouteResponses, `{"model":"m","input":"q","stream":true}`)
		out := translateStream(t, x, chatStream(c.events...))
		golden(t, "responses_"+c.name+".sse", out)
		checkResponsesStream(t, out)
	}
}

// checkResponsesStream checks the order that clients rely on: numbers without gaps,
// items and parts that open and close, deltas that add up to the final text.
func checkResponsesStream(t *testing.T, out string) {
	t.Helper()
	events := readEvents(t, out)
	var text string
	items := 0
	open := false
	for i, e := range events {
		if e.data["sequence_number"] != float64(i) {
			t.Errorf("event %d has number %v", i, e.data["sequence_number"])
		}
		switch {
		case e.name == "response.output_item.added":
			if open || e.data["output_index"] != float64(items) {
				t.Errorf("item %v opens as number %d, another open: %t", e.data["output_index"], items, open)
			}
			open, items, text = true, items+1, ""
		case e.name == "response.output_item.done":
			open = false
		case strings.HasSuffix(e.name, ".delta"):
			text += e.data["delta"].(string)
		case strings.HasSuffix(e.name, "text.done"):
			if e.data["text"] != text {
				t.Errorf("%s has %q, the deltas gave %q", e.name, e.data["text"], text)
			}
		case e.name == "response.function_call_arguments.done":
			if e.data["arguments"] != text {
				t.Errorf("%s has %q, the deltas gave %q", e.name, e.data["arguments"], text)
			}
		}
	}
	if open {
		t.Error("an item stays open")
	}
	last := events[len(events)-1]
	if last.name != "response.completed" && last.name != "response.incomplete" {
		t.Fatalf("the last event is %s", last.name)
	}
	if n := len(last.data["response"].(map[string]any)["output"].([]any)); n != items {
		t.Errorf("the last event has %d items, %d were told", n, items)
	}
}
