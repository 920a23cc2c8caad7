package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const configPackage = "github.com/sluice-router/sluice/internal/config"

// Each option of the schema is read by a part of the router. Parts get the whole
// configuration, so one that nobody reads would look as if it had arrived.
func TestEveryOptionIsRead(t *testing.T) {
	packages := productPackages(t)
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.path] = p.export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	config, err := imports.Import(configPackage)
	if err != nil {
		t.Fatal(err)
	}
	read := map[*types.Var]bool{}
	for _, p := range packages {
		if p.imports[configPackage] {
			fieldsRead(t, fset, imports, p, read)
		}
	}
	// What the configuration's own methods read is read by their callers.
	for _, f := range ownMethodsRead(t, fset, packages) {
		if v := field(config, f[0], f[1]); v != nil {
			read[v] = true
		}
	}
	n := 0
	var walk func(path string, s *types.Struct)
	walk = func(path string, s *types.Struct) {
		for i := range s.NumFields() {
			tag := reflect.StructTag(s.Tag(i))
			key := tag.Get("yaml")
			if key == "" || key == "-" {
				continue
			}
			inner := s.Field(i).Type()
			if l, ok := inner.Underlying().(*types.Slice); ok {
				inner = l.Elem()
			}
			if group, ok := inner.Underlying().(*types.Struct); ok {
				walk(path+key+".", group)
				continue
			}
			n++
			// Loading reads the files that options name, refuses one option always, and makes
			// classes of some.
			byLoading := tag.Get("fileof") != "" || tag.Get("onlywith") == "never" || key == "router_queue_threshold" || key == "router_queue_policy" || key == "allow_lcfs"
			if !read[s.Field(i)] && !byLoading {
				t.Errorf("%s is read by nobody", path+key)
			}
		}
	}
	walk("", config.Scope().Lookup("Config").Type().Underlying().(*types.Struct))
	if n < 80 {
		t.Errorf("only %d options were found", n)
	}
}

type productPackage struct {
	path, dir, export string
	files             []string
	imports           map[string]bool
}

// productPackages are those that the binary is made of, with what the compiler
// exported of each.
func productPackages(t *testing.T) []productPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f",
		"{{.ImportPath}}\t{{.Dir}}\t{{.Export}}\t{{range .GoFiles}}{{.}} {{end}}\t{{range .Imports}}{{.}} {{end}}", ".")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []productPackage
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		p := productPackage{path: f[0], dir: f[1], export: f[2], files: strings.Fields(f[3]), imports: map[string]bool{}}
		for _, i := range strings.Fields(f[4]) {
			p.imports[i] = true
		}
		list = append(list, p)
	}
	return list
}

func parsePackage(t *testing.T, fset *token.FileSet, p productPackage) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range p.files {
		f, err := parser.ParseFile(fset, filepath.Join(p.dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// fieldsRead adds the fields of structs that a package selects.
func fieldsRead(t *testing.T, fset *token.FileSet, imports types.Importer, p productPackage, read map[*types.Var]bool) {
	t.Helper()
	info := types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.path, fset, parsePackage(t, fset, p), &info); err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Selections {
		if v, ok := s.Obj().(*types.Var); ok {
			read[v] = true
		}
	}
}

// ownMethodsRead are the fields that methods of the configuration's types select of
// their receiver, as type and field.
func ownMethodsRead(t *testing.T, fset *token.FileSet, packages []productPackage) (list [][2]string) {
	t.Helper()
	for _, p := range packages {
		if p.path != configPackage {
			continue
		}
		for _, f := range parsePackage(t, fset, p) {
			for _, d := range f.Decls {
				m, ok := d.(*ast.FuncDecl)
				if !ok || m.Recv == nil || len(m.Recv.List[0].Names) == 0 || !m.Name.IsExported() {
					continue
				}
				typ, ok := m.Recv.List[0].Type.(*ast.Ident)
				if !ok {
					continue
				}
				ast.Inspect(m.Body, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := s.X.(*ast.Ident); ok && x.Name == m.Recv.List[0].Names[0].Name {
							list = append(list, [2]string{typ.Name, s.Sel.Name})
						}
					}
					return true
				})
			}
		}
	}
	return list
}

func field(p *types.Package, typ, name string) *types.Var {
	o := p.Scope().Lookup(typ)
	if o == nil {
		return nil
	}
	s, ok := o.Type().Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	for i := range s.NumFields() {
		if s.Field(i).Name() == name {
			return s.Field(i)
		}
	}
	return nil
}
