package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// timeOptions walks the settings and yields the flag and the default of each that is
// a time, as "5 s".
func timeOptions(v reflect.Type, yield func(flag, value string)) {
	for i := range v.NumField() {
		f := v.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "" || name == "-":
		case f.Type == reflect.TypeFor[time.Duration]():
			unit := map[string]string{"secs": "s", "ms": "ms"}[f.Tag.Get("unit")]
			yield("--"+strings.ReplaceAll(name, "_", "-"), f.Tag.Get("default")+" "+unit)
		case f.Type.Kind() == reflect.Struct:
			timeOptions(f.Type, yield)
		}
	}
}

// Every option that is a time stands in docs/timeouts.md with its default.
func TestTimeOptionsAreDocumented(t *testing.T) {
	doc := document(t, "timeouts.md")
	n := 0
	timeOptions(reflect.TypeFor[config.Config](), func(flag, value string) {
		n++
		for line := range strings.Lines(doc) {
			if strings.HasPrefix(line, "|") && strings.Contains(line, "`"+flag+"`") && strings.Contains(line, value) {
				return
			}
		}
		t.Errorf("docs/timeouts.md has no row with %s and its default of %s", flag, value)
	})
	if n < 25 {
		t.Errorf("only %d options are times: are they looked for in the right way?", n)
	}
}

// packages are the packages whose times a request, a worker or an operator may
// notice, by the name that the document gives them.
var packages = map[string]string{
	"main": "../cmd/sluice", "admission": "../admission", "config": "../internal/config", "dispatch": "../internal/dispatch",
	"fleet": "../internal/fleet", "http1": "../internal/http1", "server": "../internal/server", "telemetry": "../internal/telemetry",
	"upstream": "../internal/upstream", "engine": "../internal/engine", "openai": "../internal/openai", "policy": "../internal/policy",
	"translate": "../internal/translate", "tokens": "../internal/tokens", "classify": "../internal/classify", "wire": "../internal/wire",
	"discovery": "../internal/discovery", "file": "../internal/discovery/file", "kubernetes": "../internal/discovery/kubernetes",
	"dns": "../internal/discovery/dns", "saved": "../internal/discovery/saved", "grpcchannel": "../internal/grpcchannel", "events": "../internal/kv/events",
	"store": "../internal/cluster/store", "lease": "../internal/cluster/store/lease",
}

// unnoticed are the times of the code that nobody outside it notices.
var unnoticed = map[string]string{
	"main.demoLease":                 "of the demo's cluster",
	"dispatch.leastWait":             "how long a text waits for its turn whose client does not wait at all",
	"fleet.leastLook":                "bounds how often a rank is looked at with tiny settings",
	"admission.recheckEvery":         "a safety net: what it finds is a fault",
	"admission.refreshApart":         "how seldom hints of waiting requests are looked through",
	"admission.refreshEvery":         "how old hints of waiting requests may get: nothing waits for new ones",
	"admission.leastHold":            "keeps a division finite",
	"events.replayRetry":             "between the two attempts of one replay",
	"kubernetes.reportPause":         "events of that time are one reading",
	"kubernetes.steadyRound":         "when the pauses begin anew",
	"grpcchannel.fastGap":            "what counts as a fast stream",
	"http1.pollInterval":             "how often the accepting goroutine polls",
	"dispatch.askScopesEach":         "how late the size of blocks of a new exact feed is known",
	"http1.recentWindow":             "what counts as a burst of clients",
	"http1.silentFor":                "how long a finding about newcomers holds",
	"http1.maxLeavingWait":           "pauses accepting",
	"http1.lookTime":                 "where sockets can only be read by waiting",
	"http1.anyAge":                   "zero",
	"main.readyWithin":               "of the demo",
	"server.closedInterval":          "how often the gate is checked",
	"server.trimEvery":               "gives memory back",
	"upstream.DefaultIdleTimeout":    "the option --worker-idle-timeout-secs replaces it",
	"upstream.DefaultConnectTimeout": "the option --connect-timeout-secs replaces it",
}

// duration is the value of an expression such as 5 * time.Second.
func duration(e ast.Expr) (time.Duration, bool) {
	units := map[string]time.Duration{"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
		"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
	switch e := e.(type) {
	case *ast.SelectorExpr:
		if p, ok := e.X.(*ast.Ident); ok && p.Name == "time" {
			d, ok := units[e.Sel.Name]
			return d, ok
		}
	case *ast.BinaryExpr:
		if lit, ok := e.X.(*ast.BasicLit); ok && e.Op == token.MUL {
			n, err := strconv.Atoi(strings.ReplaceAll(lit.Value, "_", ""))
			d, ok := duration(e.Y)
			return time.Duration(n) * d, ok && err == nil
		}
	case *ast.CallExpr:
		if s, ok := e.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Duration" && len(e.Args) == 1 {
			if lit, ok := e.Args[0].(*ast.BasicLit); ok {
				n, err := strconv.Atoi(lit.Value)
				return time.Duration(n), err == nil
			}
		}
	}
	return 0, false
}

// times are the constants and variables of packages that are times.
func times(t *testing.T) map[string]time.Duration {
	t.Helper()
	found := map[string]time.Duration{}
	for name, dir := range packages {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("there is no source in %s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok {
					continue
				}
				for _, s := range g.Specs {
					v, ok := s.(*ast.ValueSpec)
					if !ok {
						continue
					}
					for i, id := range v.Names {
						if i < len(v.Values) {
							if value, ok := duration(v.Values[i]); ok {
								found[name+"."+id.Name] = value
							}
						}
					}
				}
			}
		}
	}
	return found
}

// written is a time as the document writes it.
func written(d time.Duration) string {
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if d >= u.of {
			return strconv.FormatFloat(float64(d)/float64(u.of), 'g', 4, 64) + " " + u.name
		}
	}
	return fmt.Sprint(d.Milliseconds(), " ms")
}

// Every time in the code that is no option stands in docs/timeouts.md with its
// value, or in unnoticed.
func TestTimeConstantsAreDocumented(t *testing.T) {
	found := times(t)
	told := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9]+\\.[A-Za-z]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(document(t, "timeouts.md"), -1) {
		told[m[1]] = true
		value, ok := found[m[1]]
		if !ok {
			t.Errorf("docs/timeouts.md has the constant %s, and the code has none", m[1])
		} else if m[2] != written(value) {
			t.Errorf("docs/timeouts.md says %s of %s, the code %s", m[2], m[1], written(value))
		}
	}
	for name, value := range found {
		if _, ok := unnoticed[name]; !told[name] && !ok {
			t.Errorf("%s, %s, stands neither in docs/timeouts.md nor in the list of those that nobody notices", name, written(value))
		}
	}
	for name := range unnoticed {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is not in the code", name)
		}
	}
}
