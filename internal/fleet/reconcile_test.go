package fleet

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-router/sluice/internal/config"
)

func (b *testbed) urls() []string {
	list := []string{}
	for _, w := range b.List() {
		if w.Status() != StatusDraining {
			list = append(list, w.URL())
		}
	}
	slices.Sort(list)
	return list
}

func TestReconcileOwnsWhatItBrought(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB, urlC)
		spec := func(url string) WorkerSpec { return WorkerSpec{URL: url, Type: config.WorkerRegular} }
		reconcile := func(source string, wantErr string, urls ...string) {
			t.Helper()
			var specs []WorkerSpec
			for _, u := range urls {
				specs = append(specs, spec(u))
			}
			err := b.Reconcile(t.Context(), source, Declare(specs))
			if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
				t.Errorf("%s %q: %v, want %q", source, urls, err, wantErr)
			}
			synctest.Wait()
		}
		want := func(urls ...string) {
			t.Helper()
			if got := b.urls(); !slices.Equal(got, urls) {
				t.Errorf("workers %q, want %q", got, urls)
			}
		}
		reconcile("one", "", urlA, urlB)
		want(urlA, urlB)
		a, _ := b.Get(urlA)
		reconcile("one", "", urlA+"/v1")
		want(urlA)
		if again, _ := b.Get(urlA); again != a {
			t.Error("a worker that did not change was replaced")
		}

		// Another source has its own, and cannot take or remove a worker.
		reconcile("two", "already registered by one", urlA, urlC)
		want(urlA, urlC)
		reconcile("two", "")
		want(urlA)

		// What cannot be registered is told; the rest is in force, and nothing that was
		// brought before goes for it.
		reconcile("one", "must begin with http", urlA, "ftp://x", urlB)
		want(urlA, urlB)
		broken := spec(urlA)
		broken.ModelID = "\n"
		if err := b.Reconcile(t.Context(), "one", Declare([]WorkerSpec{broken, spec(urlB)})); err == nil || !strings.Contains(err.Error(), "model_id") {
			t.Errorf("error %v", err)
		}
		want(urlA, urlB)

		// An operator's change makes the worker the operator's.
		labelled := spec(urlA)
		labelled.Labels = map[string]string{"zone": "x"}
		b.add(labelled)
		reconcile("one", "already registered by requests", urlA, urlB)
		reconcile("one", "")
		want(urlA)
		if w, _ := b.Get(urlA); w.Spec().Labels["zone"] != "x" {
			t.Error("a source undid an operator's change")
		}
	})
}
