package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
)

// FuzzFanStream: the output does not depend on how the same bytes in the same order are
// cut, is whole events, and never has more choices than the copies have.
func FuzzFanStream(f *testing.F) {
	for i, s := range [][2]string{
		{chunk("a", 0, "x") + "data: [DONE]\n\n", chunk("bb", 0, "é") + "data: [DONE]\n\n"},
		{"data: {\"choices\":[],\"usage\":{\"completion_tokens\":1,\"total_tokens\":2,\"prompt_tokens\":1}}\r\n\r\ndata: [DONE]\r\n\r\n", "data: {\"usage\":{\"completion_tokens\":5}}\r\rdata: [DONE]\r\r"},
		{chunk("a", 0, "x") + chunk("a", 0, "y") + chunk("a", 1, "z"), chunk("bb", 1, "x") + chunk("bb", 1, "y") + "data: {\"id\":\"bb\",\"created\":172,\"choices\":[{\"index\":1},{\"index\":0}]}\n\n"},
		{"data: {\"choices\":[{\"index\":0}]}\n\ndata: {\"choices\":[{\"index\":0,\"index\":1}]}\n\n", "data: {\"choices\":[{\"index\":1}],\"usage\":{}}\n\ndata: {\"choices\":[{\"index\":1}],\"choices\":[{\"index\":10}]}\n\n"},
		{": ping\n\n", "data: {\"choices\":\ndata: [{\"index\":1}]}\n: x\nid: 1\n\n"},
		{"data: {\"error\":{\"code\":500}}\n\n", "event: error\ndata: {}\n\n"},
		{"\xef\xbb\xbfdata: {\"\\u0069d\":\"a\\u0000\",\"created\":1}\n\n", "data: {\"id\":\"b\",\"created\":2e1,\"id\":\"c\"}\n\n"},
		{"data: {\"choices\":[{\"index\":2}]}\n\n", "data: {\"choices\":[{\"index\":0,\"index\":0}]}\n\n"},
	} {
		f.Add([]byte(s[0]), []byte(s[1]), uint64(i)*0x9e3779b97f4a7c15)
	}
	f.Fuzz(func(t *testing.T, a, b []byte, order uint64) {
		fan := Fan{Copies: 2, Prompts: 2, Usage: order&1 != 0}
		rest := [2][]byte{a, b}
		var parts []part
		for turn := order; len(rest[0])+len(rest[1]) > 0; turn = turn>>5 | turn<<59 {
			k := int(turn >> 4 & 1)
			n := min(len(rest[k]), int(turn&15)*3+1)
			if n > 0 {
				parts = append(parts, part{k, string(rest[k][:n])})
				rest[k] = rest[k][n:]
			} else if turn == turn>>5|turn<<59 {
				break // it would always be this one's turn
			}
		}
		run := func(size int) (string, *FanError, bool) {
			m := fan.Stream(512)
			got, err := runFan(t, m, parts, size)
			var e *FanError
			if err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
			return got, e, m.Done()
		}
		whole, fault, done := run(1 << 20)
		for _, size := range []int{1, 5} {
			cut, cutFault, cutDone := run(size)
			if cut != whole || cutDone != done || (fault == nil) != (cutFault == nil) || fault != nil && fault.Error() != cutFault.Error() {
				t.Fatalf("%v in pieces of %d: %q (%v), whole %q (%v)", parts, size, cut, cutFault, whole, fault)
			}
		}
		for e := range strings.SplitSeq(whole, "\n\n") {
			for line := range strings.SplitSeq(e, "\n") {
				data, ok := strings.CutPrefix(line, "data: ")
				if !ok {
					continue
				}
				if strings.TrimSpace(data) != "[DONE]" && !json.Valid([]byte(data)) {
					t.Fatalf("%q came out", data)
				}
			}
		}
		if done != (scanWhole(whole).Done && fault == nil) {
			t.Fatalf("done is %t after %q", done, whole)
		}
	})
}

// FuzzFanMerge: the merged answer is JSON with all choices in their order, as another
// parser reads it.
func FuzzFanMerge(f *testing.F) {
	for _, s := range [][2]string{
		{`{"choices":[{"index":0}],"usage":{"completion_tokens":1,"total_tokens":2,"prompt_tokens":1}}`, `{"choices":[{"index":0}],"usage":{"completion_tokens":3}}`},
		{`{"usage":{"completion_tokens_details":{"a":1,"b":null}},"choices" : [ {"x":[{"index":9}],"index" : 0} ] } `, `{"choices":[{"index":0,"text":"\ud800"}],"usage":{"completion_tokens_details":{"a":2}}}`},
		{`{"ch\u006fices":[{"\u0069ndex":0}]}`, `{"choices":[{"index":0}],"usage":null}`},
		{`{"error":{"message":"x"}}`, `[]`},
		{`{"choices":[{"index":0}],"usage":{"reasoning_tokens":9223372036854775807}}`, `{"choices":[{"index":0}],"usage":{"reasoning_tokens":1}}`},
	} {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		segs, n, err := Fan{Copies: 2, Prompts: 1}.Merge([][]byte{a, b})
		if err != nil {
			var e *FanError
			if !errors.As(err, &e) || e.Copy < 0 || e.Copy > 1 || e.Reason == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		got := bytes.Join(segs, nil)
		if n != len(got) || !json.Valid(a) || !json.Valid(b) || !json.Valid(got) {
			t.Fatalf("%q and %q became %q", a, b, got)
		}
		was, values := topLevel(t, a)
		names, merged := topLevel(t, got)
		if len(was) != len(names) {
			t.Fatalf("%q and %q became %q", a, b, got)
		}
		for i, name := range names {
			switch {
			case name == "choices":
				var list []json.RawMessage
				if err := json.Unmarshal([]byte(merged[i]), &list); err != nil || len(list) != 2 {
					t.Fatalf("%q: %v", merged[i], err)
				}
				for k, c := range list {
					fields, raw := topLevel(t, c)
					for j, field := range fields {
						if field == "index" && raw[j] != strconv.Itoa(k) {
							t.Fatalf("choice %d is %q", k, c)
						}
					}
				}
			case name != "usage" && values[i] != merged[i]:
				t.Fatalf("%s: %q became %q", name, values[i], merged[i])
			}
		}
	})
}

// FuzzReadErrorObject: it finds what another parser finds.
func FuzzReadErrorObject(f *testing.F) {
	for _, s := range []string{
		`{"error":{"message":"x","code":400}}`, `{"error":null}`, `{"object":"error","message":"m","code":503}`, `{"error":"x"}`, `{"error":[]}`,
		`{"error":{"message":"\ud800\u0000"}`, `[{"error":{}}]`, `{"type":"error","error":{}}`, `{"a":{"error":{}}}`, `{"error":{"code":1e2}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		status, message, ok := ReadErrorObject(b)
		if status != 0 && (status < 400 || status > 599) || len(message) > maxErrorMessage || !ok && (status != 0 || message != "") {
			t.Fatalf("%d %q %t", status, message, ok)
		}
		if !json.Valid(b) || bytes.TrimSpace(b)[0] != '{' || !bytes.Contains(b, errorWord) {
			return
		}
		want := false
		names, values := topLevel(t, b)
		for i, name := range names {
			v := values[i]
			want = want || name == "error" && (v[0] == '{' || v[0] == '"') || (name == "object" || name == "type") && v == `"error"`
		}
		if ok != want {
			t.Fatalf("%q: %t", b, ok)
		}
	})
}
