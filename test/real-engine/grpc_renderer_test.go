//go:build realengine

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files of the model with which chats cannot be rendered here, or with other tokens than the
// engine's: chats are refused, and with a renderer they are answered as ever.
func TestGRPCRenderer(t *testing.T) {
	for name, change := range map[string]func(file string, text string) string{
		"a template of another kind": func(file, text string) string {
			if file == "chat_template.jinja" {
				return "{% include 'other' %}" + text
			}
			return text
		},
		"other tokens": func(file, text string) string {
			if file == "tokenizer.json" { // its spaces are no part of words
				return strings.Replace(text, `"add_prefix_space": false`, `"add_prefix_space": true`, 1)
			}
			return text
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range []string{"chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
				b, err := os.ReadFile(home.path("model", file))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, file), []byte(change(file, string(b))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			without := startGRPC(t, "--tokenizer-path", dir)
			with := startGRPC(t, "--tokenizer-path", dir, "--renderer-url", renderer.URL())
			for _, route := range []*route{chat, messages, responses} {
				q := request{route: route, prompt: prompt(20), tokens: 8}
				a := q.ask(t, without.url)
				if a.status != 400 {
					t.Errorf("without a renderer: %s", a)
				}
				sameText(t, q, with.url)
				q.stream = true
				sameText(t, q, with.url)
				report.say(t, "%s, without a renderer: %s", route.name, clip(a.body))
			}
			// Token ids are served by both.
			q := ofIDs(plainIDs(40))
			sameText(t, q, without.url)
			sameText(t, q, with.url)
		})
	}
}

func TestGRPCSDKs(t *testing.T) {
	for name, r := range map[string]*router{"whole": startGRPC(t), "pair": startGRPCPair(t)} {
		t.Run(name, func(t *testing.T) {
			sdk(t, "serve", r.url, "without-tools")
			sdk(t, "leave", r.url)
		})
	}
	waitBusy(t, grpcOne, 0)
	waitBusy(t, grpcDecode, 0)
}
