package openai

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// feedAnswer feeds the JSON in pieces.
func feedAnswer(json []byte, size, each int) *AnswerScanner {
	a := &AnswerScanner{MaxEach: each}
	for at := 0; at < len(json); at += size {
		a.Feed(json[at:min(at+size, len(json))])
	}
	return a
}

func TestAnswerScanner(t *testing.T) {
	long := strings.Repeat(`x\"\\ü{[`, 20_000)
	numbers := "[" + strings.Repeat("[-0.5,1,\"a\"],", 20_000) + "null]"
	abort := `{"finish_reason":{"type":"abort","message":"no \"luck\"","status_code":400}`
	for _, c := range []struct {
		name, json string
		status     int // of the abort
		told       string
		usage      Usage
		each       []int64
		closed     bool
	}{
		{name: "plain", json: `{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}}`, usage: Usage{5, -1, 3}, closed: true},
		{name: "far behind", json: `{"text":"` + long + `","output_ids":` + numbers + `,"meta_info":{"input_token_logprobs":` + numbers + `,"cached_tokens":7}}` + " \n", usage: Usage{-1, -1, 7}, closed: true},
		{name: "an abort far behind", json: `{"text":"` + long + `","meta_info":{"x":` + numbers + `,` + abort[1:] + `,"y":` + numbers + `}}`, status: 400, usage: noUsage, closed: true},
		{name: "an abort of many", json: `[` + strings.Repeat(`{"text":"`+long[:900]+`","meta_info":{"finish_reason":{"type":"stop"},"cached_tokens":2}},`, 2000) + `{"meta_info":` + abort + `}}]`,
			status: 400, usage: Usage{-1, -1, 4000}, each: []int64{2, 2, 2}, closed: true},
		{name: "an abort of many choices", json: `{"choices":[` + strings.Repeat(`{"text":"a","finish_reason":"stop"},`, 2000) + `{"finish_reason":"abort"}],"usage":{"prompt_tokens":1}}`, status: 503, usage: Usage{1, -1, -1}, closed: true},
		{name: "an error", json: `{"x":"` + long + `","error":{"message":"no","code":422}}`, told: "no", closed: true},
		{name: "in a text", json: `{"choices":[{"message":{"content":"\"finish_reason\":\"abort\"","finish_reason":"abort"},"finish_reason":"stop"}]}`, closed: true},
		{name: "in another list", json: `{"message":[{"finish_reason":"abort"}],"x":[{"finish_reason":"abort"}]}`, closed: true},
		{name: "cut", json: `{"text":"a`},
		{name: "no JSON", json: `hello`},
		{name: "crossed", json: `{"choices":[}]`},
	} {
		for _, size := range []int{1, 7, 4096, 1 << 30} {
			a := feedAnswer([]byte(c.json), size, 3)
			if a.Aborted != (c.status != 0) || a.Abort.Status != c.status || c.status == 400 && a.Abort.Message != `no "luck"` {
				t.Errorf("%s in pieces of %d: %v %+v", c.name, size, a.Aborted, a.Abort)
			}
			if c.usage == (Usage{}) {
				c.usage = noUsage
			}
			if a.HasUsage != (c.usage != noUsage) || a.HasUsage && a.Usage != c.usage || !slices.Equal(a.Cached, c.each) || a.Closed() != c.closed {
				t.Errorf("%s in pieces of %d: %+v %v, closed %v", c.name, size, a.Usage, a.Cached, a.Closed())
			}
			if status, told, _ := ReadErrorObject(a.Excerpt()); told != c.told || (status == 422) != (c.told != "") {
				t.Errorf("%s in pieces of %d: %d %s", c.name, size, status, told)
			}
			if cap(a.buf) > 2*maxAnswerKept {
				t.Errorf("%s: %d bytes are kept", c.name, cap(a.buf))
			}
		}
	}
}

