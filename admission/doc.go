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
//     It joins six owners: the rank index (what is known of the ranks, as bitmaps;
//     no waiter), the ledger (what requests hold), the queues (classes, lanes,
//     deadlines, fences, round robin; no bitmap), the chooser (which ranks a request
//     can start on, or what it lacks), the decisions (what callers are told) and affinity
//     (who goes before the head of its queue, and whose hints are renewed).
//   - [Port] drives a core by values: steps, answers and the whole [State] can be
//     written as JSON and read back, and a fresh core goes on from a state ([Restore]).
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
// pool is the ranks that serve one model in one role. A model group (in the
// contract: a family) is the pools
// that compete for the same ranks or that one request needs together; each
// model group has its own queue, and model groups never block each other. A hold is a
// booking on a rank. A candidate is a rank that could serve a request at all;
// room means that it could do so now.
//
// # Classes
//
// A request belongs to a class: one that it names, or the cell of its policy family
// and the bucket of its uncached prompt tokens ([Profile]). Without a
// configuration there is the one class "default". A class has thresholds, which
// a rank of each of the two pools must be under for a request of the class to
// start there; an order; limits of what may wait in it; and a quantum, its share
// of the tokens when several classes could start something (a deficit round
// robin per model group and profile). The rule is one for what comes and for what
// waits, and the choice is joint: a prefill rank counts only with a decode rank
// that may follow it and on which the request's KV blocks fit exactly, with what
// is pending there. One request alone on a rank always fits.
//
// A class that never queues (a limit of zero) starts at once or is refused. A
// class's MaxWait gives its waiters deadlines, and deadlines order before WSPT
// or LCFS do: with the same MaxWait for all, that is the order of arrival.
//
// Waiters of a class are kept in lanes: one a target and a retry's exclusion, so
// that a blocked head delays only those that need the same ranks ([QueueLanes]);
// or in one queue a class ([QueueStrict]), which is the order without classes.
//
// A head that is blocked for [Limits].StarvationGuard while others of its model group
// are granted gets a fence: a pair of ranks, or one, that others may use only as
// far as it would still have room there.
//
// # Late binding
//
// With [Limits].AffinityLookahead a class offers one of its first waiters instead of its
// head: the one that has most of its prompt cached on the rank that it would be given, by its
// [Hint]. How often a waiter is passed over so is bounded. One whose holder is full declines
// other ranks for a bounded time, in which it is not blocked: what it declines is free for
// others. Hints are renewed by the goroutine that waits, with the ticket's [Matcher].
//
// # How ranks are chosen
//
// Choosing takes ranks away from the candidates in steps, and stops at the first that
// leaves no pair: not eligible for the request, overloaded, without room, over the
// thresholds of its class, fenced for another. That step names what is lacking. Among
// what is left, preferred labels count, and then the policy chooses.
//
// # What is booked
//
// A grant takes, in this order: a prefill slot, the prompt tokens that the rank lacks by the
// ticket's hint and a unit a leg on the prefill rank; then pending decode units and KV blocks on the
// decode rank. StartDecode makes these active. The tokens end with FirstToken or
// EndPrefill, whichever is first. Grow adds output blocks. Every request books
// all of it, whatever its class looks at. A [Bypass] request books tokens and
// blocks on its one rank and no slot. MoveDecode takes the decode side to
// another rank, past every queue.
//
// # Several processes
//
// A gate may have a [Remote] decide about its requests. Then its core keeps the ranks, and what
// this process's own requests hold of them. [Port] drives a core by values and is what decides
// for several processes: it takes tickets over from others (Adopt), suspends those of a process
// that does not answer (StepSuspend), keeps ranks from the requests of one process that cannot
// reach them (StepSetMask), and counts what nobody here has booked ([SetAside]). A process that
// decides on its own has a share of each bound ([RankShare], [Options].ShareOf).
//
// # Cost
//
// No step scans the fleet in a way that grows beyond 64-bit words of bitmaps:
// room is a bit per rank, kept up to date by bookings and fleet events, and a
// policy sees a [View] of those bits. Which ranks have room for n blocks is
// answered exactly, by comparing the ranks of a word all at once in numbers that
// are stored as bitmaps too. A held head is looked at again only when something
// happens to a rank that it may use.
package admission
