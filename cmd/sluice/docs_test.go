package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// configKeys are the groups of a configuration file by which its examples are known
// among other YAML: a class file has none of them.
var configKeys = regexp.MustCompile(`(?m)^(server|auth|log|fleet|workers|routing|admission|conditional_disagg|health|retry|circuit_breaker|timeouts):`)

// etc makes the folder that examples call /etc/sluice, with what they name there.
func etc(t *testing.T, page string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/client-keys", "team-a:key-a\nteam-b:key-b\n")
	write(t, dir+"/admin-key", "key-admin\n")
	write(t, dir+"/worker-key", "key-worker\n")
	write(t, dir+"/cluster-secret", "0123456789abcdef0123456789abcdef\n")
	for _, block := range blocks(page, "yaml") {
		if !configKeys.MatchString(block) {
			write(t, dir+"/classes.yaml", block)
		}
	}
	for _, file := range hereDocuments.FindAllStringSubmatch(page, -1) {
		write(t, dir+"/"+file[1], file[2])
	}
	return dir
}

// hereDocuments are the files that commands of the documentation write.
var hereDocuments = regexp.MustCompile(`(?ms)^cat > ([a-z]+\.yaml) <<'END'\n(.*?)^END$`)

// blocks are the code blocks of a document in one language.
func blocks(page, language string) []string {
	var all []string
	fenced, of := false, ""
	for line := range strings.Lines(page) {
		fence, ok := strings.CutPrefix(line, "```")
		switch {
		case ok && !fenced:
			fenced, of = true, strings.TrimSpace(fence)
			if of == language {
				all = append(all, "")
			}
		case ok:
			fenced = false
		case fenced && of == language:
			all[len(all)-1] += line
		}
	}
	return all
}

// Configurations that the documentation shows pass check-config, without a warning.
// Fragments, which name no worker, pass with one warning, that there is none.
func TestDocumentedConfigurations(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md") {
		if filepath.Base(page) == "configuration.md" {
			continue // written from the code
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks(string(b), "yaml") {
			if !configKeys.MatchString(block) {
				continue
			}
			n++
			dir := etc(t, string(b))
			file := dir + "/sluice.yaml"
			write(t, file, strings.ReplaceAll(block, "/etc/sluice", dir))
			code, _, stderr := sluice(t, nil, "check-config", file)
			if !strings.Contains(block, "url:") {
				stderr = regexp.MustCompile(`(?m)^sluice: warning: .*no (prefill|decode|worker).*\n`).ReplaceAllString(stderr, "")
			}
			if code != 0 || stderr != "" {
				t.Errorf("%s: an example: exit %d\n%s\n%s", page, code, stderr, block)
			}
		}
	}
	if n == 0 {
		t.Error("the documents have no configuration")
	}
}

// Command lines of "sluice serve" and "sluice check-config" that the documentation
// shows are such as sluice takes.
func TestDocumentedCommandLines(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range append(blocks(string(b), ""), blocks(string(b), "sh")...) {
			block = strings.ReplaceAll(block, "\\\n", " ")
			for line := range strings.Lines(block) {
				line, _, _ = strings.Cut(line, " #")
				words := strings.Fields(line)
				if len(words) < 3 || strings.TrimPrefix(words[0], "./") != "sluice" || words[1] != "serve" && words[1] != "check-config" {
					continue
				}
				n++
				dir := etc(t, string(b))
				for _, block := range blocks(string(b), "yaml") {
					if configKeys.MatchString(block) {
						write(t, dir+"/sluice.yaml", strings.ReplaceAll(block, "/etc/sluice", dir))
					}
				}
				args := []string{"check-config"}
				for _, w := range words[2:] {
					w = strings.Trim(w, `'"`)
					w = strings.ReplaceAll(w, "/etc/sluice", dir)
					if strings.HasSuffix(w, ".yaml") && !strings.Contains(w, "/") {
						w = dir + "/" + w
					}
					if w != "…" && w != "FILE" {
						args = append(args, w)
					}
				}
				if code, _, stderr := sluice(t, nil, args...); code != 0 {
					t.Errorf("%s: %s: exit %d\n%s", page, line, code, stderr)
				}
			}
		}
	}
	if n < 6 {
		t.Errorf("the documents have only %d such lines: are they looked for in the right way?", n)
	}
}
