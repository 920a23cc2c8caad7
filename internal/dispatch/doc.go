// Package dispatch is the second half of a request's journey: from the gate to
// the client's last byte.
//
// # Goal
//
// A request that was read and peeked at is placed (model, pins), waits at the
// gate, is sent as one leg or as a pair of legs to the ranks it was granted, and
// the answer is relayed byte for byte. Whatever happens on the way, every hold
// is given back, every engine that works for nothing is told to stop, and the
// client learns what went wrong in the words of whoever failed.
//
// # Non-goals
//
// Reading and authenticating requests (package server), what an engine's bytes
// mean (engine), carrying them (upstream), choosing ranks (admission, policy).
//
// # Life of a request
//
//	exchange    one client request: it is placed, waits at the gate, and makes
//	            attempts until one has sent the client a byte
//	placement   what the request may run on and how it is served, decided once in
//	            named steps: its model, pins, labels, size and class, and the plan
//	            (passed through or translated, in how many calls, with a place at
//	            the gate or without)
//	attempt     one grant: the legs on the granted ranks in the shape that their
//	            engine's dialect plans (together, in sequence, alone), joined at its
//	            end. A request for several samples is a set of pairs of legs
//	relay       the answering leg's body on its way to the client: one loop over its
//	            pieces, with a taker for each form (events, perhaps with a transform;
//	            lines; one JSON answer)
//
// What all of them know of the request is type request; placement, attempt and relay
// know nothing of each other but that an attempt makes relays.
//
// The leg that answers runs on the goroutine of the client's handler; a prefill
// leg beside it runs on one of its own, which may outlive the handler by
// Options.PrefillGrace, never longer. Several samples have a goroutine for each leg.
//
// # Reading order
//
// dispatch.go, exchange*.go, placement*.go, attempt*.go, relay*.go; below them
// request.go and client.go, and what stands alone: contexts (legcontext.go,
// reqcontext.go, deadline.go), failures (failure.go, blame.go, verdicts.go), headers.
//
// # Who failed
//
// A leg that fails ends its pair at once. The first failure that is its leg's
// own is the one the client sees and the one that is charged; a leg that was
// cancelled because the other failed is charged with nothing. When a leg only
// reports that the hand-off broke, the other one has a moment to say why
// (Options.VerdictWait), because that report is often the echo of the real one.
package dispatch
