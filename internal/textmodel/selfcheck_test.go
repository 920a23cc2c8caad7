package textmodel

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestSelfCheckAsksForEightProbes(t *testing.T) {
	m := modelOf(t, nil)
	var asked []string
	err := SelfCheck(context.Background(), m, func(ctx context.Context, text string) ([]uint32, error) {
		asked = append(asked, text)
		return m.Encode(ctx, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) != 8 {
		t.Errorf("%d probes: %q", len(asked), asked)
	}
	if all := strings.Join(asked, ""); !strings.Contains(all, "<|im_start|>user:Grüße!\n<|im_end|>") || !strings.Contains(all, "y<|im_end|>") {
		t.Errorf("no conversations or no special tokens: %q", asked)
	}
	asked = nil
	refused := m.WithChatRefusal(&Refusal{Reason: "x"})
	err = SelfCheck(context.Background(), refused, func(ctx context.Context, text string) ([]uint32, error) {
		asked = append(asked, text)
		return m.Encode(ctx, text)
	})
	if err != nil || len(asked) != 6 {
		t.Errorf("without chats: %d probes, %v", len(asked), err)
	}
}

func TestSelfCheckTellsADifference(t *testing.T) {
	m := modelOf(t, nil)
	err := SelfCheck(context.Background(), m, func(ctx context.Context, text string) ([]uint32, error) {
		ids, err := m.Encode(ctx, text)
		if strings.Contains(text, "<|im_start|>user") {
			ids[3] = 7
		}
		return ids, err
	})
	var mismatch *Mismatch
	if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "from token 3 on (7 and ") {
		t.Errorf("got %v", err)
	}
	err = SelfCheck(context.Background(), m, func(ctx context.Context, text string) ([]uint32, error) {
		ids, err := m.Encode(ctx, text)
		return ids[:len(ids)-1], err
	})
	if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "(none and ") {
		t.Errorf("an end that is missing: %v", err)
	}
}

// An engine that cuts texts elsewhere has the same vocabulary; one whose tokens have other
// texts has not.
func TestSelfCheckTellsWhetherAnswersCanBeRead(t *testing.T) {
	m := modelOf(t, nil)
	for reads, make := range map[bool]func(ids []uint32, text string) []uint32{
		true: func(_ []uint32, text string) (ids []uint32) {
			for _, b := range []byte(text) { // no merges
				one, _ := m.Tokenizer().Encode(t.Context(), nil, string(rune(b)), false)
				ids = append(ids, one...)
			}
			return ids
		},
		false: func(ids []uint32, _ string) []uint32 {
			for i := range ids {
				ids[i]++
			}
			return ids
		},
	} {
		err := SelfCheck(t.Context(), m, func(ctx context.Context, text string) ([]uint32, error) {
			ids, err := m.Encode(ctx, text)
			if strings.HasPrefix(text, "def f(x)") { // of ASCII alone
				ids = make(ids, text)
			}
			return ids, err
		})
		var mismatch *Mismatch
		if !errors.As(err, &mismatch) || mismatch.Reads != reads {
			t.Errorf("%v, want that the answers can be read: %t", err, reads)
		}
	}
}

// An engine that does not answer is no difference.
func TestSelfCheckWithoutAnswers(t *testing.T) {
	m := modelOf(t, nil)
	gone := errors.New("gone")
	err := SelfCheck(context.Background(), m, func(context.Context, string) ([]uint32, error) { return nil, gone })
	var mismatch *Mismatch
	if !errors.Is(err, gone) || errors.As(err, &mismatch) {
		t.Errorf("got %v", err)
	}
}

func TestSelfCheckOfATemplateThatRefusesAll(t *testing.T) {
	m := modelOf(t, map[string]any{templateFile: "{{ raise_exception('no') }}"})
	err := SelfCheck(context.Background(), m, m.Encode)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Errorf("got %v", err)
	}
}

func TestSelfCheckOfATemplateWithoutSystemMessages(t *testing.T) {
	m := modelOf(t, map[string]any{templateFile: "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"})
	asked := 0
	err := SelfCheck(context.Background(), m, func(ctx context.Context, text string) ([]uint32, error) {
		asked++
		return m.Encode(ctx, text)
	})
	if err != nil || asked != 8 {
		t.Errorf("%d probes, %v", asked, err)
	}
}

func TestSelfCheckFitsIntoTheContext(t *testing.T) {
	m := modelOf(t, map[string]any{configFile: `{"max_position_embeddings":90}`})
	err := SelfCheck(context.Background(), m, func(ctx context.Context, text string) ([]uint32, error) {
		ids, err := m.Encode(ctx, text)
		if len(ids) >= 90 {
			t.Errorf("a probe of %d tokens", len(ids))
		}
		return ids, err
	})
	if err != nil {
		t.Error(err)
	}
}
