package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// topLevel reads the fields of an object with another parser.
func topLevel(t *testing.T, body []byte) (names []string, values []string) {
	t.Helper()
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if tok, err := d.ReadToken(); err != nil || tok.Kind() != '{' {
		t.Fatalf("jsontext reads no object in %q: %v", body, err)
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			t.Fatalf("jsontext: %v in %q", err, body)
		}
		names = append(names, name.String())
		value, err := d.ReadValue()
		if err != nil {
			t.Fatalf("jsontext: %v in %q", err, body)
		}
		values = append(values, string(value))
	}
	if _, err := d.ReadToken(); err != nil {
		t.Fatalf("jsontext: %v in %q", err, body)
	}
	if _, err := d.ReadToken(); err != io.EOF {
		t.Fatalf("jsontext finds more in %q: %v", body, err)
	}
	return names, values
}

var fuzzBodies = []string{
	`{}`, `[]`, ``, `null`, `{"model":"m"}`, `{"model":"a","\u006dodel":"b"}`, `{"n":1.0}`, `{"n":3,"stream":true}`,
	`{"messages":[{"role":"user","content":"h\u00e9 \ud83d\ude42 \ud800 \n"},{"content":[{"type":"text","text":"x"},{"image_url":{}}]}]}`,
	`{"prompt":[1,22,333]}`, `{"prompt":[[1,2],[3]]}`, `{"prompt":["a","b"],"n":2}`, `{"prompt":[1,"a"]}`, `{"prompt":[1,02]}`, `{"prompt":[1, -2 , 3e4]}`,
	`{"text":["a"],"sampling_params":{"n":2,"max_new_tokens":9},"return_logprob":[true]}`, `{"text":"a","sampling_params":[{"n":2},{"n":2}]}`,
	`{"input_ids":[[1],[2,3]],"input_embeds":[[[0.5]],[[1]]]}`, `{"stream_options":{"include_usage":true},"seed":9007199254740993}`,
	`{"bootstrap_room":null,"bootstrap_room":1}`, `{"a":1e400,"b":-0,"c":0.10}`, "{\"a\":\"\xff\"}", "\xef\xbb\xbf{}", `{"a":[{"b":[{}]}]} `, `{"a":tru`,
	`{"a":"0123456789012345678901234567890123456789\"0123456789012345678901234567890123456789"}`,
}

func FuzzPeek(f *testing.F) {
	for _, b := range fuzzBodies {
		for _, r := range []Route{RouteChatCompletions, RouteCompletions, RouteGenerate} {
			f.Add(byte(r), []byte(b))
		}
	}
	f.Fuzz(func(t *testing.T, r byte, body []byte) {
		route := Route(r % 7)
		before := bytes.Clone(body)
		p := new(Peeked)
		err := p.Read(route, body, PeekOptions{MaxDepth: 64, Refuse: ControlledFields})
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Status != 400 || !json.Valid(e.AppendJSON(nil, ShapeOpenAI)) {
				t.Fatalf("%v", err)
			}
			if strings.Contains(e.Message, "not valid JSON") && !strings.Contains(e.Message, "nested deeper") && json.Valid(body) {
				t.Fatalf("refused valid JSON %q: %s", body, e.Message)
			}
			if strings.Contains(e.Message, "more data after") && json.Valid(body) {
				t.Fatalf("refused valid JSON %q: %s", body, e.Message)
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("took %q", body)
		}
		names, values := topLevel(t, body)
		if len(names) != p.Members {
			t.Fatalf("%d members in %q, want %d", p.Members, body, len(names))
		}
		seen := FieldSet(0)
		for i, name := range names {
			field := fieldByName([]byte(name))
			if field == FieldNone {
				continue
			}
			if seen.Has(field) {
				t.Fatalf("took %s twice in %q", name, body)
			}
			seen = seen.With(field)
			if got := string(p.Raw(field)); got != values[i] {
				t.Fatalf("%s is %q in %q, want %q", name, got, body, values[i])
			}
			if ControlledFields.Has(field) && values[i] != "null" {
				t.Fatalf("took %s in %q", name, body)
			}
		}
		if seen != p.Fields() {
			t.Fatalf("fields %x in %q, want %x", p.Fields(), body, seen)
		}
		if p.Has(FieldModel) && p.ModelKind == KindString {
			var model string
			if err := json.Unmarshal(p.Raw(FieldModel), &model); err != nil || model != p.Model {
				t.Fatalf("model %q in %q, want %q (%v)", p.Model, body, model, err)
			}
		}
		size, ids := 0, 0
		for _, at := range p.Prompt {
			raw := body[at.Start:at.End]
			if at.Tokens {
				var list []json.Number
				if err := json.Unmarshal(raw, &list); err != nil || len(list) != at.Size {
					t.Fatalf("%d ids in %q, want %d (%v)", at.Size, raw, len(list), err)
				}
				ids += at.Size
				p.AppendPromptTokens(nil, at)
				continue
			}
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				t.Fatalf("%q: %v", raw, err)
			}
			if got := string(AppendUnquoted(nil, raw)); got != text || len(text) != at.Size {
				t.Fatalf("%q is %q of %d bytes, want %q of %d", raw, got, at.Size, text, len(text))
			}
			size += at.Size
		}
		if size != p.PromptBytes {
			t.Fatalf("%d prompt bytes, pieces have %d", p.PromptBytes, size)
		}
		if !p.Has(FieldInputEmbeds) && ids != p.PromptTokenIDs {
			t.Fatalf("%d ids, pieces have %d", p.PromptTokenIDs, ids)
		}
		if p.N < 1 || p.BatchSize < 1 || p.Samples() > DefaultMaxSamples {
			t.Fatalf("n %d, batch %d", p.N, p.BatchSize)
		}
	})
}

