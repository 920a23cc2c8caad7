package openai

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPeekRefuses(t *testing.T) {
	deep := func(n int) string {
		return `{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for _, c := range []struct {
		name  string
		route Route
		body  string
		param string
		says  string
	}{
		{"empty", RouteChatCompletions, "", "", "is empty"},
		{"blank", RouteChatCompletions, " \n\t", "", "is empty"},
		{"not JSON", RouteChatCompletions, "model=m", "", "not valid JSON: unexpected \"m\" at byte 0"},
		{"byte order mark", RouteChatCompletions, "\xef\xbb\xbf{}", "", "byte order mark"},
		{"an array", RouteChatCompletions, `[{"model":"m"}]`, "", "is an array; it must be a JSON object"},
		{"a string", RouteChatCompletions, `"x"`, "", "is a string"},
		{"null", RouteChatCompletions, `null`, "", "is null"},
		{"a number", RouteChatCompletions, `-1.5e3`, "", "is a number"},
		{"truncated in a string", RouteChatCompletions, `{"model":"m`, "", "ends unfinished after 11 bytes"},
		{"truncated after a name", RouteChatCompletions, `{"model"`, "", "ends unfinished"},
		{"truncated after a colon", RouteChatCompletions, `{"model":`, "", "ends unfinished"},
		{"truncated in a number", RouteChatCompletions, `{"a":1.`, "", "ends unfinished"},
		{"truncated in a literal", RouteChatCompletions, `{"a":tr`, "", "ends unfinished"},
		{"truncated in an escape", RouteChatCompletions, `{"a":"\u00`, "", "ends unfinished"},
		{"open object", RouteChatCompletions, `{"model":"m"`, "", "ends unfinished"},
		{"open array", RouteCompletions, `{"prompt":[1,2`, "", "ends unfinished"},
		{"trailing data", RouteChatCompletions, `{"model":"m"} {}`, "", "more data after the JSON object, at byte 14"},
		{"trailing NUL", RouteChatCompletions, "{}\x00", "", "more data"},
		{"trailing comma", RouteChatCompletions, `{"model":"m",}`, "", "field name in quotes"},
		{"trailing comma in an array", RouteCompletions, `{"prompt":[1,2,]}`, "", "unexpected \"]\""},
		{"single quotes", RouteChatCompletions, `{'model':'m'}`, "", "field name in quotes"},
		{"NaN", RouteChatCompletions, `{"temperature":NaN}`, "", "unexpected \"N\""},
		{"leading zero", RouteChatCompletions, `{"a":01}`, "", "malformed number"},
		{"leading zero in a list", RouteCompletions, `{"prompt":[1,02,3]}`, "", "malformed number"},
		{"bare minus", RouteChatCompletions, `{"a":-}`, "", "malformed number"},
		{"control character", RouteChatCompletions, "{\"a\":\"x\ny\"}", "", "control character 0x0a"},
		{"bad escape", RouteChatCompletions, `{"a":"\x41"}`, "", "bad escape"},
		{"invalid UTF-8", RouteChatCompletions, "{\"model\":\"m\",\"user\":\"\xff\"}", "", "not valid UTF-8 (first bad byte at 21)"},
		{"UTF-8 of a surrogate", RouteChatCompletions, "{\"a\":\"\xed\xa0\x80\"}", "", "not valid UTF-8"},
		{"10 000 deep", RouteChatCompletions, deep(10000), "", "nested deeper than 512"},
		{"6 MB of [", RouteChatCompletions, strings.Repeat("[", 6<<20), "", "nested deeper than 512"},
		{"6 MB of [ in messages", RouteChatCompletions, `{"messages":` + strings.Repeat("[", 6<<20), "", "nested deeper than 512"},
		{"6 MB of [ in a prompt", RouteCompletions, `{"prompt":` + strings.Repeat("[", 6<<20), "", "nested deeper than 512"},
		{"6 MB of [ as embeddings", RouteGenerate, `{"input_embeds":` + strings.Repeat("[", 6<<20), "", "nested deeper than 512"},
		{"5 MB of {\"a\":", RouteChatCompletions, strings.Repeat(`{"a":`, 1<<20), "", "nested deeper than 512"},
		{"5 MB of content parts", RouteChatCompletions, `{"messages":` + strings.Repeat(`[{"content":`, 1<<19), "", "nested deeper than 512"},

		{"model twice", RouteChatCompletions, `{"model":"a","model":"b"}`, "model", "there twice"},
		{"model twice, spelled apart", RouteChatCompletions, `{"model":"a","\u006dode\u006C":"b"}`, "model", "there twice"},
		{"stream twice", RouteChatCompletions, `{"stream":true,"stream":true}`, "stream", "there twice"},
		{"prompt twice", RouteCompletions, `{"prompt":"a","prompt":["b","c"]}`, "prompt", "there twice"},
		{"n twice", RouteChatCompletions, `{"n":1,"n":8}`, "n", "there twice"},
		{"room twice", RouteChatCompletions, `{"bootstrap_room":null,"bootstrap_room":null}`, "bootstrap_room", "there twice"},
		{"sampling n twice", RouteGenerate, `{"sampling_params":{"n":1,"\u006e":9}}`, "sampling_params.n", "there twice"},

		{"model a number", RouteChatCompletions, `{"model":5}`, "model", "a number; it must be a string"},
		{"model an array", RouteChatCompletions, `{"model":["m"]}`, "model", "an array"},
		{"stream a string", RouteChatCompletions, `{"stream":"true"}`, "stream", "a string; it must be true or false"},
		{"stream a number", RouteChatCompletions, `{"stream":1}`, "stream", "a number"},
		{"n zero", RouteChatCompletions, `{"n":0}`, "n", "n is 0; it must be at least 1"},
		{"n negative", RouteChatCompletions, `{"n":-1}`, "n", "n is -1"},
		{"n a string", RouteChatCompletions, `{"n":"2"}`, "n", "a string; it must be a whole number"},
		{"n a fraction", RouteChatCompletions, `{"n":1.0}`, "n", "n is 1.0; it must be a whole number"},
		{"n an exponent", RouteChatCompletions, `{"n":1e0}`, "n", "n is 1e0"},
		{"n true", RouteChatCompletions, `{"n":true}`, "n", "a boolean"},
		{"n huge", RouteChatCompletions, `{"n":99999999999999999999999999}`, "n", "must be a whole number"},
		{"n beyond the bound", RouteChatCompletions, `{"n":9223372036854775807}`, "n", "at most 4096"},
		{"prompts × n beyond the bound", RouteCompletions, `{"n":4096,"prompt":["a","b"]}`, "n", "8192 samples (2 prompts, n=4096); at most 4096"},
		{"sampling n a string", RouteGenerate, `{"sampling_params":{"n":"1"}}`, "sampling_params.n", "a string"},
		{"sampling n differs", RouteGenerate, `{"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]}`, "sampling_params.n", "the same for all"},

		{"prompt a number", RouteCompletions, `{"prompt":5}`, "prompt", "a number; it must be"},
		{"prompt an object", RouteCompletions, `{"prompt":{}}`, "prompt", "an object"},
		{"prompt empty list", RouteCompletions, `{"prompt":[]}`, "prompt", "an empty or mixed list"},
		{"prompt mixed", RouteCompletions, `{"prompt":["a",1]}`, "prompt", "an empty or mixed list"},
		{"prompt mixed the other way", RouteCompletions, `{"prompt":[1,"a"]}`, "prompt", "mixed"},
		{"prompt mixed lists", RouteCompletions, `{"prompt":[[1],2]}`, "prompt", "mixed"},
		{"prompt lists of texts", RouteCompletions, `{"prompt":[["a"]]}`, "prompt", "mixed"},
		{"prompt with null", RouteCompletions, `{"prompt":["a",null]}`, "prompt", "mixed"},
		{"text as ids", RouteGenerate, `{"text":[1,2]}`, "text", "a string or a list of strings"},
		{"ids as text", RouteGenerate, `{"input_ids":"a"}`, "input_ids", "list of token ids"},
		{"ids in batches in a chat", RouteChatCompletions, `{"input_ids":[[1],[2]]}`, "input_ids", "must be a list of token ids"},
		{"text and ids differ", RouteGenerate, `{"text":"a","input_ids":[[1],[2]]}`, "input_ids", "differ in shape"},
	} {
		_, err := Peek(c.route, []byte(c.body), PeekOptions{Refuse: ControlledFields})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an *Error", c.name, err)
			continue
		}
		if e.Status != 400 || e.Code != "invalid_request" || e.Type != "invalid_request_error" || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: got %d %s param=%q %q, want 400 invalid_request param=%q …%s…", c.name, e.Status, e.Code, e.Param, e.Message, c.param, c.says)
		}
		if len(e.Message) > 300 {
			t.Errorf("%s: the message has %d bytes", c.name, len(e.Message))
		}
	}
}

