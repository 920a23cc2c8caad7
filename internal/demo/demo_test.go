package demo

import (
	"strings"
	"testing"
	"time"
)

// The check finds results that differ from the expected ones.
func TestCheckFindsWrongResults(t *testing.T) {
	s := scenarios(3 * time.Second)[0]
	good := func() *run {
		r := &run{s: s, mostIn: 1, mostQueue: 1, order: []int{2, 1, 0}, reqs: make([]request, len(s.reqs))}
		for i, q := range s.reqs {
			w := q.want
			r.reqs[i] = request{done: true, status: w.status, code: w.code, took: w.took, retry: "1"}
		}
		return r
	}
	if p := good().check(s.waits); len(p) != 0 {
		t.Fatalf("a good run is called wrong: %q", p)
	}
	for name, spoil := range map[string]func(r *run, waits *time.Duration){
		"status":      func(r *run, _ *time.Duration) { r.reqs[0].status = 500 },
		"code":        func(r *run, _ *time.Duration) { r.reqs[1].code = "queue_full" },
		"took":        func(r *run, _ *time.Duration) { r.reqs[2].took = 20 * time.Second },
		"Retry-After": func(r *run, _ *time.Duration) { r.reqs[2].retry = "" },
		"waits":       func(_ *run, w *time.Duration) { *w = 0 },
		"in prefill":  func(r *run, _ *time.Duration) { r.mostIn = 2 },
	} {
		r, waits := good(), s.waits
		spoil(r, &waits)
		if p := r.check(waits); len(p) != 1 || !strings.Contains(p[0], map[string]string{"code": "status"}[name]) {
			t.Errorf("%s: %q", name, p)
		}
	}
	full := scenarios(3 * time.Second)[2]
	over := &run{s: full, mostIn: 2, mostQueue: 2, blocks: full.blocks + 1, reqs: make([]request, len(full.reqs))}
	for i, q := range full.reqs {
		w := q.want
		over.reqs[i] = request{done: true, status: w.status, took: w.took}
	}
	if p := over.check(full.waits); len(p) != 1 || !strings.Contains(p[0], "KV blocks") {
		t.Errorf("overshoot: %q", p)
	}
	r := good()
	r.order = []int{1, 0}
	r.reqs[1].status, r.reqs[1].code = 200, ""
	if p := r.check(s.waits); len(p) < 2 {
		t.Errorf("wrong order: %q", p)
	}
}
