// Package nethttp is the HTTP/1.1 server for clients that is made of net/http's. It
// takes the place of package http1 with --http-stack net, when that has a fault.
//
// # Goal
//
// Heads, bodies and answers are parsed and framed by net/http alone. Around it, this
// package does what package http1 does, as far as net/http lets it: limits in time,
// the account of connections, closing idle ones when files run short, a drain, answers
// to what is no request in the words of the caller. It is told what to do by the same
// settings, those of an [http1.Server].
//
// Speed is no goal.
//
// # How
//
// Each connection is wrapped (conn.go). Outside of a handler net/http writes only one
// thing to it, a text about a request that it cannot read: the wrapper answers with
// Refuse instead. net/http reports when a connection becomes idle or ends; the order
// in which connections are closed for others follows from that and from what is read
// (eviction.go).
//
// # What differs from package http1
//
// docs/http.md has the list for operators. What net/http hides:
//
//   - A Content-Length beside a Transfer-Encoding: the connection of a chunked request
//     ends with its answer, so that nothing behind it is taken for another request.
//   - The end of a client behind more than 16 KiB that were not read: it is noticed at
//     the next write.
package nethttp
