package translate

import (
	"fmt"
	"slices"
	"strings"
)

// toolList sorts a request's tools into functions, which the engine's chat route can
// pass to the model, and all others: tools that the API's own servers run, and tools of
// the client that are not called with a JSON object. Agents send such tools beside their
// functions without asking whether a server has them.
type toolList struct {
	refuse bool     // Options.RefuseTools
	only   []string // the names that the client allows for this answer, nil for all
	passed []raw    // the tools that are passed to the engine, as the client spelled them
	names  []string // of passed
	left   []omittedTool
}

// omittedTool is a tool that the model does not see.
type omittedTool struct {
	kind, name string // the name is "" if it has none
}

// leaveOut leaves a tool out, or refuses it by option.
func (l *toolList) leaveOut(tool object, kind raw) error {
	if l.refuse {
		return unsupported(tool.at.field("type"), "tools of type %q cannot be passed to the engine behind this route; only functions of the client's can", clipName(kind.text()))
	}
	l.left = append(l.left, omittedTool{kind.text(), tool.get("name").text()})
	return nil
}

// leaveOutFor is leaveOut for a function with a field that is not possible here.
func (l *toolList) leaveOutFor(tool object, field, why string) error {
	if l.refuse {
		return unsupported(tool.at.field(field), "%s", why)
	}
	l.left = append(l.left, omittedTool{field, tool.get("name").text()})
	return nil
}

func (l *toolList) none() bool { return len(l.passed) == 0 }

// need refuses a tool_choice that requires a tool if there is none.
func (l *toolList) need(at *path) error {
	switch {
	case !l.none():
		return nil
	case len(l.left) > 0:
		return unsupported(at, "asks for a tool, but all tools of the request are of types that are left out here (%s)", l.list())
	}
	return bad(at, "asks for a tool, but there are no tools")
}

// needNamed refuses a tool_choice that names a tool that was left out.
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
			return unsupported(at, "asks for a tool that is left out here (%s)", headerWord(t.kind))
		}
	}
	return nil // the engine decides
}

// note names the tools that were left out, in printable ASCII of at most about 800
// bytes; "" if there are none. The note of omittedParts adds about 400.
func (l *toolList) note() string {
	if len(l.left) == 0 {
		return ""
	}
	return "tools left out: " + l.list()
}

// omittedParts are the types of blocks or items of earlier turns that are left out: calls
// and results of tools that the API's own servers run, or that the model does not see.
type omittedParts struct {
	refuse bool // Options.RefuseTools
	kinds  []string
}

// leaveOut leaves a block or an item out, or refuses it by option.
func (l *omittedParts) leaveOut(at *path, kind string) error {
	if l.refuse {
		return unsupported(at.field("type"), "%q cannot be passed to the engine behind this route", clipName(kind))
	}
	if kind = headerWord(kind); len(l.kinds) < 8 && !slices.Contains(l.kinds, kind) {
		l.kinds = append(l.kinds, kind)
	}
	return nil
}

// note adds the types that were left out to a note.
func (l *omittedParts) note(note string) string {
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
		b.WriteString(headerWord(t.kind))
		if t.name != "" && t.name != t.kind {
			b.WriteString(" (" + headerWord(t.name) + ")")
		}
	}
	return b.String()
}

// headerWord makes a name sent by a client safe for a header and a log line.
func headerWord(s string) string {
	s = s[:min(len(s), 48)]
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '?'
	}, s)
}

// appendOneLineList appends the list of the passed tools, which the answer repeats.
func (l *toolList) appendOneLineList(dst []byte) []byte {
	dst = append(dst, '[')
	for i, v := range l.passed {
		dst = append(dst, commaIf(i > 0)...)
		dst = appendOneLine(dst, v)
	}
	return append(dst, ']')
}
