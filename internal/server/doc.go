// Package server is the client side of the router: listeners, routes, API keys,
// request ids, limits on what a client may send and how long it may take, and the
// life of the process from its first connection to its last.
//
// # Goal
//
// A request reaches dispatch whole, parsed as far as routing needs it and within
// bounds, or is answered here with an error in the API's form, in such a way that
// an ordinary client reads it. Nothing a client does (sends slowly, too much, nothing; leaves;
// pipelines; half-closes) holds a goroutine or memory beyond a named limit.
//
// # Non-goals
//
// Which worker serves a request, waiting for it, talking to engines: packages
// dispatch, admission, fleet, upstream. TLS to clients: a load balancer's.
//
// # Life of a request
//
//	conn      accepted; a disconnect is noticed even behind pipelined bytes (package http1)
//	request   id, route, method, key; every answer carries X-Request-Id
//	body      read whole into a pooled buffer, within --max-payload-size and
//	          --max-buffered-bytes, refused before that where it can be
//	peek      what routing needs; fields a client may not set are refused
//	dispatch  waits, runs the legs, answers
//	end       one access log line, whatever happened
//
// Errors before dispatch are answered by request.refuse, the one place that
// knows how to answer a client that is still sending.
//
// # Life of the process
//
// Run serves until its context ends. Then readiness fails at once, while
// requests are still taken for PreDrainWait; new ones are answered 503
// "draining" from then on (the listener stays open, so that clients get this
// answer), running and waiting ones go on for DrainTimeout; what is left is ended
// with an error too, and Run returns.
//
// # Malformed requests
//
// Bytes that cannot be parsed as HTTP (400), a head that does not come in time (408), an Expect
// other than 100-continue (417), a head over the limit (431), an unknown transfer
// coding (501) or version (505) are noticed by package http1 and answered here, in
// the API's form and with a request id; the connection ends with it.
package server
