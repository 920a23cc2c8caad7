package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/demo"
	"github.com/sluice-router/sluice/internal/telemetry"
)

func newDemo() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the gate at work, with a simulated fleet in the same process",
		Long: "Start a router and a simulated fleet in this process, on free ports of the loopback interface, send\n" +
			"requests that overlap, show what the gate does with them, and check the results. It takes about\n" +
			"25 seconds and exits with 1 if a result is wrong, with 130 if it was stopped.\n\n" +
			"With --routers N it starts N routers that share one gate instead, kills the one that decides, and checks\n" +
			"that the limit held and every request was answered. That takes about 15 seconds.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			o.Out = cmd.OutOrStdout()
			o.Style = terminalStyle(o.Out, os.Getenv)
			run := demo.Run
			if cmd.Flags().Changed("routers") {
				if o.Routers < 2 || o.Routers > maxDemoRouters {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--routers must be from 2 to %d", maxDemoRouters)}
				}
				if o.Keep {
					return &usageError{cmd.CommandPath(), errors.New("--keep is for the demo of one router")}
				}
				o.StartMember = new(demoCluster).start
				run = demo.RunRouters
			}
			o.Start = startDemoRouter
			err := run(ctx, o)
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return errDemoStopped
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave the router running afterwards and say how to call it")
	cmd.Flags().IntVar(&o.Routers, "routers", 0, "show several routers behind one gate instead: how many, from 2 to 9")
	return cmd
}

// errDemoStopped is an end by Ctrl-C (or SIGTERM) before the demo was over.
var errDemoStopped = stoppedError{}

type stoppedError struct{}

func (stoppedError) Error() string { return "stopped" }

// ExitCode is that of a process which SIGINT ended.
func (stoppedError) ExitCode() int { return 130 }

// terminalStyle is how the demo draws on out: it redraws a terminal, uses no colors if
// NO_COLOR is set (no-color.org), and only ASCII if the locale is known not to be
// UTF-8.
func terminalStyle(out io.Writer, getenv func(string) string) demo.Style {
	s := demo.Style{Unicode: true}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToUpper(getenv(name)); v != "" {
			s.Unicode = strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
			break
		}
	}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return s
	}
	if getenv("TERM") != "dumb" {
		s.Live, s.Color = true, getenv("NO_COLOR") == ""
	}
	s.Width = func() int {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
		return 80
	}
	return s
}

// readyWithin is how long a router may take to become ready.
const readyWithin = 20 * time.Second

// startDemoRouter starts the same router that serve runs.
func startDemoRouter(ctx context.Context, o demo.RouterOptions) (*demo.Router, error) {
	cfg, err := demoConfig(o)
	if err != nil {
		return nil, err
	}
	_, router, err := runDemoRouter(ctx, cfg, openStore)
	return router, err
}

// demoConfig is the configuration of a router of the demo.
func demoConfig(o demo.RouterOptions) (*config.Config, error) {
	args := []string{
		"--host=127.0.0.1", "--port=0", "--prometheus-host=127.0.0.1", "--prometheus-port=0", "--pre-drain-wait=0", "--drain-timeout=1",
		"--pd-disaggregation", "--prefill", o.PrefillURL, strconv.Itoa(o.BootstrapPort), "--decode", o.DecodeURL,
	}
	var read config.ReadFile
	if o.Slots > 0 {
		args = append(args, "--prefill-max-inflight-requests-per-worker="+strconv.Itoa(o.Slots))
	}
	if o.Classes != "" {
		args = append(args, "--router-policy-config=classes.yaml")
		read = func(string) ([]byte, error) { return []byte(o.Classes), nil }
	} else {
		args = append(args,
			"--prefill-queue-size="+strconv.Itoa(o.QueueSize),
			"--prefill-queue-timeout-secs="+strconv.Itoa(int(o.QueueTimeout/time.Second)))
	}
	cfg, _, err := config.Load(args, nil, read)
	return cfg, err
}

// runDemoRouter starts a router and waits until it is ready.
func runDemoRouter(ctx context.Context, cfg *config.Config, openStore storeOpener) (*router, *demo.Router, error) {
	log := telemetry.NewLog(telemetry.LogOptions{Out: io.Discard})
	r, err := newRouterIn(cfg, log, openStore)
	if err != nil {
		log.Close(logFlush)
		return nil, nil, err
	}
	if err := r.server.Listen(ctx); err != nil {
		r.close()
		log.Close(logFlush)
		return nil, nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.server.Run(running) // it ends by cancel
		r.close()
		log.Close(logFlush)
	}()
	stop := func() { cancel(); <-done }
	if err := r.startMember(ctx, cfg); err != nil {
		stop()
		return nil, nil, err
	}
	if err := r.addWorkers(ctx, cfg); err != nil {
		stop()
		return nil, nil, err
	}
	if err := r.waitReady(ctx, cfg.Fleet.PDDisaggregation); err != nil {
		stop()
		return nil, nil, err
	}
	return r, &demo.Router{
		URL:        "http://" + r.server.Addr().String(),
		MetricsURL: "http://" + r.server.MetricsAddr().String() + "/metrics",
		Stats:      r.gate.Stats,
		Stop:       stop,
	}, nil
}

func (r *router) waitReady(ctx context.Context, pd bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !r.fleet.Ready(pd) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the workers were not ready within %s: %w", readyWithin, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
