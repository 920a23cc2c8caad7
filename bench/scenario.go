package main

import "time"

// kind is what a scenario measures.
type kind int

const (
	// kindLoad: requests a second, CPU per request, added latency.
	kindLoad kind = iota
	// kindFirst: added time to the first byte.
	kindFirst
	// kindStreams: memory per stream that is open and silent. Fresh routers.
	kindStreams
	// kindIdle: CPU and memory without requests. Fresh routers.
	kindIdle
	// kindGrowth: CPU per request, before few workers and before many in turn.
	kindGrowth
)

// setup is what scenarios can share: engines and the routers before them.
type setup struct {
	size     size
	policy   string
	inflight int // per prefill worker; 0: admission is off
	// grpc: the engines speak gRPC, so that nobody asks them without a router.
	grpc bool
}

// scenario is one measurement.
type scenario struct {
	name string
	what string
	kind kind
	setup
	shape   shape
	clients int
	rate    float64
	step    time.Duration // between tokens
	streams int           // open at the same time (kindStreams)
	few     size          // what kindGrowth compares with
	// goal is the most our figure may be: of the CPU per request (kindLoad) or
	// the added time (kindFirst), as a part of the peer's. 0 is none; kindStreams
	// and kindIdle have goals of their own.
	goal float64
}

// Goals in absolute figures.
const (
	goalStreamKiB = 40.0
	// goalStreamGRPC is the most that the memory of a stream by gRPC may be of the peer's.
	goalStreamGRPC = 1.0
	goalRestMB     = 30.0
	goalIdleCPU    = 2.0 // percent of a core, with manyWorkers
	// goalGrowth is the most that CPU per request with many workers may be of
	// that with few.
	goalGrowth = 1.25
)

const roundRobin, powerOfTwo, cacheAware = "round_robin", "power_of_two", "cache_aware"

