package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/openai"
)

// said is an answer as a client has it in the end, streamed or whole.
type said struct {
	Thinking, Text string
	Calls          []string // name and arguments or input, sorted
	Stop           string
}

// readWholeAnswer reads an answer that was not streamed.
func readWholeAnswer(t fataler, x Exchange, answer []byte) (s said) {
	var m map[string]any
	if err := json.Unmarshal(answer, &m); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	list, _ := m["output"].([]any)
	if _, ok := x.(*Messages); ok {
		list = m["content"].([]any)
		s.Stop = fmt.Sprint(m["stop_reason"])
	} else {
		s.Stop = fmt.Sprint(m["status"])
	}
	for _, v := range list {
		b := v.(map[string]any)
		switch b["type"] {
		case "thinking":
			s.Thinking += b["thinking"].(string)
		case "text":
			s.Text += b["text"].(string)
		case "tool_use":
			input, _ := json.Marshal(b["input"])
			s.Calls = append(s.Calls, b["name"].(string)+string(input))
		case "reasoning", "message":
			for _, p := range b["content"].([]any) {
				text := p.(map[string]any)["text"].(string)
				if b["type"] == "message" {
					s.Text += text
				} else {
					s.Thinking += text
				}
			}
		case "function_call":
			s.Calls = append(s.Calls, fmt.Sprint(b["name"], b["arguments"]))
		}
	}
	slices.Sort(s.Calls)
	return s
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// readStream reads a stream as an SDK does, and checks the rules of its API.
func readStream(t fataler, x Exchange, stream string) said {
	if _, ok := x.(*Responses); ok {
		return readResponsesStream(t, x, stream)
	}
	var s said
	open, next := -1, 0
	var block map[string]any
	var input string
	for _, e := range rawEvents(t, stream) {
		switch e.name {
		case "content_block_start":
			if open >= 0 || e.data["index"] != float64(next) {
				t.Fatalf("block %v begins while %d is open:\n%s", e.data["index"], open, stream)
			}
			open, next, input = next, next+1, ""
			block = e.data["content_block"].(map[string]any)
		case "content_block_delta":
			d := e.data["delta"].(map[string]any)
			kind := map[any]string{"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}[block["type"]]
			if e.data["index"] != float64(open) || d["type"] != kind {
				t.Fatalf("%v in a block of type %v:\n%s", d, block["type"], stream)
			}
			switch kind {
			case "text_delta":
				s.Text += d["text"].(string)
			case "thinking_delta":
				s.Thinking += d["thinking"].(string)
			default:
				input += d["partial_json"].(string)
			}
		case "content_block_stop":
			if e.data["index"] != float64(open) {
				t.Fatalf("block %v stops while %d is open:\n%s", e.data["index"], open, stream)
			}
			open = -1
			if block["type"] == "tool_use" {
				v := map[string]any{}
				if input != "" && json.Unmarshal([]byte(input), &v) != nil {
					t.Fatalf("an input is %q:\n%s", input, stream)
				}
				b, _ := json.Marshal(v)
				s.Calls = append(s.Calls, block["name"].(string)+string(b))
			}
		case "message_delta":
			s.Stop = fmt.Sprint(e.data["delta"].(map[string]any)["stop_reason"])
		}
	}
	slices.Sort(s.Calls)
	return s
}

func readResponsesStream(t fataler, x Exchange, stream string) said {
	grown := map[float64]string{}
	done := map[float64]bool{}
	var last map[string]any
	for _, e := range rawEvents(t, stream) {
		index, _ := e.data["output_index"].(float64)
		if done[index] && e.data["output_index"] != nil {
			t.Fatalf("%s of item %v, which was done:\n%s", e.name, index, stream)
		}
		switch e.name {
		case "response.function_call_arguments.delta", "response.output_text.delta", "response.reasoning_text.delta":
			grown[index] += e.data["delta"].(string)
		case "response.function_call_arguments.done":
			if e.data["arguments"] != grown[index] {
				t.Fatalf("arguments %q came as %q:\n%s", e.data["arguments"], grown[index], stream)
			}
		case "response.output_item.done":
			done[index] = true
		case "response.completed", "response.incomplete":
			last = e.data["response"].(map[string]any)
		}
	}
	b, _ := json.Marshal(last)
	return readWholeAnswer(t, x, b)
}

func rawEvents(t fataler, stream string) (events []event) {
	for _, block := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(block, "\ndata: ")
		e := event{name: strings.TrimPrefix(name, "event: ")}
		if err := json.Unmarshal([]byte(data), &e.data); err != nil {
			t.Fatalf("%q: %v", block, err)
		}
		events = append(events, e)
	}
	return events
}

// modelCall is a call by a model: its arguments may be any text.
type modelCall struct {
	id, name, arguments string
}

var modelCalls = rapid.Custom(func(t *rapid.T) modelCall {
	return modelCall{
		id:   rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "id"),
		name: rapid.SampledFrom([]string{"f", "g", "g", "f", ""}).Draw(t, "name"),
		arguments: rapid.SampledFrom([]string{`{}`, `{"x": 1}`, `{"s":"}\"{\\"}`, ``, ` `, `null`, ` {"a":[{"b":"]"}]} `, `{"x":`, `{"x":"`,
			`rm -rf`, `[1]`, `5`, `"x"`, `{"x":1}}`, `{"x":1}</tool>`, `{x}`, `{]`, "{\"é\":\"\U0001F600\u2028\"}", `nu`, "\n{\"x\":\n2}"}).Draw(t, "arguments"),
	}
})

