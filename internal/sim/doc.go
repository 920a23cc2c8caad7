// Package sim runs simulated SGLang and vLLM engines that behave like the real
// ones on the wire: prefill, decode and aggregated ("regular") workers, each
// with its own listener, in one process.
//
// # Goals
//
// It is the test bed of the router and the backend of its load tests. It is
// strict where a real engine is strict: SGLang's prefill leg and decode leg meet
// by bootstrap room or not at all, a room serves once, prefill cannot start
// before decode holds memory for the request, decode cannot start before the
// transfer, and a peer's failure is an abort; vLLM's decode gets the KV that its
// kv_transfer_params name, once and within the lease, and its text shows which
// KV that was. What a router must never do is recorded as a Violation besides
// being answered the way the engine would.
//
// # Non-goals
//
// No tokenizer, no sampling, no text worth reading. SGLang: a prompt's token
// count is its size divided by four, output token k is " t<k>". vLLM: see below.
// No retraction of running requests, no prefix cache of a worker's own. The
// package imports nothing else of this module, so that it cannot share a
// misreading of the protocol with the router.
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
// The zero Timing is an engine that takes no time at all; only /health takes its
// second, as the real one's does (HealthDelay: -1 makes it answer at once).
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
// tokens one step at a time. A client that leaves aborts its sequences at once;
// a peer is told at once, a peer of a killed worker after
// WorkerOptions.PeerLossAfter.
//
// # Life of a request: vLLM
//
// Bodies of chat, completions, responses and messages are validated as vLLM
// 0.32 was seen to do it (status, shape and param of the errors, the wording
// only roughly), rendered to one text, and cut into tokens of four bytes, which
// /tokenize and /detokenize agree with. The greedy text is a function of those
// tokens and of the adapter: the same on every worker and over every API that
// has a chat template. A sequence waits for a slot and memory, gets KV from
// elsewhere if its connector and its kv_transfer_params say so, computes the
// rest of the prompt, and produces tokens.
//
//   - NIXL and MoRIIO: a prefill with do_remote_decode keeps its blocks when it
//     ends and answers where they are, unless it streams. A decode with those
//     params takes them, which ends the lease the moment it arrives, and frees
//     them with the transfer. Expired, foreign or unknown KV: 200 and another
//     text. KV taken before, an engine that is gone: 500. No remote_block_ids, or
//     a prompt longer than what was prefilled: the engine dies, everything on it
//     fails and the port refuses. Another field missing: it hangs, and dies when
//     the client leaves.
//   - NIXLPush and Mooncake: both legs run at once and meet by X-Request-Id or
//     transfer_id; a decode whose prefill does not come fails after the lease.
//     Mooncake's GET /query answers on the bootstrap port.
//   - LMCache and SharedStorage: whole blocks that any worker of the fleet has
//     computed are taken from the store.
//
// Nothing listens on side channels: the fleet knows by itself who is where. What
// is not known from a real engine, only from its documentation: all connectors
// but NIXL, and Recompute.
//
// # Capacities
//
// KV is counted in whole pages per rank, and is held by requests, by KV that
// waits for its decode, and by HoldKV, with which a test fills a pool by itself.
// Ranks shows use, peaks and waiters; /server_info, /v1/loads and /metrics say
// the same in each engine's words. Timing.PrefillStep computes prompts in
// batches of bounded tokens, DecodePerRequest and DecodePerKTokens slow a
// crowded decode down.
//
// # Per-request control
//
// A request can ask for a fault or an answer of its own, in the header
// X-Sim-Fault ("status=500,delay=100ms") or in a top-level body field "sim",
// a string of that form or an object with the same keys. See ParseFault for the
// keys. With keys for one role only, as in "on=prefill,status=500", the field
// can be sent through a router that copies the body to both legs.
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
//	POST /sim/workers/{id}/stop           graceful end
//	POST /sim/workers/{id}/terminate      as vLLM on SIGTERM: open streams stay, silent
//	POST /sim/workers/{id}/restart        same port, empty engine
//	POST /sim/workers/{id}/refuse, /admit closes and opens the port, open connections go on
//	POST /sim/workers/{id}/freeze, /thaw  as SIGSTOP and SIGCONT
//	POST /sim/workers/{id}/reset          empties the log and the counters
//	GET  /sim/workers/{id}/requests       the log (?bodies=1 adds raw bodies, base64; ?probes=1 the other one)
//	GET  /sim/violations
//
// {id} is the worker's id ("prefill-0") or "all".
//
// # Lock order
//
// broker.mu, exchange.mu, Worker.mu, life.mu, pool.mu, batcher.mu, blocks.mu,
// gate.mu, Fleet.mu are leaves: none is held while another is taken, except
// Worker.lifeMu, which is held around a whole start or kill. A failing meeting
// cancels its legs' contexts under broker.mu.
package sim
