package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"strings"
	"testing"
)

// formPart is one part of a form as clients write them.
func formPart(name, value string) string {
	return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
}

func TestPeekForm(t *testing.T) {
	const end = "--b--\r\n"
	file := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\".wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\x00\xff\r\n--not a boundary\r\n"
	many := func(n int) string { return strings.Repeat(formPart("x", "1"), n) }
	f := func(name, body, model, fault string) {
		t.Helper()
		p, err := PeekForm(RouteAudio, `multipart/form-data; boundary=b`, []byte(body), ControlledFields.With(FieldNVExt))
		var e *Error
		switch {
		case fault == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case fault == "" && (p.Model != model || string(p.Body) != body):
			t.Errorf("%s: model %q, want %q", name, p.Model, model)
		case fault != "" && (!errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, fault)):
			t.Errorf("%s: %v, want 400 with %q", name, err, fault)
		}
	}
	f("a file and fields", file+formPart("model", "m")+formPart("user", "u")+end, "m", "")
	f("no line end behind it", formPart("model", "org/m")+"--b--", "org/m", "")
	f("a line end before it", "\r\n"+formPart("model", "m")+end, "m", "")
	f("no model", file+end, "", "")
	f("an empty model", formPart("model", "")+end, "", "")
	f("no parts", end, "", "")
	f("a list", formPart("timestamp_granularities[]", "word")+formPart("timestamp_granularities[]", "segment")+end, "", "")
	f("the model comes late", many(65)+formPart("model", "m")+end, "m", "")
	f("a name without quotes", "--b\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n"+end, "m", "")
	f("a file whose name is told twice", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"; filename*=UTF-8''%c3%a4\r\n\r\nx\r\n"+end, "", "")

	// Forms that the engine might read in another way, or must not get.
	for f1 := FieldNone + 1; f1 < numFields; f1++ {
		if ControlledFields.Has(f1) || f1 == FieldNVExt {
			for _, name := range []string{f1.String(), f1.String() + "[x]", f1.String() + ".x"} {
				f("controlled", formPart("model", "m")+formPart(name, "1")+end, "", "may not be set by clients")
			}
			continue
		}
		f("twice", formPart(f1.String(), "1")+formPart("x", "1")+formPart(f1.String(), "1")+end, "", "is there twice")
	}
	f("a controlled name as a file", strings.Replace(formPart("kv_transfer_params", "1"), "params\"", "params\"; filename=\"a\"", 1)+end, "", "may not be set by clients")
	f("a model as a file", strings.Replace(formPart("model", "m"), "model\"", "model\"; filename=\"a\"", 1)+end, "", "model is a file")
	f("a long model", formPart("model", strings.Repeat("m", maxFormModel+1))+end, "", "longer than")
	f("a model of bytes", formPart("model", "\xff")+end, "", "UTF-8")
	f("too many parts", many(maxFormParts+1)+end, "", "more than 256 parts")
	f("a huge header", "--b\r\nX: "+strings.Repeat("x", maxFormHeaderBytes)+"\r\n"+formPart("x", "")[5:]+end, "", "longer than 8192 bytes")
	f("many header lines", "--b\r\n"+strings.Repeat("X: x\r\n", maxFormHeaderLines+1)+formPart("x", "")[5:]+end, "", "more than 16 lines")
	for name, disposition := range map[string]string{
		"escaped":             `form-data; name="mo\del"`,
		"extended":            `form-data; name*=UTF-8''model`,
		"both":                `form-data; name="x"; name*=UTF-8''model`,
		"in pieces":           `form-data; name*0="mo"; name*1="del"`,
		"named twice":         `form-data; name="x"; name="model"`,
		"another kind":        `attachment; name="model"`,
		"no name":             `form-data`,
		"an empty name":       `form-data; name=""`,
		"an open quote":       `form-data; name="model`,
		"more behind a quote": `form-data; name="x"model`,
		"a quote in a token":  `form-data; name=x"model"`,
	} {
		f(name, "--b\r\nContent-Disposition: "+disposition+"\r\n\r\nm\r\n"+end, "", "Content-Disposition")
	}
	f("two dispositions", "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n"+formPart("model", "m")[5:]+end, "", "two Content-Dispositions")
	f("no disposition", "--b\r\nX: x\r\n\r\nm\r\n"+end, "", "a part has no name")
	f("folded", "--b\r\nContent-Disposition: form-data;\r\n name=\"model\"\r\n\r\nm\r\n"+end, "", "cannot be read")
	f("bare line feeds", "--b\r\nX: x\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n"+end, "", "is not a header field")
	f("encoded", "--b\r\nContent-Transfer-Encoding: base64\r\n"+formPart("model", "bQ==")[5:]+end, "", "Content-Transfer-Encoding")
	f("no line end before the boundary", "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n"+formPart("model", "m")+end, "", "no line end before")

	// A form that is cut off anywhere must not count as complete.
	whole := file + formPart("model", "m") + end
	for n := range len(whole) - len("\r\n") {
		f("cut off", whole[:n], "", "not a whole multipart form")
	}
	for _, body := range []string{`{"model":"m"}`, "", "\r\n", "--c\r\n", "preamble\r\n" + whole, whole + "epilogue", whole + whole, "--b \r\n", "--bb\r\n" + whole} {
		f("no form", body, "", "not a whole multipart form")
	}
}

