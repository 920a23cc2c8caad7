package generate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Ids of the tests' tokenizer: those below 256 are a byte each.
const (
	idHello uint32 = 256 + iota
	idWorld        // with a space before it
	idStop         // "STOP"
	idEnd          // special: <|end|>
	idUser         // special: <|user|>
	idTests        // how many
)

// byteChar is the character for a byte in byte-level vocabularies.
func byteChar(b int) rune {
	n := 0
	for i := range 256 {
		printable := i >= '!' && i <= '~' || i >= 0xa1 && i <= 0xac || i >= 0xae
		if i == b && printable {
			return rune(b)
		}
		if i == b {
			return rune(256 + n)
		}
		if !printable {
			n++
		}
	}
	panic("BUG")
}

var testTokenizer = func() *tokenizer.Tokenizer {
	vocab := map[string]uint32{"Hello": idHello, "Ġworld": idWorld, "STOP": idStop}
	for b := range 256 {
		vocab[string(byteChar(b))] = uint32(b)
	}
	file := map[string]any{
		"version": "1.0",
		"added_tokens": []any{
			map[string]any{"id": idEnd, "content": "<|end|>", "special": true},
			map[string]any{"id": idUser, "content": "<|user|>", "special": true},
		},
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"post_processor": nil,
		"decoder":        map[string]any{"type": "ByteLevel"},
		"model":          map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}},
	}
	b, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	t, err := tokenizer.Parse(b)
	if err != nil {
		panic(err)
	}
	return t
}()

// newRequest is a request of a chat with a prompt of three tokens, changed by edit.
func newRequest(edit func(*Request)) *Request {
	r := &Request{
		Route: openai.RouteChatCompletions, Model: "m", Prompts: [][]uint32{{1, 2, 3}}, Samples: 1,
		Tokenizer: testTokenizer, Vocab: int(idTests) + 3, EOS: []uint32{idEnd}, Context: 4096,
		Sampling: Sampling{MaxTokens: 100, SkipSpecial: true, SpacesBetweenSpecial: true, Logprobs: -1, PromptLogprobs: -1},
		Form:     Form{Role: "assistant", Logprobs: -1, PromptLogprobs: -1},
	}
	if edit != nil {
		edit(r)
	}
	return r
}

// tell is an event with tokens of the first sequence.
func tell(ids ...uint32) *Event {
	return &Event{IDs: ids, PromptTokens: -1, CachedTokens: -1, MatchedID: -1}
}

// end is the last event of the first sequence.
func end(f Finish, ids ...uint32) *Event {
	e := tell(ids...)
	e.Finish = f
	return e
}

func (e *Event) of(prompt, sample int) *Event {
	e.Prompt, e.Sample = prompt, sample
	return e
}

func (e *Event) stop(s string) *Event {
	e.MatchedStop = s
	return e
}

// answer is all that the client gets, and what stopped it.
func answer(r *Request, events ...*Event) (string, error) {
	var a Answer
	a.Begin(r, "1", 7)
	var out []byte
	for _, e := range events {
		var err error
		if out, err = a.Event(out, e); err != nil {
			return string(out), err
		}
	}
	out, err := a.End(out)
	return string(out), err
}

// choice is a choice of an answer as clients read it.
type choice struct {
	Index   int    `json:"index"`
	Text    string `json:"text"`
	Message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"message"`
	Delta struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"delta"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   any             `json:"stop_reason"`
	Logprobs     json.RawMessage `json:"logprobs"`
	TokenIDs     []uint32        `json:"token_ids"`
}

type body struct {
	Choices []choice       `json:"choices"`
	Usage   map[string]any `json:"usage"`
}

// gist puts an answer together as a client does: for each choice its text and how it ended.
func gist(t testing.TB, answer string) string {
	t.Helper()
	texts, ends := map[int]string{}, map[int]string{}
	read := func(s string) {
		var b body
		if err := json.Unmarshal([]byte(s), &b); err != nil {
			t.Fatalf("no JSON: %v\n%s", err, s)
		}
		for _, c := range b.Choices {
			texts[c.Index] += c.Text + c.Message.Content + c.Delta.Content
			if c.FinishReason != nil {
				ends[c.Index] += fmt.Sprintf("%s %v", *c.FinishReason, c.StopReason)
			}
		}
	}
	if !strings.HasPrefix(answer, "data: ") {
		read(answer)
	} else {
		events := strings.Split(answer, "\n\n")
		for _, e := range events[:len(events)-1] {
			data, ok := strings.CutPrefix(e, "data: ")
			if !ok || strings.Contains(data, "\n") {
				t.Fatalf("no event: %q", e)
			}
			if data != "[DONE]" {
				read(data)
			}
		}
	}
	var out strings.Builder
	for i := range len(texts) {
		fmt.Fprintf(&out, "%q %s|", texts[i], ends[i])
	}
	return out.String()
}
