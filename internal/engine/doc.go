// Package engine knows the engines that sluice speaks to: what each leg's request is,
// what the answers mean, how a worker is probed and what it tells of itself.
//
// A [Dialect] is one engine; vLLM's has a table of connectors behind it. It knows no
// admission and chooses no workers. It plans the legs of a request ([Plan]), edits what
// each is sent, makes the call, and reads what the answers mean. As a [Prober] it says
// which routes a worker is asked for facts and load, and reads the answers into [Facts]
// and [Loads]; as a [Pairer], which workers can be paired, how the KV connector is found
// out, and what decode must be told of a prefill worker ([Peer]). When to ask, how long
// to wait and how much to read is decided by package fleet, which sends the questions.
//
// Nobody else compares a dialect's name: what differs between engines is a method here.
// A [Registry] has the dialects by name and finds out which one a worker is of. A new
// one embeds [HTTP], which has what is common, and is added to package dialects.
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
