// Package sim runs simulated SGLang and vLLM engines that behave like the real
// ones on the wire: prefill, decode and aggregated ("regular") workers, each
// with its own listener, in one process.
//
// # Goals
//
// It is used in the router's tests and as the backend of its load tests. It is
// strict where a real engine is strict: SGLang's prefill and decode legs pair only
// by bootstrap room, a room serves once, prefill cannot start before decode holds
// memory for the request, decode cannot start before the transfer, and the failure
// of one leg aborts the other; vLLM's decode gets the KV that its kv_transfer_params
// name, once and within the lease, and its text depends on which KV it got. An error
// of the router is recorded as a Violation, and answered as the engine would.
//
// # Non-goals
//
// No sampling, no meaningful text, and a tokenizer only where engines speak in token ids. SGLang: a prompt's token
// count is its size divided by four, output token k is " t<k>". vLLM: see below.
// No retraction of running requests. The
// package imports nothing else of this module but the generated messages of gRPC, so that
// it cannot share a mistake about the protocol with the router.
//
// # Usage
//
//	fleet, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Worker: sim.WorkerOptions{
//		Timing: sim.Timing{PrefillTime: 3 * time.Second},
//	}})
//	defer fleet.Close()
//	p := fleet.Prefill(0)                    // p.URL(), p.BootstrapPort()
//	p.SetFault(sim.Fault{Status: 503, Count: 2})
//	err = p.WaitInflight(ctx, 1)             // no polling
//	for _, r := range p.Requests() { ... }   // headers, raw body, times, outcome
//	if v := fleet.Violations(); len(v) > 0 { ... }
//
// With the zero Timing the engine takes no time; only /health takes one second, as
// that of the real engine does (HealthDelay: -1 makes it answer at once).
//
// # Life of a request: SGLang
//
// The body is read whole, its top-level fields are scanned, and it becomes one
// sequence per prompt (and per sample). On prefill a sequence waits in the
// bootstrap queue until decode has registered the same room with memory
// allocated, then computes (one at a time per rank unless Timing says
// otherwise), transfers, and answers exactly one token. On decode it waits for
// a running slot and memory, registers the room at the prefill named by
// bootstrap_host and bootstrap_port, waits for the transfer, then produces
// tokens one step at a time. When a client disconnects, its sequences are aborted at
// once. A leg learns at once that its peer was aborted, and after
// WorkerOptions.PeerLossAfter that its peer's worker was killed.
//
// # Life of a request: vLLM
//
// Bodies of chat, completions, responses and messages are validated as vLLM
// 0.32 was observed to do it (status, form and param of the errors are the same, the
// wording is similar), rendered to one text, and split into tokens of four bytes;
// /tokenize and /detokenize use the same tokens. The greedy text is a function of
// the tokens and of the adapter: it is the same on every worker and over every API
// that has a chat template. A sequence waits for a slot and memory, receives KV from
// another engine if its connector and its kv_transfer_params say so, computes the
// rest of the prompt, and produces tokens.
//
//   - NIXL and MoRIIO: a prefill with do_remote_decode keeps its blocks when it
//     ends and tells in its answer where they are, unless it streams. A decode with
//     those params claims them when it arrives, which ends the lease, and frees
//     them after the transfer. Expired, foreign or unknown KV: 200 and a wrong
//     text. KV that was taken before, or an engine that has ended: 500. No
//     remote_block_ids, or a prompt longer than the prefilled one: the engine
//     crashes, everything on it fails and the port refuses. Another field missing:
//     the request hangs, and the engine crashes when the client disconnects.
//   - NIXLPush and Mooncake: both legs run at once and meet by X-Request-Id or
//     transfer_id; a decode whose prefill does not come fails after the lease.
//     Mooncake's GET /query answers on the bootstrap port.
//   - LMCache and SharedStorage: whole blocks that any worker of the fleet has
//     computed are taken from the store.
//
// Nothing listens on side channels: the workers of a fleet find each other in memory.
// NIXL was observed on a real engine; the other connectors and Recompute follow the
// engine's documentation only.
//
// # gRPC
//
// With WorkerOptions.GRPC a vLLM worker speaks gRPC instead of HTTP, as vllm serve --grpc
// with its servicer was observed to do it: the service VllmEngine, grpc.health and
// reflection. It takes token ids and gives token ids of a small vocabulary of its own
// (theVocabulary), whose files GetTokenizer hands out. The text is the words that depend on
// the prompt's tokens, as over HTTP; a word is one id or several.
//
//   - Chunks tell the tokens since the last one, and how many these are; now and then two
//     at once. A complete repeats the last chunk. Samples are told apart by their index.
//   - Stop strings are found in the engine's own text; the ids up to and with the match are
//     sent. A max_tokens beyond the context is cut; one that is all the context has left is
//     no limit, and the output ends with the end of the turn.
//   - KV is handed on as over HTTP, by kv_transfer_params_json. KV that does not come ends
//     the call with status OK and finish_reason "error". Params that lack a field end the
//     engine, and their call hangs: the server outlives its engine and tells that it is not
//     healthy, until Restart. EndEngine does the same without a request.
//   - SubscribeKvEvents sends the events of all ranks, with the load in each batch and
//     records of the load alone between them.
//   - A client that pings more often than PingInterval is sent GOAWAY too_many_pings; GoAway
//     sends it to all.
//
// Log entries have the method as their path, the message as their body, the metadata as
// their header, and a Code.
//
// # Capacities
//
// KV is counted in whole pages per rank, and is held by requests, by KV that
// waits for its decode, and by HoldKV, with which a test fills a pool without
// requests. Ranks shows use, peaks and waiting requests; /server_info, /v1/loads and
// /metrics tell the same in each engine's form. With Timing.PrefillStep prompts are
// computed in batches of bounded tokens; DecodePerRequest and DecodePerKTokens make
// decode slower the more requests and tokens a rank has.
//
// # Prefix cache
//
// Each rank has an LRU of the blocks it has computed or received (CacheBlocks), keyed by
// the tokens from the prompt's beginning, the adapter and the cache salt. A prompt is
// looked up when it begins to compute; what is found is not computed, but for its last
// token, and cached_tokens tells of it in each engine's form. Output is cached too, as
// the tokens that its text will be in the next turn's prompt. The cache's blocks do not
// count as used KV: running requests never evict them. In a pair both engines cache the
// prompt, SGLang's decode as with --disaggregation-decode-enable-radix-cache; the decode's answer tells the number of its prefill, which comes with the KV,
// on vLLM in kv_transfer_params: without it all that came counts as cached. It is emptied by /flush_cache, /reset_prefix_cache,
// ClearCache and a restart.
//
// # KV events
//
// With WorkerOptions.KVEvents each rank publishes what its cache stores and removes, as
// vLLM and SGLang do over ZeroMQ: a PUB socket with three frames a batch (topic, sequence
// from 0, msgpack), and a ROUTER socket that repeats batches. Events leave with the step
// that computes; that the cache was emptied is told in the batch of the next request. In
// vLLM's maps session_id is the body's or X-Session-ID, and vllm_xargs
// {"kv_cache_report_mode":"full"} tells the cached blocks of a prompt again. Hashes
// depend on the tokens, the adapter and the salt only: they are the same after a restart.
// A KVLie makes the events deviate from the cache or from the protocol.
//
// # Per-request control
//
// A request can ask for a fault or an answer of its own, in the header
// X-Sim-Fault ("status=500,delay=100ms") or in a top-level body field "sim",
// a string of that form or an object with the same keys. See ParseFault for the
// keys. With keys for one role only, as in "on=prefill,status=500", the field
// can be sent through a router that copies the body to both legs.
//
// A request with a word that begins with "nonce-" gets this word with the number of the
// token as each token of its answer (" nonce-7f.1 nonce-7f.2"), so that a client can tell
// its own answer from others, and a whole one from parts. A vLLM worker that has KV of
// another prompt answers without it.
//
// # Admin API
//
// With Options.AdminAddr set the fleet can be driven from outside:
//
//	GET  /sim/workers                     ids, roles, URLs, bootstrap ports, counters
//	GET  /sim/workers/{id}                one worker
//	POST /sim/workers/{id}/fault          body: fault as an object or as text; adds it
//	DELETE /sim/workers/{id}/fault        clears all
//	POST /sim/workers/{id}/timing         body: {"prefill_time":"3s","decode_step":"6ms",...}
//	POST /sim/workers/{id}/kill           resets all connections, refuses new ones
//	POST /sim/workers/{id}/stop           graceful stop
//	POST /sim/workers/{id}/terminate      as vLLM on SIGTERM: streams stay open, without further events
//	POST /sim/workers/{id}/restart        same port, empty engine
//	POST /sim/workers/{id}/refuse, /admit closes and opens the port, open connections go on
//	POST /sim/workers/{id}/freeze, /thaw  as SIGSTOP and SIGCONT
//	POST /sim/workers/{id}/wedge, /unwedge  the scheduler stands still, the server does not
//	POST /sim/workers/{id}/kv-lie         body: a KVLie as text; DELETE ends all
//	POST /sim/workers/{id}/kv-clear       empties the prefix caches (ClearCache)
//	POST /sim/workers/{id}/kv-restart     empties them without telling (RestartCache)
//	POST /sim/workers/{id}/reset          empties the log and the counters
//	GET  /sim/workers/{id}/requests       the log (?bodies=1 adds raw bodies, base64; ?probes=1 the other one)
//	GET  /sim/violations
//
// {id} is the worker's id ("prefill-0") or "all".
//
// # Lock order
//
// broker.mu, exchange.mu, Worker.mu, life.mu, pool.mu, batcher.mu, blocks.mu,
// gate.mu, prefixCache.mu, Fleet.mu are leaves: none is held while another is taken,
// except Worker.lifeMu, which is held during a whole start or kill, and batcher.mu,
// under which a prompt is looked up in the prefix cache and counted; and prefixCache.mu,
// then eventLog.mu, then Worker.mu or publisher.mu, while events are told. A meeting that fails
// cancels the contexts of its legs under broker.mu.
package sim
