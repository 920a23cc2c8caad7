package config

import (
	"errors"
	"net/url"
	"strings"
)

// TokenizerPath is where the files are by which a model's text becomes tokens: PATH, or
// MODEL=PATH.
type TokenizerPath string

// maxTokenizerPaths bounds the paths: each is read into memory.
const maxTokenizerPaths = 64

// UnmarshalText checks the text.
func (p *TokenizerPath) UnmarshalText(text []byte) error {
	*p = TokenizerPath(text)
	_, _, err := p.parse()
	return err
}

// parse takes the text apart. A path with "=" in it is written behind a model, or after
// "./" or "/": names of models do not begin so.
func (p TokenizerPath) parse() (model, path string, err error) {
	path = string(p)
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, ".") {
		if name, rest, ok := strings.Cut(path, "="); ok {
			if err := checkModelName(name); err != nil {
				return "", "", err
			}
			model, path = name, rest
		}
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return "", "", errors.New("must be PATH or MODEL=PATH")
	}
	return model, path, nil
}

// Path is the path alone.
func (p TokenizerPath) Path() string {
	_, path, _ := p.parse()
	return path
}

// TokenizerPath is where the files of a model are; empty: no path is given for it.
func (t *Text) TokenizerPath(model string) string {
	everyone := ""
	for _, p := range t.TokenizerPaths {
		name, path, _ := p.parse()
		switch name {
		case model:
			return path
		case "":
			everyone = path
		}
	}
	return everyone
}

// checkText refuses two paths for one model, and URLs that are none.
func (l *loader) checkText() {
	l.checkRenderer()
	const path = "text.tokenizer_path"
	if !l.good(path) {
		return
	}
	seen := map[string]bool{}
	for i, p := range l.cfg.Text.TokenizerPaths {
		model, _, _ := p.parse()
		switch {
		case i == maxTokenizerPaths:
			l.blame(path, "has more than %d paths", maxTokenizerPaths)
			return
		case seen[model] && model == "":
			l.fail(path, l.source(path), string(p), "two paths are for every model; write MODEL=PATH")
		case seen[model]:
			l.fail(path, l.source(path), string(p), "the model %q has two paths", clip(model))
		}
		seen[model] = true
	}
}

// checkRenderer refuses what no renderer can be reached at.
func (l *loader) checkRenderer() {
	const path = "text.renderer_url"
	if !l.good(path) || l.cfg.Text.RendererURL == "" {
		return
	}
	u, err := url.Parse(l.cfg.Text.RendererURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		l.blame(path, "must be like http://HOST:PORT")
	}
}
