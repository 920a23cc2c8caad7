package chattemplate

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// Whatever the source is, there is a text or an *Error: no panic, no endless render, and no text that is not UTF-8.
func FuzzRender(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "snippets.txt"))
	if err != nil {
		f.Fatal(err)
	}
	from := 0
	for i, c := range data {
		if c == '\n' {
			f.Add(string(data[from:i]))
			from = i + 1
		}
	}
	templates, _ := filepath.Glob(filepath.Join("testdata", "*.jinja"))
	for _, name := range templates {
		source, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	message := NewDict("role", "user", "content", "a b\nc")
	in := &Input{Messages: NewList(message, NewDict("role", "assistant", "content", nil)), Special: map[string]string{"bos_token": "<s>"}}
	f.Fuzz(func(t *testing.T, source string) {
		if !utf8.ValidString(source) {
			return
		}
		tm, err := Parse(source, Options{MaxDepth: 50})
		if err != nil {
			if kindOf(err) < 0 {
				t.Fatalf("Parse: %v", err)
			}
			return
		}
		tm.Facts()
		tm.o.MaxSteps, tm.o.MaxBytes, tm.o.MaxOutput = 100_000, 1<<22, 1<<20
		text, err := tm.Render(context.Background(), in)
		if err != nil && kindOf(err) < 0 {
			t.Fatalf("Render: %v", err)
		}
		if !utf8.ValidString(text) {
			t.Fatalf("the text is not UTF-8: %q", text)
		}
	})
}

// The inputs come from clients.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,-0,1e400,"x\ud83d\ude00"],"a":null}`, `"\ud800"`, `[[[[`, `1 2`, `{"a":}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = ParseJSON(data, 20) })
}

func BenchmarkRender(b *testing.B) {
	source, err := os.ReadFile(filepath.Join("testdata", "chatml-tools.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	tm, err := Parse(string(source), Options{})
	if err != nil {
		b.Fatal(err)
	}
	messages := &List{}
	for range 10 {
		messages.items = append(messages.items, NewDict("role", "user", "content", "Hello"), NewDict("role", "assistant", "content", "Hi"))
	}
	in := &Input{Messages: messages, AddGenerationPrompt: true}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tm.Render(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}
