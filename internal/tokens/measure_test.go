package tokens

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

func TestMeasure(t *testing.T) {
	for _, tc := range []struct {
		name  string
		route openai.Route
		body  string
		want  Prompt
	}{
		{"chat", openai.RouteChatCompletions, chat(quote("hello"), quote("wörld")),
			Prompt{ASCII: 9, Other: 2, Messages: 2, Prompts: 1, clear: true}},
		{"ids", openai.RouteCompletions, `{"prompt":[1,2,3]}`, Prompt{IDs: 3, Prompts: 1}},
		{"lists of ids", openai.RouteCompletions, `{"prompt":[[1,2],[3]]}`, Prompt{IDs: 3, Prompts: 2}},
		{"batch", openai.RouteCompletions, `{"prompt":["ab","c"]}`, Prompt{ASCII: 3, Prompts: 2}},
		{"samples", openai.RouteGenerate, `{"text":"abc","sampling_params":{"n":2}}`, Prompt{ASCII: 3, Prompts: 1}},
		{"rows", openai.RouteGenerate, `{"input_embeds":[[0.5,1],[2,3]]}`, Prompt{IDs: 2, Prompts: 1}},
		{"image", openai.RouteChatCompletions,
			chat(`[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]`),
			Prompt{ASCII: 3, Messages: 1, Media: 1, Prompts: 1, clear: true}},
		{"responses", openai.RouteResponses, `{"input":"twelve bytes"}`, Prompt{ASCII: 14, Prompts: 1}},
		{"responses with an image", openai.RouteResponses, `{"input":["data:image/png;base64,` + strings.Repeat("A", 10000) + `"]}`,
			Prompt{ASCII: 26, Media: 1, Prompts: 1}},
		{"media cut off", openai.RouteOther, `{"x":";base64,"}`, Prompt{ASCII: 16, Media: 1, Prompts: 1}},
		{"nothing", openai.RouteChatCompletions, `{}`, Prompt{ASCII: 2, Prompts: 1}},
	} {
		if got := Measure(peek(t, tc.route, tc.body)); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
	tools := Measure(peek(t, openai.RouteChatCompletions, `{"messages":[{"role":"user","content":"a"}],"tools":[{"x":1}]}`))
	if tools.ToolBytes != 9 {
		t.Errorf("tools: %+v", tools)
	}
}

// The estimated share of text beyond ASCII is close, however the text is divided and
// escaped.
func TestShareOfNonASCIIText(t *testing.T) {
	en := "The quick brown fox jumps over the lazy dog. "
	zh := "敏捷的棕色狐狸跳过了懒狗。"
	ru := "Съешь ещё этих мягких французских булок. "
	emoji := "😀😁"
	for _, tc := range []struct {
		name  string
		texts []string
		near  float64
	}{
		{"short", []string{en + zh, "é"}, 0},
		{"long English", []string{strings.Repeat(en, 200)}, 0},
		{"long Chinese", []string{strings.Repeat(zh, 200)}, 0},
		{"long Russian", []string{strings.Repeat(ru, 200)}, 0.15},
		{"emoji", []string{strings.Repeat(emoji, 200)}, 0},
		{"a system prompt and a question", []string{strings.Repeat(en, 100), strings.Repeat(zh, 50)}, 0.15},
		{"many messages", repeated(1000, en, zh), 0.2},
		{"more messages than are walked", repeated(maxWalk+1, strings.Repeat(ru, 9)), 0.2},
	} {
		var total, other int
		for _, s := range tc.texts {
			total += len(s)
			for i := range len(s) {
				if s[i] >= 0x80 {
					other++
				}
			}
		}
		for _, write := range []func(string) string{func(s string) string { return s }, escaped} {
			var ms []string
			for _, s := range tc.texts {
				ms = append(ms, quote(write(s)))
			}
			m := Measure(peek(t, openai.RouteChatCompletions, chat(ms...)))
			if m.ASCII+m.Other != int64(total) {
				t.Errorf("%s: %d and %d bytes, want %d in all", tc.name, m.ASCII, m.Other, total)
			}
			if off := math.Abs(float64(m.Other)-float64(other)) / float64(total); off > tc.near+0.01 {
				t.Errorf("%s: %d bytes of %d are other text, want %d", tc.name, m.Other, total, other)
			}
		}
	}
}

func repeated(n int, texts ...string) (all []string) {
	for i := range n {
		all = append(all, texts[i%len(texts)])
	}
	return all
}

func FuzzMeasure(f *testing.F) {
	f.Add(uint8(1), []byte(chat(quote("hello"), quote(`\u4e2d\ud83d\ude00\n`))))
	f.Add(uint8(2), []byte(`{"prompt":["a","`+strings.Repeat(`\u00e9`, 300)+`"]}`))
	f.Add(uint8(3), []byte(`{"input_ids":[[1],[2,3]]}`))
	f.Add(uint8(4), []byte(`{"input":"data:x;base64,AA"}`))
	f.Add(uint8(0), []byte(`{"a":";base64,;base64,"}`))
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		p := new(openai.Peeked)
		if p.Read(openai.Route(route%7), body, openai.PeekOptions{}) != nil {
			return
		}
		m := Measure(p)
		for _, n := range []int64{m.IDs, m.ASCII, m.Other, m.ToolBytes, m.Messages, m.Media} {
			if n < 0 || n > int64(len(body)) {
				t.Fatalf("%+v of %d bytes", m, len(body))
			}
		}
		e := NewEstimator(0, nil)
		if n := e.Estimate("m", &m); n < 0 || n > int64(len(body))*600+8 {
			t.Errorf("estimate %d of %d bytes", n, len(body))
		}
	})
}

func BenchmarkMeasure(b *testing.B) {
	for _, tc := range []struct {
		name string
		body string
	}{
		{"short", chat(quote("hello"))},
		{"8kB", chat(quote(strings.Repeat("The quick brown fox. ", 400)))},
		{"1MB in 40", chat(repeated(40, quote(strings.Repeat("The quick brown fox. ", 1200)))...)},
		{"4000 messages", chat(repeated(4000, quote("The quick brown fox."))...)},
	} {
		p := peek(b, openai.RouteChatCompletions, tc.body)
		e := NewEstimator(0, nil)
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := Measure(p)
				e.Estimate("m", &m)
			}
		})
	}
}

func ExampleMeasure() {
	p := new(openai.Peeked)
	if err := p.Read(openai.RouteCompletions, []byte(`{"model":"m","prompt":[11,22,33]}`), openai.PeekOptions{}); err != nil {
		panic(err)
	}
	m := Measure(p)
	fmt.Println(NewEstimator(0, nil).Estimate("m", &m))
	// Output: 3
}