func FuzzSplice(f *testing.F) {
	for i, b := range fuzzBodies {
		f.Add([]byte(b), uint64(i)*0x9e3779b97f4a7c15, int64(1)<<62, "10.0.0.7\"\n")
	}
	f.Fuzz(func(t *testing.T, body []byte, edits uint64, number int64, text string) {
		p := new(Peeked)
		if p.Read(RouteOther, body, PeekOptions{}) != nil {
			return
		}
		// Two bits a field: leave, delete, set to a number, set to a string.
		want := map[Field]string{}
		gone := FieldSet(0)
		touched := FieldSet(0)
		var s Splicer
		s.Reset(p)
		for i := range 32 {
			field := Field(1 + (i+int(edits>>60))%int(numFields-1))
			switch edits >> (2 * i) & 3 {
			case 1:
				s.Delete(field)
				gone, touched = gone.With(field), touched.With(field)
			case 2:
				s.SetInt(field, number)
				v, _ := json.Marshal(number)
				want[field] = string(v)
				touched = touched.With(field)
			case 3:
				s.SetString(field, text)
				touched = touched.With(field)
				want[field] = string(AppendString(nil, text))
				var back string
				if err := json.Unmarshal([]byte(want[field]), &back); err != nil || back != strings.ToValidUTF8(text, "\uFFFD") && utf8.ValidString(text) {
					t.Fatalf("%q became %q (%v)", text, back, err)
				}
			}
		}
		out := s.AppendBytes(nil)
		if !json.Valid(out) {
			t.Fatalf("%q became %q", body, out)
		}
		if _, n := s.Segments(); n != len(out) {
			t.Fatalf("size %d, want %d", n, len(out))
		}
		// Other fields have the same names and bytes in the same order.
		untouched := func(b []byte) (list []string, set map[Field]string) {
			set = map[Field]string{}
			names, values := topLevel(t, b)
			for i, name := range names {
				if field := fieldByName([]byte(name)); field != FieldNone && touched.Has(field) {
					if _, twice := set[field]; twice {
						t.Fatalf("%s twice in %q", name, b)
					}
					set[field] = values[i]
					continue
				}
				list = append(list, name+":"+values[i])
			}
			return list, set
		}
		before, _ := untouched(body)
		after, set := untouched(out)
		if !slices.Equal(before, after) {
			t.Fatalf("%q became %q", body, out)
		}
		for field, v := range want {
			if set[field] != v {
				t.Fatalf("%s is %q in %q, want %q", field, set[field], out, v)
			}
		}
		for field := range set {
			if gone.Has(field) {
				t.Fatalf("%s is still in %q", field, out)
			}
		}
	})
}

