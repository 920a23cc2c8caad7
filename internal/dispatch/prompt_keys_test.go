package dispatch

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
)

// cachesOfM makes keys without a fleet: no engine of the model m tells of its blocks.
func cachesOfM() *caches {
	return &caches{choosing: true, scopes: map[string]*exactScopes{"m": {asked: mono.Now().Add(time.Hour)}}}
}

// keysOf are the keys of a body's prompt.
func keysOf(t testing.TB, route openai.Route, model, body string) []kv.Key {
	t.Helper()
	p, err := openai.Peek(route, []byte(body), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	k := cachesOfM().hashPrompt(p, model, "", 1000, countedPrompt{})
	if k == nil {
		return nil
	}
	defer k.release()
	return append([]kv.Key(nil), k.sent.keys()...)
}

// shared is how many of the first keys of two prompts are the same.
func shared(a, b []kv.Key) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

var words = strings.Repeat("some words of a system prompt that all requests have, ", 40)

// TestKeysOfPrompts shows which prompts are the same to the index, and which have nothing in
// common.
func TestKeysOfPrompts(t *testing.T) {
	chatOf := func(extra, messages string) string { return `{"model":"m","messages":[` + messages + `]` + extra + `}` }
	system := `{"role":"system","content":"` + words + `"}`
	user := `,{"role":"user","content":"hi"}`
	base := chatOf("", system+user)
	const all, none, some = -1, 0, -2
	for _, tc := range []struct {
		name   string
		a, b   openai.Route
		ba, bb string
		want   int
	}{
		{"the same", 0, 0, base, base, all},
		{"the order of fields", 0, 0, base, `{"messages":[{"content":"` + words + `","role":"system"}` + user + `],"model":"m"}`, all},
		{"what does not change the prompt", 0, 0, base, chatOf(`,"temperature":0.5,"stream":true,"user":"u","max_tokens":5`, system+user), all},
		{"content in parts", 0, 0, base, chatOf("", `{"role":"system","content":[{"type":"text","text":"`+words+`","cache_control":{"type":"ephemeral"}}]}`+user), all},
		{"another escape", 0, 0, base, chatOf("", strings.ReplaceAll(system, "words", `w\u006frds`)+user), all},
		{"another role", 0, 0, base, chatOf("", strings.Replace(system, "system", "user", 1)+user), none},
		{"another beginning", 0, 0, base, chatOf("", strings.Replace(system, "some", "more", 1)+user), none},
		{"another end", 0, 0, base, chatOf("", system+`,{"role":"user","content":"`+words+`"}`), some},
		{"tools", 0, 0, base, chatOf(`,"tools":[{"type":"function"}]`, system+user), none},
		{"a cache salt", 0, 0, base, chatOf(`,"cache_salt":"t1"`, system+user), none},
		{"two cache salts", 0, 0, chatOf(`,"cache_salt":"t1"`, system+user), chatOf(`,"cache_salt":"t2"`, system+user), none},
		{"no cache salt after all", 0, 0, base, chatOf(`,"cache_salt":null`, system+user), all},
		{"an extra key", 0, 0, chatOf(`,"cache_salt":"t1"`, system+user), chatOf(`,"extra_key":"t1"`, system+user), none},
		{"another template", 0, 0, base, chatOf(`,"chat_template":"x"`, system+user), none},
		{"another API", 0, openai.RouteMessages, base, chatOf("", system+user), none},
		{"completions and the native API", openai.RouteCompletions, openai.RouteGenerate, `{"prompt":"` + words + `"}`, `{"text":"` + words + `"}`, all},
		{"the first of a list", openai.RouteCompletions, openai.RouteCompletions, `{"prompt":"` + words + `"}`, `{"prompt":["` + words + `","x"]}`, all},
		{"token ids, with other blanks", openai.RouteCompletions, openai.RouteGenerate, `{"prompt":[` + idList(300, ",") + `]}`, `{"input_ids":[` + idList(300, " , ") + `]}`, all},
		{"texts and token ids", openai.RouteCompletions, openai.RouteCompletions, `{"prompt":"` + words + `"}`, `{"prompt":[` + idList(300, ",") + `]}`, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, r := range []*openai.Route{&tc.a, &tc.b} {
				if *r == 0 {
					*r = openai.RouteChatCompletions
				}
			}
			a, b := keysOf(t, tc.a, "m", tc.ba), keysOf(t, tc.b, "m", tc.bb)
			n := shared(a, b)
			if len(a) < 4 || len(b) < 4 {
				t.Fatalf("%d and %d keys", len(a), len(b))
			}
			if tc.want == all && (n != len(a) || n != len(b)) || tc.want == none && n != 0 || tc.want == some && (n < 4 || n == len(b)) {
				t.Errorf("%d keys of %d and %d are the same", n, len(a), len(b))
			}
		})
	}
	if n := shared(keysOf(t, openai.RouteChatCompletions, "m", base), keysOf(t, openai.RouteChatCompletions, "n", base)); n != 0 {
		t.Errorf("prompts of two models share %d keys", n)
	}
}

