package docs_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var writePicture = flag.Bool("write", false, "write the picture of the packages into docs/architecture.md instead of comparing it")

const module = "github.com/sluice-router/sluice/"

// imports are the packages of the binary, each with those of them that it imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./cmd/sluice")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		name, ok := strings.CutPrefix(words[0], module)
		if !ok {
			continue
		}
		all[name] = nil
		for _, w := range words[1:] {
			if w, ok := strings.CutPrefix(w, module); ok {
				all[name] = append(all[name], w)
			}
		}
		slices.Sort(all[name])
	}
	return all
}

// picture is the graph of the packages, without the arrows that a longer way makes
// needless.
func picture(all map[string][]string) string {
	reach := map[string]map[string]bool{}
	var visit func(name string) map[string]bool
	visit = func(name string) map[string]bool {
		if reach[name] == nil {
			reach[name] = map[string]bool{}
			for _, to := range all[name] {
				reach[name][to] = true
				maps.Copy(reach[name], visit(to))
			}
		}
		return reach[name]
	}
	var b strings.Builder
	b.WriteString("graph TD\n    sluice[\"cmd/sluice\"]\n") // a slash is no part of a name everywhere
	short := func(name string) string { return strings.TrimPrefix(strings.TrimPrefix(name, "internal/"), "cmd/") }
	for _, from := range slices.Sorted(maps.Keys(all)) {
		for _, to := range all[from] {
			needless := slices.ContainsFunc(all[from], func(via string) bool { return via != to && visit(via)[to] })
			if !needless {
				fmt.Fprintf(&b, "    %s --> %s\n", short(from), short(to))
			}
		}
	}
	return b.String()
}

// The picture of the packages in docs/architecture.md is that of the code, and its
// table names each of them. "make docs" draws the picture anew.
func TestPackagesPicture(t *testing.T) {
	const file, begin, end = "architecture.md", "```mermaid\n", "```"
	all := imports(t)
	doc := document(t, file)
	before, rest, ok := strings.Cut(doc, begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/%s has no mermaid picture", file)
	}
	now := picture(all)
	switch {
	case old == now:
	case *writePicture:
		if err := os.WriteFile(file, []byte(before+begin+now+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the picture in docs/%s is behind the code; run make docs. It should be\n%s", file, now)
	}
	for name := range all {
		if !strings.Contains(doc, "\n| `"+name+"`") {
			t.Errorf("the table of packages in docs/%s does not have %s", file, name)
		}
	}
}
