package openai

import "strings"

// LogText is the message for the log: the words and numbers that the client or an engine
// sent, which may be part of a prompt, are replaced by "…". It names the field at fault
// if that has an ordinary name. It is empty if nothing else is left.
func (e *Error) LogText() string {
	text := ""
	switch {
	case e.Code == codeEngineError: // the engine's own text
	case e.format != "":
		text = withoutVerbs(e.format)
	default:
		text = withoutQuoted(e.Message)
	}
	if strings.Trim(text, "… ") == "" {
		text = ""
	}
	if e.Param != "" && ordinaryName(e.Param) {
		text = strings.TrimPrefix(text+" (param "+e.Param+")", " ")
	}
	return text
}

// withoutVerbs is a format of package fmt with "…" for each value.
func withoutVerbs(format string) string {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(format, "%")
		b.WriteString(text)
		if !found {
			return b.String()
		}
		verb := strings.IndexFunc(rest, func(r rune) bool { return r == '%' || r|0x20 >= 'a' && r|0x20 <= 'z' })
		if verb < 0 {
			return b.String()
		}
		if rest[verb] == '%' {
			b.WriteByte('%')
		} else {
			b.WriteString("…")
		}
		format = rest[verb+1:]
	}
}

// withoutQuoted is a message with "…" for each text in double quotes, as %q writes them.
func withoutQuoted(message string) string {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(message, `"`)
		b.WriteString(text)
		if !found {
			return b.String()
		}
		b.WriteString("…")
		end := 0
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return b.String() // cut within the quotes
		}
		message = rest[end+1:]
	}
}

// maxLoggedParam bounds the name of a field in the log, in bytes.
const maxLoggedParam = 64

// ordinaryName reports whether a field's name looks like one of an API, rather than text.
func ordinaryName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', strings.IndexByte("_.-[]", c) >= 0:
		default:
			return false
		}
	}
	return len(name) <= maxLoggedParam
}
