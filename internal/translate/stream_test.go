package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// both runs a test for both APIs, with a streamed request.
func both(t *testing.T, test func(t *testing.T, x Exchange)) {
	t.Helper()
	for route, body := range map[openai.Route]string{
		openai.RouteMessages:  `{"model":"m","max_tokens":5,"stream":true,"messages":[],"stop_sequences":["END"]}`,
		openai.RouteResponses: `{"model":"m","input":"q","stream":true}`,
	} {
		t.Run(route.String(), func(t *testing.T) {
			_, x := translated(t, route, body)
			test(t, x)
		})
	}
}

var storyEvents = []string{
	`"delta":{"role":"assistant","content":""}`, `"delta":{"reasoning_content":"hm"}`, `"delta":{"content":"h\u00e9 \ud83d"}`, `"delta":{"content":"\ude00\n"}`,
	`"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a\":"}}]}`,
	`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"index":1,"id":"c2","function":{"name":"g","arguments":"{}"}}]}`,
	`"delta":{},"finish_reason":"tool_calls"`, usageEvent,
}

func TestStreamsDoNotDependOnCutsAndLineEnds(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		r := rand.New(rand.NewPCG(1, 2))
		stream := chatStream(storyEvents...)
		want := translateStream(t, x, stream)
		for _, end := range []string{"\n", "\r\n", "\r"} {
			for _, pieces := range cuts("\xef\xbb\xbf"+strings.ReplaceAll(stream, "\n", end), r) {
				if got := translateStream(t, x, pieces...); got != want {
					t.Fatalf("line end %q, %d pieces: got\n%s\nwant\n%s", end, len(pieces), got, want)
				}
			}
		}
	})
}

