package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	sluice, peerSMG, haproxy, scenario, out, logLevel string
	quick, pin, list, perf, cluster                   bool
	duration, warm                                    time.Duration
	rounds                                            int
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.sluice, "sluice", "", "the sluice `binary`; by default it is built")
	f.StringVar(&o.peerSMG, "peer-smg", "", "also measure smg "+peerVersion+": its `command`, its virtual environment, or auto to install it under the temporary directory")
	f.StringVar(&o.haproxy, "haproxy", "", "also measure HAProxy where workers run whole requests: its `command`, or auto for the one on PATH (Debian's package haproxy)")
	f.StringVar(&o.scenario, "scenario", "", "only scenarios whose name this `regexp` matches")
	f.StringVar(&o.out, "out", "", "write the tables to this `file` too")
	f.BoolVar(&o.quick, "quick", false, "one short round: does it work, not what does it cost")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "window of one measurement")
	f.DurationVar(&o.warm, "warm", time.Second, "load before each window")
	f.IntVar(&o.rounds, "rounds", 3, "turns of each target")
	f.BoolVar(&o.pin, "pin", false, "give the routers half of the CPUs, and the engines and the client the other half")
	f.StringVar(&o.logLevel, "log-level", "warn", "log `level` of both routers; at info both write lines about each request")
	f.BoolVar(&o.list, "list", false, "print the scenarios and end")
	f.BoolVar(&o.cluster, "cluster", false, "compare one router and three on one fleet, each alone and as one gate, instead of the scenarios (needs redis-server)")
	f.BoolVar(&o.perf, "perf", false, "after each load, profile ours with perf and print where its CPU time goes")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || o.duration <= 0 || o.warm < 0 {
		return nil, fmt.Errorf("cannot measure %d rounds of %v after %v: want positive numbers", o.rounds, o.duration, o.warm)
	}
	if o.quick {
		o.rounds, o.duration, o.warm = 1, 500*time.Millisecond, 200*time.Millisecond
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	match, err := regexp.Compile(o.scenario)
	if err != nil {
		return fmt.Errorf("cannot read -scenario: %w", err)
	}
	var chosen []scenario
	for _, s := range scenarios() {
		if match.MatchString(s.name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no scenario matches -scenario %q (see -list)", o.scenario)
	}
	if o.list {
		for _, s := range chosen {
			fmt.Fprintf(stdout, "%-18s %s, %v workers\n", s.name, s.what, s.size)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return fmt.Errorf("cannot make a directory for logs: %w", err)
	}
	p := &plan{bins: map[string]string{}, rounds: o.rounds, warm: o.warm, window: o.duration,
		idleWindow: 10 * time.Second, logLevel: o.logLevel, progress: stderr}
	if o.quick {
		p.idleWindow = 2 * time.Second
	}
	if o.perf {
		p.perf = dir
	}
	keep := o.perf
	defer func() {
		if !keep {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := p.prepare(ctx, o, dir); err != nil {
		return err
	}
	e := p.describe(ctx, o)
	var report strings.Builder
	var outcomes []*outcome
	if o.cluster {
		writeHead(&report, e)
		err = p.compareClusters(ctx, newSpawner(dir), &report)
	} else {
		outcomes, err = p.run(ctx, newSpawner(dir), chosen)
		write(&report, e, outcomes)
	}
	fmt.Fprint(stdout, report.String())
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(report.String()), 0o644); err != nil {
			return fmt.Errorf("cannot write the tables: %w", err)
		}
	}
	for _, x := range outcomes {
		err = errors.Join(err, x.wrong())
	}
	if err != nil {
		keep = true
		fmt.Fprintf(stderr, "the logs of all processes are in %s\n", dir)
	}
	return err
}

// prepare finds the binaries and shares out the CPUs.
func (p *plan) prepare(ctx context.Context, o *options, dir string) error {
	if err := raiseFiles(); err != nil {
		return err
	}
	p.routers, p.bins[ours] = []string{ours}, o.sluice
	if o.sluice == "" {
		bin, err := buildOurs(ctx, dir)
		if err != nil {
			return err
		}
		p.bins[ours] = bin
	}
	if o.peerSMG != "" {
		bin, err := findPeer(ctx, o.peerSMG)
		if err != nil {
			return err
		}
		p.routers, p.bins[peer] = append(p.routers, peer), bin
	}
	if o.haproxy != "" {
		bin, err := findProxy(o.haproxy)
		if err != nil {
			return err
		}
		p.routers, p.bins[proxy] = append(p.routers, proxy), bin
	}
	if !o.pin {
		return nil
	}
	n := runtime.NumCPU()
	if n < 2 {
		return errors.New("cannot pin with one CPU")
	}
	for c := range n {
		if c < n-n/2 {
			p.otherCPUs = append(p.otherCPUs, c)
		} else {
			p.routerCPUs = append(p.routerCPUs, c)
		}
	}
	runtime.GOMAXPROCS(len(p.otherCPUs))
	return bindAll(p.otherCPUs)
}

func (p *plan) describe(ctx context.Context, o *options) environment {
	git := func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	commit := git("rev-parse", "--short=10", "HEAD")
	switch {
	case o.sluice != "":
		commit = "unknown (a binary was given)"
	case commit == "":
		commit = "unknown"
	case git("status", "--porcelain", "--untracked-files=no") != "":
		commit += " with changes"
	}
	how := fmt.Sprintf("Closed loop, %d rounds of %v after %v; routers log at %s, check health every %v, and are ", o.rounds, o.duration, o.warm, o.logLevel, healthInterval)
	if o.pin {
		how += "on CPUs of their own"
	} else {
		how += "on the same CPUs as the simulated engines and the client"
	}
	if o.peerSMG != "" {
		how += "; smg is " + peerVersion
	}
	if p.bins[proxy] != "" {
		how += "; the proxy is " + proxyVersion(ctx, p.bins[proxy])
	}
	return environment{date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), machine: machine(), cores: runtime.NumCPU(),
		goVersion: runtime.Version(), commit: commit, load: loadAverage(), how: how}
}
