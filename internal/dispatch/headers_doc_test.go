package dispatch

import (
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/openai"
)

// allOthers stands for the row of the headers that have none of their own.
const allOthers = "*"

// documented are the rows of the table of headers in docs/http.md, as header:
// what becomes of it. A header with a star at its end stands for a family.
func documented(t *testing.T, section string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "\n### "+section+"\n")
	if !ok {
		t.Fatalf("docs/http.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n#")
	name := regexp.MustCompile("`([A-Za-z0-9-]+\\*?)`")
	rows := map[string]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "---") {
			continue
		}
		if strings.TrimSpace(cells[1]) == "all other headers" {
			rows[allOthers] = strings.TrimSpace(cells[2])
		}
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			h := http.CanonicalHeaderKey(strings.TrimSuffix(m[1], "*"))
			if strings.HasSuffix(m[1], "*") {
				h += "*"
			}
			if _, twice := rows[h]; twice {
				t.Errorf("%s has two rows", h)
			}
			rows[h] = strings.TrimSpace(cells[2])
		}
	}
	return rows
}

// What the documentation says of a client's headers is what becomes of them.
func TestDocumentedRequestHeaders(t *testing.T) {
	rows := documented(t, "Headers of requests")
	read := []string{ // what sluice itself goes by
		classify.HeaderClass, classify.HeaderClassAlias, classify.HeaderMaxQueue, HeaderRequireLabels, HeaderPreferLabels,
		HeaderTargetWorker, HeaderTargetDecode, HeaderRoutingKey, HeaderRequestID, headerAuthorization,
	}
	want := map[string]bool{allOthers: true}
	for h := range requestDrop {
		want[h] = true
	}
	for _, p := range requestDropPrefix {
		want[p+"*"] = true
	}
	for _, h := range read {
		want[h] = true
		if !strings.HasPrefix(rows[h], "read") {
			t.Errorf("%s: %q is not said to be read", h, rows[h])
		}
	}
	for h, what := range rows {
		if h == allOthers {
			continue
		}
		if !want[h] {
			t.Errorf("%s is documented, and nothing in the code is about it", h)
		}
		sample := strings.TrimSuffix(h, "*")
		if sample != h {
			sample += "Something"
		}
		if passes := passRequest(sample); passes != strings.Contains(what, "passed") && h != headerAuthorization {
			t.Errorf("%s: passed on %t, documented as %q", h, passes, what)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(want)) {
		if _, ok := rows[h]; !ok {
			t.Errorf("docs/http.md does not tell of the header %s of requests", h)
		}
	}
}

// And of an engine's headers, and of sluice's own.
func TestDocumentedAnswerHeaders(t *testing.T) {
	rows := documented(t, "Headers of answers")
	added := []string{HeaderPrefillWorker, HeaderDecodeWorker, HeaderQueueMS, HeaderNote, HeaderRequestID, openai.ErrorCodeHeader,
		"Retry-After", "Content-Type", "Content-Length", "Cache-Control", "X-Accel-Buffering", "Date", "Allow", "Location", "Www-Authenticate", "Connection"}
	want := map[string]bool{"X-Sluice-*": true}
	for h := range responseDrop {
		want[h] = true
	}
	for _, h := range added {
		h = http.CanonicalHeaderKey(h)
		want[h] = true
		if !strings.HasPrefix(rows[h], "added") {
			t.Errorf("%s: %q is not said to be added", h, rows[h])
		}
	}
	for h, what := range rows {
		if !want[h] {
			t.Errorf("%s is documented, and nothing in the code is about it", h)
		}
		_, drops := responseDrop[h]
		drops = drops || strings.HasPrefix(h, "X-Sluice-")
		if drops != strings.Contains(what, "the engine's is dropped") {
			t.Errorf("%s: dropped %t, documented as %q", h, drops, what)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(want)) {
		if _, ok := rows[h]; !ok {
			t.Errorf("docs/http.md does not tell of the header %s of answers", h)
		}
	}
}
