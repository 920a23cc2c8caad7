package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// A rank that fails with several partners, and succeeds with none, is at fault itself.
func TestARankThatFailsWithEverybodyIsCharged(t *testing.T) {
	inBubble(t, settings{Breaker: config.CircuitBreaker{FailureThreshold: 4}}, func(b *testbed) {
		p, q, d, e := b.square()
		for n := range 4 {
			if s := d.breaker.state; s != admission.BreakerClosed {
				t.Fatalf("%v after %d failures", s, n)
			}
			b.ReportTransferFailure([]*Rank{p, q}[n%2], d, Proven)
			b.ReportPairSuccess([]*Rank{p, q}[n%2], e) // the other attempt
		}
		if s := d.breaker.state; s != admission.BreakerOpen {
			t.Errorf("the breaker of the one that fails with everybody is %v", s)
		}
		for _, r := range []*Rank{p, q, e} {
			if s := r.breaker.state; s != admission.BreakerClosed || r.breaker.marked.Load() {
				t.Errorf("%s is charged: %v", r.id, s)
			}
		}
	})
}

// Two data-parallel ranks of one worker that fails are one partner: who fails with both of
// them is not at fault for that.
func TestRanksOfOneWorkerAreOnePartner(t *testing.T) {
	inBubble(t, settings{DPAware: true, Breaker: config.CircuitBreaker{FailureThreshold: 2}}, func(b *testbed) {
		two := serves("m")
		two.DPSize = 2
		p, q := b.worker(urlP, config.WorkerPrefill, serves("m")).Ranks()[0], b.worker(urlQ, config.WorkerPrefill, serves("m")).Ranks()[0]
		e := b.worker(urlE, config.WorkerDecode, serves("m")).Ranks()[0]
		d := b.worker(urlD, config.WorkerDecode, two).Ranks()
		if len(d) != 2 {
			t.Fatalf("%d ranks", len(d))
		}
		for n := range 6 {
			b.ReportTransferFailure(p, d[n%2], Proven)
			b.ReportPairSuccess(q, d[n%2])
		}
		if s := p.breaker.state; s != admission.BreakerClosed {
			t.Errorf("the breaker of the one that works is %v", s)
		}
		b.ReportTransferFailure(p, e, Proven)
		b.ReportPairSuccess(q, e)
		if s := p.breaker.state; s != admission.BreakerOpen {
			t.Errorf("the breaker of the one that fails with everybody is %v", s)
		}
	})
}

// wantCharged checks which of some ranks have failures that count.
func wantCharged(t *testing.T, ranks []*Rank, want ...*Rank) {
	t.Helper()
	for _, r := range ranks {
		if got := r.breaker.marked.Load(); got != slices.Contains(want, r) {
			t.Errorf("%s is charged: %v", r.id, got)
		}
	}
}

// A prefill rank that meets two failing decode workers one after the other is not charged,
// nor the other way around, whatever the order of the reports. Those that fail are.
func TestAPartnerOfTwoThatFailIsNotCharged(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 1, 2, 0}} {
		for _, failing := range []config.WorkerType{config.WorkerDecode, config.WorkerPrefill} {
			inBubble(t, settings{}, func(b *testbed) {
				p, q, d, e := b.square()
				f := b.worker("http://f:1", failing, serves("m")).Ranks()[0]
				failed, succeeded := b.ReportTransferFailure, b.ReportPairSuccess
				if failing == config.WorkerPrefill {
					p, q, d, e = d, e, p, q
					failed = func(d, p *Rank, how Charge) { b.ReportTransferFailure(p, d, how) }
					succeeded = func(d, p *Rank) { b.ReportPairSuccess(p, d) }
				}
				all := []*Rank{p, q, d, e, f}
				for _, i := range order {
					failed([]*Rank{p, q}[i/2], []*Rank{d, e}[i%2], Proven)
				}
				wantCharged(t, all)
				succeeded(p, f)
				wantCharged(t, all)
				succeeded(q, f)
				wantCharged(t, all, d, e)
				// Another one meets both before they are well again, and succeeds only later.
				failed(p, d, Proven)
				failed(p, e, Proven)
				for _, r := range []*Rank{d, e} {
					succeeded(q, r)
				}
				wantCharged(t, all, d, e)
			})
		}
	}
}

