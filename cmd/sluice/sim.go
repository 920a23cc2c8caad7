package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/internal/sim"
)

func newSim() *cobra.Command {
	var o sim.CommandOptions
	o.Worker.Timing = sim.DefaultTiming()
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run simulated engines",
		Long: "Run simulated SGLang engines, strict about how prefill and decode pair. Each worker gets a line\n" +
			"with its id, role, URL and bootstrap port; a last line begins with \"ready\". Ends on SIGINT or SIGTERM.\n" +
			"All workers live in this process; faults are set through --admin (see docs/simulator.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runSim(ctx, cmd, o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Prefill, "prefill", 1, "prefill workers")
	f.IntVar(&o.Decode, "decode", 1, "decode workers")
	f.IntVar(&o.Regular, "regular", 0, "workers that run whole requests")
	f.StringVar(&o.Host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&o.Port, "port", 0, "port of the first worker, the others follow; 0 takes free ones")
	f.IntVar(&o.BootstrapPort, "bootstrap-port", 0, "bootstrap port of the first prefill worker, the others follow; 0 takes free ones")
	f.StringVar(&o.AdminAddr, "admin", "", "host:port of the admin API; it has no key, keep it on loopback")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object a line")
	f.BoolVar(&o.Load, "load", false, "be the backend of a load test: no request log, quick health checks")
	f.StringVar(&o.Worker.Model, "model", "sim-model", "name of the served model")
	f.IntVar(&o.Worker.DPSize, "dp-size", 1, "data-parallel ranks of each worker")
	f.IntVar(&o.Worker.MaxRunning, "max-running", 0, "most requests that run at once on a rank; 0: 2048")
	f.IntVar(&o.Worker.KVTokens, "kv-tokens", 0, "KV capacity of a rank in tokens; 0: as good as unlimited")
	f.StringVar(&o.Worker.APIKey, "worker-api-key", "", "key the workers ask for")
	t := &o.Worker.Timing
	f.DurationVar(&t.PrefillTime, "prefill-time", t.PrefillTime, "time of one prefill, whatever the prompt; 0: by --prefill-rate")
	f.Float64Var(&t.PrefillRate, "prefill-rate", t.PrefillRate, "prefill speed in tokens a second and rank; 0: no time")
	f.DurationVar(&t.DecodeStep, "decode-step", t.DecodeStep, "time of one decode step")
	f.DurationVar(&t.DecodePerRequest, "decode-per-request", t.DecodePerRequest, "what each running request adds to a step")
	f.IntVar(&t.OutputTokens, "output-tokens", 16, "output length when the client gives none")
	return cmd
}

func runSim(ctx context.Context, cmd *cobra.Command, o sim.CommandOptions) error {
	return sim.Run(ctx, o, cmd.OutOrStdout())
}
