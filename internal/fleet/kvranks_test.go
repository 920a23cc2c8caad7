package fleet

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv"
)

// chainOf stands for the beginning of one prompt.
var chainOf = []kv.Key{1, 2, 3}

// holders are the ranks of a role that hold the beginning of chainOf.
func (b *testbed) holders(role admission.Role) (list []*Rank) {
	for _, h := range b.opts.Index.Match(chainOf, kv.Group(role), nil, nil) {
		list = append(list, h.Rank.Data().(*Rank))
	}
	return list
}

// hold has the index believe that all ranks of w hold chainOf.
func (b *testbed) hold(w *Worker) {
	b.t.Helper()
	for _, r := range w.Ranks() {
		b.opts.Index.Store(r.Approx(), chainOf)
	}
	if got := len(b.holders(w.role)); got != len(w.Ranks()) {
		b.t.Fatalf("%d ranks hold the chain, want %d", got, len(w.Ranks()))
	}
}

func (b *testbed) wantHolders(role admission.Role, n int, when string) {
	b.t.Helper()
	if got := len(b.holders(role)); got != n {
		b.t.Errorf("%s: %d ranks hold the chain, want %d", when, got, n)
	}
}

// TestRanksInTheIndex shows how long the index knows what a rank was sent: as long as the
// same engine may have it.
func TestRanksInTheIndex(t *testing.T) {
	started := func(at float64) *loads { return &loads{Loads: engine.Loads{Started: at}} }
	for _, tc := range []struct {
		name  string
		do    func(b *testbed, w *Worker)
		stays bool
	}{
		{"checks", func(b *testbed, _ *Worker) { b.pass(time.Hour) }, true},
		{"drained and back", func(b *testbed, w *Worker) {
			for _, drained := range []bool{true, false} {
				if _, err := b.SetDrained(w.id, drained); err != nil {
					b.t.Fatal(err)
				}
			}
		}, true},
		{"patched", func(b *testbed, w *Worker) {
			if _, err := b.Patch(b.t.Context(), w.id, &Patch{Values: WorkerSpec{Labels: map[string]string{"a": "b"}}}); err != nil {
				b.t.Fatal(err)
			}
		}, true},
		{"busy and back", func(b *testbed, w *Worker) {
			b.prober.set(checkResult{health: outcomeUnreachable, alive: outcomeOK}, w.url)
			b.pass(10 * time.Minute)
			b.prober.set(well, w.url)
			b.pass(time.Minute)
		}, true},
		{"dead", func(b *testbed, w *Worker) {
			b.prober.set(vanished, w.url)
			b.pass(10 * time.Minute)
		}, false},
		{"restarted, by its start time", func(b *testbed, w *Worker) {
			b.prober.loaded(w.url, started(2))
			b.pass(10 * time.Minute)
		}, false},
		{"restarted, by its arguments", func(b *testbed, w *Worker) {
			f := serves("m")
			f.Fingerprint = 7
			b.prober.says(w.url, f)
			b.pass(10 * time.Minute)
		}, false},
		{"removed", func(b *testbed, w *Worker) { b.Remove(w.id) }, false},
		{"another model", func(b *testbed, w *Worker) { b.add(WorkerSpec{URL: w.url, ModelID: "n"}) }, false},
		{"another number of ranks", func(b *testbed, w *Worker) {
			f := serves("m")
			f.DPSize = 2
			b.prober.says(w.url, f)
			b.pass(10 * time.Minute)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, settings{DPAware: true}, func(b *testbed) {
				b.prober.set(well, urlA)
				b.prober.says(urlA, serves("m"))
				b.prober.loaded(urlA, started(1))
				w := b.add(WorkerSpec{URL: urlA})
				b.pass(time.Minute)
				r := w.Ranks()[0]
				b.hold(w)
				tc.do(b, w)
				want := 0
				if tc.stays {
					want = 1
				}
				b.wantHolders(admission.RoleRegular, want, "then")
				b.opts.Index.Store(r.Approx(), chainOf) // as a request that ends late does
				if now, ok := b.Get(urlA); ok && now == w && w.Ranks()[0] == r {
					want = 1
				}
				b.wantHolders(admission.RoleRegular, want, "after a late request")
			})
		})
	}
}

