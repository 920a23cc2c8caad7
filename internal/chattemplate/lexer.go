package chattemplate

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokenEnd           tokenKind = iota
	tokenText                    // text between tags; value has it
	tokenVariableBegin           // {{
	tokenVariableEnd             // }}
	tokenBlockBegin              // {%
	tokenBlockEnd                // %}
	tokenName
	tokenString
	tokenNumber   // number has an int64, *big.Int or float64
	tokenOperator // value has it
)

type token struct {
	kind   tokenKind
	value  string
	number Value
	line   int
}

func (t token) String() string {
	switch t.kind {
	case tokenEnd:
		return "the end of the template"
	case tokenText:
		return "text"
	case tokenVariableBegin:
		return "{{"
	case tokenVariableEnd:
		return "}}"
	case tokenBlockBegin:
		return "{%"
	case tokenBlockEnd:
		return "%}"
	case tokenNumber:
		return fmt.Sprint(t.number)
	}
	return strconv.Quote(t.value)
}

// lexer cuts a source into tokens, with the rules of trim_blocks and lstrip_blocks: the newline behind a block is dropped, and so is white space between the start
// of a line and a block.
type lexer struct {
	source string
	at     int
	line   int
	tokens []token
	// lineStarting: what was read last ended with a newline, or nothing was read yet.
	lineStarting bool
}

// lex throws an *Error of the kind Syntax.
func lex(source string) []token {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{source: source, line: 1, lineStarting: true}
	for l.at < len(l.source) {
		l.next()
	}
	l.add(tokenEnd, "")
	return l.tokens
}

func (l *lexer) failf(format string, args ...any) {
	panic(&Error{Kind: Syntax, Message: fmt.Sprintf(format, args...), Line: l.line})
}

func (l *lexer) add(kind tokenKind, value string) {
	l.tokens = append(l.tokens, token{kind: kind, value: value, line: l.line})
}

// advance goes on by n bytes.
func (l *lexer) advance(n int) {
	passed := l.source[l.at : l.at+n]
	l.line += strings.Count(passed, "\n")
	l.at += n
	if n > 0 {
		l.lineStarting = passed[n-1] == '\n'
	}
}

