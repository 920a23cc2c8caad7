// Package engine says what each leg's request is and what its answer means, for
// each engine that sluice speaks to.
//
// Everything here is a function between a request and bytes: no sockets, no
// waiting, no choice of workers. A dialect is one file.
//
// SGLang pairs the two legs of a request by a room: both get the same body with
// bootstrap_host, bootstrap_port and bootstrap_room in it, are sent at once, and
// meet at the prefill engine's bootstrap server. [Rooms] mints the numbers.
package engine

// Dialects, as fleet names them.
const (
	DialectSGLang = "sglang"
	DialectVLLM   = "vllm"
)