// TestRolesInTheIndex shows that ranks of each role are a group of their own, and each
// data-parallel rank is one of its own.
func TestRolesInTheIndex(t *testing.T) {
	inBubble(t, settings{DPAware: true, ModelID: "m"}, func(b *testbed) {
		p := b.add(WorkerSpec{URL: urlA, Type: config.WorkerPrefill, DPSize: 3})
		b.pass(time.Second)
		b.hold(p)
		b.wantHolders(admission.RoleDecode, 0, "decode")
		b.opts.Index.Clear(p.Ranks()[1].Approx())
		b.wantHolders(admission.RolePrefill, 2, "without one rank")
	})
}

// TestRegistrationOfARank shows that a rank leads to its registration at the gate while it
// has one.
func TestRegistrationOfARank(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		w := b.add(WorkerSpec{URL: urlA})
		if len(w.Ranks()) != 1 || w.Ranks()[0].Admission() != nil {
			t.Errorf("before it is well: %v", w.Ranks())
		}
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.pass(time.Minute)
		r := w.Ranks()[0]
		adm := r.Admission()
		if adm == nil || adm.Data() != r {
			t.Fatalf("registration %v", adm)
		}
		b.prober.says(urlA, serves("m", "n"))
		b.pass(10 * time.Minute)
		if now := r.Admission(); now == nil || now == adm {
			t.Errorf("registration with another model: %p, was %p", now, adm)
		}
		b.Remove(w.id)
		if r.Admission() != nil {
			t.Error("a removed rank has a registration")
		}
	})
}

// TestBoundOfARankInTheIndex shows that a rank holds as much in the index as its engine's
// cache takes, by the bytes that a token of its model has, and that this follows both.
func TestBoundOfARankInTheIndex(t *testing.T) {
	perByte := 0.0
	o := settings{tokensPerByte: func(model string) float64 {
		if model != "m" {
			t.Errorf("asked for the model %q", model)
		}
		return perByte
	}}
	inBubble(t, o, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		held := func() int {
			var keys []kv.Key
			for k := range 1000 {
				keys = append(keys, kv.Key(k+1))
			}
			r := w.Ranks()[0].Approx()
			b.opts.Index.Store(r, keys)
			h := b.opts.Index.Match(keys, kv.Group(admission.RoleRegular), nil, nil)
			b.opts.Index.Clear(r)
			if len(h) == 0 {
				return 0
			}
			return h[0].Blocks
		}
		for _, step := range []struct {
			tokens  int64
			perByte float64
			want    int
		}{
			{0, 0, 1000},          // not known
			{64 * 100, 0, 100},    // a token of 4 bytes: 64 of them are a block
			{64 * 100, 0.5, 50},   // one of 2 bytes
			{64 * 100, 0.505, 50}, // nearly the same
			{64 * 300, 0.5, 150},
			{1, 0.5, 1},
			{0, 0.5, 1000},
		} {
			perByte = step.perByte
			f := serves("m")
			f.MaxTotalTokens, f.PageSize = step.tokens, 1
			b.prober.says(urlA, f)
			b.pass(10 * time.Minute)
			if got := held(); got != step.want {
				t.Errorf("%d tokens, %g a byte: %d blocks, want %d", step.tokens, step.perByte, got, step.want)
			}
		}
	})
}

// TestBackWithoutIdentity shows that an engine which was away, and cannot be told from another
// process at its address, counts as one.
func TestBackWithoutIdentity(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		b.hold(w)
		b.prober.set(checkResult{health: outcomeUnreachable, alive: outcomeOK}, urlA)
		b.pass(10 * time.Minute)
		b.wantHolders(w.role, 1, "while it is unhealthy")
		b.prober.set(well, urlA)
		b.pass(time.Minute)
		b.wantHolders(w.role, 0, "when it is back")
	})
}
