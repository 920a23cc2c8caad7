package dispatch

import (
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
)

// A request that waits for workers is placed again and again: memory for its chat body
// is taken once, and so it is when there can be none.
func TestTranslationIsMadeOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		bad  bool
	}{
		"translated":     {`{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`, false},
		"untranslatable": {`{"model":"m","max_tokens":3,"messages":[{"role":"user","content":[{"type":"hologram"}]}]}`, true},
	} {
		p, err := openai.Peek(openai.RouteMessages, []byte(c.body), openai.PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reserved := 0
		x := &request{d: &services{cfg: config.Default()}, call: &Call{Route: openai.RouteMessages, Peeked: p,
			Reserve: func(n int) *openai.Error { reserved += n; return nil }}}
		if f := planTranslation(x); (f != nil) != c.bad {
			t.Fatalf("%s: %v", name, f)
		}
		first, made := reserved, x.plan.translated
		if f := planTranslation(x); (f != nil) != c.bad || reserved != first || first == 0 || x.plan.translated != made {
			t.Errorf("%s: %v, %d bytes are reserved, %d at first", name, f, reserved, first)
		}
		x.freeTranslation()
		p.Release()
	}
}
