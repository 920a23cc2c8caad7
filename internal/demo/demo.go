// Package demo shows the gate at work: a router and a simulated fleet in one
// process, two short scenarios, and a check of what came out.
//
// The scenarios are those by which bounded prefill was first described: one
// prefill worker that takes three seconds, an immediate decode worker, room for
// one request in prefill, and three requests that overlap. What differs is the
// queue in front.
package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// Router is a running router.
type Router struct {
	// URL is where clients go, MetricsURL where /metrics is.
	URL, MetricsURL string
	// Stats is the state of its gate.
	Stats func() admission.Stats
	// Stop ends it.
	Stop func()
}

// RouterOptions are what a scenario asks of its router.
type RouterOptions struct {
	PrefillURL    string
	BootstrapPort int
	DecodeURL     string
	Slots         int
	QueueSize     int
	QueueTimeout  time.Duration
}

// Options of Run.
type Options struct {
	Out io.Writer
	// Live redraws a screen; otherwise what happens is told in lines.
	Live bool
	// Keep leaves the last router running until the context ends.
	Keep bool
	// Start makes a router that is ready to serve.
	Start func(context.Context, RouterOptions) (*Router, error)
	// PrefillTime is the simulated prefill's length. Zero: 3 s.
	PrefillTime time.Duration
}

// model is the name the simulated fleet serves.
const model = "sim-model"

// Run shows the scenarios and returns an error if a result is not what it must
// be.
func Run(ctx context.Context, o Options) error {
	if o.PrefillTime == 0 {
		o.PrefillTime = 3 * time.Second
	}
	fleet, err := sim.Start(sim.Options{
		Prefill: 1, Decode: 1,
		Worker: sim.WorkerOptions{Model: model, HealthDelay: -1, Timing: sim.Timing{PrefillTime: o.PrefillTime}},
	})
	if err != nil {
		return fmt.Errorf("cannot start the simulated fleet: %w", err)
	}
	defer fleet.Close()
	_, _ = fmt.Fprintf(o.Out, "A simulated fleet: one prefill worker that takes %s, one decode worker that takes no time.\n", o.PrefillTime)
	_, _ = fmt.Fprintf(o.Out, "The router lets one request at a time into prefill. Each scenario sends three that overlap.\n")
	wrong := 0
	var kept *Router
	for i, s := range scenarios(o.PrefillTime) {
		_, _ = fmt.Fprintf(o.Out, "\n%d. %s\n   %s\n\n", i+1, s.name, s.explain)
		router, err := o.Start(ctx, RouterOptions{
			PrefillURL: fleet.Prefill(0).URL(), BootstrapPort: fleet.Prefill(0).BootstrapPort(), DecodeURL: fleet.Decode(0).URL(),
			Slots: 1, QueueSize: s.queue, QueueTimeout: s.timeout,
		})
		if err != nil {
			return fmt.Errorf("cannot start the router: %w", err)
		}
		problems, err := s.run(ctx, o, router)
		last := i == len(scenarios(0))-1
		if err != nil || !o.Keep || !last {
			router.Stop()
		}
		if err != nil {
			return err
		}
		for _, p := range problems {
			_, _ = fmt.Fprintf(o.Out, "   WRONG: %s\n", p)
		}
		wrong += len(problems)
		if last && o.Keep {
			kept = router
		}
	}
	for _, v := range fleet.Violations() {
		wrong++
		_, _ = fmt.Fprintf(o.Out, "WRONG: an engine was misused: %+v\n", v)
	}
	if wrong == 0 {
		_, _ = fmt.Fprintln(o.Out, "\nAll results are as they must be.")
	}
	if kept != nil {
		keep(ctx, o.Out, kept)
		kept.Stop()
	}
	if wrong > 0 {
		return fmt.Errorf("%d results of the demo are wrong", wrong)
	}
	return nil
}

func keep(ctx context.Context, out io.Writer, r *Router) {
	_, _ = fmt.Fprintf(out, "\nThe router is still running. Try:\n\n  curl -i %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{\"model\":%q,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'\n  curl %s/workers\n  curl %s\n\nCtrl-C ends it.\n",
		r.URL, model, r.URL, r.MetricsURL)
	<-ctx.Done()
}
