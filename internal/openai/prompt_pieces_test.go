package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// pieceLog writes the pieces of a walk down; texts side by side become one.
type pieceLog struct {
	b    strings.Builder
	kind PieceKind
	n    int
	max  int // pieces to take; 0: all
}

func (l *pieceLog) TakePiece(k PieceKind, b []byte) bool {
	if l.n == 0 || k != PieceText || l.kind != PieceText {
		if l.n > 0 {
			l.b.WriteByte('|')
		}
		l.b.WriteString([...]string{"frame:", "text:", "json:", "media:"}[k])
	}
	l.b.Write(b)
	l.kind = k
	l.n++
	return l.n != l.max
}

func piecesOf(t testing.TB, r Route, body string) string {
	t.Helper()
	p, err := Peek(r, []byte(body), PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	var l pieceLog
	new(PromptWalk).Walk(p, &l)
	return l.b.String()
}

func TestPiecesOfPrompts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		route Route
		body  string
		want  string
	}{
		{"tools come before messages wherever they stand", RouteChatCompletions,
			`{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}],"model":"m","tools":[{"a":1}]}`,
			`json:[{"a":1}]|frame:system|text:be kind|frame:user|text:hi`},
		{"content before role", RouteChatCompletions, `{"messages":[{"content":"hi","role":"user"}]}`, `frame:user|text:hi`},
		{"parts are one text with what follows", RouteChatCompletions,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"},"c"]}]}`, `frame:user|text:abc`},
		{"marks and annotations are left out", RouteChatCompletions,
			`{"messages":[{"role":"assistant","content":"x","refusal":null,"annotations":[],"reasoning_content":"hm","tool_calls":[],"cache_control":{"type":"ephemeral"}}]}`,
			`frame:assistant|text:x`},
		{"calls of tools and their results", RouteChatCompletions,
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}]},{"role":"tool","tool_call_id":"c1","content":"42"}]}`,
			`frame:assistant|json:[{"id":"c1"}]|frame:tool|text:42`},
		{"media", RouteChatCompletions,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"http://x/1.png"}},{"type":"input_audio","input_audio":{"data":"AAAA"}}]}]}`,
			`frame:user|text:see|media:{"url":"http://x/1.png"}|media:{"data":"AAAA"}`},
		{"what changes the template", RouteChatCompletions,
			`{"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"high","chat_template":"{{x}}","documents":null,"temperature":0.5}`,
			`json:"{{x}}"|json:"high"|frame:user|text:hi`},
		{"messages API", RouteMessages,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"out"},{"type":"image","source":{"data":"A"}}],"cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"t2","name":"ls","input":{"d":"/"}}]}],"system":[{"type":"text","text":"be kind","cache_control":{"type":"ephemeral"}}],"max_tokens":5,"tools":[1]}`,
			`json:[1]|frame:system|text:be kind|frame:user|text:out|media:{"data":"A"}|frame:assistant|json:"ls"|json:{"d":"/"}`},
		{"messages API, system as text", RouteMessages, `{"system":"s","messages":[{"role":"user","content":"u"}]}`, `frame:system|text:s|frame:user|text:u`},
		{"responses, input as text", RouteResponses, `{"instructions":"s","input":"u"}`, `frame:system|text:s|frame:user|text:u`},
		{"responses, items", RouteResponses,
			`{"input":[{"role":"user","content":[{"type":"input_text","text":"u"}]},{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"c","name":"ls","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"out"}]}`,
			`frame:user|text:u|frame:reasoning|frame:function_call|json:"ls"|text:{}|frame:function_call_output|text:out`},
		{"completions", RouteCompletions, `{"prompt":"once"}`, `text:once`},
		{"the first of a list", RouteCompletions, `{"prompt":["once","twice"]}`, `text:once`},
		{"native", RouteGenerate, `{"text":"once","lora_path":"a"}`, `json:"a"|text:once`},
		{"token ids have none", RouteCompletions, `{"prompt":[1,2,3]}`, ``},
		{"no messages", RouteChatCompletions, `{"messages":{"role":"user"}}`, ``},
		{"strange messages", RouteChatCompletions, `{"messages":[1,"x",{"role":5,"content":{}},{}]}`, `frame:|frame:`},
		{"one text however it is escaped", RouteChatCompletions,
			`{"messages":[{"role":"user","content":"\u0061\n\"\\ \u00e9 \ud83d\ude00 \ud83d \u003c"}]}`,
			"frame:user|text:a\n\"\\ é 😀 \uFFFD <"},
		{"an empty text", RouteChatCompletions, `{"messages":[{"role":"user","content":""}]}`, `frame:user`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := piecesOf(t, tc.route, tc.body); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestPiecesOfLongTexts decodes texts that are longer than the walk's own buffer, with
// escapes at all places.
func TestPiecesOfLongTexts(t *testing.T) {
	for _, every := range []int{1, 7, 500, 511, 512, 513, 3000} {
		var want []byte
		for i := range 9000 {
			if i%every == 0 {
				want = append(want, "\n\u00e9\U0001F600\""...)
			}
			want = append(want, byte('a'+i%26))
		}
		for _, form := range []string{string(AppendString(nil, string(want))), quoteASCII(want)} {
			got := piecesOf(t, RouteCompletions, `{"prompt":`+form+`}`)
			if got != "text:"+string(want) {
				t.Fatalf("every %d: %d bytes, want %d", every, len(got)-5, len(want))
			}
		}
	}
}

// quoteASCII writes a JSON string as clients do that write no more than ASCII.
func quoteASCII(b []byte) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range string(b) {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case r < 0x20 || r >= 0x7f:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// TestAWalkEndsWhenTheTakerWantsNoMore keeps the cost of giant prompts in bounds.
func TestAWalkEndsWhenTheTakerWantsNoMore(t *testing.T) {
	body := []byte(`{"messages":[` + strings.Repeat(`{"role":"user","content":[{"type":"text","text":"x"}]},`, 50) + `{"role":"user","content":"y"}]}`)
	p, err := Peek(RouteChatCompletions, body, PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	for n := 1; n < 20; n++ {
		l := pieceLog{max: n}
		if new(PromptWalk).Walk(p, &l); l.n != n {
			t.Errorf("%d pieces, want %d", l.n, n)
		}
	}
}

// TestAWalkIsBoundedInPieces shows the bound for prompts of very many small messages.
func TestAWalkIsBoundedInPieces(t *testing.T) {
	body := []byte(`{"messages":[` + strings.Repeat(`{},`, maxPieces+5) + `{}]}`)
	p, err := Peek(RouteChatCompletions, body, PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	var l pieceLog
	if new(PromptWalk).Walk(p, &l); l.n != maxPieces {
		t.Errorf("%d pieces", l.n)
	}
}

func TestWalkTokens(t *testing.T) {
	many := strings.Repeat("7, ", 1000) + "8"
	for _, tc := range []struct {
		route Route
		body  string
		want  string
		ok    bool
	}{
		{RouteCompletions, `{"prompt":[1, 22,333]}`, "1 22 333", true},
		{RouteCompletions, `{"prompt":[[4,5],[6]]}`, "4 5", true},
		{RouteGenerate, `{"input_ids":[4294967295]}`, "4294967295", true},
		{RouteChatCompletions, `{"messages":[{"role":"user","content":"x"}],"input_ids":[9]}`, "9", true},
		{RouteCompletions, `{"prompt":[1,4294967296,3]}`, "1", true},
		{RouteCompletions, `{"prompt":[1,-2,3]}`, "1", true},
		{RouteCompletions, `{"prompt":"x"}`, "", false},
		{RouteCompletions, `{"prompt":[` + many + `]}`, strings.ReplaceAll(many, ",", ""), true},
	} {
		p, err := Peek(tc.route, []byte(tc.body), PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		ok := WalkTokens(p, func(ids []uint32) bool {
			for _, id := range ids {
				got = append(got, fmt.Sprint(id))
			}
			return true
		})
		if ok != tc.ok || strings.Join(got, " ") != tc.want {
			t.Errorf("%.40s: %v %.40q", tc.body, ok, got)
		}
		p.Release()
	}
}

// FuzzPieces walks whatever Peek accepts: no panic, and the pieces are decoded as the
// scanner counts them.
func FuzzPieces(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"}],"tool_calls":[1]}],"tools":[{}]}`,
		`{"system":[{"text":"x"}],"input":[{"type":"a","output":[{"text":"b"}]}],"prompt":["x",1],"instructions":"y"}`,
		`{"messages":[{"role":"a","content":[{"type":"tool_result","content":[1,{"text":"x","source":{}}]}]}]}`,
	} {
		for r := range uint8(NumRoutes) {
			f.Add(r, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, r uint8, body []byte) {
		p, err := Peek(Route(r%uint8(NumRoutes)), body, PeekOptions{})
		if err != nil {
			return
		}
		defer p.Release()
		var a, b pieceLog
		var w PromptWalk
		w.Walk(p, &a)
		w.Walk(p, &b)
		if a.b.String() != b.b.String() {
			t.Fatal("two walks differ")
		}
		WalkTokens(p, func(ids []uint32) bool { return len(ids) > 0 })
	})
}

func BenchmarkWalk(b *testing.B) {
	code := strings.Repeat("if err != nil {\n\treturn nil, fmt.Errorf(\"cannot read: %w\", err)\n}\n", 400)
	for _, bm := range []struct{ name, text string }{{"plain", strings.Repeat("some words of a prompt ", 1200)}, {"code", code}} {
		b.Run(bm.name, func(b *testing.B) {
			body := bytes.NewBufferString(`{"messages":[{"role":"user","content":`)
			body.Write(AppendString(nil, bm.text))
			body.WriteString(`}]}`)
			p, err := Peek(RouteChatCompletions, body.Bytes(), PeekOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Release()
			var w PromptWalk
			b.SetBytes(int64(body.Len()))
			b.ReportAllocs()
			for b.Loop() {
				w.Walk(p, takeNothing{})
			}
		})
	}
}

type takeNothing struct{}

func (takeNothing) TakePiece(PieceKind, []byte) bool { return true }
