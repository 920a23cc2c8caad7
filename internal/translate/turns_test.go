package translate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/openai"
)

// Strict chat templates refuse two turns of the user or of the assistant in a row.
// Clients send them, and they result from moving a system message between two turns.
func TestAdjacentMessagesOfOneRoleAreJoined(t *testing.T) {
	const (
		image  = `{"type":"image","source":{"type":"url","url":"u"}}`
		imaged = `{"type":"image_url","image_url":{"url":"u"}}`
		call   = `"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]`
	)
	turn := func(role, content string) string { return `{"role":"` + role + `","content":` + content + `}` }
	u := func(content string) string { return turn("user", content) }
	a := func(content string) string { return turn("assistant", content) }
	text := func(s string) string { return `{"type":"text","text":"` + s + `"}` }
	item := func(members string) string { return `{"type":` + members + `}` }
	output := item(`"function_call_output","call_id":"1","output":"r"`)
	called := item(`"function_call","call_id":"1","name":"f","arguments":"{}"`)
	for _, c := range []struct {
		route     openai.Route
		in, wants []string
	}{
		{openai.RouteMessages, []string{u(`"a"`), u(`"b"`), u(`"c\n\""`)}, []string{u(`"a\n\nb\n\nc\n\""`)}},
		{openai.RouteMessages, []string{u(`"a"`), turn("system", `"s"`), u(`[` + text("b") + `]`), a(`"x"`), u(`"c"`)}, []string{turn("system", `"s"`), u(`"a\n\nb"`), a(`"x"`), u(`"c"`)}},
		{openai.RouteMessages, []string{u(`"a"`), u(`[` + text("b") + `,` + image + `]`), u(`"c"`), u(`[` + text("d") + `,` + text("e") + `]`), u(`"f"`)},
			[]string{u(`[` + text(`a\n\nb`) + `,` + imaged + `,` + text(`c\n\nd`) + `,` + text(`e\n\nf`) + `]`)}},
		{openai.RouteMessages, []string{u(`[` + image + `]`), u(`[` + image + `]`)}, []string{u(`[` + imaged + `,` + imaged + `]`)}},
		{openai.RouteMessages, []string{u(`""`), u(`"a"`), u(`""`), u(`[]`), u(`"b"`)}, []string{u(`"a\n\nb"`)}},
		{openai.RouteMessages, []string{u(`[` + text("") + `,` + text("") + `]`), u(`"a"`)}, []string{u(`[` + text("") + `,` + text("a") + `]`)}},
		{openai.RouteMessages, []string{u(`[` + text("x") + `,` + text(`y\",\"text\":\"`) + `]`), u(`"a"`)}, []string{u(`[` + text("x") + `,` + text(`y\",\"text\":\"\n\na`) + `]`)}},
		{openai.RouteMessages, []string{a(`"a"`), u(`[]`), a(`[{"type":"thinking","thinking":"hm"},` + text("b") + `]`)}, []string{`{"role":"assistant","content":"a\n\nb","reasoning_content":"hm"}`}},
		{openai.RouteMessages, []string{a(`"a"`), a(`[{"type":"tool_use","id":"1","name":"f","input":{}}]`), u(`[{"type":"tool_result","tool_use_id":"1","content":"r"},{"type":"tool_result","tool_use_id":"2","content":"s"},` + text("b") + `]`), u(`"c"`)},
			[]string{`{"role":"assistant","content":"a",` + call + `}`, `{"role":"tool","tool_call_id":"1","content":"r"}`, `{"role":"tool","tool_call_id":"2","content":"s"}`, u(`"b\n\nc"`)}},
		{openai.RouteResponses, []string{u(`"a"`), turn("developer", `"s"`), u(`[{"type":"input_text","text":"b"},{"type":"input_image","image_url":"u"}]`), u(`[]`)},
			[]string{turn("system", `"s"`), u(`[` + text(`a\n\nb`) + `,` + imaged + `]`)}},
		{openai.RouteResponses, []string{u(`"a"`), called, a(`"said meanwhile"`), output, u(`"b"`)},
			[]string{u(`"a"`), `{"role":"assistant","content":"said meanwhile",` + call + `}`, `{"role":"tool","tool_call_id":"1","content":"r"}`, u(`"b"`)}},
		{openai.RouteResponses, []string{u(`"a"`), item(`"reasoning","summary":[]`), u(`"b"`), a(`[]`), u(`"c"`)}, []string{u(`"a\n\nb\n\nc"`)}},
		{openai.RouteResponses, []string{called, output, a(`"x"`), turn("system", `""`), a(`"y"`)},
			[]string{`{"role":"assistant","content":null,` + call + `}`, `{"role":"tool","tool_call_id":"1","content":"r"}`, a(`"x\n\ny"`)}},
	} {
		head, tail := `{"model":"m","input":[`, `]}`
		if c.route == openai.RouteMessages {
			head, tail = messagesHead+`[`, `],"max_tokens":5}`
		}
		chat, _ := translated(t, c.route, head+strings.Join(c.in, ",")+`]}`)
		if want := `{"model":"m","messages":[` + strings.Join(c.wants, ",") + tail; chat != want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.in, chat, want)
		}
	}
}

