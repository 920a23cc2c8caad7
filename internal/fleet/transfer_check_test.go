package fleet

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

func TestTransfers(t *testing.T) {
	var x transferCheck
	step := func(hand int64, moved float64, want string, turned bool) {
		t.Helper()
		x.handed.Add(hand)
		if got := x.read(moved); got != turned || x.state() != want {
			t.Errorf("handed %d, moved %v: turned %t, %q", hand, moved, got, x.state())
		}
	}
	step(9, 100, "", false) // the engine's past
	step(silentHandOffs, 100, "", false)
	step(0, 100, "nothing moves", true)
	step(3, 100, "nothing moves", false)
	step(0, 101, "moves", true)
	step(silentHandOffs-1, 101, "moves", false)
	step(1, 101, "moves", false) // it may still come
	step(0, 102, "moves", false)
	step(silentHandOffs, 102, "moves", false)
	step(0, 3, "moves", false) // the engine started anew
	step(0, 3, "moves", false)
}

// Prompts that are handed over and do not arrive are told: in Info, once in the
// log, by a metric.
func TestNothingMoves(t *testing.T) {
	log := &logBook{}
	inBubble(t, settings{Log: log.logger()}, func(b *testbed) {
		d := b.worker(urlD, config.WorkerDecode, vllmFacts("m"))
		b.prober.loaded(urlD, &loads{Loads: engine.Loads{Ranks: []RankLoad{{}}, CountsExternal: true, External: 40}})
		b.pass(2 * factsInterval)
		for range silentHandOffs {
			d.Ranks()[0].NoteHandOff()
		}
		if d.Info().Transfer != "" {
			t.Errorf("told too early: %q", d.Info().Transfer)
		}
		b.pass(time.Minute)
		if d.Info().Transfer != "nothing moves" || strings.Count(log.String(), "no KV cache arrives") != 1 {
			t.Errorf("%q\n%s", d.Info().Transfer, log)
		}
		b.prober.loaded(urlD, &loads{Loads: engine.Loads{Ranks: []RankLoad{{}}, CountsExternal: true, External: 41}})
		b.pass(time.Minute)
		if d.Info().Transfer != "moves" || strings.Count(log.String(), "KV transfer works again") != 1 {
			t.Errorf("%q\n%s", d.Info().Transfer, log)
		}
	})
}

// TestReadingsOfTransfersMeet: a check, the load monitor and the watch for wedged schedulers
// read the same worker's counters, each in its own time.
func TestReadingsOfTransfersMeet(*testing.T) {
	var c transferCheck
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			for n := range 100 {
				c.handed.Add(1)
				c.read(float64(i + n))
			}
			c.forget()
		})
	}
	all.Wait()
}
