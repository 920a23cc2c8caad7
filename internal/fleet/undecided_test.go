package fleet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/internal/engine"
)

// A request that names no model must not be served by whichever worker tells its
// model first: the other may serve something else.
func TestUndecidedUntilAllThatCameTogetherHaveTold(t *testing.T) {
	want := func(b *testbed, when string, want bool) {
		b.t.Helper()
		if got := b.Undecided(); got != want {
			b.t.Errorf("%s: undecided %t", when, got)
		}
	}
	t.Run("the other tells later", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.prober.set(well, urlA)
			b.prober.says(urlA, serves("a"))
			b.add(WorkerSpec{URL: urlA})
			synctest.Wait()
			want(b, "a worker alone", false)
			b.add(WorkerSpec{URL: urlB})
			synctest.Wait()
			want(b, "the second is silent", true)
			b.prober.says(urlB, serves("b"))
			b.prober.set(well, urlB)
			b.pass(6 * time.Second)
			want(b, "both have told", false)
			if _, n := b.SolePool(); n != 2 {
				t.Errorf("%d models", n)
			}
		})
	})
	t.Run("the other is down", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.prober.set(well, urlA)
			b.prober.says(urlA, serves("a"))
			b.add(WorkerSpec{URL: urlA})
			b.add(WorkerSpec{URL: urlB})
			b.pass(29 * time.Second)
			want(b, "its checks are not over", true)
			b.pass(2 * time.Second)
			want(b, "it had the time of three checks", false)
		})
	})
	t.Run("the other names no model", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.prober.set(well, urlA, urlB)
			b.prober.says(urlA, serves("a"))
			b.add(WorkerSpec{URL: urlA})
			b.add(WorkerSpec{URL: urlB})
			synctest.Wait()
			want(b, "it was asked and has no name", false)
		})
	})
	t.Run("the operator named it", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.add(WorkerSpec{URL: urlA, ModelID: "m"})
			b.add(WorkerSpec{URL: urlB, ModelID: "m"})
			synctest.Wait()
			want(b, "nobody was seen, but all are known", false)
		})
	})
	t.Run("a fleet that grows", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.prober.set(well, urlA)
			b.prober.says(urlA, serves("a"))
			b.add(WorkerSpec{URL: urlA})
			b.pass(time.Minute)
			b.add(WorkerSpec{URL: urlB})
			synctest.Wait()
			want(b, "a worker that loads", false)
		})
	})
}

func TestListed(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, &Facts{Facts: engine.Facts{
			Models: []ModelInfo{{ID: "m"}}, Adapters: []ModelInfo{{ID: "lora", Parent: "m"}}, ModelPath: "/models/m",
		}})
		b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		for name, want := range map[string]bool{"m": true, "lora": true, "m:lora": true, "/models/m": true, "x": false, "m:x": false, "": false} {
			if b.Listed(name) != want {
				t.Errorf("%q: %t", name, !want)
			}
		}
	})
}
