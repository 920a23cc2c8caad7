package sim

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Role is what a worker does, as the engine's disaggregation_mode.
type Role string

// The roles. Regular is an engine without disaggregation ("null" in its
// server arguments).
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Regular Role = "regular"
)

// Backend is the engine that a worker simulates.
type Backend string

// The backends.
const (
	SGLang Backend = "sglang" // the default
	VLLM   Backend = "vllm"   // as observed on the wire of 0.32.0
)

// Options are the options of a fleet.
type Options struct {
	// Prefill, Decode and Regular are numbers of workers.
	Prefill, Decode, Regular int

	// Host is the address to listen on, without brackets. Default 127.0.0.1.
	Host string
	// Port is the first worker's port; the others follow, prefill first, then
	// decode, then regular. 0 takes free ports.
	Port int
	// BootstrapPort is the first prefill worker's bootstrap port, the others
	// follow. 0 takes free ports.
	BootstrapPort int
	// AdminAddr is the host:port of the admin API; "" starts none.
	AdminAddr string

	// Worker are the options of every worker; Each may change them for one, before
	// it starts. i counts within the role.
	Worker WorkerOptions
	Each   func(role Role, i int, o *WorkerOptions)
}

// WorkerOptions describes one worker. The zero value is a healthy, instant
// engine of unlimited memory.
type WorkerOptions struct {
	// Backend is the engine that is simulated: its routes, bodies, errors, metrics
	// and how it moves KV. Default SGLang.
	Backend Backend
	// GRPC makes the worker speak gRPC, as vllm serve --grpc does, instead of HTTP: it takes
	// token ids and gives token ids. Its Backend is VLLM, and KVEvents are sent over gRPC,
	// without any need to ask for them.
	GRPC bool
	// PingInterval is the least time between keep-alive pings that a gRPC worker takes of a
	// client, which it tells to go away otherwise. Default 5 min, as older servers; newer
	// ones have 10 s.
	PingInterval time.Duration
	// Model is the served model's name. Default "sim-model".
	Model string
	// Names are further names that a vLLM server serves the model by.
	Names []string
	// Adapters are LoRA adapters listed by /v1/models under their parent.
	Adapters []string
	// DPSize is the number of data-parallel ranks. Default 1.
	DPSize int
	// FirstRank is the number that a vLLM server gives the first of them in its metrics,
	// its engines' ids and its KV events, as one that has a part of a model's ranks does
	// (--data-parallel-start-rank). Requests name them from 0 all the same.
	FirstRank int
	// Timing is how long things take. SetTiming changes it later.
	Timing Timing

	// KVTokens is the KV capacity per rank in tokens, rounded down to whole pages.
	// Default 16 Mi, which is practically unlimited. A request holds its prompt
	// plus all its output, on SGLang's prefill workers its prompt only, in whole
	// pages, from before it computes until it ends; one that does not fit waits,
	// and later ones wait behind it.
	KVTokens int
	// MaxRunning bounds the requests that run at once per rank; the rest queue.
	// SGLang's prefill workers have no such bound. Default 2048, on vLLM
	// (max_num_seqs) 256.
	MaxRunning int
	// ContextLength refuses longer prompts with 400, in tokens. Default 4 Mi.
	ContextLength int
	// ChunkedPrefillSize bounds the prompt tokens of one batch when
	// Timing.PrefillStep makes batches; it and MaxPrefillTokens are reported by
	// /server_info. On vLLM it is max_num_batched_tokens. Default 8192 and 16384.
	ChunkedPrefillSize, MaxPrefillTokens int
	// PageSize is the KV block size in tokens. Default 1, as SGLang's; on vLLM
	// 16.
	PageSize int
	// CacheBlocks is how many blocks a rank keeps in its prefix cache of what it
	// computed and received. Default what KVTokens holds, at most 128 Ki; negative:
	// it has no prefix cache.
	CacheBlocks int
	// CacheBlock is the size of these blocks in tokens. Default PageSize, and 16
	// where that is 1.
	CacheBlock int
	// CacheReport tells in the usage of answers how many tokens of the prompt were
	// cached, as vLLM with --enable-prompt-tokens-details and SGLang with
	// --enable-cache-report. SGLang's /generate always does.
	CacheReport bool
	// KVEvents, if set, publishes what the prefix cache stores and removes. PageSize is
	// then 16 by default.
	KVEvents *KVEvents
	// Pooling makes a worker serve embeddings, rerank, score, classify and
	// pooling, which answer 404 otherwise; a regular SGLang worker always serves
	// rerank.
	Pooling bool
	// Tokenizer makes an SGLang worker serve /tokenize and /detokenize, with and
	// without /v1; a vLLM worker always does.
	Tokenizer bool

	// Responses makes an SGLang worker serve /v1/responses and /v1/messages. Prefill
	// and decode workers refuse requests to them, as these routes have no bootstrap
	// fields. vLLM workers and regular SGLang workers always serve them.
	Responses bool

	// Connector is how a vLLM worker hands KV on. Default NIXL for prefill and
	// decode workers, NoConnector for regular ones.
	Connector Connector
	// KVRole, "kv_producer" or "kv_consumer", restricts a vLLM worker to that role
	// of its connector. "" lets it do both.
	KVRole string
	// Lease is how long a vLLM prefill keeps blocks for a decode that does not
	// come, and how long a decode waits for a prefill where both run at once.
	// Default 30 s, with Mooncake 480 s.
	Lease time.Duration
	// TransferTimeout is how long a vLLM decode needs to notice that the engine named
	// in its kv_transfer_params does not exist. Default 5 s.
	TransferTimeout time.Duration
	// Recompute makes a vLLM decode compute the prompt itself when its KV does
	// not come (kv_load_failure_policy "recompute"); it fails otherwise.
	Recompute bool
	// SideChannelHost and SideChannelPort are the address of a vLLM prefill in
	// kv_transfer_params, where the rank is added to the port. Nothing listens there.
	// Default: the worker's host, and a number of its own from 15600 up.
	SideChannelHost string
	SideChannelPort int
	// DevMode makes a vLLM worker serve /server_info and the other routes of
	// VLLM_SERVER_DEV_MODE that a router may look at.
	DevMode bool

	// DefaultBootstrapPort is the port a decode worker uses for a null
	// bootstrap_port: its own disaggregation_bootstrap_port. Default 8998.
	DefaultBootstrapPort int
	// NullPortMeets pairs a decode leg with a null bootstrap_port with the prefill
	// worker at that host that has the room, whatever its port.
	NullPortMeets bool
	// NoBootstrapServer leaves the bootstrap port unserved; it is then only a
	// number (from 8998 up, if Options.BootstrapPort is 0).
	NoBootstrapServer bool
	// BootstrapTimeout is how long one leg waits for the other. Default 300 s,
	// as the engine.
	BootstrapTimeout time.Duration
	// PeerLossAfter is how long a leg needs to notice that its peer's process
	// is gone. Default 10 s: two missed heartbeats of 5 s.
	PeerLossAfter time.Duration
	// PerSampleRooms gives sample i of n>1 its own room (room+i, or the i-th of
	// an array). By default n>1 uses one room for all and never finishes, as on the
	// engine.
	PerSampleRooms bool

	// HealthDelay is how long /health takes at least. Default 1 s, the engine's
	// polling step; negative answers at once.
	HealthDelay time.Duration
	// HealthTimeout is after how long /health answers 503 if the scheduler has made
	// no progress. Default 20 s.
	HealthTimeout time.Duration
	// Disable lists paths that answer 404, as an engine without them would.
	Disable []string
	// APIKey, if set, is required as "Authorization: Bearer" on all routes but
	// /health and /metrics.
	APIKey string
	// TLS makes the worker speak HTTPS. The bootstrap server stays plain.
	TLS *tls.Config
	// HTTP2 offers h2 (with TLS by ALPN, without by prior knowledge).
	HTTP2 bool
	// BasePath is a prefix of every path, as behind an ingress: "/engine".
	BasePath string
	// Host, Port and BootstrapPort override those of Options.
	Host                string
	Port, BootstrapPort int
	// IdleTimeout closes kept-alive connections. Default 5 s, as the engine;
	// negative never.
	IdleTimeout time.Duration
	// MaxBody bounds request bodies in bytes (413). Default 1 GiB.
	MaxBody int64

	// LogRequests bounds the request log in entries. Default 4096; negative
	// keeps none.
	LogRequests int
	// LogBodyBytes bounds what is kept of each body. Default 1 MiB; negative
	// keeps none. All kept bodies of a worker stay below 64 MiB.
	LogBodyBytes int

	// Wrap, if set, wraps the worker's handler, for tests that need a behaviour
	// that no option offers.
	Wrap func(w *Worker, next http.Handler) http.Handler
}

