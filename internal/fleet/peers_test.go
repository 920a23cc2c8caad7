package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// Failures that nobody proved opened the breakers of healthy ranks as soon as a rank
// was new: it had served and not failed, since the requests that fail everywhere had
// not come to it yet. One session, whose requests all come to one rank, opened that.
func TestUnprovenFailuresNeedAPeerThatWasThere(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB, urlC)
		wa, wb := b.add(WorkerSpec{URL: urlA}), b.add(WorkerSpec{URL: urlB})
		b.pass(time.Minute)
		ra, rb := wa.Ranks()[0], wb.Ranks()[0]
		fail := func(r *Rank, n int, key func(int) uint64) {
			for i := range n {
				r.ReportFailure(Unproven, key(i))
			}
		}
		none := func(int) uint64 { return 0 }
		same := func(int) uint64 { return 7 }

		fail(ra, 8, none)
		fail(rb, 8, none)
		b.pass(time.Second)
		wc := b.add(WorkerSpec{URL: urlC})
		b.pass(2 * time.Second)
		wc.Ranks()[0].ReportSuccess()
		fail(ra, 8, none)
		if s := wa.Info().Breaker; s != "closed" {
			t.Errorf("beside a new rank that is well: %s", s)
		}

		b.pass(3 * time.Minute) // all that is forgotten
		fail(wc.Ranks()[0], 30, same)
		b.pass(time.Second)
		rb.ReportSuccess()
		fail(wc.Ranks()[0], 30, same)
		if s := wc.Info().Breaker; s != "closed" {
			t.Errorf("one session opened it: %s", s)
		}
		fail(wc.Ranks()[0], 12, func(i int) uint64 { return uint64(100 + i) })
		if s := wc.Info().Breaker; s != "open" {
			t.Errorf("many sessions, beside a peer that is well: %s", s)
		}
		synctest.Wait()
		b.wantCandidates(urlA, urlB)
	})
}