// scenarios is all there is, those of one setup side by side.
func scenarios() []scenario {
	var (
		small  = shape{tokens: 8}
		stream = shape{tokens: 13, stream: true} // 16 events
		short  = shape{tokens: 2, stream: true}
		large  = shape{tokens: 8, prompt: 1 << 20}
		own    = shape{tokens: 8, client: 1}
		turn   = shape{tokens: 8, prompt: 8 << 10, client: 1}

		two     = size{prefill: 2, decode: 2}
		pairs   = setup{size: two, policy: roundRobin}
		pairs64 = setup{size: size{prefill: 64, decode: 64}, policy: roundRobin}
		pairs25 = setup{size: size{prefill: 256, decode: 256}, policy: roundRobin}
		whole   = setup{size: size{regular: 2}, policy: roundRobin}

		one      = shape{tokens: 1, stream: true, grpc: true}
		long     = shape{tokens: 200, stream: true, grpc: true}
		eightK   = shape{tokens: 2, stream: true, prompt: 32 << 10, grpc: true}
		grpc     = setup{size: size{prefill: 1, decode: 1}, policy: roundRobin, grpc: true}
		grpcGate = setup{size: size{prefill: 1, decode: 1}, policy: roundRobin, inflight: 8, grpc: true}
	)
	with := func(s setup, policy string, inflight int) setup {
		s.policy, s.inflight = policy, inflight
		return s
	}
	return []scenario{
		{name: "pd-small/2", what: "small JSON answers", setup: pairs, shape: small, clients: 32, goal: 0.4},
		{name: "pd-stream/2", what: "streams of 16 events, as fast as they go", setup: pairs, shape: stream, clients: 32, goal: 0.4},
		{name: "pd-paced/2", what: "streams of 16 events, 5 ms apart", setup: pairs, shape: stream, clients: 32, step: 5 * time.Millisecond, goal: 0.35},
		{name: "pd-1mb/2", what: "prompts of 1 MB of plain text", setup: pairs, shape: large, clients: 8, goal: 0.5},
		{name: "first-1/2", what: "one client", kind: kindFirst, setup: pairs, shape: short, clients: 1, goal: 0.5},
		{name: "first-32/2", what: "32 clients, closed loop", kind: kindFirst, setup: pairs, shape: short, clients: 32, goal: 0.5},
		{name: "first-32-rate/2", what: "32 clients, 300 requests a second", kind: kindFirst, setup: pairs, shape: short, clients: 32, rate: 300},
		{name: "pd-small-p2c/2", what: "small, power of two", setup: with(pairs, powerOfTwo, 0), shape: small, clients: 32, goal: 0.4},
		{name: "pd-small-gate/2", what: "small, admission on, none waits", setup: with(pairs, roundRobin, 64), shape: small, clients: 32, goal: 0.4},
		{name: "pd-small-queue/2", what: "small, 4 slots a worker, most wait", setup: with(pairs, roundRobin, 4), shape: small, clients: 32, goal: 0.4},
		{name: "pd-cache/2", what: "small, a prompt for each client, cache-aware", setup: with(pairs, cacheAware, 0), shape: own, clients: 32, goal: 0.3},
		{name: "pd-cache-8k/2", what: "prompts of 8 KB, cache-aware", setup: with(pairs, cacheAware, 0), shape: turn, clients: 32, goal: 0.3},
		{name: "pd-small/64", what: "small", setup: pairs64, shape: small, clients: 32, goal: 0.4},
		{name: "pd-stream/64", what: "streams of 16 events", setup: pairs64, shape: stream, clients: 32, goal: 0.4},
		{name: "pd-small-p2c/64", what: "small, power of two", setup: with(pairs64, powerOfTwo, 0), shape: small, clients: 32, goal: 0.4},
		{name: "pd-small/256", what: "small", setup: pairs25, shape: small, clients: 32, goal: 0.4},
		{name: "pd-stream/256", what: "streams of 16 events", setup: pairs25, shape: stream, clients: 32, goal: 0.4},
		{name: "pd-small-p2c/256", what: "small, power of two", setup: with(pairs25, powerOfTwo, 0), shape: small, clients: 32, goal: 0.4},
		{name: "pd-cache/256", what: "small, a prompt for each client, cache-aware", setup: with(pairs25, cacheAware, 0), shape: own, clients: 32, goal: 0.15},
		{name: "pd-cache-8k/256", what: "prompts of 8 KB, cache-aware", setup: with(pairs25, cacheAware, 0), shape: turn, clients: 32, goal: 0.15},
		{name: "growth/256", what: "small, with 2+2 and with 256+256 workers in turn", kind: kindGrowth, setup: pairs25, few: two, shape: small, clients: 32},
		{name: "agg-small/2", what: "aggregated, small JSON answers", setup: whole, shape: small, clients: 32},
		{name: "agg-stream/2", what: "aggregated, streams of 16 events", setup: whole, shape: stream, clients: 32},
		{name: "agg-paced/2", what: "aggregated, streams of 16 events, 5 ms apart", setup: whole, shape: stream, clients: 32, step: 5 * time.Millisecond},
		{name: "grpc-one/1", what: "by gRPC, streams of one token", setup: grpc, shape: one, clients: 16, goal: 0.4},
		{name: "grpc-stream/1", what: "by gRPC, 16 streams of 200 tokens, as fast as they go", setup: grpc, shape: long, clients: 16, goal: 0.6},
		{name: "grpc-paced/1", what: "by gRPC, 200 streams of 200 tokens, 20 ms apart", setup: grpc, shape: long, clients: 200, step: 20 * time.Millisecond, goal: 0.75},
		{name: "grpc-8k/1", what: "by gRPC, prompts of 32 KB of plain text", setup: grpc, shape: eightK, clients: 1},
		{name: "grpc-gate/1", what: "by gRPC, 64 clients at 8 slots", setup: grpcGate, shape: one, clients: 64},
		{name: "grpc-streams-1000/1", what: "1000 silent PD streams by gRPC", kind: kindStreams, setup: grpc, shape: long, streams: 1000},
		{name: "streams-1000/2", what: "1000 silent PD streams", kind: kindStreams, setup: pairs, shape: stream, streams: 1000},
		{name: "streams-4000/2", what: "4000 silent PD streams", kind: kindStreams, setup: pairs, shape: stream, streams: 4000},
		{name: "idle/2", what: "no requests", kind: kindIdle, setup: pairs},
		{name: "idle/500", what: "no requests", kind: kindIdle, setup: setup{size: size{prefill: 500, decode: 500}, policy: roundRobin}},
	}
}

func (s scenario) fresh() bool { return s.kind == kindStreams || s.kind == kindIdle }

// grouped puts scenarios that share a setup together, in order.
func grouped(all []scenario) [][]scenario {
	var groups [][]scenario
	for i, s := range all {
		if i > 0 && !s.fresh() && !all[i-1].fresh() && s.setup == all[i-1].setup {
			groups[len(groups)-1] = append(groups[len(groups)-1], s)
			continue
		}
		groups = append(groups, []scenario{s})
	}
	return groups
}
