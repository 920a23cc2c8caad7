package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModelAliases(t *testing.T) {
	f := files{"s.yaml": "fleet:\n  model_alias:\n    gpt-4: org/big\n    a=b: org/small\n"}
	c := mustLoad(t, "--config s.yaml", nil, f)
	if d := cmp.Diff(ModelAliases{"gpt-4": "org/big", "a=b": "org/small"}, c.Fleet.ModelAliases); d != "" {
		t.Error(d)
	}
	var b strings.Builder
	if err := c.WriteEffective(&b); err != nil || !strings.Contains(b.String(), `  model_alias: {"a=b": org/small, gpt-4: org/big}  # s.yaml:3`) {
		t.Errorf("%v, printed as\n%s", err, b.String())
	}
	again := mustLoad(t, "--config s.yaml", nil, files{"s.yaml": b.String()})
	if d := cmp.Diff(c.Fleet.ModelAliases, again.Fleet.ModelAliases); d != "" {
		t.Error(d)
	}
	// The stronger source replaces them whole.
	c = mustLoad(t, "--config s.yaml", []string{"SLUICE_MODEL_ALIAS=x=m1 y=m2"}, f)
	if d := cmp.Diff(ModelAliases{"x": "m1", "y": "m2"}, c.Fleet.ModelAliases); d != "" {
		t.Error(d)
	}
	c = mustLoad(t, "--config s.yaml --model-alias gpt-4=m --model-alias=z=m", []string{"SLUICE_MODEL_ALIAS=x=m1"}, f)
	if d := cmp.Diff(ModelAliases{"gpt-4": "m", "z": "m"}, c.Fleet.ModelAliases); d != "" {
		t.Error(d)
	}
}

func TestModelAliasesThatAreRefused(t *testing.T) {
	for args, says := range map[string]string{
		"--model-alias gpt-4":                              "must be ALIAS=MODEL",
		"--model-alias =m":                                 "the alias must be a model's name",
		"--model-alias a=":                                 `behind the alias "a"`,
		"--model-alias a=b=c":                              "must be ALIAS=MODEL",
		"--model-alias a=b --model-alias a=c":              `"a" is given twice, for "b" too`,
		"--model-alias a=b --model-alias b=c":              `"b" is an alias itself`,
		"--model-alias a=a":                                `"a" is an alias itself`,
		"--model-alias " + strings.Repeat("a", 513) + "=b": "of 1 to 512 bytes",
	} {
		if _, _, err := Load(words(args), nil, nil); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "fleet.model_alias") {
			t.Errorf("%.60s: %v, want %s", args, err, says)
		}
	}
	f := files{"s.yaml": "fleet:\n  model_alias:\n    a: [b]\n    b: c\n    ? {x: y}\n    : d\n"}
	if _, _, err := Load(words("--config s.yaml"), nil, f.read); err == nil || !strings.Contains(err.Error(), "s.yaml:3: fleet.model_alias.a") {
		t.Errorf("%v", err)
	}
}