// The output of a model, however it is cut into pieces and interleaved, gives the same
// answer streamed and whole, and never an error.
func TestStreamedAndWholeAreTheSameAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		calls := rapid.SliceOfN(modelCalls, 0, 4).Draw(t, "calls")
		text := rapid.SampledFrom([]string{"", "a", "line\nfeed \"q\""}).Draw(t, "text")
		thought := rapid.SampledFrom([]string{"", "hm"}).Draw(t, "thought")
		finish := rapid.SampledFrom([]string{`"stop"`, `"length"`, `"tool_calls"`, `"content_filter"`, `"eureka"`, `{"type":"length"}`, `{"type":"stop","matched":5}`, `7`}).Draw(t, "finish")

		quoted := func(s string) string { return string(appendQuoted(nil, []byte(s))) }
		// The pieces of each call, in their order.
		var queues [][]string
		begin := make([]int, len(calls)) // whether a piece of the call was sent
		if thought != "" {
			queues = append(queues, []string{`"delta":{"reasoning_content":` + quoted(thought) + `}`})
		}
		for _, part := range strings.SplitAfter(text, " ") {
			if part != "" {
				queues = append(queues, []string{`"delta":{"role":"assistant","content":` + quoted(part) + `}`})
			}
		}
		seen := map[string]bool{}
		for i := range calls {
			c := &calls[i]
			if seen[c.id] {
				c.id = ""
			}
			seen[c.id] = c.id != ""
			var q []string
			for n, rest := 0, c.arguments; n == 0 || rest != ""; n++ {
				k := len(rest)
				if k > 1 {
					k = rapid.IntRange(1, k).Draw(t, "piece")
				}
				for k < len(rest) && rest[k]&0xC0 == 0x80 {
					k++
				}
				head := ""
				if n == 0 && c.id != "" {
					head += `"id":` + quoted(c.id) + `,`
				}
				name := ""
				if n == 0 && c.name != "" {
					name = `"name":` + quoted(c.name) + `,`
				}
				q = append(q, fmt.Sprintf(`"delta":{"content":null,"tool_calls":[{"index":%d,%s"function":{%s"arguments":%s}}]}`, i*3, head, name, quoted(rest[:k])))
				rest = rest[k:]
			}
			begin[i] = len(queues)
			queues = append(queues, q)
		}
		turns := rapid.Bool().Draw(t, "turns")
		var events []string
		order := map[int]int{}
		for left := len(queues); left > 0; {
			k := 0
			if turns {
				k = rapid.IntRange(0, len(queues)-1).Draw(t, "turn")
			}
			for len(queues[k]) == 0 {
				k = (k + 1) % len(queues)
			}
			if _, ok := order[k]; !ok {
				order[k] = len(order)
			}
			events = append(events, queues[k][0])
			if queues[k] = queues[k][1:]; len(queues[k]) == 0 {
				left--
			}
			if rapid.IntRange(0, 9).Draw(t, "nothing") == 0 {
				events = append(events, rapid.SampledFrom([]string{`"delta":{}`, `"delta":null`, `"delta":{"content":"","tool_calls":null}`}).Draw(t, "of"))
			}
		}
		events = append(events, `"delta":{},"finish_reason":`+finish)
		stream := strings.ReplaceAll(chatStream(events...), "data: [DONE]", "data:\n\ndata: [DONE]")

		// The whole answer lists the calls in the order in which they began.
		listed := make([]int, len(calls))
		for i := range listed {
			listed[i] = i
		}
		slices.SortFunc(listed, func(a, b int) int { return order[begin[a]] - order[begin[b]] })
		var all []string
		for _, i := range listed {
			c, id, name := calls[i], "", ""
			if c.id != "" {
				id = `"id":` + quoted(c.id) + `,`
			}
			if c.name != "" {
				name = `"name":` + quoted(c.name) + `,`
			}
			all = append(all, `{`+id+`"type":"function","function":{`+name+`"arguments":`+quoted(c.arguments)+`}}`)
		}
		spoken := text
		if turns { // parts of the text may have changed their order, which is allowed here
			spoken = ""
			for _, e := range events {
				if _, v, ok := strings.Cut(e, `"role":"assistant","content":`); ok {
					spoken += raw(strings.TrimSuffix(v, "}")).text()
				}
			}
		}
		whole := chatWhole(`"message":{"content":` + quoted(spoken) + `,"reasoning_content":` + quoted(thought) + `,"tool_calls":[` + strings.Join(all, ",") + `]},"finish_reason":` + finish)

		var pieces []string
		for rest := stream; rest != ""; {
			k := min(len(rest), rapid.IntRange(1, 200).Draw(t, "cut"))
			pieces, rest = append(pieces, rest[:k]), rest[k:]
		}
		for route, request := range map[openai.Route]string{
			openai.RouteMessages:  messagesHead + `[],"stream":true}`,
			openai.RouteResponses: `{"model":"m","input":"q","stream":true}`,
		} {
			_, x, err := translate(route, request, testOptions)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := x.Answer([]byte(whole), 0)
			if err != nil {
				t.Fatalf("%s: %v", whole, err)
			}
			out, err := tellErr(x, pieces...)
			if err != nil {
				t.Fatalf("%s: %v", stream, err)
			}
			want, got := readWholeAnswer(t, x, answer), readStream(t, x, out)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s\nstreamed %q\nwhole    %q\nof %s\n%s", route, got, want, stream, out)
			}
		}
	})
}

