package translate

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// A request either becomes a chat body that the router itself can read, or is refused
// with a status.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}}]}],"system":[{"type":"text","text":"s"}]}`,
		`{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"i","name":"n","input":{"a":[1,{}]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[{"type":"text","text":"r"}]}]}],"tools":[{"name":"n","input_schema":{ }}],"tool_choice":{"type":"tool","name":"n"}}`,
		`{"model":"m","max_tokens":5,"messages":[],"thinking":{"type":"enabled"},"chat_template_kwargs":{"a":1},"stop_sequences":["\u0041"],"\u0061":1,"output_config":{"format":{"type":"json_schema","schema":{}}}}`,
		`{"model":"m","input":"q","instructions":"i","text":{"format":{"type":"json_schema","name":"n","schema":{}}},"include":["message.output_text.logprobs"]}`,
		"{\"model\":\"m\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},{\"type\":\"reasoning\",\"summary\":[]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"n\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}],\n\"tools\":[{\"type\":\"function\",\"name\":\"n\"}]}",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, route := range []openai.Route{openai.RouteMessages, openai.RouteResponses} {
			chat, x, err := translate(route, string(body), testOptions)
			if err != nil {
				refusal(t, err)
				continue
			}
			p, err := openai.Peek(openai.RouteChatCompletions, chat, openai.PeekOptions{})
			if err != nil {
				// The engine checks the values of extensions, but the router
				// checks some of them too.
				if !json.Valid(chat) {
					t.Fatalf("%s became %s: %v", body, chat, err)
				}
				continue
			}
			p.Release()
			answer, err := x.Answer([]byte(`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`), 0)
			if err != nil || !json.Valid(answer) {
				t.Fatalf("%s: %v: %s", body, err, answer)
			}
		}
	})
}

// No bytes of an engine cause a panic, the output is JSON, and it does not depend on how
// the bytes are cut.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(chatStream(storyEvents...)), uint8(7))
	f.Add([]byte("data: {\"error\":{\"message\":\"x\",\"code\":400}}\r\n\r\ndata: [DONE]\r\n\r\n"), uint8(1))
	f.Add([]byte(": c\r\rdata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"b\"}}]},\"finish_reason\":\"\"}]}\r\r"), uint8(3))
	f.Add([]byte(chatWhole(`"message":{"content":"a","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":[]}"}}]},"finish_reason":"stop"`)), uint8(2))
	f.Add([]byte(`{"detail":[{"msg":"x"}],"error":{"message":5}}`), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		for route, request := range map[openai.Route]string{
			openai.RouteMessages:  messagesHead + `[]}`,
			openai.RouteResponses: `{"model":"m","input":"q","include":["message.output_text.logprobs"]}`,
		} {
			_, x := translated(t, route, request)
			if answer, err := x.Answer(body, 0); err == nil && !json.Valid(answer) {
				t.Fatalf("%q became %q", body, answer)
			}
			if told := x.AppendError(nil, 400, body); !json.Valid(told) {
				t.Fatalf("%q is told as %q", body, told)
			}
			whole, err := tellErr(x, string(body))
			var pieces []string
			for rest := body; len(rest) > 0; {
				n := min(len(rest), 1+int(size))
				pieces, rest = append(pieces, string(rest[:n])), rest[n:]
			}
			again, errAgain := tellErr(x, pieces...)
			if whole != again || (err == nil) != (errAgain == nil) {
				t.Fatalf("%q: whole\n%s%v\nin pieces of %d\n%s%v", body, whole, err, size, again, errAgain)
			}
			if whole != "" {
				readEvents(t, whole)
			}
			var told *EngineError
			var other *openai.Error
			if err != nil && !errors.As(err, &told) && !errors.As(err, &other) {
				t.Fatalf("%T %v", err, err)
			}
		}
	})
}