func TestPeekAcceptsUnusualBodies(t *testing.T) {
	for _, body := range []string{
		`{}`, ` { } `, "\r\n{\t}\n",
		`{"a":1e400,"b":-0,"c":1.0,"d":0.10,"e":1e3,"f":9007199254740993,"g":-9223372036854775808}`,
		`{"a":"\ud800","b":"\udc00\ud800","\ud800":1}`,
		`{"model":null,"stream":null,"n":null}`,
		`{"x":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `}`,
		`{"x":` + strings.Repeat(`{"y":`, 511) + "0" + strings.Repeat("}", 511) + `}`,
		`{"Model":"a","MODEL":"b","model":"c"}`,
		`{"unknown":1,"unknown":2}`,
		`{"messages":"not a list"}`, `{"messages":[1,"a",null,[]]}`, `{"messages":[{"content":[null,"text",7,{"text":5}]}]}`,
		`{"user":5,"session_id":[],"seed":"x","max_tokens":"many","stream_options":7,"return_logprob":0}`,
	} {
		p, err := Peek(RouteChatCompletions, []byte(body), PeekOptions{Refuse: ControlledFields})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		var s Splicer
		s.Reset(p)
		if got := string(s.AppendBytes(nil)); got != body {
			t.Errorf("%s became %s", body, got)
		}
		p.Release()
	}
}

func TestPeekReadsWhatRoutingNeeds(t *testing.T) {
	body := `{"model":"org\/name \u00e9","stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true},"n":3,
	"max_tokens":7,"max_completion_tokens":9,"user":"u\n1","session_id":"s","seed":-5,
	"tools":[{"a":1}],
	"messages":[
	 {"role":"system","content":"\u4f60\u597d"},
	 {"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:"}},"bare"]},
	 {"content":null,"role":"assistant","tool_calls":[{"id":"x"}]}]}`
	p := mustPeek(t, RouteChatCompletions, body)
	if p.Model != "org/name é" || !p.Stream || !p.IncludeUsage || p.N != 3 || p.MaxTokens != 9 || p.User() != "u\n1" || p.SessionID() != "s" || p.Seed != -5 {
		t.Errorf("got model %q stream %t usage %t n %d max %d user %q session %q seed %d", p.Model, p.Stream, p.IncludeUsage, p.N, p.MaxTokens, p.User(), p.SessionID(), p.Seed)
	}
	if p.IsBatch || p.BatchSize != 1 || p.Samples() != 3 {
		t.Errorf("batch %t of %d, %d samples", p.IsBatch, p.BatchSize, p.Samples())
	}
	var text []string
	for _, at := range p.Prompt {
		piece := string(AppendUnquoted(nil, p.Body[at.Start:at.End]))
		if len(piece) != at.Size {
			t.Errorf("%q has %d bytes, size says %d", piece, len(piece), at.Size)
		}
		text = append(text, fmt.Sprint(at.Item, piece))
	}
	if want := []string{"0你好", "1what?", "1bare"}; !slices.Equal(text, want) {
		t.Errorf("prompt %q, want %q", text, want)
	}
	if p.PromptBytes != 6+5+4 || p.Messages != 3 || p.MediaParts != 1 || p.ToolBytes != len(`[{"a":1}]`)+len(`[{"id":"x"}]`) || p.PromptKind != PromptMessages {
		t.Errorf("%d bytes, %d messages, %d media, %d of tools, kind %d", p.PromptBytes, p.Messages, p.MediaParts, p.ToolBytes, p.PromptKind)
	}
	if got := string(p.Raw(FieldMaxTokens)); got != "7" {
		t.Errorf("max_tokens raw %q", got)
	}
}

func TestPeekBatches(t *testing.T) {
	for _, c := range []struct {
		route        Route
		body         string
		kind         PromptKind
		batch        bool
		size, n      int
		bytes, ids   int
		spans, maxTk int
	}{
		{RouteCompletions, `{"prompt":"ab"}`, PromptText, false, 1, 1, 2, 0, 1, -1},
		{RouteCompletions, `{"prompt":["ab"]}`, PromptTexts, true, 1, 1, 2, 0, 1, -1},
		{RouteCompletions, `{"prompt":["ab","c",""],"n":2}`, PromptTexts, true, 3, 2, 3, 0, 3, -1},
		{RouteCompletions, `{"prompt":[1, 22 ,-3,0,1.5]}`, PromptTokens, false, 1, 1, 0, 5, 1, -1},
		{RouteCompletions, `{"prompt":[[1,2],[],[3 , 4,5]]}`, PromptTokenLists, true, 3, 1, 0, 5, 3, -1},
		{RouteCompletions, `{"prompt":null}`, PromptNone, false, 1, 1, 0, 0, 0, -1},
		{RouteGenerate, `{"text":"ab","sampling_params":{"n":4,"max_new_tokens":5},"n":"ignored"}`, PromptText, false, 1, 4, 2, 0, 1, 5},
		{RouteGenerate, `{"text":["ab","c"],"sampling_params":[{"n":2,"max_new_tokens":5},{"n":2,"max_new_tokens":9}]}`, PromptTexts, true, 2, 2, 3, 0, 2, 9},
		{RouteGenerate, `{"text":["a","b"],"sampling_params":[{},{"n":null}]}`, PromptTexts, true, 2, 1, 2, 0, 2, -1},
		{RouteGenerate, `{"input_ids":[1,2,3]}`, PromptTokens, false, 1, 1, 0, 3, 1, -1},
		{RouteGenerate, `{"input_ids":[[1],[2,3]],"text":["a","b"]}`, PromptTexts, true, 2, 1, 2, 3, 4, -1},
		{RouteGenerate, `{"input_embeds":[[0.1,0.2],[0.3,0.4]]}`, PromptEmbeds, false, 1, 1, 0, 2, 0, -1},
		{RouteGenerate, `{"input_embeds":[[[0.1],[0.3]],[[1]]]}`, PromptEmbedLists, true, 2, 1, 0, 3, 0, -1},
		{RouteEmbeddings, `{"input":["a","b"]}`, PromptTexts, true, 2, 1, 2, 0, 2, -1},
		{RouteChatCompletions, `{"messages":[],"input_ids":[1,2]}`, PromptTokens, false, 1, 1, 0, 2, 1, -1},
	} {
		p := mustPeek(t, c.route, c.body)
		if p.PromptKind != c.kind || p.IsBatch != c.batch || p.BatchSize != c.size || p.N != c.n || p.PromptBytes != c.bytes ||
			p.PromptTokenIDs != c.ids || len(p.Prompt) != c.spans || p.MaxTokens != int64(c.maxTk) {
			t.Errorf("%s: kind %d batch %t size %d n %d bytes %d ids %d spans %d max %d, want %+v", c.body, p.PromptKind, p.IsBatch, p.BatchSize,
				p.N, p.PromptBytes, p.PromptTokenIDs, len(p.Prompt), p.MaxTokens, c)
		}
	}
	for body, want := range map[string]bool{
		`{"return_logprob":true}`: true, `{"return_logprob":false}`: false, `{"return_logprob":[false,true]}`: true,
		`{"return_logprob":[false]}`: false, `{"return_logprob":null}`: false, `{}`: false,
	} {
		if got := mustPeek(t, RouteGenerate, body).ReturnLogprob; got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
}

func TestPeekTokenIDs(t *testing.T) {
	p := mustPeek(t, RouteCompletions, `{"prompt":[[1, 22],[4294967295],[-1],[1.5],[4294967296]]}`)
	for i, want := range []struct {
		ids []uint32
		ok  bool
	}{{[]uint32{1, 22}, true}, {[]uint32{4294967295}, true}, {nil, false}, {nil, false}, {nil, false}} {
		got, ok := p.AppendPromptTokens(nil, p.Prompt[i])
		if !slices.Equal(got, want.ids) || ok != want.ok {
			t.Errorf("item %d: %v %t, want %v", i, got, ok, want)
		}
	}
}

// A Peeked and its pool must not carry anything over from the body before.
func TestPeekedIsReusable(t *testing.T) {
	full := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"sampling_params":{"n":2,"max_new_tokens":3},"text":["a","b"],` +
		`"input_ids":[[1],[2]],"return_logprob":true,"seed":1,"tools":[1]}`
	p := new(Peeked)
	for _, first := range []string{full, full[:len(full)-1], full + "x", `{"sampling_params":{"n":"x"}`} {
		_ = p.Read(RouteGenerate, []byte(first), PeekOptions{})
		if err := p.Read(RouteGenerate, []byte(`{"x":1}`), PeekOptions{}); err != nil {
			t.Fatal(err)
		}
		if p.Model != "" || p.ModelKind != KindAbsent || p.Stream || p.IncludeUsage || p.N != 1 || p.IsBatch || p.BatchSize != 1 || len(p.Prompt) != 0 ||
			p.PromptBytes != 0 || p.PromptTokenIDs != 0 || p.MaxTokens != -1 || p.ReturnLogprob || p.HasSeed || p.ToolBytes != 0 || p.Fields() != 0 ||
			p.Members != 1 || p.PromptKind != PromptNone || p.Has(FieldModel) || p.Raw(FieldModel) != nil {
			t.Errorf("after %q something is left", first)
		}
	}
}

