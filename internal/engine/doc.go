// Package engine says what each leg's request is and what its answer means, for
// each engine that sluice speaks to.
//
// A [Dialect] is one engine in one file; vLLM's has a table of connectors behind
// it. It knows no admission and chooses no workers. It plans the legs of a request
// ([Plan]), edits what each is sent, makes the call, and reads what the answers
// mean. Nobody else compares a dialect's name: what differs between engines is a
// method here.
//
// Four shapes of two legs exist:
//
//   - together by a room (SGLang): both legs get the same body with bootstrap_host,
//     bootstrap_port and bootstrap_room in it, are sent at once, and meet at the
//     prefill engine's bootstrap server. [Rooms] mints the numbers;
//   - prefill, then decode with the object that prefill handed over (vLLM with
//     NIXL or MoRIIO);
//   - together by an id that both are told (vLLM with Mooncake, or NIXL that pushes);
//   - prefill, then decode with state that says nothing to sluice, or with nothing
//     at all where the engines move the KV cache by themselves (vLLM with LMCache or
//     a shared storage).
package engine
