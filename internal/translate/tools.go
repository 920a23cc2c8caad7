package translate

import (
	"fmt"
	"strings"
)

// toolList sorts a request's tools into functions, which the engine's chat route can
// tell the model of, and all others: tools that the API's own servers run, and those of
// the client's that are not called with a JSON object. Agents send them beside their
// functions without asking whether they are there.
type toolList struct {
	refuse bool     // Options.RefuseTools
	told   []raw    // the tools that were told, as the client spelled them
	names  []string // of told
	left   []leftTool
}

// leftTool is a tool that the model is not told of.
type leftTool struct {
	kind, name string // the name is "" where it has none
}

// leave leaves a tool out, or refuses it.
func (l *toolList) leave(tool object, kind raw) error {
	if l.refuse {
		return unsupported(tool.at.field("type"), "tools of type %q cannot be told to the engine behind this route; only functions of the client's can", clipName(kind.text()))
	}
	l.left = append(l.left, leftTool{kind.text(), tool.get("name").text()})
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
			return unsupported(at, "asks for a tool of type %q, which is left out here", clipName(t.kind))
		}
	}
	return nil // the engine's to judge
}

// note tells what was left out, in printable ASCII of at most some 800 bytes; "" if
// nothing was.
func (l *toolList) note() string {
	if len(l.left) == 0 {
		return ""
	}
	return "tools left out: " + l.list()
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