// sampling_params is not read outside the native API, also by a Peeked that has read one
// before.
func TestPeekedForgetsSampling(t *testing.T) {
	p := new(Peeked)
	for _, first := range []string{`{"sampling_params":{"n":2}}`, `{"sampling_params":{"n":0}}`, `{"sampling_params":{"n":0}`} {
		_ = p.Read(RouteGenerate, []byte(first), PeekOptions{})
		if err := p.Read(RouteChatCompletions, []byte(`{"sampling_params":{"n":7}}`), PeekOptions{}); err != nil || p.N != 1 {
			t.Errorf("after %s: n %d, %v", first, p.N, err)
		}
	}
}

func TestPeekKeepsABoundedPrompt(t *testing.T) {
	p := new(Peeked)
	body := `{"messages":[` + strings.Repeat(`{"content":"x"},`, 99) + `{"content":"x"}]}`
	if err := p.Read(RouteChatCompletions, []byte(body), PeekOptions{MaxPromptSpans: 10}); err != nil {
		t.Fatal(err)
	}
	if len(p.Prompt) != 10 || p.PromptBytes != 100 || p.Messages != 100 {
		t.Errorf("%d spans, %d bytes, %d messages", len(p.Prompt), p.PromptBytes, p.Messages)
	}
}

func TestPeekAllocations(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("hello ", 1<<17) + `"}]}`)
	n := testing.AllocsPerRun(20, func() {
		p, err := Peek(RouteChatCompletions, body, PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
	})
	if n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
}

