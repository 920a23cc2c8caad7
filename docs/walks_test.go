package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	walkRow  = regexp.MustCompile("^\\| `([a-z0-9_/]+\\.go)` \\| ((?:`\\w+`(?:, )?)+) \\|")
	walkName = regexp.MustCompile("`(\\w+)`")
)

// The walks through the code name functions that exist, in their files.
func TestWalksNameFunctions(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walks, _ := strings.Cut(string(page), "\n## Seven walks\n")
	walks, _, _ = strings.Cut(walks, "\n## ")
	n := 0
	for line := range strings.Lines(walks) {
		row := walkRow.FindStringSubmatch(line)
		if row == nil {
			if strings.HasPrefix(line, "| `") {
				t.Errorf("a row of another form: %s", line)
			}
			continue
		}
		source, err := os.ReadFile("../" + row[1])
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range walkName.FindAllStringSubmatch(row[2], -1) {
			n++
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name[1] + `[(\[]`).Match(source) {
				t.Errorf("%s has no function %s", row[1], name[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d functions were found in the walks", n)
	}
}
