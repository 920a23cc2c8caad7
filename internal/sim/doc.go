// Package sim runs simulated SGLang engines that behave like the real ones on
// the wire: prefill, decode and aggregated ("regular") workers, each with its
// own listener, in one process.
//
// # Goals
//
// It is the test bed of the router and the backend of its load tests. It is
// strict where a real engine is strict: a prefill leg and a decode leg meet by
// bootstrap room or not at all, a room serves once, prefill cannot start before
// decode holds memory for the request, decode cannot start before the transfer,
// and a peer's failure is an abort. What a router must never do is recorded as
// a Violation besides being answered the way the engine would.
//
// # Non-goals
//
// No tokenizer, no sampling, no text worth reading: a prompt's token count is
// its size divided by four, output token k is " t<k>". No retraction of running
// requests, no prefix cache. The package imports nothing else of this module,
// so that it cannot share a misreading of the protocol with the router.
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
// # Life of a request
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
//	POST /sim/workers/{id}/stop           graceful end, as on SIGTERM
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
// broker.mu, Worker.mu, pool.mu, gate.mu, Fleet.mu are leaves: none is held
// while another is taken, except Worker.lifeMu, which is held around a whole
// start or kill. A failing meeting cancels its legs' contexts under broker.mu.
package sim
