package openai

import (
	"bytes"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Bounds of a form. They are far above what clients of the audio API send.
const (
	maxFormParts       = 256
	maxFormHeaderLines = 16
	maxFormHeaderBytes = 8 << 10 // of one part's header
	maxFormModel       = 16 << 10
)

// IsMultipart reports whether a Content-Type is some multipart type.
func IsMultipart(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, "/")
	return strings.EqualFold(strings.TrimSpace(kind), "multipart")
}

// PeekForm reads what routing needs of a multipart form: its field "model". The
// form is passed on unchanged, and the engine parses it again. What parsers read in
// different ways is therefore refused: names with escapes or extended parameters,
// header lines that are folded, duplicate known fields, and fields of refuse. The body
// is read in place.
func PeekForm(route Route, contentType string, body []byte, refuse FieldSet) (*Peeked, error) {
	delimiter, err := formDelimiter(contentType)
	if err != nil {
		return nil, err
	}
	f := form{rest: body, delimiter: delimiter, refuse: refuse}
	if err := f.read(); err != nil {
		return nil, err
	}
	return Opaque(route, body, f.model), nil
}

// formDelimiter precedes each part: CRLF, two hyphens, the boundary.
func formDelimiter(contentType string) ([]byte, *Error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || strings.ContainsAny(contentType, `*\`) {
		return nil, UnsupportedMediaType("the Content-Type cannot be read as that of a form; send \"multipart/form-data; boundary=…\"")
	}
	boundary := params["boundary"]
	if !goodBoundary(boundary) {
		return nil, InvalidRequest("", "the request body is not a whole multipart form: the Content-Type has no boundary of 1 to 70 letters, digits and other signs that RFC 2046 allows")
	}
	return []byte("\r\n--" + boundary), nil
}

// goodBoundary is the grammar of RFC 2046, section 5.1.1, without spaces.
func goodBoundary(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("'()+_,-./:=?", c) >= 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= 70
}

// form reads a multipart form, part after part.
type form struct {
	rest      []byte // of the body
	delimiter []byte
	refuse    FieldSet
	seen      FieldSet
	model     string
}

func notForm(why string) *Error {
	return InvalidRequest("", "the request body is not a whole multipart form: %s", why)
}

func (f *form) read() *Error {
	// Some clients write the line end that belongs to the delimiter before the first one, too.
	f.rest = bytes.TrimPrefix(f.rest, []byte("\r\n"))
	opening := f.delimiter[len("\r\n"):]
	if !bytes.HasPrefix(f.rest, opening) {
		return notForm("it does not begin with its boundary")
	}
	f.rest = f.rest[len(opening):]
	for parts := 0; ; parts++ {
		if after, last := bytes.CutPrefix(f.rest, []byte("--")); last {
			if len(after) > 0 && string(after) != "\r\n" {
				return notForm("there is data after its last boundary")
			}
			return nil
		}
		after, ok := bytes.CutPrefix(f.rest, []byte("\r\n"))
		switch {
		case !ok:
			return notForm("a boundary is not followed by a line end")
		case parts == maxFormParts:
			return InvalidRequest("", "the form in the request body has more than %d parts", maxFormParts)
		}
		f.rest = after
		if err := f.part(); err != nil {
			return err
		}
	}
}

// part reads one part and the delimiter after it.
func (f *form) part() *Error {
	name, isFile, err := f.header()
	if err != nil {
		return err
	}
	content := f.rest
	end := bytes.Index(content, f.delimiter)
	if end < 0 {
		return notForm("it is cut off in a part")
	}
	f.rest = content[end+len(f.delimiter):]
	content = content[:end]

	base := name
	if i := strings.IndexAny(name, ".["); i > 0 {
		base = name[:i] // some frameworks write a field's members as name[member]
	}
	field := fieldByName([]byte(base))
	switch {
	case field == FieldNone:
		return nil
	case f.refuse.Has(field):
		return InvalidRequest(base, "the field %q may not be set by clients; leave it out", base)
	case base != name:
		return nil
	case f.seen.Has(field):
		return InvalidRequest(name, "the field %q is there twice; send it once", name)
	}
	f.seen = f.seen.With(field)
	if field != FieldModel {
		return nil
	}
	switch {
	case isFile:
		return InvalidRequest("model", "model is a file; send it as a field of the form")
	case len(content) > maxFormModel:
		return InvalidRequest("model", "model is longer than %d bytes", maxFormModel)
	case !utf8.Valid(content):
		return InvalidRequest("model", "model is not valid UTF-8")
	}
	f.model = string(content)
	return nil
}

// header reads the header of a part, to the empty line that ends it.
func (f *form) header() (name string, isFile bool, _ *Error) {
	left, named := maxFormHeaderBytes, false
	for range maxFormHeaderLines + 1 {
		end := bytes.Index(f.rest[:min(len(f.rest), left)], []byte("\r\n"))
		if end < 0 {
			if len(f.rest) < left {
				return "", false, notForm("it is cut off in the header of a part")
			}
			return "", false, InvalidRequest("", "the header of a part of the form is longer than %d bytes", maxFormHeaderBytes)
		}
		line := f.rest[:end]
		f.rest, left = f.rest[end+2:], left-end-2
		if len(line) == 0 {
			if !named {
				return "", false, notForm("a part has no name")
			}
			if bytes.HasPrefix(f.rest, f.delimiter[len("\r\n"):]) {
				// Some parsers take the line end of the empty line for the
				// delimiter's, others do not.
				return "", false, notForm("a part has no line end before its boundary")
			}
			return name, isFile, nil
		}
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !isToken(key) || bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return "", false, notForm("a line in the header of a part is not a header field")
		}
		switch {
		case bytes.EqualFold(key, []byte("Content-Disposition")):
			if named {
				return "", false, notForm("a part has two Content-Dispositions")
			}
			if name, isFile, ok = disposition(string(value)); !ok {
				return "", false, InvalidRequest("", "the Content-Disposition of a part of the form cannot be read; send form-data; name=\"…\", without escapes in the name")
			}
			named = true
		case bytes.EqualFold(key, []byte("Content-Transfer-Encoding")):
			switch strings.ToLower(strings.TrimSpace(string(value))) {
			case "7bit", "8bit", "binary":
			default:
				return "", false, InvalidRequest("", "a part of the form has a Content-Transfer-Encoding; send its bytes as they are")
			}
		}
	}
	return "", false, InvalidRequest("", "the header of a part of the form has more than %d lines", maxFormHeaderLines)
}

// disposition reads a Content-Disposition. ok is false where parsers could differ
// on the name.
func disposition(s string) (name string, isFile, ok bool) {
	kind, rest, _ := strings.Cut(s, ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "form-data") {
		return "", false, false
	}
	named := false
	for rest = strings.TrimSpace(rest); rest != ""; {
		key, after, has := strings.Cut(rest, "=")
		if key = strings.ToLower(strings.TrimSpace(key)); !has || !isToken([]byte(key)) {
			return "", false, false
		}
		value, after, has := parameter(strings.TrimLeft(after, " \t"))
		if !has {
			return "", false, false
		}
		switch {
		case key == "name":
			if named || value == "" || strings.Contains(value, `\`) {
				return "", false, false
			}
			name, named = value, true
		case key == "filename", key == "filename*":
			isFile = true
		case strings.Contains(key, "*"):
			return "", false, false
		}
		rest = strings.TrimSpace(after)
	}
	return name, isFile, named
}

// parameter is the value at the beginning of s, as it is written, and the rest after the
// next semicolon.
func parameter(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		value = strings.TrimRight(value, " \t")
		return value, rest, value != "" && !strings.ContainsAny(value, "\" \t\\")
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			value, rest = s[1:i], strings.TrimLeft(s[i+1:], " \t")
			if rest == "" {
				return value, "", true
			}
			rest, ok = strings.CutPrefix(rest, ";")
			return value, rest, ok
		}
	}
	return "", "", false
}

// isToken is the grammar of names in headers, RFC 9110, section 5.6.2.
func isToken(b []byte) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(b) > 0
}

// UnsupportedMediaType is 415 unsupported_media_type: the route does not take
// bodies of the type.
func UnsupportedMediaType(message string) *Error {
	return &Error{Status: http.StatusUnsupportedMediaType, Type: typeInvalid, Code: "unsupported_media_type", Message: message}
}
