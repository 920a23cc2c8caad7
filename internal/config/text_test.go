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

func TestRendererURL(t *testing.T) {
	for url, good := range map[string]bool{
		"http://a:1": true, "https://a/x": true, "": true, "a:1": false, "ftp://a": false, "http://": false, "http://a?b": false, "http://u@a": false,
	} {
		if _, _, err := Load([]string{"--renderer-url", url}, nil, nil); (err == nil) != good {
			t.Errorf("%q: %v", url, err)
		}
	}
}
