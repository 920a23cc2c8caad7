package config

import "testing"

func TestTokenizerPaths(t *testing.T) {
	load := func(paths ...string) (*Config, error) {
		var args []string
		for _, p := range paths {
			args = append(args, "--tokenizer-path", p)
		}
		cfg, _, err := Load(args, nil, nil)
		return cfg, err
	}
	cfg, err := load("/models/all=1", "a/b=/models/b", "c=rel/c=2")
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{"a/b": "/models/b", "c": "rel/c=2", "other": "/models/all=1"} {
		if got := cfg.Text.TokenizerPath(model); got != want {
			t.Errorf("%s: %q, want %q", model, got, want)
		}
	}
	if got := new(Text).TokenizerPath("m"); got != "" {
		t.Errorf("without paths: %q", got)
	}
	for _, bad := range [][]string{{"/a", "/b"}, {"m=/a", "m=/b"}, {"m="}, {""}, {"=/a"}} {
		if _, err := load(bad...); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