func idList(n int, sep string) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	return strings.Join(ids, sep)
}

// TestMediaCountAsWhatTheModelSees shows that an image takes room in the keys by what it is
// worth, and not by the length of its data.
func TestMediaCountAsWhatTheModelSees(t *testing.T) {
	image := func(data string) []kv.Key {
		return keysOf(t, openai.RouteChatCompletions, "m", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+data+`"}},{"type":"text","text":"`+words+`"}]}]}`)
	}
	small, large := image("AAAA"), image(strings.Repeat("A", 1<<20))
	if len(small) != len(large) || shared(small, large) != 0 {
		t.Errorf("%d and %d keys, %d the same", len(small), len(large), shared(small, large))
	}
	if again := image("AAAA"); shared(small, again) != len(small) {
		t.Error("the same image has other keys")
	}
}

// TestKeysOfStrangePrompts: whatever the prompt is, the keys are bounded and no panic ends
// the request.
func TestKeysOfStrangePrompts(t *testing.T) {
	chatOf := func(messages string) string { return `{"model":"m","messages":[` + messages + `]}` }
	for _, tc := range []struct {
		name     string
		route    openai.Route
		body     string
		min, max int
	}{
		{"empty", openai.RouteChatCompletions, chatOf(""), 0, 0},
		{"one byte", openai.RouteCompletions, `{"prompt":"x"}`, 0, 0},
		{"64 MiB", openai.RouteCompletions, `{"prompt":"` + strings.Repeat("x", 64<<20) + `"}`, maxKeys, maxKeys},
		{"64 MiB of escapes", openai.RouteCompletions, `{"prompt":"` + strings.Repeat(`\n`, 32<<20) + `"}`, maxKeys, maxKeys},
		{"many messages", openai.RouteChatCompletions, chatOf(strings.Repeat(`{"role":"user","content":"x"},`, 1<<20) + `{}`), 100, maxKeys},
		{"4,096 parts and more", openai.RouteChatCompletions, chatOf(`{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"words"},`, 5000) + `{}]}`), 90, 100},
		{"half a character", openai.RouteCompletions, `{"prompt":"` + strings.Repeat(`\ud83d`, 1000) + `"}`, 5, 20},
		{"many token ids", openai.RouteCompletions, `{"prompt":[` + strings.Repeat("1,", maxKeys*tokenBlock+1000) + `1]}`, maxKeys, maxKeys},
		{"embeddings", openai.RouteGenerate, `{"input_embeds":[[0.5,0.25]]}`, 0, 0},
		{"a stored conversation", openai.RouteResponses, `{"previous_response_id":"r","input":"` + words + `"}`, 0, 0},
		{"another route", openai.RouteEmbeddings, `{"input":"` + words + `"}`, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if n := len(keysOf(t, tc.route, "m", tc.body)); n < tc.min || n > tc.max {
				t.Errorf("%d keys, want %d to %d", n, tc.min, tc.max)
			}
		})
	}
}

// TestKeysGoOnWithTheAnswer shows for each API that the next turn's keys go through the
// answer of the one before, in each way a client may send it back.
func TestKeysGoOnWithTheAnswer(t *testing.T) {
	answer := strings.Repeat(`The answer: "é" \ 😀 <b>`+"\n", 60)
	plain, ascii := string(openai.AppendString(nil, answer)), strconv.QuoteToASCII(answer)
	ascii = strings.ReplaceAll(ascii, `\U0001f600`, `\ud83d\ude00`)
	turn := func(route openai.Route, said string) string {
		sep, messages := "", `{"role":"user","content":"`+words+`"}`
		if said != "" {
			sep = `,{"role":"assistant","content":` + said + `},{"role":"user","content":"and then?"}`
		}
		switch route {
		case openai.RouteResponses:
			return `{"instructions":"be kind","input":[` + messages + sep + `]}`
		case openai.RouteMessages:
			return `{"system":"be kind","messages":[` + messages + sep + `]}`
		}
		return `{"messages":[` + messages + sep + `]}`
	}
	for _, route := range []openai.Route{openai.RouteChatCompletions, openai.RouteMessages, openai.RouteResponses} {
		for form, said := range map[string]string{
			"as text": plain, "in ASCII": ascii, "in parts": `[{"type":"text","text":` + plain + `}]`,
		} {
			first, err := openai.Peek(route, []byte(turn(route, "")), openai.PeekOptions{})
			if err != nil {
				t.Fatal(err)
			}
			k := cachesOfM().hashPrompt(first, "m", "", 1000, countedPrompt{})
			if !k.growing {
				t.Fatalf("%s: the answer does not count", route)
			}
			before := len(k.sent.keys())
			k.sent.frame([]byte(assistantRole))
			k.sent.write([]byte(answer))
			next := keysOf(t, route, "m", turn(route, said))
			if n := shared(k.sent.keys(), next); n != len(k.sent.keys()) || n < before+4 {
				t.Errorf("%s, %s: %d of %d keys are those of the next turn (%d of the prompt)", route, form, n, len(k.sent.keys()), before)
			}
			k.release()
			first.Release()
		}
	}
}

