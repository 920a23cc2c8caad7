package dispatch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// TestServingWithoutEvents shows that an engine which computes prompts and tells no events of
// it is known by what it was sent, and by its events again once it tells some.
func TestServingWithoutEvents(t *testing.T) {
	for name, o := range map[string]rigOptions{
		"aggregated": {sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM}}},
		"in turn":    vllm(sim.NIXL, rigOptions{}),
		"together":   {sim: sim.Options{Prefill: 1, Decode: 1}, pd: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.sim.Worker.KVEvents = &sim.KVEvents{}
			change := o.config
			o.config = func(c *config.Config) {
				if change != nil {
					change(c)
				}
				c.KV.EventsSilent = 100 * time.Millisecond
			}
			r := newRig(t, aware(o))
			w := r.sim.Workers()[0]
			worker, ok := r.fleet.Get(w.URL())
			if !ok {
				t.Fatal("no such worker")
			}
			exact := func() bool { return worker.Ranks()[0].Exact() != nil }
			r.until("the worker's events are followed", exact)
			n := 0
			serve := func() {
				t.Helper()
				n++
				body := fmt.Sprintf(`{"model":"sim-model","max_tokens":2,"prompt":"%s %d %s"}`, strings.Repeat("words of a prompt ", 40), n, strings.Repeat("further words ", 40))
				if a := r.do(context.Background(), "/v1/completions", body); a.status != 200 {
					t.Fatalf("%d: %s", a.status, a.body)
				}
			}
			serve()
			serve() // the engine says that it found some of it cached
			if err := w.AddKVLie(sim.KVLie{Kind: "silent"}); err != nil {
				t.Fatal(err)
			}
			r.until("its silence is noticed", func() bool {
				serve() // more than once: a prefill leg that runs beside decode may tell too late
				return !exact()
			})
			w.ClearKVLies()
			r.until("it is believed again", func() bool {
				serve()
				return exact()
			})
		})
	}
}
