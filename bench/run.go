package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// plan is what was asked for.
type plan struct {
	bins       map[string]string // of the routers, by name
	routers    []string          // their names, in the order of their turns
	rounds     int
	warm       time.Duration
	window     time.Duration
	idleWindow time.Duration
	logLevel   string
	routerCPUs []int // empty: any
	otherCPUs  []int
	perf       string // directory for profiles, "" takes none
	progress   io.Writer
}

// sample is one window of one target.
type sample struct {
	perSecond float64
	cpu       float64 // of the router, µs a request; kindIdle: percent of a core
	total50   float64 // ms
	first50   float64 // ms
	first99   float64 // ms
	memory    float64 // kindStreams: KiB a stream; kindIdle: MB
}

// outcome is what came of one scenario.
type outcome struct {
	scenario scenario
	samples  map[string][]sample // by target, one a round
	errors   map[string]int
	firstErr map[string]error
	// violations of the engines' contract, by target where one was loaded alone.
	violations map[string]int
}

// wrong says what ours did that it must not.
func (o *outcome) wrong() error {
	if n := o.errors[ours]; n > 0 {
		return fmt.Errorf("%s: %d wrong answers of %s, the first: %w", o.scenario.name, n, ours, o.firstErr[ours])
	}
	if n := o.violations[ours]; n > 0 {
		return fmt.Errorf("%s: %s broke the engines' contract %d times", o.scenario.name, ours, n)
	}
	return nil
}

// stage is a running setup.
type stage struct {
	plan
	spawner *spawner
	sim     *simFleet
	routers map[string]*router
}

func (p *plan) logf(format string, args ...any) { fmt.Fprintf(p.progress, format+"\n", args...) }