// Data over several lines is one text with line feeds, which must be sent in one line.
func TestEventsOverSeveralLines(t *testing.T) {
	chat, x := translated(t, openai.RouteResponses, "{\"model\":\"m\",\"input\":\"q\",\"stream\":true,\"include\":[\"message.output_text.logprobs\"],\"tools\":[{\"type\":\"function\",\r\n\"name\":\"f\"}],\"text\":{\n\"format\":\n{\"type\":\"text\"}}}")
	if !strings.Contains(chat, `"name":"f"`) {
		t.Error(chat)
	}
	out := translateStream(t, x, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[\ndata: {\"token\":\ndata: \"a\"}]}}]}\n\n"+
		"event: x\nid: 5\ndata:{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	checkResponsesStream(t, out)
	if !strings.Contains(out, `"logprobs":[{"token":"a"}]`) || !strings.Contains(out, `"tools":[{"type":"function","name":"f"}]`) {
		t.Error(out)
	}
}

// A stream and a whole answer of the same choice give the same answer.
func TestStreamAndWholeAnswerAreEqual(t *testing.T) {
	whole := `{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"h\u00e9 \ud83d\ude00\n","reasoning_content":"hm","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","function":{"name":"g","arguments":"{}"}}]},"finish_reason":"tool_calls"}],` + strings.SplitN(usageEvent, `"choices":[],`, 2)[1]
	_, x := translated(t, openai.RouteResponses, `{"model":"m","input":"q","stream":true}`)
	answer, err := x.Answer([]byte(whole), 0)
	if err != nil {
		t.Fatal(err)
	}
	events := readEvents(t, translateStream(t, x, chatStream(storyEvents...)))
	last, err := json.Marshal(events[len(events)-1].data["response"])
	if err != nil {
		t.Fatal(err)
	}
	sameJSON(t, string(last), string(answer))

	_, x = translated(t, openai.RouteMessages, messagesHead+`[],"stream":true}`)
	if answer, err = x.Answer([]byte(whole), 0); err != nil {
		t.Fatal(err)
	}
	sameJSON(t, replayMessages(t, translateStream(t, x, chatStream(storyEvents...))), string(answer))
}

// replayMessages assembles a message from its events, as an SDK does.
func replayMessages(t fataler, stream string) string {
	var message map[string]any
	inputs := map[int]string{}
	block := func(e event) map[string]any {
		return message["content"].([]any)[int(e.data["index"].(float64))].(map[string]any)
	}
	for _, e := range rawEvents(t, stream) {
		switch e.name {
		case "message_start":
			message = e.data["message"].(map[string]any)
		case "content_block_start":
			message["content"] = append(message["content"].([]any), e.data["content_block"])
		case "content_block_delta":
			d := e.data["delta"].(map[string]any)
			switch d["type"] {
			case "text_delta":
				block(e)["text"] = block(e)["text"].(string) + d["text"].(string)
			case "thinking_delta":
				block(e)["thinking"] = block(e)["thinking"].(string) + d["thinking"].(string)
			case "input_json_delta":
				inputs[int(e.data["index"].(float64))] += d["partial_json"].(string)
			}
		case "content_block_stop":
			if in := inputs[int(e.data["index"].(float64))]; in != "" {
				var v any
				if err := json.Unmarshal([]byte(in), &v); err != nil {
					t.Fatalf("%v:\n%s", err, stream)
				}
				block(e)["input"] = v
			}
		case "message_delta":
			for k, v := range e.data["delta"].(map[string]any) {
				message[k] = v
			}
			message["usage"] = e.data["usage"]
		}
	}
	// The two escapes of a surrogate pair may come in two pieces, and give the character
	// only once they are joined; each SDK sees two halves, in the chat API too.
	for _, b := range message["content"].([]any) {
		if b := b.(map[string]any); b["type"] == "text" {
			b["text"] = strings.Replace(b["text"].(string), "\uFFFD\uFFFD", "😀", 1)
		}
	}
	b, err := json.Marshal(message)
	if err != nil {
		t.Fatalf("%v:\n%s", err, stream)
	}
	return string(b)
}

// Random choices in random pieces keep the order that clients rely on.
func TestRandomStreamsKeepTheirOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var events []string
		calls := 0
		for range r.IntN(12) {
			switch r.IntN(4) {
			case 0:
				events = append(events, `"delta":{"reasoning_content":"r"}`)
			case 1:
				events = append(events, `"delta":{"content":"c"}`)
			case 2:
				events = append(events, fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"f","arguments":"{"}}]}`, calls, calls),
					fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,"function":{"arguments":"}"}}]}`, calls))
				calls++
			case 3:
				events = append(events, `"delta":{}`)
			}
		}
		events = append(events, fmt.Sprintf(`"delta":{},"finish_reason":"%s"`, []string{"stop", "length", "tool_calls"}[r.IntN(3)]))
		stream := chatStream(events...)
		both(t, func(t *testing.T, x Exchange) {
			out := translateStream(t, x, cuts(stream, r)[2]...)
			if _, ok := x.(*Messages); ok {
				checkMessagesStream(t, out)
			} else {
				checkResponsesStream(t, out)
			}
		})
	}
}

// Engines differ in how they show that another call begins.
func TestCallsBeginWhereEnginesSay(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		for name, second := range map[string]string{
			"by index":           `"index":1,"id":"b","function":{"name":"g"}`,
			"by id at one index": `"index":0,"id":"b","function":{"name":"g"}`,
			"by name alone":      `"function":{"name":"g"}`,
		} {
			out := translateStream(t, x, chatStream(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}`,
				`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}`,
				`"delta":{"tool_calls":[{`+second+`}]}`, `"delta":{"content":"after"}`,
				`"delta":{"tool_calls":[{"index":1,"id":null,"function":{"arguments":""}}]},"finish_reason":"stop"`))
			if n := strings.Count(out, "content_block_start\n") + strings.Count(out, "output_item.added\n"); n != 3 {
				t.Errorf("%s: %d blocks, want two calls and a text\n%s", name, n, out)
			}
		}
	})
}

// Some engines send the text after a call in the event that ends the call.
func TestTextAfterACallInItsLastEvent(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		out := translateStream(t, x, chatStream(`"delta":{"content":"a","tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}}]}`,
			`"delta":{"content":"b","tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"tool_calls"`))
		a, call, b := strings.Index(out, `"a"`), strings.Index(out, `}"`), strings.Index(out, `"b"`)
		if a < 0 || call < a || b < call {
			t.Errorf("text, call, text came as\n%s", out)
		}
	})
}