func TestFormsAreKnownByTheirContentType(t *testing.T) {
	f := func(contentType string, status int) {
		t.Helper()
		_, err := PeekForm(RouteAudio, contentType, []byte("--b--"), 0)
		var e *Error
		if got := errors.As(err, &e); got != (status != 0) || got && e.Status != status {
			t.Errorf("%s: %v, want status %d", contentType, err, status)
		}
	}
	f(`multipart/form-data; boundary=b`, 0)
	f(`Multipart/Form-Data;charset=utf-8; boundary="b"`, 0)
	f(`multipart/form-data; boundary=b; boundary=c`, 415)
	f(`multipart/form-data; boundary*=UTF-8''b`, 415)
	f(`multipart/form-data; boundary="\b"`, 415)
	f(`multipart/mixed; boundary=b`, 415)
	f(`multipart/form-data`, 400)
	f(`multipart/form-data; boundary="b b"`, 400)
	f(`multipart/form-data; boundary=`+strings.Repeat("b", 71), 400)
}

// What is accepted is read by package multipart in the same way.
func FuzzPeekForm(f *testing.F) {
	f.Add(formPart("model", "m") + "--b--\r\n")
	f.Add("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n" + formPart("user", "u") + "--b--")
	f.Add("--b\r\ncontent-disposition: form-data;name=model;x=y\r\n\r\n\r\n--b--\r\n")
	f.Fuzz(func(t *testing.T, body string) {
		p, err := PeekForm(RouteAudio, "multipart/form-data; boundary=b", []byte(body), ControlledFields)
		if err != nil {
			return
		}
		r := multipart.NewReader(bytes.NewReader([]byte(body)), "b")
		model, seen := "", 0
		for {
			part, err := r.NextRawPart()
			if err == io.EOF { //nolint:errorlint // it wraps another io.EOF when the form is cut off
				break
			}
			if err != nil {
				t.Fatalf("%q: %v", body, err)
			}
			if field := fieldByName([]byte(part.FormName())); ControlledFields.Has(field) {
				t.Fatalf("%q has the field %s", body, field)
			}
			if part.FormName() == "model" {
				b, err := io.ReadAll(part)
				if err != nil {
					t.Fatalf("%q: %v", body, err)
				}
				model, seen = string(b), seen+1
			}
		}
		if seen > 1 || model != p.Model {
			t.Fatalf("%q: model %q, read elsewhere as %s", body, p.Model, fmt.Sprintf("%q (%d)", model, seen))
		}
	})
}
