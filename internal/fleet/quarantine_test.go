package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// pairsOf are the pairs that n requests get.
func (b *testbed) pairsOf(n int) map[string]int {
	b.t.Helper()
	got := map[string]int{}
	for range n {
		if t := b.pair("m"); t != nil {
			got[t.Prefill.Data().(*Rank).ID()[7:8]+t.Decode.Data().(*Rank).ID()[7:8]]++
		}
	}
	return got
}

func (b *testbed) square() (p, q, d, e *Rank) {
	b.t.Helper()
	return b.worker(urlP, config.WorkerPrefill, serves("m")).Ranks()[0], b.worker(urlQ, config.WorkerPrefill, serves("m")).Ranks()[0],
		b.worker(urlD, config.WorkerDecode, serves("m")).Ranks()[0], b.worker(urlE, config.WorkerDecode, serves("m")).Ranks()[0]
}

// A pair that keeps failing is kept apart for a while, and for longer each time;
// no breaker is charged.
func TestPairThatKeepsFailing(t *testing.T) {
	log := &logBook{}
	inBubble(t, settings{Log: log.logger()}, func(b *testbed) {
		p, q, d, e := b.square()
		fail := func(n int) {
			for range n {
				b.ReportTransferFailure(p, d, Proven)
			}
		}
		fail(pairFailures - 1)
		b.ReportPairSuccess(p, d)
		fail(pairFailures - 1)
		b.ReportPairSuccess(q, e)
		if got := b.pairsOf(200); len(got) != 4 {
			t.Errorf("pairs %v", got)
		}
		fail(1)
		if got := b.pairsOf(200); got["pd"] != 0 || len(got) != 3 {
			t.Errorf("pairs %v", got)
		}
		if pairs := p.Worker().Info().Quarantined; len(pairs) != 1 || pairs[0].Decode != urlD || pairs[0].ForSeconds != firstQuarantine.Seconds() ||
			len(d.Worker().Info().Quarantined) != 1 || len(q.Worker().Info().Quarantined) != 0 {
			t.Errorf("quarantined pairs: %+v", pairs)
		}
		want := "# TYPE sluice_pairs_barred gauge\nsluice_pairs_barred 1\n# TYPE sluice_pairs_barred_total counter\nsluice_pairs_barred_total 1\n"
		if err := testutil.CollectAndCompare(NewCollector(b.Fleet), strings.NewReader(
			"# HELP sluice_pairs_barred Pairs of a prefill and a decode rank that are not used together for a while because KV transfers between them kept failing.\n"+
				"# HELP sluice_pairs_barred_total Times that a pair of a prefill and a decode rank was quarantined because KV transfers between them kept failing.\n"+want), "sluice_pairs_barred", "sluice_pairs_barred_total"); err != nil {
			t.Error(err)
		}
		// What ends now began before.
		fail(10)
		b.ReportPairSuccess(p, d)
		b.pass(firstQuarantine - time.Second)
		if got := b.pairsOf(200); got["pd"] != 0 {
			t.Errorf("pairs %v", got)
		}
		b.pass(2 * time.Second)
		if got := b.pairsOf(200); got["pd"] == 0 {
			t.Errorf("not tried again: %v", got)
		}
		for _, want := range []time.Duration{2 * firstQuarantine, 4 * firstQuarantine, 8 * firstQuarantine, maxQuarantine, maxQuarantine} {
			fail(1) // on trial
			if got := p.Worker().Info().Quarantined; len(got) != 1 || got[0].ForSeconds != want.Seconds() {
				t.Errorf("quarantined pairs: %+v, want one for %s", got, want)
			}
			b.pass(want + time.Second)
		}
		b.ReportPairSuccess(p, d)
		fail(pairFailures - 1)
		if got := p.Worker().Info().Quarantined; len(got) != 0 {
			t.Errorf("quarantined after a success: %v", got)
		}
		for _, r := range []*Rank{p, q, d, e} {
			if s := r.Worker().Info().Breaker; s != "closed" {
				t.Errorf("breaker of %s is %s", r.ID(), s)
			}
		}
		if n := strings.Count(log.String(), "pair is quarantined"); n != 6 {
			t.Errorf("said %d times", n)
		}
	})
}

// Failures far apart are no series, and a suspicion passes.
func TestSuspicionPasses(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		p, _, d, _ := b.square()
		for range 5 {
			b.ReportTransferFailure(p, d, Proven)
			b.pass(pairWindow + time.Second)
			if n := b.quarantine.tracked.Load(); n != 0 {
				t.Fatalf("%d suspects", n)
			}
		}
		for range 5 {
			b.ReportTransferFailure(p, d, Proven)
			b.pass(pairWindow / 2)
		}
		if len(p.Worker().Info().Quarantined) > 0 {
			t.Error("the pair is quarantined")
		}
	})
}