// Everything is sent at once but what comes after a call whose arguments have not ended.
func TestOpenCallHoldsBackWhatFollows(t *testing.T) {
	call := func(more string) string { return `"delta":{"tool_calls":[{` + more + `}]}` }
	both(t, func(t *testing.T, x Exchange) {
		_, messages := x.(*Messages)
		var out strings.Builder
		s := x.Stream(0)
		for i, c := range []struct {
			choice              string
			messages, responses string // what the client is sent
		}{
			{call(`"index":0,"id":"a","function":{"name":"f","arguments":""}`), "content_block_start", "output_item.added"},
			{call(`"index":0,"function":{"arguments":"{\"x\":"}`), "", `"{\"x\":"`}, // not known to be an object yet
			{call(`"index":4,"id":"b","function":{"name":"g","arguments":"{\"y\":"}`), "", `"{\"y\":"`},
			{`"delta":{"content":"text"}`, "", `"text"`},
			{call(`"index":0,"function":{"arguments":"1}"}`), `"{\"x\":1}"`, `"1}"`},
			{call(`"index":4,"function":{"arguments":"2}"}`), `"text"`, `"2}"`},
			{call(`"index":5,"function":{"arguments":"{}"}`), "", ""}, // its name comes later
			{call(`"index":5,"function":{"name":"h"}`), `"{}"`, `"{}"`},
			{call(`"index":6,"function":{"name":"i","arguments":"{}"}`), `"name":"i"`, `"name":"i"`},
		} {
			out.Reset()
			if err := s.Feed([]byte("data: {\"choices\":[{\"index\":0,"+c.choice+"}]}\n\n"), func(b []byte) { out.Write(b) }); err != nil {
				t.Fatal(err)
			}
			want := c.responses
			if messages {
				want = c.messages
			}
			if got := out.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%d: heard %q, want %q", i, got, want)
			}
		}
		if err := s.Feed([]byte(chatStream(`"delta":{},"finish_reason":"tool_calls"`)), func([]byte) {}); err != nil || !s.Done() {
			t.Errorf("%v", err)
		}
	})
}

