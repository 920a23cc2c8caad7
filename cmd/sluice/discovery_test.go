package main

import (
	"os"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// replace writes a file beside another one and puts it in its place.
func replace(t *testing.T, name, text string) {
	t.Helper()
	write(t, name+".new", text)
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersOfAFile(t *testing.T) {
	f := workers(t, sim.Options{Regular: 3})
	a, b, c := f.Regular(0).URL(), f.Regular(1).URL(), f.Regular(2).URL()
	file := t.TempDir() + "/workers.json"
	p := serve(t, "--worker-urls", a, "--discovery-provider", "file", "--discovery-file", file, "--discovery-check-interval-secs", "0.6")
	p.untilListed(map[string]string{a: "configuration ready", "source configuration": "ok", "source file": "failing"})

	// One of the list has another owner, and one is wrong.
	replace(t, file, `{"version": 1, "workers": [{"id": "x", "url": "`+b+`"}, {"url": "`+a+`"}, {"url": "grpc://c:1"}]}`)
	p.untilListed(map[string]string{a: "configuration ready", b: "file ready", "source configuration": "ok", "source file": "ok"})
	p.line("workers.json:1: workers[2].url")
	p.line("already registered by configuration")

	replace(t, file, `{"version": 1, "workers": [{"url": "`+c+`"}]}`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "ok"})

	// A broken file removes nobody, and an empty list only when it was read three times.
	replace(t, file, `{"version": 1, "workers": [`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "failing"})
	replace(t, file, `{"version": 1, "workers": []}`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "holding"})
	p.untilListed(map[string]string{a: "configuration ready", "source configuration": "ok", "source file": "ok"})
}
