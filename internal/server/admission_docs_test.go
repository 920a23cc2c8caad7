package server

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The metrics of the gate that the documentation names are there from the start.
func TestDocumentedGateMetrics(t *testing.T) {
	r := start(t, nil)
	page := r.metricsPage()
	for _, name := range []string{"classes.md", "operations.md"} {
		for _, m := range regexp.MustCompile("`((?:sluice|smg_pd_prefill)_admission_[a-z_]+)").FindAllStringSubmatch(document(t, name), -1) {
			if !strings.Contains(page, "\n# TYPE "+m[1]+" ") {
				t.Errorf("docs/%s names the metric %s, and there is none", name, m[1])
			}
		}
	}
}

// The documentation of GET /admission tells of every field.
func TestDocumentedAdmissionFields(t *testing.T) {
	text := document(t, "http.md")
	_, text, _ = strings.Cut(text, "\n## The gate\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var walk func(v reflect.Type)
	walk = func(v reflect.Type) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Field(i).Tag.Get("json"), ",")
				if name == "" || !strings.Contains(v.PkgPath(), "internal/server") {
					continue
				}
				// "x_pending and `_active`" names two.
				_, suffix, _ := cutLast(name, "_")
				if !strings.Contains(text, name) && !strings.Contains(text, "`_"+suffix+"`") {
					t.Errorf("docs/http.md does not tell of the field %s", name)
				}
				walk(v.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[admissionDoc]())
	// The example in classes.md is a class as it is told.
	_, example, _ := strings.Cut(document(t, "classes.md"), "```json\n")
	example, _, _ = strings.Cut(example, "```")
	dec := json.NewDecoder(strings.NewReader(example))
	dec.DisallowUnknownFields()
	if err := dec.Decode(new(classDoc)); err != nil {
		t.Errorf("the example of a class: %v", err)
	}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