// A client must not choose a bootstrap room: two requests with the same room crash both
// schedulers.
func TestFieldsThatTheRouterControlsAreRefused(t *testing.T) {
	for f := FieldNone + 1; f < numFields; f++ {
		if !ControlledFields.Has(f) {
			continue
		}
		for _, name := range []string{f.String(), fmt.Sprintf(`\u%04x%s`, f.String()[0], f.String()[1:])} {
			body := fmt.Sprintf(`{"messages":[],"%s":7}`, name)
			_, err := Peek(RouteChatCompletions, []byte(body), PeekOptions{Refuse: ControlledFields})
			var e *Error
			if !errors.As(err, &e) || e.Status != 400 || e.Param != f.String() {
				t.Errorf("%s: %v", body, err)
			}
		}
		if p, err := Peek(RouteChatCompletions, []byte(fmt.Sprintf(`{"%s":null}`, f)), PeekOptions{Refuse: ControlledFields}); err != nil {
			t.Errorf("%s null: %v", f, err)
		} else {
			p.Release()
		}
	}
	if _, err := Peek(RouteChatCompletions, []byte(`{"rid":"x"}`), PeekOptions{Refuse: ControlledFields.With(FieldRID)}); err == nil {
		t.Error("rid passed although it is controlled")
	}
	if p, err := Peek(RouteChatCompletions, []byte(`{"rid":"x"}`), PeekOptions{Refuse: ControlledFields}); err != nil {
		t.Errorf("rid: %v", err)
	} else {
		p.Release()
	}
}

