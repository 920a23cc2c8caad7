package openai

import (
	"strings"
	"testing"
)

func TestReadAbort(t *testing.T) {
	for json, want := range map[string]Abort{
		`{"choices":[{"finish_reason":"stop"}]}`:                                                                                             {},
		`{"choices":[{"finish_reason":"something_new"}]}`:                                                                                    {},
		`{"choices":[{"message":{"content":"\"abort\""},"finish_reason":"length"}]}`:                                                         {},
		`{"choices":[{"delta":{"content":"abort"},"finish_reason":null}]}`:                                                                   {},
		`{"choices":[{"message":{"finish_reason":"abort"},"finish_reason":"stop"}]}`:                                                         {},
		`{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}`:                                                                   {503, ""},
		`{"choices":[{"finish_reason":"error"}]}`:                                                                                            {500, ""},
		`{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"too long","status_code":400,"err_type":"x"}}}`:          {400, "too long"},
		`{"meta_info":{"finish_reason":{"message":"m","status_code":200,"type":"abort"}}}`:                                                   {503, "m"},
		`[{"meta_info":{"finish_reason":{"type":"stop"}}},{"meta_info":{"finish_reason":"abort"}}]`:                                          {503, ""},
		`{"meta_info":{"finish_reason":{"type":"abort","message":"m"},"cut":`:                                                                {503, "m"},
		`{"id":"r","object":"response","status":"failed","error":{"code":"server_error","message":"m"}}`:                                     {500, "m"},
		`{"type":"response.completed","response":{"id":"r","object":"response","status":"failed","error":{"message":"m"}}}`:                  {500, "m"},
		`{"type":"response.completed","response":{"id":"r","object":"response","status":"completed","output":[{"status":"failed"}]}}`:        {},
		`{"id":"r","object":"response","status":"incomplete"}`:                                                                               {},
		`{"id":"r","object":"response","status":"cancelled","error":null}`:                                                                   {503, ""},
		`{"id":"b","object":"batch","status":"failed"}`:                                                                                      {},
		`{"type":"message","content":[],"stop_reason":"abort"}`:                                                                              {503, ""},
		`{"type":"message","content":[{"type":"text","text":"\"abort\""}],"stop_reason":"end_turn"}`:                                         {},
		`{"type":"message","stop_reason":"stop_sequence","stop_sequence":"error"}`:                                                           {},
		`{"type":"message_delta","delta":{"stop_reason":"error"},"usage":{"output_tokens":1}}`:                                               {500, ""},
		`{"type":"message_delta","delta":{"stop_reason":{"type":"abort","message":"m","status_code":400}}}`:                                  {400, "m"},
		`{"type":"message_start","message":{"stop_reason":"abort"}}`:                                                                         {503, ""},
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"\"stop_reason\":\"abort\""}}`:                                    {},
		`{"choices":[{"finish_reason":"stop","stop_reason":"abort"}],"x":"error"}`:                                                           {}, // the client's stop string
		`{"type":"response.completed","response":{"status":"failed"}}`:                                                                       {500, ""},
		`{"type":"response.completed","response":{"status":"cancelled"}}`:                                                                    {503, ""},
		`{"type":"response.incomplete","response":{"status":"incomplete","error":{"code":429,"message":"m"}}}`:                               {429, "m"},
		`{"type":"response.incomplete","response":{"incomplete_details":{"reason":"abort"},"error":null}}`:                                   {503, ""},
		`{"type":"response.incomplete","response":{"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"}}}`: {},
		`{"object":"response","status":"completed","error":"boom","output":[]}`:                                                              {500, "boom"},
		`{"object":"response","status":"completed","error":null,"output":[{"error":"boom","status":"failed"}]}`:                              {},
		`{"choices":[{"finish_reason":`:                                                                                                      {},
	} {
		if got, ok := ReadAbort([]byte(json)); got != want || ok != (want.Status != 0) {
			t.Errorf("%s: %+v %v", json, got, ok)
		}
	}
}

// However a stream is cut into pieces, only what precedes the abort is passed on.
func TestScannerStopsAtAnAbort(t *testing.T) {
	const before = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: note\n"
	const all = before + "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"abort\"}],\"usage\":{\"prompt_tokens\":7}}\n\ndata: [DONE]\n\n"
	for size := 1; size <= len(all); size++ {
		var e EventScanner
		passed := ""
		for at := 0; at < len(all) && !e.Aborted; at += size {
			piece := all[at:min(at+size, len(all))]
			if e.Feed([]byte(piece)); e.Aborted {
				piece = piece[:e.AbortAt]
			}
			passed += piece
		}
		if !e.Aborted || e.Abort.Status != 503 || e.Done || e.Usage.PromptTokens != 7 || e.DataEvents != 1 {
			t.Fatalf("pieces of %d: %+v", size, e)
		}
		if size == len(all) && passed != before {
			t.Errorf("passed %q", passed)
		}
		passed = string(e.AppendClose([]byte(passed)))
		if !strings.HasPrefix(passed, before) || passed != before && !strings.HasSuffix(passed, "\n\n") || strings.Contains(passed, "\n\n\n") {
			t.Errorf("pieces of %d: passed %q", size, passed)
		}
	}
}

func TestScannerClose(t *testing.T) {
	for _, c := range []struct {
		in, missing string
		finished    bool
	}{
		{"data: {}\n\ndata: [DONE]", "\n\n", true},
		{"data: {}\n\ndata: [DONE]\n", "\n", true},
		{"data: {}\n\ndata: [DONE]\r\n", "\n", true},
		{"data: {}\n\ndata:[DONE]\n\n", "", true},
		{"data: {}\n\ndata: [DO", "", false},
		{"data: {}\n\ndata: {\"a\"", "", false},
		{"data: {}\n\n", "", false},
	} {
		var e EventScanner
		e.Feed([]byte(c.in))
		if got := string(e.Close(nil)); got != c.missing || e.Finished != c.finished || c.finished && !e.AtBoundary() {
			t.Errorf("%q: %q finished %v", c.in, got, e.Finished)
		}
	}
}

func TestWholeJSON(t *testing.T) {
	for in, want := range map[string]bool{"": false, "{}": true, "[1]\n": true, `{"a":`: false, `{"a":1}}`: false, `{"a":"b`: false} {
		if WholeJSON([]byte(in)) != want {
			t.Errorf("%q", in)
		}
	}
}
