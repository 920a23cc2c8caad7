package translate

import (
	"fmt"
	"slices"
	"strings"
)

// toolList sorts a request's tools into functions, which the engine's chat route can
// tell the model of, and all others: tools that the API's own servers run, and those of
// the client's that are not called with a JSON object. Agents send them beside their
// functions without asking whether they are there.
type toolList struct {
	refuse bool     // Options.RefuseTools
	only   []string // the names that the client allows for this answer, nil for all
	told   []raw    // the tools that were told, as the client spelled them
	names  []string // of told
	left   []leftTool
}

// leftTool is a tool that the model does not see.
type leftTool struct {
	kind, name string // the name is "" where it has none
}

// leave leaves a tool out, or refuses it.
func (l *toolList) leave(tool object, kind raw) error {
	if l.refuse {
		return unsupported(tool.at.field("type"), "tools of type %q cannot be passed to the engine behind this route; only functions of the client's can", clipName(kind.text()))
	}
	l.left = append(l.left, leftTool{kind.text(), tool.get("name").text()})
	return nil
}

// leaveFor is leave for a function that asks for what is not possible here.
func (l *toolList) leaveFor(tool object, field, why string) error {
	if l.refuse {
		return unsupported(tool.at.field(field), "%s", why)
	}
	l.left = append(l.left, leftTool{field, tool.get("name").text()})
	return nil
}

func (l *toolList) none() bool { return len(l.told) == 0 }

// need refuses a choice that must be a tool where no tool is left.
func (l *toolList) need(at *path) error {
	switch {
	case !l.none():
		return nil
	case len(l.left) > 0:
		return unsupported(at, "asks for a tool, but all tools of the request are of types that are left out here (%s)", l.list())
	}
	return bad(at, "asks for a tool, but there are no tools")
}

// needNamed refuses a choice of a tool that was left out.
func (l *toolList) needNamed(at *path, name string) error {
	if err := l.need(at); err != nil {
		return err
	}
	for _, known := range l.names {
		if known == name {
			return nil
		}
	}
	for _, t := range l.left {
		if t.name == name {
			return unsupported(at, "asks for a tool that is left out here (%s)", plainWord(t.kind))
		}
	}
	return nil // the engine's to judge
}

// note says what was left out, in printable ASCII of at most some 800 bytes; "" if
// nothing was. That of leftParts adds some 400.
func (l *toolList) note() string {
	if len(l.left) == 0 {
		return ""
	}
	return "tools left out: " + l.list()
}

// leftParts notes the types of blocks or items of earlier turns that are left out: what
// tools did that the API's own servers run, or which the model does not see.
type leftParts struct {
	refuse bool // Options.RefuseTools
	kinds  []string
}

// leave leaves a block or an item out, or refuses it.
func (l *leftParts) leave(at *path, kind string) error {
	if l.refuse {
		return unsupported(at.field("type"), "%q cannot be shown to the engine behind this route", clipName(kind))
	}
	if kind = plainWord(kind); len(l.kinds) < 8 && !slices.Contains(l.kinds, kind) {
		l.kinds = append(l.kinds, kind)
	}
	return nil
}

// note adds to a note what was left out.
func (l *leftParts) note(note string) string {
	if len(l.kinds) == 0 {
		return note
	}
	if note != "" {
		note += "; "
	}
	return note + "parts of turns left out: " + strings.Join(l.kinds, ", ")
}

func (l *toolList) list() string {
	const most = 8
	var b strings.Builder
	for i, t := range l.left {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(l.left)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(plainWord(t.kind))
		if t.name != "" && t.name != t.kind {
			b.WriteString(" (" + plainWord(t.name) + ")")
		}
	}
	return b.String()
}

// plainWord makes a client's word fit for a header and a log line.
func plainWord(s string) string {
	s = s[:min(len(s), 48)]
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '?'
	}, s)
}

// appendOneLineList appends a list of the told tools for the answer that repeats them.
func (l *toolList) appendOneLineList(dst []byte) []byte {
	dst = append(dst, '[')
	for i, v := range l.told {
		dst = append(dst, commaIf(i > 0)...)
		dst = appendOneLine(dst, v)
	}
	return append(dst, ']')
}
