package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var metricName = regexp.MustCompile(`\b(?:sluice|smg_pd)_[a-z0-9_]+[a-z0-9]`)

// Metrics that the documents name, in the table of alerts for instance, are there: a
// condition on one that is not never holds.
func TestMetricsThatDocumentsNameExist(t *testing.T) {
	reference := document(t, "metrics.md")
	n := 0
	for page, text := range pages(t) {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue // it names what was renamed
		}
		for _, name := range metricName.FindAllString(text, -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			n++
			if name != "sluice_noraw" && !strings.Contains(reference, "`"+name+"`") { // that is a tag of the build
				t.Errorf("%s names %s, which is no metric", page, name)
			}
		}
	}
	if n < 100 {
		t.Errorf("the documents name %d metrics only: are they looked for in the right way?", n)
	}
}
