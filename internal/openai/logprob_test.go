package openai

import (
	"bytes"
	"strings"
	"testing"
)

func newMerger(t *testing.T, prefill string) *LogprobMerger {
	t.Helper()
	m, err := NewLogprobMerger([]byte(prefill))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLogprobMerge(t *testing.T) {
	p := `{"text":"a","meta_info":{"id":"p","input_token_logprobs":[ [-0.10,1,null], [-1e-05,22,"x]"] ],"prompt_tokens":2}}`
	const in = `[-0.10,1,null], [-1e-05,22,"x]"]`
	for _, c := range []struct{ name, prefill, decode, want string }{
		{"both", p, `{"text":"ab","meta_info":{"a":1.0, "input_token_logprobs": [[-2,3,null]] ,"z":0}, "u":1e400}`,
			`{"text":"ab","meta_info":{"a":1.0, "input_token_logprobs": [` + in + `,[-2,3,null]] ,"z":0}, "u":1e400}`},
		{"decode empty", p, `{"meta_info":{"input_token_logprobs":[ ]}}`, `{"meta_info":{"input_token_logprobs":[` + in + ` ]}}`},
		{"decode null", p, `{"meta_info":{"input_token_logprobs":null}}`, `{"meta_info":{"input_token_logprobs":[` + in + `]}}`},
		{"decode absent", p, `{"meta_info":{"id":"d"}}`, `{"meta_info":{"input_token_logprobs":[` + in + `],"id":"d"}}`},
		{"decode bare", p, `{"meta_info":{}}`, `{"meta_info":{"input_token_logprobs":[` + in + `]}}`},
		{"no meta_info", p, `{"error":{"message":"x"}}`, `{"error":{"message":"x"}}`},
		{"prefill empty", `{"meta_info":{"input_token_logprobs":[]}}`, `{"meta_info":{"input_token_logprobs":[[1]]}}`, `{"meta_info":{"input_token_logprobs":[[1]]}}`},
		{"prefill none", `{"meta_info":{}}`, `{"meta_info":{"input_token_logprobs":[[1]]}}`, `{"meta_info":{"input_token_logprobs":[[1]]}}`},
		{"batch", `[{"meta_info":{"input_token_logprobs":[1]}},{"meta_info":{"input_token_logprobs":[2]}}]`,
			` [ {"meta_info":{"input_token_logprobs":[3]}} , {"meta_info":{"input_token_logprobs":[]}},{"meta_info":{"input_token_logprobs":[9]}}] `,
			` [ {"meta_info":{"input_token_logprobs":[1,3]}} , {"meta_info":{"input_token_logprobs":[2]}},{"meta_info":{"input_token_logprobs":[9]}}] `},
		{"prefill streamed", "data: {\"index\":1,\"meta_info\":{\"input_token_logprobs\":[2]}}\n\ndata: {\"index\":0,\"meta_info\":{\"input_token_logprobs\":[1]}}\n\ndata: [DONE]\n\n",
			`[{"meta_info":{"input_token_logprobs":[3]}},{"meta_info":{"input_token_logprobs":[4]}}]`,
			`[{"meta_info":{"input_token_logprobs":[1,3]}},{"meta_info":{"input_token_logprobs":[2,4]}}]`},
	} {
		segs, n, err := newMerger(t, c.prefill).Merge([]byte(c.decode))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := string(bytes.Join(segs, nil))
		if got != c.want || n != len(got) {
			t.Errorf("%s: size %d\ngot  %s\nwant %s", c.name, n, got, c.want)
		}
	}
}

func TestLogprobMergeRefuses(t *testing.T) {
	for _, prefill := range []string{"", " ", "{", `{"meta_info":{"input_token_logprobs":[1}}`, `{} x`, "data: [DONE]\n\n", "data: x\n\n", "hello",
		"data: {\"index\":99999999}\n\n", strings.Repeat("[", 1<<20)} {
		if _, err := NewLogprobMerger([]byte(prefill)); err == nil {
			t.Errorf("%.40q was taken", prefill)
		}
	}
	m := newMerger(t, `{"meta_info":{"input_token_logprobs":[1]}}`)
	for _, decode := range []string{"", "{", "hello", `{"meta_info":{"input_token_logprobs":[}}`} {
		if _, _, err := m.Merge([]byte(decode)); err == nil {
			t.Errorf("decode %q was taken", decode)
		}
	}
	s := m.Stream(100)
	if err := s.Feed(bytes.Repeat([]byte("x"), 101), func([]byte) {}); err == nil {
		t.Error("an endless line was kept")
	}
}

// The answer has the logprob fields that the worker sends. However the decode's stream is
// cut into pieces, each event gets the prefill's list in front, and all else stays.
func TestLogprobMergeDoesNotDependOnTheCuts(t *testing.T) {
	m := newMerger(t, `[{"meta_info":{"input_token_logprobs":[[-1,1,null]]}},{"meta_info":{"input_token_logprobs":[[-2,2,null]]}}]`)
	d := func(list, rest string) string {
		return `{"text":"données 🙂","x":0.10,"meta_info":{"input_token_logprobs":[` + list + `],"output_token_logprobs":[[-3,3,null]],"input_top_logprobs":[null]}` + rest + `}`
	}
	stream := ": hi\n\ndata: " + d("[-4,4,null]", `,"index":1`) + "\r\n\r\ndata:" + d("", "") + "\n\ndata: {\"error\":{\"message\":\"x\"}}\r\rdata: {broken\n\ndata: [DONE]\n\ndata: {\"cu"
	want := ": hi\n\ndata: " + d("[-2,2,null],[-4,4,null]", `,"index":1`) + "\r\n\r\ndata:" + d("[-1,1,null]", "") + "\n\ndata: {\"error\":{\"message\":\"x\"}}\r\rdata: {broken\n\ndata: [DONE]\n\ndata: {\"cu"
	run := func(pieces ...string) string {
		var got []byte
		s := m.Stream(1 << 20)
		out := func(b []byte) { got = append(got, b...) }
		for _, p := range pieces {
			buf := []byte(p)
			if err := s.Feed(buf, out); err != nil {
				t.Fatal(err)
			}
			for i := range buf {
				buf[i] = '#'
			}
		}
		s.Close(out)
		return string(got)
	}
	for i := range len(stream) + 1 {
		if got := run(stream[:i], stream[i:]); got != want {
			t.Fatalf("cut at %d:\ngot  %q\nwant %q", i, got, want)
		}
	}
	if got := run(strings.Split(stream, "")...); got != want {
		t.Errorf("in characters: %q", got)
	}
}
