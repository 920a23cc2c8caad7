package generate

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// A token of a chat's stream, in a buffer that is used again.
func BenchmarkChatDelta(b *testing.B) {
	run(b, newRequest(func(r *Request) { r.Stream = true; r.Sampling.MaxTokens, r.Context = 1<<30, 0 }))
}

func BenchmarkChatDeltaWithStops(b *testing.B) {
	run(b, newRequest(func(r *Request) {
		r.Context = 0
		r.Stream, r.Sampling.MaxTokens, r.Sampling.Stop = true, 1<<30, []string{"STOP", "\n\nUser:"}
	}))
}

func run(b *testing.B, r *Request) {
	b.ReportAllocs()
	var a Answer
	a.Begin(r, "0123456789abcdef0123456789abcdef", 7)
	e := tell(idWorld)
	var out []byte
	for b.Loop() {
		var err error
		if out, err = a.Event(out[:0], e); err != nil {
			b.Fatal(err)
		}
	}
}

// A whole request of 32 tokens, from Begin to Release.
func BenchmarkChatOf32Tokens(b *testing.B) {
	b.ReportAllocs()
	r := newRequest(func(r *Request) { r.Stream = true })
	var a Answer
	e, last := tell(idWorld), end(Stopped, idEnd)
	var out []byte
	for b.Loop() {
		a.Begin(r, "0123456789abcdef0123456789abcdef", 7)
		for range 31 {
			out, _ = a.Event(out[:0], e)
		}
		out, _ = a.Event(out[:0], last)
		var err error
		if out, err = a.End(out[:0]); err != nil {
			b.Fatal(err)
		}
		a.Release()
	}
}

func BenchmarkReadChat(b *testing.B) {
	b.ReportAllocs()
	body := `{"model":"m",` + hi + `,"temperature":0.5,"stop":["STOP"],"max_tokens":100,"stream":true}`
	m := &fakeModel{context: 4096, ids: []uint32{1, 2, 3}}
	for b.Loop() {
		if _, err := readBody(b, openai.RouteChatCompletions, body, m, ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// A megabyte of text, whose tokens are counted elsewhere.
func BenchmarkReadLongChat(b *testing.B) {
	b.ReportAllocs()
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("All work and no play. ", 1<<20/22) + `"}],"temperature":0.5}`
	m := &fakeModel{context: 4096, ids: []uint32{1, 2, 3}}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := readBody(b, openai.RouteChatCompletions, body, m, ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
