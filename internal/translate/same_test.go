package translate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/openai"
)

// streamedAndWhole translates an answer both streamed and whole, checks that a client
// gets the same message or response, and returns it as JSON.
func streamedAndWhole(t fataler, route openai.Route, request, whole, stream string) string {
	_, x, err := translate(route, request, testOptions)
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	answer, err := x.Answer([]byte(whole), 0)
	if err != nil {
		t.Fatalf("%s: %v", whole, err)
	}
	out, err := tellErr(x, stream)
	if err != nil {
		t.Fatalf("%s: %v", stream, err)
	}
	replay := replayResponses
	if route == openai.RouteMessages {
		replay = replayMessages
	}
	assembled := replay(t, out)
	if got, want := canonical(t, assembled), canonical(t, string(answer)); got != want {
		t.Fatalf("streamed %s\nwhole    %s\nof %s\nand %s\n%s", got, want, stream, whole, out)
	}
	return canonical(t, string(answer))
}

// wholeLike is a whole answer with one choice and the other members of a stream's event.
func wholeLike(choice, event string) string {
	return strings.Replace(event, `"choices":[]`, `"choices":[{"index":0,`+choice+`}]`, 1)
}

func canonical(t fataler, s string) string {
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// replayResponses assembles a response from its events as an SDK does, and checks that
// the last event has the same.
func replayResponses(t fataler, stream string) string {
	var items []any
	parts := func(e event) []any {
		return items[int(e.data["output_index"].(float64))].(map[string]any)["content"].([]any)
	}
	part := func(e event) map[string]any { return parts(e)[int(e.data["content_index"].(float64))].(map[string]any) }
	for n, e := range rawEvents(t, stream) {
		if e.data["sequence_number"] != float64(n) {
			t.Fatalf("%s has number %v, want %d:\n%s", e.name, e.data["sequence_number"], n, stream)
		}
		switch e.name {
		case "response.output_item.added":
			if e.data["output_index"] != float64(len(items)) {
				t.Fatalf("%v is added as the %d.:\n%s", e.data, len(items), stream)
			}
			items = append(items, e.data["item"])
		case "response.content_part.added":
			item := items[int(e.data["output_index"].(float64))].(map[string]any)
			if e.data["content_index"] != float64(len(parts(e))) || e.data["item_id"] != item["id"] {
				t.Fatalf("%v in %v:\n%s", e.data, item, stream)
			}
			item["content"] = append(parts(e), e.data["part"])
		case "response.output_text.delta", "response.reasoning_text.delta":
			part(e)["text"] = part(e)["text"].(string) + e.data["delta"].(string)
		case "response.refusal.delta":
			part(e)["refusal"] = part(e)["refusal"].(string) + e.data["delta"].(string)
		case "response.output_text.done", "response.reasoning_text.done":
			if part(e)["text"] != e.data["text"] {
				t.Fatalf("%v is not %v:\n%s", e.data, part(e), stream)
			}
		case "response.refusal.done":
			if part(e)["refusal"] != e.data["refusal"] {
				t.Fatalf("%v is not %v:\n%s", e.data, part(e), stream)
			}
		case "response.function_call_arguments.delta":
			item := items[int(e.data["output_index"].(float64))].(map[string]any)
			item["arguments"] = item["arguments"].(string) + e.data["delta"].(string)
		case "response.output_item.done":
			item := items[int(e.data["output_index"].(float64))].(map[string]any)
			item["status"] = e.data["item"].(map[string]any)["status"]
			got, _ := json.Marshal(item)
			want, _ := json.Marshal(e.data["item"])
			if string(got) != string(want) {
				t.Fatalf("an item grew to %s and is done as %s:\n%s", got, want, stream)
			}
		case "response.completed", "response.incomplete":
			last := e.data["response"].(map[string]any)
			got, _ := json.Marshal(items)
			want, _ := json.Marshal(last["output"])
			if string(got) != string(want) && len(items) > 0 {
				t.Fatalf("items grew to %s and are told as %s:\n%s", got, want, stream)
			}
			b, _ := json.Marshal(last)
			return string(b)
		}
	}
	t.Fatalf("no last event:\n%s", stream)
	return ""
}

// Members of an answer other than a text and tool_calls, in the forms that engines use.
func TestRareFormsOfAnswers(t *testing.T) {
	const text, call = `"content":"Sorry."`, `"content":null`
	for name, c := range map[string]struct {
		message             string // of a whole answer
		deltas              []string
		finish              string
		messages, responses []string // what the client gets
	}{
		"a refusal": {
			message: `"content":null,"refusal":"I can't."`, finish: `"stop"`,
			deltas:    []string{`"role":"assistant","content":"","refusal":null`, `"refusal":"I can"`, `"refusal":"'t."`},
			messages:  []string{`"content":[{"text":"I can't.","type":"text"}]`, `"stop_reason":"refusal"`},
			responses: []string{`"content":[{"refusal":"I can't.","type":"refusal"}]`, `"status":"completed"`},
		},
		"a refusal behind a text": {
			message: text + `,"refusal":"I can't."`, finish: `"stop"`,
			deltas:    []string{`"content":"Sor"`, `"content":"ry."`, `"refusal":"I can't."`},
			messages:  []string{`"content":[{"text":"Sorry.","type":"text"},{"text":"I can't.","type":"text"}]`, `"stop_reason":"refusal"`},
			responses: []string{`"content":[{"annotations":[],"logprobs":[],"text":"Sorry.","type":"output_text"},{"refusal":"I can't.","type":"refusal"}]`},
		},
		"a refusal that is cut": {
			message: `"refusal":"I"`, deltas: []string{`"refusal":"I"`}, finish: `"length"`,
			messages: []string{`"stop_reason":"max_tokens"`}, responses: []string{`"status":"incomplete"`},
		},
		"an empty refusal is none": {
			message: text + `,"refusal":""`, deltas: []string{text + `,"refusal":""`}, finish: `"stop"`,
			messages: []string{`"stop_reason":"end_turn"`}, responses: []string{`"status":"completed"`},
		},
		"content in parts": {
			message: `"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Sor"},{"type":"text","text":""},{"type":"output_text","text":"r\u0079"},"."]`, finish: `"stop"`,
			deltas:    []string{`"content":[{"type":"thinking","thinking":"h"}]`, `"content":{"type":"thinking","thinking":"m"}`, `"content":[{"type":"text","text":"Sor"},{"type":"text","text":"ry"}]`, `"content":[]`, `"content":["."]`},
			messages:  []string{`"thinking":"hm"`, `"text":"Sorry."`},
			responses: []string{`{"text":"hm","type":"reasoning_text"}`, `"text":"Sorry.","type":"output_text"`},
		},
		"a refusal among the parts": {
			message: `"content":[{"type":"refusal","refusal":"No."}]`, deltas: []string{`"content":[{"type":"refusal","refusal":"No."}]`}, finish: `"stop"`,
			messages: []string{`"text":"No."`, `"stop_reason":"refusal"`}, responses: []string{`{"refusal":"No.","type":"refusal"}`},
		},
		"function_call": {
			message: call + `,"function_call":{"name":"f","arguments":"{\"x\":1}"}`, finish: `"function_call"`,
			deltas:    []string{call + `,"function_call":{"name":"f"}`, `"function_call":{"name":"f","arguments":"{\"x\""}`, `"function_call":{"arguments":":1}"}`},
			messages:  []string{`"input":{"x":1},"name":"f","type":"tool_use"`, `"stop_reason":"tool_use"`},
			responses: []string{`"arguments":"{\"x\":1}"`, `"name":"f"`},
		},
		"function_call beside tool_calls": {
			message:  call + `,"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}],"function_call":{"name":"f","arguments":"{}"}`,
			deltas:   []string{`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}],"function_call":{"name":"f","arguments":"{}"}`, `"function_call":{"name":"f","arguments":"{}"}`},
			finish:   `"tool_calls"`,
			messages: []string{`"content":[{"id":"a","input":{},"name":"f","type":"tool_use"}]`}, responses: []string{`"call_id":"a"`},
		},
		"one id for two calls": {
			message: call + `,"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"g","arguments":"{}"}}]`, finish: `"tool_calls"`,
			deltas:    []string{`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]`, `"tool_calls":[{"index":1,"id":"a","function":{"name":"g","arguments":"{}"}}]`},
			messages:  []string{`"id":"a","input":{},"name":"f"`, `"id":"toolu_t1_1","input":{},"name":"g"`},
			responses: []string{`"call_id":"a"`, `"call_id":"call_t1_1"`},
		},
		"function_call of nothing": {
			message: text + `,"function_call":null`, deltas: []string{text + `,"function_call":null`, `"function_call":{}`}, finish: `"stop"`,
			messages: []string{`"stop_reason":"end_turn"`}, responses: []string{`"status":"completed"`},
		},
	} {
		events := make([]string, 0, len(c.deltas)+2)
		for _, d := range c.deltas {
			events = append(events, `"delta":{`+d+`}`)
		}
		events = append(events, `"delta":{},"finish_reason":`+c.finish, usageEvent)
		whole := wholeLike(`"message":{`+c.message+`},"finish_reason":`+c.finish, usageEvent)
		for route, want := range map[openai.Route][]string{openai.RouteMessages: c.messages, openai.RouteResponses: c.responses} {
			got := streamedAndWhole(t, route, streamedRequest[route], whole, chatStream(events...))
			for _, w := range want {
				if !strings.Contains(got, w) {
					t.Errorf("%s on %s: %s is not in %s", name, route, w, got)
				}
			}
		}
	}
}

var streamedRequest = map[openai.Route]string{
	openai.RouteMessages:  messagesHead + `[],"stream":true}`,
	openai.RouteResponses: `{"model":"m","input":"q","stream":true}`,
}

// A second finish reason does not make an answer complete that was cut.
func TestWorstFinishReasonCounts(t *testing.T) {
	for _, c := range []struct{ first, second, messages, responses string }{
		{`"length"`, `"stop"`, "max_tokens", "incomplete"},
		{`"stop"`, `"length"`, "max_tokens", "incomplete"},
		{`"content_filter"`, `"stop"`, "refusal", "incomplete"},
		{`"length"`, `"tool_calls"`, "max_tokens", "incomplete"},
		{`"length"`, `null`, "max_tokens", "incomplete"},
		{`"stop"`, `"stop"`, "end_turn", "completed"},
	} {
		both(t, func(t *testing.T, x Exchange) {
			out := translateStream(t, x, chatStream(`"delta":{"content":"a"}`, `"delta":{},"finish_reason":`+c.first, `"delta":{},"finish_reason":`+c.second, usageEvent))
			want := `"status":"` + c.responses + `"`
			if _, ok := x.(*Messages); ok {
				want = `"stop_reason":"` + c.messages + `"`
			}
			if last := out[strings.LastIndex(strings.TrimSuffix(strings.TrimSuffix(out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "\n\n"), "\n\n")+1:]; !strings.Contains(last, want) {
				t.Errorf("%s then %s: no %s in %s", c.first, c.second, want, last)
			}
		})
	}
}

// drawPieces cuts a text between characters.
func drawPieces(t *rapid.T, text string) []string {
	var pieces []string
	for text != "" {
		k := rapid.IntRange(1, len(text)).Draw(t, "piece")
		for k < len(text) && text[k]&0xC0 == 0x80 {
			k++
		}
		pieces, text = append(pieces, text[:k]), text[k:]
	}
	return pieces
}

// The answer that a client assembles from a stream equals the whole answer of the same
// engine: blocks or items, stop reason, and usage.
func TestAssembledStreamsAreTheWholeAnswer(t *testing.T) {
	quoted := func(s string) string { return string(appendQuoted(nil, []byte(s))) }
	rapid.Check(t, func(t *rapid.T) {
		var members, deltas []string
		inParts := rapid.Bool().Draw(t, "inParts")
		said := func(name, text string) {
			if text == "" {
				return
			}
			spell := quoted
			if name == "content" && inParts {
				spell = func(s string) string { return `[{"type":"text","text":` + quoted(s) + `}]` }
			}
			members = append(members, quoted(name)+`:`+spell(text))
			for _, piece := range drawPieces(t, text) {
				deltas = append(deltas, quoted(name)+`:`+spell(piece))
			}
		}
		said("reasoning_content", rapid.SampledFrom([]string{"", "hm, \U0001F914"}).Draw(t, "thought"))
		said("content", rapid.SampledFrom([]string{"", " ", "line\nfeed \"q\""}).Draw(t, "text"))
		said("refusal", rapid.SampledFrom([]string{"", "", "I can't."}).Draw(t, "refusal"))
		calls := rapid.SliceOfN(modelCalls, 0, 3).Draw(t, "calls")
		only := len(calls) == 1 && rapid.Bool().Draw(t, "only")
		var list []string
		for i, c := range calls {
			id, name := "", ""
			if c.id != "" && !only {
				id = fmt.Sprintf(`"id":"%s%d",`, c.id, i)
			}
			if c.name != "" {
				name = `"name":` + quoted(c.name) + `,`
			}
			form, after := `"function_call":{%[2]s%[3]s"arguments":%[4]s`, `}`
			if !only {
				form, after = `"tool_calls":[{"index":%[1]d,%[2]s"function":{%[3]s"arguments":%[4]s`, `}}]`
			}
			all := fmt.Sprintf(form, i, id, name, quoted(c.arguments)) + after
			if only {
				members = append(members, all)
			} else {
				list = append(list, strings.TrimSuffix(strings.TrimPrefix(all, `"tool_calls":[`), `]`))
			}
			pieces := drawPieces(t, c.arguments)
			if len(pieces) == 0 {
				pieces = []string{""}
			}
			for n, piece := range pieces {
				if n > 0 {
					id, name = "", ""
				}
				deltas = append(deltas, fmt.Sprintf(form, i, id, name, quoted(piece))+after)
			}
		}
		if list != nil {
			members = append(members, `"tool_calls":[`+strings.Join(list, ",")+`]`)
		}
		var events []string
		for _, d := range deltas {
			events = append(events, `"delta":{`+d+`}`)
		}
		finishes := []string{`"stop"`, `"eureka"`, `"tool_calls"`, `"length"`, `"content_filter"`} // the worst last
		worst := rapid.IntRange(0, len(finishes)-1).Draw(t, "finish")
		other := rapid.IntRange(0, worst).Draw(t, "other")
		told := []string{finishes[worst], finishes[other]}
		if rapid.Bool().Draw(t, "order") {
			told[0], told[1] = told[1], told[0]
		}
		stop := rapid.SampledFrom([]string{"", `,"matched_stop":"END"`, `,"matched_stop":"other"`, `,"stop_reason":7`}).Draw(t, "matched")
		for _, f := range told {
			events = append(events, `"delta":{},"finish_reason":`+f+stop)
		}
		end := rapid.SampledFrom([]string{usageEvent, `{"model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":0}}`,
			`{"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":null}}`, `{"model":"m","choices":[],"usage":null}`, `{"model":"m","choices":[]}`}).Draw(t, "usage")
		events = append(events, strings.Replace(end, `"id":"c1",`, "", 1))
		for i, e := range events {
			if !strings.HasPrefix(e, "{") {
				events[i] = `{"model":"m","choices":[{"index":0,` + e + `}]}`
			}
		}
		whole := wholeLike(`"message":{`+strings.Join(members, ",")+`},"finish_reason":`+finishes[worst]+stop, end)
		for route, request := range streamedRequest {
			request = strings.Replace(request, `"stream":true`, `"stream":true,"stop_sequences":["END"]`, 1)
			if route == openai.RouteResponses {
				request = streamedRequest[route]
			}
			streamedAndWhole(t, route, request, whole, chatStream(events...))
		}
	})
}

// The input of a tool with eager_input_streaming is sent as it comes.
func TestEagerInputComesInPieces(t *testing.T) {
	_, x := translated(t, openai.RouteMessages, messagesHead+`[],"stream":true,"tools":[{"name":"\u0066","input_schema":{"type":"object"},"eager_input_streaming":true},{"name":"g","input_schema":{"type":"object"},"eager_input_streaming":false}]}`)
	for name, want := range map[string]int{"f": 2, "g": 1} {
		out := translateStream(t, x, chatStream(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"`+name+`","arguments":"{\"x\":"}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"y"}}]}`, `"delta":{},"finish_reason":"length"`))
		if got := strings.Count(out, "input_json_delta"); got != want || strings.Contains(out, invalidJSON) != (name == "g") {
			t.Errorf("%s: %d pieces in %s", name, got, out)
		}
	}
}
