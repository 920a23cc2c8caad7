package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the documents, with the path from this folder to each.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range append(files, "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../test/real-engine/README.md") {
		all[f] = document(t, f)
	}
	return all
}

// anchors are the headings of a document as GitHub links to them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if title := strings.TrimLeft(line, "#"); !fenced && title != line && strings.HasPrefix(title, " ") {
			title = strings.ToLower(strings.TrimSpace(title))
			title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
			all[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return all
}

// Links between documents lead to a file that is there and to a heading in it.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			link := m[1]
			if strings.Contains(link, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, link)
				continue
			}
			if other, ok := all[target]; ok && anchor != "" && !anchors(other)[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", page, link, target)
			}
		}
	}
}

// The README links to every document.
func TestReadmeNamesEveryDocument(t *testing.T) {
	readme := document(t, "../README.md")
	for page := range pages(t) {
		if !strings.HasPrefix(page, "..") && !strings.Contains(readme, "(docs/"+page+")") {
			t.Errorf("README.md does not link to docs/%s", page)
		}
	}
}
