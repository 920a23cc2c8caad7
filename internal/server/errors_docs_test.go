package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/http1"
)

// sources are the files of a package beside its tests.
func sources(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatalf("there is no source in %s", dir)
	}
	return files
}

// textConstants are the constants of files that are text.
func textConstants(files []*ast.File) map[string]string {
	all := map[string]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					if s, ok := literal(spec.Values[i]); ok {
						all[name.Name] = s
					}
				}
			}
			return true
		})
	}
	return all
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// tableRows are the rows of the table in a section of a document, by the name in
// their first cell.
func tableRows(t *testing.T, doc, section string) map[string][]string {
	t.Helper()
	_, text, ok := strings.Cut(document(t, doc), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("docs/%s has no section %q", doc, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 {
			continue
		}
		m := regexp.MustCompile("^ `([a-z_]+)` $").FindStringSubmatch(cells[1])
		if m == nil {
			continue
		}
		if rows[m[1]] != nil {
			t.Errorf("docs/%s has two rows of %s", doc, m[1])
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[m[1]] = cells[2:]
	}
	return rows
}

// Whoever finds a reason in a log or on a dashboard finds it in the documentation.
func TestDocumentedReasons(t *testing.T) {
	rows := tableRows(t, "operations.md", "Reasons")
	used := map[string]bool{}
	for _, dir := range []string{".", "../dispatch"} {
		for name, reason := range textConstants(sources(t, dir)) {
			if strings.HasPrefix(name, "reason") {
				used[reason] = true
				if rows[reason] == nil {
					t.Errorf("docs/operations.md does not tell of the reason %s", reason)
				}
			}
		}
	}
	for reason := range rows {
		if !used[reason] {
			t.Errorf("docs/operations.md tells of the reason %s, and there is none", reason)
		}
	}
}

// statuses are net/http's names of the statuses.
func statuses() map[string]int {
	all := map[string]int{}
	for code := 400; code < 600; code++ {
		if text := http.StatusText(code); text != "" {
			all["Status"+strings.ReplaceAll(text, " ", "")] = code
		}
	}
	return all
}

// errorCodes finds the codes of a package's errors, with the status where it is
// plain: in literals of Error, in assignments to Code, and in calls of the helpers
// that make one.
func errorCodes(t *testing.T, dir string) map[string]int {
	t.Helper()
	files, names, found := sources(t, dir), statuses(), map[string]int{}
	constants := textConstants(files)
	status := func(e ast.Expr) int {
		if s, ok := e.(*ast.SelectorExpr); ok {
			return names[s.Sel.Name]
		}
		return 0
	}
	add := func(code ast.Expr, of ast.Expr) {
		text, ok := literal(code)
		if id, is := code.(*ast.Ident); is {
			if id.Name == "code" {
				return // a helper's parameter: what it is called with is found there
			}
			text, ok = constants[id.Name]
		}
		if call, is := code.(*ast.CallExpr); is {
			if f, is := call.Fun.(*ast.Ident); is && f.Name == "headCode" {
				return // its results are found where it is declared
			}
		}
		if !ok {
			t.Errorf("%s: cannot tell which code %#v is", dir, code)
			return
		}
		found[text] = max(found[text], status(of))
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				var code, of ast.Expr
				name := ""
				switch typ := n.Type.(type) {
				case *ast.Ident:
					name = typ.Name
				case *ast.SelectorExpr:
					name = typ.Sel.Name
				}
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						switch key, _ := kv.Key.(*ast.Ident); {
						case key == nil:
						case key.Name == "Code":
							code = kv.Value
						case key.Name == "Status":
							of = kv.Value
						}
					}
				}
				if name == "Error" && code != nil {
					add(code, of)
				}
			case *ast.AssignStmt:
				if s, ok := n.Lhs[0].(*ast.SelectorExpr); ok && s.Sel.Name == "Code" {
					add(n.Rhs[0], nil)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "refused" && dir == "../openai" {
					add(n.Args[1], n.Args[0])
				}
			case *ast.FuncDecl:
				if n.Name.Name == "headCode" {
					ast.Inspect(n.Body, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok {
							add(r.Results[0], nil)
						}
						return true
					})
				}
			}
			return true
		})
	}
	return found
}

// Whoever is told a code finds in the documentation what to do.
func TestDocumentedErrorCodes(t *testing.T) {
	rows := tableRows(t, "http.md", "Errors")
	used := map[string]bool{}
	for _, dir := range []string{".", "../dispatch", "../generate", "../openai", "../translate"} {
		codes := errorCodes(t, dir)
		if len(codes) == 0 {
			t.Errorf("no code was found in %s", dir)
		}
		for code, status := range codes {
			used[code] = true
			switch row := rows[code]; {
			case row == nil:
				t.Errorf("docs/http.md does not tell of the code %s", code)
			case status != 0 && !strings.HasPrefix(row[0], strconv.Itoa(status)):
				t.Errorf("the code %s has the status %d, docs/http.md says %s", code, status, row[0])
			}
		}
	}
	for code := range rows {
		if !used[code] {
			t.Errorf("docs/http.md tells of the code %s, and there is none", code)
		}
	}
	for _, status := range []int{400, 408, 417, 431, 501, 505} {
		if row := rows[headCode(&http1.Problem{Status: status})]; row == nil || row[0] != strconv.Itoa(status) {
			t.Errorf("the code %s has the status %d, docs/http.md says %v", headCode(&http1.Problem{Status: status}), status, row)
		}
	}
}
