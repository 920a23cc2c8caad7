package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/text"
)

// SourceKind is the kind of source that a setting came from. The greatest one wins.
type SourceKind uint8

// The kinds of sources, weakest first.
const (
	FromDefault SourceKind = iota
	FromFile
	FromEnv
	FromFlag
)

// Origin is the place a setting came from.
type Origin struct {
	Kind SourceKind
	// Name is the file's path, the variable or the flag without its dashes.
	Name string
	// Line counts from 1 in a file, else it is 0.
	Line int
}

func (o Origin) String() string {
	switch o.Kind {
	case FromFile:
		if o.Line > 0 {
			return fmt.Sprintf("%s:%d", o.Name, o.Line)
		}
		return o.Name
	case FromEnv:
		return "environment " + o.Name
	case FromFlag:
		return "flag --" + o.Name
	}
	return "default"
}

// Error is one thing wrong with a configuration.
type Error struct {
	Path    string // of the setting, as in "server.port"; "" for a file or a command line as a whole
	Source  string // as Origin prints it
	Value   string // as it was written; hidden for a secret; "" where there is none to show
	Message string // what is allowed, or what is wrong
}

func (e *Error) Error() string { return located(e.Source, e.Path, e.Value, e.Message) }

// Errors is all that is wrong with a configuration: file by file and line by line,
// then the environment and the command line.
type Errors []*Error

// sort brings errors into that order. What else the order says stays.
func (es Errors) sort() {
	files := map[string]int{}
	for _, e := range es {
		if kind, name, _ := e.place(); kind == FromFile {
			if _, known := files[name]; !known {
				files[name] = len(files)
			}
		}
	}
	slices.SortStableFunc(es, func(a, b *Error) int {
		kindA, nameA, lineA := a.place()
		kindB, nameB, lineB := b.place()
		return cmp.Or(cmp.Compare(kindA, kindB), cmp.Compare(files[nameA], files[nameB]), cmp.Compare(lineA, lineB))
	})
}

// place is where the error's source is. An error without one is of the whole, and
// comes last.
func (e *Error) place() (kind SourceKind, name string, line int) {
	switch {
	case e.Source == "":
		return FromFlag + 1, "", 0
	case strings.HasPrefix(e.Source, "environment "):
		return FromEnv, "", 0
	case strings.HasPrefix(e.Source, "flag --"):
		return FromFlag, "", 0
	}
	if i := strings.LastIndexByte(e.Source, ':'); i >= 0 {
		if n, err := strconv.Atoi(e.Source[i+1:]); err == nil {
			return FromFile, e.Source[:i], n
		}
	}
	return FromFile, e.Source, 0
}

func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the single errors.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Warning is something that was ignored, or that is allowed but seldom meant.
type Warning struct {
	Path    string
	Source  string
	Message string
}

func (w Warning) String() string { return located(w.Source, w.Path, "", w.Message) }

func located(source, path, value, message string) string {
	var b strings.Builder
	for _, s := range []string{source, path} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	if value != "" {
		fmt.Fprintf(&b, "%q: ", clip(value))
	}
	b.WriteString(message)
	return b.String()
}

// clip keeps a mistaken value (a whole file, say) from filling the screen.
func clip(s string) string { return text.Clip(s, 120) }
