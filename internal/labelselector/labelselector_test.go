package labelselector

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func parse(t testing.TB, text string) Selector {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}

func TestBothFormsOfSelectorsAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"app=worker":                   "app=worker",
		"app=worker env=prod":          "app=worker,env=prod",
		" app=worker   env=prod ":      "app=worker,env=prod",
		"app=worker,env=prod":          "app=worker,env=prod",
		"app = worker":                 "app=worker",
		"app==worker":                  "app==worker",
		"app=worker, tier in (a, b)":   "app=worker,tier in (a,b)",
		"tier in (b,a),!canary":        "!canary,tier in (a,b)",
		"app!=x":                       "app!=x",
		"gpu":                          "gpu",
		"llm-d.ai/role notin (encode)": "llm-d.ai/role notin (encode)",
		"app= tier=x":                  "app=,tier=x",
		"leaderworkerset.sigs.k8s.io/worker-index=0": "leaderworkerset.sigs.k8s.io/worker-index=0",
	} {
		if got := parse(t, text).String(); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	}
}

func TestWhatIsNoSelectorIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "  ", "=x", "app in", "app in (a", "app=a b", "app=x,,", "app=x tier in (a)", "a b c", "-x=1", "app=_", "é=1",
		"app=a,env in (x) y=z", "app=(x)",
	} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is read as %q", text, s)
		}
	}
}

func TestTheZeroSelectorMatchesNothing(t *testing.T) {
	var none Selector
	if none.Matches(map[string]string{"app": "x"}) || none.Matches(nil) || !none.IsZero() || none.String() != "" {
		t.Error("the zero selector is not none")
	}
}

func TestAServerIsAskedForWhatAllRolesHaveInCommon(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"app=x,role=prefill", "app=x,role=decode", "app=x,role in (decode,prefill)"},
		{"role=prefill", "role in (decode, both)", "role in (both,decode,prefill)"},
		{"app=x", "tier=y", ""},
		{"app=x,role", "role=decode,app=y", "app in (x,y),role"},
		{"app=x,!canary", "app=x,!canary,role=decode", "app=x,!canary"},
		{"app!=x", "app=y", ""},
		{"app,app!=x", "app=y", "app"},
	} {
		if got := Union(parse(t, c.a), parse(t, c.b)); got != c.want {
			t.Errorf("%s and %s: the server is asked for %q, want %q", c.a, c.b, got, c.want)
		}
	}
	if got := Union(parse(t, "b=1,a")); got != "a,b=1" {
		t.Errorf("one selector becomes %q", got)
	}
	if got := Union(parse(t, "a=1"), Selector{}); got != "" {
		t.Errorf("with one that matches nothing: %q", got)
	}
}

// An object that a role's selector matches always matches what the server is asked for.
func TestTheUnionLosesNothing(t *testing.T) {
	key, value := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "2", "3"})
	selector := rapid.Custom(func(t *rapid.T) Selector {
		text := ""
		for i := range rapid.IntRange(1, 4).Draw(t, "requirements") {
			if i > 0 {
				text += ","
			}
			k, v, w := key.Draw(t, "key"), value.Draw(t, "value"), value.Draw(t, "value")
			form := rapid.SampledFrom([]string{"%s=%s", "%s!=%s", "%s in (%s,%s)", "%s notin (%s,%s)", "%s", "!%s", "%s>%s"}).Draw(t, "form")
			text += fmt.Sprintf(form, []any{k, v, w}[:countVerbs(form)]...)
		}
		s, err := Parse(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := selector.Draw(t, "a"), selector.Draw(t, "b")
		union := Union(a, b)
		have := rapid.MapOf(key, value).Draw(t, "labels")
		if !a.Matches(have) && !b.Matches(have) || union == "" {
			return
		}
		s, err := Parse(union)
		if err != nil {
			t.Fatalf("the union %q: %v", union, err)
		}
		if !s.Matches(have) {
			t.Fatalf("%v matches %s or %s and not %s", have, a, b, union)
		}
	})
}

func countVerbs(form string) (n int) {
	for i := range form {
		if form[i] == '%' {
			n++
		}
	}
	return n
}

func FuzzParse(f *testing.F) {
	f.Add("app=x,tier in (a, b)")
	f.Add("app=x env=y")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if again := parse(t, s.String()); again.String() != s.String() {
			t.Errorf("%q: %q is read again as %q", text, s, again)
		}
	})
}