// next reads the text up to a tag, and the tag.
func (l *lexer) next() {
	rest := l.source[l.at:]
	begin := 0
	for {
		i := strings.IndexByte(rest[begin:], '{')
		if i < 0 || begin+i+1 >= len(rest) {
			l.add(tokenText, rest)
			l.advance(len(rest))
			return
		}
		begin += i
		if c := rest[begin+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		begin++
	}
	text, tag := rest[:begin], rest[begin:begin+2]
	sign := byte(0)
	if begin+2 < len(rest) && (rest[begin+2] == '-' || rest[begin+2] == '+') {
		sign = rest[begin+2]
	}
	switch {
	case sign == '-':
		text = trimRight(text)
	case sign != '+' && tag != "{{":
		lineStart := strings.LastIndexByte(text, '\n') + 1
		if (lineStart > 0 || l.lineStarting) && trim(text[lineStart:]) == "" {
			text = text[:lineStart]
		}
	}
	if text != "" {
		l.add(tokenText, text)
	}
	opened := begin + 2
	if sign != 0 {
		opened++
	}
	l.advance(opened)
	switch tag {
	case "{#":
		l.comment()
	case "{%":
		if n := l.rawTag("raw"); n > 0 {
			l.raw(n)
			return
		}
		l.add(tokenBlockBegin, "")
		l.expression('%')
	default:
		l.add(tokenVariableBegin, "")
		l.expression('}')
	}
}

func (l *lexer) comment() {
	end := strings.Index(l.source[l.at:], "#}")
	if end < 0 {
		l.failf("missing end of a comment")
	}
	sign := byte(0)
	if end > 0 {
		sign = l.source[l.at+end-1]
	}
	l.advance(end + 2)
	l.afterTag(sign, true)
}

// afterTag skips what follows the end of a tag: all white space behind a minus sign, else one newline behind a block or a comment.
func (l *lexer) afterTag(sign byte, block bool) {
	switch {
	case sign == '-':
		rest := l.source[l.at:]
		if n := len(rest) - len(trimLeft(rest)); n > 0 {
			l.advance(n)
		}
	case block && sign != '+' && l.at < len(l.source) && l.source[l.at] == '\n':
		l.advance(1)
	}
}

// rawTag is the length of the rest of a {% raw %} or {% endraw %} tag up to its end, without white space behind it; 0: another tag.
func (l *lexer) rawTag(name string) int {
	rest := l.source[l.at:]
	s := trimLeft(rest)
	if !strings.HasPrefix(s, name) {
		return 0
	}
	s = trimLeft(s[len(name):])
	switch {
	case strings.HasPrefix(s, "%}"):
		s = s[2:]
	case strings.HasPrefix(s, "-%}"), name == "endraw" && strings.HasPrefix(s, "+%}"):
		s = s[3:]
	default:
		return 0
	}
	return len(rest) - len(s)
}

// raw reads the text of a raw block; n is the length of the rest of its first tag.
func (l *lexer) raw(n int) {
	minus := l.source[l.at+n-3] == '-'
	l.advance(n)
	if minus {
		l.afterTag('-', true)
	}
	start := l.at
	for {
		i := strings.Index(l.source[l.at:], "{%")
		if i < 0 {
			l.failf("missing end of a raw block")
		}
		text := l.source[start : l.at+i]
		l.advance(i + 2)
		sign := byte(0)
		if l.at < len(l.source) && (l.source[l.at] == '-' || l.source[l.at] == '+') {
			sign = l.source[l.at]
			l.advance(1)
		}
		n := l.rawTag("endraw")
		if n == 0 {
			continue
		}
		if sign == '-' {
			text = trimRight(text)
		} else if lineStart := strings.LastIndexByte(text, '\n') + 1; sign != '+' && lineStart > 0 && trim(text[lineStart:]) == "" {
			text = text[:lineStart]
		}
		if text != "" {
			l.add(tokenText, text)
		}
		closing := l.source[l.at+n-3]
		l.advance(n)
		l.afterTag(closing, true)
		return
	}
}

// operators by length, the longest first.
var operators = [...]string{"**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

// expression reads the tokens of a tag up to its end, which is closing and a brace.
func (l *lexer) expression(closing byte) {
	var open []byte // brackets that wait for their end, within which no tag ends
	for {
		rest := trimLeft(l.source[l.at:])
		l.advance(len(l.source) - l.at - len(rest))
		if rest == "" {
			l.failf("the template ends within a tag")
		}
		if len(open) == 0 {
			n, sign := 0, byte(0)
			switch {
			case len(rest) > 1 && rest[0] == closing && rest[1] == '}':
				n = 2
			case len(rest) > 2 && (rest[0] == '-' || rest[0] == '+' && closing == '%') && rest[1] == closing && rest[2] == '}':
				n, sign = 3, rest[0]
			}
			if n > 0 {
				if closing == '%' {
					l.add(tokenBlockEnd, "")
				} else {
					l.add(tokenVariableEnd, "")
				}
				l.advance(n)
				l.afterTag(sign, closing == '%')
				return
			}
		}
		switch c := rest[0]; {
		case c == '\'' || c == '"':
			l.str(rest)
		case c >= '0' && c <= '9':
			l.number(rest)
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf:
			n := 0
			for n < len(rest) && (rest[n] == '_' || rest[n] >= 'a' && rest[n] <= 'z' || rest[n] >= 'A' && rest[n] <= 'Z' || rest[n] >= '0' && rest[n] <= '9' || rest[n] >= utf8.RuneSelf) {
				n++
			}
			l.add(tokenName, rest[:n])
			l.advance(n)
		default:
			open = l.operator(rest, open)
		}
	}
}

func (l *lexer) operator(rest string, open []byte) []byte {
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(":
			open = append(open, ')')
		case "[":
			open = append(open, ']')
		case "{":
			open = append(open, '}')
		case ")", "]", "}":
			if len(open) == 0 || open[len(open)-1] != op[0] {
				l.failf("unexpected %q", op)
			}
			open = open[:len(open)-1]
		}
		l.add(tokenOperator, op)
		l.advance(len(op))
		return open
	}
	r, _ := utf8.DecodeRuneInString(rest)
	l.failf("unexpected character %q", r)
	return nil
}

// str reads a string literal, with Python's escapes.
func (l *lexer) str(rest string) {
	quote := rest[0]
	end := 1
	for {
		if end >= len(rest) {
			l.failf("a string is not closed")
		}
		if rest[end] == '\\' {
			end += 2
			continue
		}
		if rest[end] == quote {
			break
		}
		end++
	}
	l.add(tokenString, l.unescape(rest[1:end]))
	l.advance(end + 1)
}

func (l *lexer) unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i >= len(s) {
			l.failf("a string ends with a backslash")
		}
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte('\v')
		case 'x', 'u', 'U':
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+digits >= len(s) {
				l.failf("a string has a truncated \\%c escape", c)
			}
			n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
			if err != nil || !utf8.ValidRune(rune(n)) {
				l.failf("a string has a wrong \\%c escape", c)
			}
			b.WriteRune(rune(n))
			i += digits
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := 0
			for end := i + 3; i < end && i < len(s) && s[i] >= '0' && s[i] <= '7'; i++ {
				n = n*8 + int(s[i]-'0')
			}
			i--
			b.WriteRune(rune(n))
		case 'N':
			l.failf("a string names a character by \\N")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (l *lexer) number(rest string) {
	digits := func(s string, from int, of string) int {
		i := from
		for i < len(s) && (strings.IndexByte(of, s[i]) >= 0 || s[i] == '_' && i > from && i+1 < len(s) && strings.IndexByte(of, s[i+1]) >= 0) {
			i++
		}
		return i
	}
	const decimal = "0123456789"
	n, base := 0, 10
	if len(rest) > 2 && rest[0] == '0' {
		switch rest[1] {
		case 'b', 'B':
			n, base = digits(rest, 2, "01"), 2
		case 'o', 'O':
			n, base = digits(rest, 2, "01234567"), 8
		case 'x', 'X':
			n, base = digits(rest, 2, decimal+"abcdefABCDEF"), 16
		}
	}
	afterDot := len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].kind == tokenOperator && l.tokens[len(l.tokens)-1].value == "."
	isFloat := false
	if base == 10 {
		n = digits(rest, 0, decimal)
		if !afterDot {
			if end := digits(rest, min(n+1, len(rest)), decimal); n < len(rest) && rest[n] == '.' && end > n+1 {
				n, isFloat = end, true
			}
			if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
				from := n + 1
				if from < len(rest) && (rest[from] == '+' || rest[from] == '-') {
					from++
				}
				if end := digits(rest, from, decimal); end > from {
					n, isFloat = end, true
				}
			}
		}
	}
	literal := strings.ReplaceAll(rest[:n], "_", "")
	t := token{kind: tokenNumber, line: l.line}
	if isFloat {
		f, _ := strconv.ParseFloat(literal, 64) // too large: infinite, as in Python
		t.number = f
	} else {
		if base != 10 {
			literal = literal[2:]
		}
		t.number = parseInt(literal, base)
	}
	if t.number == nil {
		l.failf("wrong number %q", rest[:n])
	}
	l.tokens = append(l.tokens, t)
	l.advance(n)
}

// parseInt is an int64, or a *big.Int where that is too small; nil: no number.
func parseInt(s string, base int) Value {
	if i, err := strconv.ParseInt(s, base, 64); err == nil {
		return i
	}
	if i, ok := new(big.Int).SetString(s, base); ok && len(s) < 5000 {
		return i
	}
	return nil
}