// A request's prompt may be in any of the fields that its API has.
func TestEveryFormOfPromptIsAccepted(t *testing.T) {
	for body, route := range map[string]Route{
		`{"messages":[{"role":"user","content":"x"}]}`: RouteChatCompletions,
		`{"prompt":"x"}`:           RouteCompletions,
		`{"prompt":["x","y"]}`:     RouteCompletions,
		`{"prompt":[1,2,3]}`:       RouteCompletions,
		`{"prompt":[[1,2],[3]]}`:   RouteCompletions,
		`{"input":"x"}`:            RouteOther,
		`{"text":"x"}`:             RouteGenerate,
		`{"model":"no prompt"}`:    RouteCompletions,
		`{"prompt_embeds":"AAAA"}`: RouteCompletions,
	} {
		if p, err := Peek(route, []byte(body), PeekOptions{Refuse: ControlledFields}); err != nil {
			t.Errorf("%s: %v", body, err)
		} else {
			p.Release()
		}
	}
}

// An unknown or odd model name must not be a 500. Peek distinguishes them; the server
// answers.
func TestUnusualModelNames(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	for _, c := range []struct {
		value, model string
		kind         Kind
	}{
		{`""`, "", KindString}, {`null`, "", KindNull}, {`"a/b c"`, "a/b c", KindString}, {`"モデル"`, "モデル", KindString},
		{`"` + long + `"`, long, KindString}, {`"a\/b"`, "a/b", KindString},
	} {
		p := mustPeek(t, RouteChatCompletions, `{"model":`+c.value+`}`)
		if p.Model != c.model || p.ModelKind != c.kind {
			t.Errorf("%.40s: %.40q %d", c.value, p.Model, p.ModelKind)
		}
	}
	if e := ModelNotFound(long); e.Status != 404 || e.Code != "model_not_found" || len(e.Message) > 300 {
		t.Errorf("%d %s, %d bytes", e.Status, e.Code, len(e.Message))
	}
}

func TestFieldTable(t *testing.T) {
	if numFields > 64 {
		t.Fatal("a FieldSet has 64 bits")
	}
	longest := 0
	for f := FieldNone + 1; f < numFields; f++ {
		longest = max(longest, len(fieldNames[f]))
		if fieldNames[f] == "" || lookupField([]byte(fieldNames[f])) != f {
			t.Errorf("field %d %q is not found by its name", f, fieldNames[f])
		}
		var escaped bytes.Buffer
		for _, c := range []byte(fieldNames[f]) {
			fmt.Fprintf(&escaped, `\u%04X`, c)
		}
		if lookupField(escaped.Bytes()) != f {
			t.Errorf("field %q is not found by its name in escapes", f)
		}
	}
	if longest != maxFieldName {
		t.Errorf("the longest name has %d bytes, maxFieldName is %d", longest, maxFieldName)
	}
}
