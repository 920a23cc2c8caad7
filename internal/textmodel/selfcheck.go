package textmodel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/chattemplate"
	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Asker gives the token ids that the engine itself makes of a text. Special tokens are added as the engine adds them to a prompt of the completions API.
type Asker func(ctx context.Context, text string) ([]uint32, error)

// Mismatch is the error of a self-check that found a difference: the engine makes other tokens of a text than this program does.
type Mismatch struct {
	Probe       string // the text
	Own, Theirs []uint32
	// Reads: the engine cuts the text in other places, but its tokens have the same text here,
	// so that its answers can be read. Otherwise its vocabulary is another.
	Reads bool
}

func (e *Mismatch) Error() string {
	at := 0
	for at < min(len(e.Own), len(e.Theirs)) && e.Own[at] == e.Theirs[at] {
		at++
	}
	return fmt.Sprintf("the engine makes %d tokens of the probe %q, and this program %d; they differ from token %d on (%s and %s)",
		len(e.Theirs), text.Clip(e.Probe, 60), len(e.Own), at, tokenAt(e.Theirs, at), tokenAt(e.Own, at))
}

func tokenAt(ids []uint32, i int) string {
	if i < len(ids) {
		return fmt.Sprint(ids[i])
	}
	return "none"
}

// texts are the probes that every model gets: words and punctuation, white space, what is composed of several characters, writing systems, code.
var texts = []string{
	"Hello, world! It's 12:30 — they'll pay $1234567.89 (or 3.14e-5), won't they?",
	"  two leading\t\ttabs \n\n\n  lines   and spaces    \r\n end ",
	"👩‍👩‍👧‍👦 🇩🇪 ☺️ e\u0301 é ﬁ Å ½ ² ① \u00a0nbsp\u200bzero",
	"漢字かな交じり文。 한국어 문장 ไทย العربية עברית हिन्दी Ελληνικά Кириллица",
	"def f(x):\n\treturn {'a': [x**2, -1], \"b\": None}  # TODO: 2x\n\n<a href=\"/x?y=1&z=2\">www.example.com</a>",
}

// SelfCheck compares the tokens of eight probes with those that an engine makes of them: texts, a text with special tokens, and two conversations by the chat
// template. Chats are left out of a model that refuses them. It fails with a *Mismatch, or with the error of ask or ctx, in which case nothing is known.
// The engine is asked for one probe at a time.
func SelfCheck(ctx context.Context, m *Model, ask Asker) error {
	probes, err := m.probes(ctx)
	if err != nil {
		return err
	}
	for _, probe := range probes {
		own, err := m.Encode(ctx, probe)
		if err != nil {
			return fmt.Errorf("cannot tokenize a probe: %w", err)
		}
		if m.config.context > 0 && len(own) >= m.config.context {
			continue // a model for experiments
		}
		theirs, err := ask(ctx, probe)
		if err != nil {
			return fmt.Errorf("the engine does not say how it tokenizes: %w", err)
		}
		if !slices.Equal(own, theirs) {
			return &Mismatch{Probe: probe, Own: own, Theirs: theirs, Reads: m.reads(probe, own, theirs)}
		}
	}
	return nil
}

// reads tells whether the engine's tokens of a text are read here as that text, or as this
// program's own tokens are. Special tokens are left out: the engine may add others.
func (m *Model) reads(probe string, own, theirs []uint32) bool {
	o := tokenizer.DecodeOptions{SkipSpecial: true, SpacesBetweenSpecial: true}
	read := string(m.tokenizer.Decode(nil, theirs, o))
	return read == probe || read == string(m.tokenizer.Decode(nil, own, o))
}

// probes are the texts of a self-check.
func (m *Model) probes(ctx context.Context) ([]string, error) {
	probes := append(slices.Clone(texts), m.specialProbe())
	if m.refusal != nil {
		return probes, nil
	}
	conversations := []string{
		`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is 2 + 2?"},{"role":"assistant","content":" It is 4. "},{"role":"user","content":"Grüße!\n"}]}`,
		`{"messages":[{"role":"user","content":"What is 2 + 2?"},{"role":"assistant","content":"4"}],"add_generation_prompt":false}`,
		`{"messages":[{"role":"user","content":"Hello"}]}`,
	}
	rendered := 0
	for _, body := range conversations {
		probe, err := m.RenderText(ctx, []byte(body))
		var refused *chattemplate.Error
		switch {
		case errors.As(err, &refused): // some templates take no system message, or no conversation that ends with an answer
		case err != nil:
			return nil, fmt.Errorf("cannot render a probe: %w", err)
		case probe != "" && rendered < 2:
			probes = append(probes, probe)
			rendered++
		}
	}
	if rendered == 0 {
		return nil, &Refusal{Reason: "the chat template renders none of the conversations of the self-check"}
	}
	return probes, nil
}

// specialProbe has some of the model's special tokens, with text around.
func (m *Model) specialProbe() string {
	var b strings.Builder
	b.WriteString("a ")
	names := make([]string, 0, len(m.special))
	for name := range m.special {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b.WriteString(m.special[name] + " x" + m.special[name] + "\n")
	}
	found := 0
	for id := range uint32(m.tokenizer.VocabSize()) {
		if found == 6 {
			break
		}
		if token, ok := m.tokenizer.Token(id); ok && m.tokenizer.IsSpecial(id) {
			b.WriteString("y" + token)
			found++
		}
	}
	b.WriteString(" z")
	return b.String()
}