// Timing is the engine's speed. Zero fields take no time.
type Timing struct {
	// PrefillTime is a fixed prefill duration, whatever the prompt; it
	// overrides PrefillRate. Fixed prefills run side by side unless
	// PrefillParallel bounds them.
	PrefillTime time.Duration
	// PrefillRate is in tokens per second and rank. Prompts are then computed
	// one after another unless PrefillParallel says otherwise.
	PrefillRate float64
	// PrefillParallel is how many prefills a rank computes at once; 0 means 1
	// with PrefillRate and no bound otherwise.
	PrefillParallel int
	// Transfer is the time of the KV transfer.
	Transfer time.Duration
	// FirstToken is added before the first output token.
	FirstToken time.Duration
	// PrefillStep makes a rank compute prompts in batches, in order of arrival:
	// a batch holds up to ChunkedPrefillSize tokens and takes PrefillStep plus
	// its tokens by PrefillRate. A long prompt takes several, short ones share
	// one. PrefillTime and PrefillParallel then have no effect. Fixed at start.
	PrefillStep time.Duration
	// DecodeStep is the base time of each further token, DecodePerRequest is
	// added for each running request of the rank, DecodePerKTokens for each
	// 1000 KV tokens it holds.
	DecodeStep, DecodePerRequest, DecodePerKTokens time.Duration
	// OutputTokens is the output length when the client gives none. Default 16.
	OutputTokens int
}

