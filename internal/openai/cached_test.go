package openai

import (
	"bytes"
	"testing"
)

func TestCachedSplicer(t *testing.T) {
	for _, c := range []struct {
		in, want string
		count    int64
	}{
		{`{"usage":{"prompt_tokens_details":{"cached_tokens":10}}}`, `{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}`, 7},
		{`{"meta_info":{"cached_tokens" : 0,"x":1}}`, `{"meta_info":{"cached_tokens" : 123,"x":1}}`, 123},
		{`{"cached_tokens":null}`, `{"cached_tokens":null}`, 5},
		{`{"cached_tokens":"3"}`, `{"cached_tokens":"3"}`, 5},
		{`{"cached_tokens":3}`, `{"cached_tokens":3}`, -1},
		{`{"content":"\"cached_tokens\":5","remote_cached_tokens":5,"cached_tokens_per_turn":5}`, `{"content":"\"cached_tokens\":5","remote_cached_tokens":5,"cached_tokens_per_turn":5}`, 9},
		{`{"content":"cached_tokens","cached_tokens":1}{"cached_tokens":2}`, `{"content":"cached_tokens","cached_tokens":33}{"cached_tokens":33}`, 33},
		{`{"prompt_tokens_details":null}`, `{"prompt_tokens_details":null}`, 5},
	} {
		for size := 1; size <= len(c.in); size++ {
			var s CachedSplicer
			var got []byte
			for rest := []byte(c.in); len(rest) > 0; {
				n := min(size, len(rest))
				got = append(got, s.Splice(rest[:n], c.count)...)
				rest = rest[n:]
			}
			if string(got) != c.want {
				t.Errorf("%s in pieces of %d: %s", c.in, size, got)
			}
		}
	}
	event := bytes.Repeat([]byte(`{"choices":[{"delta":{"content":"word"}}]}`), 3)
	var s CachedSplicer
	if n := testing.AllocsPerRun(10, func() { s.Splice(event, 3) }); n != 0 {
		t.Errorf("%v allocations where there is nothing to change", n)
	}
}