// TestAnswersThatNoNextTurnGoesOnFrom are not recorded.
func TestAnswersThatNoNextTurnGoesOnFrom(t *testing.T) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"` + words + `"}],"n":2}`,
		`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"` + words + `"}]}`,
		`{"messages":[{"role":"user","content":"` + words + `"}],"echo":true}`,
	} {
		p, err := openai.Peek(openai.RouteChatCompletions, []byte(body), openai.PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if k := cachesOfM().hashPrompt(p, "m", "", 1000, countedPrompt{}); k.growing {
			t.Errorf("%.60s…: the answer counts", body)
		}
		p.Release()
	}
}

func BenchmarkHashPrompt(b *testing.B) {
	for _, size := range []int{1, 8, 128} {
		text := strings.Repeat("if a < b {\n\treturn \"words of a prompt\"\n}\n", size*1024/40)
		for name, body := range map[string]string{"code": text, "prose": strings.Repeat("words of a prompt, ", size*1024/19)} {
			b.Run(fmt.Sprintf("%s/%dKB", name, size), func(b *testing.B) {
				p, err := openai.Peek(openai.RouteChatCompletions, []byte(`{"messages":[{"role":"user","content":`+string(openai.AppendString(nil, body))+`}]}`), openai.PeekOptions{})
				if err != nil {
					b.Fatal(err)
				}
				defer p.Release()
				c := cachesOfM()
				b.SetBytes(int64(len(p.Body)))
				b.ReportAllocs()
				for b.Loop() {
					c.hashPrompt(p, "m", "", 1000, countedPrompt{}).release()
				}
			})
		}
	}
}

// TestCountedTextIsKnownByItsTokens: a text whose token ids are known here is looked up in
// what engines tell by the same keys as a prompt of these ids, and goes on to be known by its
// text in what they are sent.
func TestCountedTextIsKnownByItsTokens(t *testing.T) {
	c := cachesOfM()
	c.scopes["m"].scopes = []fleet.ExactScope{{Model: "m", Block: 16}, {Model: "served", Block: 32}}
	var ids []uint32
	var list strings.Builder
	for i := range uint32(10_000) {
		ids = append(ids, i*7919%50_000)
		fmt.Fprintf(&list, "%d,", ids[i])
	}
	asIDs := c.hashPrompt(mustPeekRoute(t, openai.RouteCompletions, `{"model":"m","prompt":[`+strings.TrimSuffix(list.String(), ",")+`]}`), "m", "", 10_000, countedPrompt{})
	text := c.hashPrompt(mustPeekRoute(t, openai.RouteCompletions, `{"model":"m","prompt":"`+words+`"}`), "m", "", 10_000, countedPrompt{ids: ids})
	if len(text.exact) != 2 || len(asIDs.exact) != 2 {
		t.Fatalf("%d and %d chains", len(text.exact), len(asIDs.exact))
	}
	for i := range text.exact {
		a, b := text.exact[i].keys(), asIDs.exact[i].keys()
		if len(a) < 300 || shared(a, b) != len(a) || len(a) != len(b) || text.exact[i].length != asIDs.exact[i].length {
			t.Errorf("chain %d: %d keys, %d of them as those of the ids, which are %d", i, len(a), shared(a, b), len(b))
		}
	}
	if plain := keysOf(t, openai.RouteCompletions, "m", `{"model":"m","prompt":"`+words+`"}`); shared(plain, text.sent.keys()) != len(plain) || len(plain) == 0 || !text.growing {
		t.Errorf("what it is sent is known by %d keys of %d", shared(plain, text.sent.keys()), len(plain))
	}
	// An engine that takes text may have made other ids of it: what it was sent counts too.
	for _, sent := range []bool{false, true} {
		p := mustPeekRoute(t, openai.RouteCompletions, `{"model":"m","prompt":"`+words+`"}`)
		if k := c.hashPrompt(p, "m", "", 10_000, countedPrompt{ids: ids, sent: sent}); k.asIDs != sent {
			t.Errorf("known by ids alone: %v, sent as ids: %v", k.asIDs, sent)
		}
	}
	if !asIDs.asIDs {
		t.Error("a prompt of ids is not known by them alone")
	}
	if got := text.tokensIn(&text.exact[0], 10); got != 160 {
		t.Errorf("10 blocks of 16 are %d tokens", got)
	}
}

func mustPeekRoute(t *testing.T, route openai.Route, body string) *openai.Peeked {
	t.Helper()
	p, err := openai.Peek(route, []byte(body), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p
}