// run does all scenarios.
func (p *plan) run(ctx context.Context, s *spawner, all []scenario) ([]*outcome, error) {
	var outcomes []*outcome
	for _, group := range grouped(all) {
		got, err := p.runGroup(ctx, s, group)
		outcomes = append(outcomes, got...)
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

func (p *plan) runGroup(ctx context.Context, s *spawner, group []scenario) ([]*outcome, error) {
	st, stop, err := p.start(ctx, s, group[0].setup)
	if err != nil {
		return nil, err
	}
	defer stop()
	var outcomes []*outcome
	for _, sc := range group {
		o := &outcome{scenario: sc, samples: map[string][]sample{}, errors: map[string]int{},
			firstErr: map[string]error{}, violations: map[string]int{}}
		outcomes = append(outcomes, o)
		if err := st.measure(ctx, o); err != nil {
			return outcomes, fmt.Errorf("%s: %w", sc.name, err)
		}
		for name, n := range o.errors {
			if n > 0 {
				p.logf("%s: %d wrong answers of %s, the first: %v", sc.name, n, name, o.firstErr[name])
			}
		}
	}
	return outcomes, nil
}

// start starts the engines and the routers of a setup.
func (p *plan) start(ctx context.Context, s *spawner, z setup) (_ *stage, stop func(), err error) {
	p.logf("setup: %v workers, %s, %d in flight", z.size, z.policy, z.inflight)
	st := &stage{plan: *p, spawner: s, routers: map[string]*router{}}
	if z.size.regular == 0 || z.grpc {
		st.plan.routers = slices.DeleteFunc(slices.Clone(p.routers), func(name string) bool { return name == proxy })
	}
	end := func() {
		for _, r := range st.routers {
			r.proc.stop()
		}
		if st.sim != nil {
			st.sim.proc.stop()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	if st.sim, err = startSim(ctx, s, p.bins[ours], p.otherCPUs, z.size, z.grpc); err != nil {
		return nil, nil, err
	}
	for _, name := range st.plan.routers {
		if name == proxy {
			st.routers[name], err = startProxy(ctx, s, p.bins[name], p.routerCPUs, st.sim)
		} else {
			st.routers[name], err = startRouter(ctx, s, name, p.bins[name], p.routerCPUs, st.sim,
				routerOptions{policy: z.policy, inflight: z.inflight, logLevel: p.logLevel})
		}
		if err != nil {
			delete(st.routers, name)
			return nil, nil, err
		}
	}
	return st, end, nil
}

func (st *stage) measure(ctx context.Context, o *outcome) error {
	switch o.scenario.kind {
	case kindStreams:
		return st.measureStreams(ctx, o)
	case kindIdle:
		return st.measureIdle(ctx, o)
	case kindGrowth:
		return st.measureGrowth(ctx, o)
	}
	return st.measureLoad(ctx, o)
}

// measureLoad lets the targets take turns.
func (st *stage) measureLoad(ctx context.Context, o *outcome) error {
	sc := o.scenario
	if err := st.sim.timing(ctx, timing{DecodeStep: sc.step}); err != nil {
		return err
	}
	var targets []target
	for _, name := range st.plan.routers {
		targets = append(targets, st.routers[name].target())
	}
	if !sc.grpc {
		targets = append(targets, directTarget(st.sim))
	}
	l := load{shape: sc.shape, clients: sc.clients, rate: sc.rate, warm: st.warm, window: st.window}
	for round := range st.rounds {
		for _, t := range targets {
			if err := st.turn(ctx, o, l, t, t.name, round); err != nil {
				return err
			}
		}
	}
	if st.perf != "" {
		return st.profile(ctx, sc, targets[0], l)
	}
	return nil
}

// turn is one window of one target, whose sample is kept under a name.
func (st *stage) turn(ctx context.Context, o *outcome, l load, t target, name string, round int) error {
	before, err := st.sim.violations(ctx)
	if err != nil {
		return err
	}
	r, err := l.run(ctx, t)
	if err != nil {
		return err
	}
	after, err := st.sim.violations(ctx)
	if err != nil {
		return err
	}
	o.violations[t.name] += after - before
	o.errors[t.name] += r.errors
	if o.firstErr[t.name] == nil {
		o.firstErr[t.name] = r.firstErr
	}
	x := sample{
		perSecond: r.perSecond(), cpu: r.cpuPerRequest(), total50: ms(quantile(r.total, 0.5)),
		first50: ms(quantile(r.first, 0.5)), first99: ms(quantile(r.first, 0.99)),
	}
	o.samples[name] = append(o.samples[name], x)
	st.logf("%-18s round %d  %-7s %7.0f/s  %7.1f µs CPU  p50 %.3f ms  first byte p50 %.3f p99 %.3f ms",
		o.scenario.name, round+1, name, x.perSecond, x.cpu, x.total50, x.first50, x.first99)
	return nil
}

// withFew names the samples of a router before few workers.
func withFew(name string) string { return name + " (few)" }

// measureGrowth has the routers before a small fleet take turns with those before
// the large one. Measured minutes apart, they would tell of the machine.
func (st *stage) measureGrowth(ctx context.Context, o *outcome) error {
	sc := o.scenario
	few := sc.setup
	few.size = sc.few
	small, stop, err := st.plan.start(ctx, st.spawner, few)
	if err != nil {
		return err
	}
	defer stop()
	l := load{shape: sc.shape, clients: sc.clients, warm: st.warm, window: st.window}
	for round := range st.rounds {
		for _, name := range st.plan.routers {
			if err := small.turn(ctx, o, l, small.routers[name].target(), withFew(name), round); err != nil {
				return err
			}
			if err := st.turn(ctx, o, l, st.routers[name].target(), name, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle is how long memory is left alone before it is read.
const settle = 3 * time.Second

// measureStreams opens streams that say something once and then are silent.
func (st *stage) measureStreams(ctx context.Context, o *outcome) error {
	sc := o.scenario
	if err := st.sim.timing(ctx, timing{DecodeStep: time.Hour}); err != nil {
		return err
	}
	for _, name := range st.plan.routers {
		r := st.routers[name]
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		before, err := processRSS(r.proc.pid)
		if err != nil {
			return err
		}
		open, err := openStreams(r.addr, sc.shape, sc.streams)
		if err == nil {
			err = sleep(ctx, settle)
		}
		var after int64
		if err == nil {
			after, err = processRSS(r.proc.pid)
		}
		for _, c := range open {
			c.Close()
		}
		if err != nil {
			return err
		}
		x := sample{memory: float64(after-before) / float64(sc.streams) / 1024}
		o.samples[name] = append(o.samples[name], x)
		st.logf("%-18s %-7s %.1f KiB a stream (%.1f MB before, %.1f MB with them)", sc.name, name, x.memory, mb(before), mb(after))
	}
	return nil
}

// measureIdle watches all routers at the same time.
func (st *stage) measureIdle(ctx context.Context, o *outcome) error {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	before := map[string]time.Duration{}
	start := time.Now()
	for name, r := range st.routers {
		var err error
		if before[name], err = r.target().cpu(); err != nil {
			return err
		}
	}
	if err := sleep(ctx, st.idleWindow); err != nil {
		return err
	}
	for name, r := range st.routers {
		after, err := r.target().cpu()
		if err != nil {
			return err
		}
		rss, err := processRSS(r.proc.pid)
		if err != nil {
			return err
		}
		x := sample{cpu: 100 * float64(after-before[name]) / float64(time.Since(start)), memory: mb(rss)}
		o.samples[name] = append(o.samples[name], x)
		st.logf("%-18s %-7s %.2f %% of a core, %.1f MB", o.scenario.name, name, x.cpu, x.memory)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }
