package chattemplate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kindOf(err error) Kind {
	var e *Error
	if !errors.As(err, &e) {
		return -1
	}
	return e.Kind
}

func TestErrorsHaveKinds(t *testing.T) {
	for source, want := range map[string]Kind{
		"{{ x":                        Syntax,
		"{% if %}{% endif %}":         Syntax,
		"{% nonsense %}":              Syntax,
		"{% include 'x' %}":           Unsupported,
		"{{ 1|nonsense }}":            Unsupported,
		"{{ raise_exception('no') }}": Raised,
		"{{ none + 'x' }}":            Runtime,
		"{{ x.y.z }}":                 Runtime,
		"{{ 'x' * 100000000 }}":       Bound,
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}":                                Bound,
		"{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}": Bound,
		"{{" + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}}":        Bound,
		"{{" + strings.Repeat("not ", 100_000) + "x }}":                                  Bound,
		"{{ x" + strings.Repeat("|list", 100_000) + " }}":                                Bound,
		"{{ 1" + strings.Repeat(" + 1", 100_000) + " }}":                                 Bound,
	} {
		tm, err := Parse(source, Options{MaxSteps: 200_000})
		if err == nil {
			_, err = tm.Render(context.Background(), &Input{})
		}
		if got := kindOf(err); got != want {
			t.Errorf("%.60s: kind %d, want %d: %v", source, got, want, err)
		}
	}
}

func TestRenderEndsWithItsContext(t *testing.T) {
	tm, err := Parse("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", Options{MaxSteps: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tm.Render(ctx, &Input{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// What a render reads of long strings counts as steps, so that no loop over one is cheap by the count and long by the clock.
func TestReadingLongStringsCounts(t *testing.T) {
	for _, e := range []string{
		"s | length", "s | wordcount", "s is lower", "s.isascii()", "s.islower()", "s.isalpha()", "s == u", "s < u", "'y' in s", "s.find('y')", "s.count('y')",
		"s.split('y') | first", "s.replace('y', 'z')", "s | trim", "s.strip()", "s.upper()", "s[5]", "s[-1]", "{s: 1}[s]", "{'x': 1}[s]", "{(s, 1): 1} is mapping",
		"s.splitlines() | length", "s.partition('y')[1]", "s.startswith('a', 5)", "s | tojson | length", "s ~ '' | length", "[s] == [u]", "s in [u]",
	} {
		source := `{% set s = "x" * 1000000 %}{% set u = "x" * 1000000 %}{% for i in range(10000) %}{% set v = ` + e + ` %}{% endfor %}`
		tm, err := Parse(source, Options{MaxSteps: 100_000, MaxBytes: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tm.Render(context.Background(), &Input{}); kindOf(err) != Bound {
			t.Errorf("%s: %v", e, err)
		}
	}
}
