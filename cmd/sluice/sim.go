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
	var events sim.KVEvents
	var withEvents bool
	o.Worker.Timing = sim.DefaultTiming()
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run simulated engines",
		Long: "Run simulated engines, SGLang's or vLLM's, strict about how prefill and decode pair. Each worker gets a line\n" +
			"with its id, role, URL and bootstrap port; a last line begins with \"ready\". Ends on SIGINT or SIGTERM.\n" +
			"All workers live in this process; faults are set through --admin, whose address answers GET / with its routes\n" +
			"(docs/simulator.md, docs/rehearsals.md). POST /sim/workers/ID/fault takes key=value,key=value of these keys:\n\n" +
			sim.FaultHelp + "\nPOST /sim/workers/ID/kv-lie takes the same form, for --kv-events:\n\n" + sim.KVLieHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if o.Regular > 0 { // then a pair only if it is asked for
				for name, n := range map[string]*int{"prefill": &o.Prefill, "decode": &o.Decode} {
					if !cmd.Flags().Changed(name) {
						*n = 0
					}
				}
			}
			if withEvents {
				o.Worker.KVEvents = &events
			}
			return runSim(ctx, cmd, o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Prefill, "prefill", 1, "prefill workers; by default none beside --regular")
	f.IntVar(&o.Decode, "decode", 1, "decode workers; by default none beside --regular")
	f.IntVar(&o.Regular, "regular", 0, "workers that run whole requests")
	f.StringVar(&o.Host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&o.Port, "port", 0, "port of the first worker, the others follow; 0 takes free ones")
	f.IntVar(&o.BootstrapPort, "bootstrap-port", 0, "bootstrap port of the first prefill worker, the others follow; 0 takes free ones")
	f.StringVar(&o.AdminAddr, "admin", "", "host:port of the admin API; it has no key, keep it on loopback")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object a line")
	f.BoolVar(&o.Load, "load", false, "be the backend of a load test: no request log, quick health checks")
	f.Var(newText(&o.Worker.Backend), "backend", "the engine to play: sglang or vllm")
	f.BoolVar(&o.Worker.GRPC, "grpc", false, "engines that speak gRPC, as vllm serve --grpc: token ids in and out; KV events are on")
	f.DurationVar(&o.Worker.PingInterval, "grpc-ping-interval", 0, "with --grpc, clients whose keep-alive pings come more often are told to go away; 0: 5m, as older servers; newer ones 10s")
	f.Var(newText(&o.Worker.Connector), "connector", "how vLLM's prefill and decode workers move KV: none, nixl, nixl-push, mooncake, moriio, lmcache or shared-storage; empty: nixl")
	f.DurationVar(&o.Worker.Lease, "kv-lease", 0, "how long a vLLM prefill keeps KV for its decode; 0: 30s, with mooncake 480s")
	f.IntVar(&o.Worker.PageSize, "page-size", 0, "KV block size in tokens; 0: 1, with vllm 16")
	f.IntVar(&o.Worker.ContextLength, "context-length", 0, "most tokens of a prompt; 0: practically unlimited")
	f.IntVar(&o.Worker.ChunkedPrefillSize, "max-batched-tokens", 0, "most prompt tokens of a prefill batch; 0: 8192")
	f.StringSliceVar(&o.Worker.Names, "served-name", nil, "with vllm a further name that the model is served by, repeatable")
	f.StringSliceVar(&o.Worker.Adapters, "adapter", nil, "LoRA adapter to list under the model, repeatable")
	f.BoolVar(&o.Worker.Pooling, "pooling", false, "serve embeddings, rerank, score and classify")
	f.BoolVar(&o.Worker.Tokenizer, "tokenizer", false, "serve /tokenize and /detokenize with SGLang too")
	f.StringVar(&o.Worker.Model, "model", "sim-model", "name of the served model")
	f.IntVar(&o.Worker.DPSize, "dp-size", 1, "data-parallel ranks of each worker")
	f.IntVar(&o.PrefillDPSize, "prefill-dp-size", 0, "data-parallel ranks of each prefill worker; 0: --dp-size")
	f.IntVar(&o.DecodeDPSize, "decode-dp-size", 0, "data-parallel ranks of each decode worker; 0: --dp-size")
	f.IntVar(&o.Worker.FirstRank, "dp-start-rank", 0, "number of a vLLM server's first rank among those of all servers of the model")
	f.IntVar(&o.Worker.MaxRunning, "max-running", 0, "most requests that run at once on a rank; 0: 2048, with vllm 256")
	f.IntVar(&o.Worker.KVTokens, "kv-tokens", 0, "KV capacity of a rank in tokens; 0: practically unlimited")
	f.IntVar(&o.Worker.CacheBlocks, "cache-blocks", 0, "blocks in a rank's prefix cache; 0: as many as --kv-tokens holds, at most 131072, with --load none; -1: no prefix cache")
	f.IntVar(&o.Worker.CacheBlock, "cache-block-size", 0, "tokens of these blocks; 0: --page-size, and 16 where that is 1")
	f.BoolVar(&o.Worker.CacheReport, "cache-report", false, "tell cached tokens in the usage of answers, as SGLang with --enable-cache-report and vLLM with --enable-prompt-tokens-details")
	f.BoolVar(&o.Worker.DevMode, "dev-mode", false, "serve vLLM's routes of its development mode: /server_info, /reset_prefix_cache")
	f.BoolVar(&withEvents, "kv-events", false, "publish what the prefix caches store and remove, over ZeroMQ; the page size is then 16 by default")
	f.IntVar(&events.Port, "kv-events-port", 0, "port of the first rank's events, the others follow, then those of the other workers; 0 takes free ones")
	f.IntVar(&events.ReplayPort, "kv-events-replay-port", 0, "port of the first rank's replays, the others follow; 0 takes free ones, -1: nothing is repeated")
	f.StringVar(&events.Topic, "kv-events-topic", "", "topic of the events")
	f.Var(newText(&events.Form), "kv-events-form", "form of the events: map, array or array-short of vLLM, sglang or sglang-map; empty: map, with sglang sglang")
	f.BoolVar(&events.HashBytes, "kv-events-hash-bytes", false, "write hashes as 32 bytes instead of numbers")
	f.StringArrayVar(&o.KVLies, "kv-lie", nil, "make the events of all workers lie from the start (kind=KIND,key=value), repeatable")
	f.StringVar(&o.Worker.APIKey, "worker-api-key", "", "key the workers ask for")
	t := &o.Worker.Timing
	f.DurationVar(&t.PrefillTime, "prefill-time", t.PrefillTime, "time of one prefill, whatever the prompt; 0: by --prefill-rate")
	f.Float64Var(&t.PrefillRate, "prefill-rate", t.PrefillRate, "prefill speed in tokens a second and rank; 0: no time")
	f.DurationVar(&t.PrefillStep, "prefill-step", 0, "base time of a prefill batch; 0: prompts are computed one by one")
	f.DurationVar(&t.DecodeStep, "decode-step", t.DecodeStep, "time of one decode step")
	f.DurationVar(&t.DecodePerRequest, "decode-per-request", t.DecodePerRequest, "what each running request adds to a step")
	f.IntVar(&t.OutputTokens, "output-tokens", 16, "output length when the client gives none")
	return cmd
}

// text is a flag whose type is a string of its own.
type text[T ~string] struct{ to *T }

func newText[T ~string](to *T) text[T] { return text[T]{to} }

func (t text[T]) String() string {
	if t.to == nil {
		return ""
	}
	return string(*t.to)
}
func (t text[T]) Set(s string) error { *t.to = T(s); return nil }
func (t text[T]) Type() string       { return "name" }

func runSim(ctx context.Context, cmd *cobra.Command, o sim.CommandOptions) error {
	return sim.Run(ctx, o, cmd.OutOrStdout())
}
