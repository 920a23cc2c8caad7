package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func benchBody(kind string, size int) []byte {
	fill := func(piece string) string {
		return strings.Repeat(piece, size/len(piece)+1)[:size/len(piece)*len(piece)]
	}
	switch kind {
	case "plain":
		return []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + fill("The quick brown fox jumps over the lazy dog and sleeps. ") + `"}]}`)
	case "escaped":
		return []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + fill(`line one of the text\nsaid \"hi\" and \u00e9t\u00e9 `) + `"}]}`)
	}
	var b bytes.Buffer
	b.WriteString(`{"model":"m","stream":true,"prompt":[1`)
	for i := 1; b.Len() < size; i++ {
		fmt.Fprintf(&b, ",%d", i*7919%128000)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func BenchmarkPeekSplice(b *testing.B) {
	for _, kind := range []string{"plain", "escaped", "tokens"} {
		route := RouteChatCompletions
		if kind == "tokens" {
			route = RouteCompletions
		}
		for _, size := range []struct {
			name  string
			bytes int
		}{{"4KB", 4 << 10}, {"64KB", 64 << 10}, {"1MB", 1 << 20}} {
			body := benchBody(kind, size.bytes)
			b.Run(kind+"/"+size.name, func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				var s Splicer
				for b.Loop() {
					p, err := Peek(route, body, PeekOptions{Refuse: ControlledFields})
					if err != nil {
						b.Fatal(err)
					}
					s.Reset(p)
					s.SetString(FieldBootstrapHost, "10.0.0.7")
					s.SetInt(FieldBootstrapPort, 8998)
					s.SetInt(FieldBootstrapRoom, 4611686018427387904)
					if _, n := s.Segments(); n <= len(body) {
						b.Fatal(n)
					}
					p.Release()
				}
			})
		}
	}
}

// One chunk of a chat's stream, as it passes.
func BenchmarkEventScanner(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1730000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	usage := []byte(`data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1730000000,"model":"m","choices":[],"usage":{"prompt_tokens":10,"total_tokens":30,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":5}}}` + "\n\n")
	for _, c := range []struct {
		name  string
		event []byte
	}{{"content", event}, {"usage", usage}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.event)))
			b.ReportAllocs()
			var e EventScanner
			for b.Loop() {
				e.Feed(c.event)
			}
		})
	}
}

// One chunk of one of n copies, as it passes; of a copy that is not the first to come,
// so that its id is replaced.
func BenchmarkStreamMerger(b *testing.B) {
	event := func(id string, choice string) []byte {
		return []byte(`data: {"id":"` + id + `","object":"chat.completion.chunk","created":1730000000,"model":"m","choices":[` + choice + `]}` + "\n\n")
	}
	content := event("chatcmpl-123", `{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}`)
	for _, c := range []struct {
		name  string
		event []byte
		cut   int
	}{
		{"content", content, 0},
		{"cut", content, 60},
		{"logprobs", event("chatcmpl-123", `{"index":0,"delta":{"content":" word"},"logprobs":{"content":[{"token":" word","logprob":-0.1,"bytes":[32,119,111,114,100],"top_logprobs":[{"token":" word","logprob":-0.1},{"token":" a","logprob":-2.5}]}]},"finish_reason":null}`), 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.event)))
			b.ReportAllocs()
			m := Fan{Copies: 4, Prompts: 1}.Stream(0)
			size := 0
			out := func(p []byte) { size = len(p) }
			if err := m.Feed(1, event("chatcmpl-4567", ""), out); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if c.cut > 0 {
					_ = m.Feed(3, c.event[:c.cut], out)
				}
				if err := m.Feed(3, c.event[c.cut:], out); err != nil || size <= len(c.event) {
					b.Fatal(err, size)
				}
			}
		})
	}
}

func BenchmarkReadErrorObject(b *testing.B) {
	answer := []byte(`{"id":"x","choices":[{"index":0,"message":{"content":"` + strings.Repeat("plain text of an answer ", 400) + `"}}],"usage":{"prompt_tokens":1}}`)
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := ReadErrorObject(answer); ok {
			b.Fatal("an error")
		}
	}
}