// The only pair there is stays.
func TestOnlyPairIsNotQuarantined(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		p := b.worker(urlP, config.WorkerPrefill, serves("m")).Ranks()[0]
		d := b.worker(urlD, config.WorkerDecode, serves("m")).Ranks()[0]
		b.worker(urlE, config.WorkerDecode, serves("other"))
		b.worker(urlQ, config.WorkerPrefill, vllmFacts("m"))
		for range 20 {
			b.ReportTransferFailure(p, d, Proven)
		}
		if n := b.quarantine.tracked.Load(); n != 0 || b.pair("m") == nil {
			t.Errorf("%d suspects", n)
		}
	})
}

// A bar outlives a new registration of the ranks at the gate, and not the worker.
func TestBarFollowsTheRanks(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		p, _, d, _ := b.square()
		for range pairFailures {
			b.ReportTransferFailure(p, d, Proven)
		}
		b.prober.says(urlP, serves("m", "n"))
		b.pass(20 * time.Second)
		b.prober.set(vanished, urlP)
		b.pass(20 * time.Second)
		b.prober.set(well, urlP)
		b.pass(10 * time.Second)
		if got := b.pairsOf(200); got["pd"] != 0 || got["pe"] == 0 || b.Pool("n") != "n" {
			t.Errorf("pairs %v", got)
		}
		b.Remove(urlD)
		synctest.Wait()
		b.pass(time.Second)
		if n := b.quarantine.tracked.Load(); n != 0 {
			t.Errorf("%d suspects", n)
		}
	})
}

func TestSuspectsAreBounded(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		var ps, ds []*Rank
		for i := range 40 {
			ps = append(ps, b.worker(fmt.Sprintf("http://p%d:1", i), config.WorkerPrefill, serves("m")).Ranks()[0])
			ds = append(ds, b.worker(fmt.Sprintf("http://d%d:1", i), config.WorkerDecode, serves("m")).Ranks()[0])
		}
		for range pairFailures + 1 {
			for _, p := range ps {
				for _, d := range ds {
					b.ReportTransferFailure(p, d, Proven)
				}
			}
		}
		if n := b.quarantine.tracked.Load(); n != maxPairs || b.quarantine.quarantined != maxQuarantined {
			t.Errorf("%d suspects, %d quarantined", n, b.quarantine.quarantined)
		}
		b.pass(time.Hour)
		if n := b.quarantine.tracked.Load(); n != 0 || b.quarantine.quarantined != 0 {
			t.Errorf("%d suspects, %d quarantined", n, b.quarantine.quarantined)
		}
	})
}

// Reports from many requests at once, while workers come and go.
func TestPairsUnderContention(t *testing.T) {
	f := live(t, settings{Health: config.Health{Disabled: true}})
	var ranks [2][]*Rank
	for i := range 4 {
		for s, role := range []config.WorkerType{config.WorkerPrefill, config.WorkerDecode} {
			w := mustAdd(t, f, WorkerSpec{URL: fmt.Sprintf("http://127.0.0.1:%d", 1+2*i+s), Type: role, ModelID: "m", Backend: dialectVLLM, KVConnector: engine.ConnectorNIXL})
			ranks[s] = append(ranks[s], w.Ranks()...)
		}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 300 {
				p, d := ranks[0][(i+n)%4], ranks[1][n%4]
				if n%5 == 0 {
					f.ReportPairSuccess(p, d)
				} else {
					f.ReportTransferFailure(p, d, Proven)
				}
				if n%50 == 0 {
					_ = f.Infos()
				}
				if i == 0 && n == 150 {
					f.Remove(ranks[0][0].Worker().ID())
				}
			}
		})
	}
	wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	q := &f.quarantine
	q.mu.Lock()
	defer q.mu.Unlock()
	quarantined := 0
	for _, x := range q.pairs {
		if x.quarantined {
			quarantined++
		}
	}
	if quarantined != q.quarantined || int(q.tracked.Load()) != len(q.pairs) || len(q.pairs) > 16 {
		t.Errorf("%d quarantined, counted %d; %d pairs, counted %d", quarantined, q.quarantined, len(q.pairs), q.tracked.Load())
	}
}

func BenchmarkReportPairSuccess(b *testing.B) {
	f := &Fleet{}
	r := &Rank{}
	for b.Loop() {
		f.ReportPairSuccess(r, r)
	}
}

// A request that fails everywhere makes unproven reports; so does a link that is broken
// where no other attempt is made.
func TestUnprovenReportsQuarantineOnlyWhereNoOtherPairFails(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		p, q, d, e := b.square()
		for range 20 {
			b.ReportTransferFailure(p, d, Unproven)
			b.ReportTransferFailure(q, e, Unproven)
		}
		if n := b.quarantine.quarantined; n != 0 {
			t.Errorf("%d pairs are quarantined though several fail alike", n)
		}
	})
	inBubble(t, settings{}, func(b *testbed) {
		p, _, d, _ := b.square()
		for n := 1; n <= 2*pairFailures; n++ {
			if b.quarantine.quarantined != 0 {
				t.Fatalf("quarantined after %d reports", n-1)
			}
			b.ReportTransferFailure(p, d, Unproven)
		}
		if b.quarantine.quarantined != 1 {
			t.Error("a pair that alone fails again and again is not quarantined")
		}
	})
}
