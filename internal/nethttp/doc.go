// Package nethttp is the HTTP/1.1 server for clients that is built on net/http. With
// --http-stack net it replaces package http1, in case that one has a bug.
//
// # Goal
//
// Heads, bodies and answers are parsed and framed by net/http alone. Around it, this
// package does what package http1 does, as far as net/http lets it: limits in time,
// counting connections, evicting idle ones when files run short, a drain, answers to
// malformed requests chosen by the caller. It has the same settings, those of an
// [http1.Server].
//
// Speed is no goal.
//
// # How
//
// Each connection is wrapped (conn.go). Outside of a handler, net/http writes only its
// own answer to a malformed request: the wrapper answers with Refuse instead. net/http
// reports when a connection becomes idle or ends; the order of eviction follows from that
// and from what is read (eviction.go).
//
// # What differs from package http1
//
// docs/http.md has the list for operators. Two things cannot be seen through net/http:
//
//   - A Content-Length beside a Transfer-Encoding: the connection of a chunked request
//     is closed after its answer, so that nothing behind it is taken for another request.
//   - A client's disconnect behind more than 16 KiB of unread bytes: it is noticed at
//     the next write.
package nethttp