// plainEvents is a slow reader of event streams, written from the specification: it
// has the whole stream.
func plainEvents(stream string) (events, done, comments int, boundary bool) {
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	lines := strings.Split(stream, "\n")
	rest := lines[len(lines)-1]
	lines = lines[:len(lines)-1]
	var data []string
	fields := false
	for i, line := range lines {
		if i == 0 {
			line = strings.TrimPrefix(line, "\uFEFF")
		}
		if line == "" {
			if data != nil {
				events++
				if strings.TrimSpace(strings.Join(data, "\n")) == "[DONE]" {
					done++
				}
			}
			data, fields = nil, false
			continue
		}
		if line[0] == ':' {
			comments++
			continue
		}
		fields = true
		name, value, _ := strings.Cut(line, ":")
		if name == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return events, done, comments, rest == "" && !fields
}

func FuzzEventScanner(f *testing.F) {
	for i, s := range []string{
		"data: {}\n\ndata: [DONE]\n\n", "data: {}\r\n\r\n", "data: 1\r\rdata", ": x\n\nevent: error\ndata: {\"error\":{}}\n\n", "data: {\"error\":\ndata: 1}\n\n\n",
		"\xef\xbb\xbfdata: [DONE]\r\n\n", "data: {\"usage\":{\"prompt_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n", "data\n\ndata:\n\ndata: \n\n",
		"event: message_stop\ndata: {}\n\n", "data: {\"meta_info\":{\"prompt_tokens\":1}}\n\n",
	} {
		f.Add([]byte(s), uint64(i)*0x9e3779b97f4a7c15)
	}
	f.Fuzz(func(t *testing.T, stream []byte, cuts uint64) {
		whole := scanWhole(string(stream))
		events, done, comments, boundary := plainEvents(string(stream))
		if whole.Events != events || whole.Done != (done > 0) || whole.Comments != comments || whole.AtBoundary() != boundary {
			t.Fatalf("%q: %s, want %d events, %d done, %d comments, boundary %t", stream, summary(whole), events, done, comments, boundary)
		}
		if got := summary(feedBytewise(string(stream))); got != summary(whole) {
			t.Fatalf("%q bytewise: %s, want %s", stream, got, summary(whole))
		}
		cut := new(EventScanner)
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), int(cuts&15)+1)
			cuts = cuts>>4 | cuts<<60
			piece := bytes.Clone(rest[:n])
			cut.Feed(piece)
			clear(piece)
			rest = rest[n:]
		}
		if summary(cut) != summary(whole) {
			t.Fatalf("%q cut: %s, want %s", stream, summary(cut), summary(whole))
		}
		closed := append(bytes.Clone(stream), cut.AppendClose(nil)...)
		closed = Draining().AppendEvent(closed, ShapeOpenAI)
		if got := scanWhole(string(closed)); got.Errors < 1 || !strings.Contains(string(got.LastError), "draining") || !got.AtBoundary() {
			t.Fatalf("%q closed: %s", closed, summary(got))
		}
	})
}

// FuzzLogprobMerge: answers of engines are not trusted. A merge never panics, does not
// depend on the cuts, and turns JSON into JSON.
func FuzzLogprobMerge(f *testing.F) {
	f.Add([]byte(`{"meta_info":{"input_token_logprobs":[[1]]}}`), []byte(`{"meta_info":{"input_token_logprobs":[[2]]}}`), uint64(7))
	f.Add([]byte(`[{"meta_info":{"input_token_logprobs":[1]}}]`), []byte(`[{"meta_info":{}},{}]`), uint64(9))
	f.Add([]byte("data: {\"index\":3,\"meta_info\":{\"input_token_logprobs\":[1]}}\n\n"), []byte("data: {\"meta_info\":{\"input_token_logprobs\":null},\"index\":3}\r\n\r\ndata: x"), uint64(1))
	f.Fuzz(func(t *testing.T, prefill, decode []byte, cuts uint64) {
		m, err := NewLogprobMerger(prefill)
		if err != nil {
			return
		}
		if segs, n, err := m.Merge(decode); err == nil {
			got := bytes.Join(segs, nil)
			if n != len(got) {
				t.Fatalf("size %d, want %d", n, len(got))
			}
			if json.Valid(decode) && json.Valid(prefill) && !json.Valid(got) {
				t.Fatalf("%q and %q became %q", prefill, decode, got)
			}
		} else if json.Valid(decode) && (decode[0] == '{' || decode[0] == '[') && !strings.Contains(err.Error(), "nested") {
			t.Fatalf("refused %q: %v", decode, err)
		}
		run := func(next func() int) string {
			var got []byte
			out := func(b []byte) { got = append(got, b...) }
			s := m.Stream(0)
			for rest := decode; len(rest) > 0; {
				n := min(len(rest), next())
				piece := bytes.Clone(rest[:n])
				if err := s.Feed(piece, out); err != nil {
					t.Fatal(err)
				}
				clear(piece)
				rest = rest[n:]
			}
			s.Close(out)
			return string(got)
		}
		whole := run(func() int { return len(decode) })
		if got := run(func() int { return 1 }); got != whole {
			t.Fatalf("bytewise %q, whole %q", got, whole)
		}
		if got := run(func() int { cuts = cuts>>4 | cuts<<60; return int(cuts&15) + 1 }); got != whole {
			t.Fatalf("cut %q, whole %q", got, whole)
		}
	})
}