func (t Timing) prefill(tokens int) time.Duration {
	if t.PrefillTime > 0 {
		return t.PrefillTime
	}
	if t.PrefillRate > 0 {
		return time.Duration(float64(tokens) / t.PrefillRate * float64(time.Second))
	}
	return 0
}

func (t Timing) parallel() int {
	switch {
	case t.PrefillParallel > 0:
		return t.PrefillParallel
	case t.PrefillTime == 0 && t.PrefillRate > 0:
		return 1
	}
	return 0
}

func (t Timing) step(running, held int) time.Duration {
	return t.DecodeStep + time.Duration(running)*t.DecodePerRequest + time.Duration(held)*t.DecodePerKTokens/1000
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// withDefaults returns o with every zero field that has a default filled in.
func (o WorkerOptions) withDefaults(role Role) WorkerOptions {
	if o.GRPC {
		def(&o.Backend, VLLM)
		def(&o.PingInterval, defaultPingInterval)
		if o.KVEvents == nil {
			o.KVEvents = &KVEvents{}
		}
	}
	def(&o.Backend, SGLang)
	if o.Backend == VLLM {
		def(&o.MaxRunning, 256)
		def(&o.PageSize, 16)
		if role == Regular {
			def(&o.Connector, NoConnector)
		}
		def(&o.Connector, NIXL)
		if o.Connector == Mooncake {
			def(&o.Lease, 480*time.Second)
		}
	}
	def(&o.Lease, 30*time.Second)
	def(&o.TransferTimeout, 5*time.Second)
	def(&o.Model, "sim-model")
	def(&o.DPSize, 1)
	def(&o.KVTokens, 16<<20)
	def(&o.MaxRunning, 2048)
	def(&o.ContextLength, 4<<20)
	def(&o.ChunkedPrefillSize, 8192)
	def(&o.MaxPrefillTokens, 16384)
	if o.KVEvents != nil {
		def(&o.PageSize, 16)
		o.KVEvents = o.KVEvents.withDefaults(o.Backend)
	}
	def(&o.PageSize, 1)
	def(&o.DefaultBootstrapPort, 8998)
	def(&o.BootstrapTimeout, 300*time.Second)
	def(&o.PeerLossAfter, 10*time.Second)
	def(&o.HealthDelay, time.Second)
	def(&o.HealthTimeout, 20*time.Second)
	def(&o.Host, "127.0.0.1")
	def(&o.SideChannelHost, o.Host)
	def(&o.IdleTimeout, 5*time.Second)
	def(&o.MaxBody, 1<<30)
	def(&o.LogRequests, 4096)
	def(&o.LogBodyBytes, 1<<20)
	def(&o.Timing.OutputTokens, 16)
	if o.PageSize > 0 {
		o.KVTokens -= o.KVTokens % o.PageSize
		def(&o.CacheBlock, o.PageSize)
		if o.CacheBlock == 1 && o.Backend == SGLang {
			o.CacheBlock = 16
		}
		def(&o.CacheBlocks, max(1, min(o.KVTokens/max(1, o.CacheBlock), 128<<10)))
	}
	return o
}

func (o WorkerOptions) validate() error {
	if o.FirstRank < 0 || o.FirstRank > 4096 {
		return fmt.Errorf("cannot simulate a first rank of %d: want 0 to 4096", o.FirstRank)
	}
	if o.DPSize < 0 || o.DPSize > 4096 {
		return fmt.Errorf("cannot simulate a worker of %d ranks: want 1 to 4096", o.DPSize)
	}
	if o.KVTokens < 0 || o.MaxRunning < 0 {
		return fmt.Errorf("cannot simulate a worker with KV capacity %d and %d running requests: want positive numbers", o.KVTokens, o.MaxRunning)
	}
	if o.PageSize < 0 || (o.KVTokens == 0 && o.PageSize > 0) {
		return fmt.Errorf("cannot simulate a KV cache of less than one page of %d tokens", o.PageSize)
	}
	if err := o.KVEvents.validate(); err != nil {
		return err
	}
	if o.CacheBlock < 0 || o.Backend == VLLM && o.CacheBlock != o.PageSize {
		return fmt.Errorf("cannot simulate a prefix cache of blocks of %d tokens: want a positive number, with vllm the page size of %d", o.CacheBlock, o.PageSize)
	}
	if o.Backend != SGLang && o.Backend != VLLM {
		return fmt.Errorf("cannot simulate backend %q: want sglang or vllm", o.Backend)
	}
	if o.GRPC && (o.Backend != VLLM || o.HTTP2 || o.BasePath != "" || o.Wrap != nil) {
		return fmt.Errorf("cannot simulate backend %q over gRPC with HTTP2, BasePath or Wrap: want vllm, and none of these", o.Backend)
	}
	if o.Connector != "" && o.Backend != VLLM {
		return fmt.Errorf("cannot simulate connector %q: only backend vllm has one", o.Connector)
	}
	if o.Connector != "" && !slices.Contains(Connectors, o.Connector) {
		return fmt.Errorf("cannot simulate connector %q: want one of %v", o.Connector, Connectors)
	}
	if o.KVRole != "" && o.KVRole != "kv_producer" && o.KVRole != "kv_consumer" && o.KVRole != "kv_both" {
		return fmt.Errorf("cannot simulate kv_role %q: want kv_producer, kv_consumer or kv_both", o.KVRole)
	}
	if o.BasePath != "" && (o.BasePath[0] != '/' || o.BasePath[len(o.BasePath)-1] == '/') {
		return fmt.Errorf("cannot use base path %q: want a leading and no trailing slash", o.BasePath)
	}
	return nil
}