func FuzzAnswerScanner(f *testing.F) {
	f.Add([]byte(`{"choices":[{"finish_reason":"abort"}],"usage":{"prompt_tokens":5}}`), 3)
	f.Add([]byte(`[{"meta_info":{"finish_reason":{"type":"abort","message":"\\u00fc\\"},"cached_tokens":3}},1,"x"]`), 1)
	f.Add([]byte(`{"error":{"message":"no","code":400},"a":[[{"b":"\\\""}]]}`), 2)
	f.Fuzz(func(t *testing.T, json []byte, size int) {
		if size <= 0 {
			return
		}
		whole, cut := feedAnswer(json, len(json)+1, 8), feedAnswer(json, size, 8)
		if whole.Aborted != cut.Aborted || whole.Abort != cut.Abort || whole.HasUsage != cut.HasUsage || whole.Usage != cut.Usage ||
			!slices.Equal(whole.Cached, cut.Cached) || whole.Closed() != cut.Closed() || !bytes.Equal(whole.Excerpt(), cut.Excerpt()) {
			t.Errorf("%q: %+v in one piece, %+v in pieces of %d", json, whole, cut, size)
		}
		if len(whole.Excerpt()) > maxAnswerKept || WholeJSON(json) && (json[0] == '{' || json[0] == '[') && !whole.Closed() {
			t.Errorf("%q: %d bytes kept, closed %t", json, len(whole.Excerpt()), whole.Closed())
		}
	})
}

// TestSpliceMessages: the counts add up to the prompt as before, whatever the engine that
// answers had cached of it.
func TestSpliceMessages(t *testing.T) {
	for in, want := range map[string]string{
		`{"content":[{"type":"tool_use","input":{"cache_read_input_tokens":1,"input_tokens":2}}],"usage":{"input_tokens":20,"cache_read_input_tokens":0,"output_tokens":3}}`: `{"content":[{"type":"tool_use","input":{"cache_read_input_tokens":1,"input_tokens":2}}],"usage":{"input_tokens":8,"cache_read_input_tokens":12,"output_tokens":3}}`,
		`{"type":"message_start","message":{"content":[],"usage":{"input_tokens":20,"cache_read_input_tokens":0}}}`:                                                          `{"type":"message_start","message":{"content":[],"usage":{"input_tokens":8,"cache_read_input_tokens":12}}}`,
		`{"usage":{"input_tokens":3,"cache_read_input_tokens":30}}`:                                                                                                          `{"usage":{"input_tokens":21,"cache_read_input_tokens":12}}`,
		`{"usage":{"input_tokens":3,"cache_creation_input_tokens":7,"cache_read_input_tokens":10}}`:                                                                          `{"usage":{"input_tokens":1,"cache_creation_input_tokens":7,"cache_read_input_tokens":12}}`,
		`{"usage":{"input_tokens":1,"cache_creation_input_tokens":15,"cache_read_input_tokens":0}}`:                                                                          `{"usage":{"input_tokens":0,"cache_creation_input_tokens":4,"cache_read_input_tokens":12}}`,
		`{"usage":{"input_tokens":1,"cache_creation_input_tokens":null,"cache_read_input_tokens":3}}`:                                                                        `{"usage":{"input_tokens":0,"cache_creation_input_tokens":null,"cache_read_input_tokens":12}}`,
		`{"usage":{"input_tokens":20,"cache_read_input_tokens":null}}`:                                                                                                       `{"usage":{"input_tokens":20,"cache_read_input_tokens":null}}`,
		`{"type":"message_start","message":{"usage":{"input_tokens":20,"output_tokens":0}}}`:                                                                                 `{"type":"message_start","message":{"usage":{"input_tokens":20,"output_tokens":0}}}`,
		`{"usage":{"output_tokens":20}}`: `{"usage":{"output_tokens":20}}`,
	} {
		if got := string(SpliceMessages([]byte(in), 12)); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func TestSpliceListEvents(t *testing.T) {
	in := "data: {\"text\":\"a\",\"meta_info\":{\"cached_tokens\":0},\"index\":1}\n\n: note\r\ndata: {\"meta_info\":{\"cached_tokens\":5},\"index\":9}\n\ndata: [DONE]"
	want := strings.Replace(in, `"cached_tokens":0`, `"cached_tokens":44`, 1)
	for size := 1; size <= len(in); size++ {
		var l LineSplicer
		var got []byte
		for at := 0; at < len(in); at += size {
			got = append(got, l.Splice([]byte(in[at:min(at+size, len(in))]), func(data []byte) []byte { return SpliceListEvent(data, []int64{3, 44}) })...)
		}
		if got = append(got, l.Rest()...); string(got) != want {
			t.Fatalf("in pieces of %d: %s", size, got)
		}
	}
	each := CachedSplicer{Each: []int64{7, -1, 9}}
	if got := string(each.Splice([]byte(`[{"cached_tokens":1},{"cached_tokens":2},{"cached_tokens":3}]`), -1)); got != `[{"cached_tokens":7},{"cached_tokens":2},{"cached_tokens":9}]` {
		t.Error(got)
	}
}