func TestErrorsInStreams(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		for _, c := range []struct {
			event  string
			status int
			text   string
		}{
			{`{"error":{"object":"error","message":"KV transfer failed","type":"InternalServerError","param":null,"code":500}}`, 500, "KV transfer failed"},
			{`{"object":"error","message":"too long","type":"BadRequestError","code":400}`, 400, "too long"},
			{`{"error":{"message":"busy","code":429}}`, 429, "busy"},
			{`{"error":"what"}`, 500, "what"},
			{`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, 500, "aborted the request"},
		} {
			out, err := tellErr(x, "data: "+c.event+"\n\ndata: [DONE]\n\n")
			var e *EngineError
			if !errors.As(err, &e) || e.Status != c.status || !strings.Contains(e.Message, c.text) {
				t.Errorf("%s: %v", c.event, err)
			}
			if out != "" {
				t.Errorf("%s: wrote %s before the caller decided", c.event, out)
			}
		}
	})
}

func TestMalformedStreamsAreErrors(t *testing.T) {
	first := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	both(t, func(t *testing.T, x Exchange) {
		for name, stream := range map[string]string{
			"ends early":            first,
			"ends before it began":  "",
			"done without a finish": first + "data: [DONE]\n\n",
			"not JSON":              first + "data: {\"choices\":\n\n",
			"not an object":         first + "data: [1]\n\n",
		} {
			out, err := tellErr(x, stream)
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 502 {
				t.Errorf("%s: %v", name, err)
			}
			for _, end := range []string{"message_stop", "response.completed"} {
				if strings.Contains(out, "event: "+end) {
					t.Errorf("%s: an end was made up: %s", name, out)
				}
			}
		}
	})
}

// A stream that ends after its finish reason, without the end marker, is complete.
func TestStreamWithoutEndMarkerIsComplete(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		stream := chatStream(storyEvents...)
		want := translateStream(t, x, stream)
		if got := translateStream(t, x, strings.TrimSuffix(stream, "data: [DONE]\n\n")); got != want {
			t.Errorf("got %s", got)
		}
		if got := translateStream(t, x, stream, stream, "data: {\n\n"); got != want {
			t.Errorf("something came after the end: %s", got)
		}
	})
}

func TestFailEndsTheStreamOnce(t *testing.T) {
	first := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	both(t, func(t *testing.T, x Exchange) {
		for _, begun := range []bool{false, true} {
			var out strings.Builder
			write := func(b []byte) { out.Write(b) }
			s := x.Stream(0)
			if begun {
				if err := s.Feed([]byte(first), write); err != nil {
					t.Fatal(err)
				}
			}
			if s.Started() != begun {
				t.Errorf("started: %t", s.Started())
			}
			s.Fail(openai.UpstreamFailed("decode", "it is gone", nil), write)
			s.Fail(openai.UpstreamFailed("decode", "it is gone", nil), write)
			s.Ping(write)
			if err := s.Feed([]byte(first), write); err != nil {
				t.Error(err)
			}
			if !s.Done() {
				t.Error("not done")
			}
			events := readEvents(t, out.String())
			last := events[len(events)-1]
			want := "error"
			if _, ok := x.(*Responses); ok && begun {
				want = "response.failed"
				if r := last.data["response"].(map[string]any); r["status"] != "failed" || r["error"].(map[string]any)["code"] != "server_error" {
					t.Errorf("%v", r)
				}
				if last.data["sequence_number"] != float64(len(events)-1) {
					t.Errorf("number %v", last.data["sequence_number"])
				}
			}
			if last.name != want || strings.Count(out.String(), "it is gone") != 1 {
				t.Errorf("begun %t: %s", begun, out.String())
			}
		}
	})
}

func TestKeepAlivesArePassedOn(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		var out strings.Builder
		write := func(b []byte) { out.Write(b) }
		s := x.Stream(0)
		if err := s.Feed([]byte(": the engine's own\n\n"), write); err != nil || s.Started() {
			t.Errorf("a comment began the answer: %v", err)
		}
		s.Ping(write)
		if !s.Started() {
			t.Error("not started after a ping")
		}
		if err := s.Feed([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: ping\n\n"), write); err != nil {
			t.Fatal(err)
		}
		want := "event: ping\ndata: {\"type\":\"ping\"}\n\n"
		if _, ok := x.(*Responses); ok {
			want = ": keep-alive\n"
		}
		if got := out.String(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, want) || strings.Count(got, want) != 2 || !strings.Contains(got, "_start\n") && !strings.Contains(got, ".created\n") {
			t.Errorf("got %s", got)
		}
	})
}

// The last event of a Responses stream repeats the whole output: an endless stream of an
// engine must not fill the router's memory.
func TestOutputIsBounded(t *testing.T) {
	_, r, err := ResponsesRequest([]byte(`{"model":"m","input":"q","stream":true}`), Options{MaxOutputBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	piece := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", 100) + "\"}}]}\n\n"
	s := r.Stream(0)
	for i := range 20 {
		if err = s.Feed([]byte(piece), func([]byte) {}); err != nil {
			if i != 10 {
				t.Errorf("refused after %d pieces", i)
			}
			return
		}
	}
	t.Error("no bound")
}

func TestEventIsBoundedInPieces(t *testing.T) {
	for _, part := range []string{"data: xxxxxxxxxxxxxxxx\n", "x: xxxxxxxxxxxxxxxxxxx\n", "xxxxxxxxxxxxxxxxxxxxxx"} {
		f := frames{max: 1000}
		n := 0
		for !f.feed([]byte(part), func([]byte) bool { return true }, func() {}) {
			if n++; n > 1000 {
				t.Errorf("%q: no bound", part)
				break
			}
		}
	}
}

func TestMalformedAnswersAreErrors(t *testing.T) {
	both(t, func(t *testing.T, x Exchange) {
		for _, body := range []string{``, `x`, `[]`, `{}`, `{"choices":[]}`, `{"choices":[{"index":1}]}`, `{"choices":{}}`} {
			_, err := x.Answer([]byte(body), 0)
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 502 {
				t.Errorf("%s: %v", body, err)
			}
		}
		_, err := x.Answer([]byte(`{"object":"error","message":"no","code":503}`), 0)
		var e *EngineError
		if !errors.As(err, &e) || e.Status != 503 || e.AsError().Status != 503 {
			t.Errorf("%v", err)
		}
	})
}

func TestEngineErrorsInTheClientsForm(t *testing.T) {
	type want struct{ messages, responses string }
	for _, c := range []struct {
		status int
		body   string
		want   want
	}{
		{400, `{"object":"error","message":"bad \"x\"","type":"BadRequestError","param":"temperature","code":400}`, want{
			`{"type":"error","error":{"type":"invalid_request_error","message":"bad \"x\""}}`,
			`{"error":{"message":"bad \"x\"","type":"BadRequestError","param":"temperature","code":400}}`}},
		{404, `{"error":{"message":"no model","type":"NotFoundError","param":"model","code":404}}`, want{
			`{"type":"error","error":{"type":"not_found_error","message":"no model"}}`,
			`{"error":{"message":"no model","type":"NotFoundError","param":"model","code":404}}`}},
		{429, `{"error":"slow"}`, want{
			`{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}`,
			`{"error":{"message":"slow","type":"rate_limit_error","param":null,"code":null}}`}},
		{503, `overloaded`, want{
			`{"type":"error","error":{"type":"overloaded_error","message":"the engine answered with status 503"}}`,
			`{"error":{"message":"the engine answered with status 503","type":"server_error","param":null,"code":null}}`}},
		{404, `{"detail":"Not Found"}`, want{
			`{"type":"error","error":{"type":"not_found_error","message":"Not Found"}}`,
			`{"error":{"message":"Not Found","type":"invalid_request_error","param":null,"code":null}}`}},
		{422, `{"detail":[{"loc":["body"],"msg":"x"}]}`, want{
			`{"type":"error","error":{"type":"invalid_request_error","message":"[{\"loc\":[\"body\"],\"msg\":\"x\"}]"}}`,
			`{"error":{"message":"[{\"loc\":[\"body\"],\"msg\":\"x\"}]","type":"invalid_request_error","param":null,"code":null}}`}},
	} {
		both(t, func(t *testing.T, x Exchange) {
			w := c.want.messages
			if _, ok := x.(*Responses); ok {
				w = c.want.responses
			}
			if got := string(x.AppendError(nil, c.status, []byte(c.body))); got != w {
				t.Errorf("%s: got %s, want %s", c.body, got, w)
			}
		})
	}
}

// A router that adds the pairing fields to completions and chat bodies only sends
// /v1/messages to a pair without them, and the engine refuses each request. Here the
// engine gets a chat body to which the fields can be added, and its answer is translated
// back.
func TestMessagesAndResponsesCanBePaired(t *testing.T) {
	for route, body := range map[openai.Route]string{
		openai.RouteMessages:  `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`,
		openai.RouteResponses: `{"model":"m","input":"hi"}`,
	} {
		chat, x := translated(t, route, body)
		p, err := openai.Peek(openai.RouteChatCompletions, []byte(chat), openai.PeekOptions{Refuse: openai.ControlledFields})
		if err != nil {
			t.Fatal(err)
		}
		var s openai.Splicer
		s.Reset(p)
		s.SetString(openai.FieldBootstrapHost, "10.0.0.7")
		s.SetInt(openai.FieldBootstrapPort, 8998)
		s.SetInt(openai.FieldBootstrapRoom, 1<<63-1)
		var got map[string]json.RawMessage
		if err := json.Unmarshal(s.AppendBytes(nil), &got); err != nil {
			t.Fatal(err)
		}
		if string(got["bootstrap_room"]) != "9223372036854775807" || string(got["messages"]) != `[{"role":"user","content":"hi"}]` {
			t.Errorf("%s: the pair gets %s", route, s.AppendBytes(nil))
		}
		p.Release()
		answer, err := x.Answer([]byte(chatWhole(`"message":{"content":"hello"},"finish_reason":"stop"`)), 0)
		if err != nil || !strings.Contains(string(answer), "hello") || strings.Contains(string(answer), "choices") {
			t.Errorf("%s: %v, %s", route, err, answer)
		}
	}
}

// Numbers must not pass through float64, which would change them.
func TestTranslatedNumbersArriveDigitForDigit(t *testing.T) {
	for route, body := range map[openai.Route]string{
		openai.RouteMessages:  `{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"n":9007199254740993}}]}],"seed":9007199254740993,"tools":[{"name":"f","input_schema":{"type":"object","maximum":9007199254740993}}]}`,
		openai.RouteResponses: `{"model":"m","input":[{"type":"function_call","call_id":"a","name":"f","arguments":"{\"n\":9007199254740993}"}],"seed":9007199254740993,"tools":[{"type":"function","name":"f","parameters":{"maximum":9007199254740993}}]}`,
	} {
		chat, x := translated(t, route, body)
		if strings.Count(chat, "9007199254740993") != 3 {
			t.Errorf("%s: %s", route, chat)
		}
		answer, err := x.Answer([]byte(chatWhole(`"message":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"n\":9007199254740993}"}}]},"finish_reason":"tool_calls"`)), 0)
		if err != nil || !strings.Contains(string(answer), "9007199254740993") {
			t.Errorf("%s: %v, %s", route, err, answer)
		}
	}
}

func TestTranslationKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`{"model":"mmm","input":"q","tools":[{"type":"function","name":"f"}],"metadata":{"a":"b"}}`)
	_, r, err := ResponsesRequest(body, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.Answer([]byte(`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	clear(body)
	got, err := r.Answer([]byte(`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`), 0)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %s", err, got)
	}
}