func TestFirstEventHasThePromptsTokens(t *testing.T) {
	_, x := translated(t, openai.RouteMessages, messagesHead+`[],"stream":true}`)
	for _, c := range []struct{ usage, start string }{
		{`,"usage":{"prompt_tokens":1234,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":1000}}`, `"usage":{"input_tokens":234,"cache_read_input_tokens":1000,"output_tokens":0}`},
		{`,"usage":{"prompt_tokens":1234,"completion_tokens":1}`, `"usage":{"input_tokens":1234,"output_tokens":0}`},
		{`,"usage":null`, `"usage":{"input_tokens":77,"output_tokens":0}`},
		{`,"usage":{"prompt_tokens":0}`, `"usage":{"input_tokens":77,"output_tokens":0}`},
		{``, `"usage":{"input_tokens":77,"output_tokens":0}`},
	} {
		var out strings.Builder
		s := x.Stream(77)
		stream := chatStream(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]`+c.usage+`}`, `"delta":{"content":"a"},"finish_reason":"stop"`, usageEvent)
		if err := s.Feed([]byte(stream), func(b []byte) { out.Write(b) }); err != nil {
			t.Fatal(err)
		}
		start, rest, _ := strings.Cut(out.String(), "\n\n")
		if !strings.Contains(start, c.start) || !strings.Contains(rest, `"usage":{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":4`) {
			t.Errorf("%s: %s", c.usage, out.String())
		}
	}

	// An engine that reports no usage at all: SDKs take the last count.
	var out strings.Builder
	if err := x.Stream(77).Feed([]byte(chatStream(`"delta":{"content":"a"},"finish_reason":"stop"`)), func(b []byte) { out.Write(b) }); err != nil {
		t.Fatal(err)
	}
	if _, end, _ := strings.Cut(out.String(), "event: message_delta"); !strings.Contains(end, `"usage":{"input_tokens":77,"output_tokens":0`) {
		t.Error(out.String())
	}
}

// Errors by the router's own limits differ from errors of engines.
func TestLimitsAreNotErrorsOfTheEngine(t *testing.T) {
	big := strings.Repeat("x", 300)
	many := make([]string, maxCalls+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,"function":{"name":"f","arguments":"{}"}}]}`, i)
	}
	open := `"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}`
	for name, events := range map[string][]string{
		"an event":               {`"delta":{"content":"` + strings.Repeat("x", 3000) + `"}`},
		"calls":                  many,
		"names":                  {`"delta":{"tool_calls":[{"index":0,"function":{"name":"` + big + `"}},{"index":1,"function":{"name":"` + big + `"}}]}`},
		"text behind a call":     {open, `"delta":{"content":"` + big + `"}`, `"delta":{"content":"` + big + `"}`},
		"another call behind it": {open, `"delta":{"tool_calls":[{"index":1,"function":{"name":"g","arguments":"{` + big + `"}}]}`, `"delta":{"tool_calls":[{"index":1,"function":{"arguments":"` + big + `"}}]}`},
		"a call without a name":  {`"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{` + big + `"}}]}`, `"delta":{"tool_calls":[{"index":1,"function":{"arguments":"` + big + `"}}]}`},
	} {
		for route, body := range map[openai.Route]string{openai.RouteMessages: messagesHead + `[],"stream":true}`, openai.RouteResponses: `{"model":"m","input":"q","stream":true}`} {
			opts := Options{MaxEventBytes: 2000, MaxOutputBytes: 500}
			if name == "calls" {
				opts.MaxOutputBytes = 0
			}
			_, x, err := translate(route, body, opts)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tellErr(x, chatStream(events...))
			var limit *LimitError
			if !errors.As(err, &limit) {
				t.Errorf("%s on %s: %v", name, route, err)
			}
		}
	}
}
