// Package admission decides when a request may start and on which ranks.
//
// # Goal
//
// An inference fleet that splits a request into phases loses GPU time when
// requests are pushed at workers that cannot start them: they wait unseen,
// hold memory on one side of a pair while the other side is full, and time out
// in the wrong place. This package keeps requests in one bounded, fair queue
// in front of the fleet and lets each start only when the ranks it needs have
// room. It then keeps the ledger of what every request holds until it ends.
//
// # Non-goals
//
// The package knows no HTTP, no JSON, no engine and no clock of its own. It
// does not know why a rank is unhealthy, how a prompt is counted, or what a
// policy hashes: all of that is handed in.
//
// # The roles
//
//   - [Core] is a step machine. Arrivals, cancellations, releases, fleet
//     changes and the passing of time go in, decisions come out into a buffer
//     that the caller lends. It has no goroutine, channel, timer, lock or
//     clock, so that a test is a script and a replay runs the same code.
//   - [Gate] is the thin layer around it: one mutex, one timer, and the
//     parking of callers. Answers are handed out after unlocking.
//   - [Policy] chooses among ranks that have room. It is called inside the
//     gate's critical section and must neither block nor allocate.
//
// # Life of a request
//
//	target, err := gate.Resolve(admission.TargetSpec{Model: "m", Shape: admission.Disaggregated})
//	t := &admission.Ticket{Target: target, Legs: 1}
//	if err := gate.Acquire(ctx, t); err != nil { … a *Refusal, or ctx's error … }
//	defer t.Close()       // whatever is still held, exactly once
//	… send both legs to t.Prefill and t.Decode …
//	t.StartDecode()       // the decode booking turns from pending to active
//	t.EndPrefill()        // the last prefill leg is over: the slot is free
//
// # Vocabulary
//
// A rank is what is scheduled: a worker, or one data-parallel rank of it. A
// pool is the ranks that serve one model in one role. A family is the pools
// that compete for the same ranks or that one request needs together; each
// family has its own queue, and families never block each other. A hold is a
// booking on a rank. A candidate is a rank that could serve a request at all;
// room means that it could do so now.
//
// # Cost
//
// No step scans the fleet in a way that grows beyond 64-bit words of bitmaps:
// room is a bit per rank, kept up to date by bookings and fleet events, and a
// policy sees a [View] of those bits.
package admission