// What a rank fails with partners that were at fault is not held against it when these are
// well again before it has succeeded with any.
func TestPartnersThatRecoverDoNotAccuse(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		p, q, d, e := b.square()
		r, f := b.worker("http://r:1", config.WorkerPrefill, serves("m")).Ranks()[0], b.worker("http://f:1", config.WorkerDecode, serves("m")).Ranks()[0]
		all := []*Rank{p, q, r, d, e, f}
		for _, bad := range []*Rank{d, e} {
			b.ReportTransferFailure(p, bad, Proven)
			b.ReportTransferFailure(q, bad, Proven) // known to be a failure of bad's, and too few for a charge
			b.ReportPairSuccess(q, f)
		}
		b.ReportPairSuccess(r, d)
		b.ReportPairSuccess(r, e)
		wantCharged(t, all)
	})
	for _, before := range []bool{true, false} {
		inBubble(t, settings{}, func(b *testbed) {
			p, q, d, e := b.square()
			for _, bad := range []*Rank{d, e} {
				if before {
					bad.ReportFailure(Proven, 0) // a reset, say
				}
				b.ReportTransferFailure(p, bad, Proven)
				if !before {
					bad.ReportFailure(Proven, 0)
				}
				b.pass(time.Second)
			}
			for _, bad := range []*Rank{d, e} {
				b.ReportPairSuccess(q, bad)
				bad.ReportSuccess()
			}
			wantCharged(t, []*Rank{p, q, d, e})
		})
	}
}

// When a pair succeeds that has failed before, nobody is charged for that failure.
func TestAPairThatSucceedsAccusesNobody(t *testing.T) {
	inBubble(t, settings{Breaker: config.CircuitBreaker{FailureThreshold: 3}}, func(b *testbed) {
		p, q, d, e := b.square()
		for _, r := range []*Rank{p, q} {
			b.ReportTransferFailure(r, d, Proven)
			b.ReportPairSuccess(r, e)
		}
		wantCharged(t, []*Rank{p, q, d, e}, d)
		b.ReportTransferFailure(p, d, Proven)
		b.ReportPairSuccess(p, d)
		if s := d.breaker.state; s != admission.BreakerClosed {
			t.Errorf("it is %v", s)
		}
	})
}

// A prefill rank that makes two decode workers fail is charged for every failure,
// because these succeed with others meanwhile; and the other way around.
func TestARankThatMakesItsPartnersFailIsCharged(t *testing.T) {
	for _, bad := range []config.WorkerType{config.WorkerPrefill, config.WorkerDecode} {
		inBubble(t, settings{Breaker: config.CircuitBreaker{FailureThreshold: 6}}, func(b *testbed) {
			p, q, d, e := b.square()
			all := []*Rank{p, q, d, e}
			failed, succeeded := b.ReportTransferFailure, b.ReportPairSuccess
			if bad == config.WorkerDecode {
				p, q, d, e = d, e, p, q
				failed = func(d, p *Rank, how Charge) { b.ReportTransferFailure(p, d, how) }
				succeeded = func(d, p *Rank) { b.ReportPairSuccess(p, d) }
			}
			for range 3 {
				failed(p, d, Proven)
				failed(p, e, Proven)
				succeeded(q, d)
				succeeded(q, e)
			}
			wantCharged(t, all, p)
			if s := p.breaker.state; s != admission.BreakerOpen {
				t.Errorf("after six failures its breaker is %v", s)
			}
		})
	}
}

// Up to two of four ranks of each role fail everything. Requests take pairs by chance, and
// a failed one another pair, until it is served. Exactly those that fail are charged, until
// their breakers open.
func TestExactlyThoseAtFaultAreCharged(t *testing.T) {
	for seed := range uint64(60) {
		inBubble(t, settings{Breaker: config.CircuitBreaker{FailureThreshold: 3}}, func(b *testbed) {
			random := rand.New(rand.NewPCG(seed, 0))
			var ps, ds, bad []*Rank
			for i := range 4 {
				ps = append(ps, b.worker(fmt.Sprintf("http://p%d:1", i), config.WorkerPrefill, serves("m")).Ranks()[0])
				ds = append(ds, b.worker(fmt.Sprintf("http://d%d:1", i), config.WorkerDecode, serves("m")).Ranks()[0])
			}
			bad = append(append(bad, ps[:seed%3]...), ds[:seed/3%3]...)
			type link struct{ p, d *Rank }
			var served, reports []link // the failures of a request are reported when it is over
			for range 400 {
				var failed []link
				for {
					l := link{ps[random.IntN(4)], ds[random.IntN(4)]}
					if l.p.breaker.state == admission.BreakerOpen || l.d.breaker.state == admission.BreakerOpen {
						continue
					}
					if !slices.Contains(bad, l.p) && !slices.Contains(bad, l.d) {
						served = append(served, l)
						break
					}
					failed = append(failed, l)
				}
				reports = append(reports, failed[:min(len(failed), 1)]...)
				for n := random.IntN(3); n > 0 && len(served) > 0; n-- { // some requests are slower than others
					b.ReportPairSuccess(served[0].p, served[0].d)
					served = served[1:]
				}
				for n := random.IntN(3); n > 0 && len(reports) > 0; n-- {
					b.ReportTransferFailure(reports[0].p, reports[0].d, Proven)
					reports = reports[1:]
				}
			}
			wantCharged(t, append(ps, ds...), bad...)
			for _, r := range bad {
				if s := r.breaker.state; s != admission.BreakerOpen {
					t.Errorf("%s, which fails everything: %v", r.id, s)
				}
			}
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}
