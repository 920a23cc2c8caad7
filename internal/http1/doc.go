// Package http1 is the HTTP/1.1 server that clients speak to.
//
// # Goal
//
// What a client does costs as little as it can: no goroutine beside the one of
// its connection, no timer and no context per request, one write per answer or
// burst of events, and nothing but a stack while an answer is silent. Its leaving
// is noticed at once, whatever lies unread before the end of its connection. And
// every request that is none is answered in words that the caller of the package
// chooses.
//
// Handlers are those of net/http, with its Request and ResponseWriter, and the
// methods that [net/http.ResponseController] looks for.
//
// # Non-goals
//
// TLS and HTTP/2: a load balancer's. Upgrades, CONNECT, trailers, informational
// answers other than 100, hijacking.
//
// # Beside net/http
//
// The rules are those of RFC 9112. Of its leniencies there are two: a line of a head
// may end in a bare LF, and empty lines before a request are skipped. So they are no
// looser than net/http's, which is the oracle of the fuzz test. Where this package
// goes its own way:
//
//   - Targets are paths, or http and https URLs of a host, or the asterisk of an
//     OPTIONS.
//   - HTTP/1.0 has one request a connection. An answer's Content-Type is not guessed.
//   - A Content-Length beside a Transfer-Encoding is refused; net/http drops it.
//   - A request, its header and the writer of its answer belong to the connection:
//     they must not be used once the handler has returned. Strings in them may be
//     kept.
//   - The context of requests is that of the connection. It does not end when a
//     handler returns, so what is hung on it must be taken off. It has a method
//     AfterFunc, as package context has a function, that costs less.
//   - Both sides of a connection are used at once: a handler may answer and go on
//     reading the body, in another goroutine too, unless the client waits for 100
//     Continue: asking for the body is a write like others. What a handler leaves
//     unread is read, within bounds, or the connection ends.
//   - Deadlines are kept by this package and reach the socket only when something
//     has to be waited for.
//
// # Life of a connection
//
//	accept   counted, watched for its end (on Linux by one epoll for all; elsewhere
//	         by a goroutine per request)
//	head     read into a borrowed buffer, within MaxHeaderBytes and HeaderTimeout
//	handler  on the connection's goroutine; the body is read as it asks for it
//	answer   collected in a borrowed buffer until it is flushed, full or whole
//	rest     the body's rest is read or the connection ends; else it waits for the
//	         next head, without a buffer, for IdleTimeout
//	end      written out, closed for writing, and read a moment longer if the client
//	         may still be sending: a reset would take the answer with it
//
// # When files run short
//
// A connection has its file when it is accepted, so room is made afterwards: one is told
// to close that waits for its client, and whose request does not run (see waiting for the
// order, and Server.waitForRoom for the choice between a burst of clients and a flood of
// silence). It wakes up, says 503 if it has said nothing yet, and ends. A handler calls
// Running on its ResponseWriter where that must not happen any more.
//
// # Untrusted input
//
// A head is bounded in bytes and lines, a chunked body's framing in proportion to
// its payload, what is read after an answer in bytes and time. Nothing of a
// request is logged here.
package http1