// For all turns of a request: at most one system message, which is the first, no two
// turns of the user or of the assistant in a row, and no text is lost.
func TestTurnsAlternate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		var system, said []string
		word := func(of *[]string) string {
			n++
			w := fmt.Sprintf("w%d.", n)
			*of = append(*of, w)
			return w
		}
		turns := map[openai.Route][]string{}
		for range rapid.IntRange(0, 8).Draw(t, "turns") {
			var messages, items string
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				w := word(&system)
				messages, items = `{"role":"system","content":"`+w+`"}`, `{"role":"developer","content":"`+w+`"}`
			case 1:
				w := word(&said)
				messages = `{"role":"user","content":"` + w + `"}`
				items = messages
			case 2:
				w, x := word(&said), word(&said)
				messages = `{"role":"user","content":[{"type":"text","text":"` + w + `"},{"type":"text","text":"` + x + `"}]}`
				items = `{"role":"user","content":[{"type":"input_text","text":"` + w + `"},{"type":"input_text","text":"` + x + `"}]}`
			case 3:
				w := word(&said)
				messages = `{"role":"assistant","content":[{"type":"text","text":"` + w + `"}]}`
				items = `{"role":"assistant","content":[{"type":"output_text","text":"` + w + `"}]}`
			case 4:
				w := word(&said)
				messages = `{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"` + w + `","input":{}}]}`
				items = `{"type":"function_call","call_id":"i","name":"` + w + `","arguments":"{}"}`
			case 5:
				w := word(&said)
				messages = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":"` + w + `"}]}`
				items = `{"type":"function_call_output","call_id":"i","output":"` + w + `"}`
			}
			turns[openai.RouteMessages] = append(turns[openai.RouteMessages], messages)
			turns[openai.RouteResponses] = append(turns[openai.RouteResponses], items)
		}
		for route, list := range turns {
			body := `{"model":"m","input":[` + strings.Join(list, ",") + `]}`
			if route == openai.RouteMessages {
				body = messagesHead + `[` + strings.Join(list, ",") + `]}`
			}
			b, _, err := translate(route, body, testOptions)
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			var chat struct{ Messages []map[string]any }
			if err := json.Unmarshal(b, &chat); err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			last := ""
			for i, m := range chat.Messages {
				role := m["role"].(string)
				if role == "system" && i > 0 || role == last && role != "tool" {
					t.Fatalf("%s became %s", body, b)
				}
				last = role
			}
			words := regexp.MustCompile(`w\d+\.`)
			got := words.FindAllString(string(b), -1)
			// Calls come after the text of their turn.
			if want := append(slices.Clone(system), said...); len(got) != len(want) || !slices.Equal(got[:len(system)], system) {
				t.Fatalf("%s became %s", body, b)
			}
		}
	})
}

// The client's body is not changed by a text that is joined to another.
func TestJoiningDoesNotChangeTheBody(t *testing.T) {
	body := []byte(messagesHead + `[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"assistant","content":"d"}]}`)
	before := string(body)
	if _, _, err := MessagesRequest(body, testOptions); err != nil || string(body) != before {
		t.Fatalf("%v: %s", err, body)
	}
}

// The work for a turn does not grow with the number of its neighbours.
func BenchmarkJoinedTurns(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			body := []byte(messagesHead + strings.TrimSuffix("["+strings.Repeat(`{"role":"user","content":"aaaaaaaa"},`, n), ",") + `]}`)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, _, err := MessagesRequest(body, testOptions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
