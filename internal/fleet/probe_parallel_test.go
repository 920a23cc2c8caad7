package fleet

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// TestFrozenProcessIsFoundInTime guards against requests that sit for half a minute in
// an engine that accepts and never answers, since every failed check waited for
// two timeouts, one after the other. It is frozen at every moment between two
// checks, with bytes that came just before.
func TestFrozenProcessIsFoundInTime(t *testing.T) {
	for _, tc := range []struct {
		name          string
		o             config.Health
		suspect, dead time.Duration
	}{
		{"defaults", config.Health{}, 11 * time.Second, 15 * time.Second},
		{"a second", config.Health{Interval: time.Second, Timeout: time.Second, FailureThreshold: 2}, 2200 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, settings{ModelID: "m", Health: tc.o}, func(b *testbed) {
				for i := range 20 {
					b.prober.hang(urlA, nil)
					b.prober.set(well, urlA)
					w := b.add(WorkerSpec{URL: urlA})
					b.pass(20*time.Second + time.Duration(i)*b.cfg.Health.Interval/20)
					if w.Info().Suspect != nil || w.Status() != StatusReady {
						t.Fatalf("before: %+v", w.Info())
					}
					w.NoteProgress()
					b.prober.hang(urlA, &hang{-1, -1})
					frozen := time.Now()
					alive := w.Alive()
					var suspect time.Duration
					for alive.Err() == nil && time.Since(frozen) < time.Minute {
						b.pass(20 * time.Millisecond)
						if s := w.Info().Suspect; s != nil && suspect == 0 {
							suspect = time.Since(frozen)
							if !strings.Contains(s.Why, "no answer") {
								t.Errorf("suspect because %q", s.Why)
							}
						}
					}
					if took := time.Since(frozen); took > tc.dead || suspect == 0 || suspect > tc.suspect || suspect >= took {
						t.Errorf("suspect after %s, dead after %s; want at most %s and %s", suspect, took, tc.suspect, tc.dead)
					}
					if w.Status() != StatusUnhealthy || w.Info().Suspect == nil {
						t.Errorf("dead: %+v", w.Info())
					}
					b.prober.hang(urlA, nil)
					b.pass(time.Minute)
					if w.Info().Suspect != nil || w.Status() != StatusReady {
						t.Errorf("back: %+v", w.Info())
					}
					b.Remove(urlA)
					b.pass(time.Second)
				}
			})
		})
	}
}

// TestLongPromptIsNoHang guards against the death of an engine whose scheduler is busy
// while its front answers, however late.
func TestLongPromptIsNoHang(t *testing.T) {
	log := &logBook{}
	inBubble(t, settings{ModelID: "m", Log: log.logger()}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		request := b.acquire("m")
		defer request.Release()
		for _, alive := range []time.Duration{0, 4900 * time.Millisecond} {
			b.prober.hang(urlA, &hang{-1, alive})
			b.pass(100 * time.Second) // within the grace of 120 s
			if w.Alive().Err() != nil || w.Status() != StatusReady || w.Info().Suspect == nil {
				t.Errorf("alive after %s: %+v", alive, w.Info())
			}
			b.prober.hang(urlA, nil)
			b.pass(20 * time.Second)
			if w.Info().Suspect != nil {
				t.Error("still suspect")
			}
		}
		b.prober.hang(urlA, &hang{-1, -1})
		for range 100 { // bytes come: it is alive, whatever its routes do
			w.NoteProgress()
			b.pass(time.Second)
		}
		if w.Alive().Err() != nil {
			t.Error("a worker that sends bytes was taken for dead")
		}
	})
	if n := strings.Count(log.String(), "worker is suspect"); n < 2 || n > 40 {
		t.Errorf("told of %d times: %s", n, log)
	}
}

// A worker's front that answers fails no check by a proof that comes late, and a
// healthy check costs no more than one proof.
func TestSlowHealthIsHealth(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		b.prober.hang(urlA, &hang{4 * time.Second, -1})
		b.pass(5 * time.Minute)
		if w.Status() != StatusReady || w.Info().Suspect != nil {
			t.Errorf("%+v", w.Info())
		}
	})
}
