// Package demo shows the gate at work: a router and a simulated fleet in one
// process, four short scenarios, and a check of the results.
//
// The first two scenarios are those by which bounded prefill was first described:
// one prefill worker that takes three seconds, an immediate decode worker, room
// for one request in prefill, and three requests that overlap; they differ in the
// queue. In the third decode is full; in the fourth one client sends a flood of long
// prompts before another's short ones.
package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// Router is a running router.
type Router struct {
	// URL is the base URL for clients, MetricsURL that of /metrics.
	URL, MetricsURL string
	// Stats is the state of its gate.
	Stats func() admission.Stats
	// Stop ends it.
	Stop func()
}

// RouterOptions are the router settings of a scenario.
type RouterOptions struct {
	PrefillURL    string
	BootstrapPort int
	DecodeURL     string
	Slots         int
	QueueSize     int
	QueueTimeout  time.Duration
	// Classes is a class file, in place of QueueSize and QueueTimeout.
	Classes string
}

// Options of Run.
type Options struct {
	Out io.Writer
	Style
	// Keep leaves the last router running until the context ends.
	Keep bool
	// Start makes a router that is ready to serve.
	Start func(context.Context, RouterOptions) (*Router, error)
	// Routers is how many RunRouters starts, and StartMember makes one of them, by its
	// number from 0 on, which serves and is on its way to the others. One that was killed is
	// started again by the same number.
	Routers     int
	StartMember func(context.Context, int, RouterOptions) (*Member, error)
	// PrefillTime is the simulated prefill's length. Zero: 3 s, with several routers 0.5 s.
	PrefillTime time.Duration
}

// model is the name the simulated fleet serves.
const model = "sim-model"

// Run shows the scenarios and returns an error if a result is not the expected one.
func Run(ctx context.Context, o Options) error {
	if o.PrefillTime == 0 {
		o.PrefillTime = 3 * time.Second
	}
	o.print("", "A router and a simulated fleet of one prefill and one decode worker.")
	o.print("", "Each scenario sends requests that overlap.")
	wrong := 0
	var kept *stage
	all := scenarios(o.PrefillTime)
	for i, s := range all {
		o.introduce(i+1, &s)
		st, err := s.start(ctx, o)
		if err != nil {
			return err
		}
		problems, err := s.run(ctx, o, st)
		if err != nil {
			st.close()
			return err
		}
		for _, v := range st.fleet.Violations() {
			problems = append(problems, fmt.Sprintf("an engine was misused: %+v", v))
		}
		for _, p := range problems {
			o.print(indent, "WRONG: "+p)
		}
		wrong += len(problems)
		if o.Keep && i == len(all)-1 {
			kept = st
			continue
		}
		st.close()
	}
	o.conclude(wrong == 0, kept != nil)
	if kept != nil {
		keep(ctx, o.Out, kept.router)
		kept.close()
	}
	if wrong > 0 {
		return fmt.Errorf("%d results of the demo are wrong", wrong)
	}
	return nil
}

// stage is the fleet and router of a scenario.
type stage struct {
	fleet  *sim.Fleet
	router *Router
}

func (st *stage) close() {
	st.router.Stop()
	st.fleet.Close()
}

func (s *scenario) start(ctx context.Context, o Options) (*stage, error) {
	workers := s.workers
	workers.Model, workers.HealthDelay = model, -1
	fleet, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Worker: workers})
	if err != nil {
		return nil, fmt.Errorf("cannot start the simulated fleet: %w", err)
	}
	r := s.router
	r.PrefillURL, r.BootstrapPort, r.DecodeURL = fleet.Prefill(0).URL(), fleet.Prefill(0).BootstrapPort(), fleet.Decode(0).URL()
	router, err := o.Start(ctx, r)
	if err != nil {
		fleet.Close()
		return nil, fmt.Errorf("cannot start the router: %w", err)
	}
	return &stage{fleet: fleet, router: router}, nil
}

// indent is the indentation of everything below the name of a scenario.
const indent = "   "

// introduce prints the scenario's name and description.
func (o *Options) introduce(number int, s *scenario) {
	_, _ = fmt.Fprintln(o.Out)
	o.print("", fmt.Sprintf("%d. %s", number, s.name))
	o.print(indent, s.explain)
	_, _ = fmt.Fprintln(o.Out)
}

// conclude ends the demo. kept: the last router keeps running.
func (o *Options) conclude(good, kept bool) {
	if good {
		_, _ = fmt.Fprintln(o.Out)
		o.print("", "All results are as they must be.")
	}
	if !kept {
		_, _ = fmt.Fprintln(o.Out)
		o.print("", `"sluice demo --keep" keeps the last router running, so that you can send requests and look at its metrics.`)
	}
}

// print prints text, broken into lines that fit the terminal.
func (o *Options) print(indent, text string) {
	_, _ = io.WriteString(o.Out, wrap(text, indent, min(o.width()-1, 79)))
}

// wrap breaks text between its words into lines of at most width characters,
// indent included.
func wrap(text, indent string, width int) string {
	var b strings.Builder
	col := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		if col > 0 && col+1+n > width {
			b.WriteByte('\n')
			col = 0
		}
		if col == 0 {
			b.WriteString(indent)
			col = len(indent)
		} else {
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col += n
	}
	b.WriteByte('\n')
	return b.String()
}

func keep(ctx context.Context, out io.Writer, r *Router) {
	_, _ = fmt.Fprintf(out, "\nThe router is still running. Try:\n\n  curl -i %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{\"model\":%q,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'\n  curl %s/workers\n  curl %s\n\nCtrl-C ends it.\n",
		r.URL, model, r.URL, r.MetricsURL)
	<-ctx.Done()
}
